"""fedsift: federated distillation for PyTorch.

Clients share soft labels on a public set, not their weights.
fedsift decides which samples are worth the bytes.

    import fedsift

    task = fedsift.split(fedsift.load_dataset("digits"), private=800, public=500, seed=0)
    clients = fedsift.make_clients(task.private, 20, fedsift.Dirichlet(0.1), model="cnn", seed=0)
    algorithm = fedsift.fas(budget=60)
    for record in fedsift.federate(algorithm, clients, task, rounds=15, cohort=8, seed=0):
        print(record.round, record.accuracy, record.uplink_bytes)

The public names stand in `__init__.pyi`. Each is imported when it is first used, so that
`import fedsift` and `fedsift --help` are instant.
"""

from functools import cache
from typing import Any

__version__ = "0.2.0"


@cache
def _exports() -> dict[str, tuple[str, str]]:
    """Public name -> (module, name in it), as the stub file says. Read on first use."""
    import ast
    from importlib import resources

    stub = ast.parse(resources.files(__name__).joinpath("__init__.pyi").read_text())
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *_exports()]
    if name not in _exports():
        raise AttributeError(f"module 'fedsift' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _exports()[name]
    if module == __name__:  # a submodule
        return import_module(f"{module}.{attribute}")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(["__version__", *_exports()])
