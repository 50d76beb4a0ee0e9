"""What ``zerokit check`` says about one place in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from zerokit.rules.types import Edit, Severity
from zerokit.strictload import Document, Path, Place

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        rule: id of the rule that is broken.
        message: what is wrong and what will happen.
        fix: what to write instead.
        source: where DeepSpeed, Accelerate or the launcher decides it; empty for plain grammar.
        suggests: the name that was probably meant.
        missing: the key whose absence this is.
        edits: changes that ``--fix`` can write; those that are not safe with ``--unsafe`` alone.
    """

    path: str
    place: Place
    rule: str
    severity: Severity
    message: str
    fix: str
    source: str = ""
    edits: tuple[Edit, ...] = ()
    suggests: str = ""
    missing: str = ""

    @property
    def fixable(self) -> Literal["safe", "unsafe"] | None:
        """Whether ``--fix`` removes it, ``--fix --unsafe`` does, or neither."""
        if not self.edits:
            return None
        return "safe" if all(edit.safe for edit in self.edits) else "unsafe"

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "path": self.path,
            "line": self.place.line,
            "column": self.place.column,
            "rule": self.rule,
            "severity": self.severity,
            "message": self.message,
            "mend": self.fix,
            "source": self.source,
            "fixable": self.fixable == "safe",
            "unsafe_fix": self.fixable == "unsafe",
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
    missing: str = "",
) -> Finding:
    """A finding at ``path`` of a document, or where the nearest parent of it is written."""
    return Finding(
        path=document.path,
        place=document.place(path),
        rule=rule,
        severity=severity,
        message=message,
        fix=fix,
        source=source,
        edits=edits,
        suggests=suggests,
        missing=missing,
    )


def one_for_each_cause(findings: Sequence[Finding]) -> list[Finding]:
    """Findings without those that only follow from another: what is missing because it is misspelt."""
    meant = {finding.suggests for finding in findings if finding.suggests}
    not_finite = {finding.place.line for finding in findings if finding.rule == "not-finite"}
    return [
        finding
        for finding in findings
        if not (finding.missing and any(name.startswith(finding.missing) for name in meant))
        and not (finding.rule == "wrong-kind" and finding.place.line in not_finite)
    ]
