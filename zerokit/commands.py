"""Commands of zerokit: what the user types next, built in one place and quoted as a shell reads it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

DEFAULT_FOLDER = "zerokit-plan"
"""Where a plan's files go, and where a launch looks for them, if nobody names another folder."""


def option_words(options: Mapping[str, object]) -> list[str]:
    """Options by name, with dashes or underscores, as words; what is None or False is not given.

    >>> option_words({"seq_len": 4096, "all-gpus": True, "lora_targets": ["q_proj", "v_proj"], "zero": None})
    ['--seq-len', '4096', '--all-gpus', '--lora-targets', 'q_proj,v_proj']
    """
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
    return words


def command_text(
    name: str, *words: str, options: Mapping[str, object] | None = None, script: Sequence[str] = ()
) -> str:
    """``zerokit NAME WORDS OPTIONS -- SCRIPT``; ``script``: its words and arguments, which stand behind a
    double dash."""
    behind = ("--", *script) if script else ()
    return shlex.join(["zerokit", name, *words, *option_words(options or {}), *behind])
