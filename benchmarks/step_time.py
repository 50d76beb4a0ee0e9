"""How far the step times of the time model are from measured DeepSpeed runs on H200s.

    python -m benchmarks.step_time                 # the strategies of benchmarks/measure/data/quality.jsonl
    python -m benchmarks.step_time --all           # every run that had its GPUs to itself, and the indicative

    python -m benchmarks.step_time --kernels       # GPU seconds of forward and backward, profiled

Predicted now, with the constants of the catalogue. *retries*: runs in which the allocator gave memory back
(they were held to a card); they are judged apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import accuracy, common
from benchmarks.measure import planned
from zerokit.domain.families import from_config
from zerokit.domain.strategy import MemoryEstimate, RankEstimate
from zerokit.memory.card import allocator_bytes
from zerokit.search.plan import trainable_parameters
from zerokit.timing.constants import HUGGING_FACE, Calibration, Constants
from zerokit.timing.step_time import TimeModel

DATA = Path(__file__).resolve().parent / "measure" / "data"
WARM_UP = 2
_FEWEST_TOKENS = 512
_CASE = {"world_size": 1, "tensor_parallel": 1, "head": "causal", "gradient_accumulation": 1,
         "use_reentrant": False, "attention": "sdpa", "attention_mask_given": False,
         "weights_loaded_as": "model", "cap_bytes": None}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A measured run and its prediction. ``seconds``: predicted, of a step (or of its kernels)."""

    name: str
    measured: float
    seconds: float
    parts: Mapping[str, float]
    retries: int

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.seconds / self.measured - 1


def timed(row: Mapping[str, Any], constants: Constants = HUGGING_FACE) -> Timed:
    """One row of the kit, predicted with the peak that was measured."""
    case = accuracy.read_case(row)
    shape = from_config(row["hf_config"], name=row["id"], parameters=row["params"])
    cluster = case.cluster
    if row["cap_bytes"]:
        gpu = cluster.gpu
        # the card whose allocator is held to as much
        outside = planned.allocator_limit(gpu, row["deepspeed_config"], row["world_size"])
        cluster = replace(cluster, gpu=gpu.with_total_memory(gpu.vram_bytes - outside + row["cap_bytes"]))
    trainable = trainable_parameters(shape, case.job)
    # a run beside which its host was probed is predicted for that host
    probed = Calibration(host_factor=row["host_factor"]) if row.get("host_factor") else None
    model = TimeModel(shape, case.job, cluster, constants, probed, trainable)
    peak = max(peak for peak in row["peak_allocated_bytes"] if peak)
    limit = planned.allocator_limit(cluster.gpu, row["deepspeed_config"], row["world_size"])
    needs = peak + allocator_bytes(cluster.gpu, peak)
    rank = RankEstimate(
        first=0, last=0, peak_allocated_bytes=peak, peak_phase="backward", phases={}, components={}
    )
    memory = MemoryEstimate(
        ranks=(rank,),
        min_vram_bytes=min(cluster.gpu.driver_vram_bytes - limit + needs, cluster.gpu.driver_vram_bytes),
        host_bytes_per_node=0,
    )
    estimate = model.with_retries(model.estimate(case.strategy), case.strategy, memory)
    return Timed(
        name=row["id"],
        measured=statistics.median(_steps(row)),
        seconds=estimate.step_seconds,
        parts=estimate.parts,
        retries=max(row.get("alloc_retries") or [0]),
    )


def _steps(row: Mapping[str, Any]) -> list[float]:
    """Seconds of the steps after those that warm up; a series leaves them out itself."""
    if "step_seconds" in row:
        return list(row["step_seconds"])
    return list(row.get("step_seconds_rank0", ())[WARM_UP:])


def kernels(constants: Constants = HUGGING_FACE) -> list[Timed]:
    """GPU seconds of the kernels of forward and backward, against the model's without host and optimizer.

    They were measured in few steps, in which the clock does not fall. Constants were taken from these rows,
    kind of kernel by kind: this says how well they add up. Runs of a few tokens are left out: theirs are too
    short to matter.
    """
    found = []
    for row in common.rows(DATA / "kernels.jsonl"):
        if row.get("seq_len", 0) < _FEWEST_TOKENS:
            continue
        case = accuracy.read_case({**_CASE, **row})
        shape = from_config(row["hf_config"], name=row["id"], parameters=row["params"])
        trainable = trainable_parameters(shape, case.job)
        fresh = replace(case.cluster, gpu=replace(case.cluster.gpu, sustained_efficiency=None))
        model = TimeModel(shape, case.job, fresh, constants, None, trainable)
        work = model.work(case.strategy)
        busy = sum(sum(row["profiled"][phase]["seconds"].values()) for phase in ("forward", "backward"))
        parts = {"forward and backward": work.gpu_seconds}
        found.append(Timed(name=row["id"], measured=busy, seconds=work.gpu_seconds, parts=parts, retries=0))
    return found


def rows(name: str) -> Iterator[dict[str, Any]]:
    """Runs of a file that went through; ``name``: of the committed data, or a path."""
    path = accuracy.DATA if name == accuracy.DATA.stem else DATA / f"{name}.jsonl"
    if name.endswith(".jsonl"):
        path = Path(name)
    for row in common.rows(path):
        if row.get("ok", not row.get("error")) and _steps(row):
            yield {"cap_bytes": None, **row}


def table(title: str, found: list[Timed]) -> str:
    """Every run, then the errors with and without retries."""
    lines = [f"{title:<48} {'measured':>8} {'predicted':>9} {'error':>7}  most of it"]
    for one in found:
        parts = sorted(one.parts.items(), key=lambda item: -item[1])[:4]
        words = ", ".join(f"{name} {value:.3f}" for name, value in parts)
        lines.append(
            f"{one.name[-48:]:<48} {one.measured:>8.3f} {one.seconds:>9.3f} {one.error:>+7.1%}  {words}"
        )
    for name, group in (("without retries", [t for t in found if not t.retries]),
                        ("with retries", [t for t in found if t.retries])):  # fmt: skip
        if group:
            errors = [one.error for one in group]
            lines.append(
                f"{name}: {len(group)} runs, mean |error| {statistics.mean(map(abs, errors)):.1%}, "
                f"bias {statistics.mean(errors):+.1%}"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = common.options_of(__doc__)
    parser.add_argument("--all", action="store_true", help="the runs that shared GPUs or hosts too")
    parser.add_argument("--kernels", action="store_true", help="the profiled runs instead")
    parser.add_argument(
        "files", metavar="FILE", nargs="*", help="rows of `benchmarks.measure series` instead"
    )
    options = parser.parse_args()
    if options.kernels:
        print(table("kernels", kernels()))
        return
    names = options.files or ["quality"]
    if options.all:
        names += ["fits", "h200-deepspeed", "held-out-2gpu"]
    for name in names:
        print(table(name, [timed(row) for row in rows(name)]) + "\n")


if __name__ == "__main__":
    main()
