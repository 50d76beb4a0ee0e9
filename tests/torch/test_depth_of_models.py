"""Of which models a few layers are built: by Transformers' own configurations."""

from __future__ import annotations

import contextlib

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from zerokit.rehearsal.process.depth import Depth
from zerokit.rehearsal.process.endings import NeedsWhole

ENOUGH = 24
"""Layers from which on a few of them take less time."""
ALIKE = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gpt2", "gpt_neox", "falcon",
    "phi3", "olmo2", "glm4", "glm4_moe",
)  # fmt: skip
UNLIKE = (
    "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "vaultgemma", "gpt_oss", "gpt_neo", "qwen3_next",
    "qwen3_5_text", "llama4_text", "cohere2", "exaone4", "olmo3", "olmo_hybrid", "modernbert-decoder",
    "smollm3", "lfm2", "afmoe", "minimax", "mimo_v2_flash", "kimi_linear", "glm_moe_dsa", "zamba", "zamba2",
    "bailing_hybrid", "jamba", "recurrent_gemma", "deepseek_v3", "longcat_flash", "diffllama",
    "gpt_neox_japanese", "mbart",
)  # fmt: skip
"""Attention in windows of some layers, state spaces or experts in others, first layers that are dense."""


def layers_built(model_type: str) -> tuple[int, int]:
    """With how many layers it is built, of how many."""
    depth, config = Depth(), AutoConfig.for_model(model_type)
    if config.num_hidden_layers < ENOUGH:
        config = AutoConfig.for_model(model_type, num_hidden_layers=ENOUGH)
    depth.layers, depth.is_course = 3, True
    count = config.num_hidden_layers

    def build(whole: object) -> torch.nn.Module:
        with torch.device("meta"), no_init_weights():
            return AutoModelForCausalLM.from_config(whole)

    depth.cut(config, build)
    return config.num_hidden_layers, count


@pytest.mark.parametrize("model_type", ALIKE)
def test_few_layers_are_built_of_those_that_are_alike(model_type: str) -> None:
    built, of = layers_built(model_type)
    assert built == 3 < of


@pytest.mark.parametrize("model_type", UNLIKE)
def test_all_layers_are_built_where_they_differ(model_type: str) -> None:
    built, of = layers_built(model_type)
    assert built == of >= ENOUGH


@pytest.mark.parametrize(
    ("file", "is_alike"),
    [
        (torch.nn.__file__, True),
        ("/home/me/transformers/examples/train.py", False),
        ("/home/me/lib/site-packages/axolotl/train.py", False),
        ("/home/me/lib/site-packages/peft/mapping.py", True),
    ],
)
def test_only_installed_libraries_may_ask_for_layers(file: str, is_alike: bool) -> None:
    depth = Depth()
    depth.of.add(32)
    with contextlib.nullcontext() if is_alike else pytest.raises(NeedsWhole):
        depth.asked("an index", file)
