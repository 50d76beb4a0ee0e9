"""A report in the terminal, as a page, compared, and through ``zerokit report``."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console
from rich.text import Text

from tests.support.report_pages import out_of_memory
from tests.support.run_reports import BROKEN, ERROR, GIB, MIB, OOM, PLAN, report_of, shown, write_rank
from zerokit.launcher.rank_file import rank_file
from zerokit.launcher.verdict.evidence import RankExit
from zerokit.report.html import render_html
from zerokit.report.render import hanging, print_report, whole
from zerokit.report.schema import RunReport
from zerokit.report.words import failed_in_load


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
    header = text.splitlines()[2]
    assert "nor phases after init, since a process keeps" in " ".join(text.split())
    assert "allocated" not in header and "host memory" in header and "peak from" in header
    assert "predicted for" not in text
    plan["chosen"]["estimate"]["per_rank"][0]["ranks"] = [1, 1]
    alone = report_of(tmp_path, 2, plan)
    assert "predicted for rank 1 alone\n" in shown(alone)
    alone["predicted_vs_measured"]["predicted_by"] = "rehearsal"
    assert "predicted for rank 1 alone: a rehearsal runs one of several alike" in shown(alone)


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
        "predicted at the peak:\n    gradients 20.00 GiB\n    parameters 11.00 GiB\n",
        "largest live blocks:\n    4.00 GiB lm_head.weight bfloat16 [8, 4]\n",
    ):
        assert line in text
    assert text.rstrip().endswith("OutOfMemoryError: CUDA out of memory.")


def test_blocks_alike_are_counted_and_pytorchs_message_is_said_in_full_once(tmp_path):
    block = OOM["biggest_blocks"][0]
    message = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.38 GiB. GPU 1 has a total capacity of "
        "139.80 GiB of which 1.58 GiB is free."
    )
    oom = {**OOM, "message": message, "biggest_blocks": [block, block, {**block, "shape": [9]}, block]}
    write_rank(tmp_path, 0)
    write_rank(tmp_path, 1, extra=[oom, ERROR], state="failed", exit_code=1)
    report = report_of(tmp_path, 2, exits=[RankExit(rank=1, code=1, at=998.5)])
    blocks = shown(report).partition("largest live blocks:\n")[2].splitlines()[:2]
    assert [line.strip() for line in blocks] == [
        "3 × 4.00 GiB lm_head.weight bfloat16 [8, 4]", "4.00 GiB lm_head.weight bfloat16 [9]"
    ]  # fmt: skip
    assert report["why"].endswith("CUDA out of memory. Tried to allocate 4.38 GiB")


def test_a_failure_in_load_shows_its_whole_message_and_no_tables(tmp_path):
    lines = ["ValueError: no column `text` in:", *(f"  {n}.jsonl" for n in range(4)), "rename one"]
    error = {"type": "error", "rank": 0, "pid": 100, "time": 998.0, "phase": "load", "step": 1,
             "error": "\n".join(lines), "traceback": "Traceback …\n" + "\n".join(lines)}  # fmt: skip
    load = {"load": {"peak_host_rss_bytes": MIB, "seconds": 1.0, "count": 1}}
    write_rank(tmp_path, 0, on_gpu=False, extra=[error], state="failed", exit_code=1, steps=0, phases=load)
    console = Console(width=80, record=True, file=io.StringIO())
    print_report(report_of(tmp_path, 1, plan=None), console, traceback=False)
    text = console.export_text()
    assert "Peak memory" not in text and "By phase" not in text and "No rank got past load" in text
    assert "no steps to show; the largest process took 3.00 GiB of host memory." in " ".join(text.split())
    body = report_of(tmp_path, 1, plan=None)
    for peak, has_tables in ((1024, False), (5 * MIB, True)):  # the first is the process group's own
        body["ranks"][0]["peak_allocated_bytes"] = peak
        assert failed_in_load(RunReport.model_validate(body)) != has_tables
    assert text.rstrip().endswith("\n".join("  " + line for line in lines))
    rank_file(tmp_path, 0).unlink()
    error["error"] = "\n".join(f"line {n}" for n in range(40))
    write_rank(tmp_path, 0, on_gpu=False, extra=[error], state="failed", exit_code=1)
    print_report(report_of(tmp_path, 1, plan=None), console, traceback=False)
    text = console.export_text()
    assert "Peak memory" in text  # it had trained
    assert "  line 5\n  … (28 more lines in report.json and in its output)\n  line 34" in text


def test_an_exit_code_is_shown_with_what_the_rank_said_last_and_where(tmp_path, monkeypatch):
    """argparse ends a script with its message and code 2; DeepSpeed then ends the other rank with SIGTERM."""
    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-value-of-it")
    for rank in range(2):
        write_rank(tmp_path, rank, on_gpu=False, state="failed", exit_code=2, time=998.0 + 0.002 * (1 - rank))
    (tmp_path / "logs").mkdir()
    said = "usage: train.py\ntrain.py: error: no option s3cr3t-value-of-it\n\n"
    (tmp_path / "logs" / "rank-00001.err.log").write_text(said)
    exits = [RankExit(rank=1, code=2, at=998.3), RankExit(rank=0, signal=15, at=998.2)]
    report = report_of(tmp_path, 2, exits=exits, plan=None)
    assert report["first_failure"]["rank"] == 1  # by its own account two thousandths earlier
    assert report["first_failure"]["error"] == "exited with code 2"  # by which restarts tell errors apart
    text = shown(report, folder=tmp_path)
    assert "the last line of its standard error: train.py: error: no option" in text
    assert "s3cr3t-value-of-it" not in text
    assert f"its output: {tmp_path}/logs/rank-00001.err.log" in text
    assert "train.py: error: no option" in render_html(RunReport.model_validate(report))
    assert "its output" not in shown(report)


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
    observed = [RankExit(rank=rank, code=code, signal=number, at=at) for rank, code, number, at in exits]
    report = report_of(tmp_path, 2, exits=observed, stopped_at=stopped_at)
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


def test_no_figure_is_cut_at_80_columns_with_long_hosts_and_thousands_of_gib(tmp_path):
    gib = 1 << 30
    hosts = [f"gpu-node-with-a-long-name-{rank // 8:03d}.cluster.example.org" for rank in range(16)]
    for rank in range(16):
        write_rank(tmp_path, rank, on_gpu=True, state="failed", exit_code=-15)
    body = json.loads(RunReport.model_validate(report_of(tmp_path, 16)).model_dump_json(by_alias=True))
    for rank, host in zip(body["ranks"], hosts, strict=True):
        rank |= {"host": host, "signal": 15, "state": "terminated", "peak_host_rss_bytes": 1234 * gib,
                 "peak_allocated_bytes": 123 * gib, "peak_reserved_bytes": 124 * gib,
                 "peak_device_used_bytes": 125 * gib}  # fmt: skip
    body["ranks"][1] |= {"peak_allocated_bytes": None, "not_measured": "no torch.cuda"}
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    print_report(body, console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    row = next(line for line in text.splitlines() if line.split()[:1] == ["2"])
    assert [part.strip(",") for part in row.split()[-4:]] == ["123.00", "124.00", "125.00", "1,234.00"]
    assert "terminated (SIGTERM)" in row and "gpu-node-with-a-long-name-001" in text
    assert "n/m: not measured" in text and "…" not in text


NO_PLAN = "planned again for 137.82 GiB per GPU, with this run's batch, precision and degrees: nothing fits"
COMMAND = (
    "zerokit rehearse --plan runs/20260131-120000-train/plan.yaml --gpus 2 --gpu h200 train.py --epochs 3"
)
TRACED = "/home/somebody/with/a/long/path/" + "x" * 60 + ".py"


def report() -> RunReport:
    body = out_of_memory().to_dict()
    body["first_failure"] |= {
        "no_next_plan": NO_PLAN,
        "error": f"OutOfMemoryError: no room for this in {TRACED}",
    }
    body["retries"] = [
        {"folder": "retry-1", "changes": "ZeRO stage 1 → 2, micro-batch 4 → 2; predicted to need 30 GiB " * 2,
         "outcome": "oom", "exit_code": 10}
    ]  # fmt: skip
    text = "the script has a batch per GPU of 128, which its plan has not: it was planned with 8"
    body["predicted_vs_measured"] |= {
        "predicted_for": None, "rehearse_command": COMMAND,
        "differences": [{"what": "micro-batch", "planned": "8", "ran": "128", "option": None, "text": text}],
    }  # fmt: skip
    return RunReport.model_validate(body)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal_but_what_is_one_word(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    print_report(report(), console, traceback=False)
    lines = console.export_text().splitlines()
    assert [line for line in lines if len(line) > width and TRACED not in line] == []
    assert sum(TRACED in line for line in lines) == 1  # which stays whole
    at = next(number for number, line in enumerate(lines) if line.startswith("  no next plan: "))
    assert lines[at + 1].startswith("    ")
    said = " ".join(" ".join(lines).split())
    assert f"no next plan: {NO_PLAN}" in said
    assert COMMAND in said.replace(" \\ ", " ")
    command = next(number for number, line in enumerate(lines) if line.startswith("  zerokit rehearse"))
    assert lines[command].endswith(" \\")  # a shell goes on


def test_what_fits_or_is_copied_stays_as_it_is() -> None:
    copied = whole("its output: " + TRACED)
    assert hanging(copied, 40) is copied
    short = hanging(Text("to predict it: zerokit plan --recipe a", style="yellow"), 80)
    assert isinstance(short, Text)
    assert (short.plain, short.style) == ("to predict it: zerokit plan --recipe a", "yellow")


def test_the_page_lists_the_rows_below_their_heading() -> None:
    page = "".join(render_html(report()).split("\n"))
    assert "<li>to need less:<ul><li>--zero 3</li><li>a smaller batch</li></ul></li>" in page


def test_memory_snapshots_are_named_with_the_command_that_explains_them(tmp_path):
    for rank in range(4):
        note = {"type": "note", "kind": "memory_snapshot", "label": "oom"}
        file = {"error": "OSError: no space"} if rank == 1 else {"file": f"snapshot-0000{rank}-oom.pickle"}
        write_rank(tmp_path, rank, extra=[{**note, **file}])
    report = report_of(tmp_path, 4)
    text = " ".join(shown(report).split())
    assert "memory snapshot of rank 0 (oom): zerokit explain RUN/snapshot-00000-oom.pickle" in text
    assert "memory snapshot of rank 1 (oom): could not be written: OSError: no space" in text
    assert "2 more beside them" in text
    assert "zerokit explain RUN/snapshot-00000-oom.pickle" in render_html(report)


def test_the_memory_snapshot_of_the_rank_that_failed_comes_first(tmp_path):
    for rank in range(4):
        note = {"type": "note", "kind": "memory_snapshot", "label": "oom", "file": f"snapshot-{rank}.pickle"}
        failed = {"state": "failed", "exit_code": 1} if rank == 3 else {}
        write_rank(tmp_path, rank, extra=[note, *([OOM, ERROR] if failed else [])], **failed)
    text = " ".join(shown(report_of(tmp_path, 4)).split())
    first, second = re.findall(r"memory snapshot of rank (\d)", text)
    assert (first, second) == ("3", "0")
