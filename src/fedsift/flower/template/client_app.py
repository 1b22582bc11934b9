"""What a SuperNode runs."""

import task

from fedsift.flower import client_app

app = client_app(task)
