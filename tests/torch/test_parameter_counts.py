"""The catalogue's parameter counts, as Transformers builds the models."""

from __future__ import annotations

import copy

import pytest

from zerokit.catalog import models

BUILT_BY_DEFAULT = (
    "llama-3.2-1b",
    "qwen3-30b-a3b",
    "gpt2",
    "opt-350m",
    "bert-large",
    "t5-small",
    "gemma-3-4b",
    "deepseek-v2-lite",
    "vit-base-16",
    "whisper-small",
)


def _count(model: models.CatalogModel) -> int:
    """Parameters of the model that transformers builds, tied weights once, without memory for them."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    builders = {
        "causal": transformers.AutoModelForCausalLM,
        "mlm": transformers.AutoModelForMaskedLM,
        "seq2seq": transformers.AutoModelForSeq2SeqLM,
        "speech-seq2seq": transformers.AutoModelForSpeechSeq2Seq,
        "image-classification": transformers.AutoModelForImageClassification,
        "image-text": transformers.AutoModelForImageTextToText,
    }
    config = transformers.AutoConfig.for_model(**copy.deepcopy(dict(model.hf_config)))
    with torch.device("meta"):
        built = builders[model.head].from_config(config)
    return sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in BUILT_BY_DEFAULT else pytest.mark.slow)
        for name in models.names()
    ],
)
def test_transformers_builds_that_many_parameters(name: str) -> None:
    model = models.load(name)
    assert _count(model) == model.parameters
