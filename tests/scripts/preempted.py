"""A Trainer with its own answer to preemption: told by SIGTERM, it saves a checkpoint and ends."""

import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Slowly(TrainerCallback):
    """Long steps: Transformers' ranks do not agree on the one after which they save, and wait for each
    other for ever where they are told in different ones."""

    def on_step_begin(self, args, state, control, **kwargs):
        Path(f"training-{args.process_index}").touch()
        time.sleep(2)


def main() -> None:
    config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2},
              "gradient_accumulation_steps": "auto"}  # fmt: skip
    arguments = TrainingArguments(output_dir="out", max_steps=4000, per_device_train_batch_size=2,
                                  save_strategy="no", report_to=[], optim="adamw_torch", deepspeed=config,
                                  enable_jit_checkpoint=True)  # fmt: skip
    shape = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                        num_attention_heads=2)  # fmt: skip
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16000)]
    Trainer(model=LlamaForCausalLM(shape), args=arguments, train_dataset=rows, callbacks=[Slowly()]).train()
    print("left at", time.time(), flush=True)


if __name__ == "__main__":
    main()
