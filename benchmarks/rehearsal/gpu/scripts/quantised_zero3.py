"""A 4-bit model with adapters under ZeRO-3, two ranks on one GPU: memory after and during each part.

    zerokit rehearse --gpus 2 --gpu h100-sxm-80gb quantised_zero3.py MODEL OUT
    for r in 0 1; do RANK=$r LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
        python quantised_zero3.py MODEL OUT & done; wait

``MODEL``: a folder with a Llama's configuration and, for the second, its weights; ``OUT``.RANK gets a line.
Both ranks share a GPU, which NCCL refuses, so they talk by gloo.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import deepspeed
import peft
import torch
import transformers
from transformers.integrations import HfDeepSpeedConfig

SETTINGS = {
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": 1,
}


def read(part: str, row: dict[str, object]) -> None:
    """Add what is allocated now, and the peak since the last reading, both in bytes."""
    row[f"after_{part}"] = torch.cuda.memory_allocated()
    row[f"{part}_peak"] = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()


def main() -> None:
    """Load, add adapters, make the engine, three steps."""
    folder, out = sys.argv[1:]
    torch.cuda.set_device(0)
    deepspeed.init_distributed("gloo")
    row: dict[str, object] = {"rank": int(os.environ["RANK"]), "transformers": transformers.__version__,
                              "deepspeed": deepspeed.__version__, "torch": torch.__version__}  # fmt: skip
    kept = HfDeepSpeedConfig(SETTINGS)  # from_pretrained looks for it: it must live
    quantised = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_quant_storage=torch.bfloat16,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=quantised
    )
    read("load", row)
    model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules="all-linear"))
    read("adapters", row)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=kept.config, dist_init_required=False
    )
    read("engine", row)
    ids = torch.randint(0, 1000, (1, 256), device="cuda")
    for _ in range(3):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
    read("steps", row)
    Path(f"{out}.{row['rank']}").write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
