"""What the user types to run zerokit, for the commands that are shown to be run next."""

from __future__ import annotations

import os
import re

_PLAIN = re.compile(r"[\w./~-]{1,120}")


def program() -> str:
    """``zerokit``, or what ZEROKIT_COMMAND says it is called: ``./launch.sh`` where that was typed."""
    command = os.environ.get("ZEROKIT_COMMAND", "")
    return command if _PLAIN.fullmatch(command) else "zerokit"
