"""What a script's own code asks Accelerate for, beside a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ranks import write_script
from zerokit.script.bf16_on_cpu import of_code
from zerokit.script.code_settings import unlike_plan
from zerokit.script.reader import read_script

PLAN = {"zero_stage": 2, "gradient_accumulation": 2, "offload_optimizer": "none", "offload_param": "none"}
PLUGIN = "Accelerator(deepspeed_plugin=DeepSpeedPlugin({}))"
TRAINER = "transformers.Trainer(args=transformers.TrainingArguments('out', {})).train()"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (PLUGIN.format("zero_stage=1, gradient_accumulation_steps=1"),
         ["t.py:5: DeepSpeedPlugin(zero_stage=1), but the plan has zero_stage 2",
          "t.py:5: DeepSpeedPlugin(gradient_accumulation_steps=1), but the plan has gradient_acc"]),
        (PLUGIN.format("zero_stage=2, offload_optimizer_device='cpu'"),
         ["DeepSpeedPlugin(offload_optimizer_device='cpu'), but the plan has offload_optimizer_device none"]),
        (PLUGIN.format("zero_stage=STAGE"), ["DeepSpeedPlugin(zero_stage=3), but the plan has zero_stage 2"]),
        (PLUGIN.format("zero_stage=stage"), []),  # an argument
        ("Accelerator(mixed_precision='bf16', gradient_accumulation_steps=4)",
         ["Accelerator(mixed_precision='bf16'), but the plan has mixed_precision no",
          "Accelerator(gradient_accumulation_steps=4), but the plan has gradient"]),
        ("Accelerator(mixed_precision='no', gradient_accumulation_steps=2)", []),
        ("Accelerator(mixed_precision=args.precision)", []),
        ("Accelerator(mixed_precision='bf16') if stage else Accelerator()", []),  # only the run tells
    ],
)  # fmt: skip
def test_what_the_code_asks_for_is_held_to_the_plan(tmp_path: Path, code: str, said: list[str]) -> None:
    text = "import transformers\nfrom accelerate import Accelerator, DeepSpeedPlugin\nSTAGE = 3\n"
    facts = read_script(write_script(tmp_path, text + f"def train(stage=None):\n    {code}\n", "t.py"), None)
    found = unlike_plan(facts.code_settings, facts.style, PLAN, "fp32")
    assert len(found) == len(said), found
    assert all(part in one for part, one in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    ("arguments", "is_refused"),
    [
        ("bf16=True", True),
        ("bf16=False", False),
        ("bf16=args.bf16", False),
        ("bf16=True, use_cpu=True", False),
        ("bf16=True, use_cpu=not torch.cuda.is_available()", False),
        ("", False),
    ],
)
def test_bf16_that_the_code_fixes_is_of_code(tmp_path: Path, arguments: str, is_refused: bool) -> None:
    text = f"import transformers\n{TRAINER.format(arguments)}\n"
    said = of_code(read_script(write_script(tmp_path, text, "t.py"), None).code_settings)
    assert (said is not None) is is_refused
    assert said is None or said.endswith(
        "TrainingArguments(bf16=True): refused on CPU ranks; add use_cpu=True beside it"
    )
