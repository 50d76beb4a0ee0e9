"""Which models of a config.json are modelled, and with which head: by its class.

What is not is refused by name; its closed form would be that of another model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zerokit.domain.hf_config import HfConfig
from zerokit.domain.images import has_tower, takes_images
from zerokit.errors import InputError
from zerokit.values import frozen_dataclass

__all__ = ["CLASSIFIERS", "HEADS", "MOST_LAYERS", "Head", "check_modelled", "has_other_layers",
           "is_named_for", "named_head", "outputs_of", "pads_to_chunks"]  # fmt: skip


@frozen_dataclass
class Head:
    """What a model ends with. ``auto_class``: of Transformers, which builds it. ``endings``: of class names
    in ``architectures``."""

    auto_class: str
    endings: tuple[str, ...]


# Their loss is that of the masked language model and one of two classes; others' (ELECTRA's and Funnel's
# discriminators, wav2vec2's, ViTMAE's, …) is another (transformers 5.23, models/*/modeling_*.py)
_PRETRAINED_AS_MLM = frozenset(
    {"BertForPreTraining", "AlbertForPreTraining", "BigBirdForPreTraining", "ErnieForPreTraining",
     "FNetForPreTraining", "MegatronBertForPreTraining", "MobileBertForPreTraining", "NezhaForPreTraining",
     "QDQBertForPreTraining"}
)  # fmt: skip
HEADS: Mapping[str, Head] = {
    "causal": Head(auto_class="AutoModelForCausalLM", endings=("ForCausalLM", "LMHeadModel")),
    "mlm": Head(auto_class="AutoModelForMaskedLM", endings=("ForMaskedLM",)),
    "seq2seq": Head(
        auto_class="AutoModelForSeq2SeqLM", endings=("ForConditionalGeneration", "MarianMTModel")
    ),
    "speech-seq2seq": Head(
        auto_class="AutoModelForSpeechSeq2Seq", endings=("WhisperForConditionalGeneration",)
    ),
    "image-classification": Head(
        auto_class="AutoModelForImageClassification", endings=("ForImageClassification",)
    ),
    "sequence-classification": Head(
        auto_class="AutoModelForSequenceClassification", endings=("ForSequenceClassification",)
    ),
    "token-classification": Head(
        auto_class="AutoModelForTokenClassification", endings=("ForTokenClassification",)
    ),
    "question-answering": Head(auto_class="AutoModelForQuestionAnswering", endings=("ForQuestionAnswering",)),
    "embedding": Head(auto_class="AutoModel", endings=("Model",)),
    "image-text": Head(auto_class="AutoModelForImageTextToText", endings=()),
}
CLASSIFIERS = ("sequence-classification", "token-classification", "question-answering")
"""Heads with a few outputs in place of the vocabulary."""

_SEQ2SEQ = frozenset(
    {"t5", "mt5", "umt5", "bart", "mbart", "switch_transformers", "longt5", "pegasus", "marian", "blenderbot",
     "blenderbot-small", "bigbird_pegasus", "led", "m2m_100", "mvp", "nllb-moe", "pegasus_x", "plbart",
     "prophetnet", "t5gemma"}
)  # fmt: skip
_NO_TEXT = frozenset({"vit"})
_MEANS: Mapping[str, str] = {
    "ForMultipleChoice": "it has one output in place of the vocabulary's head",
    "ForPreTraining": "its loss is not a language model's; name the class that the script trains",
    "ForConditionalGeneration": "it joins a text model with a tower for images, video or sound",
}
_IMAGES = "the images of a sequence, ⟨images⟩ N ⟨image_size⟩ WxH, or the config.json of its text model alone"
MOST_LAYERS = 10_000
_MOST_LABELS = 1_000_000
_LAYERS = frozenset(
    {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers",
     "decoder_layers"}
)  # fmt: skip
# keys of state-space and linear-attention layers, as transformers 5.23 names them
_SHORT_CONVOLUTION = "conv_L_cache"
_OTHER_LAYERS = (
    "mamba_d_state", "mamba_d_ssm", "ssm_state_size", "state_size", "time_step_rank", "lru_width",
    "linear_num_key_heads", "linear_num_value_heads", "linear_attn_config", "attention_hidden_size",
    _SHORT_CONVOLUTION,
)  # fmt: skip

_OTHER_KINDS = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "lightning_attention"})


def named_head(hf_config: Mapping[str, Any]) -> str | None:
    """The head that the classes under ``architectures`` have; ``None``: none is named, or it is not known."""
    if has_tower(hf_config):
        return "image-text"
    for architecture in hf_config.get("architectures") or ():
        head = _head_of_class(str(architecture), hf_config.get("model_type"))
        if head is not None:
            return head
    return None


def _head_of_class(architecture: str, model_type: object) -> str | None:
    if architecture == "WhisperForConditionalGeneration":
        return "speech-seq2seq"
    if architecture.endswith("ForPreTraining"):
        return "mlm" if architecture in _PRETRAINED_AS_MLM else None
    for name, head in HEADS.items():
        if name == "seq2seq" and model_type not in _SEQ2SEQ:
            continue
        if name == "embedding":
            continue
        if architecture.endswith(head.endings):
            return name
    return "embedding" if _is_bare(architecture, str(model_type)) else None


def _is_bare(architecture: str, model_type: str) -> bool:
    """Whether the class is the model without a head: ``BertModel`` of ``bert``."""
    letters = re.sub("[^a-z0-9]", "", model_type.lower())
    return architecture.lower() == f"{letters}model" and model_type not in _NO_TEXT


def is_named_for(architecture: str, model_type: str) -> bool:
    """Whether a class is called as Transformers calls its own of a model type: ``LlamaForCausalLM``. What can
    be told where Transformers is not installed."""
    letters = re.sub("[^a-z0-9]", "", model_type.removesuffix("_text").lower())
    endings = {*_MEANS, *(ending for head in HEADS.values() for ending in head.endings)}
    return architecture.lower() in {f"{letters}{ending.lower()}" for ending in endings}


def check_modelled(hf_config: Mapping[str, Any], name: str, images: bool = False) -> None:
    """Refuse a user's own configuration of a model that is not modelled.

    ``images``: those of a sequence are given.

    Raises:
        InputError: names the file, the key and what is missing.
    """
    _check_numbers(hf_config, name, "")
    architectures = hf_config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(one, str) for one in architectures):
        raise InputError(f"{name}: architectures is {architectures!r}; expected a list of class names")
    with_images = images and has_tower(hf_config)
    for architecture in () if with_images else architectures:
        if _head_of_class(architecture, hf_config.get("model_type")) is None:
            why = next((words for ending, words in _MEANS.items() if architecture.endswith(ending)), "")
            endings = [end for key, head in HEADS.items() if "seq2seq" not in key for end in head.endings]
            if takes_images(hf_config):
                why += f"; give {_IMAGES}"
            raise InputError(
                f"{name}: architectures: {architecture} is not modelled{': ' + why if why else ''}; modelled "
                f"are {', '.join(f'…{end}' for end in endings)} and encoder-decoders of text and speech"
            )
    if takes_images(hf_config) and not images:
        raise InputError(f"{name}: vision_config: a model of images and text; give {_IMAGES}")
    sound = isinstance(hf_config.get("audio_config"), Mapping)
    if sound or (has_tower(hf_config) and not images):
        key, modality = ("audio_config", "sound") if sound else ("vision_config", "images")
        raise InputError(
            f"{name}: {key}: this model of text with a tower for {modality} is not modelled; give the "
            "config.json of its text model to estimate that part alone, or run the script through "
            "`zerokit rehearse`"
        )


def outputs_of(config: HfConfig, head: str, vocab: int) -> int:
    """Width of what the head gives for a token; 1 where there is no head."""
    if head == "embedding":
        return 1
    if head == "question-answering":
        return 2
    if head not in CLASSIFIERS:
        return vocab
    labels = config.values.get("id2label")
    return config.count("num_labels", default=len(labels) if isinstance(labels, Mapping) and labels else 2)


def has_other_layers(hf_config: Mapping[str, Any]) -> bool:
    """Whether it has state-space or linear-attention layers, whose closed form is not known."""
    kinds = hf_config.get("layer_types")
    named = {str(kind) for kind in kinds} if isinstance(kinds, list) else set()
    return bool(named & _OTHER_KINDS) or any(hf_config.get(key) is not None for key in _OTHER_LAYERS)


def pads_to_chunks(hf_config: Mapping[str, Any]) -> bool:
    """Whether what its layers allocate is no polynomial of the sequence length: state-space and
    linear-attention layers pad it to whole chunks, short convolutions (LFM2) do not."""
    return has_other_layers({key: value for key, value in hf_config.items() if key != _SHORT_CONVOLUTION})


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
        if path == "num_labels" and value > _MOST_LABELS:  # Transformers writes out a name for each
            raise InputError(f"{name}: {path} is {value}; expected at most {_MOST_LABELS:,}")
        if 1e15 < abs(value) < 1e29:  # int(1e30) stands for "no limit" of a tokenizer
            raise InputError(f"{name}: {path} is {value}; no model has that many")
