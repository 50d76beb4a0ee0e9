"""Strings that break what is written without care: shells, argparse, YAML, pdsh, logs, terminals."""

from __future__ import annotations

import copy
import os
import random
from typing import Any

MARKER = "zerokit-was-here"

_BASE = (
    "$(touch {m})", "`touch {m}`", '"$(touch {m})"', "'$(touch {m})'", "x;touch${{IFS}}{m}",
    "a;touch {m};", "a|touch {m}", "a&touch {m}&", "a&&touch {m}", "a||touch {m}", ">{m}", "a>{m}",
    "<(touch {m})", "a\ntouch {m}\n", "\ntouch {m}", 'a";touch {m};"', "a';touch {m};'",
    "\\`touch {m}\\`", "\\$(touch {m})", "$((1+1))", "${{HOME}}", "$HOME", "~", "~root", "%n", "%h",
    "%u", "%%", "%n$(touch {m})", "*", "?", "[a-z]*", "{{a,b}}", "!!", "!$", "#", "a #b", "it's",
    'say "yes"', "a\\", "\\", "\\\\", "\\n", "'", '"', "`", "$", "a<b", "a>b", "(", ")", "a b", " ", "",
    "  two", "end ", "\t", "a\tb", "\r", "a\r\nb", "\x01", "\x1b[2J", "\x7f", "\x85", "\u2028", "\ufeff",
    "\ufffe", "\U0001f600", "\xe4", "\u65e5\u672c", "\udcff", "\udc80abc", "-", "--", "-m", "-c", "--n",
    "--no", "--m", "--num", "--module", "--local_rank=7", "--master_port=1", "--help", "-h",
    "--packed=abc", "--run-dir=x", "-x=1", "=", "a=b", "=a", "null", "true", "1e5", "- a", "a: b", "&a",
    "*a", "|", ">-", "{{}}", "[]", "@a", "%YAML", "---", "...", "{{{{ 7*7 }}}}", "{{% raw %}}",
    "<script>", "&amp;", "]]>", "x" * 3000,
)  # fmt: skip


def strings(count: int, seed: int = 23) -> list[str]:
    """``count`` different ones: those above, and such as are made of their pieces."""
    draw = random.Random(seed)
    found = list(dict.fromkeys(text.format(m=MARKER) for text in _BASE))
    while len(found) < count:
        text = "".join(draw.choice(found[: len(_BASE)])[:40] for _ in range(draw.randint(2, 4)))
        if text not in found:
            found.append(text)
    return found[:count]


_ODD: list[Any] = [
    None, True, False, 0, -1, 3, 0.5, 1e308, float("inf"), float("nan"), 10**18, 10**30, -(10**30), "",
    "auto", "x", "1e5", [], [1], [[]], [{}], {}, {"a": [1]}, {"": None}, "\0", "\x1b[31mx",
    "<script>alert(1)</script>", "x" * 5000, "../../etc/passwd", f"$(touch {MARKER})",
]  # fmt: skip


def odd(value: Any, draw: random.Random) -> Any:
    """Plain data with one to three values replaced, keys renamed or taken out."""
    value = copy.deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        parts = _containers(value)
        if not parts or draw.random() < 0.03:
            return copy.deepcopy(draw.choice(_ODD))
        part = draw.choice(parts)
        key = draw.choice(list(part) if isinstance(part, dict) else range(len(part)))
        if draw.random() < 0.8:
            part[key] = copy.deepcopy(draw.choice(_ODD))
        elif isinstance(part, dict) and draw.random() < 0.5:
            part[f"{key}x"] = part.pop(key)
        else:
            del part[key]
    return value


def _containers(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict | list) and value else []
    return own + [found for entry in inner for found in _containers(entry)]


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The bytes with some changed, taken out or added, or cut off."""
    found = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) + 1)
        what = draw.choice(["change", "remove", "add", "cut"])
        if what == "change":
            found[at : at + 1] = draw.randbytes(1)
        elif what == "remove":
            del found[at : at + draw.randint(1, 40)]
        elif what == "add":
            found[at:at] = draw.randbytes(draw.randint(1, 5))
        elif draw.random() < 0.3:
            del found[at:]
    return bytes(found)


SHOW = "#!/bin/sh\necho $#\n/bin/cat /proc/$$/cmdline /proc/$$/environ\n"
"""A program that prints its arguments and its first environment as the kernel has them: see :func:`shown`."""


def shown(output: bytes) -> tuple[list[str], dict[str, str]]:
    """The arguments and variables that :data:`SHOW` printed."""
    count, _, rest = output.partition(b"\n")
    words = [os.fsdecode(word) for word in rest.split(b"\0")]
    arguments = words[2 : 2 + int(count)]  # after the shell and the program
    pairs = (word.partition("=") for word in words[2 + int(count) :] if word)
    return arguments, {name: value for name, _, value in pairs}
