"""The fault table: every fault that is injected into real processes, what is demanded, what was measured.

    python benchmarks/faults.py                # all, an hour on two busy cores; writes docs/faults.md
    python benchmarks/faults.py --rows 1,4,7   # some of them, printed

The figures are what the tests recorded, the greatest of each row. The tests fail where a demand is not met
(times with some seconds of slack for Python's own start and a loaded machine; here they stand as they were).
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "faults.md"
PROCESSES, FILES = "tests/faults/test_processes.py", "tests/faults/test_rank_files.py"
RESOURCES, SCRIPTS = "tests/faults/test_resources.py", "tests/faults/test_scripts.py"
MEMORY, HOSTS = "tests/faults/test_out_of_memory.py", "tests/faults/test_hosts.py"
SLURM = "tests/faults/test_slurm.py"
LOADER, RECIPES = "tests/unit/strictload/test_strictload.py", "tests/unit/planner/test_recipes.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A fault, what is demanded of it, and the tests (file, then test names)."""

    name: str
    inject: str
    demand: str
    tests: dict[str, tuple[str, ...]]


ROWS = [
    Row(name="1", inject="a rank is killed (SIGKILL, SIGSEGV, SIGABRT, SIGTERM)",
        demand="exit 10, names rank, host, signal; ≤ 3 s; 0 descendants",
        tests={PROCESSES: ("test_a_rank_is_killed",)}),
    Row(name="1b", inject="a rank leaves with `os._exit(0)` half-way, while others end or wait",
        demand="never ok: the rank, the line and the step at which it left; as its last act it is a finish",
        tests={FILES: ("test_a_rank_that_leaves_half_way_has_not_finished",),
               PROCESSES: ("test_os_exit_zero_is_a_finish",)}),
    Row(name="2", inject="out of memory on one rank; the kernel's OOM-killer",
        demand="exit 10, `oom`, what was asked for, the next plan that would fit; the first error wins",
        tests={PROCESSES: ("test_a_rank_runs_out_of_memory",), MEMORY: ("",),
               SCRIPTS: ("test_the_kernels_out_of_memory_killer",)}),
    Row(name="3", inject="a rank stalls (SIGSTOP, sleep, skipped collective)",
        demand="exit 11 within heartbeat (3 s here) + grace (2 s); stacks of every rank",
        tests={PROCESSES: ("test_a_rank_stalls",)}),
    Row(name="3b", inject="why it hangs: a skipped module, uneven batches, a save on one rank, …",
        demand="exit 11; the ranks, the collective, the line, the cause and its fix",
        tests={"tests/faults/test_why_it_hangs.py": ("",)}),
    Row(name="3c", inject="15 slow and healthy programs: compilers, loaders, pools, slow storage, …",
        demand="none is ended, after 7 s at a heartbeat of 4 s",
        tests={"tests/faults/test_slow_is_not_hung.py": ("",)}),
    Row(name="3d", inject="runs without `--heartbeat`: quick steps, long steps, waits for data or a lock",
        demand="the heartbeat follows what the run has shown, 60 s to 600 s; one that was given stays",
        tests={"tests/unit/launcher/supervisor/test_heartbeat_default.py": ("",)}),
    Row(name="3e", inject="mixtures of experts and vision towers under ZeRO-3 without a leaf module",
        demand="a warning before the first step, with the module and the call that removes it",
        tests={"tests/torch/test_skippable.py": ("",)}),
    Row(name="4b", inject="preemption: SIGUSR1 as Slurm sends it, SIGTERM to a Trainer that saves on it",
        demand="reaches the script, which saves a whole checkpoint; nobody dies of SIGUSR1",
        tests={"tests/faults/test_passed_on_signals.py": ("",)}),
    Row(name="4", inject="SIGTERM, SIGINT, SIGHUP, SIGQUIT to zerokit",
        demand="128+n within grace (5 s here; the ranks save for 0.5 s) + 2 s; report written",
        tests={PROCESSES: ("test_zerokit_is_told_to_end",)}),
    Row(name="5", inject="SIGKILL zerokit; SIGKILL the guard",
        demand="0 descendants within 3 s",
        tests={PROCESSES: ("test_zerokit_is_killed", "test_the_guard_is_killed")}),
    Row(name="5b", inject="zerokit and the guard killed together",
        demand="0 ranks left: they end themselves",
        tests={SCRIPTS: ("test_zerokit_and_its_guard_are_killed_together",)}),
    Row(name="6", inject="SIGKILL `deepspeed`, then its launch.py",
        demand="exit 12, never 0",
        tests={PROCESSES: ("test_deepspeed_is_killed", "test_the_inner_launcher_is_killed")}),
    Row(name="7", inject="8 and 64 ranks that ignore SIGTERM",
        demand="≤ grace (2 s here) + 3 s whatever the number",
        tests={PROCESSES: ("test_ranks_that_ignore_sigterm",)}),
    Row(name="8", inject="a rank's own child, also one in a new session, and a daemon",
        demand="0 left", tests={PROCESSES: ("test_what_a_rank_started_goes_too",)}),
    Row(name="9", inject="Ctrl-C twice", demand="the second skips the grace",
        tests={PROCESSES: ("test_a_second_interrupt_skips_the_grace",)}),
    Row(name="10", inject="64 stub ranks on one host", demand="64 records; supervision < 5 % of a core",
        tests={RESOURCES: ("test_sixty_four_ranks_cost_little",)}),
    Row(name="11", inject="port in use; two launches at once",
        demand="a free port is chosen, or exit 13 naming the holder",
        tests={RESOURCES: ("test_a_port_in_use_names_its_holder",
                           "test_two_launches_at_once_meet_at_different_ports")}),
    Row(name="12", inject="disk full (`/dev/full`, 64 KiB and 256 KiB tmpfs)",
        demand="training goes on; exit 74; an older report intact",
        tests={RESOURCES: ("test_the_disk_fills_during_the_run", "test_an_older_report_outlives_a_full_disk",
                           "test_a_full_disk_is_noticed_before_the_run"),
               FILES: ("test_dev_full_leaves_training_untouched", "test_a_full_64_kib_file_system")}),
    Row(name="13", inject="a rank file cut at every byte, NUL bytes, two writers",
        demand="good lines kept, bad ones by file:line, missing ranks listed",
        tests={FILES: ("test_a_file_cut_at_every_byte_never_reads_as_complete",
                       "test_damage_is_named_by_file_and_line_and_the_rest_kept",
                       "test_two_writers_of_one_rank_are_named",
                       "test_missing_ranks_are_lost_and_no_success")}),
    Row(name="14", inject="hostfile: missing, `slots=0`, garbage, 10⁹, duplicate, `-oProxyCommand=…`",
        demand="exit 2 with the line; never a silent local run; nothing executed",
        tests={RESOURCES: ("test_a_bad_hostfile", "test_a_missing_hostfile_is_no_local_run"),
               "tests/unit/launcher/nodes/test_cluster.py": ("",)}),
    Row(name="15", inject="a node is unreachable; one is cut off before the run",
        demand="exit 13; all nodes side by side, ≤ 10 s",
        tests={RESOURCES: ("test_unreachable_nodes_are_all_named",),
               HOSTS: ("test_a_host_that_does_not_answer_is_named",)}),
    Row(name="15b", inject="a host is cut off in the middle of a run",
        demand="exit 11 within heartbeat (8 s here) + grace (2 s) + ssh (2 × 8 s); 0 left there too",
        tests={HOSTS: ("test_a_host_is_cut_off_in_the_middle_of_a_run",)}),
    Row(name="15c", inject="zerokit is killed during a run on two hosts", demand="0 left on both",
        tests={HOSTS: ("test_zerokit_is_killed_and_nobody_is_left_on_any_host",)}),
    Row(name="15d", inject="a Slurm job: a rank fails or is killed, the job is cancelled, zerokit is killed",
        demand="the job ends with the launch's exit code; ranks have their grace; 0 left on both nodes",
        tests={SLURM: ("test_a_job_of_two_nodes", "test_a_cancelled_job_leaves_a_report_and_nobody",
                       "test_a_rank_is_killed", "test_zerokit_is_killed_and_nobody_is_left")}),
    Row(name="16", inject="numbers: NaN, ±inf, 0, negative, 1e400, bool, “70bb”, 5000 digits",
        demand="exit 2 or 3, no traceback",
        tests={"tests/unit/cli/test_plan.py": ("test_bad_input_is_exit_2_and_names_the_option",
                                               "test_nothing_fits_is_exit_3_and_says_what_would")}),
    Row(name="17", inject="YAML/JSON: not UTF-8, BOM, empty, two documents, `!!python`, duplicates, NaN",
        demand="exit 2 with file:line, or read right",
        tests={LOADER: ("test_yaml_refused_with_the_place", "test_json_refused_with_the_place",
                        "test_encodings", "test_any_bytes_give_a_value_or_a_file_error")}),
    Row(name="17b", inject="300 damaged plans, 300 run folders, values of wrong types in JSON",
        demand="exit 2 with file, line and key, or the rest read; no traceback",
        tests={"tests/commands/test_damaged_files.py": ("",)}),
    Row(name="18", inject="alias bomb, self-alias, 100 MB file", demand="refused; memory stays flat",
        tests={LOADER: ("test_alias_bomb_costs_no_memory",
                        "test_large_fifo_and_device_files_are_refused_unread")}),
    Row(name="19", inject="recipe names: `../x`, absolute, symlink, FIFO, `/dev/zero`",
        demand="nothing outside the folder is opened",
        tests={RECIPES: ("test_names_that_break_the_rule_open_nothing",
                         "test_links_and_pipes_in_the_folder_are_refused")}),
    Row(name="20", inject="a Hugging Face config with `auto_map`", demand="read as data; no remote code",
        tests={"tests/torch/test_trace_profiles.py": ("test_remote_code_is_never_run",)}),
    Row(name="21", inject="a hostile working folder (`yaml.py`, `torch.py`, `.deepspeed_env`)",
        demand="nothing of it is imported or obeyed",
        tests={RESOURCES: ("test_a_hostile_working_folder",)}),
    Row(name="22", inject="`HF_TOKEN`, `WANDB_API_KEY` set", demand="in no file, log or command line",
        tests={PROCESSES: ("test_secrets_are_written_nowhere",), FILES: ("test_secrets_reach_no_file",)}),
    Row(name="23", inject="kill at 100 random moments", demand="no partial file reads as complete",
        tests={FILES: ("test_kills_at_random_moments_never_leave_a_complete_file",)}),
    Row(name="24", inject="GPU peak statistics reset by the script or a library",
        demand="the reported peak is the true one (allocator of a stand-in here; tests/gpu on a GPU)",
        tests={"tests/torch/test_probe_cuda.py": ("test_a_reset_by_others_loses_no_peak",
                                                 "test_the_script_reads_the_peak_since_its_own_reset")}),
    Row(name="8b", inject="shared memory of ranks that are killed",
        demand="removed: what removes it outlives them",
        tests={"tests/faults/test_children.py": ("test_shared_memory_of_killed_ranks_is_removed",)}),
    Row(name="12b", inject="the run folder removed, moved, replaced by a file; `report.json` a folder",
        demand="the ranks' own verdict; exit 74 where no report can be written, the way out named once",
        tests={"tests/faults/test_run_folder.py": ("",)}),
    Row(name="25", inject="scripts that close their streams, exec, fork, daemonize, delete the run folder, …",
        demand="the truth, and 0 left", tests={SCRIPTS: ("",)}),
    Row(name="26", inject="206 launches of two ranks, each killed in a random way at a random time",
        demand="0 descendants left; truthful outcomes", tests={"tests/faults/test_random_moments.py": ("",)}),
    Row(name="27", inject="losses that are no number or never change, zero gradients, a slow rank",
        demand="told in the report and its `why`; the slow rank, its seconds and its phase",
        tests={"tests/faults/test_doubtful_training.py": ("",)}),
    Row(name="28", inject="a run that fails once, or twice in the same way, with `--max-restarts`",
        demand="goes on from the newest complete checkpoint; a verdict for each attempt; 0 left",
        tests={"tests/faults/test_restarts.py": ("",)}),
    Row(name="29", inject="SIGSTOP to the guard and to the launcher",
        demand="continued, and said: nobody waits for them without end",
        tests={"tests/faults/test_processes.py": (
            "test_a_guard_and_a_launcher_that_are_stopped_are_continued",)}),
    Row(name="30", inject="`ulimit -n 24`", demand="exit 13 with the limit required; no run folder",
        tests={"tests/faults/test_resources.py": ("test_too_few_open_files_are_said_before_the_start",)}),
]  # fmt: skip


BY_PROGRAM = Path(__file__).with_name("faults_by_program.md")
"""What the programs of this folder found, written by hand: they take too long for the tests."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of a row's tests, and the figures they recorded."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    figures: dict[str, list[float]] = field(default_factory=dict)


def run(rows: list[Row]) -> Path:
    """Run the rows' tests; returns pytest's record."""
    record = Path(tempfile.mkdtemp()) / "record.xml"
    wanted = [f"{file}::{name}" if name else file for row in rows for file, names in row.tests.items()
              for name in names]  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-m", "slow or not slow", "-o", "junit_family=xunit1",
               f"--junitxml={record}", *dict.fromkeys(wanted)]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=False)
    return record


def read(records: list[Path], rows: list[Row]) -> list[Result]:
    """The result of each row."""
    results = [Result() for _ in rows]
    for case in (case for record in records for case in ElementTree.parse(record).iter("testcase")):
        file = str(case.get("classname", "")).replace(".", "/") + ".py"
        name = str(case.get("name", "")).partition("[")[0]
        for row, result in zip(rows, results, strict=True):
            names = row.tests.get(file, ())
            if name in names or "" in names:
                _add(result, case)
    return results


def _add(result: Result, case: ElementTree.Element) -> None:
    if case.find("skipped") is not None:
        result.skipped += 1
    elif case.find("failure") is not None or case.find("error") is not None:
        result.failed += 1
    else:
        result.passed += 1
    for found in case.iter("property"):
        result.figures.setdefault(str(found.get("name")), []).append(float(str(found.get("value"))))


def shown(result: Result) -> tuple[str, str]:
    """The cells: tests, measured."""
    tests = f"{result.passed} passed"
    tests += f", **{result.failed} failed**" if result.failed else ""
    tests += f", {result.skipped} skipped" if result.skipped else ""
    measured = []
    for name, values in result.figures.items():
        worst = max(values)
        measured.append(f"{worst:.1f} s" if name == "seconds" else f"{worst:.1%} {name}")
    return tests, ", ".join(measured) or ("met" if result.passed and not result.failed else "–")


def document(rows: list[Row], results: list[Result]) -> str:
    """The table as Markdown."""
    lines = [
        "# Faults that a launch survives", "",
        "Written by `python benchmarks/faults.py` from the tests' results: each test injects the real fault"
        " into real processes. Measured: the greatest figure of a row's tests, with other work on the machine"
        f" ({os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, Python"
        f" {platform.python_version()}).", "",
        "| # | inject | demand | tests | measured |", "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row, result in zip(rows, results, strict=True):
        tests, measured = shown(result)
        lines.append(f"| {row.name} | {row.inject} | {row.demand} | {tests} | {measured} |")
    return "\n".join([*lines, "", BY_PROGRAM.read_text()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--rows", help="numbers, separated by commas; default: all, which writes the document"
    )
    parser.add_argument("--record", type=Path, nargs="*", help="records of pytest to read; nothing is run")
    args = parser.parse_args()
    names = args.rows.split(",") if args.rows else None
    rows = [row for row in ROWS if names is None or row.name in names]
    results = read(args.record or [run(rows)], rows)
    text = document(rows, results)
    if names is None:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(text)
    print(text)
    return 1 if any(result.failed or not result.passed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
