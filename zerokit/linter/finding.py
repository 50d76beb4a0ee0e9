"""What ``zerokit check`` says about one location in one file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal

from zerokit.fields import as_options, plain
from zerokit.rules.types import Edit, Severity
from zerokit.strictload import Document, Location, Path
from zerokit.values import frozen_dataclass

_LONGEST_PATH, _START, _END = 200, 120, 60
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@frozen_dataclass
class Finding:
    """One finding.

    Attributes:
        rule: id of the rule that is broken.
        marked: what is wrong and what will happen, with the arguments that it names marked
            (:mod:`zerokit.fields`).
        marked_fix: what to write instead, likewise.
        source: where DeepSpeed, Accelerate or the launcher decides it; empty for plain grammar.
        suggests: the name that was probably meant, or that stands where nobody reads it.
        missing: the key whose absence this is, or those of which one is missing.
        edits: changes that ``--fix`` can write; those that are not safe with ``--unsafe`` alone.
        also: further locations of which it speaks.
        is_ignored: nobody reads what it speaks of, and a run goes on without it, whatever the severity.
    """

    path: str
    location: Location
    rule: str
    severity: Severity
    marked: str
    marked_fix: str
    source: str = ""
    edits: tuple[Edit, ...] = ()
    suggests: str = ""
    missing: str | tuple[str, ...] = ""
    also: tuple[Location, ...] = ()
    is_ignored: bool = False

    @property
    def message(self) -> str:
        """What is wrong and what will happen."""
        return plain(self.marked)

    @property
    def fix(self) -> str:
        """What to write instead."""
        return plain(self.marked_fix)

    @property
    def as_typed(self) -> Finding:
        """The same with the options of the command line, for what it prints."""
        return replace(self, marked=as_options(self.marked), marked_fix=as_options(self.marked_fix))

    @property
    def fixable(self) -> Literal["safe", "unsafe"] | None:
        """Whether ``--fix`` removes it, ``--fix --unsafe`` does, or neither."""
        if not self.edits:
            return None
        return "safe" if all(edit.safe for edit in self.edits) else "unsafe"

    @property
    def done(self) -> str:
        """What ``--fix`` wrote, in words; of grammar, what is no longer there."""
        return ", ".join(edit.done for edit in self.edits) or self.message

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "path": self.path,
            "line": self.location.line,
            "column": self.location.column,
            "rule": self.rule,
            "severity": self.severity,
            "message": self.message,
            "mend": self.fix,
            "source": self.source,
            "fixable": self.fixable == "safe",
            "unsafe_fix": self.fixable == "unsafe",
            "also": [{"line": at.line, "column": at.column} for at in self.also],
        }


def finding_at(
    document: Document,
    path: Path,
    rule: str,
    message: str,
    fix: str,
    *,
    severity: Severity = "error",
    source: str = "",
    edits: tuple[Edit, ...] = (),
    suggests: str = "",
    missing: str | tuple[str, ...] = "",
) -> Finding:
    """A finding at ``path`` of a document, or where the nearest parent of it is written."""
    return Finding(
        path=document.path,
        location=document.location(path),
        rule=rule,
        severity=severity,
        marked=message,
        marked_fix=fix,
        source=source,
        edits=edits,
        suggests=suggests,
        missing=missing,
    )


_UNREADABLE = frozenset({"not-finite", "yaml-number-as-text"})
_WRONG_VALUE = _UNREADABLE | {"number-as-text", "wrong-kind", "wrong-value", "out-of-range"}
"""Rules about a value that cannot be what its key takes: what else is said of the key follows."""
_NOT_READ = frozenset({"unknown-key", "misplaced-key", "unknown-parameter", "parameter-beside-params"})


def one_for_each_cause(findings: Sequence[Finding]) -> list[Finding]:
    """Findings without those that only follow from another, which becomes as severe as what follows from it.

    What is missing may be misspelt or misplaced, a value that cannot be read breaks other rules, too, and
    nobody fills an ``"auto"`` in a key that nobody knows.
    """
    severities = [finding.severity for finding in findings]
    goes_on = [finding.is_ignored for finding in findings]
    consequences = set()
    for number, finding in enumerate(findings):
        cause = next(
            (index for index, other_finding in enumerate(findings) if _follows(finding, other_finding)), None
        )
        if cause is not None:
            consequences.add(number)
            severities[cause] = min(severities[cause], finding.severity, key=SEVERITIES.index)
            goes_on[cause] = goes_on[cause] and (finding.is_ignored or finding.severity != "error")
    return [
        replace(finding, severity=severities[number], is_ignored=goes_on[number])
        for number, finding in enumerate(findings)
        if number not in consequences
    ]


def _follows(consequence: Finding, cause: Finding) -> bool:
    if consequence is cause:
        return False
    if consequence.missing and cause.suggests.startswith(consequence.missing):
        return True
    if cause.rule in _UNREADABLE and consequence.rule not in _UNREADABLE:
        return cause.location.line == consequence.location.line
    if consequence.location not in (cause.location, *cause.also):
        return False
    if consequence.rule == "auto-not-filled":
        return cause.rule in _NOT_READ
    if cause.rule == "auto-not-filled":
        return consequence.rule not in _NOT_READ
    return cause.rule in _WRONG_VALUE and consequence.rule not in _WRONG_VALUE


def meant(guess: str, given: Collection[Any]) -> str:
    """The fix for a name that nobody reads, where another was probably meant."""
    return f"remove it; {guess!r} is given as well" if guess in given else f"did you mean {guess!r}?"


def is_missing(name: str, reader: str) -> str:
    """That a file which another names is not there, and from where who reads it looks for it."""
    shown = repr(name)
    if len(shown) > _LONGEST_PATH:
        shown = f"{shown[:_START]}…{shown[-_END:]}"
    if PurePath(name).is_absolute():
        return f"{shown} does not exist on this machine, and {reader} stops without it"
    return f"{shown} is not here, nor beside this file: {reader} looks for it where it is started"
