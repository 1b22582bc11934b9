"""Messages and files damaged at random."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch


def flipped(message: bytes, generator: np.random.Generator, most: int = 4) -> bytes:
    """With one to `most` bits turned over."""
    damaged = bytearray(message)
    for bit in generator.choice(8 * len(message), generator.integers(1, most + 1), replace=False):
        damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


# --- files of a run folder, damaged where a reader looks ---

ODD_VALUES: list[Any] = [
    *(None, True, -1, 0, 2**40, 2**63, 10**400, 1e308, float("nan"), float("inf")),
    *("", "x", "1", "\x1b]0;evil\x07", "\ud800", "a" * 5000, "evil:thing"),
    *([], {}, [None], {"": None}, {"0": "x"}, [1] * 50),
]
ODD_KEYS = ["", "x", "-1", "9" * 30, "round", "\ud800"]
ODD_TOML = [
    *("-1", "0", "nan", "9223372036854775807", "1000000000000", "true", "[]", "{}", "1979-05-27"),
    *('""', '"x"', '"evil:thing"', '"a(((b"', '"era(-1)"', '"fedavg"', '"gossip"', '"cuda"'),
    *('"\\u001b]0;evil\\u0007"', '"npz:/dev/zero"', '"npz:/etc/passwd"', '"/dev/zero.safetensors"'),
    *("{mlp = 4}", "{mlp = 1000000000}", "9" * 5000, "[" * 3000, '"' + "(" * 1000 + '"'),
]
ODD_LINES = ["x.y = 1", "a" + ".a" * 20_000 + " = 1", "[sweep]\nseed = [0, 1]", "sweep = 3", "[["]
ODD_BYTES = [
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"null",
    b"\0" * 100,
    b"9" * 5000,
]


def damage_file(file: Path, generator: random.Random) -> None:
    """Change a file as somebody might who knows what is in it, or put something else there."""
    way = generator.random()
    if way < 0.15 or not file.is_file():
        _replace_file(file, generator)
    elif way < 0.35:
        file.write_bytes(_damage_bytes(file.read_bytes(), generator))
    elif file.suffix == ".safetensors":
        _damage_tensors(file, generator)
    elif file.suffix == ".toml":
        _damage_toml(file, generator)
    elif file.suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        place = generator.randrange(len(rows))
        rows[place] = _damage_value(rows[place], generator)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        file.write_text(json.dumps(_damage_value(json.loads(file.read_text()), generator)))


def _replace_file(file: Path, generator: random.Random) -> None:
    file.unlink(missing_ok=True)
    match generator.randrange(6):
        case 0:
            file.mkdir()
        case 1:
            os.mkfifo(file)
        case 2:
            file.symlink_to("nowhere")
        case 3:
            file.symlink_to(file.name)
        case 4:
            file.symlink_to("/dev/zero")
        case _:
            file.touch()
            os.truncate(file, 2**40)  # it takes no room on the disk


def _damage_bytes(content: bytes, generator: random.Random) -> bytes:
    way = generator.random()
    if way < 0.3:
        return content[: generator.randrange(len(content) + 1)]
    if way < 0.6 and content:
        return flipped(content, np.random.default_rng(generator.randrange(2**32)))
    return generator.choice(ODD_BYTES)


def _damage_value(value: Any, generator: random.Random) -> Any:
    path = generator.choice(list(_list_paths(value)))
    new = generator.choice(ODD_VALUES)
    if not path:
        return new
    here = value
    for step in path[:-1]:
        here = here[step]
    way = generator.random()
    if way < 0.7:
        here[path[-1]] = new
    elif way < 0.85 or isinstance(here, list):
        del here[path[-1]]
    else:
        here[generator.choice(ODD_KEYS)] = new
    return value


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _list_paths(child, (*path, key))


def _damage_toml(file: Path, generator: random.Random) -> None:
    lines = file.read_text().splitlines()
    place, way = generator.randrange(len(lines)), generator.random()
    key = lines[place].partition("=")[0].strip("# ")
    if key in ("rounds", "epochs"):  # a long run is no damage
        lines[place] = f"{key} = -1"
    elif "=" in lines[place] and way < 0.8:
        lines[place] = f"{key} = {generator.choice(ODD_TOML)}"
    elif way < 0.9:
        lines.insert(place, generator.choice(ODD_LINES))
    else:
        del lines[place]
    file.write_text("\n".join(lines) + "\n")


def _damage_tensors(file: Path, generator: random.Random) -> None:
    from safetensors.torch import load, save

    content = file.read_bytes()
    tensors, about = load(content), {"round": "1"}
    name = generator.choice(sorted(tensors))
    value = tensors.pop(name)
    match generator.randrange(8):
        case 0:
            pass
        case 1:
            kinds = [torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]
            tensors[name] = value.to(generator.choice([*kinds, torch.complex64]))
        case 2:
            shapes = [torch.zeros(0), torch.zeros(()), torch.full((3,), 2**40), value[None]]
            tensors[name] = generator.choice([*shapes, value.flatten(), torch.tensor(-91)]).clone()
        case 3:
            tensors[name] = torch.full_like(value, generator.choice([0, 1, 100]))
        case 4:
            odd = [float("nan"), float("inf"), -5.0, 1e38] if value.is_floating_point() else [0, 1]
            tensors[name] = torch.full_like(value, generator.choice(odd))
        case 5:
            path = json.loads(name)
            path[generator.randrange(len(path))] = generator.choice(
                ["x", "", "-1", "99", None, [], {}, "tensor", "array", "7" * 5000]
            )
            tensors[json.dumps(path)] = value
        case 6:
            tensors[name] = value
            more = ["x", "[]", "null", '["array"]', json.dumps(["tensor", *"a" * 3000])]
            tensors[generator.choice([*more, json.dumps([*json.loads(name), "x"])])] = value.clone()
        case _:
            tensors[name] = value
            about = generator.choice([{}, {"round": "x"}, {"round": "-1"}, {"round": "9" * 5000}])
    file.write_bytes(save({key: each.contiguous() for key, each in tensors.items()}, about))
