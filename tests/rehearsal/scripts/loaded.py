"""An adapter from disk, bases in 4 and 8 bits, a long generation and a save: what each of them allocates.

Prints names and bytes. Arguments: the model's and the adapter's folder.
"""

import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

model_folder, adapter_folder = sys.argv[1:]


def loaded(**options: object) -> tuple[AutoModelForCausalLM, int]:
    before = torch.cuda.memory_allocated()
    model = AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=torch.bfloat16, device_map={"": 0}, **options
    )
    return model, torch.cuda.memory_allocated() - before


four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
print("four", loaded(quantization_config=four)[1])
print("eight", loaded(quantization_config=BitsAndBytesConfig(load_in_8bit=True))[1])
base, size = loaded()
print("plain", size)
before = torch.cuda.memory_allocated()
model = PeftModel.from_pretrained(base, adapter_folder, is_trainable=True)
print("adapter", torch.cuda.memory_allocated() - before)
tokens = torch.ones(2, 64, dtype=torch.long, device="cuda")
with torch.no_grad():
    print("generated", model.generate(input_ids=tokens, max_new_tokens=2000, pad_token_id=0).shape[1])
optimizer = torch.optim.AdamW(parameter for parameter in model.parameters() if parameter.requires_grad)
for _ in range(5):
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.save_pretrained("out")
