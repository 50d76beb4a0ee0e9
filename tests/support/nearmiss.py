"""Names that are nearly those of a catalogue, and an independent reading of what a name says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random


def changed(random: Random, names: Sequence[str]) -> str:
    """A name with one to three changes, or another name's half behind it."""
    text = random.choice(names)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(text) + 1)
        match random.randrange(8):
            case 0:
                text = text[:at] + random.choice("abmxi0123456789-._ +é/") + text[at:]
            case 1:
                text = text[:at] + text[at + 1 :]
            case 2:
                text = text[:at] + random.choice("abmxsi0123456789") + text[at + 1 :]
            case 3:
                pieces = re.split(r"[-_ ]", text)
                del pieces[random.randrange(len(pieces))]
                text = "-".join(pieces)
            case 4:
                pieces = re.split(r"[-_ ]", text)
                random.shuffle(pieces)
                text = "-".join(pieces)
            case 5:
                text = random.choice((str.upper, str.lower, str.title))(text)
            case 6:
                text = text.replace("-", random.choice("_ .") + "")
            case 7:
                other = random.choice(names)
                text += random.choice(
                    ("-mini", "-Instruct", "-chat-hf", "-v2", "x", "-" + other[len(other) // 2 :])
                )
        text = text or "-"
    return text


def parts(text: str) -> tuple[str, ...]:
    """Runs of letters, numbers, and every other character that is no separator."""
    return tuple(re.findall(r"[a-z]+|\d+(?:\.\d+)*|[^a-z\d\s_.,()-]", text.lower().strip().rstrip("/")))
