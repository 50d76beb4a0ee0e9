"""The oldest DeepSpeed and accelerate that a launch takes; the newest are those that all other tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.faults.conftest import Run
from tests.support.packages import needs
from tests.support.plans import write_plan
from zerokit.machine.supported import SUPPORTED

needs("deepspeed")
needs("accelerate")
SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.mark.slow
def test_the_newest_is_what_all_tests_run() -> None:
    assert [version(supported.package) for supported in SUPPORTED] == [
        supported.newest for supported in SUPPORTED
    ]


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oldest of both, in front of everything else."""
    kept = os.environ.get("TOOL_ENVIRONMENTS")
    site = (Path(kept) if kept else tmp_path_factory.mktemp("oldest")) / "oldest" / "site-packages"
    if not site.is_dir():
        words = [f"{supported.package}=={supported.oldest}" for supported in SUPPORTED]
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
        environment = {**os.environ, "DS_BUILD_OPS": "0"}
        result = subprocess.run([*pip, "--target", str(site), *words], env=environment, capture_output=True,
                              text=True, check=False)  # fmt: skip
        if result.returncode != 0:
            pytest.skip(f"they cannot be installed here: {result.stderr[-300:]}")
    return site


@pytest.mark.slow
@pytest.mark.parametrize(("script", "stage"), [("trainer.py", 3), ("raw.py", 2)])
def test_the_oldest_train_as_planned(tmp_path: Path, oldest: Path, script: str, stage: int) -> None:
    write_plan(tmp_path / "plan", precision="fp32", stage=stage)
    # what is beside this Python belongs to the newest: packages are found in this order
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(oldest)}
    run = Run(
        Path(sys.executable), tmp_path, ["--plan", "plan", str(SCRIPTS / script), "--steps", "2"], variables
    )
    code, out, err = run.end(400)
    assert code == 0, out + err
    assert f"DeepSpeed {SUPPORTED[0].oldest} is installed" in err
    report = run.report()
    assert report["outcome"] == "ok" and len(report["ranks"]) == 2
    for rank in report["ranks"]:
        assert (rank["steps"], rank["engine"]["zero_stage"]) == (2, stage)
        assert {"load", "init", "forward", "backward", "step"} <= set(rank["phases"])
