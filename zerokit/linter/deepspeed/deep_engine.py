"""The real ``deepspeed.initialize`` for every rank, on one CPU, without a process per rank.

Run as a script by :mod:`zerokit.linter.deepspeed.deep`, in its own process: reads cases as JSON from standard
input, one list a line, writes one JSON line per case to standard output. Ranks are forks that join
torch's "fake" process group, whose collectives return at once; kernels are replaced by empty ones, so
that nothing is compiled. What this shows: whether DeepSpeed accepts the configuration and builds its
engine and optimizer for each rank. What it cannot show: memory, speed, NVMe access (run as host offload
here).
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # the folder of this script: its modules must not hide the real deepspeed and accelerate
    sys.path.pop(0)

import contextlib
import copy
import gc
import importlib
import json
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def main() -> None:
    """Read lists of cases, answer each case with one line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # DeepSpeed prints; standard output is ours
    for line in sys.stdin:
        cases = json.loads(line)
        _import_everything(cases)
        for case in cases:
            # "initialize" builds the engine, "classes" reads the file, "accelerate" loads a YAML
            work = {"classes": _classes, "accelerate": _accelerate}.get(case["mode"], _initialize)
            results = [_in_a_fork(case, rank, work) for rank in case["ranks"]]
            answers.write(json.dumps(results) + "\n")
            answers.flush()


_IMPORTED_ONCE = (
    "torch._dynamo",
    "torch.testing._internal.distributed.fake_pg",
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.adam",
    "deepspeed.ops.op_builder.all_ops",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.sequence_parallel.parallel_state_sp",
)
"""What ``deepspeed.initialize`` imports on its way: seconds once, rather than in every fork."""


def _import_everything(cases: Sequence[Mapping[str, Any]]) -> None:
    """Import DeepSpeed once, before the forks, with kernels replaced."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    for name in _IMPORTED_ONCE:
        with contextlib.suppress(ModuleNotFoundError):  # older versions lack some
            importlib.import_module(name)
    if any(case["tensor_parallel"] > 1 for case in cases):
        importlib.import_module("transformers.models.llama.modeling_llama")
        importlib.import_module("deepspeed.module_inject.auto_tp")
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.ops.op_builder.cpu.no_impl import NotImplementedBuilder

    # `deepspeed.comm.torch` is torch itself: the module's attribute of that name hides the submodule
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    for builder in (OpBuilder, NotImplementedBuilder):
        builder.load = lambda self, verbose=True: _NoKernels()
    # the file is for GPUs: what this CPU supports is beside the point
    type(get_accelerator()).is_fp16_supported = lambda self: True
    gc.freeze()  # DeepSpeed collects garbage in every fork: not what was imported before it


class _NoKernels:
    """Stands for a compiled extension: every function does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


_MOST_SECONDS = 60
"""Of CPU in one rank: a second is usual, and some values make an endless loop of it."""


def _in_a_fork(
    case: Mapping[str, Any], rank: int, work: Callable[[Mapping[str, Any], int], dict[str, Any]]
) -> dict[str, Any]:
    read, write = os.pipe()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS + 1))
        try:
            answer = {"rank": rank, "ok": True, **work(case, rank)}
        except BaseException as error:
            message = " ".join(str(error).split())
            answer = {"rank": rank, "ok": False, "error": type(error).__name__, "message": message[:1000]}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    data = b""
    while chunk := os.read(read, 1 << 16):
        data += chunk
    os.close(read)
    _, status = os.waitpid(child, 0)
    if not data:
        hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
        ended = f"no end after {_MOST_SECONDS} s" if hung else f"the rank died (status {status})"
        return {"rank": rank, "ok": False, "error": "Crash", "message": ended}
    answer = json.loads(data)
    assert isinstance(answer, dict)
    return answer


def _join(case: Mapping[str, Any], rank: int) -> None:
    """Become ``rank`` of the fake process group."""
    import deepspeed
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world_size = case["world_size"]
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="localhost"
    )
    torch.set_num_threads(1)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    deepspeed.init_distributed(dist_backend="fake", verbose=False)


class _DataParallelOf:
    """What DeepSpeed's configuration asks of a pipeline's grid."""

    def __init__(self, size: int) -> None:
        self.get_data_parallel_world_size = lambda: size


def _classes(case: Mapping[str, Any], rank: int) -> dict[str, Any]:
    from deepspeed.runtime.config import DeepSpeedConfig

    _join(case, rank)
    mpu = _sequence_parallel(case)
    if case["pipeline_parallel"] > 1:
        mpu = _DataParallelOf(case["world_size"] // case["pipeline_parallel"])
    read = DeepSpeedConfig(runnable(case["config"]), mpu)
    return {"zero_stage": int(read.zero_optimization_stage), "train_batch_size": read.train_batch_size}


def _accelerate(case: Mapping[str, Any], rank: int) -> dict[str, Any]:
    from accelerate.commands import launch
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    os.chdir(case["folder"])
    parser = launch.launch_command_parser()
    args = parser.parse_args(["--config_file", case["path"], "--main_process_port", "0", "train.py"])
    args, defaults, precision_from_file = launch._validate_launch_command(args)
    if not args.use_deepspeed:
        return _without_deepspeed(args)
    fields = list(defaults.deepspeed_config) + ["mixed_precision"] * precision_from_file
    args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    _, environment = prepare_deepspeed_cmd_env(args)
    os.environ.update(environment)
    _lay_out(args, is_fsdp2=False)
    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
    return {"deepspeed": True, "zero_stage": plugin.zero_stage}


def _without_deepspeed(args: Any) -> dict[str, Any]:
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    if not (args.use_fsdp or args.use_parallelism_config):
        return {"deepspeed": False}
    os.environ.update(prepare_multi_gpu_env(args))
    # version 1 asks for a GPU as soon as it is to broadcast
    os.environ.update(FSDP_SYNC_MODULE_STATES="false", FSDP_CPU_RAM_EFFICIENT_LOADING="false")
    plugin = FullyShardedDataParallelPlugin() if args.use_fsdp else None
    _lay_out(args, is_fsdp2=plugin is not None and plugin.fsdp_version == 2)
    if plugin is None:
        return {"deepspeed": False}
    read = ("sharding_strategy", "reshard_after_forward", "forward_prefetch", "auto_wrap_policy")
    return {"deepspeed": False, **{name: str(getattr(plugin, name)) for name in read}}


def _lay_out(args: Any, *, is_fsdp2: bool) -> None:
    """What an Accelerator asks of its ``parallelism_config`` (accelerator.py:477, state.py:998)."""
    from types import SimpleNamespace

    if not args.use_parallelism_config:
        return
    from accelerate.parallelism_config import ParallelismConfig

    layout = ParallelismConfig()
    kind = "DEEPSPEED" if args.use_deepspeed else "FSDP" if args.use_fsdp else "MULTI_GPU"
    if kind != "DEEPSPEED" and layout.cp_enabled and not is_fsdp2:
        raise ValueError("`cp_size > 1` requires FSDP2")
    accelerator = SimpleNamespace(
        num_processes=int(args.num_processes), multi_device=kind == "MULTI_GPU", is_fsdp2=is_fsdp2,
        distributed_type=kind, is_main_process=False,
    )  # fmt: skip
    layout._validate_accelerator(accelerator)


def _sequence_parallel(case: Mapping[str, Any]) -> Any:
    if case.get("sequence_parallel", 1) == 1:
        return None
    from deepspeed.runtime.sequence_parallel import parallel_state_sp

    parallel_state_sp.initialize_sequence_parallel(sequence_parallel_size=case["sequence_parallel"])
    return parallel_state_sp


def _initialize(case: Mapping[str, Any], rank: int) -> dict[str, Any]:
    import deepspeed

    _join(case, rank)
    config = runnable(case["config"])
    model = _model(case)
    arguments: dict[str, Any] = {"model": model, "config": config}
    mpu = _sequence_parallel(case)
    if mpu is not None:
        arguments["mpu"] = mpu
    if "optimizer" in config:
        arguments["model_parameters"] = list(model.parameters())
    else:
        arguments["optimizer"] = _scripts_optimizer(model, config)
    engine, *_ = deepspeed.initialize(**arguments)
    return {
        "optimizer": type(engine.optimizer).__name__,
        "basic_optimizer": type(engine.basic_optimizer).__name__ if engine.optimizer else None,
        "zero_stage": int(engine.zero_optimization_stage()),
        "train_batch_size": engine.train_batch_size(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation": engine.gradient_accumulation_steps(),
    }


_MONITORS = ("tensorboard", "wandb", "comet", "csv_monitor")
"""Make folders where the file says, and reach the network, as soon as there is an engine (monitor/)."""


def runnable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as the engine would get it: ``auto`` filled as a consumer fills it, NVMe → CPU. What
    writes elsewhere is off: the file may be a stranger's."""
    filled = copy.deepcopy(dict(config))
    defaults: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
    }
    for key, value in list(filled.items()):
        if value == "auto":
            if key in defaults:
                filled[key] = defaults[key]
            else:
                del filled[key]
    for key in ("optimizer", "scheduler"):
        parameters = filled.get(key, {}).get("params") if isinstance(filled.get(key), dict) else None
        if isinstance(parameters, dict):
            fills = {"lr": 1e-3, "total_num_steps": 100, "warmup_num_steps": 10, "warmup_max_lr": 1e-3}
            for name, value in list(parameters.items()):
                if value == "auto":
                    del parameters[name]
                    if name in fills:
                        parameters[name] = fills[name]
    zero = filled.get("zero_optimization")
    for key in ("offload_optimizer", "offload_param"):
        block = zero.get(key) if isinstance(zero, dict) else None
        if isinstance(block, dict) and block.get("device") == "nvme" and block.get("nvme_path"):
            # reading NVMe needs libaio and the disk itself
            block["device"] = "cpu"
    for key in _MONITORS:
        block = filled.get(key)
        if isinstance(block, dict) and "enabled" in block:
            block["enabled"] = False
    return filled


def _model(case: Mapping[str, Any]) -> Any:
    import torch

    if case.get("pipeline_parallel", 1) > 1:
        from deepspeed.pipe import PipelineModule

        layers = [torch.nn.Linear(8, 8) for _ in range(2 * case["pipeline_parallel"])]
        return PipelineModule(layers=layers, num_stages=case["pipeline_parallel"], loss_fn=torch.nn.MSELoss())
    if case.get("tensor_parallel", 1) > 1:
        from transformers import LlamaConfig, LlamaForCausalLM

        heads = case.get("key_value_heads") or 8
        config = LlamaConfig(
            hidden_size=8 * heads, intermediate_size=16 * heads, num_hidden_layers=1,
            num_attention_heads=heads, num_key_value_heads=heads, vocab_size=64,
        )  # fmt: skip
        return LlamaForCausalLM(config)
    return torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 16), torch.nn.LayerNorm(16))


def _scripts_optimizer(model: Any, config: Mapping[str, Any]) -> Any:
    """The optimizer of a script that brings its own: torch's AdamW, or what Accelerate swaps it for."""
    import torch

    zero = config.get("zero_optimization")
    offload = zero.get("offload_optimizer") if isinstance(zero, dict) else None
    offloaded = isinstance(offload, dict) and offload.get("device") in ("cpu", "nvme")
    if offloaded and config.get("zero_force_ds_cpu_optimizer", True):
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(model.parameters(), lr=1e-3)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


if __name__ == "__main__":
    main()
