"""As the Trainer examples of Transformers: it trains, or evaluates, only where an option says so."""

import torch
import transformers  # noqa: F401 (alone, as other scripts here: one process imports it for all)

rows = [{"input_ids": torch.arange(64), "labels": torch.arange(64)} for _ in range(48)]
from transformers import (  # noqa: E402
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
config = LlamaConfig(
    vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
)
trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows, eval_dataset=rows)
if arguments.do_train:
    trainer.train()
if arguments.do_eval:
    trainer.evaluate()
