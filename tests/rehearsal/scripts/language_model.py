"""A plain loop over a causal language model: ``language_model.py MODEL [--option …]``, one GPU or DDP."""

from __future__ import annotations

import argparse
import os

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--length", type=int, default=1024)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--autocast", choices=("float16", "bfloat16"))
parser.add_argument("--optimizer", default="AdamW")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--attention", default="sdpa")
parser.add_argument("--lora", type=int, default=0)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--padded", action="store_true", help="half of the rows end in padding")
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--steps", type=int, default=6)
options = parser.parse_args()

world = int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(1)
model = transformers.AutoModelForCausalLM.from_pretrained(
    options.model, dtype=getattr(torch, options.dtype), attn_implementation=options.attention
).cuda()
vocabulary = model.config.get_text_config().vocab_size
if options.checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
if options.lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=options.lora, target_modules="all-linear"))
    if options.checkpointing:
        model.enable_input_require_grads()
model.train()
if options.compile:
    model = torch.compile(model)
if world > 1:
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = getattr(torch.optim, options.optimizer)(trained, lr=1e-4)
scaler = torch.amp.GradScaler("cuda", enabled=options.autocast == "float16")
context = torch.autocast(
    "cuda", dtype=getattr(torch, options.autocast or "bfloat16"), enabled=options.autocast is not None
)


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, vocabulary, (options.batch, options.length))
    mask = torch.ones_like(ids)
    if options.padded:
        mask[::2, options.length // 2 :] = 0
    return {name: value.cuda() for name, value in {"input_ids": ids, "attention_mask": mask}.items()}


for _ in range(options.steps):
    for _ in range(options.accumulation):
        inputs = batch()
        with context:
            loss = model(**inputs, labels=inputs["input_ids"], use_cache=False).loss / options.accumulation
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
if options.evaluate:
    model.eval()
    with torch.no_grad():
        logits = [model(**batch(), use_cache=False).logits for _ in range(2)]
        print(torch.cat(logits).float().softmax(-1).argmax(-1).shape)
