"""Modules that a batch may pass by, of models that we did not write; on the meta device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from zerokit.instrument.engine_facts import skippable_modules  # noqa: E402
from zerokit.launcher.verdict.verdict import warnings_of  # noqa: E402


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("Qwen2VLForConditionalGeneration", {}, {"towers": ["model.visual"]}),
        ("LlavaForConditionalGeneration", {}, {"towers": ["model.vision_tower"]}),
        # always gets both an image and a text
        ("CLIPModel", {}, {}),
        # its experts are one tensor
        ("Qwen3MoeForCausalLM", {"num_hidden_layers": 1, "num_experts": 4}, {}),
    ],
)
def test_what_a_batch_may_pass_by(
    name: str, settings: dict[str, int], expected: dict[str, list[str]]
) -> None:
    model_class = getattr(transformers, name)
    with torch.device("meta"):
        assert skippable_modules(model_class(model_class.config_class(**settings))) == expected


def test_experts_in_a_leaf_module_are_gathered_together() -> None:
    block = torch.nn.Module()
    block.experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(4))
    model = torch.nn.Sequential(block)
    assert skippable_modules(model) == {"experts": ["0.experts"]}
    block._z3_leaf = True  # as deepspeed.utils.set_z3_leaf_modules sets it
    assert skippable_modules(model) == {}
    block._z3_leaf, block.experts._z3_leaf = False, True  # as set_z3_leaf_module sets one
    assert skippable_modules(model) == {}


def test_the_warning_is_of_stage_3_alone() -> None:
    engine = {"zero_stage": 3, "skippable": {"experts": ["layers.0.experts"], "towers": ["visual"]}}
    experts, towers = warnings_of(engine)
    assert "layers.0.experts" in experts and "set_z3_leaf_modules" in experts
    assert towers.startswith("visual under ZeRO-3")
    assert warnings_of({**engine, "zero_stage": 2}) == []
    assert warnings_of({"zero_stage": 3, "skippable": 5}) == []
