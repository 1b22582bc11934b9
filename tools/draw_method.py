"""Draw the pictures of docs/pictures.md and docs/sift.md: rounds, samplers, where bytes go.

    python tools/draw_method.py [FOLDER]      # default: docs

Rounds are diagrams. The others are of real messages: one client of the digits is trained, and
its soft labels are sampled and encoded. Colours are those of Okabe and Ito, which colour-blind
readers can tell apart. Every picture has a light ground, so it can be read on dark pages too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt

import fedsift
from fedsift.codecs.wire import HEADER_BYTES
from fedsift.types import Array, Draws, Link

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#B8C0C8"
INK, PAPER = "#1b2733", "#ffffff"
BUDGET = 60
STEPS = [  # who, title, text
    ("server", "1. Send the model", "to a cohort: 8 of 20 clients"),
    ("client", "2. Train", "on its private samples"),
    ("client", "3. Predict", "a soft label for every public sample"),
    ("client", "4. Choose: the sampler", "60 of 500 samples"),
    ("client", "5. Pack: the codec", "soft labels into bytes"),
    ("server", "6. Join: the aggregator", "a mean per public sample"),
    ("server", "7. Distil", "train the model on these means"),
]
SIFT = [  # up to the upload, and from there on
    ("client", "1. Receive", "the server's model"),
    ("client", "2. Replay", "public samples, labelled by it"),
    ("client", "3. Train with a prior", "softmax(z + b), b = log class shares"),
    ("client", "4. Pick", "the surest samples of its own classes"),
    ("client", "5. Encode", "as many labels as fit the bytes"),
    ("server", "6. Remember", "recent uploads; old ones count less"),
    ("server", "7. Join and sharpen", "mean by votes, then ERA(0.1)"),
    ("server", "8. Distil", "mixup 0.2, on the public samples"),
    ("server", "9. Average over time", "keep half of the old weights (EMA)"),
]
STYLE = {"client": ("#eaf3fb", "#3f7cac"), "server": ("#fdf3e6", "#b87a24")}


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0] if arguments else "docs")
    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fedsift", "font.size": 10}
    (folder / "round.svg").write_text(draw_round())
    (folder / "sift.svg").write_text(draw_sift())
    scene = train_client()
    save(draw_samplers(*scene), folder / "sampler.svg")
    save(draw_bytes(scene[0]), folder / "bytes.svg")


def save(figure: Any, file: Path) -> None:
    figure.savefig(file, facecolor=PAPER, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    print(f"wrote {file}")


# A round


def open_diagram(title: str, steps: list[tuple[str, str, str]], height: int) -> str:
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" role="img"
 aria-labelledby="title desc" font-size="14" fill="{INK}"
 font-family="Helvetica, Arial, sans-serif">
<title id="title">{title}</title>
<desc id="desc">{"; ".join(f"{who}: {title} {text}" for who, title, text in steps)}.</desc>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="12" markerHeight="12"
 markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L10 5 L0 10 z"
 fill="{INK}"/></marker></defs>
<rect x="1" y="1" width="758" height="{height - 2}" rx="12" fill="{PAPER}" stroke="#9aa8b5"/>
"""


def draw_round() -> str:
    boxes = [draw_box(n, *step) for n, step in enumerate(STEPS)]
    opening = open_diagram("One round of federated distillation", STEPS, 560)
    return f"""{opening}{draw_column(20, "server", "Server", "has the model, no data")}
{draw_column(420, "client", "Each client", "has private samples")}
{"".join(boxes)}
{draw_arrow("M326 91 H434", "weights", 380, 80, BLUE)}
{draw_arrow("M434 403 H326", "2.5 kB", 380, 392, ORANGE)}
<text x="380" y="538" text-anchor="middle" font-weight="bold" fill="{GREEN}"
>Both sides have the same 500 public samples, without labels</text>
</svg>
"""


def draw_sift() -> str:
    """Down the clients, and up again at the server."""
    down = [step for step in SIFT if step[0] == "client"]
    up = [step for step in SIFT if step[0] == "server"]
    boxes = [write_box(36, 64 + 76 * n, *step) for n, step in enumerate(down)]
    boxes += [write_box(436, 368 - 101 * n, *step) for n, step in enumerate(up)]
    arrows = [f"M180 {120 + 76 * n} V{138 + 76 * n}" for n in range(len(down) - 1)]
    arrows += [f"M580 {366 - 101 * n} V{325 - 101 * n}" for n in range(len(up) - 1)]
    lines = "".join(f'<path d="{a}" stroke="{INK}" marker-end="url(#head)"/>\n' for a in arrows)
    return f"""{open_diagram("One round of sift in its labels mode", SIFT, 470)}\
{draw_column(20, "client", "Client", "8 of 20 in a round", 438)}
{draw_column(420, "server", "Server", "one student per model", 438)}
{"".join(boxes)}{lines}
{draw_arrow("M434 91 H326", "weights", 380, 80, BLUE)}
{draw_arrow("M326 395 H434", "labels", 380, 384, ORANGE)}
</svg>
"""


def draw_column(x: int, who: str, title: str, text: str, height: int = 494) -> str:
    fill, line = STYLE[who]
    return (
        f'<rect x="{x}" y="16" width="320" height="{height}" rx="10" fill="{fill}"'
        f' stroke="{line}"/>'
        f'<text x="{x + 16}" y="44" font-size="17" font-weight="bold">{title}</text>'
        f'<text x="{x + 304}" y="44" text-anchor="end" fill="#4a5b6c">{text}</text>\n'
    )


def draw_box(number: int, who: str, title: str, text: str) -> str:
    rows = {0: 64, 1: 64, 2: 165, 3: 266, 4: 376, 5: 376, 6: 448}
    x, y = (36 if who == "server" else 436), rows[number]
    below = rows.get(number + 1, 0)
    down = below > y + 60 and number not in (0, 4)
    arrow = f"M{x + 144} {y + 56} V{below - 2}" if down else ""
    return write_box(x, y, who, title, text) + (
        f'<path d="{arrow}" stroke="{INK}" marker-end="url(#head)"/>\n' if arrow else ""
    )


def write_box(x: int, y: int, who: str, title: str, text: str) -> str:
    line = STYLE[who][1]
    return (
        f'<rect x="{x}" y="{y}" width="288" height="54" rx="7" fill="{PAPER}" stroke="{line}"/>'
        f'<text x="{x + 14}" y="{y + 23}" font-weight="bold">{title}</text>'
        f'<text x="{x + 14}" y="{y + 43}" fill="#33475b">{text}</text>\n'
    )


def draw_arrow(path: str, text: str, x: int, y: int, colour: str) -> str:
    where = f'x="{x}" y="{y}" text-anchor="middle" font-weight="bold"'
    return (
        f'<path d="{path}" stroke="{colour}" stroke-width="3" marker-end="url(#head)"/>'
        f'<text {where} fill="{colour}">{text}</text>'
    )


# One client of the digits


def train_client() -> tuple[Array, Array, Array]:
    """Its soft labels on the public set, the true classes of that, and its own label counts."""
    data = fedsift.load_dataset("digits")
    task = fedsift.split(data, private=800, public=500, seed=0, normalise="standard")
    clients = fedsift.make_clients(task.private, 20, fedsift.Dirichlet(0.1), "cnn", seed=0)
    client = max(clients, key=lambda one: float(fedsift.entropy(one.label_counts / 40)))
    engine, _ = fedsift.choose_engine("sequential")
    first = fedsift.initial_state(client.model, 0)
    fit = fedsift.Fit(client.model, first, client.data, fedsift.Recipe(), (0, "draw", client.id))
    weights = engine.run([fit])[0]
    logits = engine.run([fedsift.Predict(client.model, weights, task.public)])[0]
    assert task.public_labels is not None
    return fedsift.softmax(np.asarray(logits), 1.0), task.public_labels, client.label_counts


def choose(name: str, probs: Array, counts: Array) -> Array:
    sampler: Any = fedsift.SAMPLERS[name]
    pick: Callable[..., Array] = sampler() if isinstance(sampler, type) else sampler
    draws = Draws(np.random.default_rng(1), np.random.default_rng(2))
    return np.sort(pick(probs, counts, BUDGET, draws))


def draw_samplers(probs: Array, truth: Array, counts: Array) -> Any:
    """Every public sample by its class and by how sure the client is; the chosen ones in colour."""
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.6), sharey=True, layout="constrained")
    unsure, said = fedsift.entropy(probs), probs.argmax(1)
    height = truth + np.random.default_rng(0).uniform(-0.32, 0.32, len(truth))
    for panel, name in zip(panels, ("none", "mixed", "own-classes"), strict=True):
        chosen = choose(name, probs, counts)
        right = chosen[said[chosen] == truth[chosen]]
        wrong = chosen[said[chosen] != truth[chosen]]
        rest = np.setdiff1d(np.arange(len(truth)), chosen)
        panel.scatter(unsure[rest], height[rest], s=6, color=GREY, label="not sent")
        panel.scatter(unsure[right], height[right], s=18, color=BLUE, label="sent, right")
        panel.scatter(
            unsure[wrong], height[wrong], s=22, color=ORANGE, marker="x", label="sent, wrong"
        )
        panel.set_title(f"{name}: {len(right)} of {len(chosen)} right")
    panels[1].set_xlabel("entropy of the soft label: sure to the left")
    owned = [f"{digit} ({n})" if n else str(digit) for digit, n in enumerate(counts)]
    panels[0].set_yticks(range(10), owned)
    panels[0].set_ylabel("true class (own samples)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


# Where bytes go


def draw_bytes(probs: Array) -> Any:
    """The parts of an upload, by codec."""
    figure, panel = plt.subplots(figsize=(9, 3), layout="constrained")
    names = ["float32", "float16", "quantized(4)", "quantized(2)", "hard"]
    sizes = np.array([measure(name, probs) for name in names])
    left = np.zeros(len(names))
    for part, colour, size in zip(
        ("header and counts", "which samples", "soft labels"),
        (GREEN, ORANGE, BLUE),
        sizes.T,
        strict=True,
    ):
        panel.barh(names, size, left=left, color=colour, label=part)
        left += size
    for row, parts in enumerate(sizes):
        text = " + ".join(str(part) for part in parts)
        panel.text(parts.sum() + 20, row, f"{parts.sum():,} bytes = {text}", va="center")
    panel.invert_yaxis()
    panel.set_xlim(0, 3200)
    panel.set_xlabel("bytes of one upload: 60 of 500 samples, 10 classes")
    panel.legend(frameon=False, loc="lower right")
    panel.spines[["top", "right"]].set_visible(False)
    return figure


def measure(name: str, probs: Array) -> tuple[int, int, int]:
    """Bytes of header and counts, of the indexes, and of the values."""
    from fedsift import registry

    codec = registry.build(fedsift.CODECS, "codec", name)
    index = choose("low-entropy", probs, np.ones(10, int))
    labels = fedsift.SoftLabels(index, probs[index])
    message = len(codec.encode(labels, Link(0, len(probs), probs.shape[1])))
    values = len(codec.values.pack(labels.probs, None))
    fixed = HEADER_BYTES + 1 + 4 + 4  # where indexes come from, how many rows, length of the set
    return fixed, message - fixed - values, values


if __name__ == "__main__":
    main(sys.argv[1:])
