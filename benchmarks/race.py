"""The race: what trainers' own documentation gives beside the plan for the same job.

    python -m benchmarks.race --write      # plans: the cases to measure, and what is said of each
    python -m benchmarks.measure.series benchmarks/measure/cases/race.json -o ROWS.jsonl --gpus 2 --steps 20
    python -m benchmarks.race              # docs/race.md from the rows beside what was said

Bare loops: the model, micro-batch, accumulation, checkpointing, engine and its configuration of each, with
the same rows a step and the model's own loss, one after the other on one machine. What a trainer's Python
adds to a step is left out of both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import zerokit
from zerokit.catalog import models
from zerokit.planner.documents import PlannedStrategy
from zerokit.planner.request import resolve
from zerokit.search.explain import strategy_words
from zerokit.search.plan import make_space
from zerokit.timing.constants import Calibration
from zerokit.values import frozen_dataclass, replace

HERE = Path(__file__).parent
CASES = HERE / "measure" / "cases" / "race.json"
SAID = HERE / "measure" / "data" / "race-predicted.jsonl"
ROWS = HERE / "measure" / "data" / "race.jsonl"
PAGE = HERE.parent / "docs" / "race.md"
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8)
_EQUAL = 0.02
_RUNNERS = {"documented": "documented", "plan": "plan", "fsdp2": "plan, FSDP2"}


@frozen_dataclass
class Job:
    """What somebody trains, as a page of its trainer gives it.

    Attributes:
        source: file of a repository and its commit; ``words``: what it gives.
        options: of the job, as arguments of a plan.
        documented: how it is trained, likewise; ``deepspeed``: the file that it names, without batch.
        runners: beside ``documented``.
    """

    name: str
    source: str
    words: str
    options: Mapping[str, Any]
    documented: Mapping[str, Any]
    deepspeed: Mapping[str, Any] | None = None
    runners: tuple[str, ...] = ("plan",)


def _auto(hidden: int, **settings: Any) -> dict[str, Any]:
    """ZeRO-3 with the three sizes that Transformers fills in for "auto" (integrations/deepspeed.py)."""
    square = hidden * hidden
    return {
        "stage": 3, "contiguous_gradients": True, "sub_group_size": 1_000_000_000,
        "reduce_bucket_size": square,
        "stage3_prefetch_bucket_size": int(0.9 * square), "stage3_param_persistence_threshold": 10 * hidden,
        "stage3_max_live_parameters": 1_000_000_000, "stage3_max_reuse_distance": 1_000_000_000, **settings,
    }  # fmt: skip


_FACTORY = "LLaMA-Factory ff6d4d12"
_TRL = "TRL f2cd5771"
_HANDBOOK = "alignment-handbook 925acdf"
_LORA_8 = {"method": "lora", "lora_rank": 8, "lora_dropout": 0.0}
_FACTORYS_LOOP = {"checkpointing": "full", "reentrant": "on", "micro_batch": 1}
_ALONE = {"engine": "ddp", "loss": "standard"}
JOBS = (
    Job(
        name="qwen3-4b.full",
        source=f"{_FACTORY}, examples/train_full/qwen3_full_sft.yaml and deepspeed/ds_z3_config.json",
        words="ZeRO-3 with auto sizes, no overlap; 1 × 2 rows, reentrant checkpointing",
        options={"model": "qwen3-4b", "gpus": 2, "seq_len": 2048},
        documented={**_FACTORYS_LOOP, "gradient_accumulation": 2},
        deepspeed=_auto(2560, overlap_comm=False),
        runners=("plan", "fsdp2"),
    ),
    Job(
        name="qwen3-4b.lora",
        source=f"{_FACTORY}, examples/train_lora/qwen3_lora_sft_ds3.yaml and deepspeed/ds_z3_config.json",
        words="ZeRO-3 with auto sizes, no overlap; 1 × 2 rows, reentrant checkpointing, rank 8",
        options={"model": "qwen3-4b", "gpus": 2, "seq_len": 2048, **_LORA_8},
        documented={**_FACTORYS_LOOP, "gradient_accumulation": 2},
        deepspeed=_auto(2560, overlap_comm=False),
    ),
    Job(
        name="qwen2.5-0.5b.full.1gpu",
        source=f"{_TRL}, trl/scripts/sft.py",
        words="no engine, weights in fp32 under autocast; 2 × 8 rows, checkpointing",
        options={"model": "qwen2.5-0.5b", "gpus": 1, "seq_len": 1024, "trainer": "trl", **_ALONE},
        documented={"micro_batch": 2, "gradient_accumulation": 8, "checkpointing": "full"},
    ),
    Job(
        name="qwen2.5-0.5b.full",
        source=f"{_TRL}, trl/scripts/sft.py with examples/accelerate_configs/deepspeed_zero2.yaml",
        words="ZeRO-2 of Accelerate; 2 × 8 rows, checkpointing",
        options={"model": "qwen2.5-0.5b", "gpus": 2, "seq_len": 1024},
        documented={"micro_batch": 2, "gradient_accumulation": 8, "checkpointing": "full"},
        deepspeed={"stage": 2},
        runners=("plan", "fsdp2"),
    ),
    Job(
        name="mistral-7b.full",
        source=f"{_HANDBOOK}, recipes/zephyr-7b-beta/sft/config_full.yaml and accelerate_configs/zero3.yaml",
        words="ZeRO-3 of Accelerate; 16 × 1 rows, checkpointing",
        options={"model": "mistral-7b-v0.1", "gpus": 2, "seq_len": 2048},
        documented={"micro_batch": 16, "gradient_accumulation": 1, "checkpointing": "full"},
        deepspeed={"stage": 3},
        runners=("plan", "fsdp2"),
    ),
    Job(
        name="qwen3-4b.qlora.1gpu",
        source=f"{_FACTORY}, examples/train_qlora/qwen3_lora_sft_otfq.yaml",
        words="no engine, 4 bits; 1 × 8 rows, reentrant checkpointing, rank 8",
        options={
            "model": "qwen3-4b", "gpus": 1, "seq_len": 2048, "trainer": "llamafactory", **_LORA_8, **_ALONE,
            "method": "qlora",
        },
        documented={**_FACTORYS_LOOP, "gradient_accumulation": 8},
    ),
    Job(
        name="qwen2.5-0.5b.lora.1gpu",
        source=f"{_TRL}, trl/scripts/sft.py",
        words="no engine, weights in fp32 under autocast; 2 × 8 rows, checkpointing, rank 32 on q and v",
        options={
            "model": "qwen2.5-0.5b", "gpus": 1, "seq_len": 1024, "trainer": "trl", **_ALONE, "method": "lora",
            "lora_rank": 32, "lora_targets": "q_proj,v_proj", "lora_dropout": 0.05,
        },
        documented={"micro_batch": 2, "gradient_accumulation": 8, "checkpointing": "full"},
    ),
    Job(
        name="qwen3-4b.dpo.1gpu",
        source=f"{_FACTORY}, examples/train_lora/qwen3_lora_dpo.yaml",
        words="no engine; 1 × 8 pairs, checkpointing, rank 8",
        options={
            "model": "qwen3-4b", "gpus": 1, "seq_len": 2048, "trainer": "trl-dpo", "load_dtype": "bf16",
            **_LORA_8, **_ALONE,
        },
        documented={"micro_batch": 1, "gradient_accumulation": 8, "checkpointing": "full"},
    ),
    Job(
        name="smollm2-360m.full",
        source=f"{_HANDBOOK}, recipes/smollm2/sft/config_smol.yaml and accelerate_configs/zero3.yaml",
        words="ZeRO-3 of Accelerate; 4 × 4 rows, checkpointing",
        options={"model": "smollm2-360m", "gpus": 2, "seq_len": 8192},
        documented={"micro_batch": 4, "gradient_accumulation": 4, "checkpointing": "full"},
        deepspeed={"stage": 3},
    ),
)  # fmt: skip
"""TRL's pages name Qwen2-0.5B, which has the shape of Qwen2.5-0.5B."""


def runs(job: Job) -> Iterator[tuple[str, PlannedStrategy, dict[str, Any] | None]]:
    """(runner, how it trains, its DeepSpeed file)."""
    asked = {**job.options, "gpu": "h200", "no_calibration": True}
    if job.deepspeed is None:
        found = zerokit.estimate(**asked, **job.documented)
    else:
        batch = {
            "train_micro_batch_size_per_gpu": job.documented["micro_batch"],
            "gradient_accumulation_steps": job.documented["gradient_accumulation"],
        }
        config = {"bf16": {"enabled": True}, "zero_optimization": dict(job.deepspeed)}
        rest = {key: value for key, value in job.documented.items() if key in ("checkpointing", "reentrant")}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({**config, **batch, "gradient_clipping": 1.0}, file)
            file.flush()
            found = zerokit.estimate(**asked, **rest, deepspeed=Path(file.name))
    documented = found.planned
    yield "documented", documented, config if job.deepspeed else None
    for runner in job.runners:
        engine = {"engine": "fsdp2"} if runner == "fsdp2" else {}
        plan = zerokit.plan(**asked, global_batch=documented.strategy.global_batch, **engine)
        yield runner, plan.chosen, plan.to_dict()["chosen"].get("deepspeed_config")


def case_of(
    job: Job, runner: str, planned: PlannedStrategy, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What ``series`` measures."""
    strategy, own = planned.strategy, planned.job
    settings = strategy.settings
    engine = {"ddp": "none"}.get(planned.engine, planned.engine)
    adapters = own.lora if own.method != "full" else None
    wide = (engine == "none" and settings.weight_bytes == 4) or (engine == "fsdp2" and adapters is None)
    found = {
        "id": f"{job.name}.{runner}",
        "hf_config": models.load(job.options["model"]).hf_config,
        "world_size": strategy.world_size,
        "micro_batch": settings.micro_batch,
        "gradient_accumulation": settings.gradient_accumulation,
        "seq_len": own.seq_len,
        "activation_checkpointing": strategy.checkpointing == "full",
        "use_reentrant": own.is_reentrant(settings),
        "lora": adapters and {
            "r": adapters.rank, "task_type": "CAUSAL_LM", "lora_dropout": adapters.dropout,
            "target_modules": "all-linear" if "all-linear" in adapters.targets else list(adapters.targets),
        },
        "quantized": own.method == "qlora",
        "weights_loaded_as": "fp32" if wide else "model",
        "engine": engine,
        "pairs": own.defaults.sequences == 2,
        "deepspeed_config": config or {"bf16": {"enabled": True}},
    }  # fmt: skip
    if engine == "fsdp2":
        found["fsdp2"] = {
            "reshard_after_forward": settings.reshard_after_forward, "cpu_offload": settings.offload
        }  # fmt: skip
    return found


def said_of(case: Mapping[str, Any], job: Job, planned: PlannedStrategy) -> dict[str, Any]:
    """Seconds of a step by the host's factor, and the peak."""
    request = resolve({**job.options, "gpu": "h200", "no_calibration": True}).request
    by_factor = {}
    for factor in FACTORS:
        space = make_space(replace(request, job=planned.job, calibration=Calibration(host_factor=factor)))[0]
        by_factor[str(factor)] = round(space.timing.estimate(planned.strategy).step_seconds, 5)
    return {
        "id": case["id"],
        "seconds_by_host_factor": by_factor,
        "peak_allocated_bytes": planned.estimate.peak_allocated_bytes,
        "strategy": strategy_words(planned.strategy),
    }


def write() -> None:
    """Plan every job; write the cases and what is said of them."""
    found, said = [], []
    for job in JOBS:
        for runner, planned, config in runs(job):
            case = case_of(job, runner, planned, config)
            found.append(case)
            said.append(said_of(case, job, planned))
    CASES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    SAID.write_text("".join(json.dumps(row) + "\n" for row in said), encoding="utf-8")


def main() -> None:
    """Write the cases, or the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="plan the jobs anew")
    options = parser.parse_args()
    if options.write:
        write()


if __name__ == "__main__":
    main()
