"""Step times that others published: Megatron-DeepSpeed and llm-foundry runs on A100s and H100s."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster, Gpu
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"


MEGATRON_FILE = DATA / "a100-megatron-deepspeed-iteration-times.csv"


FSDP_FILE = DATA / "a100-80gb-fsdp-throughput.csv"


FSDP_FILES = {
    "a100-80gb": FSDP_FILE,
    "a100-40gb": DATA / "a100-40gb-fsdp-throughput.csv",
    "h100-sxm-80gb": DATA / "h100-80gb-fsdp-throughput.csv",
}
"""llm-foundry's tables, by GPU."""
_NODE_NETWORK = {"h100-sxm-80gb": 400e9}
_A100_NODE_NETWORK = 200e9
"""Bytes per second and node: llm-foundry names 1600 Gb/s RoCE for its A100s. For its H100s it names none:
3200 Gb/s is what eight ports of 400 Gb/s give, one a GPU (NVIDIA DGX H100 user guide)."""


_VOCABULARY = 50304  # GPT-2's, padded to a multiple of 128


_MPT = {  # llm-foundry's model configurations: width, layers, heads
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16),
    "3b": (2560, 32, 20), "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run. ``rivals`` names the job; ``shape_key`` the model."""

    shape: ModelShape
    job: Job
    strategy: Strategy
    cluster: Cluster
    seconds: float
    rivals: tuple[object, ...]
    shape_key: tuple[object, ...]


def megatron_runs(path: Path, gpu: Gpu) -> list[Run]:
    """Rows of vTrain's ground truth: GPT models, eager attention, reentrant checkpointing, fp16."""
    found, shapes = [], {}
    for row in csv.DictReader(path.open(encoding="utf-8")):
        width, heads, layers, length, count = (
            int(row[key]) for key in ("hidden_size", "num_heads", "num_layers", "seq_len", "num_gpus")
        )
        key = (width, heads, layers, length)
        if key not in shapes:
            config = {"model_type": "gpt2", "n_embd": width, "n_head": heads, "n_layer": layers,
                      "n_positions": length, "vocab_size": _VOCABULARY}  # fmt: skip
            shapes[key] = from_config(config, name="gpt")
        data, micro, batch = (int(row[name]) for name in ("data_parallel", "micro_batch", "global_batch"))
        settings = DeepSpeedSettings(
            precision="fp16",
            micro_batch=micro,
            gradient_accumulation=batch // data // micro,
            zero=ZeroSettings(stage=0),
        )
        strategy = Strategy(
            settings=settings,
            data_parallel=data,
            tensor_parallel=int(row["tensor_parallel"]),
            pipeline_parallel=int(row["pipeline_parallel"]),
            checkpointing="full",
        )
        found.append(
            Run(
                shape=shapes[key],
                job=Job(seq_len=length, attention="eager", use_reentrant_checkpointing=True),
                strategy=strategy,
                cluster=Cluster(gpu=gpu, gpus=count, nodes=max(1, count // 8)),
                seconds=float(row["iteration_ms"]) / 1e3,
                rivals=(count, batch, *key),
                shape_key=key,
            )
        )
    return found


def fsdp_runs(path: Path, gpu: Gpu) -> list[Run]:
    """Rows of llm-foundry's table: MPT models, flash attention, FULL_SHARD as stage 3."""
    found = []
    for row in csv.DictReader(path.open(encoding="utf-8")):
        if row["model"] not in _MPT:
            raise SystemExit(f"{path}: model {row['model']!r}; known: {', '.join(_MPT)}")
        width, layers, heads = _MPT[row["model"]]
        length, count, micro = (int(row[key]) for key in ("seq_len", "num_gpus", "micro_batch"))
        config = {"model_type": "mpt", "d_model": width, "n_layers": layers, "n_heads": heads,
                  "expansion_ratio": 4, "vocab_size": 50368, "max_seq_len": length}  # fmt: skip
        shape = from_config(config, name=row["model"], parameters=int(row["params"]))
        steps = int(row["gradient_accumulation"])
        settings = DeepSpeedSettings(
            precision="bf16",
            micro_batch=micro,
            gradient_accumulation=steps,
            zero=ZeroSettings(stage=3 if row["sharding"] == "FULL_SHARD" else 2),
        )
        checkpointing = "full" if row["activation_checkpointing"] == "True" else "none"
        found.append(
            Run(
                shape=shape,
                job=Job(seq_len=length, attention="flash_attention_2"),
                strategy=Strategy(settings=settings, data_parallel=count, checkpointing=checkpointing),
                cluster=Cluster(
                    gpu=gpu,
                    gpus=count,
                    nodes=max(1, count // 8),
                    network_bytes_per_second=_NODE_NETWORK.get(gpu.name, _A100_NODE_NETWORK),
                ),
                seconds=micro * steps * length / float(row["tokens_per_second_per_gpu"]),
                rivals=(),
                shape_key=(row["model"],),
            )
        )
    return found
