"""A user's own config.json: counted as Transformers builds it, or refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.config_files import LLAMA
from tests.support.packages import needs
from zerokit.cli import run
from zerokit.errors import InputError
from zerokit.planner.models import choose_model

needs("transformers")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tie_word_embeddings": 0.5}, "tie_word_embeddings"),
        ({"hidden_act": 7}, "hidden_act"),
        ({"hidden_act": "no-such"}, "no-such"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "estimate"])
def test_what_transformers_refuses_is_named_with_the_file(
    capsys: pytest.CaptureFixture[str], write_config: Any, command: str, change: dict[str, Any], words: str
) -> None:
    path = write_config(LLAMA | change)
    assert run([command, "--model", path, "--gpus", "1", "--gpu", "h200"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err and path in err and "Traceback" not in err


@pytest.mark.slow
def test_a_thousand_wrong_values_give_no_traceback(write_config: Any) -> None:
    random = Random(27)
    wrong = (None, True, -1, 0, 1.5, "x", "", [], {}, [1], 10**18, -(10**18), float("inf"), float("nan"), 3)
    refused = 0
    for _ in range(1000):
        config = copy.deepcopy(LLAMA)
        for _ in range(random.randint(1, 2)):
            config[random.choice(sorted(config))] = random.choice(wrong)
        try:
            choose_model(None, write_config(config))
        except InputError as error:
            refused += 1
            assert error.exit_code == 2 and "config.json" in str(error) and len(str(error)) < 700
    assert refused > 400


@pytest.mark.parametrize("model_type", ["qwen2_5_vl", "qwen2_vl", "llava"])
def test_a_model_with_a_tower_asks_for_its_images(
    capsys: pytest.CaptureFixture[str], write_config: Any, model_type: str
) -> None:
    from transformers import CONFIG_MAPPING

    path = write_config(json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False)))
    assert run(["plan", "--model", path, "--gpus", "1", "--gpu", "h200"]) == 2
    err = capsys.readouterr().err
    assert "give the images of a sequence, --images N --image-size WxH" in err and path in err


@pytest.mark.parametrize(
    "model_type",
    [
        "llama", "gemma", "helium", "exaone4", "smollm3", "gpt_neox", "mixtral", "seed_oss",
        *(pytest.param(name, marks=pytest.mark.slow) for name in (
            "mistral", "qwen2", "qwen3", "gemma2", "phi3", "glm", "olmo", "olmo2", "olmo3", "ministral3",
            "gemma4_text", "granite", "cohere2", "gpt2", "opt", "bloom", "stablelm", "starcoder2",
            "qwen3_moe", "deepseek_v3", "deepseek_v2", "ernie4_5", "minimax_m2",
        )),
    ],
)  # fmt: skip
def test_parameters_are_those_that_transformers_builds(write_config: Any, model_type: str) -> None:
    """Heads tied by default, norms of queries and keys, and layers of families that zerokit does not know."""
    check_count(write_config, model_type, "AutoModelForCausalLM")


def check_count(write_config: Any, model_type: str, auto_class: str, **values: object) -> None:
    """Hold the count of a default configuration, as Transformers writes it, to what Transformers builds."""
    import torch
    import transformers

    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"{model_type}: not in this Transformers")
    config = transformers.CONFIG_MAPPING[model_type](**values)
    with torch.device("meta"):
        built = getattr(transformers, auto_class).from_config(config)
    written = json.loads(config.to_json_string(use_diff=False))
    path = write_config({**written, "dtype": None, "architectures": [type(built).__name__]})
    shape = choose_model(None, path).shape
    assert shape.parameters == sum(parameter.numel() for parameter in built.parameters())
    assert all(stack.layer_parameters > 0 for stack in shape.stacks)
    tables = shape.embedding_parameters + (0 if shape.tied else shape.head_parameters)
    # what is left over are norms and towers of the model, never a whole layer more than there is
    assert shape.block_parameters + tables == pytest.approx(shape.parameters, rel=0.02)


@pytest.mark.parametrize(
    ("model_type", "auto_class"),
    [
        ("mamba2", "AutoModelForCausalLM"),
        ("falcon_h1", "AutoModelForCausalLM"),
        ("jamba", "AutoModelForCausalLM"),
        ("granitemoehybrid", "AutoModelForCausalLM"),
        ("qwen3_next", "AutoModelForCausalLM"),
        ("qwen3", "AutoModelForSequenceClassification"),
        ("bert", "AutoModelForSequenceClassification"),
        ("roberta", "AutoModelForTokenClassification"),
        ("bert", "AutoModelForQuestionAnswering"),
        ("mistral", "AutoModel"),
    ],
)
def test_hybrids_and_other_heads_are_counted_as_they_are_built(
    write_config: Any, model_type: str, auto_class: str
) -> None:
    check_count(write_config, model_type, auto_class, num_hidden_layers=8)


@pytest.mark.parametrize("model_type", ["marian", "m2m_100", "blenderbot", "plbart", "mvp"])
def test_encoder_decoders_of_text_are_not_taken_for_models_of_images(
    write_config: Any, model_type: str
) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForSeq2SeqLM

    config = CONFIG_MAPPING[model_type]()
    with torch.device("meta"):
        built = AutoModelForSeq2SeqLM.from_config(config)
    written = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [type(built).__name__]}
    shape = choose_model(None, write_config(written)).shape
    assert shape.head == "seq2seq"
    assert shape.parameters == sum(parameter.numel() for parameter in built.parameters())


def causal_types() -> list[str]:
    from transformers.models.auto import modeling_auto

    return sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", causal_types())
def test_no_causal_model_of_transformers_is_miscounted_or_a_bug(write_config: Any, model_type: str) -> None:
    """Of every type that Transformers knows: its count, or a refusal that names the file and the reason."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[model_type]()
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    try:
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
    except Exception:
        pytest.skip("Transformers itself cannot build its defaults")
    path = write_config(
        json.loads(config.to_json_string(use_diff=False)) | {"architectures": [type(built).__name__]}
    )
    try:
        shape = choose_model(None, path).shape
    except InputError as error:
        assert path in str(error)
        return
    assert shape.parameters == sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"architectures": ["MyOwnForCausalLM"]}, "MyOwnForCausalLM is not a class of the installed"),
        ({"model_type": "encodec", "architectures": ["EncodecModel"]}, "no matrix products"),
    ],
)
def test_what_transformers_has_no_class_or_no_products_for_is_refused(
    write_config: Any, config: dict[str, Any], said: str
) -> None:
    """A class of remote code was traced as the model whose type it borrows."""
    with pytest.raises(InputError, match=said):
        choose_model(None, write_config(config))


@pytest.mark.slow
def test_a_reward_model_and_an_embedding_model_are_traced_as_what_they_are(write_config: Any) -> None:
    """Neither makes logits over the vocabulary, which would be more than all else together."""
    import zerokit

    for architecture in ("LlamaForSequenceClassification", "LlamaModel"):
        config = LLAMA | {"vocab_size": 50_000, "architectures": [architecture]}
        found = zerokit.estimate(model=write_config(config), gpus=1, gpu="h200", seq_len=64, micro_batch=16)
        assert found.to_dict()["basis"] == "traced"
        assert found.to_dict()["peak_allocated_bytes"] < 4 * 16 * 64 * 50_000


T5 = {"model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 3,
      "vocab_size": 1000, "pad_token_id": 0, "eos_token_id": 1}  # fmt: skip
BART = {"model_type": "bart", "d_model": 64, "encoder_layers": 3, "decoder_layers": 3, "vocab_size": 1000,
        "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "name"),
    [pytest.param(T5, "T5", marks=pytest.mark.slow, id="T5"), pytest.param(BART, "Bart", id="Bart")],
)
def test_a_classifier_of_an_encoder_decoder_is_traced_as_what_it_is(
    write_config: Any, config: dict[str, Any], name: str
) -> None:
    """It asks for the values of the ids. Both stacks run over the sequence, as for generation, which was
    held to measured runs; the vocabulary's logits are not made."""
    import zerokit

    parts = {}
    for ending in ("ForConditionalGeneration", "ForSequenceClassification"):
        path = write_config(config | {"architectures": [name + ending]})
        found = zerokit.estimate(model=path, gpus=1, gpu="h200", zero=0, micro_batch=8, seq_len=256)
        assert found.to_dict()["basis"] == "traced"
        parts[ending] = found.to_dict()["components_by_phase"]["forward"]
    generating, classifying = parts.values()
    assert classifying["activations"] == pytest.approx(generating["activations"], rel=0.03)
    assert classifying.get("loss", 0) < 0.05 * generating["loss"]


@pytest.mark.parametrize(
    "name", ["T5ForSequenceClassification", "T5ForTokenClassification", "T5EncoderModel"]
)
def test_without_transformers_other_classes_of_an_encoder_decoder_are_refused(
    write_config: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("zerokit.planner.models.find_spec", lambda name: None)
    with pytest.raises(InputError, match="architectures"):
        choose_model(None, write_config(T5 | {"architectures": [name]}))


@pytest.mark.slow
def test_layers_that_run_token_by_token_are_refused_for_long_sequences(
    capsys: pytest.CaptureFixture[str], write_config: Any
) -> None:
    """Mamba without its kernels: a loop over tokens, which is not traced for minutes."""
    path = write_config({"model_type": "mamba", "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2,
                   "vocab_size": 777, "architectures": ["MambaForCausalLM"]})  # fmt: skip
    assert run(["estimate", "--model", path, "--gpus", "1", "--gpu", "h200", "--seq-len", "100000"]) == 2
    err = capsys.readouterr().err
    assert "one operator after the other over 100,000 tokens" in err and path in err
    assert "in closed form, not traced" not in err and "`zerokit rehearse` runs the script" in err


def test_a_file_or_its_folder_is_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    peaks = []
    for model in (folder, folder / "config.json"):
        words = ["estimate", "--gpus", "1", "--gpu", "t4", "--precision", "fp16", "--seq-len", "64"]
        assert run([*words, "--model", str(model), "--json"]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["peak_allocated_bytes"])
    assert peaks[0] == peaks[1] > 0
