"""Scripts of each kind, and what is read of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.ranks import write_script
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.strategy import Strategy
from zerokit.script.arguments import ScriptOptions
from zerokit.script.planned_values import PlannedValues
from zerokit.script.reader import read_script

RAW = """
    import argparse, deepspeed
    parser = argparse.ArgumentParser()
    deepspeed.add_config_arguments(parser)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--micro-batch-size", type=int)
    deepspeed.initialize()
"""
TRAINER = """
    from elsewhere import OtherArguments
    from transformers import HfArgumentParser, Trainer, TrainingArguments
    other, args = HfArgumentParser((OtherArguments, TrainingArguments)).parse_args_into_dataclasses()
    Trainer(args=args).train()
"""
FIXED_TRAINER = """
    from transformers import Trainer, TrainingArguments
    args = TrainingArguments(per_device_train_batch_size=4, gradient_checkpointing=True)
    Trainer(args=args).train()
"""
NO_TRAINER = """
    import argparse
    from accelerate import Accelerator
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    Accelerator()
"""
PLANNED = PlannedValues(
    micro_batch=4, gradient_accumulation=2, precision="bf16", checkpointing="full", gradient_clipping=0.5
)


def options(folder: Path, text: str, *given: str) -> ScriptOptions:
    """What is known of a script and the arguments that its user gave."""
    facts = read_script(write_script(folder, text), None)
    return ScriptOptions.read(facts, facts.style, given)


def strategy(checkpointing: str = "full", precision: str = "bf16") -> Strategy:
    """Two ranks, four sequences each, two micro-batches a step."""
    settings = DeepSpeedSettings(
        precision=precision, micro_batch=4, gradient_accumulation=2, gradient_clipping=1.0
    )
    return Strategy(settings=settings, data_parallel=2, checkpointing=checkpointing)


def joined(found: ScriptOptions, **changed: object) -> str:
    """The arguments that a launch adds for the plan, or for one like it, in one line."""
    return " ".join(found.additions(replace(PLANNED, **changed)))  # type: ignore[arg-type]
