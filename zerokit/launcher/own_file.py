"""A DeepSpeed file of the user's own, checked before any rank starts as ``zerokit check`` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerokit.errors import InputError
from zerokit.linter.finding import Finding
from zerokit.linter.suppress import settings_beside
from zerokit.planner.checking import CheckSettings, check, for_versions
from zerokit.script.arguments import ScriptOptions

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
    findings = _findings(path, style, ranks)
    fatal = [found for found in findings if found.severity == "error" and found.rule not in _IGNORED]
    if fatal and not accept_mismatch:
        count = "an error" if len(fatal) == 1 else f"{len(fatal)} errors"
        raise InputError(
            f"⟨deepspeed⟩ {path}: the run would fail on {count}:\n  "
            + "\n  ".join(_text(found) for found in fatal)
            + f"\n`zerokit check {path}` shows more; ⟨accept_mismatch⟩ starts the run all the same"
        )
    return tuple(f"warning: {_text(found)}" for found in findings if found.severity != "note")


def _findings(path: str, reader: str, ranks: int) -> Sequence[Finding]:
    project = settings_beside(Path.cwd())
    settings = CheckSettings(kind="deepspeed", reader=reader, world_size=ranks, ignore=project.ignore)
    with for_versions(None, None):
        return check([path], {}, settings).findings


def of_arguments(options: ScriptOptions, ranks: int) -> tuple[str, ...]:
    """What ``check`` finds in the DeepSpeed file that the script's own arguments name, as warnings: a run or
    a rehearsal would end with an error of the script's that does not name the line."""
    path = options.own_deepspeed_file
    if path is None and options.style == "raw":
        given = options.given("deepspeed_config")
        path = str(given[0]) if given is not None else None
    if path is None or Path(path).suffix != ".json" or options.style not in _READERS:
        return ()
    reads_it_too = options.style == "raw" and options.facts.reads_deepspeed_config  # with json, most likely
    findings = _findings(path, options.style, ranks)
    return tuple(
        f"warning: {_text(found)}"
        for found in findings
        if found.severity != "note" or (reads_it_too and found.rule.startswith("json-"))
    )


def _text(found: Finding) -> str:
    """The finding in one line."""
    location = f"{found.path}:{found.location.line}:{found.location.column}"
    fix = f"; fix: {found.fix}" if found.fix else ""
    return f"{location}: {found.message}{fix} [{found.rule}]"
