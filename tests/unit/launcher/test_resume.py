"""Which checkpoint of an earlier run a launch goes on from, and the plan for as many ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.plans import write_plan
from zerokit.errors import InputError, NothingFits
from zerokit.launcher import checkpoint as checkpoints
from zerokit.launcher.checkpoint import Checkpoint, ResumePoint
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.rank_file import RankWriter
from zerokit.launcher.resume import plan_for_ranks, point_of, resuming
from zerokit.script.entry_points import Target


def write_attempt(folder: Path, saved: Path | None, ranks: int = 2) -> None:
    folder.mkdir(parents=True)
    (folder / "command.json").write_text(json.dumps({"expected_ranks": ranks}))
    for rank in range(ranks):
        writer = RankWriter(folder / f"rank-{rank:05d}.jsonl", rank)
        writer.write({"type": "start"})
        if saved is not None:
            record = {"type": "checkpoint", "kind": "deepspeed", "folder": str(saved), "tag": "t", "step": 4}
            writer.write(record)


def write_checkpoint(folder: Path, ranks: int) -> Path:
    (folder / "t").mkdir(parents=True)
    for rank in range(ranks):
        (folder / "t" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    return folder


def test_the_last_attempt_that_wrote_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_attempt(run, write_checkpoint(tmp_path / "first", 2))
    write_attempt(run / "restart-2", write_checkpoint(tmp_path / "second", 2))
    write_attempt(run / "restart-10", None)
    point = point_of(run)
    assert (point.checkpoint.folder, point.ranks) == (tmp_path / "second", 2)
    assert point.to_convert(2) is None
    files = point.to_convert(4)
    assert files is not None and files.folder == tmp_path / "second" / "t"


def test_a_run_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        point_of(tmp_path)
    write_attempt(tmp_path / "run", None)
    with pytest.raises(InputError, match="no checkpoint there that every rank finished writing"):
        point_of(tmp_path / "run")
    (tmp_path / "x.py").touch()
    script = str(tmp_path / "x.py")
    options = LaunchOptions(target=Target(script=script, module=None, arguments=()), resume=tmp_path / "a")
    write_attempt(tmp_path / "a", write_checkpoint(tmp_path / "c", 2))
    with pytest.raises(InputError, match="it is not known how the script takes one"):
        resuming(options, lambda request, folder: None, lambda text: None)


def test_the_plan_is_made_again_with_the_same_global_batch(tmp_path: Path) -> None:
    folder, asked, said = str(write_plan(tmp_path / "plan", ranks=4)), [], []

    def plan_into(request: Mapping[str, Any], out: Path) -> None:
        asked.append(request)
        if "micro_batch" in request:
            raise NothingFits("too large")
        write_plan(out, micro_batch=1, accumulation=4)

    assert plan_for_ranks(folder, 4, plan_into, said.append) == folder
    assert plan_for_ranks(folder, None, plan_into, said.append) == folder and not asked
    again = plan_for_ranks(folder, 2, plan_into, said.append)
    assert again != folder and len(asked) == 2
    kept = {"gpus": "2", "global_batch": "8", "zero": "2", "precision": "bf16"}
    assert kept.items() <= asked[1].items()
    assert "gradient accumulation 4, global batch 8 as before" in said[0]
    with pytest.raises(InputError, match=r"8 cannot be divided evenly over so many; use gpus 2 or 4"):
        plan_for_ranks(folder, 3, plan_into, said.append)
    with pytest.raises(InputError, match=r"use gpus 8$"):
        plan_for_ranks(folder, 16, plan_into, said.append)
    (tmp_path / "plan" / "ds_config.json").write_text("{}")
    with pytest.raises(InputError, match="was changed after the plan was made"):
        plan_for_ranks(folder, 2, plan_into, said.append)


@pytest.mark.parametrize(("counted", "refused"), [([4], False), ([8], True), ([], False)])
def test_a_schedule_that_each_rank_counted_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[int], refused: bool
) -> None:
    checkpoint = Checkpoint(kind="accelerate", folder=tmp_path, tag=None, step=4)
    monkeypatch.setattr(checkpoints.converting, "scheduler_steps", lambda folder: counted)
    point = ResumePoint(checkpoint=checkpoint, ranks=2, zero=None)
    point.make_ready(2, lambda text: None)
    if refused:
        with pytest.raises(InputError, match="learning rate schedule 8 on in 4 steps"):
            point.make_ready(4, lambda text: None)
    else:
        point.make_ready(4, lambda text: None)
