"""Models of images and text, traced: against a count of the same step, and what the commands say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.packages import needs

torch = pytest.importorskip("torch")
needs("transformers")

from benchmarks.replay_and_rehearsal import FAMILIES  # noqa: E402
from zerokit import estimate  # noqa: E402
from zerokit.domain.images import images_of  # noqa: E402
from zerokit.errors import InputError  # noqa: E402

SMALL = {
    **FAMILIES["llava"],
    "text_config": {**FAMILIES["llava"]["text_config"], "num_hidden_layers": 2},
    "vision_config": {**FAMILIES["llava"]["vision_config"], "num_hidden_layers": 3, "image_size": 56},
}
ASKED = {"gpu": "h200", "gpus": 1, "seq_len": 256, "micro_batch": 2, "zero": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text(
        json.dumps({**SMALL, "architectures": ["LlavaForConditionalGeneration"]})
    )
    return tmp_path


@pytest.mark.slow
def test_a_frozen_tower_has_no_states_and_keeps_fewer_activations(folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**SMALL))
    tower = sum(p.numel() for name, p in model.named_parameters() if "vision_tower" in name)
    trained, frozen = (
        estimate(
            model=folder, images=2, image_size="300x200", vision_tower=tower, **ASKED
        ).planned.candidate.memory
        for tower in ("trained", "frozen")
    )
    states = [found.ranks[0].components["optimizer_states"] for found in (trained, frozen)]
    assert states[0] - states[1] == pytest.approx(8 * tower, rel=0.01)
    assert trained.basis == frozen.basis == "traced"
    assert trained.worst.peak_allocated_bytes - frozen.worst.peak_allocated_bytes > 8 * tower


def test_images_need_room_and_are_asked_for(folder: Path) -> None:
    with pytest.raises(InputError, match="too short for 2 images, of 34 tokens in all"):
        estimate(model=folder, images=2, image_size="300x200", **{**ASKED, "seq_len": 34})
    with pytest.raises(InputError, match="images N"):
        estimate(model=folder, **ASKED)


@pytest.mark.slow
def test_tables_that_say_where_tiles_lie_are_left_out_at_every_batch_size(folder: Path) -> None:
    config = FAMILIES["idefics3"]
    small = {
        **config,
        "architectures": ["Idefics3ForConditionalGeneration"],
        "text_config": {**config["text_config"], "num_hidden_layers": 2},
        "vision_config": {**config["vision_config"], "num_hidden_layers": 2},
    }
    (folder / "config.json").write_text(json.dumps(small))
    # 13 tiles an image: 52 at the smaller batch of the trace, 78 at the larger one
    found = estimate(model=folder, images=2, image_size="300x200", **{**ASKED, "seq_len": 512})
    assert found.planned.candidate.memory.basis == "traced"


@pytest.mark.parametrize("size", [(300, 200), (1080, 37), (41, 900), (640, 640)])
def test_sizes_are_those_of_transformers_own_processors(size: tuple[int, int]) -> None:
    image_module = pytest.importorskip("PIL.Image")
    numpy = pytest.importorskip("numpy")
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    image = image_module.fromarray(numpy.zeros((size[1], size[0], 3), dtype=numpy.uint8))
    qwen = {"model_type": "qwen2_vl", "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}
    processed = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=401_408)(
        images=[image], return_tensors="np"
    )
    found = images_of(qwen, {"max_pixels": 401_408}, count=1, width=size[0], height=size[1])
    assert processed["pixel_values"].shape[0] == found.patches
    assert list(processed["image_grid_thw"][0]) == [1, found.height // 14, found.width // 14]
    tiled = {"model_type": "idefics3", "vision_config": {"image_size": 112, "patch_size": 14}}
    bounds = {"size": {"longest_edge": 448}, "max_image_size": {"longest_edge": 112}}
    processed = Idefics3ImageProcessorPil(**bounds)(images=[image], return_tensors="np")
    found = images_of(tiled, bounds, count=1, width=size[0], height=size[1])
    assert processed["pixel_values"].shape[1:] == (found.tiles, 3, 112, 112)
