"""``zerokit size``: find which GPUs, and how many, a model and job need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli import prose
from zerokit.cli.base import Command
from zerokit.cli.say import say, write, write_json
from zerokit.errors import NothingFits


@click.command(
    "size",
    cls=Command,
    examples=(
        ("Which GPU for LoRA on 14B", "zerokit size --params 14b --method lora"),
        ("How many of one kind, and the cost", "zerokit size --params 175b --gpu a100-40gb --price 2.10"),
    ),
)
@shared_options.shared("size")
@click.option("--price", metavar="AMOUNT", help="Per GPU-hour; for several kinds NAME=AMOUNT,NAME=AMOUNT.")
@shared_options.explain
@click.option("--json", "as_json", is_flag=True, help="Print the sizes as JSON on standard output.")
def command(price: str | None, explain: bool, as_json: bool, **options: Any) -> None:
    """Find the fewest GPUs of each kind that can do the job, and how long and how costly it is there.

    --gpu names one kind, or several with commas; without it, eight typical ones are compared. --method
    limits the answer to the methods that it names, --gpus the number of GPUs.
    """
    from zerokit import planner

    result = planner.size(options, price=price, say=say)
    body = result.to_dict()
    if as_json:
        write_json(body)
    if result.misfit is not None:
        raise NothingFits(result.misfit)
    if not as_json:
        write(_text(body, explain=explain))


_SCREEN = 20
"""Lines of the answer without ``--explain``."""


def _text(body: dict[str, Any], *, explain: bool) -> str:
    from zerokit.planner.answer import never_measured

    is_priced = any(row["cost_per_1e9_tokens"] is not None for row in body["sizes"])
    unpriced = [] if is_priced else prose.bullets(["costs are not compared: --price AMOUNT, per GPU-hour"])
    lines = [*prose.wrap(f"Fewest GPUs for {body['model']}", later="  "), *prose.bullets(body["answer"])]
    commands = body["next_by_method"]
    following = []
    if commands:
        following = [prose.heading("Next, by method" if len(commands) > 1 else "Next")]
        following += [line for command in commands.values() for line in prose.command_lines(command)]
    if cheapest := body["next_for_lowest_cost_by_method"]:
        following.append("  # or, for the lowest cost:")
        following += [line for command in cheapest.values() for line in prose.command_lines(command)]
    rows = _in_order(body["sizes"])
    if not explain:
        room = _SCREEN - len("\n".join([*lines, *unpriced, *following]).splitlines()) - len(_TITLES) - 2
        shown = rows if len(rows) <= room else rows[: max(3, room)]
        more = f"{len(rows) - len(shown)} more rows, strategies" if len(shown) < len(rows) else "strategies"
        closing = f"--explain adds {more} and what was assumed"
        return "\n".join([*lines, *unpriced, "", *_table(shown, rows), *following, f"  {closing}"])
    lines += [prose.heading("Assumed"), *prose.bullets(body["assumptions"]), *unpriced, ""]
    lines += _table(rows, rows, strategies=True)
    none = dict.fromkeys(part for row in rows for part in row.get("measured_on_no_machine", ()))
    if none:
        lines += ["", *prose.wrap(f"{never_measured(none)} (times from data sheets)")]
    return "\n".join([*lines, *following])


_TITLES = (
    ("GPU", "method", "offload", "GPUs", "batch", "per 1e9", "GPU-", "cost", "GiB per", "GiB per"),
    ("", "", "", "", "", "tokens", "hours", "", "GPU", "node"),
)
"""The columns: two lines of title. The first three are text; figures end flush, two spaces apart."""
_TEXTS = 3


def _in_order(sizes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that differ: with prices the cheapest first, else the fewest GPUs, then GPU-hours."""
    rows = [
        row for before, row in zip([None, *sizes], sizes, strict=False)
        if before is None or row != {**before, "offload_allowed": True}  # it may offload, and need not
    ]  # fmt: skip
    keys: tuple[str, ...] = ("gpus", "gpu_hours_per_1e9_tokens")
    if any(row["cost_per_1e9_tokens"] is not None for row in rows):
        keys = ("cost_per_1e9_tokens", *keys)
    return sorted(rows, key=lambda row: [math.inf if row[key] is None else row[key] for key in keys])


def _table(
    shown: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], *, strategies: bool = False
) -> list[str]:
    """A line per kind of GPU, method and offload, with the strategy below it; what may not fit, or hardly
    does, says so. ``rows``: all that there are, which decide the columns."""
    cells = [_cells(row) for row in shown]
    left_out = set()
    if all(row["cost_per_1e9_tokens"] is None for row in rows):
        left_out.add("cost")
    if strategies or len({row["global_batch"] for row in rows if row.get("global_batch")}) < 2:
        left_out.add("batch")
    columns = [number for number, title in enumerate(_TITLES[0]) if title not in left_out]
    widths = {
        number: max(
            *(len(title[number]) for title in _TITLES),
            *(len(row[number]) + (number >= _TEXTS) for row in cells),
        )
        for number in columns
    }
    lines = [
        "  " + " ".join(f"{row[n]:{'<' if n < _TEXTS else '>'}{width}}" for n, width in widths.items())
        for row in (*_TITLES, *cells)
    ]
    table = [line.rstrip() for line in lines[: len(_TITLES)]]
    for line, row in zip(lines[len(_TITLES) :], shown, strict=True):
        remark = row.get("remark") or ""
        mark = f" {remark.partition(':')[0]}" if remark and not strategies else ""
        below = strategies or row["gpus"] is None
        table += [line.rstrip() + mark, *(prose.wrap(row["why"], "    ", "    ") if below else ())]
    return table


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    from zerokit.units import GIB, format_seconds

    asked = (row["shown_as"], row["method"], "allowed" if row["offload_allowed"] else "none")
    if row["gpus"] is None:
        return (*asked, "-", *[""] * (len(_TITLES[0]) - _TEXTS - 1))
    cost = row["cost_per_1e9_tokens"]
    return (
        *asked,
        str(row["gpus"]),
        str(row["global_batch"]),
        format_seconds(row["seconds_per_1e9_tokens"]),
        f"{row['gpu_hours_per_1e9_tokens']:,.0f}",
        "-" if cost is None else f"{cost:,.0f}",
        f"{row['min_vram_bytes'] / GIB:.1f}",
        f"{row['host_bytes_per_node'] / GIB:,.0f}",
    )
