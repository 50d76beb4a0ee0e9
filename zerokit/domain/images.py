"""What the images of a sequence become: pixels for the vision tower, and tokens of the sequence.

Sizes follow the image processors of Transformers 5.23 (``models/*/image_processing_*.py``, the file is named
at each) with the values of the published ``preprocessor_config.json``; a model's own file, where there is
one, decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from zerokit.domain.hf_config import HfConfig
from zerokit.errors import InputError
from zerokit.values import frozen_dataclass

__all__ = ["SequenceImages", "has_tower", "images_of", "takes_images"]


@frozen_dataclass
class SequenceImages:
    """The images of one sequence, as the model gets them.

    Attributes:
        count: images in a sequence.
        layout: of ``pixel_values``: ``patches`` (patches of all images, values of a patch), ``images``
            (images, channels, height, width) or ``nested`` (sequences, images of one, channels, …).
        tiles: pictures that one image is cut into, the whole in small included.
        height, width: of a tile, in pixels, after the processor.
        patch: side of a patch in pixels.
        tokens: of the sequence that one image takes, without the separators a chat template may add.
        tower: ``trained``, or ``frozen``; its projector is trained either way.
    """

    count: int
    layout: str
    tiles: int
    height: int
    width: int
    patch: int
    tokens: int
    tower: str = "trained"

    @property
    def patches(self) -> int:
        """Patches of all images of the sequence: tokens of the vision tower."""
        return self.count * self.tiles * (self.height // self.patch) * (self.width // self.patch)

    @property
    def sequence_tokens(self) -> int:
        """Tokens of the sequence that all its images take, each with one that separates it."""
        return self.count * (self.tokens + 1)

    @property
    def key(self) -> str:
        """In the key of a trace."""
        return f"images{self.count}:{self.tiles}x{self.width}x{self.height}:{self.tower}"


def has_tower(hf_config: Mapping[str, Any]) -> bool:
    """Whether the configuration is of a text model with a vision tower."""
    return isinstance(hf_config.get("vision_config"), Mapping)


def takes_images(hf_config: Mapping[str, Any]) -> bool:
    """Whether the images of such a model are modelled."""
    return has_tower(hf_config) and hf_config.get("model_type") in _PROCESSORS


def images_of(
    hf_config: Mapping[str, Any],
    processor: Mapping[str, Any],
    *,
    count: int,
    width: int,
    height: int,
    tower: str = "trained",
) -> SequenceImages:
    """The images of a sequence, each ``width`` × ``height`` pixels as the data set has them.

    ``processor``: values of the model's ``preprocessor_config.json``; empty: the published ones.

    Raises:
        InputError: the model takes no images, or its processor is not modelled.
    """
    model_type = str(hf_config.get("model_type"))
    if not has_tower(hf_config):
        raise InputError(f"⟨images⟩ {count}: model_type {model_type!r} has no vision tower")
    prepare = _PROCESSORS.get(model_type)
    if prepare is None:
        raise InputError(
            f"⟨images⟩ {count}: the image processor of model_type {model_type!r} is not modelled; modelled "
            f"are {', '.join(_PROCESSORS)}; run the script through `zerokit rehearse`"
        )
    layout, tiles, (tile_height, tile_width), patch, tokens = prepare(hf_config, processor, height, width)
    return SequenceImages(count=count, layout=layout, tiles=tiles, height=tile_height, width=tile_width,
                          patch=patch, tokens=tokens, tower=tower)  # fmt: skip


_Prepared = tuple[str, int, tuple[int, int], int, int]
"""Layout, tiles, (height, width) of a tile, patch, tokens of an image."""
_Processor = Callable[[Mapping[str, Any], Mapping[str, Any], int, int], _Prepared]


def _vision(hf_config: Mapping[str, Any]) -> HfConfig:
    return HfConfig(hf_config["vision_config"], "vision_config")


def _edge(processor: Mapping[str, Any], *names: str, default: int) -> int:
    size = processor.get("size")
    values = {**processor, **(size if isinstance(size, Mapping) else {})}
    edge = next((values[name] for name in names if isinstance(values.get(name), int)), default)
    return int(edge)


def _qwen(patch: int, least: int, most: int) -> _Processor:
    """``smart_resize`` (qwen2_vl/image_processing_qwen2_vl.py): pixels between two bounds, sides that
    merged patches divide."""

    def prepare(
        hf_config: Mapping[str, Any], processor: Mapping[str, Any], height: int, width: int
    ) -> _Prepared:
        vision = _vision(hf_config)
        side, merge = (
            vision.count("patch_size", default=patch),
            vision.count("spatial_merge_size", default=2),
        )
        factor = side * merge
        fewest = _edge(processor, "min_pixels", "shortest_edge", default=least)
        highest = _edge(processor, "max_pixels", "longest_edge", default=most)
        if max(height, width) > 200 * min(height, width):
            raise InputError(f"⟨image_size⟩ {width}x{height}: its processor takes sides of up to 200 to 1")
        rows, columns = round(height / factor) * factor, round(width / factor) * factor
        if rows * columns > highest:
            ratio = math.sqrt(height * width / highest)
            rows, columns = (
                max(factor, math.floor(edge / ratio / factor) * factor) for edge in (height, width)
            )
        elif rows * columns < fewest:
            ratio = math.sqrt(fewest / (height * width))
            rows, columns = (math.ceil(edge * ratio / factor) * factor for edge in (height, width))
        return "patches", 1, (rows, columns), side, (rows // factor) * (columns // factor)

    return prepare


def _square(hf_config: Mapping[str, Any], processor: Mapping[str, Any], height: int, width: int) -> _Prepared:
    """Every image scaled to the tower's own size (CLIP's and SigLIP's processors)."""
    vision = _vision(hf_config)
    side, patch = (
        vision.count("image_size", default=336),
        vision.count("patch_size", default=14),
    )
    tokens = (side // patch) ** 2
    if hf_config.get("model_type") == "gemma3":
        # Gemma3MultiModalProjector pools them (gemma3/modeling_gemma3.py)
        tokens = HfConfig(hf_config, "the model's config").count("mm_tokens_per_image", default=256)
    elif hf_config.get("vision_feature_select_strategy") == "full":
        tokens += 1  # the class token stays
    return "images", 1, (side, side), patch, tokens


def _tiled(hf_config: Mapping[str, Any], processor: Mapping[str, Any], height: int, width: int) -> _Prepared:
    """Longest side to four tiles, cut into tiles, and the whole beside them
    (idefics3/image_processing_idefics3.py ``resize``, ``resize_for_vision_encoder``, ``split_images``)."""
    vision = _vision(hf_config)
    tile = vision.count("image_size", default=364)
    max_size = processor.get("max_image_size")
    if isinstance(max_size, Mapping):
        tile = HfConfig(max_size, "max_image_size").count("longest_edge", default=tile)
    longest = _edge(processor, "longest_edge", default=4 * tile)
    aspect = width / height
    if width >= height:
        width, height = longest, int(longest / aspect)
        height += height % 2
    else:
        height, width = longest, int(longest * aspect)
        width += width % 2
    tiles = 1
    if processor.get("do_image_splitting", True):
        aspect = width / height
        if width >= height:
            width = math.ceil(width / tile) * tile
            height = math.ceil(int(width / aspect) / tile) * tile
        else:
            height = math.ceil(height / tile) * tile
            width = math.ceil(int(height * aspect) / tile) * tile
        tiles = (height // tile) * (width // tile)
        tiles += 1 if tiles > 1 else 0
    patch, factor = (
        vision.count("patch_size", default=14),
        HfConfig(hf_config, "the model's config").count("scale_factor", default=2),
    )
    return "nested", tiles, (tile, tile), patch, tiles * ((tile // patch) ** 2 // factor**2)


_PROCESSORS: Mapping[str, _Processor] = {
    # bounds as published: Qwen/Qwen2-VL-7B-Instruct, Qwen2.5-VL-7B-Instruct, Qwen3-VL-8B-Instruct
    "qwen2_vl": _qwen(14, 3136, 12_845_056),
    "qwen2_5_vl": _qwen(14, 3136, 12_845_056),
    "qwen3_vl": _qwen(16, 65_536, 16_777_216),
    "qwen3_vl_moe": _qwen(16, 65_536, 16_777_216),
    "llava": _square,
    "gemma3": _square,
    "idefics3": _tiled,
    "smolvlm": _tiled,
}
