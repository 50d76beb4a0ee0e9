"""A user's own config.json: counted as Transformers builds it, or refused with the file and the key."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

import pytest

from tests.support.config_files import LLAMA
from zerokit.catalog import models
from zerokit.cli import run
from zerokit.domain.families import FAMILIES
from zerokit.errors import InputError
from zerokit.planner.models import choose_model
from zerokit.trace.building.build import usable


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 12_000_000_000_000_000}, "num_hidden_layers is 12000000000000000"),
        ({"num_hidden_layers": 20_000}, "num_hidden_layers is 20000; expected at most 10,000"),
        ({"num_labels": 100_000_000}, "num_labels is 100000000; expected at most 1,000,000"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 10**30}, "expected at most 1,000,000,000"),
        ({"rms_norm_eps": float("inf")}, "Infinity is not a number in JSON"),
        ({"vocab_size": float("nan")}, "NaN is not a number in JSON"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        ({"model_type": "no-such-model"}, "no-such-model"),
        ({"model_type": {"a": [1]}, "architectures": None}, "model_type is {'a': [1]}; expected a text"),
        ({"architectures": ["LlamaForMultipleChoice"]}, "one output in place of the vocabulary"),
        ({"architectures": ["Qwen2_5_VLForConditionalGeneration"]}, "joins a text model with a tower"),
        ({"architectures": ["MyOwnModel"]}, "MyOwnModel is not modelled"),
        (
            {"model_type": "electra", "architectures": ["ElectraForPreTraining"]},
            "ElectraForPreTraining is not modelled: its loss is not a language model's",
        ),
        ({"architectures": ["RoCBertForPreTraining"]}, "RoCBertForPreTraining is not modelled"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "the weights are packed (gptq)"),
        ({"model_type": "qwen2_vl", "vision_config": {}}, "give the images of a sequence, --images N"),
        ({"model_type": "mllama", "vision_config": {}}, "with a tower for images is not modelled"),
        ({"model_type": "gemma3n", "audio_config": {}}, "with a tower for sound is not modelled"),
    ],
)
def test_what_cannot_be_is_refused_with_the_file_and_the_key(
    capsys: pytest.CaptureFixture[str], write_config: Any, change: dict[str, Any], words: str
) -> None:
    path = write_config(LLAMA | change)
    started = time.process_time()
    for command in ("plan", "estimate"):
        assert run([command, "--model", path, "--gpus", "1", "--gpu", "h200"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and words in err and path in err and "Traceback" not in err
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    ("change", "refused"),
    [({}, False), ({"architectures": None}, False), ({"architectures": ["MyOwnForCausalLM"]}, True),
     ({"architectures": ["MistralForCausalLM"]}, True), ({"architectures": ["LlamaSparseForCausalLM"]}, True),
     ({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 16}, False),
     ({"model_type": "qwen2_moe", "architectures": ["OlmoForCausalLM"]}, True)],
)  # fmt: skip
def test_without_transformers_a_class_of_another_name_is_refused(
    write_config: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], refused: bool
) -> None:
    monkeypatch.setattr("zerokit.planner.models.find_spec", lambda name: None)
    path = write_config(LLAMA | {"architectures": ["LlamaForCausalLM"]} | change)
    if refused:
        with pytest.raises(InputError, match="is not named as transformers names its own classes"):
            choose_model(None, path)
    else:
        found = choose_model(None, path)
        assert any("which would build and check the model, is not installed here" in note
                   for note in found.assumptions)  # fmt: skip


def test_an_installed_transformers_that_cannot_be_imported_is_named(
    write_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a package that it needs is missing: it says which."""
    monkeypatch.setattr("zerokit.planner.models.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"transformers cannot be imported: .*; repair it, or give params"):
        choose_model(None, write_config(LLAMA | {"architectures": ["LlamaForCausalLM"]}))


@pytest.mark.parametrize("name", ["lfm2-350m", pytest.param("glm-4.5-air", marks=pytest.mark.slow)])
def test_a_stored_shape_is_that_of_the_model_as_transformers_builds_it(name: str) -> None:
    pytest.importorskip("transformers")
    from zerokit.trace.shape import shape_of

    chosen = choose_model(None, name)
    assert chosen.shape == shape_of(dict(models.load(name).hf_config), name, "causal")


def test_a_model_of_the_catalogue_without_a_closed_form_is_known_by_its_alias() -> None:
    chosen = choose_model(None, "LFM2-350M")
    # the model card's figure
    assert chosen.shape.parameters == 354_483_968 and chosen.shape.name == "lfm2-350m"
    assert any("mamba-ssm, causal-conv1d" in note for note in chosen.assumptions)


def test_a_bare_size_is_never_taken_for_a_model_without_a_closed_form() -> None:
    assert models.nearest(354_483_968).model_type in FAMILIES


def test_of_a_failed_lazy_import_the_first_cause_is_named() -> None:
    with pytest.raises(InputError, match="No module named 'nothing_of_this_name'"), usable():
        try:
            importlib.import_module("nothing_of_this_name")
        except ImportError as error:
            raise ModuleNotFoundError("Could not import module 'VoxtralProcessor'") from error
