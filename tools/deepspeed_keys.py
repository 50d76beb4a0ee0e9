"""Write the list of keys that the installed DeepSpeed reads: ``python -m tools.deepspeed_keys``.

Pydantic blocks (which refuse unknown keys) are read from their model fields. Everything else (which
ignores unknown keys) is recorded: a dictionary that notes each key DeepSpeed asks for.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import typing
from typing import Any

from tools.key_recorder import recorder

LINTER = pathlib.Path(__file__).parents[1] / "zerokit" / "linter"

# DeepSpeed checks no types at the top level; a wrong one fails later, or is used as it is
_TOP_LEVEL_KINDS = {
    "integer": (
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "steps_per_print",
        "vocabulary_size",
    ),
    "number": ("gradient_clipping", "gradient_predivide_factor"),
    "boolean": (
        "managed_gradient_accumulation", "dump_state", "disable_python_gc", "disable_allgather",
        "prescale_gradients", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
        "wall_clock_breakdown", "memory_breakdown", "use_data_before_expert_parallelism",
        "dataloader_drop_last", "sparse_gradients", "graph_harvesting",
    ),
    "text": (
        "communication_data_type", "seq_parallel_communication_data_type", "gradient_allreduce_op", "log_level",
    ),
}  # fmt: skip

_RECORDED_BLOCKS = (
    "activation_checkpointing", "torch_autocast", "optimizer", "scheduler", "flops_profiler", "autotuning",
    "data_efficiency", "checkpoint", "data_types", "aio", "timers",
)  # fmt: skip
_RECORDED_KINDS = {
    "boolean": (
        "activation_checkpointing.partition_activations", "activation_checkpointing.cpu_checkpointing",
        "activation_checkpointing.contiguous_memory_optimization", "activation_checkpointing.profile",
        "activation_checkpointing.synchronize_checkpoint_boundary", "aio.single_submit", "aio.overlap_events",
        "aio.use_gds", "flops_profiler.enabled", "flops_profiler.detailed", "torch_autocast.enabled",
        "checkpoint.load_universal", "checkpoint.use_node_local_storage", "optimizer.legacy_fusion",
        *(f"{block}.{key}" for block in ("fp16", "bf16", "bfloat16")
          for key in ("enabled", "auto_cast", "immediate_grad_update", "consecutive_hysteresis")),
    ),
    "integer": (
        "activation_checkpointing.number_checkpoints", "aio.block_size", "aio.queue_depth",
        "aio.intra_op_parallelism", "flops_profiler.profile_step", "flops_profiler.module_depth",
        "flops_profiler.top_modules",
    ),
    "number": ("flops_profiler.recompute_fwd_factor",),
    "text": (
        "optimizer.type", "scheduler.type", "torch_autocast.dtype", "data_types.grad_accum_dtype",
        "data_types.param_dtype", "checkpoint.tag_validation", "flops_profiler.output_file",
    ),
}  # fmt: skip
_DTYPES = (
    "fp16",
    "float16",
    "half",
    "torch.float16",
    "bf16",
    "bfloat16",
    "torch.bfloat16",
    "fp32",
    "float32",
    "float",
    "torch.float32",
    "int8",
    "torch.int8",
)
_RECORDED_VALUES: dict[str, dict[str, Any]] = {
    # runtime/config.py, DtypeEnum
    "data_types.grad_accum_dtype": {"kind": "choice", "choices": list(_DTYPES)},
    "data_types.param_dtype": {"kind": "choice", "choices": list(_DTYPES)},
    "torch_autocast.dtype": {"kind": "choice", "choices": list(_DTYPES)},
    # runtime/config.py, get_checkpoint_tag_validation_mode
    "checkpoint.tag_validation": {"kind": "choice", "choices": ["Warn", "Ignore", "Fail"], "fold": True},
    # runtime/config.py, get_checkpoint_parallel_write_pipeline
    "checkpoint.parallel_write": {"kind": "block"},
    # utils/logging.py, should_log_le and set_log_level_from_string
    "log_level": {
        "kind": "choice",
        "choices": ["debug", "info", "warning", "error", "critical"],
        "fold": True,
    },
    # runtime/engine.py, (self.global_steps + 1) % self.steps_per_print()
    "steps_per_print": {"kind": "integer", "not": 0},
    # runtime/engine.py, self.gradient_clipping() > 0.0
    "gradient_clipping": {"kind": "number", "null": False},
    # runtime/config.py, get_wall_clock_breakdown(param_dict) | self.flops_profiler_config.enabled
    "wall_clock_breakdown": {"kind": "boolean", "null": False},
    # runtime/config.py, world_size / sequence_parallel_size
    "sequence_parallel_size": {"kind": "integer", "minimum": 1, "null": False},
}
"""Values that DeepSpeed itself fails on, in keys that no pydantic class describes."""
_CLASS_VALUES: dict[str, dict[str, Any]] = {"fp16.loss_scale": {"minimum": 0}}
"""Limits that a pydantic class checks in a validator of its own."""
_PRECISIONS = ("fp16", "bf16", "bfloat16")
"""Plain dictionaries before DeepSpeed 0.17."""
_ASK_WITH_TYPE = ("optimizer", "scheduler", "torch_autocast", *_PRECISIONS)
_NEEDED = {"type": "AdamW", "enabled": True}

# keys that something other than DeepSpeedConfig reads from the same file
_READ_ELSEWHERE = {
    "sequence_parallel_size": "deepspeed/runtime/config.py, DeepSpeedConfig.__init__",
    "msamp": "accelerate/utils/dataclasses.py, DeepSpeedPlugin",
    "inference": "transformers/integrations/deepspeed.py",
}


def generate() -> dict[str, Any]:
    """The list, from the installed DeepSpeed."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    top, nested = _recorded()
    blocks: dict[str, Any] = {}
    models = _models()
    removed = _removed()
    keys: dict[str, Any] = {}
    for name in sorted(top - set(removed["top_level"]) | set(_READ_ELSEWHERE)):
        kinds = [kind for kind, names in _TOP_LEVEL_KINDS.items() if name in names]
        keys[name] = _RECORDED_VALUES.get(name, {"kind": kinds[0] if kinds else "block"})
    for name in _READ_ELSEWHERE:
        keys[name] = _RECORDED_VALUES.get(name, {"kind": "any"})
    blocks[""] = {"unknown": "ignored", "keys": keys}
    for name, found in sorted(nested.items()):
        if name in models:
            continue
        blocks[name] = {
            "unknown": "ignored",
            "keys": {key: _recorded_entry(f"{name}.{key}") for key in sorted(found)},
        }
    for name, model in models.items():
        _describe(model, name, blocks)
    blocks["pipeline"] = {"unknown": "any", "keys": {}}
    blocks["data_efficiency"]["unknown"] = "any"
    return {
        "deepspeed": deepspeed.__version__,
        "source": "https://github.com/deepspeedai/DeepSpeed (Apache-2.0), read from the installed package",
        "blocks": blocks,
        "removed": removed,
        "parameters": {"optimizer": _optimizer_parameters(), "scheduler": _scheduler_parameters()},
    }


def _recorded_entry(dotted: str) -> dict[str, Any]:
    kind = next((kind for kind, names in _RECORDED_KINDS.items() if dotted in names), "any")
    return _RECORDED_VALUES.get(dotted, {"kind": kind})


def _recorded() -> tuple[set[str], dict[str, set[str]]]:
    from deepspeed.runtime.config import DeepSpeedConfig

    top = recorder({"train_micro_batch_size_per_gpu": 1})
    DeepSpeedConfig(top)
    nested = {}
    for name in (*_RECORDED_BLOCKS, *_PRECISIONS):
        if name not in top.seen or (name in _PRECISIONS and name in _models()):
            continue
        needed = {"enabled": True} if name in _PRECISIONS else dict(_NEEDED)
        block = recorder(needed if name in _ASK_WITH_TYPE else {})
        DeepSpeedConfig(recorder({"train_micro_batch_size_per_gpu": 1, name: block}))
        nested[name] = set(block.seen)
    return top.seen, nested


_MODELS = {
    "zero_optimization": ("deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
    "fp16": ("deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
    "bf16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "bfloat16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "tensor_parallel": ("deepspeed.runtime.tensor_parallel.config", "TPTrainingConfig"),
    "comms_logger": ("deepspeed.comm.config", "CommsLoggerConfig"),
    "compile": ("deepspeed.compile.config", "CompileConfig"),
    "hybrid_engine": ("deepspeed.runtime.config", "HybridEngineConfig"),
    "weight_quantization": ("deepspeed.inference.config", "WeightQuantConfig"),
    "tensorboard": ("deepspeed.monitor.config", "TensorBoardConfig"),
    "wandb": ("deepspeed.monitor.config", "WandbConfig"),
    "csv_monitor": ("deepspeed.monitor.config", "CSVConfig"),
    "comet": ("deepspeed.monitor.config", "CometConfig"),
}
"""Blocks that a pydantic class reads; older versions lack some."""


def _models() -> dict[str, Any]:
    found = {}
    for name, (module, attribute) in _MODELS.items():
        with contextlib.suppress(ImportError, AttributeError):
            found[name] = getattr(importlib.import_module(module), attribute)
    return found


def _describe(model: Any, path: str, blocks: dict[str, Any]) -> None:
    keys: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        entry = _kind(info.annotation)
        for limit in info.metadata:
            for attribute, label in (("gt", "above"), ("ge", "minimum"), ("lt", "below"), ("le", "maximum")):
                if getattr(limit, attribute, None) is not None:
                    entry[label] = getattr(limit, attribute)
        if extra.get("deprecated"):
            entry["deprecated"] = extra.get("new_param", "")
        limits = _CLASS_VALUES.get(f"{path}.{name}", {})
        if limits and _refuses(model, {name: limits["minimum"] - 1}):
            entry.update(limits)
        nested = entry.pop("model", None)
        for key in {name, info.alias or name}:
            keys[key] = dict(entry)
            if nested is not None:
                _describe(nested, f"{path}.{key}", blocks)
    blocks[path] = {"unknown": "refused", "keys": dict(sorted(keys.items()))}


def _refuses(model: Any, values: dict[str, Any]) -> bool:
    try:
        model(**values)
    except ValueError:
        return True
    return False


def _kind(annotation: Any) -> dict[str, Any]:
    from pydantic import BaseModel

    options = [option for option in typing.get_args(annotation) if option is not type(None)]
    if typing.get_origin(annotation) is typing.Union:
        if len(options) > 1:
            return {"kind": "any"}
        return {**_kind(options[0]), "null": True}
    if typing.get_origin(annotation) is typing.Literal:
        return {"kind": "choice", "choices": list(options)}
    if not inspect.isclass(annotation):
        return {"kind": "any"}
    if issubclass(annotation, BaseModel):
        return {"kind": "block", "model": annotation}
    if issubclass(annotation, enum.Enum):
        return {"kind": "choice", "choices": sorted({member.value for member in annotation}, key=str)}
    simple = {bool: "boolean", int: "integer", float: "number", str: "text", pathlib.Path: "text"}
    return {"kind": simple.get(annotation, "any")}


def _removed() -> dict[str, Any]:
    from deepspeed.runtime import config

    return {
        "top_level": sorted(getattr(config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", ())),
        "zero_optimization": sorted(getattr(config, "_REMOVED_ZERO_CONFIG_KEYS", ())),
    }


def _names(*callables: Any) -> list[str]:
    found: set[str] = set()
    for function in callables:
        found |= set(inspect.signature(function.__init__).parameters)
    return sorted(found - {"self", "params", "model_params", "optimizer", "args", "kwargs"})


def _without(names: list[str], *taken: str) -> list[str]:
    """Parameters that the engine gives itself cannot be given twice."""
    return [name for name in names if name not in taken]


def _optimizer_parameters() -> dict[str, dict[str, list[str]]]:
    """Parameters by type and by where the class steps (``DeepSpeedEngine._configure_basic_optimizer``)."""
    import torch
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
    from deepspeed.runtime.engine import DeepSpeedEngine

    engine = ["torch_adam", "adam_w_mode", *_states_parameter(DeepSpeedEngine)]
    adam = {
        "gpu": sorted({*_names(FusedAdam), *engine}),
        "cpu": sorted({*_without(_names(DeepSpeedCPUAdam), "adamw_mode"), *engine}),
        "torch": sorted({*_names(torch.optim.AdamW), *engine}),
    }
    halves = {
        *getattr(DeepSpeedEngine, "_MUON_HALF_KEYS", ("lr", "momentum", "weight_decay")),
        *getattr(DeepSpeedEngine, "_ADAM_HALF_KEYS", ("lr", "betas", "eps", "weight_decay")),
    }
    torch_classes = {
        name.lower(): {"gpu": _names(value)}
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and name not in ("Optimizer", "Adam", "AdamW", "Adagrad", "Muon")
    }
    return {
        **torch_classes,
        "adam": adam,
        "adamw": adam,
        "adagrad": {"gpu": _names(torch.optim.Adagrad), "cpu": _names(DeepSpeedCPUAdagrad)},
        "lamb": {"gpu": _names(FusedLamb)},
        "lion": {"gpu": _names(FusedLion), "cpu": _names(DeepSpeedCPULion)},
        "muon": {"gpu": sorted({*halves, "muon_lr", "adam_lr", *engine})},
    }


def _states_parameter(engine: Any) -> list[str]:
    source = inspect.getsource(engine)
    return ["fp32_optimizer_states"] if "pop('fp32_optimizer_states'" in source else []


def _scheduler_parameters() -> dict[str, list[str]]:
    from deepspeed.runtime import lr_schedules

    return {name: _names(getattr(lr_schedules, name)) for name in lr_schedules.VALID_LR_SCHEDULES}


def generate_accelerate() -> dict[str, Any]:
    """Keys and values of an accelerate YAML, from the installed Accelerate."""
    import accelerate
    from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.constants import DEEPSPEED_MULTINODE_LAUNCHERS
    from accelerate.utils.dataclasses import DistributedType, PrecisionType

    groups: dict[str, list[str]] = {}
    for group in launch_command_parser()._action_groups:
        groups[str(group.title)] = sorted(action.dest for action in group._group_actions)
    return {
        "accelerate": accelerate.__version__,
        "source": "https://github.com/huggingface/accelerate (Apache-2.0), read from the installed package",
        "cluster": sorted(ClusterConfig.__dataclass_fields__),
        "sagemaker": sorted(SageMakerConfig.__dataclass_fields__),
        # rewritten by BaseConfig.process_config
        "legacy": ["dynamo_backend", "fp16"],
        "deepspeed_config": groups["DeepSpeed Arguments"],
        "parallelism_config": groups["ParallelismConfig Arguments"],
        # read by the launcher, though no option sets it
        "fsdp_config": sorted({*groups["FSDP Arguments"], "fsdp_ignored_modules"}),
        "distributed_types": sorted(member.value for member in DistributedType),
        "mixed_precisions": sorted(PrecisionType.list()),
        "multinode_launchers": list(DEEPSPEED_MULTINODE_LAUNCHERS),
    }


def main() -> None:
    """Write ``deepspeed-VERSION.json`` and ``accelerate-VERSION.json`` into the linter.

    Without arguments those of the installed packages; ``deepspeed==0.18.9 accelerate==1.14.0`` and so on
    are installed into a temporary folder first, without what they depend on.
    """
    if len(sys.argv) == 1:
        _write("deepspeed", generate())
        _write("accelerate", generate_accelerate())
    elif sys.argv[1] == "--print":
        print(json.dumps({"deepspeed": generate, "accelerate": generate_accelerate}[sys.argv[2]]()))
    for wanted in [] if "--print" in sys.argv else sys.argv[1:]:
        _write(wanted.partition("==")[0], _of_another_version(wanted))


def _of_another_version(wanted: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        install = [
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            folder,
            wanted,
        ]
        environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
        subprocess.run([sys.executable, *install], check=True, env=environment)
        ask = [sys.executable, "-m", "tools.deepspeed_keys", "--print", wanted.partition("==")[0]]
        environment["PYTHONPATH"] = os.pathsep.join([folder, str(LINTER.parents[1])])
        done = subprocess.run(ask, check=True, env=environment, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _write(name: str, found: dict[str, Any]) -> None:
    path = LINTER / name / f"{name}-{found[name]}.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
