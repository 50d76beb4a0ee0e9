"""Which scripts are timed: models, settings and lists of them, each as a row without measurements."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

SMALL = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
LARGE = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "tie_word_embeddings": True, "rope_theta": 500000.0, "max_position_embeddings": 131072,
}  # fmt: skip

MEDIUM = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 1536, "intermediate_size": 6144,
    "num_hidden_layers": 14, "num_attention_heads": 24, "num_key_value_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
QWEN = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 12, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "max_position_embeddings": 32768, "rope_theta": 1000000.0,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": True, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
}  # fmt: skip
WIDE = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2560, "intermediate_size": 6912,
    "num_hidden_layers": 16, "num_attention_heads": 20, "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 50257, "n_embd": 1280, "n_layer": 20, "n_head": 20,
    "n_positions": 1024, "n_ctx": 1024,
}  # fmt: skip
TALL = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 960, "intermediate_size": 2560,
    "num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
    "num_hidden_layers": 13, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "sliding_window": 512, "tie_word_embeddings": True, "max_position_embeddings": 32768,
}  # fmt: skip
OLMO2 = {
    "model_type": "olmo2", "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 16,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
RUN_CLM = "Transformers: examples/pytorch/language-modeling/run_clm.py"
PIPELINE = "zerokit: tests/rehearsal/scripts/pipeline_llama.py"
FINETUNE = "DeepSpeedExamples: training/DeepSpeed-ZenFlow/finetuning/finetune_llama.py"
FINETUNE_ROWS = 64
"""Of its data set (``rehearsal.inputs``)."""
MODELS = {
    "small": SMALL, "large": LARGE, "medium": MEDIUM, "qwen": QWEN, "qwen3": QWEN3, "wide": WIDE,
    "gpt2": GPT2, "tall": TALL, "gemma3": GEMMA3, "olmo2": OLMO2,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    gpus: int = 1
    script: str = "sft"
    data: str = "sft"
    model: str = "large"
    length: int = 2048
    micro_batch: int = 4
    accumulation: int = 1
    zero: int = 2
    offload: bool = False
    offload_param: bool = False
    checkpointing: bool = False
    peft: bool = False
    arguments: tuple[str, ...] = ()
    """Further ones of the script."""


CASES = (
    Case(name="small.z2", model="small", length=1024),
    Case(name="small.accumulation", model="small", length=1024, micro_batch=1, accumulation=4),
    Case(name="large.z3", zero=3),
    Case(name="large.reward", script="reward", data="dpo", length=2304, micro_batch=2),
    Case(name="large.offload", offload=True),
    Case(name="large.z2.two", gpus=2),
    Case(name="large.z3.two", gpus=2, zero=3),
    Case(name="small.z3.two", gpus=2, zero=3, model="small", length=1024),
    Case(name="large.offload.two", gpus=2, zero=3, offload=True, checkpointing=True, micro_batch=8),
)
SECOND = (
    Case(name="medium.sft", model="medium"),
    Case(name="qwen.sft.z3", model="qwen", zero=3, length=1024),
    Case(name="qwen.dpo", model="qwen", script="dpo", data="dpo", micro_batch=1),
    Case(name="medium.reward.z3", model="medium", script="reward", data="dpo", zero=3, micro_batch=2,
         length=2304),
    Case(name="qwen.kto", model="qwen", script="kto", data="dpo", micro_batch=2),
    Case(name="medium.lora", model="medium", peft=True, checkpointing=True),
    Case(name="medium.offload", model="medium", offload=True, micro_batch=8),
    Case(name="medium.checkpointed", model="medium", checkpointing=True, micro_batch=16),
    Case(name="medium.z3.two", model="medium", zero=3, gpus=2, length=1024),
    Case(name="qwen.dpo.two", model="qwen", script="dpo", data="dpo", gpus=2, micro_batch=2),
    Case(name="medium.reward.two", model="medium", script="reward", data="dpo", gpus=2, accumulation=2,
         micro_batch=1, length=2304),
    Case(name="medium.offload.two", model="medium", gpus=2, zero=3, offload=True, checkpointing=True,
         micro_batch=8),
)  # fmt: skip
"""To be predicted before they are measured; the first ones were in part."""
_KNOWN = {case.name: case for case in (*CASES, *SECOND)}
TRACED = (
    "qwen.dpo", "medium.offload", "qwen.sft.z3", "medium.z3.two", "wide.sft.z3.two", "wide.offload.two",
    "qwen3.offload.all", "wide.offload.z3", "gpt2.dpo.lora", "olmo2.lora.two", "wide.accumulation.two",
    "gemma3.liger",
)  # fmt: skip
THIRD = (
    *(_KNOWN[name] for name in TRACED[:4]),
    _KNOWN["large.offload"],
    _KNOWN["qwen.dpo.two"],
    Case(name="qwen.reward", model="qwen", script="reward", data="dpo", micro_batch=1, length=2304),
    _KNOWN["medium.offload.two"],
    Case(name="small.lora.z3", model="small", peft=True, zero=3, length=1024, micro_batch=2),
    _KNOWN["medium.reward.two"],
    Case(name="small.kto", model="small", script="kto", data="dpo", micro_batch=2, accumulation=2),
    _KNOWN["small.z3.two"],
)
"""Those of :data:`TRACED` again; the others are predicted before they are measured."""
_KNOWN |= {case.name: case for case in THIRD}
FOURTH = tuple(
    _KNOWN[name]
    for name in ("small.lora.z3", "large.offload", "qwen.reward", "qwen.kto", "medium.lora", "qwen.sft.z3",
                 "small.kto", "medium.sft")
)  # fmt: skip
"""Again on another host, all on one GPU, with a model that was changed for none of what this list gives."""
FIFTH = (
    Case(name="wide.sft.z3.two", model="wide", gpus=2, zero=3, micro_batch=2),
    Case(name="qwen3.sft.two", model="qwen3", gpus=2, length=1024),
    Case(name="wide.dpo.two", model="wide", script="dpo", data="dpo", gpus=2, micro_batch=1),
    Case(name="wide.offload.two", model="wide", gpus=2, offload=True, checkpointing=True),
    Case(name="gpt2.clm.two", model="gpt2", script="run_clm", data="sft", gpus=2, length=1024),
    Case(name="qwen3.lora.z3.two", model="qwen3", gpus=2, zero=3, peft=True, length=1024, micro_batch=2),
    Case(name="qwen3.sft.z3", model="qwen3", zero=3, length=1536, micro_batch=2),
    Case(name="wide.kto", model="wide", script="kto", data="dpo", micro_batch=2),
    Case(name="gpt2.clm", model="gpt2", script="run_clm", data="sft", length=512, micro_batch=16),
    Case(name="wide.offload.z3", model="wide", zero=3, offload=True),
    Case(name="qwen3.dpo", model="qwen3", script="dpo", data="dpo", micro_batch=1),
)
"""Models and settings that were never timed before, six on two GPUs."""
_KNOWN |= {case.name: case for case in FIFTH}
SIXTH = (
    Case(name="gpt2.clm.offload", model="gpt2", script="run_clm", data="sft", length=1024, micro_batch=8,
         offload=True),
    Case(name="qwen3.lora", model="qwen3", peft=True, length=1024),
    _KNOWN["wide.kto"],
    Case(name="small.finetune", model="small", script="finetune_llama", length=512, micro_batch=8, zero=1),
    Case(name="qwen3.offload.all", model="qwen3", zero=3, offload=True, offload_param=True,
         checkpointing=True, micro_batch=8),
    _KNOWN["qwen3.sft.z3"],
    Case(name="gpt2.dpo.lora", model="gpt2", script="dpo", data="dpo", length=1024, micro_batch=2, peft=True,
         checkpointing=True),
    _KNOWN["wide.offload.z3"],
)  # fmt: skip
"""One GPU each, none timed before; three that the fifth list predicted and did not reach."""
SEVENTH = (
    Case(name="pipe.medium", model="medium", script="pipeline", gpus=2, zero=1, length=1024, accumulation=8),
    Case(name="pipe.wide.checkpointed", model="wide", script="pipeline", gpus=2, zero=1, length=2048,
         micro_batch=2, accumulation=6, checkpointing=True),
    _KNOWN["qwen3.lora.z3.two"],
    Case(name="wide.kto.two", model="wide", script="kto", data="dpo", gpus=2, micro_batch=2),
    Case(name="gpt2.clm.offload.two", model="gpt2", script="run_clm", data="sft", length=1024, micro_batch=8,
         gpus=2, offload=True),
    Case(name="qwen3.offload.z3.two", model="qwen3", zero=3, offload=True, gpus=2, length=1536),
    Case(name="medium.sft.z3.two", model="medium", zero=3, gpus=2, checkpointing=True, micro_batch=8),
)  # fmt: skip
"""Two GPUs each, none timed before: two pipelines, two with offload."""
EIGHTH = (
    Case(name="tall.sft", model="tall", length=1024),
    Case(name="tall.dpo.lora", model="tall", script="dpo", data="dpo", length=1024, micro_batch=1, peft=True),
    Case(name="gemma3.sft.z3", model="gemma3", zero=3, length=1536, micro_batch=2),
    Case(name="olmo2.reward", model="olmo2", script="reward", data="dpo", length=2304, micro_batch=2),
    Case(name="olmo2.packed", model="olmo2", micro_batch=2, arguments=("--packing", "True")),
    Case(name="gemma3.liger", model="gemma3", length=1024, arguments=("--use_liger_kernel", "True")),
    Case(name="qwen.finetune.z3", model="qwen", script="finetune_llama", length=512, micro_batch=4, zero=3),
    Case(name="olmo2.offload.accumulation", model="olmo2", offload=True, accumulation=2),
    Case(name="tall.sft.two", model="tall", gpus=2, length=1024),
    Case(name="gemma3.dpo.z3.two", model="gemma3", script="dpo", data="dpo", gpus=2, zero=3, micro_batch=1),
    Case(name="olmo2.lora.two", model="olmo2", gpus=2, peft=True, checkpointing=True),
    Case(name="olmo2.offload.all.two", model="olmo2", gpus=2, zero=3, offload=True, offload_param=True,
         checkpointing=True),
    Case(name="tall.kto.z3.two", model="tall", script="kto", data="dpo", gpus=2, zero=3, micro_batch=2,
         length=1024),
    Case(name="wide.accumulation.two", model="wide", gpus=2, accumulation=4, micro_batch=1),
)  # fmt: skip
"""Three models and all settings that were never timed before, six on two GPUs."""
NINTH = (
    Case(name="qwen3.sft.four", model="qwen3", gpus=4, length=1536),
    Case(name="olmo2.lora.z3.four", model="olmo2", gpus=4, zero=3, peft=True, micro_batch=2, length=1024),
    Case(name="medium.offload.four", model="medium", gpus=4, zero=3, offload=True, micro_batch=8),
)  # fmt: skip
"""Four GPUs each."""
LISTS = {
    "first": CASES, "second": SECOND, "third": THIRD, "fourth": FOURTH, "fifth": FIFTH, "sixth": SIXTH,
    "seventh": SEVENTH, "eighth": EIGHTH, "ninth": NINTH,
}  # fmt: skip


def row_of(case: Case, steps: int) -> dict[str, Any]:
    """What is run, as a row without measurements."""
    zero: dict[str, Any] = {"stage": case.zero}
    if case.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if case.offload_param:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    row = {
        "name": case.name,
        "model": MODELS[case.model],
        "gpus": case.gpus,
        "probed": "between steps",
        "case": asdict(case),
        "phases": {},
        "peak_allocated_bytes": 1,
        "peak_reserved_bytes": 1,
    }
    run = {"finetune_llama": _finetune, "pipeline": _pipeline}.get(case.script, _trained)
    return row | run(case, zero, steps)


def _pipeline(case: Case, zero: dict[str, Any], steps: int) -> dict[str, Any]:
    """DeepSpeed's pipeline over all GPUs."""
    config: dict[str, Any] = {
        "bf16": {"enabled": True},
        "gradient_accumulation_steps": case.accumulation,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "train_micro_batch_size_per_gpu": case.micro_batch,
        "zero_optimization": zero,
    }
    if case.checkpointing:
        config["pipeline"] = {"activation_checkpoint_interval": 1, "use_reentrant": False}
    return {
        "script": PIPELINE,
        "args": ["{model}", str(case.gpus), str(case.length), "--steps", str(steps), "--deepspeed"],
        "deepspeed_config": config,
        "deepspeed_option": "--deepspeed_config",
    }


def _finetune(case: Case, zero: dict[str, Any], steps: int) -> dict[str, Any]:
    """A loop of its own, without a Trainer."""
    epochs = math.ceil(steps * case.micro_batch * case.accumulation / FINETUNE_ROWS)
    return {
        "script": FINETUNE,
        "args": [
            "--model_name", "{model}", "--lr", "1e-5", "--batch_size", str(case.micro_batch),
            "--num_train_epochs", str(epochs), "--output_dir", "{out}",
        ],
        "deepspeed_config": {
            "bf16": {"enabled": True},
            "gradient_accumulation_steps": case.accumulation,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
            "train_micro_batch_size_per_gpu": case.micro_batch,
            "zero_optimization": zero,
        },
        "deepspeed_option": "--deepspeed_config",
    }  # fmt: skip


def _trained(case: Case, zero: dict[str, Any], steps: int) -> dict[str, Any]:
    """By Transformers' Trainer or one of TRL's."""
    is_example = case.script == "run_clm"
    arguments = [
        "--model_name_or_path", "{model}", "--output_dir", "{out}",
        "--per_device_train_batch_size", str(case.micro_batch),
        "--gradient_accumulation_steps", str(case.accumulation), "--max_steps", str(steps),
        "--logging_steps", "1", "--report_to", "none", "--save_strategy", "no", "--bf16", "True",
        "--dtype", "bfloat16", "--gradient_checkpointing", str(case.checkpointing),
    ]  # fmt: skip
    if is_example:
        arguments += ["--train_file", "{data}/words.txt", "--do_train", "--block_size", str(case.length)]
    else:
        arguments += ["--dataset_name", "{data}/" + case.data, "--max_length", str(case.length)]
    if case.peft:
        arguments += ["--use_peft", "--lora_target_modules", "all-linear"]
    arguments += case.arguments
    return {
        "script": RUN_CLM if is_example else f"trl/scripts/{case.script}.py",
        "args": arguments,
        "deepspeed_config": {
            "bf16": {"enabled": "auto"},
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "zero_optimization": zero,
        },
        "deepspeed_option": "--deepspeed",
    }
