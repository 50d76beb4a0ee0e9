"""The batch of a script's own data loader, read from its source and held to a plan."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import zerokit
from tests.support.scripts_read import NO_TRAINER, RAW, TRAINER, options
from zerokit import cli
from zerokit.emit import plan_file
from zerokit.script.loader_batch import PlannedBatch, before_the_run, loader_batch

ACCELERATE = """
    import argparse
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=6)
    args = parser.parse_args()
    SIZE = 3
    train_dataloader = DataLoader({})
    accelerator = Accelerator({})
"""


def accelerate(loader: str, more: str = "", keywords: str = "") -> str:
    return ACCELERATE.format(loader, keywords) + more


@pytest.mark.parametrize(
    ("text", "arguments", "sequences"),
    [
        (accelerate("data, batch_size=2"), "", 2),
        (accelerate("data, 5, shuffle=True"), "", 5),
        (accelerate("data, batch_size=SIZE"), "", 3),
        (accelerate("data, batch_size=args.batch_size"), "", 6),
        (accelerate("data, batch_size=args.batch_size"), "--batch-size 9", 9),
        (accelerate("data, batch_size=args.batch_size"), "--batch-size {micro_batch}", None),
        (accelerate("data, batch_size=2", "    eval_dataloader = DataLoader(data, batch_size=16)\n"), "", 2),
        (
            accelerate("data, batch_size=2", "    DataLoader(data, batch_size=16)\n"),
            "",
            None,
        ),  # which of them?
        (accelerate("data, batch_size=2", "    DataLoader(data)\n"), "", None),
        (accelerate("data, batch_size=2 * SIZE"), "", None),
        (accelerate("data, batch_sampler=sampler"), "", None),
        (accelerate("data, batch_size=8", keywords="split_batches=True"), "", None),  # shared by the ranks
        (TRAINER + "    DataLoader(data, batch_size=2)\n", "", None),  # its arguments decide
        (RAW + "    DataLoader(data, batch_size=2)\n", "", 2),
        (RAW + "    DataLoader(data, batch_size=engine.train_micro_batch_size_per_gpu())\n", "", None),
        (
            RAW + "    a = parser.parse_args()\n    DataLoader(data, batch_size=a.micro_batch_size)\n",
            "",
            None,
        ),
    ],
)
def test_the_batch_is_what_the_trainings_loader_is_given(
    tmp_path: Path, text: str, arguments: str, sequences: int | None
) -> None:
    found = loader_batch(options(tmp_path, text, *arguments.split()))
    assert (found.sequences if found is not None else None) == sequences


def planned(micro_batch: int, *, rehearsed: bool, folder: Path | None = None) -> PlannedBatch:
    chosen = {"micro_batch": micro_batch, "gradient_accumulation": 1, "data_parallel": 1}
    if rehearsed:
        chosen["rehearsed"] = {"script": "train.py"}
    return PlannedBatch(chosen=chosen, request={"gpus": "2"}, folder=folder)


def test_another_batch_than_the_plans_is_said_before_the_run(tmp_path: Path) -> None:
    script = options(tmp_path, accelerate("data, batch_size=2"))
    assert before_the_run(script, planned(2, rehearsed=False)) == []
    (said,) = before_the_run(script, planned(8, rehearsed=False))
    assert "DataLoader(batch_size=2) gives each rank 2 at a time" in said
    assert "the plan has micro-batch 8" in said and "--micro-batch 2" in said
    (said,) = before_the_run(script, planned(8, rehearsed=True))
    assert said.endswith("; change the script")
    for words in ((), ("--batch-size", "9")):  # its option sets it, typed or not
        by_option = options(tmp_path, accelerate("data, batch_size=args.batch_size"), *words)
        (said,) = before_the_run(by_option, planned(8, rehearsed=True))
        assert said.endswith("; give --batch-size 8")
    computed = options(tmp_path, accelerate("data, batch_size=2 * SIZE"))
    assert before_the_run(computed, planned(8, rehearsed=True)) == []
    (said,) = before_the_run(computed, planned(8, rehearsed=False))
    assert "micro-batch 8" in said and "only the run tells" in said
    # the option is filled in from the plan
    assert before_the_run(options(tmp_path, NO_TRAINER), planned(8, rehearsed=False)) == []


@pytest.mark.parametrize(
    ("asked", "loaded", "batch"),
    [
        ({"global_batch": 16}, 2, 16),
        ({"global_batch": 16}, 6, 12),  # 16 cannot be 6 on each of two GPUs
        ({"global_batch": 16, "gradient_accumulation": 1, "micro_batch": 8}, 2, 4),
        ({}, 3, None),
    ],
)
def test_the_command_that_plans_for_the_loader_works_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: dict[str, int], loaded: int, batch: int | None
) -> None:
    """Also where the plan left one of the GPUs idle, and its recipe names both."""
    folder = tmp_path / "the plan"
    plan = zerokit.plan(params="125m", gpus=2, gpu="l40s", seq_len=128, **asked)  # type: ignore[arg-type]
    plan.write(folder)
    read = plan_file.read(folder)
    script = options(tmp_path, accelerate(f"data, batch_size={loaded}"))
    (said,) = before_the_run(
        script, PlannedBatch(chosen=read.chosen, request=read.request, folder=read.folder)
    )
    command = shlex.split(said[said.index("zerokit plan") :])
    assert cli.run([*command[1:], "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["chosen"]
    assert chosen["micro_batch"] == loaded
    trained = loaded * chosen["gradient_accumulation"] * chosen["data_parallel"]
    wanted = plan.chosen.micro_batch * plan.chosen.gradient_accumulation * plan.chosen.data_parallel
    assert trained == batch if batch is not None else abs(trained - wanted) <= loaded
