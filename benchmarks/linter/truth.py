"""What DeepSpeed, the Trainer and Accelerate really do with a file.

Reads one JSON object per line from standard input, ``{"id", "reader", "path", "world_size"}``, and
answers each with a line: whether the reader got as far as a built engine, and what it built. Readers:
``raw`` (``deepspeed.initialize`` with the path), ``lightning`` (as PyTorch Lightning's DeepSpeedStrategy:
it refuses accumulation in the file, fills the batch size, and calls ``deepspeed.initialize``), ``trainer``
(transformers' HfTrainerDeepSpeedConfig with TrainingArguments that agree with the file, then
``Accelerator.prepare``), ``accelerate`` (the plugin and ``Accelerator.prepare``), ``launch`` (an accelerate
YAML: the loader, the launcher's checks and its command). One process, a fork a case; see ``deep_engine``
for how ranks are stood in for.

What the file cannot help is stood in for, too: a disk for NVMe (the host's memory), packages of monitors,
FP8 kernels and MPI that are not installed, a DeepSpeed JSON that an accelerate YAML names and that was not
gathered with it, and ``--num_processes`` where the YAML leaves the number to the command line.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import types
from collections.abc import Mapping
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path[0] = str(pathlib.Path(__file__).parents[2])

from zerokit.linter.deepspeed import deep_engine
from zerokit.strictload import parse_json, parse_yaml

_HIDDEN = 16
_A_CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}


def main() -> None:
    """Answer every case."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    deep_engine._import_everything([{"tensor_parallel": 1}])
    import accelerate
    import accelerate.commands.launch  # noqa: F401
    import datasets  # noqa: F401
    import transformers.integrations.deepspeed  # noqa: F401

    _stand_in_for_packages()
    gc.freeze()
    deep_engine._MOST_SECONDS = 10
    work = {
        "raw": _raw,
        "trainer": _trainer,
        "accelerate": _accelerate,
        "launch": _launch,
        "lightning": _lightning,
    }
    for line in sys.stdin:
        case = json.loads(line)
        answer = deep_engine._in_a_fork(case, 0, work[case["reader"]])
        answers.write(json.dumps({"id": case["id"], "reader": case["reader"], **answer}) + "\n")
        answers.flush()


def _stand_in_for_packages() -> None:
    """Monitors write to nothing; FP8 and MPI are taken to be there."""
    import accelerate.utils.launch
    import deepspeed.monitor.comet
    import deepspeed.monitor.tensorboard
    import deepspeed.monitor.wandb

    for name, needs in {
        "torch.utils.tensorboard": "tensorboard",
        "wandb": "wandb",
        "comet_ml": "comet_ml",
    }.items():
        if importlib.util.find_spec(needs) is None:
            sys.modules[name] = mock.MagicMock()
    deepspeed.monitor.tensorboard.check_tb_availability = lambda: None
    deepspeed.monitor.wandb.check_wandb_availability = lambda: None
    deepspeed.monitor.comet.check_comet_availability = lambda: None
    accelerate.utils.launch.is_fp8_available = lambda: True
    accelerate.utils.launch._get_mpirun_args = lambda: (
        "mpirun",
        "--hostfile",
        "-n",
        "--npernode",
        "--bind-to",
    )


def _with_memory_for_nvme(case: Mapping[str, Any]) -> dict[str, Any]:
    """The case with NVMe that has a path read as host memory; whatever else a reader meets is as written."""
    try:
        config = json.loads(pathlib.Path(case["path"]).read_text(encoding="utf-8"))
        zero = config["zero_optimization"]
    except (ValueError, KeyError, TypeError):
        return dict(case)
    changed = False
    for name in ("offload_optimizer", "offload_param"):
        block = zero.get(name) if isinstance(zero, dict) and zero.get("stage") == 3 else None
        if (
            isinstance(block, dict)
            and block.get("device") == "nvme"
            and isinstance(block.get("nvme_path"), str)
        ):
            block["device"] = "cpu"
            changed = True
            if isinstance(config.get("aio"), dict):
                config["aio"].pop("use_gds", None)  # GPUDirect Storage asks for a GPU
    if not changed:
        return dict(case)
    return {**case, "path": _written(config)}


def _config(case: Mapping[str, Any]) -> dict[str, Any]:
    text = pathlib.Path(case["path"]).read_text(encoding="utf-8-sig")
    try:
        value = parse_json(text, strict=False).value
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _degree(config: Mapping[str, Any]) -> int:
    size = _inside(config, "tensor_parallel.autotp_size")
    return size if isinstance(size, int) else 1


def _model(config: Mapping[str, Any]) -> Any:
    import torch

    if _degree(config) > 1:
        return deep_engine._model({"tensor_parallel": _degree(config)})
    model = torch.nn.Sequential(
        torch.nn.Embedding(64, _HIDDEN), torch.nn.Linear(_HIDDEN, _HIDDEN), torch.nn.LayerNorm(_HIDDEN)
    )
    model.config = types.SimpleNamespace(hidden_size=_HIDDEN)
    return model


def _built(engine: Any) -> dict[str, Any]:
    """The state of an engine: what two files that mean the same have in common."""
    read = engine._config
    optimizer = engine.basic_optimizer
    groups = [
        {
            key: value
            for key, value in group.items()
            if isinstance(value, int | float | bool | str | list | tuple) and key != "params"
        }
        for group in getattr(optimizer, "param_groups", [])
    ]
    scheduler = engine.lr_scheduler
    kept = {
        name: repr(value)
        for name, value in sorted(vars(read).items())
        if name not in ("_param_dict", "mesh_device", "mpu") and " at 0x" not in repr(value)
    }
    return {
        "optimizer": type(engine.optimizer).__name__,
        "basic": type(optimizer).__name__,
        "groups": repr(groups),
        "scheduler": repr(
            {
                key: value
                for key, value in vars(scheduler).items()
                if isinstance(value, int | float | str | list)
            }
        )
        if scheduler
        else None,
        "config": kept,
    }


def _numbers(case: Mapping[str, Any]) -> dict[str, Any]:
    return {**case, "sequence_parallel": 1, "pipeline_parallel": 1}


def _optimizer_of_a_script(model: Any, config: Mapping[str, Any]) -> Any:
    """What a script that calls ``deepspeed.initialize`` passes: it knows whether its file offloads."""
    zero = config.get("zero_optimization")
    zero = dict(zero) if isinstance(zero, dict) else {}
    if zero.get("cpu_offload") is True:
        zero["offload_optimizer"] = {"device": "cpu"}
    return deep_engine._scripts_optimizer(model, {**config, "zero_optimization": zero})


def _raw(case: Mapping[str, Any], rank: int) -> dict[str, Any]:
    import deepspeed

    case = _with_memory_for_nvme(case)
    deep_engine._join(_numbers(case), rank)
    config = _config(case)
    model = _model(config)
    arguments: dict[str, Any] = {"model": model, "config": case["path"]}
    if isinstance(config.get("optimizer"), dict) and config["optimizer"].get("type"):
        arguments["model_parameters"] = list(model.parameters())
    else:
        arguments["optimizer"] = _optimizer_of_a_script(model, config)
    engine, *_ = deepspeed.initialize(**arguments)
    return _built(engine)


def _lightning(case: Mapping[str, Any], rank: int) -> dict[str, Any]:
    config = json.loads(pathlib.Path(case["path"]).read_text(encoding="utf-8"))
    if "gradient_accumulation_steps" in config:
        raise ValueError("Do not set `gradient_accumulation_steps` in the DeepSpeed config")
    config.setdefault("train_micro_batch_size_per_gpu", 1)
    return _raw({**case, "path": _written(config)}, rank)


def _written(config: Mapping[str, Any]) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(config, file)
    return file.name


def _number(value: object, default: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


def _inside(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _prepared(config: Mapping[str, Any], plugin: Any, steps: int, finalize: Any = None) -> dict[str, Any]:
    import torch
    from accelerate import Accelerator
    from accelerate.state import PartialState
    from accelerate.utils import DummyOptim, DummyScheduler

    accelerator = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=steps)
    for state in (PartialState(), accelerator.state):
        state.num_processes = int(os.environ["WORLD_SIZE"])
    model = _model(config)
    if finalize is not None:
        finalize(model)
    if "optimizer" in plugin.deepspeed_config:
        optimizer: Any = DummyOptim(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    items: list[Any] = [model, optimizer]
    loader = torch.utils.data.DataLoader(torch.arange(64), batch_size=2)
    if finalize is None:
        items.append(loader)
    if "scheduler" in plugin.deepspeed_config:
        items.append(DummyScheduler(optimizer, total_num_steps=100, warmup_num_steps=10))
    prepared = accelerator.prepare(*items)
    return _built(prepared[0])


def _precision(config: Mapping[str, Any]) -> str:
    for name in ("bf16", "fp16"):
        if _inside(config, f"{name}.enabled") is True:
            return name
    return "no"


def _accelerate(case: Mapping[str, Any], rank: int) -> dict[str, Any]:
    from accelerate.utils import DeepSpeedPlugin

    case = _with_memory_for_nvme(case)
    deep_engine._join(_numbers(case), rank)
    config = _config(case)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    os.environ["ACCELERATE_MIXED_PRECISION"] = _precision(config)
    plugin = DeepSpeedPlugin(hf_ds_config=case["path"])
    return _prepared(config, plugin, int(_number(config.get("gradient_accumulation_steps"), 1)) or 1)


def _trainer(case: Mapping[str, Any], rank: int) -> dict[str, Any]:
    from accelerate.utils import DeepSpeedPlugin
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    case = _with_memory_for_nvme(case)
    deep_engine._join(_numbers(case), rank)
    config = _config(case)
    betas = _inside(config, "optimizer.params.betas")
    betas = betas if isinstance(betas, list) and len(betas) == 2 else [0.9, 0.999]
    world = case["world_size"]
    steps = _number(config.get("gradient_accumulation_steps"), 1)
    whole = _number(config.get("train_batch_size"), 0)
    micro = _number(config.get("train_micro_batch_size_per_gpu"), whole // (world * steps or 1) or 1)
    arguments = types.SimpleNamespace(
        world_size=world,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=steps,
        max_grad_norm=_number(config.get("gradient_clipping"), 1.0),
        learning_rate=_number(
            _inside(config, "optimizer.params.lr"),
            _number(_inside(config, "scheduler.params.warmup_max_lr"), 1e-3),
        ),
        adam_beta1=betas[0],
        adam_beta2=betas[1],
        adam_epsilon=_number(_inside(config, "optimizer.params.eps"), 1e-8),
        weight_decay=_number(_inside(config, "optimizer.params.weight_decay"), 0.0),
        save_on_each_node=False,
        fp16=_inside(config, "fp16.enabled") is True,
        fp16_full_eval=False,
        bf16=_inside(config, "bf16.enabled") is True,
        bf16_full_eval=False,
        get_warmup_steps=lambda total: _number(_inside(config, "scheduler.params.warmup_num_steps"), 10),
    )  # fmt: skip
    total = _number(_inside(config, "scheduler.params.total_num_steps"), 100)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    os.environ["ACCELERATE_MIXED_PRECISION"] = _precision(config)
    read = HfTrainerDeepSpeedConfig(case["path"])
    read.trainer_config_process(arguments)
    plugin = DeepSpeedPlugin(hf_ds_config=read)

    def finalize(model: Any) -> None:
        read.trainer_config_finalize(arguments, model, total)

    return _prepared(config, plugin, int(steps) or 1, finalize)


def _yaml(case: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        value = parse_yaml(pathlib.Path(case["path"]).read_text(encoding="utf-8-sig")).value
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _launch(case: Mapping[str, Any], rank: int) -> dict[str, Any]:
    from accelerate.commands import launch
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import (
        _filter_args,
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )
    from torch.distributed.run import get_args_parser

    os.chdir(pathlib.Path(case["path"]).parent)
    parser = launch.launch_command_parser()
    number = [] if "num_processes" in _yaml(case) else ["--num_processes", "2"]
    args = parser.parse_args(["--config_file", case["path"], *number, "train.py"])
    args, defaults, precision_from_file = launch._validate_launch_command(args)
    if args.use_deepspeed:
        fields = list(defaults.deepspeed_config) + ["mixed_precision"] * precision_from_file
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        command, environment = prepare_deepspeed_cmd_env(args)
        if command is None:
            _filter_args(args, get_args_parser(), ["--training_script", "train.py"])
        named = environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "")
        if named.endswith((".json", ".conf")) and not pathlib.Path(named).exists():
            environment["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = _written(_A_CONFIG)
        os.environ.update(environment)
        plugin = DeepSpeedPlugin()
        plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
        kept = {name: value for name, value in environment.items() if name.startswith("ACCELERATE_")}
        return {"environment": kept, "config": plugin.deepspeed_config, "command": command}
    if args.use_fsdp or args.multi_gpu or args.use_megatron_lm:
        environment = prepare_multi_gpu_env(args)
    else:
        _, environment = prepare_simple_launcher_cmd_env(args)
    return {
        "environment": {
            name: value
            for name, value in environment.items()
            if name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_", "CUDA_VIS"))
        }
    }


if __name__ == "__main__":
    main()
