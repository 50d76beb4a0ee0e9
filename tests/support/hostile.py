"""Strings that break what is written without care: shells, argparse, YAML, pdsh, logs, terminals."""

from __future__ import annotations

import random

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
