"""``zerokit doctor``: what this machine has, and what a DeepSpeed run here would trip over."""

from __future__ import annotations

import json

import click

from zerokit.errors import NodeUnusable
from zerokit.run.doctor import Examination, Finding, examine

_MARKS = {"ok": "✓", "note": "·", "warning": "!", "blocker": "✗"}
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "blocker": "red"}


@click.command("doctor", short_help="What this machine has, and what a DeepSpeed run here would trip over.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
@click.option(
    "--strict", is_flag=True, help="End with exit code 13 when something makes every run impossible."
)
def command(as_json: bool, strict: bool) -> None:
    """Look at GPUs, driver, packages, compilers, limits, disks, variables and files; change nothing.

    ✓ fine, · worth knowing, ! slows or breaks some runs, ✗ no run can work.
    """
    examination = examine()
    if as_json:
        click.echo(json.dumps(examination.as_dict(), indent=1))
    else:
        for finding in examination.findings:
            _show(finding)
        click.echo(_verdict(examination))
    if strict and examination.blockers:
        names = ", ".join(finding.check for finding in examination.blockers)
        raise NodeUnusable(f"no run can work here: {names}; `zerokit doctor` says how to mend it")


def _show(finding: Finding) -> None:
    mark = click.style(_MARKS[finding.state], fg=_COLOURS[finding.state])
    click.echo(f"{mark} {finding.what}")
    if finding.mend:
        click.echo(f"    → {finding.mend}")


def _verdict(examination: Examination) -> str:
    counts = examination.as_dict()["counts"]
    found = f"{counts['warning']} warnings, {counts['note']} notes"
    if examination.blockers:
        return f"\n{len(examination.blockers)} things make every run here impossible; {found}."
    return f"\nRuns can work here; {found}."
