"""Models of images and text: what the options say of the images, and the model that Transformers builds."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zerokit.domain.images import SequenceImages, images_of
from zerokit.domain.model_shape import ModelShape
from zerokit.errors import INSTALL_TRAINING, InputError
from zerokit.planner.hardware import choice, integer
from zerokit.planner.options import parse_image_size
from zerokit.units import counted, format_count
from zerokit.values import frozen_dataclass

_NOT_WITH = (
    ("tp", "tensor parallelism"), ("pp", "pipelines"), ("sp", "sequence parallelism"),
    ("cp", "context parallelism"),
    ("inference", "inference"), ("params", "a bare size"),
)  # fmt: skip


@frozen_dataclass
class RequestedImages:
    """What the options say of the images of a sequence; sizes in pixels, as the data set has them."""

    count: int
    width: int
    height: int
    tower: str


def requested_images(options: Mapping[str, Any]) -> RequestedImages | None:
    """The images asked for; ``None``: none. Raises InputError: something is missing, or what is asked for
    beside them is not modelled with images."""
    count, size = integer(options, "images"), options.get("image_size")
    tower = choice(options, "vision_tower")
    if count is None:
        for name, value in (("image_size", size), ("vision_tower", tower)):
            if value is not None:
                raise InputError(f"⟨{name}⟩ {value}: only with ⟨images⟩ N")
        return None
    if size is None:
        raise InputError(f"⟨images⟩ {count}: give their size too, ⟨image_size⟩ WxH")
    for name, method in _NOT_WITH:
        if str(options.get(name)) not in ("None", "False", "1"):
            raise InputError(f"⟨{name}⟩: {method} of a model with a vision tower is not modelled")
    if options.get("attention") == "eager":
        raise InputError("⟨attention⟩ eager: not modelled with ⟨images⟩; use sdpa or flash_attention_2")
    width, height = parse_image_size(size, "⟨image_size⟩")
    return RequestedImages(count=count, width=width, height=height, tower=tower or "trained")


def built_with_images(
    config: Mapping[str, Any], name: str, processor: Mapping[str, Any], images: RequestedImages
) -> tuple[ModelShape, SequenceImages, tuple[str, ...]]:
    """The model as Transformers builds it, the images as its processor gives them, and what to say of both.
    Raises InputError: Transformers is not installed, cannot build the model, or the processor is not
    modelled."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise InputError(
            f"⟨images⟩ {images.count}: traced by Transformers, not installed here ({INSTALL_TRAINING})"
        )
    from zerokit.trace.shape import complete_config, shape_of

    images_found = images_of(
        complete_config(config), processor, count=images.count, width=images.width, height=images.height,
        tower=images.tower,
    )  # fmt: skip
    shape = shape_of(config, name, "image-text", images_found)
    published = "" if processor else ", with the published processor's bounds"
    tiles = f"{images_found.tiles} tiles of " if images_found.tiles > 1 else ""
    notes = [
        f"{name}: {format_count(shape.parameters)} parameters with the vision tower, as transformers "
        "builds it",
        f"{counted(images.count, 'image')} of {images.width}x{images.height} in each "
        f"sequence: {tiles}{images_found.width}x{images_found.height} pixels and {images_found.tokens:,} "
        f"tokens each{published}",
    ]
    if images_found.tower == "frozen":
        notes.append("the step time counts the frozen vision tower as a trained one, so it is too long")
    return shape, images_found, tuple(notes)


def processor_of(config_file: Path) -> Mapping[str, Any]:
    """The values of ``preprocessor_config.json`` beside a config.json; empty where there is none. Raises
    FileInputError: it is no JSON object."""
    from zerokit.strictload import load_json

    file = config_file.parent / "preprocessor_config.json"
    if config_file.name != "config.json" or not file.is_file():
        return {}
    value = load_json(file, strict=False).value
    if not isinstance(value, dict):
        raise InputError(f"{file}: expected a JSON object")
    return value


def with_room(images: SequenceImages | None, seq_len: int) -> SequenceImages | None:
    """The images, if a sequence of this length has room for their tokens and one of text. Raises InputError:
    it has not."""
    if images is not None and seq_len <= images.sequence_tokens:
        raise InputError(
            f"⟨seq_len⟩ {seq_len}: too short for {counted(images.count, 'image')}, of "
            f"{images.sequence_tokens:,} tokens in all (with one that separates each); use a longer "
            "sequence, fewer or smaller images"
        )
    return images
