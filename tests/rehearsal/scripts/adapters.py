"""An adapter of which only the configuration is there, by peft's loader and by Transformers' own.

Arguments: the model's and the adapter's folder.
"""

import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

model_folder, adapter_folder = sys.argv[1:]
ELEMENTS = 2 * 16 * (256 + 256 + 256 + 128)  # two layers, rank 16, of query and value


def base() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16, device_map={"": 0})


def taken(before: int) -> int:
    return torch.cuda.memory_allocated() - before


model = base()
before = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
adapted = PeftModel.from_pretrained(model, adapter_folder, is_trainable=True)
assert taken(before) == 4 * ELEMENTS  # peft trains adapters in fp32
assert torch.cuda.max_memory_allocated() - before == 2 * 4 * ELEMENTS  # the file's, read onto the GPU
optimizer = torch.optim.AdamW([weight for weight in adapted.parameters() if weight.requires_grad])
tokens = torch.ones(2, 64, dtype=torch.long, device="cuda")
for _ in range(4):
    adapted(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()

other = base()
before = torch.cuda.memory_allocated()
other.load_adapter(adapter_folder)
assert taken(before) == 2 * ELEMENTS  # Transformers keeps the model's type
