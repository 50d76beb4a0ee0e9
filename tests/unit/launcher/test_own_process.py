"""A working folder may come from strangers: none of its modules is imported by a process of ours."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.plans import write_plan
from zerokit.launcher.own_process import own_process

ROOT = Path(__file__).parents[3]
# What the console command does: its folder, not the working folder, comes first.
_COMMAND = f"import sys; sys.path[:1] = [{str(ROOT)!r}]; from zerokit.cli import main; main()"
MAIN = [sys.executable, "-c", _COMMAND]
_NAMES = (
    "typing", "torch", "yaml", "click", "json", "dataclasses", "deepspeed", "accelerate", "rich", "pydantic",
    "transformers", "trl", "numpy", "jinja2", "psutil", "sitecustomize", "usercustomize", "subprocess",
    "socket", "runpy", "re", "logging", "tempfile", "evil", "conftest", "setup", "regex", "packaging", "tqdm",
    "triton",
)  # fmt: skip


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose modules say so when they are imported."""
    folder = tmp_path / "repository"
    (folder / "zerokit").mkdir(parents=True)
    text = f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__ + '\\n')\nraise ImportError(__name__)\n"
    for name in (*_NAMES, "zerokit/__init__", "zerokit/cli", "zerokit/__main__"):
        (folder / f"{name}.py").write_text(text)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "train.py").write_text("print('runs')\n")
    write_strangers_files(folder)
    return folder


def write_strangers_files(folder: Path) -> None:
    """What is read as data: none of it may run, load or write anything."""
    mark = folder.parent / "imported"
    write_plan(folder / "zerokit-plan")
    (folder / ".env").write_text(f"LD_PRELOAD={folder}/x.so\nPATH={folder}\n")
    (folder / ".deepspeed_env").write_text(f"X=$(touch {mark})\nPYTHONPATH={folder}\n")
    (folder / "pyproject.toml").write_text("[tool.zerokit]\nplugins = ['evil']\n")
    (folder / "hostfile").write_text(f"$(touch${{IFS}}{mark}) slots=2\n-oProxyCommand=touch slots=1\n")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "csv_monitor": {"enabled": True, "output_path": str(mark), "job_name": "j"},
    }
    (folder / "ds.json").write_text(json.dumps(config))
    (folder / "accelerate.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
        f"main_process_port: '$(touch {mark})'\ndeepspeed_config: {{deepspeed_config_file: ds.json}}\n"
    )
    model = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 100,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(model))
    (folder / "mine.yaml").write_text("title: x\nparams: 20m\ngpus: 2\nvram: 6GiB\nglobal_batch: 8\n")
    (folder / "run").mkdir()
    record = {"type": "start", "schema": "zerokit.rank/1", "rank": 0, "world_size": 1,
              "host": f"$(touch {mark})", "pid": 7, "device": "cpu", "script": "../../evil.py",
              "time": 1e9}  # fmt: skip
    (folder / "run" / "rank-00000.jsonl").write_text(json.dumps(record) + "\n")


_READING = (
    ("plan", "--params", "1b", "--gpus", "2", "--gpu", "h200", "--out", "planned"),
    ("plan", "--recipe", "mine.yaml", "--out", "planned"),
    ("plan", "--recipe", "zerokit-plan/plan.yaml", "--out", "planned"),
    ("estimate", "--deepspeed", "ds.json", "--params", "1b", "--gpus", "2", "--gpu", "h200"),
    ("size", "--params", "7b", "--gpu", "h200"),
    ("check",),
    ("check", ".", "hostfile", "accelerate.yaml", "ds.json", "mine.yaml", "config.json"),
    ("emit", "sbatch", "--style", "none", "scripts/train.py"),
    ("emit", "kubernetes", "--image", "i", "--style", "none", "scripts/train.py"),
    ("emit", "deepspeed"),
    ("emit", "accelerate"),
    ("emit", "hostfile", "a", "b"),
    ("report", "run"),
    ("report", "--html", "page.html", "run"),
    ("recipes", "list"),
    ("recipes", "show", "./mine.yaml"),
    ("recipes", "check", "./mine.yaml"),
    ("models",),
    ("gpus",),
    ("doctor",),
    ("launch", "--device", "cpu", "--dry-run", "--style", "raw", "scripts/train.py"),
    ("launch", "--device", "cpu", "--dry-run", "--hostfile", "hostfile", "scripts/train.py"),
    ("tune", "--dry-run", "--style", "raw", "scripts/train.py"),
)
_READING_WITH_TORCH = (
    ("check", "--deep", "ds.json", "accelerate.yaml"),
    ("plan", "--model", "config.json", "--gpus", "2", "--gpu", "h200", "--out", "planned"),
    ("rehearse", "--gpu", "h200", "scripts/train.py"),
)


def every(folder: Path, commands: tuple[tuple[str, ...], ...]) -> None:
    """Run the commands in one process, each with a code that the interfaces know."""
    code = (
        f"import sys; sys.path[:1] = [{str(ROOT)!r}]; from zerokit.cli import run\n"
        f"for words in {commands!r}:\n"
        "    code = run(list(words))\n"
        "    assert code in (0, 2, 3, 13), (words, code)\n"
    )
    run(folder, sys.executable, "-c", code)


def test_reading_runs_nothing_of_it(hostile: Path) -> None:
    every(hostile, _READING)


@pytest.mark.slow
def test_reading_with_torch_runs_nothing_of_it(hostile: Path) -> None:
    """``rehearse`` runs the script that is named, and sees its folder alone."""
    pytest.importorskip("deepspeed")
    every(hostile, _READING_WITH_TORCH)


def run(folder: Path, *command: str, code: int = 0) -> str:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    imported = folder.parent / "imported"
    assert not imported.exists(), imported.is_dir() or imported.read_text()
    return done.stdout + done.stderr


def test_a_process_of_ours(hostile: Path) -> None:
    assert "zerokit" in run(hostile, *own_process("zerokit", "--version"))


def test_python_m_zerokit(hostile: Path) -> None:
    for path in (hostile / "zerokit").iterdir():  # a package of that name there is what was asked for
        path.unlink()
    (hostile / "zerokit").rmdir()
    if not list(Path(sysconfig.get_path("purelib")).glob("*zerokit*")):
        pytest.skip("zerokit is not installed for this Python")
    assert "zerokit" in run(hostile, sys.executable, "-m", "zerokit", "--version")


def test_launch_with_a_recipe(hostile: Path) -> None:
    options = ("--recipe", "cpu-demo", "--device", "cpu", "--style", "raw", "--dry-run")
    said = run(hostile, *MAIN, "launch", *options, "scripts/train.py")
    assert "scripts/train.py" in said


@pytest.mark.slow
def test_measuring(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    run(hostile, *MAIN, "doctor", "--measure")


@pytest.mark.parametrize("launcher", ["deepspeed", "accelerate", "torchrun"])
def test_launchers_and_ranks(hostile: Path, launcher: str) -> None:
    """Ranks see the script's folder, as with ``python scripts/train.py``, and not the working folder."""
    pytest.importorskip("deepspeed")
    script = hostile / "scripts" / "train.py"
    script.write_text(
        "import os, sys, pathlib, beside\n"
        "seen = repr((sys.path, os.environ.get('PYTHONPATH')))\n"
        "pathlib.Path('path-' + os.environ['RANK']).write_text(seen)\n"
    )
    (script.parent / "beside.py").write_text("")
    run(hostile, *MAIN, "launch", "--device", "cpu", "--num-ranks", "2", "--style", "none", "--no-plan",
        "--launcher", launcher, "--run-dir", "run", "scripts/train.py")  # fmt: skip
    for rank in (0, 1):
        paths, python_path = ast.literal_eval((hostile / f"path-{rank}").read_text())
        assert paths[0] == str(script.parent) and str(hostile) not in paths and "/" not in paths
        assert python_path == os.environ.get("PYTHONPATH")
