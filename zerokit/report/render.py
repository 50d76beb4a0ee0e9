"""A run's report for the terminal: a table of ranks, predicted beside measured, by phase, the outcome."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from zerokit.commands import command_text
from zerokit.domain.phases import PHASES
from zerokit.messages import command_lines, typed, wrapped
from zerokit.report.measured import had_engine, short_hosts, worst_rank
from zerokit.report.schema import Failure, Leak, Predicted, RankReport, RunReport, signal_name
from zerokit.report.words import (
    difference_lines,
    failed_in_load,
    failure_lines,
    failure_place,
    next_plan,
    percent,
    raised_at,
    seconds,
    shortened,
    size,
    sizes,
)
from zerokit.units import MIB, counted, format_seconds, times


def whole(line: str) -> Text:
    """A line with a path or a command that is copied: not broken, however narrow the terminal."""
    return Text(line, no_wrap=True, overflow="ignore")


def hanging(part: RenderableType, width: int) -> RenderableType:
    """A text with its lines broken between words, going on indented; what is no text, or whole, as it is. A
    command at the end of a line that is too long goes below it, in lines that a shell reads as one."""
    if not isinstance(part, Text) or part.no_wrap:
        return part
    return Text(wrapped(part.plain, width), style=part.style, no_wrap=True, overflow="ignore")


NOT_MEASURED, _NOT_MEASURED_SHORT = "not measured", "n/m"
_LEFT = frozenset(("host", "state", "peak in", "peak from"))  # columns; of the others numbers end alike
MOST_RANKS = 64
STACKS = "stacks-*.txt"
_MOST_SNAPSHOTS = 2
"""Where a hung run's folder has what each rank was doing."""
LOG_OF_RANK = "logs/rank-{:05d}.err.log"
"""What a rank wrote to its standard error, in the run folder."""
_PIPE_WIDTH = 160
_WIDE = 132  # columns that the table of ranks takes with everything in it
_STATE_STYLE = {"finished": "green", "stopped": "green", "running": "cyan", "failed": "bold red",
                "lost": "bold red", "terminated": "yellow"}  # fmt: skip


def print_report(
    report: RunReport | Mapping[str, Any],
    console: Console | None = None,
    *,
    traceback: bool = True,
    folder: Path | None = None,
) -> None:
    """Print a report to ``console`` (standard output by default); the first failure comes last, with its
    ``traceback`` or its message alone. ``folder``: of the run, for the commands that it names."""
    console = console or wide_console()
    renderables = parts(report, traceback=traceback, width=console.width, folder=folder)
    console.print(Group(*renderables), highlight=False, crop=False)  # what is copied stays whole


def wide_console() -> Console:
    """Standard output; a pipe gets lines of COLUMNS, or so wide that no table is folded."""
    console = Console()
    return console if console.is_terminal or os.environ.get("COLUMNS") else Console(width=_PIPE_WIDTH)


def parts(
    report: RunReport | Mapping[str, Any],
    *,
    traceback: bool = True,
    width: int = _PIPE_WIDTH,
    folder: Path | None = None,
) -> list[RenderableType]:
    """The report as renderables, in the order they are read, for a terminal of ``width`` columns."""
    run = RunReport.model_validate(report)
    tables: list[RenderableType] = []
    if failed_in_load(run):
        host = max((rank.peak_host_rss_bytes for rank in run.ranks), default=0)
        memory = f"; the largest process took {size(host)} of host memory" if host else ""
        tables.append(Text(f"No rank got past load: no steps to show{memory}."))
    else:
        tables += _tables(run, width)
    tables += [Text(line, style="yellow") for line in warnings(run)]
    tables.append(outcome_line(run))
    tables += [whole(typed(line)) for line in snapshot_lines(run, folder)]
    tables += [whole(line) for line in what_to_do(run, folder, width)]
    tables += [Text(line) for line in retry_lines(run)]
    tables += [whole(line) for line in wrapped(run.resume or "", width).splitlines()]
    if run.first_failure is not None:  # last, where people look
        tables += _failure(run.first_failure, traceback)
        log = None if folder is None else folder / LOG_OF_RANK.format(run.first_failure.rank)
        if traceback and log is not None and log.is_file():
            tables.append(whole(f"its output: {shlex.quote(str(log))}"))
    return [hanging(table, width) for table in tables]


def _tables(run: RunReport, width: int) -> list[RenderableType]:
    """Peaks and steps of the ranks, and predicted beside measured or each phase's peak."""
    tables = _rank_tables(run, width)
    tables += _predicted_alone(run)
    predicted = run.predicted_vs_measured
    if predicted:
        tables += _predicted_table(predicted)
        tables += [Text(line, style="yellow") for line in difference_lines(predicted)]
        if predicted.note and predicted.predicted_for is not None:
            tables.append(Text(predicted.note, style="dim"))
    elif any(rank.phases for rank in run.ranks):
        worst = worst_rank(run.ranks, measured)
        measure = "GPU memory allocated" if run.on_gpu else "host memory"
        title = f"By phase: {measure}, rank {worst.rank} ({_why_not_compared(run)})"
        table = new_table()
        table.add_column("phase")
        table.add_column("peak", justify="right")
        for name in ordered_phases(worst.phases):
            table.add_row(escape(name), size(worst.phases[name]))
        tables += _titled(title, table)
    return tables


def shown_ranks(run: RunReport) -> tuple[list[RankReport], int]:
    """The ranks worth showing, and how many were left out: those not finished, then the fullest."""
    if len(run.ranks) <= MOST_RANKS:
        return run.ranks, 0
    by_worth = sorted(run.ranks, key=lambda r: (r.state in ("finished", "stopped"), -(measured(r) or 0)))
    chosen = {rank.rank for rank in by_worth[:MOST_RANKS]}
    return [rank for rank in run.ranks if rank.rank in chosen], len(run.ranks) - MOST_RANKS


def measured(rank: RankReport) -> int | None:
    """The figure that a rank is compared by: GPU memory allocated, or host memory without a GPU."""
    if rank.device == "cuda" or rank.peak_allocated_bytes is not None:
        return rank.peak_allocated_bytes
    return rank.peak_host_rss_bytes


def gpu_size(rank: RankReport, value: int | None) -> str:
    """A figure of the GPU allocator; says where nothing measured it."""
    return NOT_MEASURED if value is None and rank.not_measured else size(value)


def new_table() -> Table:
    """An empty table in the report's style."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def _titled(title: str, table: Table) -> list[RenderableType]:
    return [Text(title, style="bold"), table]  # a table's own title is folded to its width


def rank_cells(run: RunReport, rank: RankReport) -> dict[str, Any]:
    """What is shown of a rank, as text, by the names of columns."""
    state = rank.state + (f" ({signal_name(rank.signal)})" if rank.signal else "")
    return {
        "rank": str(rank.rank), "host": rank.host,
        "state": Text(state, style=_STATE_STYLE.get(rank.state, "")),
        "predicted": size(run.expected_bytes.get(rank.rank)),
        "allocated": gpu_size(rank, rank.peak_allocated_bytes),
        "reserved": gpu_size(rank, rank.peak_reserved_bytes),
        "device used": size(rank.peak_device_used_bytes),
        "retries": "–" if rank.alloc_retries is None else str(rank.alloc_retries),
        "host memory": size(rank.peak_host_rss_bytes or None), peak_column(run): rank.peak_phase or "–",
        "steps": str(rank.steps), "step time": seconds(rank.median_step_seconds or None),
    }  # fmt: skip


def rank_table(
    names: Iterable[str],
    rows: Iterable[Mapping[str, Any]],
    headings: Mapping[str, str],
    *,
    narrow: bool = True,
) -> Table:
    """These columns of :func:`rank_cells`; ``headings``: of those that are not named by them."""
    table, names = new_table(), list(names)
    for name in names:
        justify: Literal["left", "right"] = "left" if name in _LEFT else "right"
        table.add_column(headings.get(name, name), justify=justify, no_wrap=narrow)
    for cells in rows:
        shown = (cells[name] for name in names)
        table.add_row(*(cell if isinstance(cell, Text) else escape(cell) for cell in shown))
    return table


def _rank_tables(run: RunReport, width: int) -> list[RenderableType]:
    """All in one table; where it is too wide in two of at most 80 columns: memory in GiB, hosts and steps."""
    ranks, omitted = shown_ranks(run)
    rows = [rank_cells(run, rank) for rank in ranks]
    more = f" ({omitted} more finished ranks in report.json)" if omitted else ""
    of_gpu = ["allocated", "reserved", "device used", "retries"] if run.on_gpu else []
    memory, last = ["predicted", *of_gpu, "host memory"], (peak_column(run), "steps", "step time")
    if width >= _WIDE:
        table = rank_table(["rank", "host", "state", *memory, *last], rows, {}, narrow=False)
        return _titled(f"Peak memory by rank{more}", table)
    hosts = short_hosts(rank.host for rank in run.ranks)
    on = f" on {next(iter(hosts.values()))}" if len(hosts) == 1 else ""
    for cells in rows:
        cells["host"] = hosts[cells["host"]]
        for name in memory:
            is_missing = cells[name] == NOT_MEASURED
            cells[name] = _NOT_MEASURED_SHORT if is_missing else cells[name].removesuffix(" GiB")
    headings = {"device used": "device", "host memory": "host"}
    retries = [name for name in memory if name == "retries"]
    names = ["rank", "state", *(name for name in memory if name != "retries")]
    of_memory = rank_table(names, rows, headings)
    of_memory.collapse_padding = True  # all of them with a signal and thousands of GiB
    steps = rank_table(["rank", *([] if on else ["host"]), *last, *retries], rows, {})
    tables = _titled(f"Peak memory by rank, GiB{on}{more}", of_memory)
    if any(rank.not_measured for rank in ranks):
        tables.append(Text(f"{_NOT_MEASURED_SHORT}: not measured", style="dim"))
    return tables + _titled("Steps", steps)


def peak_column(run: RunReport) -> str:
    """A process keeps what its tensors free: its memory stays near its peak from some phase on."""
    return "peak in" if run.on_gpu else "peak from"


def _predicted_alone(run: RunReport) -> list[RenderableType]:
    """Which ranks were predicted, where others were not."""
    predicted, expected = run.predicted_vs_measured, run.expected_bytes
    alone = [rank for rank, value in expected.items() if value is not None]
    if predicted is None or not alone or len(alone) == len(run.ranks):
        return []
    why = ": a rehearsal runs one of several alike" if predicted.predicted_by == "rehearsal" else ""
    names = ", ".join(map(str, alone))
    return [Text(f"predicted for rank{'s' if len(alone) > 1 else ''} {names} alone{why}", style="dim")]


def _why_not_compared(run: RunReport) -> str:
    if any(had_engine(rank.model_dump()) for rank in run.ranks):
        return "no plan to compare with"
    if any(rank.steps_counted_by == "optimizer" for rank in run.ranks):
        return "nothing to compare with: the script trains by itself"
    ended_well = all(rank.state in ("finished", "stopped") for rank in run.ranks)
    came_up = "came up: all of the run counts as load" if ended_well else "had come up"
    if any(rank.state == "running" for rank in run.ranks):
        came_up = "has come up yet"
    return f"nothing to compare with: no DeepSpeed engine {came_up}"


def _predicted_table(predicted: Predicted) -> list[RenderableType]:
    measure = "GPU memory allocated" if predicted.kind == "gpu_memory" else "host memory"
    table = new_table()
    table.add_column("")
    for name in ("predicted", "measured", "error"):
        table.add_column(name, justify="right")
    for row in predicted_rows(predicted):
        table.add_row(*map(escape, row))
    title = "Measured" if predicted.predicted_for is None else "Predicted beside measured"
    return _titled(f"{title}: {measure}, rank {predicted.rank}", table)


def predicted_rows(predicted: Predicted) -> list[tuple[str, str, str, str]]:
    """Name, predicted, measured and error of each line of the comparison, as text."""
    unmeasured = NOT_MEASURED if predicted.kind == "gpu_memory" else size(None)
    sizes = [(name, predicted.phases[name]) for name in ordered_phases(predicted.phases)]
    sizes += [("peak", predicted.peak_bytes)] if predicted.peak_bytes else []
    rows = [
        (
            name,
            size(pair.predicted),
            unmeasured if pair.measured is None else size(pair.measured),
            percent(pair.error_fraction),
        )
        for name, pair in sizes
    ]
    if step := predicted.step_seconds:
        row = ("step time", seconds(step.predicted), seconds(step.measured), percent(step.error_fraction))
        rows.append(row)
    return rows


def ordered_phases(names: Iterable[str]) -> list[str]:
    """Phases as a step runs through them, then those the script named."""
    present = list(names)
    return [name for name in PHASES if name in present] + [n for n in present if n not in PHASES]


def warnings(run: RunReport) -> list[str]:
    """What a reader should know: suspected leaks, retries, restarts, damaged files."""
    lines = []
    for rank in run.ranks:
        for leak in rank.leaks:
            lines.append(_leak_text(rank, leak))
        if rank.alloc_retries:
            lines.append(
                f"rank {rank.rank}: the allocator ran full and retried {times(rank.alloc_retries)}: each "
                "costs time, and the next allocation may fail"
            )
        if rank.restarts:
            lines.append(f"rank {rank.rank} was restarted {times(rank.restarts)}; the last life is shown")
    return lines[:20] + [f"problem: {text}" for text in _problems_apart(run)[0]][:20]


def _problems_apart(run: RunReport) -> tuple[list[str], list[str]]:
    """The problems that begin with that word, and, where others are problems too, the differences from the
    plan that stand below the table."""
    told = run.predicted_vs_measured.differences if run.predicted_vs_measured else []
    texts = [difference.text for difference in told]
    problems = [text for text in run.problems if text not in texts]
    return problems, texts if len(problems) < len(run.problems) else []


def _leak_text(rank: RankReport, leak: Leak) -> str:
    kind = "GPU" if leak.memory == "gpu" else "host"
    text = (
        f"rank {rank.rank}: suspected leak of {kind} memory: {leak.bytes_per_step / MIB:.2f} MiB more after "
        f"each step, {size(leak.growth_bytes)} in steps {leak.first_step} to {leak.last_step}"
    )
    total, used = rank.device_total_bytes, rank.peak_device_used_bytes
    if kind == "GPU" and leak.bytes_per_step > 0 and total and used:
        left = counted(round(max(0, total - used) / leak.bytes_per_step), "step")
        text += f"; the GPU is full in about {left}"
    return text


def _failure(failure: Failure, traceback: bool) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text(""),
        Text(f"First failure: {failure_place(failure)}", style="bold red"),
    ]
    location = raised_at(failure)
    lines += [Text(f"  {location}")] if location else []
    lines += [Text(f"  {text}") for text in sizes(failure)]
    for said in failure_lines(failure):
        lines += [Text("  " + line) for line in (typed(said.text), *(f"  {row}" for row in said.rows))]
    lines += [Text(f"  {typed(text)}") for text in next_plan(failure)]
    text = ((failure.traceback if traceback else None) or failure.error or "").rstrip()
    lines.append(Text(text if traceback else shortened(text)))
    return lines


def retry_lines(run: RunReport) -> list[str]:
    """How the further attempts ended, one line each."""
    lines = [f"Again after the run in {run.retry_of}"] if run.retry_of else []
    for number, retry in enumerate(run.retries, 1):
        changes = f" ({retry.changes})" if retry.changes else ""
        lines.append(f"Attempt {number + 1} in {retry.folder}{changes}: {retry.outcome.words}")
    return lines


def snapshot_lines(run: RunReport, folder: Path | None = None) -> list[str]:
    """How to explain the memory snapshots that ranks wrote, two, the failed rank's first; how many more there
    are."""
    failed = run.first_failure.rank if run.first_failure is not None else None
    several = len({rank.host for rank in run.ranks}) > 1
    found = [
        (rank, note) for rank in run.ranks for note in rank.notes if note.get("kind") == "memory_snapshot"
    ]
    found.sort(key=lambda one: one[0].rank != failed)
    lines = []
    for rank, note in found[:_MOST_SNAPSHOTS]:
        path = str((folder or Path("RUN")) / str(note.get("file")))
        error = note.get("error")
        told = f"could not be written: {error}" if error else command_text("explain", path)
        host = f" on {rank.host}" if several else ""
        lines.append(f"memory snapshot of rank {rank.rank}{host} ({note.get('label')}): {told}")
    more = len(found) - _MOST_SNAPSHOTS
    return [*lines, f"{more} more beside them"] if more > 0 else lines


def what_to_do(run: RunReport, folder: Path | None, width: int) -> list[str]:
    """After a run that was not as planned, the command that plans for what ran (by the plan that the run's
    ``folder`` keeps, and into the folder that it came from); after a hang, where to look."""
    if run.outcome == "hung":
        return [f"Python stacks of the ranks: {shlex.quote(str(folder or 'RUN'))}/{STACKS}"]
    predicted = run.predicted_vs_measured
    if run.outcome != "not_as_planned" or predicted is None or not predicted.plan_options:
        return []
    into = [] if predicted.plan_folder is None else ["--out", predicted.plan_folder]
    recipe = str((folder or Path("RUN")) / "plan.yaml")
    again = command_text("plan", "--recipe", recipe, *into, *predicted.plan_options)
    return [
        "What to do: make the script use the plan's values, or plan for what it does:",
        *command_lines(again, width),
    ]


def outcome_line(run: RunReport) -> Text:
    """The last line: how it ended, in words."""
    good = run.outcome in ("ok", "stopped", "running")
    meaning = "" if run.outcome.text.removeprefix("a ") == run.outcome.words else run.outcome.text
    took = format_seconds(run.elapsed_seconds) if run.elapsed_seconds else ""
    code = "" if run.outcome == "running" else f"exit code {run.exit_code}"
    details = "; ".join(filter(None, (", ".join(filter(None, (meaning, took))), code)))
    text = f"Outcome: {run.outcome.words} ({details})"
    if run.problems:
        problems, differences = _problems_apart(run)
        counts = [counted(len(problems), "problem")] if problems else []
        if differences:
            counts.append(counted(len(differences), "difference from the plan", "differences from the plan"))
        text += f", with {' and '.join(counts)} named above"
    return Text(text, style="bold red" if not good else "bold yellow" if run.problems else "bold green")
