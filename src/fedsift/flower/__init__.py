"""The same turns on a real Flower federation: `server_app(task)` and `client_app(task)` make the
two apps of a project.

`task` is the project's own module: CLASSES and three functions (experiment, node) -> data,
`public`, `test` and `private`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsift.types import UserError

try:
    import flwr  # noqa: F401
except ImportError:
    raise UserError(
        "Flower is not installed here; install it with: pip install 'fedsift[flower]'"
    ) from None

if TYPE_CHECKING:
    from fedsift.flower.client import client_app
    from fedsift.flower.server import server_app

__all__ = ["client_app", "server_app"]


def __getattr__(name: str) -> object:
    """Each app loads only its own side."""
    if name == "client_app":
        from fedsift.flower.client import client_app

        return client_app
    if name == "server_app":
        from fedsift.flower.server import server_app

        return server_app
    raise AttributeError(f"module 'fedsift.flower' has no attribute {name!r}")
