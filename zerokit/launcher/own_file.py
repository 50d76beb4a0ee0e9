"""A DeepSpeed file of the user's own, checked before any rank starts as ``zerokit check`` does."""

from __future__ import annotations

from pathlib import Path

from zerokit.errors import InputError
from zerokit.linter.finding import Finding
from zerokit.linter.suppress import settings_beside
from zerokit.planner.checking import CheckSettings, check, for_versions

_IGNORED = frozenset({"unknown-key", "misplaced-key"})
"""Errors of ``check`` after which a run goes on: nobody reads the key."""
_READERS = {"raw", "trainer", "accelerate"}


def check_own_file(path: str, *, style: str, ranks: int, accept_mismatch: bool) -> tuple[str, ...]:
    """Lint the file for who reads it, and for so many ranks.

    Args:
        style: how the script takes its configuration; one that takes none reads no file.
        accept_mismatch: warn of errors instead of stopping.

    Returns:
        One warning for each finding that is none of ``check``'s notes.

    Raises:
        InputError: the run would fail on the file; the message names each such line, and its fix.
    """
    if style not in _READERS:
        return ()
    project = settings_beside(Path.cwd())
    settings = CheckSettings(kind="deepspeed", reader=style, world_size=ranks, ignore=project.ignore)
    with for_versions(None, None):
        findings = check([path], {}, settings).findings
    fatal = [found for found in findings if found.severity == "error" and found.rule not in _IGNORED]
    if fatal and not accept_mismatch:
        count = "an error" if len(fatal) == 1 else f"{len(fatal)} errors"
        raise InputError(
            f"⟨deepspeed⟩ {path}: the run would fail on {count}:\n  "
            + "\n  ".join(_text(found) for found in fatal)
            + f"\n`zerokit check {path}` shows more; ⟨accept_mismatch⟩ starts the run all the same"
        )
    return tuple(f"warning: {_text(found)}" for found in findings if found.severity != "note")


def _text(found: Finding) -> str:
    """The finding in one line."""
    location = f"{found.path}:{found.location.line}:{found.location.column}"
    fix = f"; fix: {found.fix}" if found.fix else ""
    return f"{location}: {found.message}{fix} [{found.rule}]"
