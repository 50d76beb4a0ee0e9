"""Fits means fits: plans at the limit of cards of 16 to 141 GB, and the notch beyond.

    python -m benchmarks.measure.limits prepare FOLDER                     # no GPU: makes the plans
    python -m benchmarks.measure.launch FOLDER/cases.json -o ROWS.jsonl    # on a host with GPUs
    python -m benchmarks.measure.limits table ROWS.jsonl

A trial is a job on a card: ``zerokit plan`` chooses the strategy; then, with stage, offload and
checkpointing kept, micro-batch or sequence length grows until the command says that nothing fits. The last
plan that fits is launched, and the same configuration one notch beyond it, both with the allocator held to
what such a card leaves it. The first must run; the second must fail or come within 3 % of the limit.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import planned
from benchmarks.measure.host import GIB, Case
from benchmarks.measure.planned import Options, Subject
from benchmarks.measure.trials import CARDS_MIB, TRIALS, Trial

SEQUENCE_NOTCH = 128
NEAR = 0.97
STEPS = 5
FP16_STEPS = 12  # the first ones are skipped while the loss scale falls


def usual(trial: Trial, model: Subject) -> dict[str, object]:
    """What a trial asks of ``zerokit plan``, without the batch."""
    return {
        "model": model.argument,
        "gpu": "h200",
        "vram": f"{CARDS_MIB[trial.card]}MiB",
        "gpus": trial.gpus,
        "seq-len": trial.seq_len,
        "tp": 1,
        "sp": 1,
        "gradient-accumulation": 1,
        "offload-optimizer": "none",
        "offload-param": "none",
        **trial.options,
    }


def grown(trial: Trial, options: Options, notch: int) -> dict[str, object]:
    """The options at a notch, counted from 1."""
    if trial.grow == "micro":
        return {**options, "micro-batch": notch}
    return {**options, "micro-batch": trial.micro, "seq-len": SEQUENCE_NOTCH * notch}


def largest(fits: Callable[[int], bool], most: int = 4096) -> int:
    """The last notch that fits, which is followed by one that does not; 0: none fits."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < most and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def prepare(trial: Trial, folder: Path) -> list[Case]:
    """The two cases of a trial; none where not even the smallest fits."""
    model = planned.subject(trial.model, folder)
    options = usual(trial, model)
    with tempfile.TemporaryDirectory() as scratch:
        first = planned.ask_plan(grown(trial, options, 1), Path(scratch))
        if first is None:
            return []
        kept = _kept(first["chosen"])
        pinned = {**options, **kept}
        limit = largest(
            lambda notch: planned.ask_plan(grown(trial, pinned, notch), Path(scratch)) is not None
        )
    path = folder / "plans" / trial.name
    at_limit = grown(trial, pinned, limit)
    chosen = planned.write_plan(at_limit, path)["chosen"]
    config = chosen["deepspeed_config"]
    cap = planned.allocator_limit(planned.card(CARDS_MIB[trial.card]), config, trial.gpus)
    about = {
        "trial": trial.name,
        "card_gb": trial.card,
        "card_mib": CARDS_MIB[trial.card],
        "grow": trial.grow,
        "limit": limit,
        "plan": " ".join(["zerokit", "plan", *planned.argv({**at_limit, "model": trial.model})]),
    }
    checkpointing = chosen["activation_checkpointing"]
    run = {"steps": FP16_STEPS if chosen["precision"] == "fp16" else STEPS, "cap_bytes": cap}
    fits = planned.case_of(
        f"fits.{trial.name}", model, at_limit, config, estimate=chosen["estimate"], plan=str(path),
        about={**about, "kind": "fits"}, checkpointing=checkpointing, **run,
    )  # fmt: skip
    beyond = _beyond(trial, model, grown(trial, pinned, limit + 1), config, checkpointing, folder)
    return [fits, beyond | run | {"about": {**about, "kind": "beyond"}}]


def _kept(chosen: Mapping[str, Any]) -> dict[str, object]:
    """What of the planner's choice stays while the job grows."""
    return {
        "zero": chosen["zero_stage"],
        "offload-optimizer": chosen["offload_optimizer"],
        "offload-param": chosen["offload_param"],
        "checkpointing": chosen["activation_checkpointing"],
        "precision": chosen["precision"],
    }


def _beyond(
    trial: Trial,
    model: Subject,
    options: Options,
    config: Mapping[str, Any],
    checkpointing: str,
    folder: Path,
) -> Case:
    """The same configuration for one notch more. ``zerokit plan`` would refuse it: it is estimated."""
    micro = int(str(options["micro-batch"]))
    larger = {
        **config,
        "train_micro_batch_size_per_gpu": micro,
        "train_batch_size": micro * trial.gpus,
    }
    decided = ("zero", "offload-optimizer", "offload-param", "precision", "gradient-accumulation")
    asked = {name: value for name, value in options.items() if name not in (*decided, "micro-batch")}
    estimate = planned.ask_estimate(asked, larger, folder / "beyond" / trial.name)
    return planned.case_of(
        f"beyond.{trial.name}", model, options, larger, checkpointing=checkpointing, estimate=estimate
    )


# ------------------------------------------------------------------ the table


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """A line a trial, the counts, and whether all that should fit did and four fifths of the others not."""
    by_trial: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        about = row.get("about") or {}
        if "trial" in about:
            by_trial.setdefault(about["trial"], {})[about["kind"]] = row
    lines = [f"{'trial':<52} {'limit GiB':>9} {'predicted':>9} {'peak':>7} {'reserved':>8}  fits   beyond"]
    ran = failed = wasted = judged = 0
    for name, pair in sorted(
        by_trial.items(), key=lambda item: (item[1][min(item[1])]["cap_bytes"], item[0])
    ):
        fits, beyond = pair.get("fits"), pair.get("beyond")
        words = "-"
        if fits is not None:
            ran += 1
            failed += not fits["ok"]
            words = "ran" if fits["ok"] else "OUT OF MEMORY" if fits["oom"] else "failed"
        after = "-"
        if beyond is not None:
            share = fullness(beyond)
            if beyond["oom"] or share is not None:
                judged += 1
                full = beyond["oom"] or (share or 0) >= NEAR
                wasted += not full
                after = "out of memory" if beyond["oom"] else f"ran, {share:.1%} of the limit"
            else:
                after = "failed"
        shown = fits or beyond
        assert shown is not None
        lines.append(
            f"{name[:52]:<52} {shown['cap_bytes'] / GIB:>9.2f} "
            f"{_gib(shown['expected'], 'peak_allocated_bytes'):>9} {_gib(shown, 'peak_allocated_bytes'):>7} "
            f"{_gib(shown, 'peak_reserved_bytes'):>8}  {words:<6} {after}"
        )
    lines.append(
        f"{ran} plans launched, {ran - failed} ran; one notch beyond: {judged - wasted} of {judged} ran out "
        f"of memory or came within {1 - NEAR:.0%} of the limit"
    )
    return "\n".join(lines), ran > 0 and not failed and wasted <= 0.2 * judged


def fullness(row: Mapping[str, Any]) -> float | None:
    """Peak allocated over the allocator's limit; ``None``: the run did not get that far."""
    peaks = [peak for peak in row["peak_allocated_bytes"] if peak]
    return max(peaks) / float(row["cap_bytes"]) if peaks and row["ok"] else None


def _gib(row: Mapping[str, Any], key: str) -> str:
    values = [value for value in row[key] if value]
    return f"{max(values) / GIB:.2f}" if values else "-"


def main() -> int:
    """Prepare the cases, list the trials, or print the table."""
    options = planned.command_line(__doc__, "trials").parse_args()
    if options.command == "list":
        print("\n".join(trial.name for trial in TRIALS))
        return 0
    if options.command == "table":
        text, good = table(planned.rows_of(options.rows))
        print(text)
        return 0 if good else 1
    prepared: list[Case] = []
    for trial in TRIALS:
        if options.only in trial.name:
            found = prepare(trial, options.folder)
            prepared += found
            peaks = "".join(f" {max(c['expected']['peak_allocated_bytes']) / GIB:.2f}" for c in found)
            limit = (
                f"limit {found[0]['about']['limit']}, {found[0]['expected']['basis']}"
                if found
                else "nothing fits"
            )
            print(f"{trial.name}: {limit}{peaks}", flush=True)
    # the fullest first: they need a GPU to themselves, which is to be had before the others start
    prepared.sort(key=lambda case: -case["cap_bytes"] * case["world_size"])
    planned.write_cases(prepared, options.folder / "cases.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
