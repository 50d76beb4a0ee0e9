"""What an answer shows to be run next."""

from __future__ import annotations

import re
import shlex


def following(text: str, title: str = "Next") -> list[list[str]]:
    """The words of each command below a title; one in several lines is one."""
    _, _, below = text.partition(f"\n{title}\n")
    lines = re.sub(r" \\\n +", " ", below).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("  zerokit ")]
