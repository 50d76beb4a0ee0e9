"""What tuning measured: kept strictly, used where it carries over, said, and left alone when told so."""

from __future__ import annotations

import json
import math
import multiprocessing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.requests import request_for
from zerokit.cli import run
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, Strategy, TimeEstimate
from zerokit.machine import tuned
from zerokit.search.plan import make_plan, make_space, time_model
from zerokit.search.space import Request
from zerokit.timing.calibration import FEWEST_JOBS, Observation, calibrate, job_key, observe
from zerokit.timing.constants import Calibration

JOB = {"model": "gpt2", "device": "cpu", "gpus": "2", "seq-len": "128", "host-ram": "32GiB",
       "global-batch": "8", "precision": "fp32"}  # fmt: skip


def tune(request: Request, slowness: list[float], at: str = "2026-01-01T00:00:00") -> list[Observation]:
    """Observations of the request's best plans, each slower than predicted by its factor."""
    plan = make_plan(request, top=len(slowness))
    ran = [
        (candidate.strategy, candidate.time.step_seconds * factor)
        for candidate, factor in zip((plan.chosen, *plan.alternatives), slowness, strict=True)
    ]
    return observed(request, ran, at)


def observed(request: Request, ran: list[tuple[Strategy, float]], at: str) -> list[Observation]:
    job = make_space(request)[0].job

    def estimate(strategy: Strategy, calibration: Calibration) -> TimeEstimate:
        return time_model(replace(request, calibration=calibration), job).estimate(strategy)

    return observe(request.shape, job, request.cluster, ran, estimate, Calibration(), at)


def calibrated(request: Request, observations: list[Observation]) -> Request:
    found, _ = calibrate(Calibration(), observations, request.shape, request.job, request.cluster)
    return replace(request, calibration=found)


def named(candidate: Candidate) -> tuple[object, ...]:
    return candidate.strategy.family


def test_the_measured_fastest_is_planned_with_its_measured_time() -> None:
    request = request_for(job=Job(seq_len=2048, global_batch=64))
    before = make_plan(request, top=3)
    observations = tune(request, [1.6, 1.5, 1.2])
    after = make_plan(calibrated(request, observations), top=3)
    third = before.alternatives[1]
    assert named(after.chosen) == named(third)
    assert after.chosen.time.step_seconds == pytest.approx(1.2 * third.time.step_seconds)
    # those never tried are no faster than the tried ones' mean makes them
    untried = [
        c
        for c in (after.chosen, *after.alternatives)
        if named(c) not in {o.strategy_key for o in observations}
    ]
    plain = time_model(request, make_space(request)[0].job)
    for candidate in untried:
        ratio = candidate.time.step_seconds / plain.estimate(candidate.strategy).step_seconds
        assert ratio == pytest.approx((1.6 * 1.5 * 1.2) ** (1 / 3))


@pytest.mark.parametrize(
    "other",
    [
        request_for(count=4),
        request_for(gpu="a100-80gb"),
        request_for("llama-3.2-1b"),
        request_for(job=Job(seq_len=4096)),
        request_for(job=Job(seq_len=2048, attention="flash_attention_2")),
    ],
)
def test_one_job_tells_nothing_of_another(other: Request) -> None:
    observations = tune(request_for(), [2.0, 2.0])
    found, used = calibrate(Calibration(), observations, other.shape, other.job, other.cluster)
    assert used == () and found == Calibration()


def test_layers_of_enough_jobs_carry_over_to_their_width_and_to_no_other() -> None:
    jobs = [(count, length) for count in (2, 4, 8) for length in (1024, 2048, 4096)]
    observations: list[Observation] = []
    for number, (count, length) in enumerate(jobs[:FEWEST_JOBS], 1):
        observations += tune(request_for(count=count, job=Job(seq_len=length, global_batch=64)), [1.5, 1.5])
        new = request_for(count=16, nodes=2, job=Job(seq_len=2048, global_batch=128))
        found, used = calibrate(Calibration(), observations, new.shape, new.job, new.cluster)
        assert bool(used) is (number == FEWEST_JOBS)
    assert found.layer_factors and found.tuned is None
    assert all(factor.factor > 1.2 for factor in found.layer_factors)
    plain, calibrated = (make_plan(replace(new, calibration=c)).chosen.time for c in (Calibration(), found))
    assert calibrated.step_seconds > 1.1 * plain.step_seconds
    other = request_for("llama-3.2-1b", count=16, nodes=2)
    assert calibrate(Calibration(), observations, other.shape, other.job, other.cluster)[1] == ()


def test_the_layer_factors_of_a_job_give_back_its_measured_times() -> None:
    request = request_for(job=Job(seq_len=2048, global_batch=64))
    observations = tune(request, [1.3, 1.3, 1.3])
    assert any(observation.layer_factor for observation in observations)
    assert observations[0].job_key == job_key(request.shape, request.job)
    for observation in observations:
        assert observation.layer_factor is None or 1.2 < observation.layer_factor < 1.9


# -------------------------------------------------------------------------------- the file


@pytest.fixture
def observations() -> list[Observation]:
    return tune(request_for(), [1.1, 1.2])


def test_what_was_kept_is_read_back(tmp_path: Path, observations: list[Observation]) -> None:
    path = tmp_path / "deep" / "host.json"
    assert tuned.load(path) == ((), None)
    tuned.save(observations, path)
    assert tuned.load(path) == (tuple(observations), None)
    newer = replace(observations[0], measured_step_seconds=9.0, measured_at="2027-01-01T00:00:00")
    tuned.save([newer], path)
    kept, _ = tuned.load(path)
    assert len(kept) == 2 and newer in kept and observations[0] not in kept


def damage(change: Any) -> Any:
    def apply(path: Path) -> None:
        body = json.loads(path.read_text())
        change(body)
        path.write_text(json.dumps(body))

    return apply


DAMAGES = {
    "cut": lambda path: path.write_text(path.read_text()[:-40]),
    "binary": lambda path: path.write_bytes(b"\xff\x00" * 10),
    "empty": lambda path: path.write_text(""),
    "a list": lambda path: path.write_text("[]"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "not a number": damage(lambda body: body["observations"][0].update(measured_step_seconds=math.nan)),
    "schema": damage(lambda body: body.update(schema="zerokit.tuned/2")),
    "version": damage(lambda body: body.update(zerokit="0.0.1")),
    "unknown key": damage(lambda body: body.update(more=1)),
    "unknown field": damage(lambda body: body["observations"][0].update(more=1)),
    "missing field": damage(lambda body: body["observations"][0].pop("tokens")),
    "negative": damage(lambda body: body["observations"][0].update(measured_step_seconds=-1.0)),
    "zero": damage(lambda body: body["observations"][0].update(predicted_step_seconds=0)),
    "text": damage(lambda body: body["observations"][1].update(gpus="8")),
    "truth": damage(lambda body: body["observations"][1].update(micro_batch=True)),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_a_warning_and_is_put_aside_by_the_next_tune(
    kind: str, tmp_path: Path, observations: list[Observation]
) -> None:
    path = tmp_path / "host.json"
    tuned.save(observations, path)
    DAMAGES[kind](path)
    bad = path.read_bytes()
    found, warning = tuned.load(path)
    assert found == () and warning is not None and warning.level == "warning"
    assert warning.startswith(f"{path} ") and "is not used" in warning and len(warning) < 400
    _, note = tuned.save(observations, path)
    assert note is not None and "put aside" in note
    assert tuned.load(path) == (tuple(observations), None)
    assert (tmp_path / "host.unusable.json").read_bytes() == bad


def _save_one(path: str, number: int) -> None:
    body = asdict(tune(request_for(), [1.5])[0])
    tuned.save([Observation(**{**body, "micro_batch": number + 1})], Path(path))


def test_tunes_that_end_together_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    workers = [multiprocessing.Process(target=_save_one, args=(str(path), number)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sorted(entry.micro_batch for entry in tuned.load(path)[0]) == [1, 2, 3, 4, 5, 6]


# -------------------------------------------------------------------------------- zerokit plan


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def plan(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    given = [part for name, value in JOB.items() for part in (f"--{name}", value)]
    code = run(["plan", *given, "--json", *options])
    out, err = capsys.readouterr()
    assert code == 0, err
    body: dict[str, Any] = json.loads(out)
    return body


def degrees(strategy: dict[str, Any]) -> tuple[Any, ...]:
    return strategy["zero_stage"], strategy["micro_batch"], strategy["activation_checkpointing"]


def keep(strategies: list[dict[str, Any]], seconds: list[float]) -> None:
    """As ``zerokit tune`` would keep them for the plans of :func:`plan`."""
    from zerokit.planner.request import resolve

    request = resolve({name.replace("-", "_"): value for name, value in JOB.items()}).request
    plan = make_plan(request, top=20)
    known = {
        (
            c.strategy.settings.zero.stage,
            c.strategy.settings.micro_batch,
            c.strategy.checkpointing,
        ): c.strategy
        for c in (plan.chosen, *plan.alternatives)
    }
    ran = [(known[degrees(strategy)], time) for strategy, time in zip(strategies, seconds, strict=True)]
    tuned.save(observed(request, ran, "2026-05-05T10:00:00"))


def test_a_later_plan_uses_what_was_tuned_says_so_and_can_be_told_not_to(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = plan(capsys, "--top", "4")
    tried = [first["chosen"], *first["alternatives"][:2]]
    keep(tried, [0.9, 0.8, 0.3])
    second = plan(capsys)
    assert degrees(second["chosen"]) == degrees(tried[2]) != degrees(first["chosen"])
    note = next(note for note in second["assumptions"] if "tuned here" in note)
    assert "3 strategies of this job" in note and "--no-calibration" in note and "2026-05-05" in note
    ignored = plan(capsys, "--no-calibration")
    assert degrees(ignored["chosen"]) == degrees(first["chosen"])
    assert not any("tuned here" in note for note in ignored["assumptions"])
    # another number of ranks is another machine to it
    assert not any("tuned here" in note for note in plan(capsys, "--gpus", "4")["assumptions"])


def test_a_plan_beside_a_damaged_file_warns_and_goes_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = plan(capsys)
    keep([first["chosen"]], [0.5])
    tuned.path().write_text('{"schema": "zerokit.tuned/1", "observations": [{}]}')
    second = plan(capsys)
    assert any(note["level"] == "warning" and "is not used" in note["text"] for note in second["notes"])
    assert degrees(second["chosen"]) == degrees(first["chosen"])


def test_doctor_tells_of_tuned_step_times(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep([plan(capsys)["chosen"]], [0.5])
    assert run(["doctor"]) == 0
    assert "Tuned step times: 1, of 1 job" in capsys.readouterr().out
    tuned.path().write_text("{}")
    assert run(["doctor", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["tuned"]["step_times"] == 0 and "is not used" in body["tuned"]["warning"]
