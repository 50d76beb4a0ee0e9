"""Two steps under FSDP2 on CPU ranks: what Accelerate makes of its YAML, or a file of code does.

``fsdp2_accelerated.py [fully_shard.py]``. Accelerate gives CPU ranks no FSDP (state.py:982, 1.15), so that
the ranks are told to it as GPUs; all that divides and trains is real. Rank 0 prints what it saw as JSON.
"""

from __future__ import annotations

import json
import runpy
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=2)
)  # fmt: skip
tokens = torch.arange(16).reshape(2, 8)
accelerator = None
if len(sys.argv) > 1:
    dist.init_process_group("gloo")
    model = runpy.run_path(sys.argv[1])["shard"](model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
else:
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    accelerator = Accelerator()
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
