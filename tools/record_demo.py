"""Record a command as a moving picture: `fedsift demo` in a terminal, told in ten seconds.

python tools/record_demo.py docs/demo.svg [--seconds 10] [--columns 100] [COMMAND ...]

The command runs once in a terminal of its own. What it shows is drawn as an SVG that any browser
plays. Time is squeezed evenly, and the last screen stays for a while. The caption says how long the
command took. Where motion is not wanted, the last screen stands still.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

REST = 3.0  # seconds that the last screen stays, of all
FRAMES = 5  # in a second
ROW, LETTER = 19, 8.05  # pixels
COLOURS = {"32": "#7ee0a0", "36": "#7cd5f1", "237": "#4b5563", "197": "#f28cb1", "70": "#7ee0a0"}
SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")
CUT = re.compile(r"\x1b(\[[?\d;]*)?$")

Cell = tuple[str, str]  # a letter and how it looks: "", "bold" or a colour
Line = tuple[Cell, ...]


@dataclass
class Screen:
    """What a terminal shows after what was written to it: as much of one as the demo needs."""

    columns: int
    lines: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    look: str = ""
    rest: str = ""  # the beginning of an order whose end has not come yet

    def write(self, text: str) -> None:
        whole = self.rest + text
        text = CUT.sub("", whole)
        self.rest = whole[len(text) :]
        for found in SEQUENCE.finditer(text):
            if found[2]:
                self._obey(found[1], found[2])
            elif found[0] == "\r":
                self.column = 0
            elif found[0] == "\n":
                self._go_down()
            else:
                for letter in found[0]:
                    self._put(letter)

    def _obey(self, given: str, order: str) -> None:
        if order == "A":
            self.row = max(0, self.row - int(given or 1))
        elif order == "K":
            self.lines[self.row] = []
        elif order == "m":
            parts = given.split(";")
            known = [COLOURS[part] for part in parts if part in COLOURS]
            self.look = known[-1] if known else "bold" if "1" in parts else ""

    def _go_down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])

    def _put(self, letter: str) -> None:
        if self.column == self.columns:
            self._go_down()
            self.column = 0
        line = self.lines[self.row]
        line += [(" ", "")] * (self.column - len(line))
        line[self.column : self.column + 1] = [(letter, self.look)]
        self.column += 1

    def show(self) -> list[Line]:
        return [tuple(line) for line in self.lines]


def record(command: list[str], columns: int) -> list[tuple[float, str]]:
    """What the command writes to a terminal, and after how many seconds."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"}
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    begun, rest = time.monotonic(), b""
    told: list[tuple[float, str]] = []
    while True:
        try:
            rest += os.read(terminal, 1 << 16)
        except OSError:  # the command has ended
            break
        whole = rest.decode("utf-8", "ignore")  # the last letter may be cut
        told.append((time.monotonic() - begun, whole))
        rest = rest[len(whole.encode()) :]
    if code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        sys.exit(f"{' '.join(command)} ended with {code}")
    return told


def choose_frames(
    told: list[tuple[float, str]], columns: int, seconds: float
) -> list[tuple[float, list[Line]]]:
    """Screens with the second at which each is shown, the first at 0."""
    screen = Screen(columns)
    pace = (seconds - REST) / max(told[-1][0], 1e-9)
    frames: list[tuple[float, list[Line]]] = [(0.0, [()])]
    for at, text in told:
        screen.write(text)
        when = round(int(at * pace * FRAMES) / FRAMES, 3)
        if frames[-1][0] == when:
            frames[-1] = (when, screen.show())
        else:
            frames.append((when, screen.show()))
    return frames


def find_spans(
    frames: list[tuple[float, list[Line]]], seconds: float
) -> list[tuple[int, Line, float, float]]:
    """Every text of every row, with the seconds from and until which it is there."""
    spans: list[tuple[int, Line, float, float]] = []
    for row in range(max(len(lines) for _, lines in frames)):
        now: Line = ()
        since = 0.0
        for at, lines in [*frames, (seconds, [])]:
            line = lines[row] if row < len(lines) else ()
            if line != now or at == seconds:
                if any(letter != " " for letter, _ in now):
                    spans.append((row, now, since, at))
                now, since = line, at
    return spans


def draw(frames: list[tuple[float, list[Line]]], columns: int, seconds: float, about: str) -> str:
    spans = find_spans(frames, seconds)
    rows = max(row for row, *_ in spans) + 1
    width, height = round(columns * LETTER + 32), rows * ROW + 78
    style: list[str] = []
    texts: list[str] = []
    known: dict[tuple[float, float], str] = {}
    for row, line, since, until in spans:
        whole = since == 0 and until == seconds
        name = known.setdefault((since, until), f"t{len(known)}")
        classes = "" if whole else f' class="{name}{" end" if until == seconds else ""}"'
        texts.append(f'<text x="16" y="{row * ROW + 58}"{classes}>{draw_line(line)}</text>')
    for (since, until), name in known.items():
        from_, to = (f"{100 * at / seconds:.2f}%" for at in (since, until))
        last = "" if until == seconds else f" {to} {{ visibility: hidden }}"
        style.append(f"@keyframes {name} {{ 0% {{ visibility: hidden }}")
        style.append(f" {from_} {{ visibility: visible }}{last} }}")
        style.append(f" .{name} {{ animation: {name} {seconds:g}s step-end infinite }}\n")
    still = "text[class] { animation: none; visibility: hidden } .end { visibility: visible }"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img">\n<title>{escape(about)}</title>\n<style>\n'
        "text { font: 13.4px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono',"
        " monospace; fill: #e5e9f0; white-space: pre } .bold { font-weight: 700 }\n"
        f"{''.join(style)}@media (prefers-reduced-motion: reduce) {{ {still} }}\n</style>\n"
        f'<rect width="{width}" height="{height}" rx="10" fill="#161b22"/>\n'
        f'<text x="16" y="26" style="fill: #a7b2be">{escape(about)}</text>\n'
        + "\n".join(texts)
        + "\n</svg>\n"
    )


def draw_line(line: Line) -> str:
    """Its letters, those of one look together; their places do not hang on the font."""
    parts, start = [], 0
    for place in range(1, len(line) + 1):
        if place < len(line) and line[place][1] == line[start][1]:
            continue
        text = "".join(letter for letter, _ in line[start:place])
        if text.strip():
            look = line[start][1]
            how = ' class="bold"' if look == "bold" else f' fill="{look}"' if look else ""
            how = how.replace("fill=", "style=").replace('="#', '="fill: #')
            parts.append(
                f'<tspan x="{16 + start * LETTER:.1f}" textLength="{len(text) * LETTER:.1f}"'
                f"{how}>{escape(text)}</tspan>"
            )
        start = place
    return "".join(parts)


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__)
    about.add_argument("picture", type=Path)
    about.add_argument("--seconds", type=float, default=10.0)
    about.add_argument("--columns", type=int, default=100)
    about.add_argument("command", nargs="*", default=["fedsift", "demo"])
    how = about.parse_args()
    told = record(how.command, how.columns)
    took = f"$ {' '.join(how.command)}    ({told[-1][0]:.0f} seconds, shown in {how.seconds:g})"
    frames = choose_frames(told, how.columns, how.seconds)
    how.picture.write_text(draw(frames, how.columns, how.seconds, took))
    print(f"wrote {how.picture}: {len(frames)} frames, {how.picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
