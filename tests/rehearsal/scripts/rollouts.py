"""Each step trains on what the model itself has generated: ``rollouts.py TOKENS``."""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model(
    "llama", vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, pad_token_id=0,
)  # fmt: skip
model = AutoModelForCausalLM.from_config(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(6):
    prompts = torch.randint(5, 1000, (2, 16)).cuda()
    ids = model.generate(prompts, max_new_tokens=int(sys.argv[1]), do_sample=True)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
