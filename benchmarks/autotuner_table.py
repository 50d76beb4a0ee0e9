"""The table of what the autotuner, zerokit and its tuned plan answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.measure.rows import GIB

Answer = dict[str, Any]


def words(answer: Answer) -> str:
    """An answer in a few letters: ``ZeRO-1, 16 × 2``."""
    config = answer["deepspeed_config"]
    stage = config["zero_optimization"]["stage"]
    micro, accumulation = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    more = "" if answer["checkpointing"] == "none" else f", {answer['checkpointing']} checkpointing"
    return f"ZeRO-{stage}, {micro} × {accumulation}{more}"


def table(answers: Mapping[str, Answer]) -> str:
    """One line an answer."""
    lines = [f"{'':<10} {'answer after':>12} {'runs':>5}  {'answer (micro-batch × accumulation)':<42} "
             f"{'step s':>7} {'tokens/s':>9} {'own figure':>10} {'peak GiB':>8}"]  # fmt: skip
    for name, answer in answers.items():
        if "seconds" not in answer:
            lines.append(f"{name:<10} {answer['error']}")
            continue
        after = f"{answer['seconds']:.1f} s" if answer["finished"] else f"> {answer['seconds']:.0f} s"
        start = f"{name:<10} {after:>12} {len(answer.get('runs', [])):>5}  "
        measured = answer.get("measured", {})
        if "error" in answer or "tokens_per_second" not in measured:
            lines.append(start + str(answer.get("error") or measured.get("error") or "not measured"))
            continue
        own, peaks = answer["own_tokens_per_second"], measured["peak_allocated_bytes"]
        lines.append(
            f"{start}{words(answer):<42} {measured['median_step_seconds']:>7.3f} "
            f"{measured['tokens_per_second']:>9.0f} {f'{own:.0f}' if own else '-':>10} "
            f"{f'{max(peaks) / GIB:.1f}' if None not in peaks else '-':>8}"
        )
    return "\n".join(lines)
