"""Plan quality: the planner's choice against strategies that were run, job by job.

    python -m benchmarks.measure.quality prepare FOLDER                      # no GPU: makes the plans
    python -m benchmarks.measure.launch FOLDER/cases.json -o ROWS.jsonl --at-once 12
    python -m benchmarks.measure.quality table ROWS.jsonl

Each job is planned for two cards. For each, the planner's choice is run with the allocator held to the card,
and its next two, and strategies that people use by hand. Runs have the GPUs to themselves in turn. A
strategy counts as possible on a card when its measured peak leaves the allocator what it needs there.
Regret: step time of the choice over that of the fastest possible strategy, less 1.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import planned
from benchmarks.measure.host import GIB, Case
from benchmarks.measure.trials import CARDS_MIB
from zerokit.core.memory.fits import EXPANDABLE_BYTES

STEPS = 5
WARM_UP = 2
"""Steps that are not timed: kernels are chosen in the first, and ZeRO-3 prefetches from its third forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A job and the cards it is planned for. ``by_hand``: strategies as options of ``zerokit plan``."""

    name: str
    model: str
    cards: tuple[int, int]
    by_hand: tuple[Mapping[str, object], ...]
    gpus: int = 4
    seq_len: int = 2048
    global_batch: int = 32
    options: Mapping[str, object] = field(default_factory=dict)


def _hand(zero: int, micro: int, checkpointing: str = "none", **more: object) -> dict[str, object]:
    return {"zero": zero, "micro-batch": micro, "checkpointing": checkpointing, **more}


COMPARISONS = (
    Comparison(
        name="1b-full",
        model="llama-3.2-1b",
        cards=(16, 40),
        global_batch=64,
        by_hand=(
            _hand(1, 1), _hand(1, 4), _hand(2, 2), _hand(2, 4), _hand(3, 1), _hand(3, 4),
            _hand(0, 4, "full"), _hand(1, 8, "full"), _hand(2, 8, "full"), _hand(3, 8, "full"),
            _hand(1, 4, tp=2),
        ),
    ),
    Comparison(
        name="8b-lora",
        model="llama-3.1-8b",
        cards=(24, 48),
        options={"method": "lora", "lora-rank": 16},
        by_hand=(
            _hand(0, 1), _hand(1, 2), _hand(2, 2), _hand(3, 2), _hand(0, 4, "full"),
            _hand(1, 8, "full"), _hand(2, 4, "full"), _hand(3, 4, "full"), _hand(3, 8, "full"),
        ),
    ),
    Comparison(
        name="8b-full",
        model="llama-3.1-8b",
        cards=(48, 80),
        by_hand=(
            _hand(1, 1), _hand(2, 1), _hand(3, 1), _hand(3, 2), _hand(1, 4, "full"), _hand(2, 4, "full"),
            _hand(3, 2, "full"), _hand(3, 4, "full"), _hand(3, 8, "full"), _hand(1, 2, tp=2),
        ),
    ),
)  # fmt: skip


def usual(comparison: Comparison, model: planned.Subject, card: int) -> dict[str, object]:
    """What a comparison asks of ``zerokit plan``."""
    return {
        "model": model.argument,
        "gpu": "h200",
        "vram": f"{CARDS_MIB[card]}MiB",
        "gpus": comparison.gpus,
        "seq-len": comparison.seq_len,
        "global-batch": comparison.global_batch,
        "sp": 1,  # Ulysses needs a script that splits the sequences
        **comparison.options,
    }


def prepare(comparison: Comparison, folder: Path) -> list[Case]:
    """Every strategy to run, once; the planner's own first."""
    model = planned.subject(comparison.model, folder)
    found: dict[str, Case] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for card in comparison.cards:
            options = usual(comparison, model, card)
            answer = planned.ask_plan({**options, "top": 3}, Path(scratch))
            if answer is None:
                raise SystemExit(f"{comparison.name}: nothing fits {card} GB")
            for rank, strategy in enumerate([answer["chosen"], *answer["alternatives"]], 1):
                case = _add(found, comparison, model, options, strategy)
                case["about"]["planned"][str(card)] = rank
                if rank == 1:  # the smaller card first: it holds the larger's choice to less
                    limit = planned.allocator_limit(
                        planned.card(CARDS_MIB[card]), strategy["deepspeed_config"], comparison.gpus
                    )
                    case["cap_bytes"] = min(limit, case["cap_bytes"] or limit)
        whole = usual(comparison, model, 141)
        for by_hand in comparison.by_hand:
            pinned = {**whole, "offload-optimizer": "none", "offload-param": "none", "tp": 1, **by_hand}
            answer = planned.ask_plan(pinned, Path(scratch))
            if answer is None:
                print(f"{comparison.name}: {dict(by_hand)} does not fit 141 GB", file=sys.stderr)
                continue
            _add(found, comparison, model, pinned, answer["chosen"])
    return list(found.values())


def _add(
    found: dict[str, Case],
    comparison: Comparison,
    model: planned.Subject,
    options: planned.Options,
    strategy: Mapping[str, Any],
) -> Case:
    """The strategy's case: a new one, or the one that is there already."""
    config, checkpointing = strategy["deepspeed_config"], strategy["activation_checkpointing"]
    key = json.dumps([config, checkpointing], sort_keys=True)
    if key not in found:
        name = f"quality.{comparison.name}.{len(found):02d}.{words(strategy)}"
        about = {"comparison": comparison.name, "cards": list(comparison.cards), "planned": {}}
        found[key] = planned.case_of(
            name, model, options, config, checkpointing=checkpointing, estimate=strategy["estimate"],
            steps=STEPS, cap_bytes=None, gate=True, about=about,
        )  # fmt: skip
    return found[key]


def words(strategy: Mapping[str, Any]) -> str:
    """A strategy in a few letters: ``z3.b4.ck``."""
    parts = [f"z{strategy['zero_stage']}", f"b{strategy['micro_batch']}"]
    if strategy["activation_checkpointing"] != "none":
        parts.append("ck")
    if strategy["tensor_parallel"] > 1:
        parts.append(f"tp{strategy['tensor_parallel']}")
    offloads = (("offload_optimizer", "opt"), ("offload_param", "par"))
    parts += [f"{short}-{strategy[key]}" for key, short in offloads if strategy[key] != "none"]
    return ".".join(parts)


# ------------------------------------------------------------------ the table


def step_seconds(row: Mapping[str, Any]) -> float | None:
    """Median step after the warm-up; ``None``: it did not get there."""
    timed = (row["step_seconds_rank0"] or [])[WARM_UP:]
    return statistics.median(timed) if row["ok"] and timed else None


def possible(row: Mapping[str, Any], card: int) -> bool:
    """Whether a run's measured peak leaves the allocator what it needs on a card."""
    if step_seconds(row) is None:
        return False
    limit = planned.allocator_limit(planned.card(CARDS_MIB[card]), row["deepspeed_config"], row["world_size"])
    peak = max(peak for peak in row["peak_allocated_bytes"] if peak)
    held = row["cap_bytes"] is not None and row["cap_bytes"] <= limit  # it ran in less
    return held or peak + EXPANDABLE_BYTES <= limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A job on a card: how good the choice was. Seconds; fractions."""

    name: str
    card: int
    tried: int
    choice: Mapping[str, Any]
    best: Mapping[str, Any]
    regret: float
    regret_of_three: float


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """One for each job and card whose choice has a row."""
    found = []
    for name, group in _groups(rows):
        for card in group[0]["about"]["cards"]:
            ranked = {row["about"]["planned"].get(str(card)): row for row in group}
            choice = ranked.get(1)
            able = [row for row in group if possible(row, card)]
            if choice is None or step_seconds(choice) is None or choice not in able:
                continue
            times = {id(row): step_seconds(row) or 0.0 for row in able}
            best = min(able, key=lambda row: times[id(row)])
            three = [times[id(row)] for rank, row in ranked.items() if rank and id(row) in times]
            fastest = times[id(best)]
            found.append(
                Verdict(
                    name=name, card=card, tried=len(able), choice=choice, best=best,
                    regret=times[id(choice)] / fastest - 1, regret_of_three=min(three) / fastest - 1,
                )
            )  # fmt: skip
    return found


def _groups(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        name = (row.get("about") or {}).get("comparison")
        if name:
            groups.setdefault(name, []).append(row)
    return sorted(groups.items())


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every run, then the regrets, then the error of the predicted times."""
    lines = [f"{'run':<44} {'peak GiB':>8} {'limit':>6} {'step s':>8} {'predicted':>9} {'error':>7}"]
    errors = []
    for _, group in _groups(rows):
        for row in sorted(group, key=lambda row: step_seconds(row) or 1e9):
            measured, said = step_seconds(row), row["expected"]["step_seconds"]
            limit = f"{row['cap_bytes'] / GIB:.1f}" if row["cap_bytes"] else "-"
            if measured is None:
                lines.append(
                    f"{row['id'][8:52]:<44} {'-':>8} {limit:>6} {'out of memory' if row['oom'] else 'failed'}"
                )
                continue
            errors.append(said / measured - 1)
            peak = max(peak for peak in row["peak_allocated_bytes"] if peak) / GIB
            seconds = f"{measured:>8.3f} {said:>9.3f} {errors[-1]:>+7.1%}"
            lines.append(f"{row['id'][8:52]:<44} {peak:>8.2f} {limit:>6} {seconds}")
    lines.append("")
    lines.append(
        f"{'job on card':<16} {'possible':>8}  {'choice':<28} {'fastest':<28} {'regret':>7} {'of 3':>7}"
    )
    judged = verdicts(rows)
    for one in judged:
        place = f"{one.name} {one.card} GB"
        lines.append(
            f"{place:<16} {one.tried:>8}  {_short(one.choice):<28} {_short(one.best):<28} {one.regret:>7.1%} "
            f"{one.regret_of_three:>7.1%}"
        )
    if judged:
        lines.append(
            f"mean regret {statistics.mean(one.regret for one in judged):.1%}; with its three best tried: "
            f"{statistics.mean(one.regret_of_three for one in judged):.1%}"
        )
    if errors:
        lines.append(
            f"step time: mean |error| {statistics.mean(map(abs, errors)):.1%}, "
            f"bias {statistics.mean(errors):+.1%}, {len(errors)} runs"
        )
    return "\n".join(lines)


def _short(row: Mapping[str, Any]) -> str:
    return str(row["id"]).split(".", 3)[-1][:28]


def main() -> int:
    """Prepare the cases, list the jobs, or print the table."""
    options = planned.command_line(__doc__, "jobs").parse_args()
    if options.command == "list":
        for one in COMPARISONS:
            print(f"{one.name}: {one.model}, {one.gpus} GPUs, cards {one.cards}, {len(one.by_hand)} by hand")
        return 0
    if options.command == "table":
        print(table(planned.rows_of(options.rows)))
        return 0
    made: list[Case] = []
    for one in COMPARISONS:
        if options.only in one.name:
            made += prepare(one, options.folder)
    for case in made:
        said = case["expected"]
        peak = max(said["peak_allocated_bytes"]) / GIB
        print(f"{case['id']}: {peak:.1f} GiB, {said['step_seconds']:.2f} s, {case['about']['planned']}")
    options.folder.mkdir(parents=True, exist_ok=True)
    planned.write_cases(made, options.folder / "cases.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
