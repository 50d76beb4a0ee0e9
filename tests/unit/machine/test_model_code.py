"""The classes of a model, out of the installed Transformers' source."""

from __future__ import annotations

import pytest

from zerokit.machine.model_code import model_code


def test_the_classes_are_those_of_the_models_own_code() -> None:
    pytest.importorskip("transformers")
    assert "class Qwen3DecoderLayer(" in str(model_code({"model_type": "qwen3"}))
    parts = {"model_type": "llava", "text_config": {"model_type": "llama"}, "vision_config": {}}
    assert "class LlamaDecoderLayer(" in str(model_code(parts))
    assert model_code({"model_type": "qwen3", "auto_map": {"AutoModel": "own.Model"}}) is None
    assert model_code({"model_type": "../../etc"}) is None and model_code({}) is None
