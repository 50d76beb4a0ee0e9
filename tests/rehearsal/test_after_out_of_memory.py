"""What a rehearsal of a command says after its launch: of an out-of-memory, and of another job."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import zerokit
from tests.support.rehearsals import SCRIPTS
from zerokit.emit import plan_file
from zerokit.errors import InputError
from zerokit.launcher.backends import LaunchCommand
from zerokit.launcher.launch import Launch
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement
from zerokit.launcher.verdict.report import with_prediction
from zerokit.notes import with_level
from zerokit.rehearsal.of_launch import LaunchRehearsals
from zerokit.rehearsal.result import Stop
from zerokit.report.measured import wants_rehearsal
from zerokit.report.predicted import PredictedAgain
from zerokit.report.render import print_report
from zerokit.report.schema import Failure, OutOfMemory, RankReport, RunReport
from zerokit.script.entry_points import Target

WEIGHTS = 4 * (1024 * 4096 + 4096 + 4096 * 1024 + 1024)


def launch(tmp_path: Path, script: str, device: str = "cuda") -> Launch:
    target = Target(script=str(SCRIPTS / script), module=None, arguments=("1",))
    return Launch(
        options=LaunchOptions(target=target),
        placement=Placement(devices=Devices(kind=device, ranks=1, gpu_indexes=(0,), why=""), port=29500),
        command=LaunchCommand(
            argv=[], set_variables={"ZEROKIT_DEVICE": device}, unset_variables=[], files={}
        ),
        environment={},
        cwd=tmp_path,
        run_dir=tmp_path,
        host="here",
        plan={"cluster": {"gpu": "h200"}},
    )


def report(memory: str = "gpu", **more: Any) -> RunReport:
    failure = Failure(rank=0, host="here", kind="oom", oom=OutOfMemory(memory=memory), **more)
    return RunReport(
        schema="zerokit.report/1",
        outcome="oom",
        exit_code=10,
        expected_ranks=1,
        ranks=[],
        first_failure=failure,
    )


def test_it_says_what_the_command_needs(tmp_path: Path) -> None:
    said: list[str] = []
    found = LaunchRehearsals().of_oom(launch(tmp_path, "plain_loop.py"), report(), said.append)
    assert found is not None and found.stopped is None
    assert (found.fits, found.peak_phase) == (True, "step")
    # weights, gradients, Adam's two moments, and what the step takes on its way, beside cuBLAS' workspaces
    assert 4 * WEIGHTS < (found.peak_allocated_bytes or 0) - 2 * (32 << 20) < 6.2 * WEIGHTS
    assert "Ctrl-C skips it" in said[0]
    told = report(rehearsed=found)
    console = Console(width=200, record=True, file=io.StringIO())
    print_report(told, console)
    assert "another process, or fragmentation, took the rest" in console.export_text()


def test_what_it_cannot_rehearse_it_says(tmp_path: Path) -> None:
    found = LaunchRehearsals().of_oom(launch(tmp_path, "missing.py"), report(), lambda line: None)
    assert found is not None and "missing.py" in (found.stopped or "")
    slow = LaunchRehearsals(seconds=0.05, no_cache=True).of_oom(
        launch(tmp_path, "plain_loop.py"), report(), lambda line: None
    )
    assert slow is not None and "did not end within 0.05 s" in (slow.stopped or "")


def test_memory_of_the_host_is_not_its_matter(tmp_path: Path) -> None:
    assert (
        LaunchRehearsals().of_oom(launch(tmp_path, "plain_loop.py", "cpu"), report(), lambda line: None)
        is None
    )
    assert (
        LaunchRehearsals().of_oom(launch(tmp_path, "plain_loop.py"), report("host"), lambda line: None)
        is None
    )


# -- a run that was not its plan's job


@pytest.fixture(scope="module")
def plan_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planned(tmp_path_factory.mktemp("plan"), seq_len=64)


def planned(folder: Path, seq_len: int) -> Path:
    """A plan for the teacher's script, whose sequences have 128 tokens."""
    zerokit.plan(params="1m", gpus=2, gpu="h200", zero=2, micro_batch=2, gradient_accumulation=1,
                 seq_len=seq_len, checkpointing="none", out=folder)  # fmt: skip
    return folder


def other_job(
    folder: Path, plan_folder: Path, *arguments: str, style: str = "raw"
) -> tuple[Launch, RunReport]:
    """A launch of the teacher's script on two CPU ranks, with longer sequences than its plan's."""
    target = Target(script=str(SCRIPTS / "teacher.py"), module=None, arguments=arguments)
    read = plan_file.read(str(plan_folder))
    cpu = Devices(kind="cpu", ranks=2, gpu_indexes=(), why="")
    launched = replace(
        launch(folder, "teacher.py", "cpu"), style=style, placement=Placement(devices=cpu, port=29500),
        plan={"request": read.request, "chosen": read.chosen, "cluster": read.cluster},
        options=LaunchOptions(target=target, plan=str(plan_folder)),
    )  # fmt: skip
    engine = {"zero_stage": 2, "micro_batch": 2, "batch_rows": 2, "batch_columns": 128, "engines": 1}
    ranks = [RankReport(rank=rank, host="here", state="finished", device="cpu", engine=engine, steps=6,
                        peak_host_rss_bytes=(2 << 30) + rank, baseline_host_rss_bytes=1 << 30)
             for rank in range(2)]  # fmt: skip
    report = RunReport(schema="zerokit.report/1", outcome="ok", exit_code=0, expected_ranks=2, ranks=ranks)
    return launched, with_prediction(report, launched.plan, PredictedAgain(why_not="not yet"))


def test_a_run_with_a_second_model_is_predicted_by_a_rehearsal(tmp_path: Path, plan_folder: Path) -> None:
    launched, told = other_job(tmp_path, plan_folder)
    assert told.predicted_vs_measured is not None and told.predicted_vs_measured.predicted_for is None
    said: list[str] = []
    again = LaunchRehearsals().of_job(launched, told, said.append)
    assert (again.by, again.why_not) == ("rehearsal", None)
    assert "180 s at most" in said[0]
    compared = with_prediction(told, launched.plan, again).predicted_vs_measured
    assert compared is not None and compared.peak_bytes is not None
    assert (compared.predicted_for, compared.predicted_by) == ("what ran", "rehearsal")
    teacher, beside_tensors = 2 * 16384**2, 1 << 30
    assert teacher < compared.peak_bytes.predicted - beside_tensors < 1.2 * teacher
    assert [pair.predicted is not None for pair in compared.per_rank] == [False, True]  # the fullest
    assert "rank 1, " in (compared.note or "")


def test_a_run_with_more_than_its_plan_s_bare_loop_is_predicted_by_a_rehearsal(tmp_path: Path) -> None:
    """The batch is the plan's; that the script holds a teacher, only the memory of its GPU says."""
    teacher = 2 * 16384**2
    launched, told = other_job(tmp_path, planned(tmp_path / "plan", seq_len=128))
    engine = {"zero_stage": 2, "micro_batch": 2, "batch_rows": 2, "batch_columns": 128, "engines": 1}
    gpu = Devices(kind="cuda", ranks=2, gpu_indexes=(0, 1), why="")
    launched = replace(launched, placement=Placement(devices=gpu, port=29500))
    ranks = [RankReport(rank=rank, host="here", state="finished", device="cuda", engine=engine, steps=6,
                        phases={"backward": teacher + (64 << 20)}, median_step_seconds=0.1,
                        peak_allocated_bytes=teacher + (64 << 20) + rank)
             for rank in range(2)]  # fmt: skip
    told = with_prediction(told.model_copy(update={"ranks": ranks}), launched.plan, PredictedAgain())
    assert wants_rehearsal(told)
    said: list[str] = []
    again = LaunchRehearsals().of_job(launched, told, said.append)
    assert (again.by, again.why_not) == ("rehearsal", None)
    assert "describes a bare training loop" in said[0] and "Ctrl-C skips it" in said[0]
    compared = with_prediction(told, launched.plan, again).predicted_vs_measured
    assert compared is not None and compared.peak_bytes is not None and compared.step_seconds is not None
    assert (compared.predicted_for, compared.predicted_by) == ("what ran", "rehearsal")
    assert teacher < compared.peak_bytes.predicted < 1.2 * teacher
    loop = compared.bare_loop
    assert loop is not None and loop.peak_bytes is not None and loop.step_seconds is not None
    assert loop.peak_bytes.predicted < teacher / 2
    # both have a step time, and the report's is the rehearsal's
    assert compared.step_seconds.predicted and loop.step_seconds.predicted
    assert compared.step_seconds.predicted != loop.step_seconds.predicted


def test_what_was_rehearsed_before_the_start_predicts_the_run_and_is_not_rehearsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the plan predicts, and for all ranks; with no plan at all, too."""
    teacher, folder = 2 * 16384**2, planned(tmp_path / "plan", seq_len=128)
    launched, told = other_job(tmp_path, folder)
    gpu = Devices(kind="cuda", ranks=2, gpu_indexes=(0, 1), why="")
    on_gpu = LaunchCommand(argv=[], set_variables={"ZEROKIT_DEVICE": "cuda"}, unset_variables=[], files={})
    launched = replace(launched, placement=Placement(devices=gpu, port=29500), command=on_gpu)
    said: list[str] = []
    rehearsals = LaunchRehearsals(before_seconds=600)
    launched = rehearsals.before(launched, said.append)
    assert teacher < (launched.predicted_peak_bytes or 0) < 1.2 * teacher
    assert "before the start, 600 s at most" in said[0] and said[1].startswith("rehearsed")
    monkeypatch.setattr("zerokit.rehearsal.of_launch.rehearse", None)
    engine = {"zero_stage": 2, "micro_batch": 2, "batch_rows": 2, "batch_columns": 128, "engines": 1}
    ranks = [RankReport(rank=rank, host="here", state="finished", device="cuda", engine=engine, steps=6,
                        phases={"backward": teacher + (64 << 20)}, median_step_seconds=0.1,
                        peak_allocated_bytes=teacher + (64 << 20) + rank)
             for rank in range(2)]  # fmt: skip
    run = told.model_copy(update={"ranks": ranks, "predicted_vs_measured": None})
    for plan in (launched.plan, None):
        without = replace(launched, plan=plan)
        again = rehearsals.of_job(without, run, said.append)
        compared = with_prediction(run, plan, again).predicted_vs_measured
        assert compared is not None and compared.predicted_by == "rehearsal"
        assert all(pair.predicted == launched.predicted_peak_bytes for pair in compared.per_rank)
        assert (compared.bare_loop is not None) == (plan is not None)
    found = rehearsals.of_oom(launched, report(), said.append)
    assert found is not None and found.peak_allocated_bytes == launched.predicted_peak_bytes
    assert len([line for line in said if with_level(line) == line]) == 2


ASKS = """
import torch; print("asks")
from accelerate import Accelerator, DeepSpeedPlugin
plugin = DeepSpeedPlugin(zero_stage=3)
accelerator = Accelerator(gradient_accumulation_steps=2, deepspeed_plugin=plugin)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.randn(64, 64), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for row in data:
    with accelerator.accumulate(model):
        accelerator.backward(model(row.bfloat16()).float().pow(2).mean())
        accelerator.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_what_the_code_asks_accelerate_for_is_held_to_the_plan(tmp_path: Path, plan_folder: Path) -> None:
    """The plan's file wins there without a word."""
    script = tmp_path / "asks.py"
    script.write_text(ASKS)
    launched, _ = other_job(tmp_path, plan_folder, style="accelerate")
    on_gpu = LaunchCommand(argv=[], set_variables={"ZEROKIT_DEVICE": "cuda"}, unset_variables=[], files={})
    options = replace(launched.options, target=Target(script=str(script), module=None, arguments=()))
    launched = replace(launched, command=on_gpu, held_to=launched.plan, options=options)
    rehearsals = LaunchRehearsals(before_seconds=600)
    said: list[str] = []
    with pytest.raises(InputError) as refused:
        rehearsals.before(launched, said.append)
    assert "asks.py:4: DeepSpeedPlugin(zero_stage=3), but the plan has ZeRO stage 2" in str(refused.value)
    assert "gradient_accumulation_steps=2), but the plan has gradient accumulation 1" in str(refused.value)
    rehearsals.before(replace(launched, options=replace(options, accept_mismatch=True)), said.append)
    assert any("clip_grad_norm_(0.01) does nothing under DeepSpeed" in line for line in said)
    assert any("zero_stage=3), and the run had ZeRO stage 2" in line for line in said)


def test_a_script_that_does_not_what_its_plan_says_is_not_started(tmp_path: Path, plan_folder: Path) -> None:
    """What its code computes, no reading of it tells; a length is the job's matter, a batch the plan's."""
    script = tmp_path / "train.py"
    text = (SCRIPTS / "teacher.py").read_text()
    script.write_text(text.replace("rows = engine.train_micro_batch_size_per_gpu()", "rows = 2 * 2"))
    launched, _ = other_job(tmp_path, plan_folder)
    on_gpu = LaunchCommand(argv=[], set_variables={"ZEROKIT_DEVICE": "cuda"}, unset_variables=[], files={})
    options = replace(launched.options, target=Target(script=str(script), module=None, arguments=()))
    launched = replace(
        launched, command=on_gpu, held_to=launched.plan, options=options,
        plan_file=plan_folder / "plan.yaml",
    )  # fmt: skip
    said: list[str] = []
    rehearsals = LaunchRehearsals(before_seconds=600)
    with pytest.raises(InputError) as refused:
        rehearsals.before(launched, said.append)
    assert "as rehearsed: batch size per GPU 4 ran, not 2; change it, plan again" in str(refused.value)
    assert "plan.yaml --micro-batch 4" in str(refused.value)
    assert "warning: as rehearsed, sequence length 128 ran, not 64" in map(with_level, said)
    accepted = replace(launched, options=replace(options, accept_mismatch=True))
    rehearsals.before(accepted, said.append)
    assert "warning: as rehearsed, batch size per GPU 4 ran, not 2" in map(with_level, said)
    unknown = replace(options, target=replace(options.target, arguments=("--epochs", "3")))
    with pytest.raises(InputError, match=r"--epochs 3.*no_rehearsal=True starts the launch"):
        rehearsals.before(replace(launched, options=unknown), said.append)


def test_what_keeps_a_rehearsal_off_is_told_with_the_command_that_makes_it(
    tmp_path: Path, plan_folder: Path
) -> None:
    job = other_job(
        tmp_path, plan_folder, "--use_cpu", "True", "--hub_token", "hf_0123456789", style="trainer"
    )
    none = LaunchRehearsals(seconds=0).of_job(*job, lambda line: None)
    assert none.plan is None and "--rehearsal-seconds is 0" in (none.why_not or "")
    assert (none.command or "").startswith(
        f"zerokit rehearse --plan {plan_folder} --gpu h200 --rank 1 --gpus 2"
    )
    assert (none.command or "").endswith(
        "teacher.py --hub_token '<redacted>'"
    )  # on the GPU that it rehearses
    short = LaunchRehearsals(seconds=0.05, no_cache=True).of_job(*job, lambda line: None)
    assert short.why_not == ("its rehearsal, which simulates a GPU, stopped: it did not end within 0.05 s")
    assert short.command == none.command  # by hand it has no such limit


def test_a_rehearsal_that_stopped_is_not_advised_again(
    tmp_path: Path, plan_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command would stop at the same line; on CPU ranks it is told that a GPU is simulated."""
    stop = Stop(location="train.py:9", operator="", reason="cuda:0 and cpu")
    stopped = SimpleNamespace(stopped=stop, complete=False, ranks=[None])
    monkeypatch.setattr("zerokit.rehearsal.of_launch.rehearse", lambda request: stopped)
    again = LaunchRehearsals().of_job(*other_job(tmp_path, plan_folder), lambda line: None)
    assert again.command is None
    assert again.why_not == "its rehearsal, which simulates a GPU, stopped: train.py:9: cuda:0 and cpu"
