"""Two steps under FSDP2 on CPU ranks, of which one loads the weights: ``fsdp2_loaded_once.py MODEL``.

What a plan tells scripts to do; rank 1 prints what it saw as JSON. Accelerate gives CPU ranks no FSDP
(state.py:982, 1.15), so that the ranks are told to it as GPUs.
"""

from __future__ import annotations

import json
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
PartialState(cpu=True)
PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
accelerator = Accelerator()
elsewhere = {} if os.environ["LOCAL_RANK"] == "0" else {"device_map": {"": "meta"}}
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, **elsewhere)
if elsewhere:
    model._apply(lambda t: torch.empty_like(t, device="cpu") if t.is_meta else t)
    model.tie_weights()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)
tokens = torch.arange(16).reshape(2, 8)
losses = []
for _ in range(2):
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
seen = {"losses": losses, "trained": len(trained), "parameters": len(list(model.parameters()))}
if accelerator.process_index == 1:
    print("SEEN " + json.dumps(seen), flush=True)
