"""``zerokit size``: find which GPUs, and how many, a model and job need."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli.base import Command
from zerokit.cli.say import say
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
    click.echo(json.dumps(body, indent=1, allow_nan=False) if as_json else _text(body))
    if result.nothing_fits is not None:
        raise NothingFits(result.nothing_fits)


def _text(body: dict[str, Any]) -> str:
    from zerokit.cli import prose
    from zerokit.planner.answer import never_measured
    from zerokit.units import format_gib, format_seconds

    lines = [
        f"Fewest GPUs for {body['model']}",
        *prose.bullets(body["answer"]),
        prose.heading("Assumed"),
        *prose.bullets(body["assumptions"]),
        "",
    ]
    head = f"  {'GPU':<15}{'method':<7}{'offload':<8}{'GPUs':>5}{'per 1e9':>9}{'GPU-hours':>11}"
    lines += [f"{head}{'cost':>9}{'host/node':>11}", f"{'':37}{'tokens':>9}"]
    for before, row in zip([None, *body["sizes"]], body["sizes"], strict=False):
        if before is not None and row == {**before, "offload_allowed": True}:
            continue  # it may offload, and need not
        offload = "allowed" if row["offload_allowed"] else "none"
        start = f"  {row['shown_as']:<15}{row['method']:<7}{offload:<8}"
        if row["gpus"] is None:
            lines += [f"{start}{'-':>5}", *_below(row["why"])]
            continue
        cost = f"{row['cost_per_1e9_tokens']:,.0f}" if row["cost_per_1e9_tokens"] is not None else "-"
        lines.append(
            f"{start}{row['gpus']:>5}{format_seconds(row['seconds_per_1e9_tokens']):>9}"
            f"{row['gpu_hours_per_1e9_tokens']:>11,.0f}{cost:>9}"
            f"{format_gib(row['host_bytes_per_node'], 0):>11}"
        )
        lines += _below(row["why"])
    none = dict.fromkeys(part for row in body["sizes"] for part in row.get("measured_on_no_machine", ()))
    if none:
        lines += ["", *textwrap.wrap(f"{never_measured(none)} (times from data sheets)", prose.width())]
    commands = body["next_by_method"]
    if commands:
        title = "Next, by method" if len(commands) > 1 else "Next"
        lines += [prose.heading(title), *(f"  {command}" for command in commands.values())]
    return "\n".join(lines)


def _below(text: str) -> list[str]:
    """The plan of a row, or why there is none, under it."""
    from zerokit.cli import prose

    return textwrap.wrap(text, prose.width(), initial_indent="    ", subsequent_indent="    ",
                         break_on_hyphens=False)  # fmt: skip
