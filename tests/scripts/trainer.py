"""A Hugging Face Trainer script that knows nothing of DeepSpeed."""

import argparse
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomTokens(torch.utils.data.Dataset):
    """Random sequences, the same for every rank."""

    def __init__(self, count: int, vocabulary: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, vocabulary, (count, 32), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


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
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
        )
        model = LlamaForCausalLM(config)
        trainer = Trainer(model=model, args=arguments, train_dataset=RandomTokens(64, config.vocab_size))
        trainer.train()
        if trainer.is_world_process_zero():
            print(
                f"trained {trainer.state.global_step} steps on {arguments.world_size} processes", flush=True
            )


if __name__ == "__main__":
    main()
