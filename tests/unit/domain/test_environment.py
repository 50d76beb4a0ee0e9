"""What a plan may set in the environment: one list, held to by launch, emit and check."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import yaml

from tests.support.plans import write_plan
from zerokit.cli import run
from zerokit.emit.jobs import SERVICES

REFUSED = (
    "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "HF_TOKEN",
    "CUDA_HOME", "CUDA_INJECTION64_PATH", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
    "NCCL_DEBUG_FILE", "NCCL_CONF_FILE", "NCCL_TOPO_DUMP_FILE", "TORCH_LOGS_OUT", "TORCH_EXTENSIONS_DIR",
    "TORCH_TRACE", "UCX_MODULE_DIR", "UCX_LOG_FILE", "OMP_TOOL_LIBRARIES", "DS_ACCELERATOR", "DS_BUILD_OPS",
    "ZEROKIT_RUN_DIR", "CUDA_VISIBLE_DEVICES", "nccl_debug", "NCCL_DEBUG\n", "A=B", "",
)  # fmt: skip
HOSTILE = (
    "$(touch F)", "`touch F`", 'a";touch F;"', "x'y", "a\nLD_PRELOAD=/tmp/x.so", "a;b", "a|b", "a&b", "a>b",
    "a\\b", "%h", " a", "a ", "a\tb", "\x1b[2J", "ä", "x" * 5000, True, None, ["a"],
)  # fmt: skip
_RAW = ["--plan", "plan", "--style", "raw"]
COMMANDS = {
    "launch": (["launch", "--dry-run", "--device", "cpu", *_RAW, "train.py"], 2),
    "emit sbatch": (["emit", "sbatch", *_RAW, "train.py"], 2),
    "emit kubernetes": (["emit", "kubernetes", "--image", "i", *_RAW, "train.py"], 2),
    **{
        f"emit {name}": (["emit", name, *options, *_RAW, "train.py"], 2)
        for name in SERVICES
        for options in [["--gpu-name", "g"] if name in ("skypilot", "dstack") else []]
    },
    "check": (["check", "plan/plan.yaml"], 2),
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('runs')\n")


_ENVIRONMENT = "the environment"


@functools.cache
def _plan_text() -> str:
    """A plan.yaml with a mark where its environment stands."""
    path = write_plan(Path("plan")) / "plan.yaml"
    body = yaml.safe_load(path.read_text())
    body["chosen"]["environment"] = _ENVIRONMENT
    return yaml.safe_dump(body)


def plan_with(environment: dict[str, object]) -> None:
    text = _plan_text()
    if not Path("plan").is_dir():
        write_plan(Path("plan"))
    Path("plan/plan.yaml").write_text(text.replace(_ENVIRONMENT, json.dumps(environment)))


@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_takes_what_a_plan_may_not_set(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments, code = COMMANDS[command]
    cases: list[tuple[str, object]] = [(name, "1") for name in REFUSED]
    cases += [("NCCL_DEBUG", value) for value in HOSTILE]
    for name, value in cases:
        plan_with({name: value})
        assert run(arguments) == code, (name, value)
        said = "".join(capfd.readouterr())
        assert "plan.yaml:" in said and "chosen.environment." in said, said
        assert "Traceback" not in said and "\x1b[2J" not in said


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_plan_may_set_arrives(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    plan_with({"NCCL_SOCKET_IFNAME": "^lo,docker0", "NCCL_NVLS_ENABLE": 0, "NCCL_IB_HCA": "=mlx5_0:1"})
    assert run(COMMANDS[command][0]) == 0
    said = capfd.readouterr().out
    assert command == "check" or ("^lo,docker0" in said and "NCCL_NVLS_ENABLE" in said)
