"""Findings as text, as JSON, and in the forms that editors and CI systems read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zerokit.linter.accelerate.keys import key_list
from zerokit.linter.files import CheckedFile
from zerokit.linter.finding import SEVERITIES, Finding
from zerokit.linter.reports import as_junit, as_sarif, listed, more, not_shown, worst
from zerokit.messages import OBEYED, shown, wrapped
from zerokit.units import counted

SCHEMA = "zerokit.check/2"
_FIXABLE = {"safe": " (--fix writes it)", "unsafe": " (--fix --unsafe writes it)", None: ""}
_GITHUB_LEVEL = {"error": "error", "warning": "warning", "note": "notice"}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s,:{}\[\]]+|\S')
_SECRET = re.compile(r"(?i)(api|access|secret|auth)[_-]?(key|token)|password")
_FEW_FILES = 3
_WIDEST = 100  # of a line of the file


def as_text(
    files: Sequence[CheckedFile], *, notes: bool = False, width: int | None = None, skipped: int = 0
) -> str:
    """One block per finding, ``file:line:column`` first, and a summary line; at most ``width`` columns.

    Args:
        skipped: files of a folder that are no configurations.
    """
    lines: list[str] = []
    for file in files:
        text = [] if file.kind == "hostfile" else file.text.split("\n")
        for finding in listed([file], notes):
            location = f"{finding.path}:{finding.location.line}:{finding.location.column}"
            headline = f"{location}: {finding.severity}: {finding.message} [{finding.rule}]"
            lines.append(wrapped(headline, width))
            lines += _source_line(text, finding, width or _WIDEST)
            if finding.fix:
                lines.append(wrapped(f"  fix: {finding.fix}{_FIXABLE[finding.fixable]}", width))
            if finding.source:
                lines.append(wrapped(f"  source: {finding.source}", width))
        lines += [wrapped(rest, width)] if (rest := more(file, notes)) else []
    lines.append(wrapped(summary(files, notes=notes, skipped=skipped), width))
    return "\n".join(lines)


def nothing_written(files: Sequence[CheckedFile], *, unsafe: bool, notes: bool = False) -> str:
    """What ``--fix`` says when it wrote nothing and there is something to fix; empty where there is not.

    Args:
        unsafe: whether what only ``--unsafe`` writes was asked for, too.
    """
    shown = listed(files, notes)
    if not shown:
        return ""
    count = 0 if unsafe else sum(finding.fixable == "unsafe" for finding in shown)
    return "nothing that --fix can write" + (
        f"; --fix --unsafe writes {counted(count, 'fix', 'fixes')}" if count else ""
    )


def _source_line(text: Sequence[str], finding: Finding, columns: int) -> list[str]:
    """The line that a finding is about, and a caret below the word."""
    number, column = finding.location
    line = text[number - 1].rstrip("\r") if 0 < number <= len(text) else ""
    widest = min(_WIDEST, columns - len(f"  {number} | "))
    start = max(0, column - 1 - widest // 2) if len(line) > widest else 0
    if not line.strip() or _SECRET.search(line[max(0, start - _WIDEST) : start + widest]):
        return []
    token = _TOKEN.match(line[column - 1 : column - 1 + widest])
    width = max(1, len(token.group()) if token else 1)
    excerpt = OBEYED.sub("?", line[start : start + widest].replace("\t", " "))
    gutter = " " * len(str(number))
    caret = " " * (column - 1 - start) + "^" * min(width, widest - (column - 1 - start))
    return [f"  {number} | {excerpt}", f"  {gutter} | {caret}"]


def summary(files: Sequence[CheckedFile], *, notes: bool = False, skipped: int = 0) -> str:
    """``2 files: 1 error, 3 warnings``, and how many other files were skipped."""
    counts = {
        severity: sum(finding.severity == severity for file in files for finding in file.findings)
        for severity in SEVERITIES
    }
    parts = [
        counted(count, severity)
        for severity, count in counts.items()
        if count and (severity != "note" or notes)
    ]
    hidden = ""
    if counts["note"] and not notes:
        one = counts["note"] == 1
        hidden = (
            " (1 note; show it with --notes)" if one else f" ({counts['note']} notes; show them with --notes)"
        )
    if skipped:
        what = "file that is no configuration" if skipped == 1 else "files that are no configurations"
        hidden += f"; skipped {skipped} {what}"
    read = [file for file in files if file.trainer is None or file.trainer.parses_arguments or file.findings]
    kinds = (
        ", ".join(f"{shown(file.path)} ({_kind(file)})" for file in read)
        if 0 < len(read) <= _FEW_FILES
        else f"{len(read)} files"
    )
    checked = f"{kinds}: {', '.join(parts) or 'no problems'}" if read else "no configuration to check"
    return f"{checked}{hidden}{_of_trainers(files)}"


def _of_trainers(files: Sequence[CheckedFile]) -> str:
    """How many files of which trainer there are, and what is checked of them."""
    counts = Counter(file.trainer for file in files if file.trainer is not None)
    return "".join(
        f"; {counted(count, 'file')} of {trainer.title}, "
        + (
            "of which check reads the Trainer's arguments and what names DeepSpeed"
            if trainer.parses_arguments
            else "which check does not read, but for what names DeepSpeed"
        )
        for trainer, count in counts.items()
    )


def _kind(file: CheckedFile) -> str:
    """What the file is; of an accelerate YAML also that it does not use DeepSpeed."""
    value = file.document.value if file.document is not None else None
    runs = value.get("distributed_type") if file.kind == "accelerate" and isinstance(value, dict) else None
    no_deepspeed = isinstance(runs, str) and runs in key_list()["distributed_types"] and runs != "DEEPSPEED"
    if no_deepspeed:
        return f"{file.kind}, {runs}: without DeepSpeed"
    if file.trainer is not None:
        return file.trainer.title
    of_ranks = f", {counted(file.batch_ranks, 'rank')} by its train_batch_size" if file.batch_ranks else ""
    return f"{file.kind}{of_ranks}"


def as_dict(files: Sequence[CheckedFile], *, fixed: Sequence[Finding] = ()) -> dict[str, Any]:
    """One object: files with their kind, findings with location, rule, message and fix."""
    return {
        "schema": SCHEMA,
        "ok": not any(file.failed for file in files),
        "files": [
            {"path": file.path, "kind": file.kind, "ok": not file.failed}
            | ({"trainer": file.trainer.title} if file.trainer else {})
            | ({"findings_not_shown": rest} if (rest := not_shown(file, True)) else {})
            for file in files
        ],
        "findings": [found.as_typed.as_json() for file in files for found in worst(file, True)],
        "fixed": [finding.as_typed.as_json() for finding in fixed],
    }


def as_github(files: Sequence[CheckedFile], *, notes: bool = False) -> str:
    """Workflow commands that GitHub shows as annotations (other CI systems read the same lines)."""
    lines = []
    for finding in listed(files, notes):
        text = f"{finding.message} Fix: {finding.fix}" if finding.fix else finding.message
        properties = (
            f"file={_property(finding.path)},line={finding.location.line},col={finding.location.column},"
            f"title={_property(finding.rule)}"
        )
        lines.append(f"::{_GITHUB_LEVEL[finding.severity]} {properties}::{_data(text)}")
    rest = filter(None, (more(file, notes) for file in files))
    lines += [f"::notice title=zerokit check::{_data(text)}" for text in rest]
    return "\n".join(lines)


FORMATS: Mapping[str, Callable[..., str]] = {
    "text": as_text,
    "github": as_github,
    "sarif": as_sarif,
    "junit": as_junit,
}
"""Formats other than JSON, by name."""


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
