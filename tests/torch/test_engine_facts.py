"""What the probe reads of peft's adapters, on peft's own models."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.domain.job import PACKED_LORA, Lora
from zerokit.instrument.engine_facts import adapters, elements, optimizer_groups, unlike_lora
from zerokit.rehearsal.process.phases import describe

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


def model(**config: Any) -> Any:
    tiny = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64
    )
    base = transformers.LlamaForCausalLM(tiny)
    return peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **config)) if config else base


def test_lora_is_read_with_its_rank_and_modules() -> None:
    assert adapters(model(r=4, target_modules=["v_proj", "q_proj"])) == Lora(
        rank=4, targets=("q_proj", "v_proj")
    )
    assert adapters(model(r=8, target_modules="all-linear")) == Lora(rank=8, targets=("all-linear",))


@pytest.mark.parametrize(
    "targets", [("all-linear",), ("down_proj", "gate_proj", "q_proj", "up_proj")], ids=["all", "named"]
)
def test_adapters_of_experts_in_one_parameter_are_lora_of_its_rank(targets: tuple[str, ...]) -> None:
    tiny = transformers.Qwen3MoeConfig(
        hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, num_experts=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=64,
    )  # fmt: skip
    named = "all-linear" if targets == ("all-linear",) else list(targets)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=named)
    adapted = peft.get_peft_model(transformers.Qwen3MoeForCausalLM(tiny), config)
    assert config.rank_pattern  # which peft has set by itself
    assert adapters(adapted) == Lora(rank=8, targets=targets)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj"]])
def test_a_rehearsal_names_the_modules_as_a_run_does(targets: Any) -> None:
    adapted = model(r=8, target_modules=targets)
    named = adapters(adapted)
    assert named is not None and describe(adapted)["lora_targets"] == list(named.targets)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, None),
        (
            {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
            "LoRA beside weights that are trained whole",
        ),
        ({"r": 4, "target_modules": ["q_proj"], "use_dora": True}, "DoRA"),
        (
            {"r": 4, "target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 8}},
            "LoRA of several ranks",
        ),
    ],
    ids=["all weights", "a head that is trained too", "DoRA", "two ranks"],
)
def test_what_is_not_lora_alone_is_not_taken_for_it(config: dict[str, Any], words: str | None) -> None:
    assert adapters(model(**config)) is None
    assert unlike_lora(model(**config)) == words


def test_adapters_of_another_kind_and_on_packed_weights_are_named() -> None:
    assert unlike_lora(model(r=8, target_modules="all-linear")) is None
    base = model()
    other = peft.get_peft_model(base, peft.IA3Config(task_type="CAUSAL_LM", target_modules=["q_proj"],
                                                     feedforward_modules=[]))  # fmt: skip
    assert unlike_lora(other) == "adapters of another kind (IA3)"
    bitsandbytes = pytest.importorskip("bitsandbytes")
    packed = model()
    for layer in packed.model.layers:
        layer.self_attn.q_proj = bitsandbytes.nn.Linear4bit(32, 32, bias=False)
    packed = peft.get_peft_model(packed, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
    assert unlike_lora(packed) == PACKED_LORA and adapters(packed) is None
    whole = sum(parameter.numel() for parameter in packed.parameters())
    packed.to("cpu")  # packs two weights into a byte
    assert sum(parameter.numel() for parameter in packed.parameters()) < whole
    assert sum(map(elements, packed.parameters())) == whole


def test_groups_of_an_optimizer_are_read_by_the_kinds_of_their_parameters() -> None:
    """As DeepSpeed has them at stages 1 and 2, and at 3, where groups are in pieces."""
    made = model()
    names = dict(made.named_parameters())
    norms = [one for name, one in names.items() if "norm" in name]
    others = [one for name, one in names.items() if "norm" not in name]

    def read(groups: list[list[Any]], **pieces: Any) -> list[str] | None:
        name = "fp16_groups" if pieces else "bit16_groups"
        return optimizer_groups(
            SimpleNamespace(module=made, optimizer=SimpleNamespace(**{name: groups}, **pieces))
        )

    assert read([[*names.values()]]) == []
    (pattern,) = read([others, norms]) or ()
    assert [name for name in names if re.fullmatch(pattern, name)] == [
        name for name in names if "norm" in name
    ]
    assert re.fullmatch(pattern, "model.layers.31.input_layernorm.weight")
    halves = [others[:9], others[9:], norms]
    assert read(halves, sub_group_to_group_id={0: 0, 1: 0, 2: 1}) == [pattern]
    assert read([others, norms[::-1]]) is None  # in another order
    assert read([[*others, norms[0]], norms[1:]]) is None  # layers are told apart
