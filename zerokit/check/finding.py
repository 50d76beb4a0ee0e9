"""What ``zerokit check`` says about one place in one file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from zerokit.core.rules.types import Edit, Severity
from zerokit.strictload import Document, Path, Place

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        rule: id of the rule that is broken.
        message: what is wrong and what will happen.
        mend: what to write instead.
        source: where DeepSpeed, Accelerate or the launcher decides it; empty for plain grammar.
        edits: mends that ``--fix`` can write.
    """

    path: str
    place: Place
    rule: str
    severity: Severity
    message: str
    mend: str
    source: str = ""
    edits: tuple[Edit, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "path": self.path,
            "line": self.place.line,
            "column": self.place.column,
            "rule": self.rule,
            "severity": self.severity,
            "message": self.message,
            "mend": self.mend,
            "source": self.source,
            "fixable": bool(self.edits),
        }


def finding_at(
    document: Document,
    path: Path,
    rule: str,
    message: str,
    mend: str,
    *,
    severity: Severity = "error",
    source: str = "",
    edits: tuple[Edit, ...] = (),
) -> Finding:
    """A finding at ``path`` of a document, or where the nearest parent of it is written."""
    return Finding(
        path=document.path,
        place=document.place(path),
        rule=rule,
        severity=severity,
        message=message,
        mend=mend,
        source=source,
        edits=edits,
    )


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` was most likely meant to be."""
    import difflib

    candidates = sorted(known)
    folded = {fold(candidate): candidate for candidate in candidates}
    if fold(word) in folded:
        return folded[fold(word)]
    close = difflib.get_close_matches(word.lower(), [name.lower() for name in candidates], n=1, cutoff=0.78)
    if not close:
        return None
    return next(name for name in candidates if name.lower() == close[0])


def fold(word: str) -> str:
    """A word without what people get wrong first: case, hyphens, underscores."""
    return word.lower().replace("-", "").replace("_", "")
