"""Jobs for ``job.py``, and measured rows beside what the fast model says of them.

``python -m benchmarks.engines.jobs`` writes the jobs; with a file of rows it prints their errors, and which
engine was the faster one of each pair. A number after it is the host's factor (``zerokit doctor``).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import zerokit
from benchmarks.common import rows
from zerokit.catalog import profiles
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.strategy import Strategy
from zerokit.memory.estimate import estimate_traced
from zerokit.planner.request import resolve
from zerokit.search.plan import make_space
from zerokit.timing.constants import Calibration
from zerokit.timing.ranges import step_range
from zerokit.values import replace

GPUS = 2
_AS_FAST = 1.04
_LEFT_BYTES = 1 << 28
"""More than cuBLAS keeps."""
PAIRS: tuple[tuple[str, int, int, int, bool, int | None], ...] = (
    ("llama-3.2-3b", 2048, 4, 2, False, None),
    ("llama-3.2-1b", 2048, 1, 4, True, None),
    ("qwen2.5-1.5b", 1024, 8, 1, False, None),
    ("llama-3.1-8b", 2048, 1, 1, True, None),
    ("llama-3.1-8b", 2048, 2, 1, True, 16),
    ("llama-3.2-3b", 1024, 4, 1, False, 16),
    ("qwen3-8b", 1024, 4, 2, True, None),
    ("qwen2.5-0.5b", 512, 8, 1, False, None),
    ("llama-3.2-3b", 8192, 1, 1, True, None),
    ("mistral-7b-v0.3", 2048, 1, 4, False, None),
    ("qwen2.5-7b", 4096, 1, 1, False, 16),
)
"""(model, tokens, micro-batch, accumulation, checkpointing, rank of LoRA): each under ZeRO-2 beside FSDP2
that keeps weights gathered, and ZeRO-3 beside FSDP2 that does not."""
ALONE: tuple[tuple[tuple[str, int, int, int, bool, int | None], dict[str, Any]], ...] = (
    (("llama-3.2-3b", 2048, 2, 2, True, None), {"wrapping": "layers"}),
    (("llama-3.2-1b", 2048, 4, 1, False, None), {"wrapping": "layers", "reshard_after_forward": False}),
    (("qwen2.5-7b", 1024, 2, 1, True, None), {"wrapping": "layers"}),
    (("llama-3.1-8b", 1024, 2, 1, True, 16), {"wrapping": "layers"}),
    (("llama-3.2-3b", 2048, 2, 1, True, None), {"offload": True}),
    (("qwen2.5-0.5b", 1024, 2, 2, False, None), {"wrapping": "layers"}),
)
"""FSDP2 in other ways."""
_PACKED = {"method": "qlora"}
OTHERS: tuple[
    tuple[tuple[str, int, int, int, bool, int | None], dict[str, Any], dict[str, Any], dict[str, Any]], ...
] = (
    (("llama-3.1-8b", 2048, 2, 1, True, 16), {}, _PACKED, {"packed": "wide"}),
    (("llama-3.1-8b", 2048, 2, 1, True, 16), {"master_bytes": 2}, _PACKED, {"packed": "narrow"}),
    (("llama-3.2-3b", 1024, 4, 1, False, 16), {"reshard_after_forward": False},
     {**_PACKED, "trainer": "axolotl"}, {"packed": "prepared"}),
    (("qwen3-8b", 2048, 2, 2, True, 16), {"wrapping": "layers", "master_bytes": 4}, _PACKED,
     {"packed": "wide"}),
    (("llama-3.1-8b", 2048, 1, 1, True, 16), {"offload": True}, _PACKED, {"packed": "wide"}),
    (("llama-3.2-3b", 2048, 2, 1, True, None), {"client_optimizer": "adamw_torch_8bit"}, {},
     {"client": "torchao.optim.AdamW8bit"}),
    (("llama-3.2-1b", 1024, 4, 1, False, None), {"client_optimizer": "adamw_torch_4bit"}, {},
     {"client": "torchao.optim.AdamW4bit"}),
    (("llama-3.2-3b", 2048, 2, 1, True, None), {"precision": "fp16"}, {}, {"precision": "fp16"}),
    (("llama-3.2-3b", 1024, 4, 1, True, 16), {}, {"reentrant": "on"}, {"reentrant": True}),
    (("qwen3-30b-a3b", 1024, 2, 1, True, 16), {}, {}, {}),
    (("qwen3-30b-a3b", 4096, 2, 1, True, 16), {}, {}, {}),
    (("mixtral-8x7b", 2048, 1, 1, True, 16), {}, {}, {}),
)  # fmt: skip
"""FSDP2 with 4-bit weights, other optimizers, fp16, reentrant checkpoints, experts: job, settings, more
arguments of a plan, what ``job.py`` is told."""
ONE_GPU: tuple[
    tuple[tuple[str, int, int, int, bool, int | None], dict[str, Any], dict[str, Any], dict[str, Any]], ...
] = (
    (("llama-3.2-1b", 2048, 4, 1, True, None), {}, {}, {}),
    (("llama-3.2-3b", 2048, 2, 2, True, None), {"wrapping": "layers"}, {}, {}),
    (("qwen2.5-1.5b", 1024, 8, 1, False, None), {"reshard_after_forward": False}, {}, {}),
    (("llama-3.1-8b", 2048, 2, 1, True, 16), {}, {}, {}),
    (("llama-3.1-8b", 2048, 2, 1, True, 16), {}, _PACKED, {"packed": "wide"}),
    (("llama-3.1-8b", 2048, 2, 1, True, 16), {"offload": True}, _PACKED, {"packed": "wide"}),
    (("qwen3-8b", 1024, 2, 2, False, 16), {"wrapping": "layers"}, {}, {}),
    (("llama-3.2-3b", 2048, 2, 1, True, None), {"offload": True}, {}, {}),
    (("qwen2.5-0.5b", 512, 8, 2, False, None), {}, {}, {}),
    (("llama-3.2-1b", 2048, 4, 1, True, None), {"client_optimizer": "adamw_torch_8bit"}, {},
     {"client": "torchao.optim.AdamW8bit"}),
)  # fmt: skip
"""The same on one GPU."""
SHARED: tuple[tuple[tuple[str, int, int, int, bool, int | None], str], ...] = (
    (("llama-3.2-1b", 8192, 1, 1, False, None), "allgather"),
    (("llama-3.2-3b", 32768, 1, 1, True, None), "allgather"),
    (("llama-3.2-3b", 32768, 1, 1, True, None), "alltoall"),
    (("llama-3.1-8b", 16384, 1, 1, True, 16), "allgather"),
    (("qwen2.5-1.5b", 4096, 2, 2, False, None), "alltoall"),
    (("llama-3.1-8b", 65536, 1, 1, True, 16), "alltoall"),
    (("llama-3.2-3b", 4096, 1, 1, False, None), "allgather"),
    (("mistral-7b-v0.3", 16384, 1, 1, True, None), "allgather"),
    (("qwen3-8b", 8192, 2, 1, True, 16), "alltoall"),
)
"""Context parallelism on two GPUs: job, how keys and values are exchanged."""


def options(job: tuple[str, int, int, int, bool, int | None]) -> dict[str, Any]:
    """The job as arguments of a plan."""
    model, tokens, batch, accumulation, checkpointing, lora = job
    adapters = {"method": "lora", "lora_rank": lora, "lora_dropout": 0.0} if lora else {}
    return {
        "model": model, "gpus": GPUS, "gpu": "h200", "seq_len": tokens, "micro_batch": batch,
        "gradient_accumulation": accumulation, "checkpointing": "full" if checkpointing else "none",
        "loss": "standard", "no_calibration": True, **adapters,
    }  # fmt: skip


def fsdp2(
    job: tuple[str, int, int, int, bool, int | None], gpus: int, shared: int, **settings: Any
) -> Strategy:
    """The job's strategy under FSDP2; so many ranks are ``shared`` by a sequence."""
    _, _, batch, accumulation, checkpointing, _ = job
    client = {"optimizer": None} if "client_optimizer" in settings else {}
    plain = {"wrapping": "accelerate", "precision": "bf16", "master_bytes": 4, **client}
    own = Fsdp2Settings(**{**plain, "micro_batch": batch, "gradient_accumulation": accumulation, **settings})
    kept = "full" if checkpointing else "none"
    return Strategy(
        settings=own, data_parallel=gpus // shared, sequence_parallel=shared, checkpointing=kept
    )  # fmt: skip


def cases() -> Iterator[tuple[Any, ...]]:
    """(pair, job, how it is trained), of some what more a plan and ``job.py`` are told."""
    for number, job in enumerate(PAIRS):
        yield f"{number}.whole", job, {"zero": 2}
        yield f"{number}.whole", job, {"reshard_after_forward": False}
        yield f"{number}.divided", job, {"zero": 3}
        yield f"{number}.divided", job, {}
    for number, (job, how) in enumerate(ALONE):
        yield f"alone.{number}", job, how
    for number, other in enumerate(OTHERS):
        yield f"other.{number}", *other
    for number, (job, how, more, told) in enumerate(ONE_GPU):
        yield f"one.{number}", job, how, {"gpus": 1, **more}, told
    for number, (job, rotation) in enumerate(SHARED):
        yield f"cp.{number}", job, {"rotation": rotation}, {"cp": GPUS}, {"cp": GPUS, "rotation": rotation}


def row(
    pair: str,
    job: tuple[str, int, int, int, bool, int | None],
    how: dict[str, Any],
    more: Mapping[str, Any] = MappingProxyType({}),
    told: Mapping[str, Any] = MappingProxyType({}),
    *,
    host: float | None,
) -> dict[str, Any]:
    """One job with what is said of it."""
    model, tokens, batch, accumulation, checkpointing, lora = job
    profile = profiles.load(model, "5.17")
    assert profile is not None
    zero = how.get("zero")
    asked = {**options(job), **more, "engine": "deepspeed", **({"zero": zero} if zero else {})}
    if zero:
        plan = zerokit.plan(**asked)
        assert plan.plan is not None
        strategy = plan.plan.chosen.strategy
    else:
        asked |= {"engine": "fsdp2"}
        strategy = fsdp2(job, asked["gpus"], asked.get("cp", 1), **how)
    space = make_space(replace(resolve(asked).request, calibration=Calibration(host_factor=host)))[0]
    memory = estimate_traced(profile, space.job, strategy, space.cluster)
    time = space.timing.estimate(strategy)
    config = plan.to_dict()["chosen"]["deepspeed_config"] if zero else None
    settings = {} if zero else {
        "wrapping": strategy.settings.wrapping, "reshard": strategy.settings.reshard_after_forward,
        "offload": strategy.settings.offload, "replicas": strategy.settings.replicas,
    }  # fmt: skip
    return {
        "id": f"{pair}.{f'zero{zero}' if zero else 'fsdp2'}", "pair": pair, "model": model,
        "hf_config": profile.hf_config, "tokens": tokens, "batch": batch, "accumulation": accumulation,
        "checkpointing": checkpointing, "lora": lora, "engine": "deepspeed" if zero else "fsdp2",
        "deepspeed_config": config, **settings, **told,
        "said": {"step_seconds": time.step_seconds, "range": step_range(space.timing, strategy, memory),
                 "phases": dict(memory.ranks[0].phases)},
    }  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """A measured row beside what is said of it."""

    said: dict[str, Any]
    was: dict[str, Any]

    @property
    def took(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.was["seconds"])

    @property
    def time_error(self) -> float:
        """As a share."""
        return float(self.said["said"]["step_seconds"]) / self.took - 1

    @property
    def peak_error(self) -> float | None:
        """As a share; None: an engine before it in its process had left memory."""
        if self.was["before"] > _LEFT_BYTES:
            return None
        most = max(self.said["said"]["phases"][phase] for phase in self.was["phases"])
        return float(most / max(self.was["phases"].values()) - 1)

    @property
    def is_in_range(self) -> bool:
        """Whether the step took what was said of hosts that nobody has probed."""
        low, high = self.said["said"]["range"] or (self.took, self.took)
        return bool(low <= self.took <= high)

    @property
    def line(self) -> str:
        """One row of the page's table."""
        job, seconds = self.said, self.said["said"]["step_seconds"]
        how = f"{job['tokens']} × {job['batch']} × {job['accumulation']}"
        how += ", checkpointing" if job["checkpointing"] else ""
        method = f"LoRA {job['lora']}" if job["lora"] else "full"
        peak = "" if self.peak_error is None else f"{self.peak_error:+.3%}"
        return (
            f"| {job['model']} | {method}, {how} | {job['id'].partition('.')[2]} | {self.took:.3f} "
            f"| {seconds:.3f} ({self.time_error:+.0%}) | {peak} |"
        )


def compared(rows: Sequence[dict[str, Any]], host: float | None = None) -> list[tuple[str, Compared]]:
    """Each measured row beside what is said of it, and its pair."""
    measured = {row["id"]: row for row in rows if "failed" not in row}
    said = ((case[0], row(*case, host=host)) for case in cases())
    return [(pair, Compared(job, measured[job["id"]])) for pair, job in said if job["id"] in measured]


def as_predicted(rows: Sequence[tuple[str, Compared]]) -> list[tuple[str, Compared]]:
    """The same with the step times that were said before they ran."""
    return [
        (pair, Compared({**one.said, "said": {**one.said["said"], **one.was["said"]}}, one.was))
        for pair, one in rows
    ]


@dataclass(frozen=True)
class Summary:
    """FSDP2's ``peaks`` and ``times`` as absolute errors; pairs, and in how many the faster engine was
    ``named``, or one within 4 %; rows ``inside`` the range that was said of ``every``."""

    peaks: list[float]
    times: list[float]
    pairs: int
    named: int
    inside: int
    every: int

    @classmethod
    def of(cls, rows: Sequence[tuple[str, Compared]]) -> Summary:
        """What the rows come to."""
        by_pair = defaultdict[str, list[Compared]](list)
        for pair, one in rows:
            by_pair[pair].append(one)
        own = [one for _, one in rows if one.said["engine"] == "fsdp2"]
        both, named = [found for found in by_pair.values() if len(found) > 1], 0
        for found in both:
            chosen = min(found, key=lambda one: one.said["said"]["step_seconds"])
            named += chosen.took <= _AS_FAST * min(one.took for one in found)
        return cls(
            peaks=[abs(one.peak_error) for one in own if one.peak_error is not None],
            times=[abs(one.time_error) for one in own], pairs=len(both), named=named,
            inside=sum(one.is_in_range for _, one in rows), every=len(rows),
        )  # fmt: skip


def compare(rows: Sequence[dict[str, Any]], host: float | None) -> None:
    """Print each row's errors, and how often the faster engine was named."""
    found = compared(rows, host)
    for _, one in found:
        print(one.line)
    told = Summary.of(found)
    print(f"FSDP2: {len(told.times)} rows, peak median {statistics.median(told.peaks):.3%}, "
          f"worst {max(told.peaks):.3%}; step time mean {statistics.mean(told.times):.1%}, "
          f"worst {max(told.times):.1%}")  # fmt: skip
    print(f"within the range that was said: {told.inside} of {told.every}")
    print(f"the faster engine named, or within 4 %: {told.named} of {told.pairs}")


def main() -> None:
    """Write jobs, or compare rows."""
    host = float(sys.argv[2]) if len(sys.argv) > 2 else None
    if len(sys.argv) > 1:
        compare(rows(Path(sys.argv[1])), host)
        return
    for case in cases():
        print(json.dumps(row(*case, host=host)))


if __name__ == "__main__":
    main()
