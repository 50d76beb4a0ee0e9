"""Real hangs of two CPU ranks under DeepSpeed's ZeRO-3 and gloo: the verdict names the cause.

One runs everywhere; all of them with ``./launch.sh test -m slow tests/faults/test_why_it_hangs.py``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import Run
from tests.support.packages import needs

needs("deepspeed")
SCRIPT = Path(__file__).parents[1] / "scripts" / "hanging.py"
HEARTBEAT = 15.0
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("deed", "kind", "words"),
    [
        ("module", "module_skipped", ("rank 1 skipped `visual` in step 5", "set_z3_leaf_modules")),
        pytest.param("uneven", "uneven_batches", ("rank 1 left the training loop", "drop_last"), marks=SLOW),
        pytest.param("save", "save_on_some_ranks", ("rank 0 saves alone (save_checkpoint at hanging.py:",
                                                    "on every rank"), marks=SLOW),
        pytest.param("save-last", "save_on_some_ranks", ("rank 0 saves alone",), marks=SLOW),
        pytest.param("stopped", "stopped", ("rank 1 is stopped", "kill -CONT"), marks=SLOW),
        pytest.param("loader", "data_loader", ("rank 1 waits for its next batch", "timeout"), marks=SLOW),
        pytest.param("lock", "lock", ("rank 1 waits for a lock", "lock.acquire()"), marks=SLOW),
        pytest.param("thread", "lock", ("another thread", "uploader"), marks=SLOW),
        pytest.param("compile", "child_process", ("rank 1 waits for a process",), marks=SLOW),
        pytest.param("operation", "different_collectives", ("all_reduce", "barrier"), marks=SLOW),
        pytest.param("group", "wrong_group", ("different groups", "hanging.py:"), marks=SLOW),
        pytest.param("data-parallel", "different_collectives", ("all_reduce", "barrier"), marks=SLOW),
        pytest.param("expert", "module_skipped", ("skipped `experts.1`", "no token"), marks=SLOW),
        pytest.param("queue", "lock", ("queue.Queue().get()",), marks=SLOW),
        pytest.param("two-locks", "lock", ("with second:", "flusher at hanging.py:"), marks=SLOW),
        pytest.param("file-lock", "lock", ("fcntl.flock",), marks=SLOW),
        pytest.param("interpreter", "elsewhere", ("interpreter locked at hanging.py:",), marks=SLOW),
        pytest.param("download", "input_output", ("waits for the network",), marks=SLOW),
    ],
)  # fmt: skip
def test_the_verdict_names_the_cause(
    stub_python: Path, tmp_path: Path, deed: str, kind: str, words: tuple[str, ...]
) -> None:
    options = ["--num-ranks", "2", "--heartbeat", str(HEARTBEAT), "--grace", "2", "--style", "none"]
    run = Run(stub_python, tmp_path, [*options, str(SCRIPT), deed], {})
    try:
        code, out, err = run.end(240)
        assert code == 11, err
        report = run.report()
        assert report["outcome"] == "hung"
        assert report.get("hang", {}).get("kind") == kind, report["why"]
        stacks = re.search(r"Python stacks of the ranks: (\S+)/(stacks-\S+)", out)
        assert stacks is not None
        found = [path for path in Path(stacks[1]).glob(stacks[2]) if ".native." not in path.name]
        assert len(found) == 2
        for text in words:
            assert text in err.replace("\n", " ")
        assert (deed != "data-parallel") is ("mixture of experts under ZeRO-3 without a leaf" in err)
        assert not run.left()
    finally:
        run.clean_up()


@SLOW
@pytest.mark.parametrize(
    ("deed", "kind", "words"),
    [
        ("uneven-gone", "uneven_batches", ("rank 1 left the training loop after step 4", "drop_last")),
        ("save-last-gone", "save_on_some_ranks", ("rank 0 saves alone (save_checkpoint", "every rank")),
        ("shapes", "different_shapes", ("rank 0 got 8 bytes", "all_reduce of [8] float32")),
        ("evaluate", "eval_on_some_ranks", ("rank 0 evaluated and the others did not", "every rank do it")),
    ],
)
def test_what_gloo_ends_at_once_has_its_cause_too(
    tmp_path: Path, deed: str, kind: str, words: tuple[str, ...]
) -> None:
    options = ["--num-ranks", "2", "--heartbeat", str(HEARTBEAT), "--grace", "2", "--style", "none"]
    run = Run(Path(sys.executable), tmp_path, [*options, str(SCRIPT), deed], {})
    try:
        code, _, err = run.end(240)
        assert code == 10, err
        assert run.report()["hang"]["kind"] == kind, run.report()
        for text in words:
            assert text in err.replace("\n", " ")
    finally:
        run.clean_up()


@SLOW
@pytest.mark.skipif(os.geteuid() != 0, reason="takes a network interface down, in a namespace of its own")
def test_an_interface_that_goes_down(tmp_path: Path) -> None:
    options = ["--num-ranks", "2", "--heartbeat", str(HEARTBEAT), "--grace", "2", "--style", "none"]
    inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable]
    command = [*inside, "-m", "zerokit", "launch", "--device", "cpu", "--run-dir", "run", *options]
    done = subprocess.run([*command, str(SCRIPT), "network"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=240, check=False)  # fmt: skip
    assert done.returncode == 11, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["hang"]["kind"] == "network" and "no data moves" in report["hang"]["what"]


@SLOW
def test_a_rank_that_dies_is_no_hang(tmp_path: Path) -> None:
    """Out of memory on one rank, while the other waits for it: the rank is to blame, at once."""
    options = ["--num-ranks", "2", "--heartbeat", str(HEARTBEAT), "--style", "none"]
    run = Run(Path(sys.executable), tmp_path, [*options, str(SCRIPT), "oom"], {})
    try:
        code, _, err = run.end(240)
        assert code == 10, err
        failure = run.report()["first_failure"]
        assert failure["rank"] == 1 and "cannot allocate 80 GiB" in failure["error"]
        assert "hang" not in run.report()
    finally:
        run.clean_up()
