"""A Trainer's own script: two layers; prints the losses that its state holds."""

import json
import os

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def as_gpus() -> None:
    """Accelerate gives CPU ranks no FSDP, unless it takes them for GPUs."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def main() -> None:
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    if os.environ.get("AS_GPUS"):
        as_gpus()
    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                        num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    start = torch.randint(64, (96, 1), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in (start + 7 * torch.arange(32)) % 64]
    trainer = Trainer(model=LlamaForCausalLM(shape), args=args, train_dataset=rows)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if trainer.is_world_process_zero():
        losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
        print("losses", json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
