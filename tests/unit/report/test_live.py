"""Alarms of a run that lives, and its figures as OpenMetrics."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from zerokit.cli import run
from zerokit.report.live import alarms, live_view, openmetrics
from zerokit.report.schema import RunReport

GIB = 1 << 30


def report(*ranks: dict[str, Any], **more: Any) -> RunReport:
    plain = {"host": "node-0", "state": "running", "steps": 10, "median_step_seconds": 1.0, "device": "cuda",
             "peak_allocated_bytes": 30 * GIB, "peak_device_used_bytes": 34 * GIB,
             "device_total_bytes": 80 * GIB, "peak_host_rss_bytes": 4 * GIB,
             "phases": {"backward": 30 * GIB}}  # fmt: skip
    body = {"schema": "zerokit.report/1", "outcome": "running", "exit_code": 0, **more}
    return RunReport.model_validate(
        {**body, "ranks": [{"rank": n, **plain, **rank} for n, rank in enumerate(ranks)]}
    )


def test_a_run_that_does_well_has_none() -> None:
    assert alarms(report({}, {}, {"steps": 9}), 64 * GIB) == []


LEAK = {
    "memory": "gpu",
    "bytes_per_step": 3 * (1 << 20),
    "growth_bytes": GIB,
    "first_step": 5,
    "last_step": 10,
}


@pytest.mark.parametrize(
    ("ranks", "more", "said"),
    [
        ([{}, {"steps": 7}], {}, "rank 1 on node-0 is 3 optimizer steps behind"),
        ([{}, {}, {"median_step_seconds": 1.5}], {}, "rank 2 takes 1.5 times the median step time"),
        ([{"peak_device_used_bytes": 79 * GIB}], {}, "79.0 GiB of the card's 80.0 GiB are in use"),
        ([{"alloc_retries": 4}], {}, "retried 4 times"),
        ([{"leaks": [LEAK]}], {}, "GPU memory grows by 3.0 MiB a step"),
        ([{"peak_host_rss_bytes": 40 * GIB}, {"peak_host_rss_bytes": 22 * GIB}], {}, "62.0 GiB of 64.0 GiB"),
        (
            [{}],
            {
                "notes": [
                    {"id": "steps-skipped", "level": "error", "topic": "training", "text": "all were skipped"}
                ]
            },
            "skipped",
        ),
    ],
)
def test_each_alarm(ranks: list[dict[str, Any]], more: dict[str, Any], said: str) -> None:
    found = alarms(report(*ranks, **more), 64 * GIB)
    assert len(found) == 1 and said in found[0].text


@pytest.mark.parametrize(
    ("steps", "step_seconds", "recorded_earlier", "is_behind"),
    [
        (2, 0.15, 0.3, False),  # a synchronous run whose ranks write at different times
        (5, 0.15, 0.0, False),  # within two records of 0.4 s
        (8, 0.15, 0.3, False),
        (9, 0.15, 0.3, True),
        (2, 10.0, 0.4, True),  # no record is that late
        (2, None, 0.4, True),
        (8, 1.0, 5.0, True),
        (60, 0.15, 3600.0, False),  # is as far as its peers were then
        (80, 0.15, 3600.0, True),  # has recorded nothing for long
    ],
)
def test_what_the_times_of_records_explain_is_not_behind(
    steps: int, step_seconds: float | None, recorded_earlier: float, is_behind: bool
) -> None:
    known = {"median_step_seconds": step_seconds}
    first = {**known, "steps": 100, "last_heard_at": 5000.0}
    second = {**known, "steps": 100 - steps, "last_heard_at": 5000.0 - recorded_earlier}
    for ranks in ((first, second), (second, first)):
        found = alarms(report(*ranks), recorded_every_seconds=0.4)
        assert [alarm.text for alarm in found] == (
            [f"rank {ranks.index(second)} on node-0 is {steps} optimizer steps behind"] if is_behind else []
        )


def test_the_metrics_are_what_the_specification_says() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    run_ = report({"host": 'a"b\\c'}, {"peak_allocated_bytes": None, "device": None})
    families = {family.name: family for family in parser.text_string_to_metric_families(openmetrics(run_, 1))}
    allocated = families["zerokit_peak_allocated_bytes"]
    assert allocated.unit == "bytes"
    assert [(sample.labels["rank"], sample.value) for sample in allocated.samples] == [("0", 30 * GIB)]
    assert allocated.samples[0].labels["host"] == 'a"b\\c'
    assert families["zerokit_optimizer_steps"].type == "counter"
    assert families["zerokit_alarms"].samples[0].value == 1


def test_a_run_is_watched_until_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = report({"state": "finished", "alloc_retries": 2}, outcome="ok").to_dict()
    (tmp_path / "report.json").write_text(json.dumps(ended))
    assert run(["watch", str(tmp_path), "--metrics", str(tmp_path / "m.prom")]) == 0
    shown, said = capsys.readouterr()
    out = shown.splitlines()
    assert said == "zerokit: the run has ended\n"
    assert out == ["ALARM rank 0: the allocator ran full and retried 2 times", "ok: 1 rank, step 10"]
    assert (tmp_path / "m.prom").read_text().endswith("# EOF\n")
    assert run(["watch", str(tmp_path / "none")]) == 2
    assert run(["watch", str(tmp_path), "--every", "0"]) == 2


def test_a_pipe_gets_one_line_for_each_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever figures it has by the next look."""

    def write(retries: int, outcome: str = "running") -> None:
        ranks = [{"alloc_retries": retries, "state": "running"}, {"steps": 10 - 3 * retries}]
        (tmp_path / "new").write_text(json.dumps(report(*ranks, outcome=outcome).to_dict()))
        (tmp_path / "new").rename(tmp_path / "report.json")

    def train() -> None:
        for retries, outcome in ((2, "running"), (3, "running"), (3, "ok")):
            time.sleep(0.5)
            write(retries, outcome)

    write(1)
    training = threading.Thread(target=train)
    training.start()
    assert run(["watch", str(tmp_path), "--every", "0.2"]) == 0
    training.join()
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if "retried" in line] == [
        "ALARM rank 0: the allocator ran full and retried once"
    ]
    assert [line for line in out if "behind" in line] == [
        "ALARM rank 1 on node-0 is 3 optimizer steps behind"
    ]


def test_a_look_has_the_table_and_the_alarms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report({"alloc_retries": 2}, {}).to_dict()))
    assert run(["watch", str(tmp_path), "--once"]) == 0
    shown, said = capsys.readouterr()
    assert shown.startswith("ALARM rank 0: the allocator ran full and retried 2 times\n")
    assert "Peak memory by rank" in shown and said == "zerokit: the run is still in progress\n"


@pytest.mark.parametrize("number", [1, 2, 4, 8, 64, 1000])
@pytest.mark.parametrize("height", [24, 50])
def test_alarms_are_seen_however_many_ranks_there_are(number: int, height: int) -> None:
    ranks: list[dict[str, Any]] = [{} for _ in range(number)]
    ranks[-1] = {"alloc_retries": 3, "peak_allocated_bytes": 20 * GIB}
    living = report(*ranks)
    console = Console(width=80, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    view = live_view(living, alarms(living), console)
    lines = "".join(segment.text for segment in console.render(view)).splitlines()
    assert len(lines) < height and max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert f"ALARM rank {number - 1}: the allocator ran full" in lines[0]
    assert "Outcome: " in text and "20.00" in text and "…" not in text
    rows = [line for line in lines if "running" in line and "Outcome" not in line]
    assert len(rows) == number or f"and {number - len(rows)} more ranks" in text


def test_problems_without_a_rank_leave_the_outcome() -> None:
    living = report(problems=[f"rank-{number:05d}.jsonl cannot be read" for number in range(30)])
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True, color_system=None)
    lines = "".join(segment.text for segment in console.render(live_view(living, [], console))).splitlines()
    assert len(lines) < 24 and "Outcome: " in lines[-1]


def test_many_alarms_leave_room_for_the_ranks() -> None:
    living = report(*({"alloc_retries": 1} for _ in range(64)))
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True, color_system=None)
    lines = "".join(
        segment.text for segment in console.render(live_view(living, alarms(living), console))
    ).splitlines()
    assert len(lines) < 24 and sum(line.startswith("ALARM ") for line in lines) == 8
    assert "and 56 more alarms" in lines and any("step time" in line for line in lines)
