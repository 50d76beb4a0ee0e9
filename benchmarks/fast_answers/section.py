"""The part of docs/accuracy.md on estimates without a script, from the rows that ``compare`` wrote."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from zerokit.domain.trainers import NOT_FUSED, TRAINERS

LIMIT = 0.02
COMPARED = Path(__file__).with_name("compared.jsonl")
AT_THE_LIMIT = Path(__file__).with_name("at_the_limit.jsonl")
HEADING = "## Estimates without a script"


def error(row: dict[str, Any]) -> float:
    """Of the estimated peak."""
    return float(row["estimated_peak"]) / float(row["peak"]) - 1


def said(row: dict[str, Any]) -> str:
    """What the answer says that it does not count of the cell's trainer and method; empty: nothing."""
    trainer = TRAINERS[row["trainer"].removesuffix("-sft")]
    unfused = (NOT_FUSED,) if trainer.fuses_adapters and row["id"].endswith("z3") else ()
    return "; ".join((*trainer.notes(row["method"], experts=1), *unfused))


def rows() -> list[dict[str, Any]]:
    """The cells, as they were last compared."""
    return [json.loads(line) for line in COMPARED.read_text(encoding="utf-8").splitlines()]


def spread(found: Iterable[dict[str, Any]]) -> tuple[str, str, str]:
    """Median and largest error, and cells beyond the limit."""
    errors = [error(row) for row in found]
    absolute = [abs(one) for one in errors]
    beyond = sum(one > LIMIT for one in absolute)
    return f"{statistics.median(absolute):.2%}", f"{max(errors, key=abs):+.2%}", str(beyond)


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line for each trainer and method, and the cells beyond the limit by name."""
    lines = [
        "| trainer | method | cells | median error | largest | beyond 2 % |",
        "|---|---|---|---|---|---|",
    ]
    for key, group in itertools.groupby(found, key=lambda row: (row["trainer"], row["method"])):
        cells = list(group)
        lines.append(f"| {' | '.join((*key, str(len(cells)), *spread(cells)))} |")
    lines.append(f"| **all** | | {len(found)} | {' | '.join(spread(found))} |")
    outside = [f"`{row['id']}` {error(row):+.1%} ({said(row)})" for row in found if abs(error(row)) > LIMIT]
    if outside:
        lines += ["", f"Beyond it: {', '.join(outside)}."]
    return "\n".join(lines)


def at_the_limit() -> str:
    """What came of the plans that were launched on cards with no more than they require."""
    runs = [json.loads(line) for line in AT_THE_LIMIT.read_text(encoding="utf-8").splitlines()]
    alike = [run for run in runs if "unlike" not in run]
    errors = sorted(run["estimated_peak_bytes"] / run["measured_peak_bytes"] - 1 for run in alike)
    ran = sum(run["outcome"] == "ok" for run in runs)
    return (
        f"Of {len(runs)} plans made without their script and launched on H200s, on which a second process "
        f"left no more than the plan with its margin of 2 % requires, {ran} ran. In {len(runs) - len(alike)} "
        f"the run quantised the block constants too and the estimate did not; those of the others were "
        f"{errors[0]:+.1%} to {errors[-1]:+.1%} from the measured peak, half of them within "
        f"{statistics.median(map(abs, errors)):.3%}."
    )


def section() -> str:
    """The part with its heading."""
    found = rows()
    lowest = min(error(row) for row in found)
    by_version: dict[str, int] = {}
    for row in found:
        by_version[row["versions"]] = by_version.get(row["versions"], 0) + 1
    versions = "; ".join(f"{count} with {name}" for name, count in by_version.items())
    return f"""{HEADING}

`python -m benchmarks.fast_answers compare` asks `zerokit estimate --trainer NAME` for {len(found)} jobs of a
small dense model and a small mixture of experts, two layers each on two simulated GPUs, and holds the peak to
that of the rehearsed script: a bare DeepSpeed loop, Transformers' Trainer, TRL's own `sft.py`, `dpo.py` and
`reward.py`, axolotl and LLaMA-Factory. They are {{full, lora, qlora}} × {{dense, MoE}} × {{checkpointing on,
off}} × ZeRO {{0, 2, 3}}, as far as the combination exists and was rehearsed ({versions}). No estimate
is lower than the rehearsed peak by more than {max(0.0, -lowest):.2%}; a plan leaves 2 % of the card.

{table(found)}

{at_the_limit()}

A name is trainer, method, model, checkpointing (`ck`, `no`) and ZeRO stage. Rows are as long as a sequence
may be, and nearly all of each is a target. Estimates of DPO count prompts as targets too: with long prompts
it takes less. QLoRA under ZeRO-3 and packed rows are not in the matrix.
"""


def replaced(page: str) -> str:
    """The page with the part as it is now."""
    before, _, rest = page.partition(HEADING)
    _, mark, after = rest.partition("\n## ")
    return f"{before}{section()}{mark}{after}"
