"""What CONTRIBUTING says is one file is: each is added in a copy of the package, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and what belongs to it, to be changed."""
    ignore = shutil.ignore_patterns("__pycache__", "profiles")
    shutil.copytree(ROOT / "zerokit", tmp_path / "zerokit", ignore=ignore)
    return tmp_path


def in_copy(copy: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env={"PYTHONPATH": str(copy), "HOME": str(copy)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def replace_once(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name}: {old!r}"
    path.write_text(text.replace(old, new))


def test_a_gpu_is_one_file(copy: Path) -> None:
    folder = copy / "zerokit/catalog/gpus"
    text = (folder / "l4.yaml").read_text()
    text = text.replace("name: l4", "name: l5", 1)
    lines = [line for line in text.splitlines() if not line.startswith("aliases")]
    (folder / "l5.yaml").write_text("\n".join(lines).replace("NVIDIA L4", "NVIDIA L5") + "\n")
    found = json.loads(
        in_copy(copy, "-m", "zerokit", "estimate", "--params", "125m", "--gpus", "1", "--gpu", "l5", "--json")
    )
    assert found["min_vram_bytes"] > 0


def test_a_model_family_is_one_row(copy: Path) -> None:
    """A causal model with a gate, and a head that is tied unless its file says otherwise."""
    path = copy / "zerokit/domain/families.py"
    replace_once(
        path,
        '    "llama": Family(',
        '    "newfamily": Family(kernels=40, gated=True, tied=True),\n    "llama": Family(',
    )
    config = {
        "model_type": "newfamily", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 1000,
    }  # fmt: skip
    code = f"from zerokit.domain.families import from_config; shape = from_config({config!r})\n"
    code += "print(shape.tied, shape.gated, shape.parameters)"
    attention, gated_mlp, norms = 4 * 64 * 64, 3 * 64 * 128, 2 * 64
    assert in_copy(copy, "-c", code).split() == [
        "True", "True", str(1000 * 64 + 2 * (attention + gated_mlp + norms)),
    ]  # fmt: skip


def test_a_rule_is_one_row(copy: Path) -> None:
    """The planner and the table of all rules see it; its provocation is what the suite asks for then."""
    row = """    Rule(
        id="sequence-parallel-of-seven",
        severity="error",
        silent=True,
        source="deepspeed/runtime/engine.py:1",
        key="sequence_parallel",
        message="nobody wants {degree}",
        fix="use another",
        scope="layout",
        broken=lambda s: s.sequence_parallel == 7 and {"degree": 7},
    ),
"""
    path = copy / "zerokit/rules/layout.py"
    head = "LAYOUT_RULES: tuple[Rule, ...] = (\n"
    replace_once(path, head, head + row)
    arguments = ["--params", "1b", "--gpus", "7", "--gpu", "h200", "--sp", "7"]
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "plan", *arguments], cwd=copy,
        env={"PYTHONPATH": str(copy), "HOME": str(copy)}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "nobody wants 7; use another" in done.stderr
