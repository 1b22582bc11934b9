"""Starts that a federation makes are kept in a folder of the test's own."""

import pytest


@pytest.fixture(autouse=True)
def _keep_starts_aside(own_data_folder):
    pass
