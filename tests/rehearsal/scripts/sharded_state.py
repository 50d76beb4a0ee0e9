"""Accelerate with FSDP2, and a sharded checkpoint at the end, which is loaded again."""

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from transformers import AutoConfig, AutoModelForCausalLM

plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
config = AutoConfig.for_model(
    "llama", vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=4,
)  # fmt: skip
model = AutoModelForCausalLM.from_config(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
rows = [{"input_ids": torch.randint(0, 1000, (128,))} for _ in range(64)]
model, optimizer, batches = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(rows, batch_size=4)
)
for batch in batches:
    accelerator.backward(model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss)
    optimizer.step()
    optimizer.zero_grad()
accelerator.save_state("state")
accelerator.load_state("state")
print("parameters", sum(parameter.numel() for parameter in model.parameters()))
