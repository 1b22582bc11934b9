"""The SpamAssassin mails, as an npm package has them: a JSON file for each mail."""

from __future__ import annotations

import json

import numpy as np

from fedsift.data.formats.folder import Folder
from fedsift.types import Array, UserError

SEPARATOR = "\0"  # between texts
GROUPS = ("easy-ham-1", "easy-ham-2", "hard-ham-1", "spam-1", "spam-2")
NAMES = "[0-9]*.json"
LONGEST = 10_000  # characters of a mail that are kept


def spam_assassin(folder: Folder) -> dict[str, Array]:
    """Subject and body of each mail as UTF-8 bytes, and whether it is spam (1) or not (0)."""
    mails = sorted(_read_mail(folder, name) for name in folder.list(NAMES))
    texts = SEPARATOR.join(text for _, text in mails).encode("utf-8", "replace")
    spam = [group.startswith("spam") for group, _ in mails]
    return {"x": np.frombuffer(texts, np.uint8), "y": np.array(spam, np.uint8)}


def _read_mail(folder: Folder, name: str) -> tuple[str, str]:
    """The group it is in, and its text: headers would give it away."""
    try:
        mail = json.loads(folder.read(name))
        group, whole = str(mail["group"]), str(mail["text"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{name} is no mail") from None
    if group not in GROUPS:
        raise UserError(f"{name} is of an unknown group")
    head, _, body = whole.replace("\r\n", "\n").partition("\n\n")
    lines = (line for line in head.split("\n") if line.lower().startswith("subject:"))
    subject = next(lines, "subject:")[len("subject:") :].strip()
    return group, f"{subject}\n{body}"[:LONGEST].replace(SEPARATOR, " ")
