"""Adapters by the modules that they are on, against the tensors that peft made when the catalogue's models
were traced (their names and shapes are stored with the traces)."""

from __future__ import annotations

from math import prod

import pytest

from zerokit.catalog import models, profiles
from zerokit.domain.families import attends_fully, from_config
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import scaled
from zerokit.domain.profile import ModelProfile
from zerokit.memory.closed_form import trainable_parameters

ALL_LINEAR = "sdpa/16/none/lora16:all-linear"
TARGETS = {
    "llama-3.1-8b": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),  # GQA
    "phi-4": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),  # fused
    "gpt-neox-20b": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "falcon-40b": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "bloom-560m": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "gpt2": ("c_attn", "c_proj", "c_fc", "attn.c_proj", "mlp.c_proj"),
    "gemma-2-2b": ("q_proj", "k_proj", "self_attn.o_proj", "mlp.up_proj"),
    "command-r-35b": ("q_proj", "v_proj", "down_proj"),
    "mixtral-8x7b": ("q_proj", "v_proj", "gate"),  # experts
    "qwen3-30b-a3b": ("q_proj", "v_proj", "gate"),
    "gpt-oss-20b": ("q_proj", "k_proj", "v_proj", "o_proj"),  # experts that peft cannot adapt
}


def _tensors(profile: ModelProfile) -> dict[str, int]:
    """Path of each adapted module and matrix -> elements."""
    adapters = profile.parameter_sets[ALL_LINEAR]
    return {p.name: prod(p.shape) for p in adapters if ".lora_" in p.name}


def _counted(name: str, *targets: str, rank: int = 16) -> int:
    entry, _ = models.resolve(name)
    shape = from_config(entry.hf_config, name=name, parameters=entry.parameters, head=entry.head)
    return trainable_parameters(shape, Job(method="lora", lora=Lora(rank=rank, targets=targets)))


@pytest.mark.parametrize("name", TARGETS)
def test_adapters_are_those_that_peft_makes_of_the_targets(name: str) -> None:
    profile = profiles.load(name)
    assert profile is not None
    tensors = _tensors(profile)
    assert _counted(name, "all-linear") == sum(tensors.values())
    for target in TARGETS[name]:
        made = sum(n for path, n in tensors.items() if path.partition(".lora_")[0].endswith(f".{target}"))
        assert made and _counted(name, target) == made, target
    first, last = TARGETS[name][0], TARGETS[name][-1]
    assert _counted(name, first, last) == _counted(name, first) + _counted(name, last)


def test_queries_and_values_of_llama_3_1_8b_are_its_published_count() -> None:
    """6,815,744 at rank 16, as ``print_trainable_parameters`` says of it: 32 × 16 × (8,192 + 5,120)."""
    assert _counted("llama-3.1-8b", "q_proj", "v_proj") == 6_815_744
    assert _counted("llama-3.1-8b", "q_proj", "v_proj", rank=64) == 27_262_976


def test_what_is_no_module_of_a_layer_is_not_counted() -> None:
    assert _counted("llama-3.1-8b", "lm_head") == _counted("llama-3.1-8b", "roj") == 0


def test_a_model_of_another_size_keeps_its_modules() -> None:
    entry, _ = models.resolve("llama-3.1-8b")
    shape = scaled(from_config(entry.hf_config, parameters=entry.parameters), 1_000_000_000)
    job = Job(method="lora", lora=Lora(targets=("q_proj", "v_proj")))
    everything = trainable_parameters(shape, Job(method="lora", lora=Lora()))
    assert 0 < trainable_parameters(shape, job) < everything / 3


@pytest.mark.parametrize("name", ["lfm2-350m", "qwen3.5-9b", "granite-4.0-h-tiny"])
def test_a_stored_shape_has_the_modules_that_peft_finds(name: str) -> None:
    profile, shape = profiles.load(name), profiles.shape(name)
    assert profile is not None and shape is not None
    made = sum(n for path, n in _tensors(profile).items() if path.partition(".lora_")[0].endswith(".q_proj"))
    assert made == trainable_parameters(shape, Job(method="lora", lora=Lora(targets=("q_proj",))))


@pytest.mark.parametrize(
    "kind", ["gemma2", "gemma3_text", "mistral", "qwen2", "qwen3", "gpt_oss", "llama4_text"]
)
def test_what_a_configuration_leaves_out_of_its_masks_is_transformers_default(kind: str) -> None:
    """As Accelerate judges it (1.15, big_modeling.py:812)."""
    said = pytest.importorskip("transformers").AutoConfig.for_model(kind)
    types = set(said.layer_types) if getattr(said, "layer_types", None) else None
    full = types <= {"full_attention"} if types else not said.sliding_window
    assert attends_fully({"model_type": kind}) == full
