"""Two steps under FSDP2 on CPU ranks: what Accelerate makes of its YAML, or a file of code does.

``fsdp2_accelerated.py [fully_shard.py] [--model TYPE] [--lora]``, of a small model of the type. Accelerate
gives CPU ranks no FSDP (state.py:982, 1.15), so that the ranks are told to it as GPUs; all that divides and
trains is real. Rank 0 prints what it saw as JSON.
"""

from __future__ import annotations

import argparse
import json
import runpy

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from transformers import AutoConfig, AutoModelForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("code", nargs="?")
parser.add_argument("--model", default="llama")
parser.add_argument("--lora", action="store_true")
args = parser.parse_args()
experts = {"num_local_experts": 4} if args.model == "mixtral" else {}
model = AutoModelForCausalLM.from_config(
    AutoConfig.for_model(
        args.model, vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, use_cache=False, **experts,
    )
)  # fmt: skip
if args.lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.0))
tokens = torch.arange(16).reshape(2, 8)
accelerator = None
if args.code:
    dist.init_process_group("gloo")
    model = runpy.run_path(args.code)["shard"](model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
else:
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    accelerator = Accelerator()
    plugin = accelerator.state.fsdp_plugin
    if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
        plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)  # which takes a GPU
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
losses = []
for _ in range(2):
    loss = model(input_ids=tokens, labels=tokens).loss
    accelerator.backward(loss) if accelerator is not None else loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())


def group_of(module: torch.nn.Module) -> dict[str, object]:
    """The parameters that a call of ``fully_shard`` gathers together, and how."""
    group = module._get_fsdp_state()._fsdp_param_group
    policy = group.mp_policy
    return {
        "parameters": sorted(one._param_fqn.replace("_checkpoint_wrapped_module.", "")
                             for one in group.fsdp_params),
        "reshards": group.post_forward_mesh_info is not None,
        "dtypes": [str(one) for one in (policy.param_dtype, policy.reduce_dtype, policy.output_dtype)],
        "offload": type(group.offload_policy).__name__,
        "mesh": list(group.mesh_info.mesh.shape),
        "kept": sorted({str(one.sharded_param.dtype) for one in group.fsdp_params}),
    }  # fmt: skip


groups = {
    json.dumps(group_of(module), sort_keys=True)
    for module in model.modules()
    if isinstance(module, FSDPModule) and module._get_fsdp_state()._fsdp_param_group is not None
}
if dist.get_rank() == 0:
    seen = {
        "losses": losses,
        "groups": sorted(groups),
        "checkpointed": sum(isinstance(module, CheckpointWrapper) for module in model.modules()),
        "distributed_type": str(getattr(accelerator, "distributed_type", None)),
    }
    print("SEEN " + json.dumps(seen))
dist.destroy_process_group()
