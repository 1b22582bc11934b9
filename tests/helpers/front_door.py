"""nginx, the front door: where it is, and what needs it."""

import os
import shutil

import pytest

PATH = f"{os.environ['PATH']}:/usr/sbin"  # Debian puts it where users do not look
needs_nginx = pytest.mark.skipif(
    shutil.which("nginx", path=PATH) is None,
    reason="nginx is not installed; apt-get install nginx-light",
)
