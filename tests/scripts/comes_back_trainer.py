"""A Trainer script that saves every two steps and knows nothing of resuming; rank 1 dies once, at step 5."""

import os
import signal
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Dies(TrainerCallback):
    """Once."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 5 and os.environ["RANK"] == "1" and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2},
              "gradient_accumulation_steps": "auto"}  # fmt: skip
    arguments = TrainingArguments(output_dir="out", max_steps=8, per_device_train_batch_size=2, save_steps=2,
                                  report_to=[], optim="adamw_torch", deepspeed=config)  # fmt: skip
    shape = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                        num_attention_heads=2)  # fmt: skip
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(64)]
    trainer = Trainer(model=LlamaForCausalLM(shape), args=arguments, train_dataset=rows, callbacks=[Dies()])
    first = []
    trainer.add_callback(
        type(
            "First",
            (TrainerCallback,),
            {"on_train_begin": lambda self, args, state, control, **kwargs: first.append(state.global_step)},
        )()
    )
    trainer.train()
    print("began at", first[0], "and did", trainer.state.global_step, flush=True)


if __name__ == "__main__":
    main()
