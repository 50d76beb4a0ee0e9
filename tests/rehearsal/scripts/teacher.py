"""A DeepSpeed script with a frozen teacher beside the model: ``teacher.py --deepspeed_config FILE``."""

import argparse

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

TEACHER = 16384  # 16384² weights of 16 bits: 512 MiB

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
deepspeed.add_config_arguments(parser)
args = parser.parse_args()

config = LlamaConfig(
    vocab_size=1000,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
engine, *_ = deepspeed.initialize(args=args, model=LlamaForCausalLM(config))
teacher = torch.nn.Linear(TEACHER, TEACHER, bias=False, dtype=torch.bfloat16, device=engine.device)
teacher.requires_grad_(False)
rows = engine.train_micro_batch_size_per_gpu()
for _ in range(6 * engine.gradient_accumulation_steps()):
    tokens = torch.randint(0, config.vocab_size, (rows, 128), device=engine.device)
    with torch.no_grad():
        teacher(torch.zeros(rows, TEACHER, dtype=torch.bfloat16, device=engine.device))
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
