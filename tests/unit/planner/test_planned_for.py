"""What a script decides of its plan, and what is refused before anything is rehearsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts_read import FIXED_TRAINER, options
from zerokit.errors import InputError
from zerokit.planner.planned_for import PlannedFor
from zerokit.planner.request import resolve
from zerokit.search.plan import make_plan


def planned(folder: Path, text: str, *arguments: str, **asked: Any) -> PlannedFor:
    words = {name: str(value) for name, value in asked.items()}
    request = resolve({"params": "350m", "gpus": "4", "gpu": "l40s", **words}).request
    return PlannedFor.of(request, options(folder, text, *arguments).fixed())


@pytest.mark.parametrize(
    ("text", "asked", "words"),
    [
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
    asked = {"params": "350m", "gpus": "4", "gpu": "l40s", "micro_batch": "3", "precision": "fp32"}
    seen = PlannedFor.of(
        resolve(asked).request, options(tmp_path, FIXED_TRAINER).fixed(), {"micro_batch": "3"}
    )
    assert seen.request.pins.micro_batch == 3
