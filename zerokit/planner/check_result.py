"""What a check found: the answer of ``zerokit check``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from zerokit.errors import InputError
from zerokit.fields import as_options, plain
from zerokit.linter import output
from zerokit.linter.files import INTERNAL_ERROR, CheckedFile
from zerokit.linter.finding import Finding

_SHOWN = 5
"""Findings at a Python prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a file fits.

    Attributes:
        fits: None: no memory was named, it does not use DeepSpeed, or errors keep it from being judged.
        severity: of what is lacking; None: nothing is, as far as is told.
        marked: a sentence with the figures, with the arguments that it names marked (:mod:`zerokit.fields`).
    """

    fits: bool | None
    severity: Literal["error", "warning"] | None
    marked: str

    @property
    def message(self) -> str:
        """A sentence with the figures."""
        return plain(self.marked)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckResult:
    """What was found in the files.

    Attributes:
        files: each with its kind and findings; those that a file names come after it.
        fixed: findings whose fix was written.
        fits: of a file's path, whether it fits, where a model was named.
        skipped: files of a folder that are no configurations.
        stopped: why DeepSpeed could not be asked, or why nobody can tell whether it fits; else None.
    """

    files: tuple[CheckedFile, ...]
    fixed: tuple[Finding, ...] = ()
    fits: Mapping[str, Fit] = field(default_factory=dict)
    skipped: int = 0
    stopped: InputError | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all files."""
        return tuple(finding for file in self.files for finding in file.findings)

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not any(file.failed for file in self.files)

    def exit_code(self, *, strict: bool = False) -> int:
        """0, 2 for errors (``strict``: warnings too), 1 for an error of zerokit's own."""
        if any(finding.rule == INTERNAL_ERROR for finding in self.findings):
            return 1
        failing = ("error", "warning") if strict else ("error",)
        return 2 if any(finding.severity in failing for finding in self.findings) else 0

    def __repr__(self) -> str:
        """What a Python prompt shows: how many findings there are, and the first of them."""
        first = self.findings[:_SHOWN]
        shown = [f"{_location(one)}: {one.severity}: {one.message}" for one in first]
        more = len(self.findings) - len(shown)
        shown += [f"and {more} more, in findings"] if more else []
        counts = output.summary(self.files, notes=True, skipped=self.skipped)
        return "\n  ".join((f"<Check of {counts}", *shown)) + ">"

    def _repr_html_(self) -> str:
        from zerokit.planner.documents import html_table

        rows = [(_location(one), one.severity, one.message, one.fix, one.rule) for one in self.findings]
        caption = output.summary(self.files, notes=True, skipped=self.skipped)
        return html_table(caption, rows, titles=("location", "severity", "message", "fix", "rule"))

    def to_dict(self) -> dict[str, Any]:
        """What ``check --json`` prints."""
        body = output.as_dict(self.files, fixed=self.fixed)
        for file in body["files"]:
            fit = self.fits.get(file["path"])
            if fit is not None:
                file["fit"] = {"fits": fit.fits, "message": as_options(fit.marked)}
        return body


def _location(finding: Finding) -> str:
    return f"{finding.path}:{finding.location.line}:{finding.location.column}"
