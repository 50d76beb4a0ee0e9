"""What a script's own code fixes, read from its source and held to a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ranks import write_script
from tests.support.scripts_read import FIXED_TRAINER, TRAINER, joined, options
from zerokit.script.arguments import ScriptOptions
from zerokit.script.code_values import code_values, decided_options, unlike_plan
from zerokit.script.reader import read_script

SCRIPT = """
    import argparse
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import GradientAccumulationPlugin
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=6)
    args = parser.parse_args()
    STEPS = 3
    {}
"""


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        ("Accelerator(gradient_accumulation_steps=1)", 1),
        ("Accelerator(gradient_accumulation_steps=STEPS)", 3),
        ("Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4))", 4),
        ("Accelerator(deepspeed_plugin=DeepSpeedPlugin(gradient_accumulation_steps=2))", 2),
        ("Accelerator()", None),
        ("Accelerator(gradient_accumulation_steps=2 * STEPS)", None),
        ("Accelerator(gradient_accumulation_steps=args.accumulate)", None),  # a plan fills it in
        # which of them?
        ("Accelerator(gradient_accumulation_steps=2) if STEPS else Accelerator()", None),
    ],
)
def test_the_accumulation_is_what_accelerate_is_given(tmp_path: Path, code: str, steps: int | None) -> None:
    found = code_values(options(tmp_path, SCRIPT.format(code))).get("gradient_accumulation")
    assert (found.value if found is not None else None) == steps
    assert found is None or f"={steps}" in found.where


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ("DeepSpeedPlugin(zero_stage=0)", {"zero_stage": 0}),
        ("DeepSpeedPlugin(zero_stage=STEPS, offload_param_device='cpu', offload_optimizer_device='none')",
         {"zero_stage": 3, "offload_param": "cpu", "offload_optimizer": "none"}),
        ("DeepSpeedPlugin(zero_stage=args.accumulate)", {}),  # a plan fills it in
        ("DeepSpeedPlugin(zero_stage=True, offload_param_device='disk')", {}),
        ("Accelerator(mixed_precision='bf16')", {"precision": "bf16"}),
        ("Accelerator(mixed_precision='no')", {"precision": "fp32"}),
        ("Accelerator(mixed_precision='fp8')", {}),
    ],
)  # fmt: skip
def test_the_rest_is_read_as_the_plan_writes_it(
    tmp_path: Path, code: str, values: dict[str, int | str]
) -> None:
    found = code_values(options(tmp_path, SCRIPT.format(code)))
    assert {name: one.value for name, one in found.items()} == values


def test_a_trainers_arguments_are_read_elsewhere(tmp_path: Path) -> None:
    text = TRAINER + "    Accelerator(gradient_accumulation_steps=2)\n"
    assert code_values(options(tmp_path, text)) == {}


def test_an_option_that_accelerate_gets_is_filled_in_from_the_plan(tmp_path: Path) -> None:
    script = SCRIPT.format("Accelerator(gradient_accumulation_steps=args.accumulate)")
    assert "--accumulate 2" in joined(options(tmp_path, script))
    assert "--accumulate" not in joined(options(tmp_path, script, "--accumulate", "5"))


CHOSEN = {
    "micro_batch": 4, "gradient_accumulation": 2, "precision": "bf16", "zero_stage": 1,
    "activation_checkpointing": "full", "deepspeed_config": {"optimizer": {"type": "AdamW"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SCRIPT.format("Accelerator(gradient_accumulation_steps=4)"), {"gradient-accumulation": "4"}),
        (SCRIPT.format("Accelerator(gradient_accumulation_steps=2)"), {}),
        (SCRIPT.format("DeepSpeedPlugin(zero_stage=2, offload_optimizer_device='cpu')"), {"zero": "2"}),
        (SCRIPT.format("Accelerator(mixed_precision='no')"), {"precision": "fp32"}),
        (FIXED_TRAINER, {"micro-batch": "4", "gradient-accumulation": "1", "precision": "fp32"}),
    ],
)  # fmt: skip
def test_what_differs_from_a_plan_is_said_as_its_options(
    tmp_path: Path, text: str, said: dict[str, str]
) -> None:
    assert decided_options(options(tmp_path, text), CHOSEN, on_cpu=True) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--gradient_checkpointing False", {"checkpointing": "none"}),
        ("--gradient_checkpointing True --optim adamw_torch", {}),
        ("--optim adafactor", {"optimizer": "adafactor"}),
    ],
)
def test_for_cpu_ranks_a_trainers_checkpointing_and_optimizer_are_options_too(
    tmp_path: Path, given: str, said: dict[str, str]
) -> None:
    arguments = ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--bf16", "True"]
    found = options(tmp_path, TRAINER, *arguments, *given.split())
    assert decided_options(found, CHOSEN, on_cpu=True) == said
    assert decided_options(found, CHOSEN, on_cpu=False) == {}  # a plan is made with the script


PLAN = {"zero_stage": 2, "gradient_accumulation": 2, "offload_optimizer": "none", "offload_param": "none"}
PLUGIN = "Accelerator(deepspeed_plugin=DeepSpeedPlugin({}))"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (PLUGIN.format("zero_stage=1, gradient_accumulation_steps=1"),
         ["t.py:5: DeepSpeedPlugin(zero_stage=1), but the plan has zero_stage 2",
          "t.py:5: DeepSpeedPlugin(gradient_accumulation_steps=1), but the plan has gradient_acc"]),
        (PLUGIN.format("zero_stage=2, offload_optimizer_device='cpu'"),
         ["DeepSpeedPlugin(offload_optimizer_device='cpu'), but the plan has offload_optimizer none"]),
        (PLUGIN.format("zero_stage=STAGE"), ["DeepSpeedPlugin(zero_stage=3), but the plan has zero_stage 2"]),
        (PLUGIN.format("zero_stage=stage"), []),  # an argument
        ("Accelerator(mixed_precision='bf16', gradient_accumulation_steps=4)",
         ["Accelerator(mixed_precision='bf16'), but the plan has precision fp32",
          "Accelerator(gradient_accumulation_steps=4), but the plan has gradient"]),
        ("Accelerator(mixed_precision='no', gradient_accumulation_steps=2)", []),
        ("Accelerator(mixed_precision=args.precision)", []),
        ("Accelerator(mixed_precision='bf16') if stage else Accelerator()", []),  # only the run tells
    ],
)  # fmt: skip
def test_what_the_code_asks_for_is_held_to_the_plan(tmp_path: Path, code: str, said: list[str]) -> None:
    text = "import transformers\nfrom accelerate import Accelerator, DeepSpeedPlugin\nSTAGE = 3\n"
    facts = read_script(write_script(tmp_path, text + f"def train(stage=None):\n    {code}\n", "t.py"), None)
    found = unlike_plan(ScriptOptions.read(facts, facts.style, ()), PLAN, "fp32")
    assert len(found) == len(said), found
    assert all(part in one for part, one in zip(said, found, strict=True)), found
