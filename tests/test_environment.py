"""What a run says it was made with."""

import os
import subprocess

from fedsift import environment


def test_the_commit_is_known_in_a_checkout_and_whether_it_was_changed(tmp_path, monkeypatch):
    found = environment.commit_of.__wrapped__
    monkeypatch.delenv("FEDSIFT_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    assert found(tmp_path) is None

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        asked = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()

    code = tmp_path / "src" / "fedsift" / "environment.py"
    code.parent.mkdir(parents=True)
    code.write_text("1")
    (tmp_path / "other.py").write_text("1")
    git("init")
    git("add", "other.py")
    git("commit", "-m", "a project that has fedsift lying in it")
    assert found(tmp_path) is None
    git("add", ".")
    git("commit", "-m", "now it is fedsift's")
    git("tag", "-a", "v1", "-m", "tags are not asked for")
    commit = found(tmp_path)
    assert commit and len(commit) >= 7 and git("rev-parse", "HEAD").startswith(commit)
    code.write_text("2")
    assert found(tmp_path) == f"{commit}-dirty"
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a hook of another repository
    assert found(tmp_path) == f"{commit}-dirty"
    monkeypatch.setenv("FEDSIFT_COMMIT", "abc1234")
    assert found(tmp_path) == "abc1234"
