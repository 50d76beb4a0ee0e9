"""Plans and estimates of training without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import zerokit
from zerokit.errors import InputError, MemoryUnknown
from zerokit.planner import documents
from zerokit.timing.ranges import LONGEST_WITHOUT_ENGINE

ROOT = Path(__file__).parents[3]

JOB = {"model": "llama-3.2-1b", "gpu": "h100-sxm-80gb", "seq_len": 1024}


def test_a_plan_is_written_for_accelerate(tmp_path: Path) -> None:
    plan = zerokit.plan(**JOB, gpus=2, global_batch=16, engine="ddp", out=tmp_path)
    chosen = plan.to_dict()["chosen"]
    assert (chosen["engine"], chosen["zero_stage"], chosen["deepspeed_config"]) == ("ddp", None, None)
    assert (chosen["load_dtype"], chosen["autocast"]) == ("bf16", False)
    assert chosen["accelerate_config"]["distributed_type"] == "MULTI_GPU"
    assert {path.name for path in tmp_path.iterdir()} == {"plan.yaml", "accelerate.yaml"}


def test_one_gpu_is_no_distributed_training() -> None:
    chosen = zerokit.plan(**JOB, gpus=1, global_batch=4, engine="ddp", trainer="transformers").to_dict()
    config = chosen["chosen"]["accelerate_config"]
    assert (config["distributed_type"], config["mixed_precision"]) == ("NO", "bf16")


def test_weights_in_16_bits_take_half_of_what_deepspeed_keeps() -> None:
    """Weight, gradient and two moments of two bytes each are 8; DeepSpeed's are 2, 2, 4, 4 and 4."""
    plain = zerokit.estimate(**JOB, gpus=1, engine="ddp").to_dict()
    divided = zerokit.estimate(**JOB, gpus=1, zero=0).to_dict()
    states = [
        sum(one["per_rank"][0]["components"][name] for name in names)
        for one, names in (
            (plain, ("parameters", "optimizer_states")),
            (divided, ("parameters", "optimizer_states", "master_weights")),
        )
    ]
    assert states[0] / states[1] == pytest.approx(6 / 14, rel=0.01)


def test_all_reduce_takes_longer_on_a_slower_network() -> None:
    steps = [
        zerokit.estimate(**JOB, gpus=16, nodes=2, network=rate, engine="ddp").step_seconds
        for rate in ("400Gb/s", "25Gb/s")
    ]
    assert steps[1] > 2 * steps[0]


def test_steps_without_an_engine_are_said_to_be_unsure() -> None:
    told = zerokit.estimate(**JOB, gpus=1, engine="ddp")
    assert any("without an engine" in note for note in documents.pace_notes(told.planned))
    sized = [zerokit.size(**JOB, gpus=1, engine=engine).assumptions for engine in ("ddp", "deepspeed")]
    assert ["64% longer than predicted" in " ".join(notes) for notes in sized] == [True, False]
    longer = []
    for name, row in rows("trainer-files").items():
        if "alone_step_seconds" in row:
            predicted = rows("trainer-files-predicted")[name]["expected"]["step_seconds"]
            longer.append(row["alone_step_seconds"] / predicted - 1)
    assert max(longer) == pytest.approx(LONGEST_WITHOUT_ENGINE, abs=0.01) and len(longer) == 10


def rows(name: str) -> dict[str, dict[str, Any]]:
    text = (ROOT / "benchmarks" / "measure" / "data" / f"{name}.jsonl").read_text(encoding="utf-8")
    return {row["name"]: row for row in map(json.loads, text.splitlines())}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zero": 2}, "^zero"),
        ({"tp": 2, "gpus": 2}, "^tp 2"),
        ({"offload_optimizer": "cpu"}, "^offload_optimizer cpu"),
        ({"inference": True}, "serving"),
        ({"load_dtype": "fp16", "precision": "bf16"}, "^load_dtype fp16"),
    ],
)
def test_what_an_engine_does_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        zerokit.estimate(**{**JOB, "gpus": 1, **options}, engine="ddp")


def test_engines_decide_the_dtype_themselves() -> None:
    with pytest.raises(InputError, match="load_dtype fp32"):
        zerokit.estimate(**JOB, gpus=1, load_dtype="fp32")


def test_a_loss_that_was_not_compared_is_not_modelled() -> None:
    with pytest.raises(MemoryUnknown, match="loss liger"):
        zerokit.estimate(**JOB, gpus=1, engine="ddp", loss="liger")
