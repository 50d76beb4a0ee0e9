"""One job as a bare DeepSpeed loop, under the Trainer or by a tool: ``loop.py SETTINGS.json``.

Settings: ``trainer`` raw|transformers|axolotl|llamafactory; of a tool ``config``, what its own command reads
(``axolotl train FILE``, ``llamafactory-cli train FILE``), and ``output``; of the others ``model`` (a folder),
``method`` full|lora|qlora, ``dropout``, ``checkpointing`` (bool), ``deepspeed`` (a configuration without
``auto``), ``rows``, ``length``, ``steps``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments


def build(job: dict[str, Any]) -> Any:
    """The model, in bf16, with its adapters."""
    quantization = None
    if job["method"] == "qlora":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    device = {"": int(os.environ["LOCAL_RANK"])} if quantization else None
    model = AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=torch.bfloat16, quantization_config=quantization, device_map=device
    )
    model.config.use_cache = False
    if job["method"] != "full":
        from peft import LoraConfig, get_peft_model

        adapters = LoraConfig(
            r=16, target_modules="all-linear", lora_dropout=job["dropout"], task_type="CAUSAL_LM"
        )
        if job["checkpointing"]:
            model.enable_input_require_grads()
        model = get_peft_model(model, adapters)
    return model


def rows_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of full length, with every token a target."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 200, (64, job["length"]), generator=draw).tolist()
    return [{"input_ids": row, "labels": row} for row in ids]


def train_raw(job: dict[str, Any]) -> None:
    """DeepSpeed's own loop."""
    import deepspeed

    deepspeed.init_distributed()
    settings = job["deepspeed"]
    if settings["zero_optimization"]["stage"] == 3:
        from transformers.integrations import HfDeepSpeedConfig

        job["alive"] = HfDeepSpeedConfig(settings)  # from_pretrained partitions while this lives
    model = build(job)
    if job["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=settings)
    data = rows_of(job)
    for step in range(job["steps"]):
        batch = [row["input_ids"] for row in data[step * job["rows"] : (step + 1) * job["rows"]]]
        ids = torch.tensor(batch).to("cuda")
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()


def train_under_trainer(job: dict[str, Any]) -> None:
    """The same under Transformers' Trainer."""
    arguments = TrainingArguments(
        output_dir=job["output"],
        per_device_train_batch_size=job["rows"],
        max_steps=job["steps"],
        bf16=True,
        gradient_checkpointing=job["checkpointing"],
        deepspeed=job["deepspeed"],
        report_to="none",
        save_strategy="no",
        logging_steps=1,
    )
    Trainer(model=build(job), args=arguments, train_dataset=rows_of(job)).train()


def train_by_tool(job: dict[str, Any]) -> None:
    """What the tool's command does in each rank."""
    if job["trainer"] == "llamafactory":
        from llamafactory.train.tuner import run_exp

        run_exp(job["config"])
        return
    from axolotl.cli.train import do_cli

    file = Path(job["output"]).with_suffix(".json")  # YAML as well
    file.write_text(json.dumps(job["config"]))
    do_cli(config=str(file))


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    ways = {"raw": train_raw, "transformers": train_under_trainer}
    ways.get(settings["trainer"], train_by_tool)(settings)
