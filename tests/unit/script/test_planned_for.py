"""What a script decides of its plan, and what is refused before anything is rehearsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts_read import FIXED_TRAINER, options
from zerokit.errors import InputError
from zerokit.planner.request import resolve
from zerokit.script.planned_for import PlannedFor
from zerokit.search.plan import make_plan

LOOP = """
    import argparse
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps={steps})
    loader = DataLoader(data, batch_size={batch})
"""


def planned(folder: Path, text: str, *arguments: str, **asked: Any) -> PlannedFor:
    words = {name: str(value) for name, value in asked.items()}
    request = resolve({"params": "350m", "gpus": "4", "gpu": "l40s", **words}).request
    return PlannedFor.of(request, options(folder, text, *arguments))


@pytest.mark.parametrize("steps", [1, 4])
def test_the_literals_of_the_code_decide_the_plan(tmp_path: Path, steps: int) -> None:
    found = planned(tmp_path, LOOP.format(steps=steps, batch="args.batch_size"))
    assert found.decided["gradient-accumulation"] == str(steps)
    assert any(
        f"accumulation {steps}: " in note and f"Accelerator(gradient_accumulation_steps={steps})" in note
        for note in found.request.assumptions
    )
    assert make_plan(found.request, top=1).chosen.strategy.settings.gradient_accumulation == steps


PLUGIN = """
    from accelerate import Accelerator, DeepSpeedPlugin
    plugin = DeepSpeedPlugin({})
    accelerator = Accelerator(mixed_precision="fp16", deepspeed_plugin=plugin)
"""


def test_the_stage_offload_and_precision_of_the_code_are_planned_for(tmp_path: Path) -> None:
    """What launch would stop at otherwise, under the plan that was made with the script."""
    text = PLUGIN.format("zero_stage=3, offload_optimizer_device='cpu'")
    found = planned(tmp_path, text)
    fixed = {"checkpointing": "none", "offload-optimizer": "cpu"}
    assert found.decided == {**fixed, "zero": "3", "precision": "fp16"}
    strategy = make_plan(found.request, top=1).chosen.strategy
    assert strategy.settings.zero.stage == 3 and strategy.settings.precision == "fp16"
    assert any("ZeRO stage 3: " in note and ":3: " in note for note in found.request.assumptions)
    assert planned(tmp_path, text, zero=3, precision="fp16").decided == fixed


@pytest.mark.parametrize(
    ("arguments", "asked", "words"),
    [
        ("zero_stage=2", {"zero": 1},
         r"zero 1: the script has 2 \(.*:3: DeepSpeedPlugin\(zero_stage=2\)\); leave zero out"),
        ("zero_stage=2", {"precision": "bf16"}, "precision bf16: the script has fp16"),
        ("offload_optimizer_device='nvme'", {}, r":3: DeepSpeedPlugin.*'nvme'\): name a folder .* nvme DIR"),
    ],
)  # fmt: skip
def test_another_strategy_than_the_codes_is_refused(
    tmp_path: Path, arguments: str, asked: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        planned(tmp_path, PLUGIN.format(arguments), **asked)


@pytest.mark.parametrize(
    ("text", "asked", "words"),
    [
        (LOOP.format(steps=1, batch=4), {"gradient_accumulation": 2},
         r"gradient_accumulation 2: the script has 1 \(.*Accelerator\(gradient_accumulation_steps=1\)\); "
         "leave gradient_accumulation out"),
        (FIXED_TRAINER, {"precision": "bf16"}, "precision bf16: the script has fp32 .*; leave precision out"),
        (FIXED_TRAINER, {"precision": "fp32", "micro_batch": 4}, None),
        (FIXED_TRAINER, {"micro_batch": 3}, r"micro_batch 3: .*sets per_device_train_batch_size 4"),
        (FIXED_TRAINER, {"gradient_accumulation": 4}, r"gradient_accumulation 4: .*gradient_accumulation_st"),
    ],
)  # fmt: skip
def test_what_the_script_will_not_do_is_refused(
    tmp_path: Path, text: str, asked: dict[str, object], words: str | None
) -> None:
    if words is None:
        assert planned(tmp_path, text, **asked)
        return
    with pytest.raises(InputError, match=words):
        planned(tmp_path, text, **asked)


def test_a_global_batch_that_the_script_cannot_meet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="4 data-parallel ranks are 16 sequences a step, not global_batch 24"
    ):
        make_plan(planned(tmp_path, FIXED_TRAINER, global_batch=24).request, top=1)


def test_what_a_rehearsal_saw_goes_before_what_was_read(tmp_path: Path) -> None:
    asked = {"params": "350m", "gpus": "4", "gpu": "l40s", "gradient_accumulation": "3"}
    script = options(tmp_path, LOOP.format(steps=1, batch=4))
    seen = PlannedFor.of(resolve(asked).request, script, {"gradient_accumulation": "3"}).request
    assert seen.pins.gradient_accumulation == 3
