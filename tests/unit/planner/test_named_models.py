"""A model that a script's arguments name, beside the one that was planned for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.planner.named_models import unlike_planned

TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512}


@pytest.mark.parametrize(
    ("name", "request_", "parameters", "said"),
    [
        ("Qwen/Qwen2.5-0.5B", {"model": "qwen2.5-7b"}, None, "hidden_size 896, not 3584"),
        ("Qwen/Qwen2.5-7B", {"model": "qwen2.5-7b"}, None, None),
        ("Qwen/Qwen2.5-7B-Instruct", {"model": "qwen2.5-7b"}, None, None),
        ("gpt2", {"model": "llama-3.1-8b"}, None, "gpt2, not llama"),
        ("nobody/unknown", {"model": "qwen2.5-7b"}, None, None),  # nothing is known of it
        ("qwen2.5-7b", {"model": "no/such.json"}, None, None),
        ("qwen2.5-7b", {"params": "7b"}, 6_738_415_616, "B parameters, not 6.7"),
        ("llama-2-7b", {"params": "7b"}, 6_738_415_616, None),
        ("qwen2.5-7b", {"params": "7b"}, None, None),
    ],
)
def test_another_model_is_named_with_what_differs(
    name: str, request_: dict[str, str], parameters: int | None, said: str | None
) -> None:
    found = unlike_planned(name, f"--model_name_or_path {name}", request_, parameters)
    assert found is None if said is None else found is not None and said in found


def test_the_configurations_of_folders_are_compared(tmp_path: Path) -> None:
    for name, changed in (("a", {}), ("b", {"num_hidden_layers": 4}), ("c", {"vocab_size": 520})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(TINY | changed))
    request = {"model": str(tmp_path / "a")}
    found = unlike_planned(str(tmp_path / "b"), "--model b", request, None)
    assert found is not None and "num_hidden_layers 4, not 2" in found
    assert unlike_planned(str(tmp_path / "c"), "--model c", request, None) is None  # resized
    (tmp_path / "b" / "config.json").write_text("{")
    assert unlike_planned(str(tmp_path / "b"), "--model b", request, None) is None
