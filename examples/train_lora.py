r"""Train LoRA adapters on a causal LM with a Hugging Face Trainer; --four_bit is QLoRA.

An ordinary Trainer script: it knows nothing of zerokit. Batch size, accumulation, precision and
checkpointing are TrainingArguments, which `zerokit launch` fills from the plan.

    zerokit launch --plan zerokit-plan train_lora.py --model meta-llama/Llama-3.1-8B --four_bit \
        --data my.txt --output_dir out
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    ByT5Tokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


@dataclass
class Job:
    model: str = field(metadata={"help": "a name on the Hub, a folder, or a config.json (random weights)"})
    data: Path = field(metadata={"help": "a text file"})
    seq_len: int = field(default=2048, metadata={"help": "tokens per sequence"})
    lora_rank: int = field(default=16, metadata={"help": "rank of the adapters"})
    four_bit: bool = field(default=False, metadata={"help": "QLoRA: base weights in 4 bits (NF4)"})


def load(job: Job, dtype: torch.dtype):
    """Tokenizer and base model."""
    if job.model.endswith(".json"):  # to try the script without a download: bytes are the tokens
        if job.four_bit:
            raise SystemExit(
                "--four_bit: a config.json has no weights to hold in 4 bits; give --model a folder"
            )
        config = AutoConfig.from_pretrained(job.model)
        return ByT5Tokenizer(), AutoModelForCausalLM.from_config(config, dtype=dtype)
    quantization = BitsAndBytesConfig(  # "load the base model in 4 bits"
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    model = AutoModelForCausalLM.from_pretrained(
        job.model, dtype=dtype, quantization_config=quantization if job.four_bit else None
    )
    return AutoTokenizer.from_pretrained(job.model), model


def main() -> None:
    job, training = HfArgumentParser((Job, TrainingArguments)).parse_args_into_dataclasses()
    dtype = torch.bfloat16 if training.bf16 else torch.float16 if training.fp16 else torch.float32
    tokenizer, model = load(job, dtype)
    model.config.use_cache = False
    if training.gradient_checkpointing:
        model.enable_input_require_grads()  # the base is frozen: without this nothing would get a gradient
    adapters = LoraConfig(r=job.lora_rank, target_modules="all-linear")  # "add the adapters"
    model = get_peft_model(model, adapters)

    tokens = tokenizer(job.data.read_text()).input_ids
    ends = range(job.seq_len, len(tokens) + 1, job.seq_len)
    rows = [{"input_ids": tokens[end - job.seq_len : end]} for end in ends]
    if not rows:
        raise SystemExit(f"--data {job.data}: {len(tokens)} tokens, fewer than one sequence of {job.seq_len}")

    def batch(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        ids = torch.tensor([example["input_ids"] for example in examples])
        return {"input_ids": ids, "labels": ids.clone()}

    trainer = Trainer(model=model, args=training, train_dataset=rows, data_collator=batch)
    trainer.train()
    trainer.save_model()  # the adapters alone


if __name__ == "__main__":
    main()
