"""Starts that a federation makes are kept in a folder of the test's own, and the server's secret is
that of a simulation, so that runs can be compared bit for bit."""

import pytest

from fedsift.algorithms.audits import derive_secret
from fedsift.flower import server


@pytest.fixture(autouse=True)
def _keep_starts_aside(own_data_folder):
    pass


@pytest.fixture(autouse=True)
def _know_the_secret(monkeypatch):
    monkeypatch.setattr(server, "draw_secret", lambda run: derive_secret(run.federation.seed))
