"""A report in the terminal, as a page, compared, and through ``zerokit report``."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.support import reports
from zerokit.cli import run as run_cli
from zerokit.errors import FileInputError, ReportNotWritten
from zerokit.launcher.rank_file import rank_file
from zerokit.launcher.verdict.rank_end import RankExit
from zerokit.launcher.verdict.report import write_report
from zerokit.report.compare import compare_reports
from zerokit.report.html import render_html, write_html
from zerokit.report.render import print_report
from zerokit.report.schema import RunReport, load_report

GIB = 1 << 30
MIB = 1 << 20


def gpu_phase(peak: int) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": peak,
        "peak_host_rss_bytes": GIB,
        "seconds": 1.0,
        "count": 3,
    }


def write_rank(
    folder: Path,
    rank: int,
    *,
    peak: int = 30 * GIB,
    on_gpu: bool = True,
    device: str | None = None,
    extra: list[Any] = (),
    **end: Any,
) -> None:
    phases = {
        name: gpu_phase(peak - cut * GIB)
        for name, cut in (("init", 10), ("forward", 3), ("backward", 0), ("step", 8))
    }
    if not on_gpu:
        for phase in phases.values():
            phase.update(peak_allocated_bytes=None, peak_reserved_bytes=None)
    known: dict[str, Any] = {
        "rank": rank,
        "pid": 100 + rank,
        "time": 1000.0,
        "uptime_seconds": 10.0,
        "phase": "other",
        "steps": 12,
        "micro_steps": 24,
        "peak_host_rss_bytes": 3 * GIB,
        "host_rss_bytes": 2 * GIB,
        "phases": phases,
        "baseline_host_rss_bytes": GIB,
        "median_step_seconds": 0.5,
    }
    if on_gpu:
        known.update(
            peak_allocated_bytes=peak,
            peak_reserved_bytes=peak + GIB,
            allocated_bytes=peak - GIB,
            reserved_bytes=peak,
            peak_device_used_bytes=peak + 2 * GIB,
            device_total_bytes=80 * GIB,
            alloc_retries=0,
        )
    records = [
        {
            "type": "start",
            "rank": rank,
            "host": f"node-{rank // 4}",
            "pid": 100 + rank,
            "world_size": 8,
            "device": device or ("cuda" if on_gpu else "cpu"),
            "script": "train.py",
            "time": 990.0,
        },
        *(
            {**known, "type": "tick", "uptime_seconds": float(second), "time": 990.0 + second}
            for second in range(9)
        ),
        *extra,
        {**known, "type": "end", "state": "finished", "exit_code": 0, "signal": None, "error": None, **end},
    ]
    rank_file(folder, rank).write_text("".join(json.dumps(record) + "\n" for record in records))


PLAN = {
    "chosen": {
        "estimate": {
            "peak_allocated_bytes": 31 * GIB,
            "min_vram_bytes": 36 * GIB,
            "step_seconds": 0.45,
            "per_rank": [
                {
                    "rank": 0,
                    "ranks": [0, 3],
                    "peak_allocated_bytes": 31 * GIB,
                    "peak_phase": "backward",
                    "phases": {"init": 20 * GIB, "forward": 27 * GIB, "backward": 31 * GIB, "step": 22 * GIB},
                    "components": {"parameters": 11 * GIB, "gradients": 20 * GIB},
                },
                {
                    "rank": 4,
                    "ranks": [4, 7],
                    "peak_allocated_bytes": 29 * GIB,
                    "phases": {},
                    "components": {},
                },
            ],
        },
    },
}


def report_of(folder: Path, ranks: int, plan: Any = PLAN, **more: Any) -> dict[str, Any]:
    return reports.report_of(folder, ranks, plan=plan, **more)


def shown(report: dict[str, Any]) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    print_report(report, console)
    return console.export_text()


def test_predicted_stands_beside_measured(tmp_path):
    for rank in range(8):
        write_rank(tmp_path, rank, peak=(30 + (rank == 2)) * GIB)
    report = report_of(tmp_path, 8)
    compared = report["predicted_vs_measured"]
    assert (compared["kind"], compared["rank"]) == ("gpu_memory", 2)
    assert compared["peak_bytes"] == {"predicted": 31 * GIB, "measured": 31 * GIB, "error_fraction": 0}
    assert compared["phases"]["forward"]["error_fraction"] == pytest.approx(-1 / 28)
    assert compared["step_seconds"]["error_fraction"] == pytest.approx(-0.1)
    assert [pair["predicted"] for pair in compared["per_rank"]] == [31 * GIB] * 4 + [29 * GIB] * 4
    assert report["ranks"][5]["predicted_peak_allocated_bytes"] == 29 * GIB
    assert report_of(tmp_path, 8, plan=PLAN["chosen"])["predicted_vs_measured"] == compared
    text = shown(report)
    (row,) = [line.split() for line in text.splitlines() if line.split()[:2] == ["2", "node-0"]]
    assert " ".join(row) == (
        "2 node-0 finished 31.00 GiB 31.00 GiB 32.00 GiB 33.00 GiB 0 3.00 GiB backward 12 500 ms"
    )
    assert "forward 27.00 GiB 28.00 GiB -3.6 %" in [" ".join(line.split()) for line in text.splitlines()]
    assert text.rstrip().endswith("Outcome: ok (every rank finished, 10.0 s; exit code 0)")


def test_on_cpu_ranks_host_memory_is_compared(tmp_path):
    for rank in range(2):
        write_rank(tmp_path, rank, on_gpu=False)
    plan = {
        "chosen": {
            "estimate": {
                "per_rank": [
                    {
                        "ranks": [0, 1],
                        "peak_allocated_bytes": GIB,
                        "phases": {"init": GIB // 4, "step": GIB // 2},
                    }
                ]
            }
        }
    }
    plan["chosen"]["estimate"]["step_seconds"] = 0.01  # of GPUs
    report = report_of(tmp_path, 2, plan)
    compared = report["predicted_vs_measured"]
    assert compared["kind"] == "host_memory"
    assert compared["step_seconds"] == {"predicted": None, "measured": 0.5, "error_fraction": None}
    assert compared["baseline_bytes"] == GIB
    assert compared["peak_bytes"]["predicted"] == 2 * GIB  # the plan's tensors and the process itself
    assert compared["phases"]["init"]["predicted"] == GIB + GIB // 4
    # what the backward's tensors freed may still be resident in the step: no prediction of that
    assert compared["phases"]["step"]["predicted"] is None and compared["phases"]["step"]["measured"]
    assert report["ranks"][0]["peak_allocated_bytes"] is None
    offloading = {**plan["chosen"], "offload_optimizer": "cpu", "data_parallel": 2}
    offloading["estimate"] = {**offloading["estimate"], "host_bytes_per_node": 6 * GIB}
    compared = report_of(tmp_path, 2, {"chosen": offloading})["predicted_vs_measured"]
    assert compared["peak_bytes"]["predicted"] == 5 * GIB  # and a half of what the node holds
    text = shown(report)
    assert "allocated" not in text.splitlines()[2] and "host memory" in text.splitlines()[2]


def test_a_cpu_rank_that_never_began_deepspeed_is_compared_with_nothing(tmp_path):
    write_rank(tmp_path, 0, on_gpu=False, baseline_host_rss_bytes=None)
    entry = {"rank": 0, "peak_allocated_bytes": GIB, "phases": {"init": GIB // 4}}
    report = report_of(tmp_path, 1, {"chosen": {"estimate": {"per_rank": [entry]}}})
    compared = report["predicted_vs_measured"]
    pairs = [compared["peak_bytes"], *compared["phases"].values()]
    assert [pair["predicted"] for pair in pairs] == [None] * len(pairs)


def test_without_a_plan_nothing_is_compared_and_the_phases_are_shown(tmp_path):
    write_rank(tmp_path, 0)
    report = report_of(tmp_path, 1, plan=None)
    assert report["predicted_vs_measured"] is None
    assert "backward   30.00 GiB" in shown(report)


OOM = {
    "type": "oom",
    "rank": 1,
    "pid": 101,
    "time": 998.0,
    "asked_bytes": 2 * GIB,
    "device_free_bytes": GIB,
    "allocated_bytes": 70 * GIB,
    "reserved_bytes": 76 * GIB,
    "fragmentation_bytes": 6 * GIB,
    "phase": "backward",
    "step": 3,
    "biggest_blocks": [{"bytes": 4 * GIB, "name": "lm_head.weight", "shape": [8, 4], "dtype": "bfloat16"}],
}
ERROR = {
    "type": "error",
    "rank": 1,
    "pid": 101,
    "time": 998.1,
    "phase": "backward",
    "step": 3,
    "out_of_memory": True,
    "memory": "gpu",
    "asked_bytes": 2 * GIB,
    "error": "OutOfMemoryError: CUDA out of memory.",
    "traceback": "Traceback …\nOutOfMemoryError: CUDA out of memory.",
}
BROKEN = {
    "type": "error",
    "rank": 0,
    "pid": 100,
    "time": 997.9,
    "phase": "backward",
    "step": 3,
    "error": "RuntimeError: Connection closed by peer",
    "traceback": "…",
}


def test_an_out_of_memory_is_explained_and_its_peers_are_terminated(tmp_path):
    write_rank(tmp_path, 0, extra=[BROKEN], state="failed", exit_code=1)
    write_rank(tmp_path, 1, extra=[OOM, ERROR], state="failed", exit_code=1)
    exits = [RankExit(rank=0, code=1, at=998.2), RankExit(rank=1, code=1, at=998.5)]
    report = report_of(tmp_path, 2, exits=exits)
    assert (report["outcome"], report["exit_code"]) == ("oom", 10)
    assert [rank["state"] for rank in report["ranks"]] == ["terminated", "failed"]
    assert report["first_failure"]["rank"] == 1
    text = shown(report)
    for line in (
        "First failure: rank 1 on node-0, in backward of step 3",
        "asked for 2.00 GiB; 1.00 GiB were free on the device",
        "allocated 70.00 GiB, reserved 76.00 GiB, of that fragmentation 6.00 GiB",
        "predicted peak 31.00 GiB, measured until then 30.00 GiB",
        "predicted at the peak: gradients 20.00 GiB",
        "live block 4.00 GiB lm_head.weight bfloat16 [8, 4]",
    ):
        assert line in text
    assert text.rstrip().endswith("OutOfMemoryError: CUDA out of memory.")


@pytest.mark.parametrize(
    ("exits", "stopped_at", "first", "states"),
    [
        # a killed rank goes before peers that noticed it sooner than the supervisor
        ([(1, None, 9, 998.0), (0, 1, None, 998.1)], None, 1, ["terminated", "failed"]),
        ([(1, None, 9, 998.0), (0, None, 15, 998.5)], 998.0, 1, ["terminated", "failed"]),
        ([(0, None, 11, 900.0), (1, None, 9, 998.0)], 900.0, 0, ["failed", "terminated"]),
    ],
)
def test_the_first_failure_wins(tmp_path, exits, stopped_at, first, states):
    for rank, code, _, _ in exits:
        broken = [{**BROKEN, "rank": rank, "pid": 100 + rank}] if code else []
        write_rank(tmp_path, rank, extra=broken)
        lines = rank_file(tmp_path, rank).read_text().splitlines(keepends=True)
        rank_file(tmp_path, rank).write_text("".join(lines[:-1]))  # no end
    seen = [RankExit(rank=rank, code=code, signal=number, at=at) for rank, code, number, at in exits]
    report = report_of(tmp_path, 2, exits=seen, stopped_at=stopped_at)
    assert report["first_failure"]["rank"] == first
    assert [rank["state"] for rank in report["ranks"]] == states
    assert report["exit_code"] == 10


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({}, ("rank_failed", 10)),
        ({"launcher_code": 0}, ("rank_failed", 10)),
        ({"interrupted_by": 15}, ("interrupted", 143)),
        ({"hung": "rank 0"}, ("hung", 11)),
        ({"launcher_lost": "gone", "stopped_at": 0.0}, ("launcher_lost", 12)),
    ],
)
def test_what_a_rank_says_of_itself_counts_as_its_process_does(tmp_path, seen, expected):
    write_rank(tmp_path, 0, state="failed", exit_code=3)
    report = report_of(tmp_path, 1, **seen)
    assert (report["outcome"], report["exit_code"]) == expected


def test_a_finished_script_whose_process_then_crashed_is_a_failure(tmp_path):
    write_rank(tmp_path, 0)
    report = report_of(tmp_path, 1, exits=[RankExit(rank=0, signal=6, at=999.0)])
    assert (report["outcome"], report["ranks"][0]["state"]) == ("rank_failed", "failed")
    assert "SIGABRT after its script had finished" in report["ranks"][0]["error"]


def test_warnings_name_leaks_retries_and_damage(tmp_path):
    leak = {
        "memory": "gpu",
        "bytes_per_step": 3 * MIB,
        "growth_bytes": 300 * MIB,
        "first_step": 11,
        "last_step": 111,
    }
    write_rank(tmp_path, 0, leaks=[leak], alloc_retries=4)
    with rank_file(tmp_path, 0).open("a") as file:
        file.write("{cut")
    text = shown(report_of(tmp_path, 1))
    assert (
        "rank 0: suspected leak of GPU memory: 3.00 MiB more after each step, 0.29 GiB in steps 11 to 111"
        in text
    )
    assert "the GPU is full in about 16,384 steps" in text  # (80 - 32) GiB at 3 MiB a step
    assert "retried 4 times" in text
    assert "rank-00000.jsonl:12: cut or damaged" in text


class Page(html.parser.HTMLParser):
    """Collects tags, and checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "polyline", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("polyline",):
            return
        assert self.open.pop() == tag


def test_the_page_is_self_contained_and_escapes_everything(tmp_path):
    evil = "<script>alert(1)</script>\x1b]0;x\x07\"'&"
    write_rank(
        tmp_path,
        0,
        extra=[{**ERROR, "rank": 0, "pid": 100, "traceback": evil, "error": evil}],
        state="failed",
        exit_code=1,
        phase=evil,
    )
    text = (
        rank_file(tmp_path, 0)
        .read_text()
        .replace("node-0", "<img src=x onerror=y>")
        .replace("train.py", "<b>")
    )
    rank_file(tmp_path, 0).write_text(text)
    report = report_of(tmp_path, 1)
    page = Page()
    source = render_html(report)
    page.feed(source)
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "b", "base", "form"}
    assert {"svg", "polyline", "table", "pre"} <= names
    for _, attributes in page.tags:
        assert not set(attributes) & {"src", "href", "onerror", "onload", "xlink:href", "action"}
    assert "http" not in source.replace("http-equiv", "")
    assert "&lt;script&gt;alert(1)" in source and "\x1b" not in source and "\x1b" not in shown(report)
    assert "prefers-color-scheme: dark" in source


def test_many_ranks_stay_readable(tmp_path):
    for rank in range(100):
        write_rank(tmp_path, rank, state="failed" if rank == 77 else "finished", exit_code=int(rank == 77))
    report = report_of(tmp_path, 100, plan=None)
    text = shown(report)
    assert len(text.splitlines()) < 100
    assert "36 more finished ranks in report.json" in text
    assert "failed" in text
    assert len(render_html(report)) < 200_000
    assert len(json.dumps(report)) < 1_000_000


def test_two_runs_compared(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder, peak in zip(folders, (30, 33), strict=True):
        folder.mkdir()
        write_rank(folder, 0, peak=peak * GIB)
    runs = [report_of(folder, 1) for folder in folders]
    compared = compare_reports(*runs)
    assert compared["figures"]["peak_allocated_bytes"]["change"] == 3 * GIB
    assert compared["phases"]["backward"]["change_fraction"] == pytest.approx(0.1)
    write_report(folders[0], RunReport.model_validate(runs[0]))
    write_report(folders[1], RunReport.model_validate(runs[1]))
    result = CliRunner().invoke(_command(), [str(folders[0]), str(folders[1] / "report.json"), "--json"])
    assert json.loads(result.stdout) == compared
    result = CliRunner().invoke(_command(), [str(folder) for folder in folders])
    assert "+10.0 %" in result.stdout


def _command() -> Any:
    from zerokit.cli.report import command

    return command


def test_the_command_shows_a_written_report_and_a_folder_without_one(tmp_path, capsys):
    write_rank(tmp_path, 0)
    assert run_cli(["report", str(tmp_path)]) == 0
    from_files = capsys.readouterr().out
    write_report(tmp_path, RunReport.model_validate(report_of(tmp_path, 1, plan=None)))
    (tmp_path / "rank-00000.jsonl").unlink()
    assert run_cli(["report", str(tmp_path)]) == 0
    assert "30.00 GiB" in capsys.readouterr().out
    assert "30.00 GiB" in from_files
    assert run_cli(["report", str(tmp_path), "--json"]) == 0
    RunReport.model_validate(json.loads(capsys.readouterr().out))
    assert run_cli(["report", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    (tmp_path / "link").symlink_to("x.html")
    assert run_cli(["report", str(tmp_path), "--html", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such run"),
        (b"", "is not JSON"),
        (b"{}", "is not a zerokit report"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (
            b'{"schema":"zerokit.report/1","outcome":"great","exit_code":0,"ranks":[]}',
            "outcome: Input should be",
        ),
        (b'{"schema":"zerokit.report/1","outcome":"ok","exit_code":0,"ranks":[{"rank":-1}]}', "ranks.0.rank"),
        (
            b'{"schema":"zerokit.report/1","outcome":"ok","exit_code":0,"ranks":[],"first_failure":7}',
            "first_failure",
        ),
        (
            b'{"schema":"zerokit.report/1","outcome":"ok","exit_code":0,"ranks":[],"elapsed_seconds":1e400}',
            "1e400 is no finite number",
        ),
    ],
)
def test_a_damaged_report_is_named_and_no_traceback(tmp_path, capsys, content, message):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)
    assert run_cli(["report", str(path)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert str(path) in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"world_size": 1 << 52}, "a world_size of 4,503,599,627,370,496 cannot be"),
        ({"world_size": "two"}, "world_size is 'two'"),
        ({"steps": "text"}, "steps is 'text'"),
        ({"device": "[/red] <script>alert(1)</script>"}, ""),
        ({"leaks": [{}]}, "leaks.0.memory cannot be used"),
        ({"leaks": [{"memory": "disk"}]}, "leaks.0.memory cannot be used"),
        ({"phases": {"forward": {"peak_allocated_bytes": [1]}}}, "peak_allocated_bytes is '[1]'"),
        ({"out_of_memory": True, "biggest_blocks": [{"shape": "wide"}]}, "oom.biggest_blocks"),
    ],
)
def test_rank_files_of_strangers_are_shown_without_what_cannot_be(tmp_path, capsys, changed, problem):
    write_rank(tmp_path, 0, extra=[{**ERROR, "rank": 0, "pid": 100, **changed}])
    path = rank_file(tmp_path, 0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in (lines[0], lines[-1]):
        line.update(changed)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_cli(["report", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 0
    assert "<script>" not in (tmp_path / "x.html").read_text()
    assert run_cli(["report", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run_cli(["report", str(tmp_path), "--json"]) == 0
    report = RunReport.model_validate(json.loads(capsys.readouterr().out))
    assert any(problem in text for text in [*report.problems, ""]), report.problems


def test_wrong_use_is_explained(tmp_path, capsys):
    assert run_cli(["report", str(tmp_path)]) == 2
    assert "neither report.json nor rank-*.jsonl" in capsys.readouterr().err
    assert run_cli(["report", "a", "b", "c"]) == 2
    assert "got 3" in capsys.readouterr().err
    assert run_cli(["report"]) == 2
    write_rank(tmp_path, 0)
    assert run_cli(["report", str(tmp_path), "--html", str(tmp_path / "no" / "x.html")]) == 74
    with pytest.raises(ReportNotWritten):
        write_html(tmp_path / "no" / "x.html", report_of(tmp_path, 1))
    with pytest.raises(FileInputError, match="is no file"):
        load_report(Path("/dev/zero"))


@pytest.mark.parametrize("ranks", [2, 8])  # of one host, and of two
@pytest.mark.parametrize("on_gpu", [True, False])
def test_no_table_breaks_at_80_columns(tmp_path, ranks, on_gpu):
    for rank in range(ranks):
        write_rank(
            tmp_path, rank, on_gpu=on_gpu, state="failed" if rank else "finished", exit_code=int(rank > 0)
        )
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    print_report(report_of(tmp_path, ranks), console)
    text = console.export_text()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert sum(line.split()[:1] == ["1"] for line in text.splitlines()) == 2  # memory, and steps
    assert "GiB" in text and "step time" in text
