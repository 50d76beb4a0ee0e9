"""Plan quality: the planner's choice against strategies that were run, job by job.

    python -m benchmarks.measure.quality prepare FOLDER --only .w8           # no GPU: makes the plans
    python -m benchmarks.measure.launch FOLDER/cases.json -o ROWS.jsonl --at-once 12
    python -m benchmarks.measure.quality table ROWS.jsonl

Each job is planned for two cards. For each, the planner's three best are run, and strategies that people use
by hand, all with the allocator held to the card. Runs have the GPUs to themselves in turn. Regret: step time
of the choice over that of the fastest strategy possible on the card, less 1. A run held to the smaller card
counts for the larger one too; a strategy that the smaller leaves little room is run on both where it may be
the fastest, because the allocator loses time there.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import planned
from benchmarks.measure.host import GIB, Case
from benchmarks.measure.quality_jobs import COMPARISONS, Comparison
from benchmarks.measure.trials import CARDS_MIB
from zerokit.memory.card import EXPANDABLE_BYTES

STEPS = 4
WARM_UP = 2
"""Steps that are not timed: kernels are chosen in the first, and ZeRO-3 prefetches from its third forward."""

ROOM_BYTES = 8 * GIB
"""With so much above its peak the allocator loses no time (most seen: 7 GiB)."""

RIVAL = 1.3
"""Predicted slower than the choice by more than that, a strategy is not run on the larger card too."""


def usual(comparison: Comparison, model: planned.Subject, card: int) -> dict[str, object]:
    """What a comparison asks of ``zerokit plan``."""
    return {
        "model": model.argument,
        "gpu": "h200",
        "vram": f"{CARDS_MIB[card]}MiB",
        "gpus": comparison.gpus,
        "seq-len": comparison.seq_len,
        "global-batch": comparison.batch_per_gpu * comparison.gpus,
        "sp": 1,  # Ulysses needs a script that splits the sequences
        **comparison.options,
    }


def prepare(comparison: Comparison, folder: Path) -> list[Case]:
    """The runs that judge the planner's choices, each with its allocator held to a card.

    The planner's own come first, then the likely best.

    Raises:
        SystemExit: nothing fits a card.
    """
    trials = Trials(comparison, planned.subject(comparison.model, folder))
    with tempfile.TemporaryDirectory() as scratch:
        for card in reversed(comparison.cards):
            options = usual(comparison, trials.model, card)
            answer = planned.ask_plan({**options, "top": 3}, Path(scratch))
            if answer is None:
                raise SystemExit(f"{comparison.name}: nothing fits {card} GB")
            trials.fastest[card] = answer["chosen"]["estimate"]["step_seconds"]
            for rank, strategy in enumerate([answer["chosen"], *answer["alternatives"]], 1):
                trials.add(options, strategy, {card: rank})
        whole = usual(comparison, trials.model, comparison.cards[-1])
        for by_hand in comparison.by_hand:
            pinned = {**whole, "offload-optimizer": "none", "offload-param": "none", "tp": 1, **by_hand}
            answer = planned.ask_plan(pinned, Path(scratch))
            if answer is None:
                print(f"{comparison.name}: {dict(by_hand)} fits neither card", file=sys.stderr)
                continue
            trials.add(pinned, answer["chosen"], {})
    return trials.cases()


class Trials:
    """The strategies of a comparison and the runs that show them. ``fastest``: GB of a card -> predicted step
    of the planner's choice there, in seconds."""

    def __init__(self, comparison: Comparison, model: planned.Subject) -> None:
        self.comparison = comparison
        self.model = model
        self.fastest: dict[int, float] = {}
        self._strategies: dict[str, tuple[planned.Options, Mapping[str, Any], dict[int, int]]] = {}

    def add(self, options: planned.Options, strategy: Mapping[str, Any], ranks: Mapping[int, int]) -> None:
        """A strategy, once; ``ranks``: its place among the planner's for a card."""
        key = json.dumps([strategy["deepspeed_config"], strategy["activation_checkpointing"]], sort_keys=True)
        self._strategies.setdefault(key, (options, strategy, {}))[2].update(ranks)

    def cases(self) -> list[Case]:
        """Every strategy on the smallest card that holds it, and on the larger where that may matter."""
        prepared = [case for known in self._strategies.values() for case in self._cases(*known)]
        prepared.sort(key=lambda case: (not case["about"]["planned"], case["expected"]["step_seconds"]))
        return [{**case, "id": f"{case['id']}.{number:02d}"} for number, case in enumerate(prepared)]

    def _cases(
        self, options: planned.Options, strategy: Mapping[str, Any], ranks: Mapping[int, int]
    ) -> list[Case]:
        config, estimate, job = strategy["deepspeed_config"], strategy["estimate"], self.comparison
        peak = max(rank["peak_allocated_bytes"] for rank in estimate["per_rank"])
        prepared: list[Case] = []
        for card in job.cards:
            gpu = planned.card(CARDS_MIB[card])
            if estimate["min_vram_bytes"] > gpu.driver_vram_bytes:
                continue
            rival = card in ranks or estimate["step_seconds"] <= RIVAL * self.fastest[card]
            if not prepared or (rival and prepared[0]["cap_bytes"] - peak < ROOM_BYTES):
                case = planned.case_of(
                    f"quality.{job.name}.{words(strategy)}.{card}gb", self.model, options, config,
                    checkpointing=strategy["activation_checkpointing"], estimate=estimate,
                    cap_bytes=planned.allocator_limit(gpu, config, job.gpus), steps=STEPS, gate=True,
                    about={"comparison": job.name, "cards": list(job.cards), "planned": {}},
                )  # fmt: skip
                prepared.append(case)
            if card in ranks:
                prepared[-1]["about"]["planned"][str(card)] = ranks[card]
        return prepared


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
    """Whether a run showed its strategy on a card: held to no more, or not held and with a peak that fits."""
    if step_seconds(row) is None:
        return False
    limit = planned.allocator_limit(planned.card(CARDS_MIB[card]), row["deepspeed_config"], row["world_size"])
    if row["cap_bytes"] is not None:
        return bool(row["cap_bytes"] <= limit)
    return max(peak for peak in row["peak_allocated_bytes"] if peak) + EXPANDABLE_BYTES <= limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A job on a card: how good the choice was. Seconds; fractions, infinite where none of them ran."""

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
            if choice is None or not able:
                continue
            times = {id(row): step_seconds(row) or math.inf for row in able}
            best = min(able, key=lambda row: times[id(row)])
            three = [times[id(row)] for rank, row in ranked.items() if rank and id(row) in times]
            fastest = times[id(best)]
            found.append(
                Verdict(
                    name=name, card=card, tried=len({_key(row) for row in able}), choice=choice, best=best,
                    regret=times.get(id(choice), math.inf) / fastest - 1,
                    regret_of_three=min(three, default=math.inf) / fastest - 1,
                )
            )  # fmt: skip
    return found


def _key(row: Mapping[str, Any]) -> str:
    return json.dumps([row["deepspeed_config"], row.get("activation_checkpointing")], sort_keys=True)


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
        label = f"{one.name} {one.card} GB"
        lines.append(
            f"{label:<16} {one.tried:>8}  {_short(one.choice):<28} {_short(one.best):<28} {one.regret:>7.1%} "
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
    prepared: list[Case] = []
    for one in COMPARISONS:
        if options.only in one.name:
            prepared += prepare(one, options.folder)
    for case in prepared:
        said = case["expected"]
        peak = max(said["peak_allocated_bytes"]) / GIB
        print(f"{case['id']}: {peak:.1f} GiB, {said['step_seconds']:.2f} s, {case['about']['planned']}")
    options.folder.mkdir(parents=True, exist_ok=True)
    planned.write_cases(prepared, options.folder / "cases.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
