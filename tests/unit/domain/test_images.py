"""What images become: sizes worked out by hand from the processors' rules, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from zerokit.domain.images import images_of
from zerokit.errors import InputError

QWEN = {"model_type": "qwen2_vl", "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}
QWEN3 = {"model_type": "qwen3_vl", "vision_config": {"patch_size": 16, "spatial_merge_size": 2}}
LLAVA = {"model_type": "llava", "vision_config": {"image_size": 336, "patch_size": 14}}
IDEFICS = {
    "model_type": "idefics3",
    "scale_factor": 2,
    "vision_config": {"image_size": 364, "patch_size": 14},
}


@pytest.mark.parametrize(
    ("config", "processor", "size", "tiles", "became", "tokens"),
    [
        (QWEN, {}, (300, 200), 1, (308, 196), 11 * 7),  # 10.7 and 7.1 merged patches of 28 pixels
        (QWEN, {}, (8000, 6000), 1, (4116, 3080), 147 * 110),  # at most 12,845,056 pixels
        (QWEN, {"max_pixels": 1_003_520}, (1280, 960), 1, (1148, 840), 41 * 30),
        (QWEN, {"size": {"longest_edge": 1_003_520}}, (1280, 960), 1, (1148, 840), 41 * 30),
        (QWEN, {}, (20, 20), 1, (56, 56), 4),  # at least 3,136 pixels
        (QWEN3, {}, (300, 200), 1, (320, 224), 10 * 7),  # at least 65,536 pixels
        (LLAVA, {}, (1280, 720), 1, (336, 336), 576),
        (IDEFICS, {}, (1280, 720), 4 * 3 + 1, (364, 364), 13 * 169),  # 1456 x 820 pixels
        (IDEFICS, {"do_image_splitting": False}, (1280, 720), 1, (364, 364), 169),
        (IDEFICS, {"size": {"longest_edge": 364}}, (500, 500), 1, (364, 364), 169),
    ],
)
def test_an_image_becomes_tiles_pixels_and_tokens(
    config: dict[str, Any],
    processor: dict[str, Any],
    size: tuple[int, int],
    tiles: int,
    became: tuple[int, int],
    tokens: int,
) -> None:
    found = images_of(config, processor, count=3, width=size[0], height=size[1])
    assert (found.tiles, (found.width, found.height), found.tokens) == (tiles, became, tokens)
    assert found.sequence_tokens == 3 * (tokens + 1)


@pytest.mark.parametrize(
    ("config", "size", "told"),
    [
        ({"model_type": "llama"}, (10, 10), "has no vision tower"),
        ({"model_type": "mistral3", "vision_config": {}}, (10, 10), "'mistral3' is not modelled"),
        (QWEN, (3000, 10), "sides of up to 200 to 1"),
        ({**LLAVA, "vision_config": {"image_size": "large"}}, (10, 10), "image_size is 'large'"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(
    config: dict[str, Any], size: tuple[int, int], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        images_of(config, {}, count=1, width=size[0], height=size[1])
