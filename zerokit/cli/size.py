"""``zerokit size``: find which GPUs, and how many, a model and job need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli import prose
from zerokit.cli.base import WORDS, Command
from zerokit.cli.say import say, write, write_json
from zerokit.errors import NothingFits
from zerokit.notes import with_id
from zerokit.trainer_files import NOTES as OF_FILE
from zerokit.units import counted

if TYPE_CHECKING:
    from zerokit.planner.size_result import FewestGpus, SizeResult


@click.command(
    "size",
    cls=Command,
    examples=(
        ("Which GPU for LoRA on 14B", "zerokit size --params 14b --method lora"),
        ("How many of one kind, and the cost", "zerokit size --params 175b --gpu a100-40gb --price 2.10"),
        ("What a job costs at the least", "zerokit size --model llama-3.1-8b --tokens 200m --cheapest"),
    ),
)
@shared_options.shared("size")
@click.option(
    "--price",
    metavar="AMOUNT",
    help="Per GPU-hour, for several kinds NAME=AMOUNT,NAME=AMOUNT. [default: the cheapest provider's]",
)
@click.option("--tokens", metavar="N", help="What the job trains on: time and cost of all of it.")
@click.option("--cheapest", is_flag=True, help="Order by cost, the lowest first, and name it on spot, too.")
@shared_options.trainer_file
@shared_options.explain
@click.option("--json", "as_json", is_flag=True, help="Print the sizes as JSON on standard output.")
def command(
    price: str | None, tokens: str | None, cheapest: bool, file: str | None, kind: str | None,
    explain: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Find the fewest GPUs of each kind that can do the job, and how long and how costly it is there.

    --gpu names one kind, or several with commas; without it, eight typical ones are compared. --method
    limits the answer to the methods that it names, --gpus the number of GPUs. Costs are those of training
    alone, on demand, where instances with so many GPUs are cheapest; `zerokit gpus --update-prices` fetches
    newer prices.
    """
    from zerokit import planner

    read = shared_options.read_file(file, kind, click.get_current_context().meta[WORDS])
    result = planner.size(options, file=read, price=price, tokens=tokens, cheapest=cheapest, say=say)
    if as_json:
        write_json(result.to_dict())
    if result.misfit is not None:
        raise NothingFits(result.misfit)
    if not as_json:
        write(_text(result, explain=explain))


_SCREEN = 18
"""Lines of the answer without ``--explain``, beside titles, an empty line and the closing one."""


def _text(result: SizeResult, *, explain: bool) -> str:
    from zerokit.planner.answer import never_measured

    is_priced = any(row.cost_per_1e9_tokens is not None for row in result.sizes)
    unpriced = [] if is_priced else prose.bullets(["costs are not compared: --price AMOUNT, per GPU-hour"])
    told = with_id(result.notes, "longer-without-engine", *OF_FILE)
    unpriced += prose.bullets([] if explain else with_id(result.notes, "prices"))
    lines = [*prose.wrap(f"Fewest GPUs for {result.model_name}", later="  "), *prose.bullets(result.answer)]
    lines += prose.bullets(told)
    commands, others = result.next_in_order
    following = []
    if commands:
        following = [prose.heading("Next, by method" if len(commands) > 1 else "Next")]
        following += [line for command in commands.values() for line in prose.command_lines(command)]
    if others:
        following.append(f"  # or, for the {'fewest GPUs' if result.cheapest else 'lowest cost'}:")
        following += [line for command in others.values() for line in prose.command_lines(command)]
    rows = _in_order(result.sizes, by_cost=result.cheapest or (is_priced and result.prices is None))
    titles = [title.partition("\n")[::2] for title in result.titles]
    if not explain:
        room = _SCREEN - len("\n".join([*lines, *unpriced, *following]).splitlines())
        shown = rows if len(rows) <= room else rows[: max(3, room)]
        more = f"{counted(len(rows) - len(shown), 'more row')}, " if len(shown) < len(rows) else ""
        closing = f"--explain adds {more}strategies and what was assumed"
        table = _table(titles, shown, rows)
        return "\n".join([*lines, *unpriced, "", *table, *following, f"  {closing}"])
    lines += [prose.heading("Assumed"), *prose.bullets(result.notes), *unpriced, ""]
    lines += _table(titles, rows, rows, strategies=True)
    none = dict.fromkeys(part for row in rows for part in row.measured_on_no_machine)
    if none:
        lines += ["", *prose.wrap(f"{never_measured(none)} (times from data sheets)")]
    return "\n".join([*lines, *following])


_TEXTS = 3
"""Columns of text, the first; figures end flush, two spaces apart."""


def _in_order(sizes: Sequence[FewestGpus], *, by_cost: bool) -> list[FewestGpus]:
    """The rows that differ: the fewest GPUs first, then GPU-hours; ``by_cost``: the cheapest before them."""
    rows = [
        row for before, row in zip([None, *sizes], sizes, strict=False)
        if before is None or row.to_dict() != {**before.to_dict(), "offload_allowed": True}  # it need not
    ]  # fmt: skip

    def key(row: FewestGpus) -> list[float]:
        costs = [row.cost_per_1e9_tokens] if by_cost else []
        figures = [*costs, row.gpus, row.gpu_hours_per_1e9_tokens]
        return [math.inf if figure is None else figure for figure in figures]

    return sorted(rows, key=key)


def _table(
    titles: Sequence[Sequence[str]], shown: Sequence[FewestGpus], rows: Sequence[FewestGpus],
    *, strategies: bool = False,
) -> list[str]:  # fmt: skip
    """A line per kind of GPU, method and offload, with the strategy below it; what may not fit, or hardly
    does, says so. ``rows``: all that there are, which decide the columns."""
    lined = [*zip(*titles, strict=True), *(row.cells() for row in shown)]
    left_out = {"cost"} if all(row.cost_per_1e9_tokens is None for row in rows) else set()
    if strategies or len({row.global_batch for row in rows if row.global_batch}) < 2:
        left_out.add("batch")
    widths = {
        number: max(len(row[number]) + (number >= _TEXTS and at >= 2) for at, row in enumerate(lined))
        for number, title in enumerate(lined[0])
        if title not in left_out
    }
    lines = [
        "  " + " ".join(f"{row[n]:{'<' if n < _TEXTS else '>'}{width}}" for n, width in widths.items())
        for row in lined
    ]
    table = [line.rstrip() for line in lines[:2]]
    for line, row in zip(lines[2:], shown, strict=True):
        mark = f" {row.remark.partition(':')[0]}" if row.remark and not strategies else ""
        below = strategies or row.gpus is None
        why = row.size.why or row.why  # the former with its arguments marked
        table += [line.rstrip() + mark, *(prose.wrap(why, "    ", "    ") if below else ())]
    return table
