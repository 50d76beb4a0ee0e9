"""Which runs are offered a stand-in for a package of kernels."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("torch")

from zerokit.rehearsal.order import Order
from zerokit.rehearsal.process import stand_ins


def asks(*arguments: str) -> bool:
    order = SimpleNamespace(arguments=arguments, is_module=True, target="train")
    return stand_ins.asks_for_flash_attention(cast("Order", order))


def test_arguments_and_the_files_that_they_name_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"attn_implementation": "flash_attention_2"}')
    assert asks("--attn=flash_attention_2")
    assert asks("--model", str(tmp_path)) and asks(f"--config={tmp_path}/config.json")
    assert not asks("--model", "gpt2", "--config=")


def test_an_argument_that_is_too_long_for_a_path_is_a_text() -> None:
    assert not asks("--prompt", "x" * 5000, f"--settings={'y' * 300}")
