"""What ranks measured: of which memory, why a figure is missing, whether it was the plan's bare loop, and by
which rank and under which names it is shown."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from zerokit.domain.phases import BEFORE_TRAINING
from zerokit.domain.planned import Chosen
from zerokit.memory.components import label
from zerokit.units import MIB, ranks_named

if TYPE_CHECKING:
    from zerokit.report.schema import RunReport

Rank = Mapping[str, Any]

_NEARLY = 0.99  # of the host's memory: what tensors free stays resident, so that later phases look as full
_UNEXPLAINED = ("other",)
_LATER = {"init": ("forward", "backward", "step"), "forward": ("backward", "step"), "backward": ("step",)}
_WHY = {
    "no_torch": (
        "this process never imported torch",
        "if the script starts the training in other processes, launch what they run",
    ),
    "no_cuda_build": (
        "the torch that it imported is a build without CUDA",
        "install a CUDA build of torch, or run on CPU ranks with --device cpu",
    ),
    "hook_failed": (
        "the hook on torch could not be put; its own message is in the rank's log",
        "report it with the version of torch",
    ),
    "not_used": (
        "this process never used a GPU",
        "look for an option of the script that keeps it on the CPU, or launch what its worker processes run",
    ),
    "nothing_allocated": (
        "nothing was allocated through PyTorch's CUDA allocator",
        "a pluggable allocator, or PYTORCH_NO_CUDA_MEMORY_CACHING, keeps no statistics: run without it",
    ),
}
_UNKNOWN = (
    "its file holds no figures of the CUDA allocator, and no reason",
    "run it again with this version of zerokit",
)
_BEFORE_USE = ("no_torch", "not_used", "nothing_allocated")


def had_engine(rank: Rank) -> bool:
    """Whether a DeepSpeed engine came up in it, or began to."""
    if rank.get("engine") or rank.get("steps_counted_by") == "optimizer":
        return bool(rank.get("engine"))
    return bool(rank.get("steps") or "init" in (rank.get("phase_details") or {}))


def on_gpu(device: str | None, peak_allocated_bytes: int | None) -> bool:
    """Whether it is GPU memory that a rank's figures are to be of."""
    return device == "cuda" or peak_allocated_bytes is not None


def why_not_measured(device: str | None, rank: Rank, state: str) -> tuple[str, str | None] | None:
    """Why a rank on a GPU has no figures of it, and what to do (None: nothing); None where it has them.
    ``rank``: its last tick or end; ``state``: how it ended."""
    if device != "cuda" or rank.get("peak_allocated_bytes") is not None:
        return None
    status = rank.get("gpu_status")
    if state not in ("finished", "stopped") and (status in _BEFORE_USE or not rank):
        return "it ended before it used the GPU", None
    return _WHY.get(str(status), _UNKNOWN)


def unmeasured_problems(ranks: Iterable[Rank]) -> list[str]:
    """One sentence for each reason, with the ranks that it holds for."""
    by_text: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.get("not_measured") and rank.get("not_measured_fix"):
            text = f"GPU memory not measured: {rank['not_measured']}; {rank['not_measured_fix']}"
            by_text.setdefault(text, []).append(rank["rank"])
    problems = []
    for text, numbers in by_text.items():
        problems.append(f"{ranks_named(numbers)}: {text}")
    return problems


def peak_phase(phases: Mapping[str, int], *, gpu: bool) -> str | None:
    """The phase of the peak: of GPU memory the one that reached it, of host memory the first that did. One
    that explains something goes before one that does not."""
    if not phases:
        return None
    most = max(phases.values())
    candidates = [name for name, value in phases.items() if value >= (most if gpu else _NEARLY * most)]
    return next((name for name in candidates if name not in _UNEXPLAINED), candidates[0])


def reached_end_of(rank: Rank, phase: str) -> bool:
    """Whether a rank got through a phase at least once, so that its peak there is one."""
    if rank["state"] in ("finished", "stopped") or rank["steps"]:
        return True
    details = rank.get("phase_details") or {}
    return any((details.get(later) or {}).get("count") for later in _LATER.get(phase, ()))


def init_bytes(phases: Mapping[str, int]) -> int | None:
    """What is to be compared with ``init`` of a prediction: it means all until the first engine stands."""
    return max((phases[name] for name in BEFORE_TRAINING if name in phases), default=None)


_COLOURS = 7  # classes c0 to c6 of the page's style sheet; the last is for the others


def styles(by_phase: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """A colour for each of the largest components, the same in every phase."""
    most: dict[str, int] = {}
    for parts in by_phase.values():
        for name, size in parts.items():
            most[name] = max(size, most.get(name, 0))
    names = sorted(most, key=lambda name: -most[name])[: _COLOURS - 1]
    return {name: f"c{number}" for number, name in enumerate(names)}


def stacked(parts: Mapping[str, int], styles: Mapping[str, str]) -> list[tuple[str, float, str]]:
    """``(label, bytes, style)`` of each component, the largest anywhere first."""
    largest = [
        (f"predicted: {label(name)}", float(parts[name]), style)
        for name, style in styles.items()
        if parts.get(name)
    ]
    rest = sum(size for name, size in parts.items() if name not in styles)
    return [*largest, ("predicted: others", float(rest), f"c{_COLOURS - 1}")] if rest else largest


LONGEST = 30


def short_hosts(hosts: Iterable[str]) -> dict[str, str]:
    """Each host by a name of at most :data:`LONGEST` characters: without its domain where that tells them
    apart, and with the end of a long one, where nodes differ.

    >>> short_hosts(["node-1.example.org", "node-2.example.org"])["node-2.example.org"]
    'node-2'
    """
    unique = dict.fromkeys(hosts)
    labels = {host: host.partition(".")[0] or host for host in unique}
    if len(set(labels.values())) < len(unique) or all(label.isdecimal() for label in labels.values()):
        labels = {host: host for host in unique}  # addresses, and one name in several domains
    return {
        host: name if len(name) <= LONGEST else "…" + name[1 - LONGEST :] for host, name in labels.items()
    }


MOST_FRACTION = 0.05
MOST_BYTES = 256 * MIB
"""A peak that is off by more than both is not that of the plan's loop. The replay of bare loops was at most
0.9 % off in 357 runs on H200s (docs/accuracy.md); libraries' workspaces beside a small model stay below
256 MiB."""


NOT_A_BARE_LOOP = (
    "The plan was not rehearsed with the script: predicted is a bare training loop, without what a script "
    "adds (padding masks, a loss of its own)."
)


def is_bare_loop(chosen: Chosen) -> bool:
    """Whether a plan's figures are of no script, this one or another."""
    return not isinstance(chosen.get("rehearsed"), Mapping) and not chosen.get("rehearsed_with")


def is_off(compared: Mapping[str, Any]) -> bool:
    """Whether the predicted peak of GPU memory, or a phase's, is beyond both bounds. Memory of CPU ranks
    never is: it does not check a prediction for GPUs."""
    pairs = (compared.get("peak_bytes"), *(compared.get("phases") or {}).values())
    return compared["kind"] == "gpu_memory" and any(pair and is_far(pair) for pair in pairs)


def is_far(pair: Mapping[str, Any]) -> bool:
    """Whether a prediction in bytes is off by more than both bounds; False where nothing can be compared."""
    error = pair.get("error_fraction")
    if error is None:
        return False
    return bool(abs(error) > MOST_FRACTION and abs(pair["predicted"] - pair["measured"]) > MOST_BYTES)


def ended_well(run: RunReport) -> bool:
    """Whether a run went to its end and measured what it took."""
    good = run.outcome in ("ok", "stopped", "not_as_planned", "trained_otherwise")
    return good and (run.gpu_measured or not run.on_gpu)


def wants_rehearsal(run: RunReport) -> bool:
    """Whether a run that ended well was another job than its plan's and is not predicted again, or allocated
    otherwise than a prediction that was made without its script."""
    predicted = run.predicted_vs_measured
    if predicted is None or not ended_well(run):
        return False
    if predicted.predicted_for is None or predicted.bare_loop is not None:
        return True
    return predicted.predicted_by == "estimate" and is_off(predicted.model_dump())


def bare_loop_of_plan(chosen: Chosen, compared: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plan's figures, for ``report.json``, where they are of a bare loop and the run (``compared``,
    beside the plan) was none."""
    if isinstance(chosen.get("rehearsed"), Mapping) or not is_off(compared):
        return None
    return {
        "peak_bytes": compared["peak_bytes"],
        "phases": {name: pair for name, pair in compared["phases"].items() if pair["predicted"] is not None},
        "step_seconds": compared["step_seconds"],
        "basis": (chosen.get("estimate") or {}).get("basis"),
        "rehearsed_with": chosen.get("rehearsed_with"),
    }


AnyRank = TypeVar("AnyRank")
Point = TypeVar("Point")


def worst_rank(ranks: Sequence[AnyRank], peak_bytes: Callable[[AnyRank], int | None]) -> AnyRank:
    """The rank with the highest peak, the first of several alike; one without a figure comes last."""
    return max(ranks, key=lambda rank: peak_bytes(rank) or 0)


def thinned(
    points: Sequence[Point], most: int, height: Callable[[Any], Any] = operator.itemgetter(1)
) -> list[Point]:
    """At most ``most`` points, the highest of each stretch, so that no peak is lost."""
    size = max(1, -(-len(points) // most))
    return [max(points[at : at + size], key=height) for at in range(0, len(points), size)]
