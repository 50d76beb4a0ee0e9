"""Adapters counted in closed form, against peft's own on the models that Transformers builds."""

from __future__ import annotations

from math import prod

import pytest

from zerokit.catalog import models
from zerokit.domain.families import from_config
from zerokit.domain.job import Job, Lora
from zerokit.domain.profile import Variant
from zerokit.memory.closed_form import trainable_parameters
from zerokit.trace.building.build import build

NAMED = {
    "tinyllama-1.1b": ("q_proj", "v_proj"),
    "phi-3-mini": ("qkv_proj", "o_proj"),
    "pythia-70m": ("query_key_value",),
    "falcon-7b": ("query_key_value", "dense_4h_to_h"),
    "glm-4-9b": ("gate_up_proj", "q_proj"),
    "starcoder2-3b": ("c_fc", "k_proj"),
    "mpt-7b": ("Wqkv", "down_proj"),
    "gpt-j-6b": ("q_proj", "fc_out"),
    "phi-1.5": ("dense", "fc1"),
    "opt-125m": ("out_proj", "fc2"),
    "bert-base": ("query", "attention.output.dense"),
    "distilbert-base": ("q_lin", "lin2"),
    "modernbert-base": ("Wqkv", "Wo"),
    "vit-base-16": ("q_proj", "fc1"),
    "t5-small": ("q", "wo"),
    "bart-large": ("v_proj", "encoder_attn.out_proj"),
    "whisper-small": ("k_proj", "fc2"),
    "mixtral-8x7b": ("w1", "w2", "w3"),
    "qwen3-30b-a3b": ("q_proj", "down_proj"),
    "minimax-m2": ("all-linear",),
    "qwen1.5-moe-a2.7b": ("gate_proj", "up_proj", "down_proj"),
    "deepseek-v2-lite": ("gate_proj", "up_proj", "down_proj"),
    "deepseek-v2": ("q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj", "gate"),
}


_AXOLOTLS = r"model(.language_model)?.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("tinyllama-1.1b", _AXOLOTLS),
        ("qwen3-30b-a3b", _AXOLOTLS),  # no experts
        ("falcon-7b", r".*\.(query_key_value|dense)"),
        ("bart-large", r".*\.self_attn\.(q|v)_proj"),  # no cross-attention
    ],
)
def test_a_pattern_takes_what_peft_takes(name: str, pattern: str) -> None:
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    entry, _ = models.resolve(name)
    built = build(entry.hf_config, Variant(attention="eager"), head=entry.head)
    with torch.device("meta"):
        adapted = peft.get_peft_model(built.model, peft.LoraConfig(r=8, target_modules=pattern))
    shape = from_config(entry.hf_config, name=name, parameters=entry.parameters, head=entry.head)
    ends = tuple(f".{one}" for one in shape.fitting(pattern) or ())
    paths = [
        path.replace(".base_layer", "") for path, _ in built.model.named_modules() if ".lora_" not in path
    ]
    assert sorted(adapted.targeted_module_names) == sorted({path for path in paths if path.endswith(ends)})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if at % 4 else ()) for at, name in enumerate(NAMED)]
)
def test_peft_makes_as_many(name: str) -> None:
    pytest.importorskip("peft")
    entry, _ = models.resolve(name)
    built = build(
        entry.hf_config, Variant(attention="eager", lora_rank=8, lora_targets=NAMED[name]), head=entry.head
    )
    made = sum(prod(p.shape) for p in built.parameters if ".lora_" in p.name)
    shape = from_config(entry.hf_config, name=name, parameters=entry.parameters, head=entry.head)
    job = Job(method="lora", lora=Lora(rank=8, targets=NAMED[name]))
    assert trainable_parameters(shape, job) == made
