"""The words that plan for what ran, with the script or by options."""

from __future__ import annotations

from typing import Any

import pytest

from zerokit.report.schema import Difference
from zerokit.report.what_ran import options_to_plan

CHOSEN = {"micro_batch": 2, "gradient_accumulation": 2, "data_parallel": 2}
REQUEST = {"model": "mistral-7b", "method": "lora", "gpus": "2", "gpu": "l40s", "global-batch": "8"}


def differing(**ran: str) -> list[Difference]:
    return [
        Difference(what=name, planned="", ran=value, option=name.replace("_", "-"), text=f"{name} {value}")
        for name, value in ran.items()
    ]


@pytest.mark.parametrize(
    ("request_more", "ran", "words"),
    [
        ({}, {"model": "1168512", "method": "all"}, "method= model="),
        ({"seq-len": "256"}, {"seq_len": "128"}, "method= seq_len="),
        ({"micro-batch": "2"}, {"micro_batch": "3"}, "--global-batch 6 method= micro_batch="),
        ({"params": "7b"}, {"precision": "fp32"}, "method= model="),
    ],
)
def test_with_the_script_all_that_it_tells_is_taken_out_of_the_recipe(
    request_more: dict[str, str], ran: dict[str, str], words: str
) -> None:
    request = {**REQUEST, **request_more}
    if "params" in request:
        del request["model"]
    plan: dict[str, Any] = {"chosen": CHOSEN, "request": request, "script": ["../train.py", "--steps", "2"]}
    assert options_to_plan(plan, differing(**ran)) == [*words.split(), "--", "../train.py", "--steps", "2"]
    assert options_to_plan(plan, []) == []


def test_without_a_script_options_say_what_they_can() -> None:
    plan = {"chosen": CHOSEN, "request": REQUEST}
    assert options_to_plan(plan, differing(micro_batch="4", model="1")) == ["--micro-batch", "4"]
    assert options_to_plan(plan, differing(model="1")) == []
