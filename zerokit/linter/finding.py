"""What ``zerokit check`` says about one location in one file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from zerokit.fields import as_options, plain
from zerokit.rules.types import Edit, Severity
from zerokit.strictload import Document, Location, Path, Problem
from zerokit.suggest import nearest
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
    def where(self) -> str:
        """``path:line:column``."""
        return f"{self.path}:{self.location.line}:{self.location.column}"

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
            "fix": self.fix,
            "mend": self.fix,  # its name until zerokit.check/1; goes with the release after this one
            "source": self.source,
            "fixable": self.fixable == "safe",
            "unsafe_fix": self.fixable == "unsafe",
            "also": [{"line": at.line, "column": at.column} for at in self.also],
        }


class Row(NamedTuple):
    """A rule about a file that is not DeepSpeed's own, or that code looks for: what its findings say.

    Attributes:
        key: dotted key that they point at, unless where it was found says so.
        message: what is wrong and what will happen; may hold ``{fields}`` of what was found, as ``key`` and
            ``fix`` may; ``{field!r}`` is a value of the file's, shortened.
        broken: of what was read, as a :class:`zerokit.rules.types.Rule` has it; None: code finds it.
        missing: as of a finding.
    """

    id: str
    key: str
    message: str
    fix: str
    source: str = ""
    severity: Severity = "error"
    broken: Callable[[Any], bool | Mapping[str, Any] | None] | None = None
    missing: str | tuple[str, ...] = ""

    def at(self, document: Document, path: Path | None = None, **found: Any) -> Finding:
        """A finding at ``path`` of a document, or where its nearest parent is written; None: ``key``."""
        if path is None:
            path = tuple(_filled(self.key, found).split(".")) if self.key else ()
        return self.found(document.path, document.location(path), **found)

    def found(self, path: str, location: Location, **found: Any) -> Finding:
        """A finding at a location in a file; ``found``: the texts' fields; ``severity`` and ``source``, where
        they depend on what was found; and attributes of a finding that are not the row's."""
        own = {name: found.pop(name) for name in _OF_A_FINDING & found.keys()}
        return Finding(**{
            "path": path, "location": location, "rule": self.id, "severity": self.severity,
            "source": self.source, "missing": self.missing, "marked": _filled(self.message, found),
            "marked_fix": _filled(self.fix, found), **own,
        })  # fmt: skip


def broken(rows: Iterable[Row], document: Document, read: Any, **found: Any) -> Iterator[Finding]:
    """A finding for each row that what was ``read`` of the document breaks; ``found``: for the texts."""
    for row in rows:
        if row.broken is not None and (details := row.broken(read)):
            yield row.at(document, **found, **(details if isinstance(details, Mapping) else {}))


def _filled(text: str, found: Mapping[str, Any]) -> str:
    # not str.format: the texts show JSON, which has braces of its own
    return _FIELD.sub(lambda match: (short if match[2] else str)(found[match[1]]), text)


def short(value: object) -> str:
    """A value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:38]}…{text[-1]}"


def read_past(document: Document, problem: Problem, severity: Severity, suggests: str = "") -> Finding:
    """What the parser noted and read past, as a finding."""
    return Finding(
        path=document.path, location=problem.location, rule=problem.rule, severity=severity,
        marked=problem.message, marked_fix=problem.fix, suggests=suggests,
    )  # fmt: skip


_FIELD = re.compile(r"\{(\w+)(!r)?\}")
_OF_A_FINDING = frozenset({"severity", "source", "edits", "suggests", "missing", "is_ignored"})


_UNREADABLE = frozenset({"not-finite", "yaml-number-as-text"})
_WRONG_VALUE = frozenset({"number-as-text", "wrong-kind", "wrong-value", "out-of-range"})
"""Rules about a value that cannot be what its key takes: what else is said of the key follows."""
_NOT_READ = frozenset({"unknown-key", "misplaced-key", "unknown-parameter", "parameter-beside-params"})
_AUTO = frozenset({"auto-not-filled"})
_CAUSES = {  # what else follows, for findings of what rules it does not, and whether the line is enough
    _UNREADABLE: (_UNREADABLE, True),
    _WRONG_VALUE: (_WRONG_VALUE | _UNREADABLE | _AUTO, False),
    _AUTO: (_NOT_READ | _AUTO, False),
}


def one_for_each_cause(findings: Sequence[Finding]) -> list[Finding]:
    """Findings without those that only follow from another, which becomes as severe as what follows from it.

    What is missing may be misspelt or misplaced, a value that cannot be read breaks other rules, too, and
    nobody fills an ``"auto"`` in a key that nobody knows.
    """
    severities = [finding.severity for finding in findings]
    goes_on = [finding.is_ignored for finding in findings]
    cause_of = _causes(findings)
    for number, cause in cause_of.items():
        finding = findings[number]
        severities[cause] = min(severities[cause], finding.severity, key=SEVERITIES.index)
        goes_on[cause] = goes_on[cause] and (finding.is_ignored or finding.severity != "error")
    return [
        finding
        if (finding.severity, finding.is_ignored) == (severities[number], goes_on[number])
        else replace(finding, severity=severities[number], is_ignored=goes_on[number])
        for number, finding in enumerate(findings)
        if number not in cause_of
    ]


def _causes(findings: Sequence[Finding]) -> dict[int, int]:
    """Of each finding that follows from another, the first that it follows from; in linear time."""
    first: dict[tuple[frozenset[str], int | Location], int] = {}
    for number, cause in enumerate(findings):
        for rules in (*_CAUSES, _NOT_READ):
            if cause.rule in rules:
                for at in (cause.location, *cause.also):
                    first.setdefault((rules, at), number)
                first.setdefault((rules, cause.location.line), number)
    cause_of = {}
    for number, finding in enumerate(findings):
        places = [
            (rules, finding.location.line if on_line else finding.location)
            for rules, (unless, on_line) in _CAUSES.items()
            if finding.rule not in unless
        ]
        if finding.rule in _AUTO:
            places.append((_NOT_READ, finding.location))
        causes = [first[place] for place in places if place in first]
        if finding.missing:
            causes += [
                index
                for index, cause in enumerate(findings)
                if cause is not finding and cause.suggests.startswith(finding.missing)
            ]
        if causes:
            cause_of[number] = min(causes)
    return cause_of


def meant(guess: str, given: Collection[Any]) -> str:
    """The fix for a name that nobody reads, where another was probably meant."""
    return f"remove it; {guess!r} is given as well" if guess in given else f"did you mean {guess!r}?"


def one_of(word: str, known: Collection[str]) -> str:
    """The fix for a word that is none of those that are known."""
    guess = nearest(word, known)
    return f"did you mean {guess}?" if guess else f"use one of {', '.join(known)}"


def is_missing(name: str, reader: str) -> str:
    """That a file which another names is not there, and from where who reads it looks for it."""
    shown = repr(name)
    if len(shown) > _LONGEST_PATH:
        shown = f"{shown[:_START]}…{shown[-_END:]}"
    if PurePath(name).is_absolute():
        return f"{shown} does not exist on this machine, and {reader} stops without it"
    return f"{shown} is not here, nor beside this file: {reader} looks for it where it is started"
