"""A folder from strangers: its modules say so when they are imported, and its files ask for much."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.plans import write_plan

ROOT = Path(__file__).parents[2]
# What the console command does: its folder, not the working folder, comes first.
_COMMAND = f"import sys; sys.path[:1] = [{str(ROOT)!r}]; from zerokit.cli import main; main()"
MAIN = [sys.executable, "-c", _COMMAND]
_NAMES = (
    "typing", "torch", "yaml", "click", "json", "dataclasses", "deepspeed", "accelerate", "rich", "pydantic",
    "transformers", "trl", "numpy", "jinja2", "psutil", "sitecustomize", "usercustomize", "subprocess",
    "socket", "runpy", "re", "logging", "tempfile", "evil", "conftest", "setup", "regex", "packaging", "tqdm",
    "triton", "matplotlib", "PIL",
)  # fmt: skip


def hostile_folder(tmp_path: Path) -> Path:
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


def run_commands(folder: Path, commands: tuple[tuple[str, ...], ...]) -> None:
    """Run the commands in one process, each with a code that the interfaces know."""
    code = (
        f"import sys; sys.path[:1] = [{str(ROOT)!r}]; from zerokit.cli import run\n"
        f"for words in {commands!r}:\n"
        "    code = run(list(words))\n"
        "    assert code in (0, 2, 3, 13), (words, code)\n"
    )
    run_in(folder, sys.executable, "-c", code)


def run_in(folder: Path, *command: str, code: int = 0) -> str:
    """What a command prints that runs there; nothing of the folder may be imported by it."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    imported = folder.parent / "imported"
    assert not imported.exists(), imported.is_dir() or imported.read_text()
    return done.stdout + done.stderr
