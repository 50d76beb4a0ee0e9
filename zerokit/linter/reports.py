"""Findings as SARIF 2.1.0 (code scanning) and as JUnit XML (test reports)."""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from zerokit.linter.files import CheckedFile
from zerokit.linter.finding import SEVERITIES, Finding
from zerokit.messages import shown

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(files: Sequence[CheckedFile], *, notes: bool = False) -> str:
    """One SARIF log: every rule that is broken, and its findings."""
    from zerokit import __version__

    findings = listed(files, notes)
    paths = {shown(file.path): file.path for file in files}
    first = {finding.rule: finding for finding in reversed(findings)}
    index = {rule: number for number, rule in enumerate(sorted(first))}
    run = {
        "tool": {
            "driver": {
                "name": "zerokit",
                "version": __version__,
                "rules": [_sarif_rule(first[rule]) for rule in sorted(first)],
            }
        },
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
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": urllib.parse.quote(os.fsencode(path.replace("\\", "/")))},
                    "region": {"startLine": finding.location.line, "startColumn": finding.location.column},
                }
            }
        ],
    }


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
            location = f"{finding.path}:{finding.location.line}:{finding.location.column}"
            text = _clean(f"{location}: {finding.message}\nfix: {finding.fix}\nsource: {finding.source}")
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
