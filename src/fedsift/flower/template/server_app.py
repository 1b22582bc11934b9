"""What the SuperLink runs."""

import task

from fedsift.flower import server_app

app = server_app(task)
