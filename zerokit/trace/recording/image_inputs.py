"""A training batch of images and text. Made under ``KnownValues``, so that its ids and sizes are known."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from zerokit.domain.images import SequenceImages
from zerokit.trace.recording.known_values import value_of

_IMAGE_TOKENS = ("image_token_id", "image_token_index")
_CHANNELS = 3
_FEW = 64  # elements that weigh nothing
_TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")


def image_inputs(
    model: nn.Module, config: Any, images: SequenceImages, micro_batch: int, seq_len: int
) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``labels`` of shape (micro_batch, seq_len) with the images' tokens in front, and the
    images: in the dtype that DeepSpeed's Trainer casts them to."""
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    token = _image_token(config)
    text = next(number for number in range(1, 100) if number != token)
    one = ([token] * images.tokens + [text]) * images.count
    ids = torch.tensor([one + [text] * (seq_len - len(one))] * micro_batch)
    inputs = {"input_ids": ids, "labels": ids.clone()}
    inner: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model
    parameters = inspect.signature(inner.forward).parameters
    is_image = (ids == _image_token(config)).to(torch.long)
    inputs |= {name: is_image.clone() for name in _TOKEN_TYPES if name in parameters}
    return inputs | _pixels(config, images, micro_batch, dtype)


def is_known_index(seq_len: int) -> Any:
    """Whether a tensor is one of those that only say where things are, which a trace leaves out: a few bytes
    a token or image. A mask of every pair of tokens stays in."""

    def known(tensor: torch.Tensor) -> bool:
        # one number per image or token stays out at every batch size, however many there are
        is_table = sum(size > 1 for size in tensor.shape) > 1
        is_large = tensor.is_floating_point() and is_table and tensor.numel() > _FEW
        if value_of(tensor) is None or is_large:
            return False
        return tuple(tensor.shape[-2:]) != (seq_len, seq_len)

    return known


def _image_token(config: Any) -> int:
    return next(
        int(getattr(config, name)) for name in _IMAGE_TOKENS if getattr(config, name, None) is not None
    )


def _pixels(
    config: Any, images: SequenceImages, micro_batch: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    rows, columns = images.height // images.patch, images.width // images.patch
    if images.layout == "patches":
        vision = config.vision_config
        depth = getattr(vision, "temporal_patch_size", 2)
        values = _CHANNELS * depth * images.patch**2
        grid = torch.tensor([[1, rows, columns]] * (micro_batch * images.count))
        pixels = torch.empty(micro_batch * images.patches, values, dtype=dtype)
        return {"pixel_values": pixels, "image_grid_thw": grid}
    pixel_shape = (_CHANNELS, images.height, images.width)
    if images.layout == "images":
        return {
            "pixel_values": torch.empty(micro_batch * images.count * images.tiles, *pixel_shape, dtype=dtype)
        }
    shape = (micro_batch, images.count * images.tiles, *pixel_shape)
    mask = torch.ones(*shape[:2], *pixel_shape[1:], dtype=torch.long)
    # images of zeros would be taken for padding (idefics3/modeling_idefics3.py get_image_features)
    return {"pixel_values": torch.ones(shape, dtype=dtype), "pixel_attention_mask": mask}
