"""``zerokit size``: how many of which GPU a model and job need."""

from __future__ import annotations

import json
from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.errors import InputError, NothingFits
from zerokit.planner import values

SCHEMA = "zerokit.size/1"
TYPICAL = ("rtx-4090", "l40s", "a100-40gb", "a100-80gb", "h100-sxm-80gb", "h200", "b200", "mi300x")
METHODS = ("full", "lora", "qlora")


@click.command(
    "size",
    short_help="How many of which GPU a model and job need.",
    epilog="Example: zerokit size --params 175b --gpu a100-40gb --price 2.10",
)
@shared_options.shared
@click.option("--price", metavar="AMOUNT", help="Per GPU-hour; for several kinds NAME=AMOUNT,NAME=AMOUNT.")
@click.option("--json", "as_json", is_flag=True, help="Print the sizes as JSON on standard output.")
def command(price: str | None, as_json: bool, **options: Any) -> None:
    """Find the fewest GPUs of each kind that can do the job, and how long and how costly it is there.

    --gpu names one kind, or several with commas; without it, eight typical ones are compared. --method
    limits the answer to one method, --gpus the number of GPUs.
    """
    from zerokit.catalog import gpus as catalog
    from zerokit.search.sizing import sizes

    if options.get("device") == "cpu":
        raise InputError("--device cpu: size counts GPUs; leave it out")
    if options.get("nodes"):
        raise InputError("--nodes: size finds the number of nodes; leave it out")
    if options.get("no_calibration"):
        raise InputError("--no-calibration: size takes the catalogue's figures; leave it out")
    named = [part.strip() for part in str(options.get("gpu") or "").split(",") if part.strip()]
    if len(named) > 1 and options.get("vram"):
        raise InputError(f"--vram: {len(named)} kinds of --gpu have sizes of their own; name one kind")
    kinds: tuple[Any, ...]
    if named and options.get("vram"):
        kinds = (_resized(catalog.lookup(named[0]), options["vram"]),)
    elif options.get("vram"):
        kinds = (shared_options.read({**options, "gpus": None}).request.cluster.gpu,)
    else:
        kinds = tuple(catalog.lookup(name) for name in named or TYPICAL)
    first = {**options, "gpu": kinds[0].name, "gpus": None, "vram": None}
    read = shared_options.read(first)
    prices = _prices(price, [gpu.name for gpu in kinds])
    methods = (read.request.job.method,) if options.get("method") or read.request.job.inference else METHODS
    most = values.whole(options, "--gpus") or 1 << 14
    found = list(sizes(read.request, kinds, methods, most))
    if all(size.refused for size in found):
        raise InputError(found[-1].why)
    rows = [_row(size, prices.get(size.gpu.name)) for size in found]
    assumptions = [note for note in read.request.assumptions if "GPU" not in note]
    body = {"schema": SCHEMA, "model": read.model_name, "request": shared_options.given(options),
            "sizes": rows, "assumptions": assumptions}  # fmt: skip
    if as_json:
        click.echo(json.dumps(body, indent=1, allow_nan=False))
    else:
        click.echo(_text(body))
    if not any(row["gpus"] for row in rows):
        raise NothingFits(
            f"{read.model_name} fits on none of {', '.join(g.name for g in kinds)} up to {most} GPUs"
        )


def _resized(gpu: Any, vram: str) -> Any:
    from zerokit.units import parse_bytes

    return gpu.with_total_memory(parse_bytes(vram, "--vram"))


def _prices(text: str | None, names: list[str]) -> dict[str, float]:
    """GPU name → price of a GPU-hour.

    Raises:
        InputError: not a positive number, or a GPU that is not asked about.
    """
    if text is None:
        return {}
    from zerokit.catalog import gpus as catalog

    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, amount = part.rpartition("=")
        targets = [name.strip()] if equals else names
        try:
            value = float(amount)
        except ValueError:
            value = -1.0
        if not 0 < value < 1e6:
            raise InputError(
                f"--price {part.strip()}: expected a price per GPU-hour such as 2.10 or h200=3.5"
            )
        for target in targets:
            target = target if target in names else catalog.lookup(target).name
            if target not in names:
                raise InputError(
                    f"--price {part.strip()}: {target} is not asked about; {', '.join(names)} are"
                )
            found[target] = value
    return found


def _row(size: Any, price: float | None) -> dict[str, Any]:
    hours = size.gpu_hours_per_billion_tokens
    row: dict[str, Any] = {
        "gpu": size.gpu.name,
        "method": size.method,
        "offload_allowed": size.offload,
        "gpus": size.gpus or None,
        "nodes": size.nodes or None,
        "seconds_per_1e9_tokens": size.seconds_per_billion_tokens,
        "gpu_hours_per_1e9_tokens": hours,
        "cost_per_1e9_tokens": hours * price if hours is not None and price is not None else None,
    }
    if size.candidate is None:
        return {**row, "strategy": None, "why": size.why}
    from zerokit.planner.documents import degrees
    from zerokit.search.explain import strategy_words

    memory = size.candidate.memory
    return {
        **row,
        "min_vram_bytes": memory.min_vram_bytes,
        "host_bytes_per_node": memory.host_bytes_per_node,
        "strategy": degrees(size.candidate.strategy),
        "why": strategy_words(size.candidate.strategy),
    }


def _text(body: dict[str, Any]) -> str:
    from zerokit.cli import show
    from zerokit.units import format_gib, format_seconds

    lines = [
        f"Fewest GPUs for {body['model']}",
        show.heading("Assumed"),
        *show.bullets(body["assumptions"]),
        "",
    ]
    head = f"  {'GPU':<16}{'method':<8}{'offload':<9}{'GPUs':>6}{'per 1e9 tokens':>16}"
    lines.append(head + f"{'GPU-hours':>11}{'cost':>12}{'host RAM/node':>15}  plan")
    for row in body["sizes"]:
        offload = "allowed" if row["offload_allowed"] else "none"
        start = f"  {row['gpu']:<16}{row['method']:<8}{offload:<9}"
        if row["gpus"] is None:
            lines.append(f"{start}{'-':>6}  {row['why']}")
            continue
        cost = f"{row['cost_per_1e9_tokens']:,.0f}" if row["cost_per_1e9_tokens"] is not None else "-"
        lines.append(
            f"{start}{row['gpus']:>6}{format_seconds(row['seconds_per_1e9_tokens']):>16}"
            f"{row['gpu_hours_per_1e9_tokens']:>11,.0f}{cost:>12}"
            f"{format_gib(row['host_bytes_per_node'], 0):>15}  {row['why']}"
        )
    return "\n".join(lines)
