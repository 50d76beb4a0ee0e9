"""Jobs of ``benchmarks/engines/jobs.py``, run one after the other by torchrun: ``job.py JOBS OUT [ENGINE]``.

Each row gains the seconds of its steps, and what rank 0 allocated by phase.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.measure.models import quantise

WARM, TIMED = 3, 8


def built(job: dict[str, Any]) -> torch.nn.Module:
    """The model with random bf16 weights on its GPU."""
    config = AutoConfig.for_model(**job["hf_config"])
    packed = job.get("packed")
    dtype = torch.float32 if job["lora"] is None and job["engine"] == "fsdp2" else torch.bfloat16
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if packed:
        quantise(model, storage=torch.bfloat16)
    if job["lora"]:
        from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

        if packed == "prepared":
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        model = get_peft_model(model, LoraConfig(r=job["lora"], target_modules="all-linear"))
        if packed == "narrow":  # as TRL has adapters
            for parameter in model.parameters():
                parameter.data = parameter.data.to(torch.bfloat16) if parameter.requires_grad else parameter
        if job["checkpointing"]:
            model.enable_input_require_grads()
    if job["checkpointing"] and not is_checkpointed_by_accelerate(job):
        reentrant = {"use_reentrant": bool(job.get("reentrant"))}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)
    return model


def is_checkpointed_by_accelerate(job: dict[str, Any]) -> bool:
    """Whether its plugin wraps the layers."""
    by_plugin = job["engine"] == "fsdp2" and job["wrapping"] == "accelerate"
    return bool(job["checkpointing"] and by_plugin and not job.get("reentrant"))


def optimizer_of(job: dict[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    """A fused AdamW, or the row's PACKAGE.CLASS."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    package, _, name = job.get("client", "torch.optim.AdamW").rpartition(".")
    options = {} if job.get("client") else {"fused": True}
    made: torch.optim.Optimizer = getattr(importlib.import_module(package), name)(trained, lr=1e-5, **options)
    return made


class OfDeepSpeed:
    """An engine of the row's configuration."""

    def __init__(self, job: dict[str, Any], model: torch.nn.Module) -> None:
        import deepspeed

        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.engine = deepspeed.initialize(
            model=model, config=job["deepspeed_config"], model_parameters=trained
        )[0]
        self.model = self.engine

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """One micro-batch's."""
        self.engine.backward(loss)
        if not last:
            self.engine.step()

    def step(self) -> None:
        """The optimizer's."""
        self.engine.step()

    def close(self) -> None:
        """Remove its hooks."""
        self.engine.destroy()


class OfAccelerate:
    """FSDP2 by Accelerate's plugin."""

    def __init__(self, job: dict[str, Any], model: torch.nn.Module) -> None:
        from accelerate import Accelerator, FullyShardedDataParallelPlugin
        from accelerate.parallelism_config import ParallelismConfig
        from accelerate.state import AcceleratorState, GradientState
        from accelerate.utils import TorchContextParallelConfig

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        self.shared = job.get("cp", 1)
        mesh = ParallelismConfig(
            dp_shard_size=dist.get_world_size() // self.shared, cp_size=self.shared,
            cp_handler=TorchContextParallelConfig(job["rotation"]),
        ) if self.shared > 1 else None  # fmt: skip
        self.accelerator = Accelerator(
            parallelism_config=mesh,
            mixed_precision=job.get("precision", "bf16"),
            gradient_accumulation_steps=job["accumulation"],
            fsdp_plugin=FullyShardedDataParallelPlugin(
                fsdp_version=2,
                auto_wrap_policy="transformer_based_wrap",
                reshard_after_forward=job["reshard"],
                activation_checkpointing=is_checkpointed_by_accelerate(job),
                cpu_offload=job["offload"],
                state_dict_type="SHARDED_STATE_DICT",
            ),
        )
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer_of(job, model))
        self.last = True

    def sharing(self, batch: dict[str, torch.Tensor]) -> contextlib.AbstractContextManager[object]:
        """Divide the batch's sequences, as the Trainer does (transformers/trainer.py:2393, 5.17)."""
        if self.shared == 1:
            return contextlib.nullcontext()
        ids = batch["input_ids"]
        labels = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:].contiguous()
        positions = torch.arange(ids.shape[1], device="cuda").repeat(len(ids), 1)
        batch |= {"labels": ids.clone(), "shift_labels": labels, "position_ids": positions}
        buffers = [*batch.values()]
        context: contextlib.AbstractContextManager[object] = self.accelerator.maybe_context_parallel(
            buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers={*buffers}
        )
        return context

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """One micro-batch's, reduced if it is the ``last``."""
        self.accelerator.backward(loss)
        if not last:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def step(self) -> None:
        """Clipping and the optimizer's step."""
        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def close(self) -> None:
        """Forget the model."""
        self.accelerator.free_memory()


class OfLoop:
    """FSDP2 as a plain loop calls it: decoder layers, and the model."""

    def __init__(self, job: dict[str, Any], model: torch.nn.Module) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        options: dict[str, Any] = {
            "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
            "offload_policy": CPUOffloadPolicy() if job["offload"] else OffloadPolicy(),
        }
        base = model.get_base_model() if job["lora"] else model
        for layer in base.base_model.layers:  # type: ignore[operator, union-attr]
            fully_shard(layer, reshard_after_forward=job["reshard"], **options)
        fully_shard(model, **options)
        self.model = model
        self.optimizer = optimizer_of(job, model)

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """One micro-batch's."""
        del last
        loss.backward()

    def step(self) -> None:
        """Clipping and the optimizer's step."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def close(self) -> None:
        """Nothing to do."""


def engine_of(job: dict[str, Any], model: torch.nn.Module) -> Any:
    """What trains the job."""
    if job["engine"] == "deepspeed":
        return OfDeepSpeed(job, model)
    return (OfAccelerate if job["wrapping"] == "accelerate" else OfLoop)(job, model)


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each step after the first ones, and bytes of one more by phase."""
    torch.manual_seed(0)
    engine = engine_of(job, built(job))
    engine.model.train()
    words = job["hf_config"]["vocab_size"]
    seconds, phases = [], dict.fromkeys(("forward", "backward", "step"), 0)

    def mark(phase: str) -> None:
        phases[phase] = max(phases[phase], torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    steps = job.get("steps", WARM + TIMED)
    for number in range(steps + 1):
        watched = number == steps or "LOCAL_RANK" not in os.environ
        torch.cuda.synchronize()
        dist.barrier()
        if watched:
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        for micro in range(job["accumulation"]):
            last = micro == job["accumulation"] - 1
            if isinstance(engine, OfLoop):
                engine.model.set_requires_gradient_sync(last)  # type: ignore[operator]
            with contextlib.ExitStack() as contexts:
                ids = torch.randint(0, words, (job["batch"], job["tokens"]), device="cuda")
                batch = {"input_ids": ids, "labels": ids}
                if isinstance(engine, OfAccelerate):
                    contexts.enter_context(engine.accelerator.accumulate(engine.model))
                    contexts.enter_context(engine.sharing(batch))
                loss = engine.model(**batch, use_cache=False).loss
                if watched:
                    mark("forward")
                engine.backward(loss, last)
                del loss
                if watched:
                    mark("backward")
        engine.step()
        torch.cuda.synchronize()
        if watched:
            mark("step")
        elif number >= WARM:
            seconds.append(round(time.perf_counter() - begin, 5))
    engine.close()
    return {"seconds": sorted(seconds), "phases": phases, "reserved": torch.cuda.max_memory_reserved()}


def main() -> None:
    """Run what the file says, and append each row as it ends."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")  # offloaded shards reduce their norm on the host
    for line in Path(sys.argv[1]).read_text().splitlines():
        job = json.loads(line)
        if len(sys.argv) > 3 and sys.argv[3] not in (job["engine"], job["id"]):
            continue
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        try:
            row = {**job, **measured(job), "before": before, "torch": torch.__version__}
        except Exception:
            row = {**job, "failed": traceback.format_exc()}
        if rank == 0:
            row["gpu"] = torch.cuda.get_device_name()
            with Path(sys.argv[2]).open("a") as out:
                out.write(json.dumps(row) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
