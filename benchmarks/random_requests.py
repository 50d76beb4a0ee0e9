"""Random requests: the CPU time of every `zerokit plan`, and whether more hardware ever makes it slower.

    python -m benchmarks.random_requests [--number 300] [--first SEED] [--bar SECONDS] [--time-only]

Each request is planned by a new process, whose user and system time counts: Python's start, imports and all.
Then each is planned again with a faster link, more memory and twice the GPUs. Prints a Markdown table of the
slowest, and every request that breaks a rule; ends with 1 if one does.

Drawn are all models that the catalogue can answer for without a trace: those with a closed form, and those
whose traces it stores. Of the latter only what is stored is asked: the methods (most have no QLoRA) and,
where a trace holds for one length, the lengths, without sequence parallelism. Models of images, which need
``--images`` and a trace, and those without either are left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import zerokit
from benchmarks.common import options_of
from zerokit.catalog import gpus, models, profiles
from zerokit.domain.profile import Variant
from zerokit.errors import InputError, NothingFits
from zerokit.planner.options import normalized
from zerokit.planner.plan_result import PlanResult
from zerokit.planner.request import resolve
from zerokit.search.explain import NOISE
from zerokit.search.plan import make_plan
from zerokit.search.space import Request

ALIKE = (1 + NOISE) * (1 + 1e-6)
"""A simpler strategy may be so much slower than the fastest (:mod:`zerokit.search.explain`)."""
_IDLE = 0.05
_EXPECTED_ENDS = (0, 2, 3)
"""A plan, a request that cannot be, nothing fits."""


@cache
def _names() -> tuple[list[str], list[str]]:
    stored = set(profiles.names())
    names = [m.name for m in models.index() if m.has_closed_form or m.name in stored]
    return names, list(gpus.names())


_ADAPTERS = {
    "lora": (Variant(lora_rank=16), Variant(lora_rank=16, zero3_linear=True)),
    "qlora": (Variant(lora_rank=16, quantized=True),),
}


def _as_stored(request: dict[str, Any]) -> dict[str, Any]:
    """The request without what the catalogue would have to trace: of a model without a closed form."""
    profile = profiles.load(request["model"])
    if profile is None or models.load(request["model"]).has_closed_form:
        return request
    kept = dict(request)
    if not all(profile.has(variant) for variant in _ADAPTERS.get(kept.get("method", "full"), ())):
        del kept["method"]
    traces = profile.traces[Variant().key]
    if all(trace.min_seq_len for trace in traces):
        kept.pop("sp", None)
        if profile.trace(Variant(), kept.get("seq_len", 2048)) is None:
            del kept["seq_len"]
    return kept


def random_request(random: Random) -> dict[str, Any]:
    """Options of `plan` for a model whose closed form or trace the catalogue has."""
    names, cards = _names()
    count = random.choice([1, 2, 4, 8, 16, 32, 64, 128, 256, 1024])
    choices: dict[str, tuple[float, list[Any]]] = {
        "seq_len": (0.6, [512, 1024, 2048, 4096, 8192, 32768, 131072]),
        "method": (0.3, ["lora", "qlora"]),
        "tp": (0.3, ["auto"]),
        "sp": (0.2, ["auto"]),
        "network": (0.3, ["12.5GB", "25GB", "100GB", "400GB"]),
        "pipeline_module": (0.2, [True]),
        "host_ram": (0.2, ["256GiB", "1TiB", "2TiB"]),
    }
    request = {"model": random.choice(names), "gpu": random.choice(cards), "gpus": count}
    request["global_batch"] = count * random.choice([2, 4, 8, 16])
    drawn = {k: random.choice(v) for k, (share, v) in choices.items() if random.random() < share}
    return _as_stored(request | drawn)


def _planned(request: dict[str, Any]) -> PlanResult | None:
    """The plan; none where nothing fits, or where the request cannot be."""
    try:
        return zerokit.plan(**request)
    except (NothingFits, InputError) as error:
        assert error.exit_code in _EXPECTED_ENDS
        return None


def step_seconds(plan: PlanResult) -> float:
    """Of the chosen strategy."""
    return float(plan.to_dict()["chosen"]["estimate"]["step_seconds"])


def _share_of_peak(plan: PlanResult, asked: Request, method: str) -> float:
    """Six operations a token for a trained weight, four for a frozen one, over the datasheet's rate."""
    chosen = plan.to_dict()["chosen"]
    peaks = asked.cluster.gpu.peak_flops
    peak = peaks.get(chosen["precision"]) or max(peaks.values())
    per_token = (6 if method == "full" else 4) * asked.shape.matmul_parameters
    return per_token * float(chosen["estimate"]["tokens_per_second_per_gpu"]) / peak


def violations(request: dict[str, Any]) -> list[str]:
    """What is not as it must be: an alternative faster than the choice, more hardware that is slower, or no
    word on GPUs that reach under 5 % of their peak."""
    plan = _planned(request)
    if plan is None:
        return []
    chosen, found = step_seconds(plan), []
    others = [other["estimate"]["step_seconds"] for other in plan.to_dict()["alternatives"]]
    if any(seconds * ALIKE < chosen for seconds in others):
        found.append(f"an alternative takes {min(others):.6f} s, the choice {chosen:.6f} s")
    asked = resolve(normalized(request)).request
    share = _share_of_peak(plan, asked, request.get("method", "full"))
    if share < _IDLE and not any("of their peak" in line for line in plan.advice):
        found.append(f"the GPUs reach {share:.1%} of their peak, and nothing says so")
    gpu = asked.cluster.gpu.with_total_memory(round(1.25 * asked.cluster.gpu.driver_vram_bytes))
    roomier = make_plan(replace(asked, cluster=replace(asked.cluster, gpu=gpu))).chosen.time.step_seconds
    more = {
        "a link of 800 GB/s": request | {"network": "800GB"},
        "twice the GPUs": request | {"gpus": 2 * request["gpus"]},
    }
    seconds_with = {"a quarter more GPU memory": roomier}
    for what, changed in more.items():
        better = _planned(changed)
        seconds_with[what] = float("inf") if better is None else step_seconds(better)
    return found + [
        f"with {what} {seconds:.6f} s, without {chosen:.6f} s"
        for what, seconds in seconds_with.items()
        if seconds > chosen * ALIKE
    ]


def command_line(request: dict[str, Any]) -> list[str]:
    """The request as a user types it."""
    command = [sys.executable, "-m", "zerokit", "plan"]
    for name, value in request.items():
        option = "--" + name.replace("_", "-")
        command += [option] if value is True else [option, str(value)]
    return command


def cpu_seconds(request: dict[str, Any]) -> float:
    """User and system time of one process. Raises SystemExit: the command ended as none may."""
    with tempfile.TemporaryDirectory() as folder:
        nothing = subprocess.DEVNULL
        child = subprocess.Popen(command_line(request), cwd=folder, stdout=nothing, stderr=nothing)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in _EXPECTED_ENDS:
        raise SystemExit(f"{' '.join(command_line(request))}: exit code {child.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--number", type=int, default=300, help="requests (default: 300)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first (default: 0)")
    parser.add_argument("--bar", type=float, default=2.0, help="seconds of CPU (default: 2)")
    parser.add_argument("--time-only", action="store_true", help="plan each request once")
    args = parser.parse_args()
    requests = [random_request(Random(seed)) for seed in range(args.first, args.first + args.number)]
    used = [cpu_seconds(request) for request in requests]
    too_slow = [seconds for seconds in used if seconds > args.bar]
    broken = [] if args.time_only else [(r, line) for r in requests for line in violations(r)]
    print("| seconds of CPU | request |\n| --- | --- |")
    for seconds, request in sorted(zip(used, requests, strict=True), key=lambda pair: -pair[0])[:10]:
        print(f"| {seconds:.2f} | `{' '.join(command_line(request)[3:])}` |")
    print(
        f"\n{len(requests)} requests: median {statistics.median(used):.2f} s, most {max(used):.2f} s; "
        f"{len(too_slow)} above the bar of {args.bar:g} s"
    )
    if not args.time_only:
        print(f"{len(broken)} in which more hardware is slower, an alternative faster, or idle GPUs unsaid")
    for request, line in broken:
        print(f"{' '.join(command_line(request)[3:])}: {line}")
    sys.exit(1 if too_slow or broken else 0)


if __name__ == "__main__":
    main()
