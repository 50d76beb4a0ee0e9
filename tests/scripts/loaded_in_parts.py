"""Two steps of a small model on four CPU ranks: ``loaded_in_parts.py PLAN``.

The model is loaded as the plan's distributed_config.json says, and whole. Rank 0 prints the losses of both as
JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig

torch.set_num_threads(1)
dist.init_process_group("gloo")
config = AutoConfig.for_model(
    "qwen3", vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=16,
    num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
if dist.get_rank() == 0:
    AutoModelForCausalLM.from_config(config).save_pretrained("model")
dist.barrier()
parts = DistributedConfig.from_dict(json.loads((Path(sys.argv[1]) / "distributed_config.json").read_text()))
ids = torch.arange(2 * 32).view(2, 32) * 3 % 256


def losses(**loading: object) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32, **loading)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(3):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(float(loss.detach()))
    return seen


found = {"parts": losses(distributed_config=parts), "whole": losses()}
if dist.get_rank() == 0:
    print("SEEN", json.dumps(found), flush=True)
dist.destroy_process_group()
