"""What two rehearsals of a few layers under DeepSpeed say of all, beside the rehearsal of all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from zerokit.catalog import gpus, models
from zerokit.rehearsal.by_replay import all_layers
from zerokit.rehearsal.order import ENGINE
from zerokit.rehearsal.result import HeldAtPeak, RankMemory, Rehearsal

CONFIG = {
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
    "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}, "fp16": {"enabled": False},
}  # fmt: skip
RAN = {
    "zero_stage": 3, "gradient_accumulation": 1, "offload_optimizer": "none", "offload_param": "none",
    "micro_batch": 1, "tensor_parallel": 1, "optimizer": "AdamW", "gradient_checkpointing": True,
    "parameters": 8030261248, "trainable_parameters": 8030261248, "dtype": "bfloat16", "batch_rows": 1,
    "batch_columns": 4096,
}  # fmt: skip
OF_THREE = {"load": 1477713920, "init": 3757078528, "forward": 8769725440, "backward": 13085497856,
            "step": 5757386240, "save": 4478707712}  # fmt: skip
OF_SIX = {"load": 1641297920, "init": 4411073024, "forward": 10180898304, "backward": 14496408576,
          "step": 7558547456, "save": 5789184512}  # fmt: skip
OF_ALL = {"load": 3059812352, "init": 10081985024, "forward": 22395448832, "backward": 26710696960,
          "step": 23154427904, "save": 17131418112}  # fmt: skip
"""Rank 0 of 8 H200s: TRL 1.16's sft.py with Llama-3.1-8B, ZeRO-3, 4,096 tokens, checkpointing, bf16."""
HOST = {3: {"load": 1050673152, "init": 426253312}, 6: {"load": 1050673152, "init": 589837312}}
HOST_OF_ALL = 2007565312
STATES, GATHERED = {3: 1704984576, 6: 2361446400}, 2040529920


def _done(layers: int, phases: dict[str, int], gathered_at: str) -> Rehearsal:
    rows = [
        HeldAtPeak(what="optimizer states", module="", location="zero/stage3.py:1245", bytes=STATES[layers]),
        HeldAtPeak(what="gathered parameters", module="module", location="p.py:1388", bytes=10**9),
        HeldAtPeak(what="gathered parameters", module=gathered_at, location="", bytes=GATHERED - 10**9),
    ]
    rest = phases["backward"] - sum(row.bytes for row in rows)
    rows.append(HeldAtPeak(what="activations", module="layers.*", location="llama.py:312", bytes=rest))
    reserved = phases["backward"] + (1 << 30)
    rank = RankMemory(
        rank=0, peak_allocated_bytes=phases["backward"], peak_phase="backward", phases=phases,
        peak_reserved_bytes=reserved, smallest_reserved_bytes=reserved, at_peak=tuple(rows),
        at_peaks={"backward": tuple(rows)}, host_bytes=max(HOST[layers].values()), host_phases=HOST[layers],
    )  # fmt: skip
    config = dict(models.load("llama-3.1-8b").hf_config)
    return Rehearsal(
        complete=True, fits=True, min_vram_bytes=reserved + (2 << 30), gpu="h200", gpus=8, steps=3,
        ranks=(rank,), engine=RAN, model={"config": config, "method": "full"}, vram_bytes=150 << 30,
        depth={"layers": [layers], "of": 32},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ENGINE).write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_few_layers_tell_what_all_take(folder: Path) -> None:
    fewer, more = _done(3, OF_THREE, "layers.*.q_proj"), _done(6, OF_SIX, "layers.*.act_fn")
    done = all_layers(fewer, more, gpus.load("h200"), folder)
    assert isinstance(done, Rehearsal)
    (rank,) = done.ranks
    assert rank.phases == pytest.approx(OF_ALL, rel=0.001)
    assert rank.peak_allocated_bytes == pytest.approx(OF_ALL["backward"], rel=0.0005)
    assert sum(row.bytes for row in rank.at_peak) == rank.peak_allocated_bytes
    states = next(row.bytes for row in rank.at_peak if row.what == "optimizer states")
    assert states == pytest.approx(8030261248 / 8 * 4 * 2, rel=0.01)  # Adam's two, over eight ranks
    assert rank.host_bytes == HOST_OF_ALL  # below the embedding's with a few layers
    assert done.depth == {"layers": [3, 6], "of": 32}
    assert done.min_vram_bytes == more.min_vram_bytes + rank.peak_allocated_bytes - OF_SIX["backward"]


def test_what_is_live_where_another_instant_is_the_highest(folder: Path) -> None:
    """With a few layers the norm of an embedding's gradient may be, with all what the step makes of its
    gradients: the replay tells it, without lines."""
    fewer, more = _done(3, OF_THREE, "layers.*.q_proj"), _done(6, OF_SIX, "layers.*.act_fn")
    (rank,) = fewer.ranks
    rows = tuple(row for row in rank.at_peak if row.what != "optimizer states")
    fewer = replace(fewer, ranks=(replace(rank, at_peaks={"backward": rows}),))
    done = all_layers(fewer, more, gpus.load("h200"), folder)
    assert isinstance(done, Rehearsal)
    (rank,) = done.ranks
    assert sum(row.bytes for row in rank.at_peak) == rank.peak_allocated_bytes
    assert {row.location for row in rank.at_peak} == {""}
    states = next(row.bytes for row in rank.at_peak if row.what == "optimizer states")
    assert states == pytest.approx(8030261248 / 8 * 4 * 2, rel=0.01)


def test_a_peak_without_a_replay_is_rehearsed_whole(folder: Path) -> None:
    """As of a save that gathers the model, where a few layers are highest in training."""
    saves = ({**OF_THREE, "save": OF_THREE["save"]}, {**OF_SIX, "save": OF_SIX["backward"]})
    told = all_layers(_done(3, saves[0], ""), _done(6, saves[1], ""), gpus.load("h200"), folder)
    assert told == "with all layers the highest is save, of which there is no replay"


def test_groups_that_layers_do_not_tell_are_rehearsed_whole(folder: Path) -> None:
    fewer, more = (
        replace(_done(n, p, ""), engine={**RAN, "optimizer_groups": None})
        for n, p in ((3, OF_THREE), (6, OF_SIX))
    )
    told = all_layers(fewer, more, gpus.load("h200"), folder)
    assert told == "the optimizer's groups of parameters are not known"


def test_a_script_that_keeps_more_of_each_layer_is_rehearsed_whole(folder: Path) -> None:
    """As one that holds on to hidden states, 32 MiB a layer, of which no plan knows."""
    grown = {**OF_SIX, "backward": OF_SIX["backward"] + (96 << 20), "forward": OF_SIX["forward"] + (96 << 20)}
    told = all_layers(_done(3, OF_THREE, ""), _done(6, grown, ""), gpus.load("h200"), folder)
    assert told == "layers take something else than the replay says"


def test_a_model_that_no_plan_knows_is_rehearsed_whole(folder: Path) -> None:
    fewer, more = (replace(_done(n, p, ""), model=None) for n, p in ((3, OF_THREE), (6, OF_SIX)))
    told = all_layers(fewer, more, gpus.load("h200"), folder)
    assert isinstance(told, str)
    assert "configuration is not known" in told


def test_what_did_not_end_tells_nothing(folder: Path) -> None:
    fewer, more = _done(3, OF_THREE, ""), replace(_done(6, OF_SIX, ""), complete=False)
    told = all_layers(fewer, more, gpus.load("h200"), folder)
    assert told == "a rehearsal of a few did not go to the end"
