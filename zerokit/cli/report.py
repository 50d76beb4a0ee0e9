"""``zerokit report``: show a past run, or compare two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from zerokit.cli.base import Command
from zerokit.cli.say import say, write_json
from zerokit.errors import InputError

if TYPE_CHECKING:
    from zerokit.report.schema import RunReport


@click.command(
    "report",
    cls=Command,
    epilog="A run that has not ended, or whose launcher was killed, is shown from the ranks' own files.",
)
@click.argument("runs", metavar="RUN [RUN]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on standard output.")
@click.option(
    "--html",
    "html",
    metavar="FILE",
    help="Write the report, or the comparison, as one self-contained HTML page.",
)
def command(runs: tuple[str, ...], as_json: bool, html: str | None) -> None:
    """Show RUN again: a run folder or a report.json, or else the newest in runs/; compare two."""
    if len(runs) > 2:
        raise InputError(f"report takes one run, or two to compare; got {len(runs)}")
    from zerokit.launcher.verdict.saved_run import load_run, runs_in

    if not runs:
        newest = runs_in()[:1]
        if not newest:
            raise InputError("name a run: `zerokit report RUN`, a run folder or its report.json")
        runs = (str(newest[0]),)
        say(f"{runs[0]}: the newest run here")
    reports = [load_run(Path(run)) for run in runs]
    folders = [run if run.is_dir() else run.parent for run in map(Path, runs)]
    if html is not None:
        _write_page(Path(html), runs, folders, reports)
        say(f"wrote {html}")
    if len(reports) == 2 and (html is None or as_json):
        from zerokit.report.compare import compare_reports, print_comparison
        from zerokit.report.context import read_context

        first, second = (read_context(folder) for folder in folders)
        comparison = compare_reports(reports[0], reports[1], (first, second))
        write_json(comparison) if as_json else print_comparison(comparison, (runs[0], runs[1]))
    elif as_json:
        write_json(reports[0].to_dict())
    elif html is None:
        from zerokit.report.render import print_report

        print_report(reports[0], folder=folders[0])


def _write_page(path: Path, runs: tuple[str, ...], folders: list[Path], reports: list[RunReport]) -> None:
    from zerokit.report import html
    from zerokit.report.context import read_context

    if len(runs) == 1:
        html.write_html(path, reports[0], folders[0])
        return
    contexts = (read_context(folders[0]), read_context(folders[1]))
    html.write_page(path, html.render_comparison((reports[0], reports[1]), (runs[0], runs[1]), contexts))
