"""Models of images and text, traced: against a count of the same step, and what the commands say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.replay_and_rehearsal import FAMILIES  # noqa: E402
from zerokit import estimate  # noqa: E402
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
    with pytest.raises(InputError, match="2 images take 34 tokens"):
        estimate(model=folder, images=2, image_size="300x200", **{**ASKED, "seq_len": 34})
    with pytest.raises(InputError, match="images N"):
        estimate(model=folder, **ASKED)
