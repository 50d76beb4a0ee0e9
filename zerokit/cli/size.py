"""``zerokit size``: find which GPUs, and how many, a model and job need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from zerokit.cli import options as shared_options
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
@click.option("--json", "as_json", is_flag=True, help="Print the sizes as JSON on standard output.")
def command(price: str | None, as_json: bool, **options: Any) -> None:
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
        write(_text(body))


def _text(body: dict[str, Any]) -> str:
    from zerokit.cli import prose
    from zerokit.planner.answer import never_measured

    is_priced = any(row["cost_per_1e9_tokens"] is not None for row in body["sizes"])
    lines = [
        *prose.wrap(f"Fewest GPUs for {body['model']}", later="  "),
        *prose.bullets(body["answer"]),
        prose.heading("Assumed"),
        *prose.bullets(body["assumptions"]),
        *([] if is_priced else prose.bullets(["costs are not compared: --price AMOUNT, per GPU-hour"])),
        "",
    ]
    lines += _table(body["sizes"])
    none = dict.fromkeys(part for row in body["sizes"] for part in row.get("measured_on_no_machine", ()))
    if none:
        told = f"{never_measured(none)} (times from data sheets)"
        lines += ["", *prose.wrap(told)]
    commands = body["next_by_method"]
    if commands:
        title = "Next, by method" if len(commands) > 1 else "Next"
        lines += [
            prose.heading(title),
            *(line for command in commands.values() for line in prose.command_lines(command)),
        ]
    if cheapest := body["next_for_lowest_cost_by_method"]:
        lines.append("  # or, for the lowest cost:")
        lines += [line for command in cheapest.values() for line in prose.command_lines(command)]
    return "\n".join(lines)


_TITLES = (
    ("GPU", "method", "offload", "GPUs", "per 1e9", "GPU-", "cost", "GiB per", "GiB per"),
    ("", "", "", "", "tokens", "hours", "", "GPU", "node"),
)
"""The columns: two lines of title. The first three are text; figures end flush, two spaces apart."""
_TEXTS = 3


def _table(sizes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line per kind of GPU, method and offload, with the strategy below it; with prices, cheapest first."""
    shown = [
        row for before, row in zip([None, *sizes], sizes, strict=False)
        if before is None or row != {**before, "offload_allowed": True}  # it may offload, and need not
    ]  # fmt: skip
    costs = [row["cost_per_1e9_tokens"] for row in shown]
    if any(cost is not None for cost in costs):
        shown.sort(key=lambda row: math.inf if (cost := row["cost_per_1e9_tokens"]) is None else cost)
    cells = [_cells(row) for row in shown]
    priced = any(row["cost_per_1e9_tokens"] is not None for row in shown)
    columns = [number for number, title in enumerate(_TITLES[0]) if priced or title != "cost"]
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
        table += [line.rstrip(), *_below(row["why"])]
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
        format_seconds(row["seconds_per_1e9_tokens"]),
        f"{row['gpu_hours_per_1e9_tokens']:,.0f}",
        "-" if cost is None else f"{cost:,.0f}",
        f"{row['min_vram_bytes'] / GIB:.1f}",
        f"{row['host_bytes_per_node'] / GIB:,.0f}",
    )


def _below(text: str) -> list[str]:
    """The plan of a row, or why there is none, under it."""
    from zerokit.cli import prose

    return prose.wrap(text, "    ", "    ")
