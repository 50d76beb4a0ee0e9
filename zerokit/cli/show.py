"""Plans and estimates for people: plain text, aligned, no wider than a page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from zerokit.memory.components import label
from zerokit.units import format_gib, format_seconds

_WIDTH = 100
_BAR = 24


def heading(text: str) -> str:
    """A section's title."""
    return f"\n{text}"


def bullets(lines: Iterable[str]) -> list[str]:
    """Wrapped list items."""
    found = []
    for line in lines:
        found += textwrap.wrap(line, _WIDTH, initial_indent="  - ", subsequent_indent="    ") or []
    return found


def paragraph(text: str) -> list[str]:
    """Wrapped text, indented."""
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def memory_table(estimate: Mapping[str, Any], capacity_bytes: int | None, what: str = "GPU") -> list[str]:
    """Components at the peak of the worst rank, then the sum and what is around it."""
    worst = max(estimate["per_rank"], key=lambda rank: rank["peak_allocated_bytes"])
    parts = sorted(worst["components"].items(), key=lambda item: -item[1])
    parts = [(label(name), size) for name, size in parts]
    width = max([len(name) for name, _ in parts] + [28])
    peak = worst["peak_allocated_bytes"]
    lines = [
        f"  {name:<{width}}  {format_gib(size):>12}  {'█' * round(_BAR * size / peak) if peak else ''}"
        for name, size in parts
    ]
    needed = estimate["min_vram_bytes"]
    rows = [
        (f"peak allocated ({worst['peak_phase']})", peak),
        (f"needed of a {what}", needed),
    ]
    if capacity_bytes:
        rows += [(f"a {what} has", capacity_bytes)]
    lines.append(f"  {'':<{width}}  {'-' * 12}")
    lines += [f"  {name:<{width}}  {format_gib(size):>12}" for name, size in rows]
    return lines


def phases(estimate: Mapping[str, Any]) -> str:
    """``init 12.1, forward 30.0, …``."""
    worst = max(estimate["per_rank"], key=lambda rank: rank["peak_allocated_bytes"])
    return "peaks by phase: " + ", ".join(
        f"{name} {format_gib(size)}" for name, size in worst["phases"].items()
    )


def speed(estimate: Mapping[str, Any], world_size: int) -> list[str]:
    """Step time, throughput, and where the time goes."""
    if estimate["step_seconds"] is None:
        return ["  not predicted"]
    per_gpu = estimate["tokens_per_second_per_gpu"]
    lines = [
        f"  {format_seconds(estimate['step_seconds'])} a step, {per_gpu:,.0f} tokens/s per GPU, "
        f"{format_seconds(1e9 / (per_gpu * world_size))} per 1e9 tokens"
    ]
    total = estimate["step_seconds"]
    parts = sorted(estimate["time_parts"].items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {size / total:.0%}" for name, size in parts if size / total >= 0.005)
    return [*lines, f"  where it goes: {shares}"]


def saving(estimate: Mapping[str, Any]) -> list[str]:
    """What a save takes, where the job saves anything."""
    takes = estimate["saving"]
    if takes is None:
        return []
    weights = format_gib(takes["weights_bytes"], 1) if takes["weights_bytes"] else "none that load"
    lines = [f"  weights {weights}, each checkpoint {format_gib(takes['checkpoint_bytes'], 1)} of disk"]
    if takes["host_bytes"]:
        lines.append(
            f"  gathered on rank 0: {format_gib(takes['host_bytes'], 1)} of its host's RAM, "
            f"{format_seconds(takes['seconds'])} and the disk's time"
        )
    return [heading("Saving"), *lines]


def degrees(strategy: Mapping[str, Any]) -> list[str]:
    """The strategy as a short table."""
    batch = strategy["micro_batch"] * strategy["gradient_accumulation"] * strategy["data_parallel"]
    rows = [
        ("ZeRO stage", strategy["zero_stage"]),
        ("offload optimizer / weights", f"{strategy['offload_optimizer']} / {strategy['offload_param']}"),
        (
            "data × tensor × pipeline × sequence",
            " × ".join(
                str(strategy[f"{name}_parallel"]) for name in ("data", "tensor", "pipeline", "sequence")
            ),
        ),
        (
            "micro-batch × accumulation × data",
            f"{strategy['micro_batch']} × {strategy['gradient_accumulation']} × {strategy['data_parallel']}"
            f" = {batch} sequences a step",
        ),
        ("activation checkpointing", strategy["activation_checkpointing"]),
        ("precision", strategy["precision"]),
    ]
    return [f"  {name:<36} {value}" for name, value in rows]


def plan(body: Mapping[str, Any], title: str, capacity_bytes: int, *, on_cpu: bool, next_command: str) -> str:
    """One page: assumptions, choice, memory, speed, what was rejected, what to do next."""
    chosen = body["chosen"]
    estimate = chosen["estimate"]
    world = chosen["data_parallel"] * chosen["tensor_parallel"] * chosen["pipeline_parallel"]
    world *= chosen["sequence_parallel"]
    lines = [title, heading("Assumed"), *bullets(body["assumptions"])]
    lines += [heading("Chosen"), *degrees(chosen), "", *paragraph(chosen["why"])]
    what = "CPU rank" if on_cpu else "GPU"
    lines += [heading(f"Memory per {what} (worst rank)"), *memory_table(estimate, capacity_bytes, what)]
    lines += ["  " + phases(estimate)]
    lines += [heading("Host RAM per node"), f"  {format_gib(estimate['host_bytes_per_node'], 1)}"]
    lines += saving(estimate)
    lines += [heading("Expected speed"), *speed(estimate, world)]
    if body["alternatives"]:
        lines += [heading("Next best"), *bullets(other["why"] for other in body["alternatives"])]
    if body["faster_with"]:
        lines += [heading("Would be faster"), *bullets(body["faster_with"])]
    if body["advice"]:
        lines += [heading("Worth knowing"), *bullets(body["advice"])]
    lines += [
        heading(
            f"Rejected, of {body['search']['candidates']:,} candidates in {body['search']['seconds']:.2f} s"
        )
    ]
    lines += [f"  {count:>9,}  {reason}" for reason, count in body["rejected"].items()]
    if body["files"]:
        lines += [heading("Written"), *(f"  {path}" for path in body["files"].values())]
    lines += [heading("Next"), f"  {next_command}"]
    return "\n".join(lines)


def estimate(
    body: Mapping[str, Any], title: str, capacity_bytes: int | None, strategy: Mapping[str, Any]
) -> str:
    """One page about one configuration."""
    verdict = {True: "fits", False: "does NOT fit", None: "no GPU memory was named"}[body["fits"]]
    world = strategy["data_parallel"] * strategy["tensor_parallel"] * strategy["pipeline_parallel"]
    world *= strategy["sequence_parallel"]
    lines = [f"{title}: {verdict}", heading("Assumed"), *bullets(body["assumptions"])]
    lines += [heading("Configuration"), *degrees(strategy)]
    lines += [
        heading("Memory per GPU (worst rank)"),
        *memory_table(body, capacity_bytes),
        "  " + phases(body),
    ]
    lines += [heading("Host RAM per node"), f"  {format_gib(body['host_bytes_per_node'], 1)}"]
    lines += saving(body)
    lines += [heading("Expected speed"), *speed(body, world)]
    return "\n".join(lines)
