"""A case to measure: a model, a job and a DeepSpeed configuration, as plain JSON.

The keys are those of a measured row (``data/README.md``); what is not given has its plain value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerokit.domain.ddp_settings import DdpSettings
from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.job import Job, Lora
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.errors import InputError

DEFAULTS: dict[str, Any] = {
    "head": "causal",
    "world_size": 1,
    "tensor_parallel": 1,
    "micro_batch": 1,
    "seq_len": 1024,
    "gradient_accumulation": 1,
    "activation_checkpointing": False,  # or "selective": zerokit.selective_checkpointing
    "use_reentrant": False,
    "attention": "sdpa",
    "attention_mask_given": False,  # a mask of ones
    "attention_mask_padded": False,  # one with padding: the last eighth of each sequence
    "weights_loaded_as": "model",
    "lora": None,
    "quantized": False,  # QLoRA: linear layers in NF4, double quantisation (needs bitsandbytes)
    "new_tokens": None,  # inference: of seq_len, tokens that generate makes; None: training
    "quantization": "none",  # of inference: int8, int4 (needs bitsandbytes)
    "steps": 6,
    "alloc_conf": None,
    "cap_bytes": None,
    "cap_ladder_mib": [],
    "alone": False,
    "expected": None,
    "plan": None,  # a folder that zerokit plan wrote, relative to the working folder
    "gate": False,  # onto its GPUs only when no other gated run is on them; start-up overlaps
    "about": None,  # what the case is for: kept in its row
    "engine": "deepspeed",  # or, in a series, "fsdp2" or "none" by Accelerate, in bf16
    "fsdp2": None,  # of Accelerate's plugin, beside what every case has
    "pairs": False,  # of a series: DPO, each sequence of the batch twice, with a reference pass
}

_OPTIMIZER = {
    "type": "AdamW",
    "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
}


def complete(case: Mapping[str, Any]) -> dict[str, Any]:
    """The case with every key; ``deepspeed_config`` completed by batch, optimizer and clipping. Raises
    InputError: an unknown key, or ``id`` or ``hf_config`` missing."""
    for key in ("id", "hf_config", "deepspeed_config"):
        if key not in case:
            raise InputError(f"case {case.get('id', '?')}: {key!r} is missing")
    unknown = set(case) - set(DEFAULTS) - {"id", "hf_config", "deepspeed_config"}
    if unknown:
        raise InputError(f"case {case['id']}: unknown {', '.join(sorted(unknown))}")
    full = DEFAULTS | dict(case)
    if full["new_tokens"] is not None:
        batch = {"train_micro_batch_size_per_gpu": full["micro_batch"]}
        full["deepspeed_config"] = batch | full["deepspeed_config"]
        return full
    full["deepspeed_config"] = {
        "train_micro_batch_size_per_gpu": full["micro_batch"],
        "gradient_accumulation_steps": full["gradient_accumulation"],
        "gradient_clipping": 1.0,
        "optimizer": _OPTIMIZER,
        "steps_per_print": 1_000_000,
        "wall_clock_breakdown": False,
        **full["deepspeed_config"],
    }
    return full


def read(path: Path) -> list[dict[str, Any]]:
    """The cases of a JSON file (a list), or rows of a JSONL file. Raises InputError: not JSON, or not a list
    of objects."""
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InputError(f"{path}: expected a list of cases")
    return found


def _checkpointing(value: bool | str) -> str:
    return value if isinstance(value, str) else "full" if value else "none"


def _settings(case: Mapping[str, Any]) -> TrainingSettings:
    engine = case.get("engine", "deepspeed")
    if engine == "deepspeed":
        settings = from_config(case["deepspeed_config"])
        return replace(settings, gradient_accumulation=case["gradient_accumulation"])
    of_batch = {name: case[name] for name in ("micro_batch", "gradient_accumulation")}
    if engine == "none":
        wide = 4 if case["weights_loaded_as"] == "fp32" else 2
        return DdpSettings(precision="bf16", **of_batch, weight_bytes=wide, autocast=True)
    own = dict(case["fsdp2"] or {})
    own["offload"] = own.pop("cpu_offload", False)
    return Fsdp2Settings(precision="bf16", **of_batch, **own)


def job_and_strategy(case: Mapping[str, Any]) -> tuple[Job, Strategy]:
    """What the memory model is asked about a case or a measured row."""
    settings = _settings(case)
    strategy = Strategy(
        settings=settings,
        data_parallel=case["world_size"] // case["tensor_parallel"],
        tensor_parallel=case["tensor_parallel"],
        checkpointing=_checkpointing(case["activation_checkpointing"]),
    )
    lora = None
    if case["lora"]:
        modules = case["lora"]["target_modules"]
        targets = (modules,) if isinstance(modules, str) else tuple(modules)
        lora = Lora(rank=case["lora"]["r"], targets=targets, dropout=case["lora"].get("lora_dropout", 0.0))
    job = Job(
        seq_len=case["seq_len"],
        global_batch=strategy.global_batch,
        method="qlora" if case.get("quantized") else "lora" if lora else "full",
        lora=lora,
        attention=case["attention"],
        # attention_mask_given is a mask of ones, which Transformers drops: but for the mask its run allocated
        # what the same run without one did. The job's flag means a mask with padding in it.
        attention_mask_given=case.get("attention_mask_padded", False),
        use_reentrant_checkpointing=case["use_reentrant"],
        inference=case.get("new_tokens") is not None,
        new_tokens=case.get("new_tokens"),
        quantization=case.get("quantization", "none"),
    )
    return job, strategy
