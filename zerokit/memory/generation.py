"""What Transformers' ``generate`` holds beside the weights, one token after another (5.23,
generation/utils.py, ``_sample``, as trainers call it that learn from what the model says: any word may come).

A ``DynamicCache`` grows by concatenation: of each layer first the keys', then the values' old tensor lives
until the longer copy is made (cache_utils.py:136). Logits of the last token are in fp32, with the
probabilities of a word, those before them there until they are replaced.
"""

from __future__ import annotations

from zerokit.domain.deepspeed_settings import deepspeed
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory.rank_model import RankModel, layers_of

_FP32 = 4


def cache_bytes(model: RankModel, element_bytes: int, product_bytes: int) -> tuple[int, int]:
    """Bytes of a token's keys and values in all layers, and the most that one layer takes of it beside them:
    the keys' longer copy, or what attention makes.

    Keys that are rotated are in the dtype of the hidden states, so of the weights; so are values, which are
    joined to the same type. Where fewer heads have keys than ask for them, the kernel for fp32 repeats both
    for each, with scaled keys beside them (aten/src/ATen/native/transformers/attention.cpp,
    ``_scaled_dot_product_attention_math``, 2.13). Autocast makes copies in 16 bits. ``product_bytes``: of
    what operators take.
    """
    config = model.profile.hf_config
    config = config.get("text_config") or config
    heads = config.get("num_attention_heads") or config.get("n_head") or 1
    hidden = config.get("hidden_size") or config.get("n_embd") or 0
    of_head = config.get("head_dim") or hidden // heads
    own_heads = config.get("num_key_value_heads") or heads
    keys, made = own_heads * of_head, 0
    if own_heads < heads and product_bytes == _FP32:
        made = (3 * of_head + 1) * heads * _FP32
    elif product_bytes < element_bytes:
        made = 2 * keys * product_bytes
    all_keys = len(layers_of(model.parameters)) * keys
    return 2 * all_keys * element_bytes, max(keys * element_bytes, made)


def cast_bytes(model: RankModel, element_bytes: int, product_bytes: int, head: tuple[int, int]) -> int:
    """Bytes of all linear weights as operators take them, which autocast keeps until a forward ends where
    they are trained and wider (aten/src/ATen/autocast_mode.cpp, ``cached_cast``, 2.13).

    Args:
        element_bytes: of weights that have no width of their own. product_bytes: of what operators take.
        head: elements of the output head, which may be another name of the embedding, and bytes of one.
    """
    layers = tuple(f"{layer}." for layer in layers_of(model.parameters))
    matrices = [p for p in model.trainable if len(p.shape) > 1 and p.name.startswith(layers)]
    sizes = [head, *((p.numel, p.element_bytes or element_bytes) for p in matrices)]
    return product_bytes * sum(numel for numel, width in sizes if width > product_bytes)


def decoding_bytes(layer: int, words: int, logit_bytes: int, casts: int) -> int:
    """The most in the last step beside the cache. Bytes.

    Args:
        layer: of one layer beside it.
        words: of the vocabulary, once a sequence. logit_bytes: of one as the head makes it.
        casts: of weights until a forward ends.
    """
    in_head = casts + words * (2 * _FP32 + logit_bytes)
    afterwards = words * (3 * _FP32 + (_FP32 if casts else logit_bytes))
    return max(in_head, afterwards, words * 2 * _FP32 + layer)


def gathered_bytes(model: RankModel, settings: TrainingSettings) -> int:
    """Bytes of what ZeRO-3 gathers for it: whole weights, but for small ones that stay gathered
    (trl/models/utils.py, 1.16, ``ds3_gather_for_generation``)."""
    if not settings.divides_weights:
        return 0
    least = deepspeed(settings).zero.param_persistence_threshold
    widths = zip(model.sizes, model.element_bytes(settings.parameter_bytes), strict=True)
    return sum(size * width for size, width in widths if size > least)
