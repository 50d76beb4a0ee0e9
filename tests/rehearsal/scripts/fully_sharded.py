"""FSDP2 as its users call it: ``fully_sharded.py CONFIG.json [options]``, started by torchrun.

A plain loop that shards the decoder layers and the model, or with ``--accelerate`` Accelerate's plugin, or
with ``--tp`` Transformers as it loads the model.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import GradientAccumulationPlugin, TorchContextParallelConfig
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig

parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--accelerate", action="store_true")
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--tokens", type=int, default=512)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--sync-each-batch", action="store_true", help="no whole gradients")
parser.add_argument("--lora", type=int, default=0)
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--cp", type=int, default=1, help="ranks that share a sequence, with --accelerate")
parser.add_argument("--rotate", default="allgather", help="how they exchange keys and values")
parser.add_argument("--tp", type=int, default=1, help="ranks that divide layers, by Transformers")
parser.add_argument("--dtype", default="float32", help="in which the model is loaded")
parser.add_argument("--fp32", action="store_true", help="no mixed precision")
parser.add_argument("--reduce", help="dtype in which gradients travel")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--keep-gathered", action="store_true", help="reshard_after_forward=False")
parser.add_argument("--offload", action="store_true")
parser.add_argument("--broadcast", action="store_true", help="cpu_ram_efficient_loading")
parser.add_argument("--foreach", action="store_true", help="torch's AdamW on lists, not its fused kernel")
parser.add_argument("--packed", action="store_true", help="linear layers in NF4, doubly quantised")
parser.add_argument("--kbit", action="store_true", help="peft's prepare_model_for_kbit_training")
parser.add_argument("--client", help="PACKAGE.CLASS of the optimizer")
parser.add_argument("--reentrant", action="store_true")
parser.add_argument("--liger", action="store_true", help="head and loss fused, of a Llama")
parser.add_argument("--fp16", action="store_true")
args = parser.parse_args()

config = AutoConfig.for_model(**json.loads(Path(args.config).read_text()))
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
if args.tp > 1:
    model = AutoModelForCausalLM.from_pretrained(
        Path(args.config).parent, dtype=getattr(torch, args.dtype),
        distributed_config=DistributedConfig(
            tp_size=args.tp, fsdp_size=int(os.environ["WORLD_SIZE"]) // args.tp // args.replicas,
            dp_replicate_size=args.replicas, fsdp_mixed_precision=not args.fp32,
        ),
    )  # fmt: skip
else:
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, args.dtype))
if args.liger:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(rope=False, rms_norm=False, swiglu=False, model=model)


def pack(whole: torch.nn.Module) -> None:
    """Linear layers but the head in 4 bits, as from_pretrained has them on the GPU."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    head = whole.get_output_embeddings()  # type: ignore[operator]
    for name, layer in [*whole.named_modules()]:
        if type(layer) is not torch.nn.Linear or layer is head:
            continue
        packed = Linear4bit(
            layer.in_features, layer.out_features, layer.bias is not None, torch.bfloat16, quant_type="nf4",
            quant_storage=torch.bfloat16, device="meta",
        )  # fmt: skip
        packed.weight = Params4bit(
            layer.weight.data, quant_type="nf4", quant_storage=torch.bfloat16, module=packed
        )
        packed.bias = layer.bias
        parent, _, last = name.rpartition(".")
        setattr(whole.get_submodule(parent), last, packed.cuda())
    whole.cuda()
    whole.is_loaded_in_4bit = True  # type: ignore[assignment]


if args.packed:
    pack(model)
if args.lora:
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if args.kbit:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    model = get_peft_model(model, LoraConfig(r=args.lora, target_modules="all-linear"))
    if args.checkpointing:
        model.enable_input_require_grads()


def optimizer_of(trained: torch.nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    if args.client:
        package, _, name = args.client.rpartition(".")
        made: torch.optim.Optimizer = getattr(importlib.import_module(package), name)(parameters, lr=1e-4)
        return made
    return torch.optim.AdamW(parameters, lr=1e-4, fused=not args.foreach, foreach=args.foreach)


accelerator = None
if args.checkpointing and (args.reentrant or not args.accelerate):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": args.reentrant})
if args.accelerate:
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        reshard_after_forward=not args.keep_gathered,
        cpu_offload=args.offload,
        cpu_ram_efficient_loading=args.broadcast,
        activation_checkpointing=args.checkpointing and not args.reentrant,
        state_dict_type="SHARDED_STATE_DICT",
    )
    shards = int(os.environ["WORLD_SIZE"]) // args.replicas // args.cp
    mesh = ParallelismConfig(
        dp_replicate_size=args.replicas, dp_shard_size=shards, cp_size=args.cp,
        cp_handler=TorchContextParallelConfig(args.rotate) if args.cp > 1 else None,
    )  # fmt: skip
    accelerator = Accelerator(
        mixed_precision="no" if args.fp32 else "fp16" if args.fp16 else "bf16",
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=args.accumulation, sync_each_batch=args.sync_each_batch
        ),
        fsdp_plugin=plugin,
        parallelism_config=mesh if args.replicas * args.cp > 1 else None,
    )
    model, optimizer = accelerator.prepare(model, optimizer_of(model))
elif args.tp > 1:
    optimizer = optimizer_of(model)
else:
    dist.init_process_group("nccl")
    shape: tuple[int, ...] = (dist.get_world_size() // args.replicas,)
    shape = (args.replicas, *shape) if args.replicas > 1 else shape
    policy = MixedPrecisionPolicy(
        param_dtype=None if args.fp32 else torch.bfloat16,
        reduce_dtype=getattr(torch, args.reduce) if args.reduce else None,
    )
    options = {
        "mesh": init_device_mesh("cuda", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :]),
        "mp_policy": policy,
        "offload_policy": CPUOffloadPolicy() if args.offload else OffloadPolicy(),
    }
    base = model.get_base_model() if args.lora else model
    stack = base.base_model.h if hasattr(base.base_model, "h") else base.base_model.layers
    for layer in stack:
        fully_shard(layer, reshard_after_forward=not args.keep_gathered, **options)
    fully_shard(model, **options)
    optimizer = optimizer_of(model)

model.train()
if hasattr(optimizer, "train"):
    optimizer.train()  # schedulefree's
for _ in range(4):
    for micro_step in range(args.accumulation):
        if accelerator is None:
            is_last = micro_step == args.accumulation - 1
            model.set_requires_gradient_sync(is_last or args.sync_each_batch)
        with contextlib.nullcontext() if accelerator is None else accelerator.accumulate(model):
            ids = torch.randint(0, config.vocab_size, (args.batch, args.tokens)).cuda()
            batch, shared = {"input_ids": ids, "labels": ids}, contextlib.nullcontext()
            if accelerator is not None and args.cp > 1:  # as transformers' Trainer does (trainer.py:2393)
                labels = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:].contiguous()
                positions = torch.arange(args.tokens, device="cuda").expand(args.batch, -1)
                batch |= {"labels": ids.clone(), "shift_labels": labels, "position_ids": positions}
                buffers = [*batch.values()]
                shared = accelerator.maybe_context_parallel(
                    buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers={*buffers}
                )
            with shared:
                loss = model(**batch, use_cache=False).loss
                if accelerator is None:
                    loss.backward()
                else:
                    accelerator.backward(loss)
                del loss
            if accelerator is not None:
                optimizer.step()
                optimizer.zero_grad()
    if accelerator is None:
        optimizer.step()
        optimizer.zero_grad()
