"""Imports go one way, only the command line prints, and importing fedsift is light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "fedsift"

# From the ground up; a module may import only from lower lines (and from its own package).
LAYERS = [
    {"seeding"},
    {"types"},
    {"checks"},
    {"files", "registry", "memory", "turns", "numerics", "graphs"},
    {"estimators"},
    {
        "samplers",
        "aggregators",
        "codecs",
        "models",
        "training",
        "data",
        "ledger",
        "evaluation",
        "losses",
        "overrides",
        "suspects",
    },
    {"pretexts", "attacks"},
    {"algorithms", "engines", "starts"},
    {"federation"},
    {"baselines", "config", "checkpoints", "environment", "privacy"},
    {"runs"},
    {"sweeps", "bench", "tracking"},
    {"growth"},
    {"report", "flower"},
    {"reproduction"},
    {"papers"},
    {"cli"},
    {"__main__"},
]
HEIGHT = {module: height for height, modules in enumerate(LAYERS) for module in modules}


def modules() -> dict[str, Path]:
    """Every source file under the name of its top-level module."""
    return {
        str(path.relative_to(SOURCE)): path
        for path in sorted(SOURCE.rglob("*.py"))
        if path.parent != SOURCE.parent
    }


def top(file: str) -> str:
    return Path(file).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The fedsift modules a file imports, inside functions too, by top-level name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fedsift":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsift."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("fedsift.")
            }
    return found - {"__version__"}


def test_every_module_has_its_place():
    assert {top(file) for file in modules()} == set(HEIGHT) | {"__init__"}


@pytest.mark.parametrize("file", [file for file in modules() if file != "__init__.py"])
def test_imports_go_downward_only(file):
    above = {
        other
        for other in imported(modules()[file])
        if other != top(file) and HEIGHT[other] >= HEIGHT[top(file)]
    }
    assert not above, f"{file} imports {above}, which stand beside or above it"


def test_a_forbidden_import_would_be_seen(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "def f():\n    from fedsift.engines import choose_engine\n    import fedsift.codecs.wire\n"
    )
    assert imported(bad) == {"engines", "codecs"}


def test_the_generic_reproduction_knows_no_paper():
    from fedsift.papers import PAPERS

    sources = [path.read_text() for file, path in modules().items() if top(file) == "reproduction"]
    assert len(sources) > 4
    for paper in PAPERS.values():
        curves = [curve for setting in paper.settings for curve in paper.curves(setting)]
        for word in (paper.name, *paper.main, *paper.settings, *curves):
            assert not [text for text in sources if f'"{word}"' in text], word


def test_only_the_command_line_prints():
    talkers = set()
    for file, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            called = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            )
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if called or any(name.split(".")[0] in {"rich", "typer", "click"} for name in names):
                talkers.add(file)
    assert {top(file) for file in talkers} == {"cli"}


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(m for m in sys.modules if '.' not in m))"
    return set(
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_importing_fedsift_or_its_command_line_loads_nothing_heavy():
    heavy = {"torch", "numpy", "pydantic", "matplotlib", "constriction", "safetensors", "pooch"}
    assert not loaded_after("import fedsift, fedsift.cli") & heavy


def test_the_python_interface_needs_only_torch_and_numpy():
    others = ["pydantic", "matplotlib", "constriction", "safetensors", "pooch", "rich", "typer"]
    blocked = f"for m in {others!r}: sys.modules[m] = None"
    used = """
import fedsift
task = fedsift.split(fedsift.load_dataset("digits"), private=40, public=20, test=50)
clients = fedsift.make_clients(task.private, 4, model="mlp")
quick = fedsift.Recipe(epochs=1)
fd = fedsift.fd(5, download="soft-labels", local=quick, distill=quick)
assert [r.round for r in fedsift.federate(fd, clients, task, rounds=2, cohort=2)] == [0, 1]
"""
    assert "torch" in loaded_after(blocked + used)


IMPORTS_EVERYTHING = """
import os, random, warnings
import numpy, torch
import flwr, matplotlib.pyplot, pooch, pydantic, typer  # what these change is their own affair

def state():
    return {
        "threads": torch.get_num_threads(), "interop threads": torch.get_num_interop_threads(),
        "dtype": torch.get_default_dtype(), "gradients": torch.is_grad_enabled(),
        "torch's randomness": torch.get_rng_state().tolist(),
        "tf32": torch.backends.cudnn.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "numpy's randomness": repr(numpy.random.get_state()), "numpy's errors": numpy.geterr(),
        "randomness": random.getstate(), "warnings": repr(warnings.filters),
        "environment": dict(os.environ),
    }

switched = []
torch._C._functorch._set_vmap_fallback_warning_enabled = switched.append  # it cannot be asked
torch.set_num_threads = switched.append
before = state()
for name in MODULES:
    __import__(name)
after = state()
changed = [key for key in before if before[key] != after[key]] + switched
if changed:
    sys.exit(f"changed: {changed}")
"""


def test_importing_any_module_changes_no_global_state():
    """But for modules that need what is not installed here: Triton, and a user's project."""
    files = [Path(file) for file in modules() if "template" not in file and "cuda" not in file]
    names = [".".join(("fedsift", *file.with_suffix("").parts)) for file in files]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    assert len(names) > 70 and "fedsift.engines.stacked.program" in names
    loaded_after(f"MODULES = {sorted(names)!r}\n{IMPORTS_EVERYTHING}")


def test_every_exported_name_is_there():
    import fedsift

    names = dir(fedsift)
    assert {"__version__", "fas", "runs", "UserError"} <= set(names)
    assert all(getattr(fedsift, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no attribute 'fass'"):
        getattr(fedsift, "fass")  # noqa: B009


# --- the tests themselves ---


def all_imports(path: Path) -> set[str]:
    """Every name a file imports, written out: `from a import b` is a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_no_test_imports_a_test():
    guilty = {
        str(path.relative_to(TESTS)): names
        for path in TESTS.rglob("*.py")
        if (names := {n for n in all_imports(path) if ".test_" in n or n.startswith("test_")})
    }
    assert not guilty


def test_the_tests_mirror_the_package():
    """But for shared helpers, and the tests of the tools beside the package."""
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    strangers = {folder for folder in folders if not (SOURCE / folder).is_dir()}
    assert strangers <= {Path("tools")}
    assert not list((TESTS / "helpers").rglob("test_*.py"))


def test_every_module_is_imported_by_a_quick_test():
    """Or by a module of its package that such a test imports. The program itself,
    `python -m fedsift`, is started by tests and imported by none.
    """
    names = {
        ".".join(("fedsift", *Path(file).with_suffix("").parts)).removesuffix(".__init__"): path
        for file, path in modules().items()
        if "template" not in file
    }
    quick = [
        path
        for path in TESTS.rglob("*.py")
        if not re.search(r"^pytestmark = pytest\.mark\.(gpu|flower|slow)", path.read_text(), re.M)
    ]
    reached = {name for path in quick for name in all_imports(path) if name in names}
    waiting = list(reached)
    while waiting:
        name = waiting.pop()
        package = name.split(".")[1:2]
        for other in all_imports(names[name]) & names.keys() - reached:
            if other.split(".")[1:2] == package:
                reached.add(other)
                waiting.append(other)
    assert names.keys() - reached == {"fedsift.__main__"}
