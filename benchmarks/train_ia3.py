"""Supervised training with IA3 adapters, written as TRL's ``sft.py`` is, which cannot ask for them."""

from datasets import load_dataset
from peft import IA3Config
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser


def main() -> None:
    """Train on the splits of a folder, and save the adapters."""
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    script, training, model = parser.parse_args_and_config()
    training.model_init_kwargs = {"dtype": model.dtype}
    adapters = IA3Config(
        task_type="CAUSAL_LM",
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    )
    trainer = SFTTrainer(
        model=model.model_name_or_path,
        args=training,
        train_dataset=load_dataset(script.dataset_name)["train"],
        peft_config=adapters,
    )
    trainer.train()
    trainer.save_model(training.output_dir)


if __name__ == "__main__":
    main()
