"""The words in a script's arguments that ``zerokit tune`` fills in from each plan."""

from __future__ import annotations

import re
from collections.abc import Sequence

from zerokit.errors import InputError
from zerokit.suggest import much_alike

PLACEHOLDERS = ("{micro_batch}", "{gradient_accumulation}", "{checkpointing}")
_BRACES = re.compile(r"\{[\w-]+\}")
_SCRIPTS_OWN = frozenset({"{checkpoint}", "{checkpoints}"})
"""Braces that are like a placeholder, but more likely stand in a path."""


def refuse_misspelt(arguments: Sequence[str]) -> None:
    """Stop at braces that hold a name like a placeholder's; others are the script's own.

    Raises:
        InputError: names them, and the placeholder that was probably meant.
    """
    for braces in (found for word in arguments for found in _BRACES.findall(word)):
        name = braces.lower().replace("-", "_")
        meant = [] if braces in PLACEHOLDERS or name in _SCRIPTS_OWN else much_alike(name, PLACEHOLDERS)
        if meant:
            raise InputError(f"{braces} in the script's arguments is not filled in; did you mean {meant[0]}?")
