"""Which models of a config.json are modelled: by its class, and by the layers that it has.

What is not is refused by name; its closed form would be that of another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.errors import InputError

_SEQ2SEQ = frozenset(
    {"t5", "mt5", "umt5", "bart", "mbart", "switch_transformers", "longt5", "pegasus", "marian"}
)
_MODELLED = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining", "ForImageClassification")
_MEANS: Mapping[str, str] = {
    "ForSequenceClassification": "it has a classifier in place of the vocabulary's head",
    "ForTokenClassification": "it has a classifier in place of the vocabulary's head",
    "ForQuestionAnswering": "it has two outputs a token in place of the vocabulary's head",
    "ForMultipleChoice": "it has one output in place of the vocabulary's head",
    "ForConditionalGeneration": "it joins a text model with a tower for images, video or sound",
}
MOST_LAYERS = 10_000
_LAYERS = frozenset(
    {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers",
     "decoder_layers"}
)  # fmt: skip
# keys of state-space and linear-attention layers, as transformers 5.23 names them
_OTHER_LAYERS = (
    "mamba_d_state", "mamba_d_ssm", "ssm_state_size", "state_size", "time_step_rank", "lru_width",
    "linear_num_key_heads", "linear_num_value_heads", "linear_attn_config", "attention_hidden_size",
)  # fmt: skip


def check_modelled(hf_config: Mapping[str, Any], name: str) -> None:
    """Refuse a user's own configuration of a model that is not modelled.

    Raises:
        InputError: names the file, the key and what is missing.
    """
    _check_numbers(hf_config, name, "")
    model_type = hf_config.get("model_type")
    architectures = hf_config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(one, str) for one in architectures):
        raise InputError(f"{name}: architectures is {architectures!r}; expected a list of class names")
    for architecture in architectures:
        speech = architecture == "WhisperForConditionalGeneration"
        seq2seq = architecture.endswith("ForConditionalGeneration") and model_type in _SEQ2SEQ
        if not (architecture.endswith(_MODELLED) or speech or seq2seq):
            why = next((words for ending, words in _MEANS.items() if architecture.endswith(ending)), "")
            modelled = ", ".join(f"…{ending}" for ending in _MODELLED)
            raise InputError(
                f"{name}: architectures: {architecture} is not modelled{': ' + why if why else ''}; modelled "
                f"are {modelled} and encoder-decoders of text and speech"
            )
    if any(isinstance(hf_config.get(key), Mapping) for key in ("vision_config", "audio_config")):
        raise InputError(
            f"{name}: vision_config, audio_config: a model of text with a tower for images or sound is not "
            "modelled; give the config.json of its text model to estimate that part alone"
        )
    if model_type == "vit":  # its classes count as labels
        return
    for key in _OTHER_LAYERS:
        if hf_config.get(key) is not None:
            raise InputError(
                f"{name}: {key}: the state-space or linear-attention layers of model_type {model_type!r} are "
                "not modelled"
            )


def _check_numbers(value: object, name: str, path: str) -> None:
    """Refuse numbers that no model has: a slip, which would take minutes and gigabytes."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_numbers(inner, name, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner, name, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if path.rpartition(".")[2] in _LAYERS and value > MOST_LAYERS:
            raise InputError(f"{name}: {path} is {value}; expected at most {MOST_LAYERS:,}")
        if 1e15 < abs(value) < 1e29:  # int(1e30) stands for "no limit" of a tokenizer
            raise InputError(f"{name}: {path} is {value}; no model has so many")
