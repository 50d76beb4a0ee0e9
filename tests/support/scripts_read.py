"""Scripts of each kind, and what is read of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.ranks import write_script
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.job import Lora
from zerokit.domain.settings import PlannedValues
from zerokit.domain.strategy import Strategy
from zerokit.emit.plan_file import PlanFile
from zerokit.launcher.plan_agreement import agree
from zerokit.launcher.rehearsed_plan import Agreement, PlannedCommand
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
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


def held(
    chosen: Mapping[str, Any] | None = None,
    request: Mapping[str, Any] | None = None,
    folder: Path = Path("plan"),
    *,
    seq_len: int = 128,
    lora: Lora | None = None,
    cluster: Mapping[str, Any] | None = None,
) -> PlanFile:
    """A plan of this choice and request that scripts are held to."""
    whole = {"micro_batch": 4, "gradient_accumulation": 1} if chosen is None else chosen
    asked = dict(request or {})
    if lora is not None:
        asked = {"method": "lora", "lora-rank": lora.rank, "lora-targets": ",".join(lora.targets), **asked}
    return PlanFile(
        path=folder / "plan.yaml", request=asked, chosen={"seq_len": seq_len, **whole},
        cluster=dict(cluster or {}),
    )  # fmt: skip


def agreed(
    found: ScriptOptions, plan: PlanFile, config: dict[str, Any] | None = None, **how: Any
) -> Agreement:
    """What a launch on GPUs with this plan says of the script; ``how``: other arguments of ``agree``."""
    asked = {"on_cpu": False, "no_arguments": False, "accept_mismatch": False, "writes_here": False, **how}
    command = PlannedCommand(plan, Target(script="t.py", module=None, arguments=found.user_arguments))
    return agree(command, found, {"bf16": {"enabled": True}} if config is None else config, **asked)
