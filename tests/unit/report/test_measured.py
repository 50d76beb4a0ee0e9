"""What is live at the peak of each phase, by what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests.support import reports
from tests.support.run_reports import GIB, MIB, gpu_phase, report_of, shown, write_rank
from zerokit.launcher.verdict.report import with_prediction
from zerokit.report import measured
from zerokit.report.html import render_html
from zerokit.report.measured import LONGEST, short_hosts, wants_rehearsal
from zerokit.report.predicted import PredictedAgain
from zerokit.report.schema import Difference, Predicted, RunReport
from zerokit.report.words import difference_lines


@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_components_sum_to_the_peak_of_their_phase(zero, checkpointing):
    found = zerokit.estimate(
        model="llama-3.2-1b", gpus=4, gpu="h200", zero=zero, micro_batch=2, checkpointing=checkpointing
    )
    worst = found.worst_rank
    by_phase = found.components_by_phase
    assert {phase: sum(parts.values()) for phase, parts in by_phase.items()} == worst.phases
    assert by_phase[worst.peak_phase] == worst.components
    # the activations are gone when the optimizer steps, and its states are there before the first forward
    assert "activations" not in by_phase["step"] and by_phase["forward"]["optimizer_states"] > 0


def test_the_largest_have_colours_of_their_own_and_the_rest_share_one():
    phases = {"forward": {f"part {n}": 10 - n for n in range(9)}, "step": {"part 8": 99, "part 0": 1}}
    styles = measured.styles(phases)
    assert styles["part 8"] == "c0" and len(styles) == 6
    shown = measured.stacked(phases["forward"], styles)
    assert sum(size for _, size, _ in shown) == sum(phases["forward"].values())
    assert shown[-1][0] == "predicted: others" and shown[-1][2] == "c6"
    assert len(measured.stacked(phases["step"], styles)) == 2


def test_domains_go_where_the_rest_differs() -> None:
    assert short_hosts(["a.x.org", "b.x.org"]) == {"a.x.org": "a", "b.x.org": "b"}
    assert short_hosts(["a.x.org", "a.y.org"]) == {"a.x.org": "a.x.org", "a.y.org": "a.y.org"}
    assert short_hosts(["10.0.0.1", "10.0.0.2"]) == {"10.0.0.1": "10.0.0.1", "10.0.0.2": "10.0.0.2"}
    assert short_hosts(["10.0.0.1"]) == {"10.0.0.1": "10.0.0.1"}
    assert short_hosts([]) == {} and short_hosts(["", "b"]) == {"": "", "b": "b"}


def test_of_a_long_name_the_end_stays() -> None:
    hosts = [f"a-very-long-name-of-a-node-in-a-cluster-{number:04d}" for number in range(20)]
    shown = short_hosts(hosts)
    assert len(set(shown.values())) == 20
    assert all(len(name) == LONGEST and name.startswith("…") for name in shown.values())
    assert shown[hosts[7]].endswith("-0007")


# TRL's SFT (its loss in chunks) with 407M parameters on one H200, and its plan with all logits at once
PLANNED = {"init": 7331015168, "forward": 16735132200, "backward": 17979726344, "step": 9841795584}
MEASURED = {"init": 7331016704, "forward": 10788623872, "backward": 11738741248, "step": 9841905664}
WHY_NOT = PredictedAgain(
    why_not="its rehearsal was interrupted", command="zerokit rehearse -m trl.scripts.sft"
)


def plan_of(phases: dict[str, int], step_seconds: float = 0.0902, **chosen: Any) -> dict[str, Any]:
    peak = max(phases.values())
    entry = {"rank": 0, "peak_allocated_bytes": peak, "peak_phase": "backward", "phases": phases}
    estimate = {
        "basis": "traced", "peak_allocated_bytes": peak, "step_seconds": step_seconds, "per_rank": [entry],
    }  # fmt: skip
    return {"chosen": {"estimate": estimate, **chosen}}


def run(
    folder: Path, plan: dict[str, Any], phases: dict[str, int], predict_again: Any = None, **more: Any
) -> RunReport:
    """The report of one rank on a GPU that took these peaks."""
    peaks = {name: gpu_phase(size) for name, size in phases.items()}
    peak = max(phases.values())
    write_rank(folder, 0, peak=peak, phases=peaks, median_step_seconds=0.1275, **more)
    return RunReport.model_validate(reports.report_of(folder, 1, plan=plan, predict_again=predict_again))


def rehearsal(phases: dict[str, int]) -> PredictedAgain:
    plan = plan_of(phases, 0.121)
    return PredictedAgain(by="rehearsal", plan=plan, note="rehearsed: rank 0, 3 optimizer steps")


def test_a_rehearsal_takes_the_place_of_a_plan_that_was_made_without_the_script(tmp_path: Path) -> None:
    plan = plan_of(PLANNED)
    before = run(tmp_path, plan, MEASURED)
    assert wants_rehearsal(before)
    report = with_prediction(before, plan, rehearsal(MEASURED))
    compared = report.predicted_vs_measured
    assert compared is not None and compared.peak_bytes is not None and compared.step_seconds is not None
    assert (compared.predicted_for, compared.predicted_by) == ("what ran", "rehearsal")
    assert compared.peak_bytes.error_fraction == 0 and compared.step_seconds.predicted == 0.121
    loop = compared.bare_loop
    assert loop is not None and loop.peak_bytes is not None and loop.step_seconds is not None
    assert loop.peak_bytes.error_fraction == pytest.approx(0.5317, abs=1e-4)
    assert loop.step_seconds.predicted == 0.0902 and set(loop.phases) == set(PLANNED)
    assert compared.not_predicted is None
    for text in (shown(report.to_dict()), render_html(report)):
        assert "not rehearsed with this script, and describes a bare training loop" in text
        assert "the script allocates otherwise" in text
        assert "peak 16.74 GiB, measured 10.93 GiB (+53.2 %)" in text
        assert "forward 15.59 GiB" in text and "init 6.83 GiB, measured" not in text  # that one was right
        assert "step time 90 ms, measured 128 ms (-29.3 %)" in text
        assert "rehearsed: rank 0, 3 optimizer steps" in text


@pytest.mark.parametrize(
    ("chosen", "is_said"),
    [({}, True), ({"rehearsed": {"command": ["train.py"]}}, False), ({"rehearsed_with": "other.py"}, False)],
)
def test_a_plan_without_the_script_says_so_where_it_was_right_too(
    tmp_path: Path, chosen: dict[str, Any], is_said: bool
) -> None:
    report = run(tmp_path, plan_of(MEASURED, **chosen), MEASURED)
    assert not wants_rehearsal(report)
    said = "predicted is a bare training loop, without what a script adds (padding masks, a loss of its own)"
    assert (said in " ".join(shown(report.to_dict(), width=80).split())) is is_said
    assert (said in render_html(report)) is is_said


def test_where_no_rehearsal_can_be_made_the_plan_stands_and_the_command_is_named(tmp_path: Path) -> None:
    plan = plan_of(PLANNED)
    report = with_prediction(run(tmp_path, plan, MEASURED), plan, WHY_NOT)
    compared = report.predicted_vs_measured
    assert compared is not None and compared.peak_bytes is not None
    assert (compared.predicted_for, compared.predicted_by) == ("plan", "plan")
    assert compared.peak_bytes.error_fraction == pytest.approx(0.5317, abs=1e-4)
    for text in (shown(report.to_dict()), render_html(report)):
        assert "describes a bare training loop: the script allocates otherwise" in text
        assert "the script was not predicted: its rehearsal was interrupted" in text
        assert "to predict it: zerokit rehearse -m trl.scripts.sft" in text


def test_a_rehearsal_that_is_off_too_explains_nothing(tmp_path: Path) -> None:
    plan = plan_of(PLANNED)
    text = shown(with_prediction(run(tmp_path, plan, MEASURED), plan, rehearsal(PLANNED)).to_dict())
    assert "the rehearsal is off by more than 5% too" in text and "allocates otherwise" not in text


def test_the_report_before_the_rehearsal_says_it_already(tmp_path: Path) -> None:
    """It is what is left where the launcher is killed meanwhile."""
    assert "describes a bare training loop, in closed form: the script allocates otherwise" in shown(
        run(tmp_path, _with_basis(plan_of(PLANNED), "analytic"), MEASURED).to_dict()
    )


def _with_basis(plan: dict[str, Any], basis: str) -> dict[str, Any]:
    plan["chosen"]["estimate"]["basis"] = basis
    return plan


def test_a_plan_of_another_command_is_named_as_such(tmp_path: Path) -> None:
    report = run(tmp_path, plan_of(PLANNED, rehearsed_with="dpo.py"), MEASURED)
    assert wants_rehearsal(report)
    assert "the plan was rehearsed with another command (dpo.py): the script allocates otherwise" in shown(
        report.to_dict()
    )


def test_another_job_than_the_rehearsed_ones_names_the_command_too() -> None:
    differing = Difference(what="model", planned="2", ran="3", text="the model has 3 parameters")
    lines = difference_lines(
        Predicted(kind="gpu_memory", rank=0, differences=[differing], predicted_for=None,
                  rehearsed_with="dpo.py: --model a, not b")
    )  # fmt: skip
    assert lines[1:] == [
        "  the model has 3 parameters",
        "  the plan was rehearsed with another command (dpo.py: --model a, not b)",
    ]


@pytest.mark.parametrize(
    ("planned", "is_off"),
    [
        (MEASURED, False),
        ({**MEASURED, "forward": MEASURED["forward"] + 600 * MIB}, True),  # a phase below the peak
        ({**MEASURED, "backward": MEASURED["backward"] + 500 * MIB}, False),  # under 5 %
        ({**MEASURED, "backward": MEASURED["backward"] - GIB}, True),  # too little as well as too much
        ({name: size // 100 for name, size in PLANNED.items()}, True),
    ],
)
def test_how_far_off_a_plan_is(tmp_path: Path, planned: dict[str, int], is_off: bool) -> None:
    assert wants_rehearsal(run(tmp_path, plan_of(planned), MEASURED)) is is_off


def test_a_small_model_is_within_256_mib_of_anything(tmp_path: Path) -> None:
    small = {name: size // 100 for name, size in MEASURED.items()}
    report = run(tmp_path, plan_of({name: 2 * size for name, size in small.items()}), small)
    assert not wants_rehearsal(report)


@pytest.mark.parametrize(
    ("planned", "ran", "compared"),
    [
        ("h100-sxm-80gb", "NVIDIA H100 80GB HBM3", True),
        ("rtx-4090", "NVIDIA H100 80GB HBM3", False),
        ("rtx-4090", "NVIDIA of next year", False),
        ("rtx-4090", None, True),  # a run of before the name was written down
    ],
)
def test_step_times_are_compared_between_equal_gpus_alone(
    tmp_path: Path, planned: str, ran: str | None, *, compared: bool
) -> None:
    plan = {**plan_of(MEASURED), "cluster": {"nodes": 1, "gpu": planned}}
    report = run(tmp_path, plan, MEASURED, device_name=ran, device_total_bytes=85_029_158_912)
    step = report.predicted_vs_measured and report.predicted_vs_measured.step_seconds
    assert step is not None and step.measured == 0.1275
    assert (step.error_fraction is not None, "-29.3 %" in shown(report.to_dict())) == (compared, compared)


def test_a_plan_of_this_command_a_failed_run_and_cpu_ranks_are_left_alone(tmp_path: Path) -> None:
    rehearsed = plan_of(PLANNED, rehearsed={"script": "sft.py", "command": "0"})
    assert not wants_rehearsal(run(tmp_path, rehearsed, MEASURED))
    failed = run(tmp_path, plan_of(PLANNED), MEASURED, state="failed", exit_code=1)
    assert failed.outcome == "rank_failed" and not wants_rehearsal(failed)
    write_rank(tmp_path, 0, on_gpu=False, peak_host_rss_bytes=40 * GIB)
    report = RunReport.model_validate(report_of(tmp_path, 1, plan_of(PLANNED)))
    assert report.predicted_vs_measured is not None and not wants_rehearsal(report)


def again_with(share: float) -> Any:
    """A prediction for what ran, of a bare loop: ``share`` of what was measured."""
    phases = {name: int(size * share) for name, size in MEASURED.items()}
    return lambda plan, _: PredictedAgain(
        plan={"chosen": {**plan["chosen"], "estimate": plan_of(phases)["chosen"]["estimate"]}}
    )


OTHER_BATCH = [{"type": "engine", "micro_batch": 8, "batch_rows": 8, "batch_columns": 1024}]


def test_no_bare_loop_stands_in_for_what_was_rehearsed(tmp_path: Path) -> None:
    """TRL's SFT on two H200s, longer rows than were rehearsed: its loss is in chunks, no bare loop's is."""
    plan = plan_of(PLANNED, micro_batch=2, rehearsed_with="sft.py: without --max_length 2048")
    report = run(tmp_path, plan, MEASURED, again_with(1), extra=OTHER_BATCH)
    assert report.predicted_vs_measured is not None
    assert report.predicted_vs_measured.predicted_for is None and wants_rehearsal(report)


@pytest.mark.parametrize(("share", "is_off"), [(1.04, False), (1.45, True), (0.6, True)])
def test_a_prediction_for_what_ran_that_is_far_off_wants_a_rehearsal(
    tmp_path: Path, share: float, is_off: bool
) -> None:
    plan = plan_of(PLANNED, micro_batch=2)
    report = run(tmp_path, plan, MEASURED, again_with(share), extra=OTHER_BATCH)
    assert report.outcome == "ok" and wants_rehearsal(report) is is_off
    kept = with_prediction(report, plan, WHY_NOT).predicted_vs_measured
    assert kept is not None and kept.peak_bytes is not None
    assert (kept.predicted_for, kept.predicted_by) == ("what ran", "estimate")
    assert kept.peak_bytes.error_fraction == pytest.approx(share - 1)
    assert difference_lines(kept)[-2:] == [
        "the script was not predicted: its rehearsal was interrupted",
        "to predict it: zerokit rehearse -m trl.scripts.sft",
    ]


def test_a_script_without_deepspeed_is_compared_with_its_rehearsal(tmp_path: Path) -> None:
    """TRL's SFT of Llama-3.2-1B on one H200 (10.33 GiB at its peak), which no plan is of."""
    took = {"load": 2471645184, "forward": 8493466910, "backward": 11091753472, "step": 9953411072}
    peaks = {name: gpu_phase(size) for name, size in took.items()}
    more = {"steps_counted_by": "optimizer", "engine": None, "engines": [], "median_step_seconds": 0.211}
    write_rank(tmp_path, 0, peak=max(took.values()), phases=peaks, **more)
    report = RunReport.model_validate(reports.report_of(tmp_path, 1, plan=plan_of(PLANNED)))
    assert report.predicted_vs_measured is None
    compared = with_prediction(report, None, rehearsal(took)).predicted_vs_measured
    assert compared is not None and compared.peak_bytes is not None
    assert compared.predicted_by == "rehearsal" and compared.peak_bytes.error_fraction == 0
