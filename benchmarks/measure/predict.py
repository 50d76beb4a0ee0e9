"""Predict every case, without a GPU: what the runner packs by, and what ``compare`` judges."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.measure import case as cases
from zerokit.catalog import gpus
from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import MemoryEstimate
from zerokit.errors import ZerokitError
from zerokit.memory.estimate import estimate_traced
from zerokit.memory.inference import phase_peaks
from zerokit.trace.on_demand import complete


def estimate(case: Mapping[str, Any], gpu: str = "h200") -> MemoryEstimate:
    """The memory model's answer for a case or row, every rank. Raises ZerokitError: the model cannot be
    traced."""
    job, strategy = cases.job_and_strategy(case)
    profile = complete(
        None, case["hf_config"], job, strategy, name=case["hf_config"]["model_type"], head=case["head"]
    )
    cluster = Cluster(gpu=gpus.load(gpu), gpus=strategy.world_size, nodes=1)
    return estimate_traced(profile, job, strategy, cluster, every_rank=True)


def passes(case: Mapping[str, Any]) -> dict[str, int]:
    """Predicted peaks of a prompt and of the longest step after it; empty in training."""
    if case["new_tokens"] is None:
        return {}
    job, strategy = cases.job_and_strategy(case)
    profile = complete(
        None, case["hf_config"], job, strategy, name=case["hf_config"]["model_type"], head=case["head"]
    )
    return phase_peaks(profile, job, strategy)


def expected(found: MemoryEstimate) -> dict[str, Any]:
    """What of an estimate is kept beside a case. Bytes; phases of rank 0."""
    return {
        "peak_allocated_bytes": [rank.peak_allocated_bytes for rank in found.ranks],
        "phases": dict(found.ranks[0].phases),
        "peak_phase": found.ranks[0].peak_phase,
        "host_bytes_per_node": found.host_bytes_per_node,
        "min_vram_bytes": found.min_vram_bytes,
    }


def _one(case: dict[str, Any], gpu: str) -> tuple[dict[str, Any], str | None, float]:
    """The case with ``expected``, or why it has none; and seconds taken."""
    start = time.monotonic()
    try:
        found = case | {"expected": expected(estimate(case, gpu))}
        found["expected"] |= passes(case)
    except ZerokitError as error:
        return case, str(error), time.monotonic() - start
    except Exception as error:  # a defect in the tracer costs its case, not the others
        return case, f"{type(error).__name__}: {error}", time.monotonic() - start
    return found, None, time.monotonic() - start


def main() -> int:
    """Write the cases with ``expected``; a case that cannot be predicted is said and left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--jobs", type=int, default=1, help="processes that trace (default 1)")
    options = parser.parse_args()
    todo = [cases.complete(item) for item in cases.read(options.cases)]
    done = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for case, trouble, seconds in pool.map(_one, todo, [options.gpu] * len(todo)):
            if trouble is not None:
                print(f"{case['id']}: left out: {trouble}", file=sys.stderr, flush=True)
                continue
            gib = max(case["expected"]["peak_allocated_bytes"]) / 2**30
            print(
                f"{case['id']}: {gib:.2f} GiB ({case['expected']['peak_phase']}), {seconds:.1f} s", flush=True
            )
            done.append(case)
    options.output.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
