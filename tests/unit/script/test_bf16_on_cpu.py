"""bf16 on CPU ranks: what ends a Trainer's run is said before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.scripts_read import TRAINER, options
from zerokit.script.bf16_on_cpu import of_arguments


@pytest.mark.parametrize(
    ("arguments", "is_refused"),
    [
        ("", False),
        ("--bf16 True", True),
        ("--bf16", True),
        ("--bf16 False", False),
        ("--bf16_full_eval", True),
        ("--bf16 True --use_cpu True", False),
        ("--bf16 True --no_cuda", False),
        ("--fp16", False),
    ],
)
def test_bf16_without_use_cpu_is_refused(arguments: str, is_refused: bool, tmp_path: Path) -> None:
    assert (_said(arguments, {}, tmp_path) is not None) is is_refused


def test_a_class_that_turns_bf16_on_is_told_so(tmp_path: Path) -> None:
    """As TRL's do."""
    said = _said("", {"bf16": True, "use_cpu": False}, tmp_path)
    assert said is not None and said.startswith("bf16 is on by default") and "--use_cpu True" in said
    assert _said("--bf16 False", {"bf16": True, "use_cpu": False}, tmp_path) is None


def _said(arguments: str, defaults: dict[str, object], folder: Path) -> str | None:
    read = options(folder, TRAINER, *arguments.split())
    return of_arguments(replace(read, defaults=defaults))
