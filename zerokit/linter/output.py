"""Findings as text, as JSON, and in the forms that editors and CI systems read."""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from zerokit.linter.accelerate.keys import key_list
from zerokit.linter.files import CheckedFile
from zerokit.linter.finding import SEVERITIES, Finding
from zerokit.messages import OBEYED, github_annotation, shown, wrapped
from zerokit.units import counted

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(files: Sequence[CheckedFile], *, notes: bool = False) -> str:
    """One SARIF log: every rule that is broken, and its findings."""
    from zerokit import __version__

    findings = listed(files, notes)
    paths = {shown(file.path): file.path for file in files}
    first = {finding.rule: finding for finding in reversed(findings)}
    index = {rule: number for number, rule in enumerate(sorted(first))}
    rules = [_sarif_rule(first[rule]) for rule in sorted(first)]
    run = {
        "tool": {"driver": {"name": "zerokit", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [
            _sarif_result(finding, index[finding.rule], paths.get(finding.path, finding.path))
            for finding in findings
        ],
        "properties": {"notShown": sum(not_shown(file, notes) for file in files)},
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _sarif_rule(finding: Finding) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": finding.rule,
        "shortDescription": {"text": finding.message},
        "defaultConfiguration": {"level": finding.severity},
    }
    if finding.source:
        rule["fullDescription"] = {"text": f"{finding.message} (source: {finding.source})"}
    return rule


def _sarif_result(finding: Finding, index: int, path: str) -> dict[str, Any]:
    text = f"{finding.message}. Fix: {finding.fix}" if finding.fix else finding.message
    location = {
        "artifactLocation": {"uri": urllib.parse.quote(os.fsencode(path.replace("\\", "/")))},
        "region": {"startLine": finding.location.line, "startColumn": finding.location.column},
    }
    return {
        "ruleId": finding.rule, "ruleIndex": index, "level": finding.severity, "message": {"text": text},
        "locations": [{"physicalLocation": location}],
    }  # fmt: skip


def as_junit(files: Sequence[CheckedFile], *, notes: bool = False) -> str:
    """One test case per file, with a failure for each finding; ``notes`` is for the other formats' sake."""
    failures = sum(finding.severity != "note" for file in files for finding in file.findings)
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<testsuites name="zerokit check" tests="{len(files)}" failures="{failures}">',
        f'<testsuite name="zerokit check" tests="{len(files)}" failures="{failures}" errors="0" skipped="0">',
    ]
    for file in files:
        lines.append(f"<testcase classname={_attribute(file.kind)} name={_attribute(file.path)}>")
        for finding in listed([file], notes=False):
            text = _clean(f"{finding.where}: {finding.message}\nfix: {finding.fix}\nsource: {finding.source}")
            message = _attribute(finding.message)
            lines.append(
                f"<failure type={_attribute(finding.rule)} message={message}>{escape(text)}</failure>"
            )
        lines += [f"<system-out>{escape(text)}</system-out>"] if (text := more(file, False)) else []
        lines.append("</testcase>")
    return "\n".join([*lines, "</testsuite>", "</testsuites>"])


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    """Text without what XML cannot hold (1.0, 2.2), with its line ends."""
    return "\n".join(map(shown, text.split("\n")))


MOST_SHOWN = 100
"""Findings of one file that are shown, the worst of them."""


def listed(files: Sequence[CheckedFile], notes: bool) -> list[Finding]:
    """The findings to print, with the options of the command line and nothing that a terminal obeys."""
    return [shown_finding(finding) for file in files for finding in worst(file, notes)]


def not_shown(file: CheckedFile, notes: bool) -> int:
    """How many findings of a file :func:`listed` leaves out."""
    return max(0, sum(notes or finding.severity != "note" for finding in file.findings) - MOST_SHOWN)


def more(file: CheckedFile, notes: bool) -> str:
    """That findings are left out, and how many; empty where none are."""
    rest = not_shown(file, notes)
    return f"{shown(file.path)}: and {rest:,} more; fix these first" if rest else ""


def worst(file: CheckedFile, notes: bool) -> list[Finding]:
    """The findings of a file to show, as they are, in the order of the file."""
    told = [finding for finding in file.findings if notes or finding.severity != "note"]
    if len(told) <= MOST_SHOWN:
        return told
    chosen = sorted(range(len(told)), key=lambda number: SEVERITIES.index(told[number].severity))[:MOST_SHOWN]
    return [told[number] for number in sorted(chosen)]


def shown_finding(finding: Finding) -> Finding:
    """The finding as a person reads it: options as typed, foreign characters escaped."""
    typed = finding.as_typed
    return replace(
        typed, path=shown(typed.path), marked=shown(typed.marked), marked_fix=shown(typed.marked_fix)
    )


SCHEMA = "zerokit.check/2"
FIXABLE = {"safe": " (--fix writes it)", "unsafe": " (--fix --unsafe writes it)", None: ""}
"""What is said behind a fix, by whether ``check`` can write it."""
_GITHUB_LEVEL = {"error": "error", "warning": "warning", "note": "notice"}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s,:{}\[\]]+|\S')
_SECRET = re.compile(r"(?i)(api|access|secret|auth)[_-]?(key|token)|password")
_FEW_FILES = 3
_WIDEST = 100  # of a line of the file


def as_text(
    files: Sequence[CheckedFile], *, notes: bool = False, width: int | None = None, skipped: int = 0
) -> str:
    """One block per finding, ``file:line:column`` first, and a summary line; at most ``width`` columns.
    ``skipped``: files of a folder that are no configurations."""
    lines: list[str] = []
    for file in files:
        text = [] if file.kind == "hostfile" else file.text.split("\n")
        for finding in listed([file], notes):
            headline = f"{finding.where}: {finding.severity}: {finding.message} [{finding.rule}]"
            lines.append(wrapped(headline, width))
            lines += _source_line(text, finding, width or _WIDEST)
            if finding.fix:
                lines.append(wrapped(f"  fix: {finding.fix}{FIXABLE[finding.fixable]}", width))
            if finding.source:
                lines.append(wrapped(f"  source: {finding.source}", width))
        lines += [wrapped(rest, width)] if (rest := more(file, notes)) else []
    lines.append(wrapped(summary(files, notes=notes, skipped=skipped), width))
    return "\n".join(lines)


def nothing_written(files: Sequence[CheckedFile], *, unsafe: bool, notes: bool = False) -> str:
    """What ``--fix`` says when it wrote nothing and there is something to fix; empty where there is not.
    ``unsafe``: whether what only ``--unsafe`` writes was asked for, too."""
    shown = listed(files, notes)
    if not shown:
        return ""
    count = 0 if unsafe else sum(finding.fixable == "unsafe" for finding in shown)
    return "nothing that --fix can write" + (
        f"; --fix --unsafe writes {counted(count, 'fix', 'fixes')}" if count else ""
    )


def token_width(line: str, column: int) -> int:
    """Characters of the key or value that begins at a column (from 1) of a line; at least 1."""
    token = _TOKEN.match(line[column - 1 :])
    return len(token.group()) if token else 1


def _source_line(text: Sequence[str], finding: Finding, columns: int) -> list[str]:
    number, column = finding.location
    line = text[number - 1].rstrip("\r") if 0 < number <= len(text) else ""
    widest = min(_WIDEST, columns - len(f"  {number} | "))
    start = max(0, column - 1 - widest // 2) if len(line) > widest else 0
    if not line.strip() or _SECRET.search(line[max(0, start - _WIDEST) : start + widest]):
        return []
    width = token_width(line[: column - 1 + widest], column)
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
    shown_counts = ((count, severity) for severity, count in counts.items() if notes or severity != "note")
    parts = [counted(count, severity) for count, severity in shown_counts if count]
    hidden = ""
    if counts["note"] and not notes:
        them = "it" if counts["note"] == 1 else "them"
        hidden = f" ({counted(counts['note'], 'note')}; show {them} with --notes)"
    if skipped:
        what = "file that is no configuration" if skipped == 1 else "files that are no configurations"
        hidden += f"; skipped {skipped} {what}"
    if outside := sum(not file.is_read for file in files):
        hidden += f"; skipped {counted(outside, 'file')} outside, which others name"
    read = [file for file in files if file.is_read]
    kinds = (
        ", ".join(f"{shown(file.path)} ({_kind(file)})" for file in read)
        if 0 < len(read) <= _FEW_FILES
        else f"{len(read)} files"
    )
    checked = f"{kinds}: {', '.join(parts) or 'no problems'}" if read else "no configuration to check"
    return f"{checked}{hidden}{_of_trainers(files)}"


def _of_trainers(files: Sequence[CheckedFile]) -> str:
    """How many files of which trainer there are, and which of its releases they are checked against."""
    read = [file.trainer for file in files if file.trainer is not None]
    counts = Counter(f"{one.title}, as {one.versions[0]} to {one.versions[-1]} read it" for one in read)
    return "".join(f"; {counted(count, 'file')} of {what}" for what, count in counts.items())


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
        where = finding.location
        properties = {"file": finding.path, "line": where.line, "col": where.column, "title": finding.rule}
        lines.append(github_annotation(_GITHUB_LEVEL[finding.severity], text, **properties))
    rest = filter(None, (more(file, notes) for file in files))
    lines += [github_annotation("notice", text, title="zerokit check") for text in rest]
    return "\n".join(lines)


FORMATS: Mapping[str, Callable[..., str]] = {
    "text": as_text,
    "github": as_github,
    "sarif": as_sarif,
    "junit": as_junit,
}
"""Formats other than JSON, by name."""
