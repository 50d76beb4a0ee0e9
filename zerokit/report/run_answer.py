"""What a reader of a run's page wants first: how it ended, how far from limit and prediction, what to do."""

from __future__ import annotations

from zerokit.report import failure_text, figure_text, render, run_charts
from zerokit.report.oom_advice import TO_NEED_LESS
from zerokit.report.schema import Failure, OutOfMemory, RankReport, RunReport
from zerokit.units import counted, format_gib, told_apart

GOOD = ("ok", "stopped", "running")
_STACKS = f"What each rank was doing, as Python stacks: {render.STACKS} in the run's folder"
_ROOMY = 0.25  # of the card: a run that leaves more than this may be made faster


def answer(run: RunReport) -> list[str]:
    """The lines of the box at the head of the page."""
    head = run.outcome.text if run.outcome in GOOD or not run.why else run.outcome.because(run.why)
    lines = [head[:1].upper() + head[1:]]
    rank = run_charts.shown_rank(run)
    failure = run.first_failure
    if failure is not None and failure.oom is not None:
        lines += _ran_out(run, failure, failure.oom)
    elif rank is not None:
        lines.append(_how_full(run, rank))
    return [*lines, *_predicted(run), *_what_to_do(run, rank), *([run.resume] if run.resume else [])]


def _ran_out(run: RunReport, failure: Failure, oom: OutOfMemory) -> list[str]:
    """The rank that ran out, how full its card or its host was, and how full the others'."""
    on_gpu = oom.memory == "gpu"
    subject = failure_text.failure_place(failure).partition(", ")
    head = f"{subject[0].capitalize()} ran out of {'GPU' if on_gpu else 'host'} memory"
    lines = [head + (f" {subject[2]}" if subject[2] else "")]
    rank = next((rank for rank in run.ranks if rank.rank == failure.rank), None)
    if not on_gpu:
        held = oom.measured_peak_host_rss_bytes or (rank.peak_host_rss_bytes if rank else 0)
        return [*lines, *([f"Its process held {format_gib(held, 1)}"] if held else [])]
    lines += _how_full_when_it_ran_out(oom, rank)
    others = [peak for other in run.ranks if other is not rank and (peak := other.peak_allocated_bytes)]
    if others:
        least, most = format_gib(min(others), 1), format_gib(max(others), 1)
        amount = most if least == most else f"{least} to {most}"
        lines.append(f"Peak allocated of the other {counted(len(others), 'rank')}: {amount}")
    return lines


def _how_full_when_it_ran_out(oom: OutOfMemory, rank: RankReport | None) -> list[str]:
    total = oom.device_total_bytes or (rank.device_total_bytes if rank else None)
    free, words = oom.device_free_bytes, []
    if total and free is not None:
        words.append(f"{format_gib(total - free, 1)} of the card's {format_gib(total, 1)} were in use")
    if oom.allocated_bytes is not None:
        words.append(f"its tensors took {format_gib(oom.allocated_bytes, 1)}")
    if oom.fragmentation_bytes is not None:
        words.append(f"fragmentation {format_gib(oom.fragmentation_bytes, 1)}")
    if oom.asked_bytes is not None:
        words.append(f"it asked for {format_gib(oom.asked_bytes, 1)} more")
    text = ", ".join(words)
    return [text[:1].upper() + text[1:]] if text else []


def _how_full(run: RunReport, rank: RankReport) -> str:
    peak = format_gib(render.measured(rank) or 0, 1)
    if not run.gpu_measured:
        return f"Host memory of the fullest rank ({rank.rank}): {peak}"
    total, used = rank.device_total_bytes, rank.peak_device_used_bytes
    if not total or not used:
        return f"Peak allocated {peak}, rank {rank.rank}"
    return (
        f"Peak allocated {peak}; the device had {format_gib(used, 1)} of {format_gib(total, 1)} in use, "
        f"{format_gib(total - used, 1)} headroom (rank {rank.rank})"
    )


def _predicted(run: RunReport) -> list[str]:
    predicted = run.predicted_vs_measured
    pair = predicted.peak_bytes if predicted else None
    if predicted is None or pair is None or not pair.predicted or not pair.measured:
        return []
    text = "Predicted peak {}, measured {}".format(*told_apart(pair.predicted, pair.measured))
    failure = run.first_failure
    if failure is not None and failure.oom is not None:  # what it would have taken nobody saw
        return [f"{text} until then (rank {predicted.rank})"]
    off = f", {figure_text.percent(pair.error_fraction)}" if pair.error_fraction is not None else ""
    return [text + off]


def _what_to_do(run: RunReport, rank: RankReport | None) -> list[str]:
    if run.hang is not None:
        return [f"Likely cause: {run.hang.what}", f"Fix: {run.hang.fix}", _STACKS]
    if run.outcome == "hung":
        return [_STACKS]
    failure = run.first_failure
    if failure is not None:
        following = failure.next_plan
        if following is not None and following.why:
            give = [f"Give the script {following.to_give}"] if following.to_give else []
            return [f"Next plan that would fit: {following.why}", *give]
        return [f"{TO_NEED_LESS.capitalize()}: {text}" for text in failure.try_next[:2]]
    if any(rank.alloc_retries for rank in run.ranks):
        return ["The allocator ran full and retried: a little less memory would make the steps faster"]
    if rank is None or not (run.gpu_measured and rank.device_total_bytes and rank.peak_device_used_bytes):
        return []
    free = rank.device_total_bytes - rank.peak_device_used_bytes
    if free <= _ROOMY * rank.device_total_bytes:
        return []
    return [f"{format_gib(free, 1)} were never used: a larger batch per GPU, or less sharding, may be faster"]
