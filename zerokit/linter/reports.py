"""Findings as SARIF 2.1.0 (code scanning) and as JUnit XML (test reports)."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from zerokit.linter.files import CheckedFile
from zerokit.linter.finding import Finding

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(files: Sequence[CheckedFile], *, notes: bool = False) -> str:
    """One SARIF log: every rule that is broken, and its findings."""
    from zerokit import __version__

    findings = listed(files, notes)
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
        "results": [_sarif_result(finding, index[finding.rule]) for finding in findings],
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


def _sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    text = f"{finding.message}. Fix: {finding.fix}" if finding.fix else finding.message
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": urllib.parse.quote(finding.path.replace("\\", "/"))},
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
        lines.append("</testcase>")
    return "\n".join([*lines, "</testsuite>", "</testsuites>"])


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    """Text without what XML cannot hold."""
    return "".join(letter if letter in "\n\t" or ord(letter) >= 32 else "?" for letter in text)


def listed(files: Sequence[CheckedFile], notes: bool) -> list[Finding]:
    """The findings to print, with the options of the command line."""
    findings = (finding for file in files for finding in file.findings)
    return [finding.as_typed for finding in findings if notes or finding.severity != "note"]
