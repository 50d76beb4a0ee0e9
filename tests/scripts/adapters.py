"""A Hugging Face Trainer script that trains LoRA adapters (peft) and knows nothing of DeepSpeed."""

import argparse
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    tokens = torch.randint(0, config.vocab_size, (64, 32), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=8, target_modules="all-linear"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data)
        trainer.train()
        if trainer.is_world_process_zero():
            trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
            print(f"trained {trained} parameters on {arguments.world_size} processes", flush=True)


if __name__ == "__main__":
    main()
