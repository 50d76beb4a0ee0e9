"""What is asked for of the images of a sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zerokit.domain.images import SequenceImages
from zerokit.errors import InputError
from zerokit.planner.image_models import processor_of, requested_images, with_room

IMAGES = {"images": "2", "image_size": "640x480"}


def test_images_are_asked_for_by_number_and_size() -> None:
    found = requested_images({**IMAGES, "vision_tower": "frozen"})
    assert found is not None
    assert (found.count, found.width, found.height, found.tower) == (2, 640, 480, "frozen")
    assert requested_images({"tp": "2"}) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"images": "2"}, "give their size too"),
        ({"image_size": "640x480"}, "only with images"),
        ({"vision_tower": "frozen"}, "only with images"),
        ({**IMAGES, "image_size": "640"}, "expected width x height"),
        ({**IMAGES, "image_size": "0x480"}, "expected width x height"),
        ({**IMAGES, "images": "0"}, "images"),
        ({**IMAGES, "vision_tower": "half"}, "trained, frozen"),
        ({**IMAGES, "tp": "2"}, "tensor parallelism of a model with a vision tower is not modelled"),
        ({**IMAGES, "sp": "auto"}, "sequence parallelism of"),
        ({**IMAGES, "inference": True}, "inference of"),
        ({**IMAGES, "attention": "eager"}, "use sdpa"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        requested_images(options)


def test_a_sequence_must_have_room_for_its_images() -> None:
    images = SequenceImages(count=2, layout="images", tiles=1, height=336, width=336, patch=14, tokens=576)
    assert with_room(images, 1155) == images
    with pytest.raises(InputError, match="too short for 2 images, of 1,154 tokens in all"):
        with_room(images, 1154)


def test_the_processor_file_beside_a_model_decides(tmp_path: Path) -> None:
    assert processor_of(tmp_path / "config.json") == {}
    (tmp_path / "preprocessor_config.json").write_text('{"max_pixels": 1003520}')
    assert processor_of(tmp_path / "config.json") == {"max_pixels": 1003520}
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(InputError, match="expected a JSON object"):
        processor_of(tmp_path / "config.json")
