"""Each test of the program starts in an empty folder of its own."""

import pytest


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
