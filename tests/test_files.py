"""Files that survive a kill and folders that come from strangers."""

import json
import os
from pathlib import Path

import pytest

from fedsift import files
from fedsift.types import UserError


def test_a_lock_that_is_a_link_leaves_the_file_it_points_to_alone(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    folder.mkdir()
    victim.write_text("precious")
    (folder / files.LOCK).symlink_to(victim)
    with pytest.raises(UserError, match="is a link, not a file; remove it"):
        files.lock_folder(folder)
    assert victim.read_text() == "precious"


def test_a_lock_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / files.LOCK)
    with pytest.raises(UserError, match="is not a plain file; remove it"):
        files.lock_folder(tmp_path)


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path):
    first = files.lock_folder(tmp_path)
    with pytest.raises(UserError, match="another process is running in"):
        files.lock_folder(tmp_path)
    first.release()
    files.lock_folder(tmp_path).release()


def test_locking_removes_what_a_killed_write_left_behind(tmp_path):
    for name in (".config.toml-x1.tmp", "kept.tmp", ".hidden"):
        (tmp_path / name).touch()
    files.lock_folder(tmp_path).release()
    assert {path.name for path in tmp_path.iterdir()} == {files.LOCK, "kept.tmp", ".hidden"}


def test_content_may_be_bytes_or_a_function_that_writes_them(tmp_path):
    files.write_atomic(tmp_path / "a", b"12")
    files.write_atomic(tmp_path / "b", lambda file: file.write(b"34"), mode=0o600)
    assert (tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes() == b"1234"
    assert [oct((tmp_path / name).stat().st_mode)[-3:] for name in "ab"] == ["644", "600"]


def test_rows_are_appended_one_line_each(tmp_path):
    for row in ({"round": 0}, {"round": 1, "accuracy": 0.5}):
        files.append_row(tmp_path / "rows.jsonl", row)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"round": 0}, {"round": 1, "accuracy": 0.5}]


@pytest.mark.parametrize("failing", ["fsync", "chmod", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_the_old_content_survives_a_failed_write_and_no_temporary_file_does(
    failing, error, tmp_path, monkeypatch
):
    path = tmp_path / "file"
    files.write_atomic(path, b"old")

    def fail(*_):
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(os, failing, fail)
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    files.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    """At the last moment before the new file takes its place, the old one is whole, and so is the
    new one.
    """
    path, seen = tmp_path / "file", []
    replace = os.replace

    def watched(new, old):
        seen.append((Path(old).read_bytes(), Path(new).read_bytes()))
        replace(new, old)

    monkeypatch.setattr(os, "replace", watched)
    path.write_bytes(b"old")
    files.write_atomic(path, b"new")
    assert seen == [(b"old", b"new")]
    assert path.read_bytes() == b"new"
