"""Both ends of the range of every rule, on the real older versions.

    OLDER_VERSIONS=FOLDER python -m pytest tests/deepspeed/test_rule_versions.py

``FOLDER`` keeps ``deepspeed-V`` and ``accelerate-V`` as ``pip install --no-deps --target`` makes them; what
is not there is installed. Without the variable nothing here runs: it takes a minute for each version.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deepspeed import accelerate_provocations, rule_provocations
from zerokit.linter.accelerate import keys
from zerokit.linter.deepspeed import deep, tables
from zerokit.linter.deepspeed.deep import DeepCase, DeepResult, run_deep
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.files import check_files
from zerokit.rules import rule

FOLDER = os.environ.get("OLDER_VERSIONS", "")
if not FOLDER:
    pytest.skip("OLDER_VERSIONS names no folder for older versions", allow_module_level=True)
OLDER = sorted(tables.TABLES.versions.values(), key=tables.minor)[:-1]
OLDER_ACCELERATE = sorted(keys.TABLES.versions.values(), key=tables.minor)[:-1]
ASKED_OTHERWISE = {
    # the degree is not in the file
    "pipeline-with-stage-2", "pipeline-block-with-stage-2",
    # PyTorch Lightning fills it
    "batch-size-left-out",
    # DeepSpeed builds it, and the model fails later
    "tensor-parallel-beyond-heads",
    # fails for the reader that this cannot be: the optimizer is the script's
    "cpu-offload-with-scripts-optimizer",
    # another package is needed
    "removed-one-bit-optimizer",
}  # fmt: skip


def package(name: str, version: str) -> str:
    """The folder of an older version."""
    target = Path(FOLDER, f"{name}-{version}")
    if not target.is_dir():
        command = ["pip", "install", "-q", "--no-deps", "--target", str(target), f"{name}=={version}"]
        subprocess.run([sys.executable, "-m", *command], check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    return str(target)


def asked_of(name: str, version: str, cases: list[DeepCase]) -> list[DeepResult]:
    """What an older version says."""
    environment = {**deep.environment(), "PYTHONPATH": package(name, version)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deep, "_environment", lambda: environment)
        return run_deep(cases)


@functools.cache
def answers(version: str) -> dict[str, DeepResult]:
    """What an older DeepSpeed says to every provocation."""
    cases = rule_provocations.cases()
    return dict(zip(cases, asked_of("deepspeed", version, list(cases.values())), strict=True))


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("rule_id", rule_provocations.PROVOCATIONS)
def test_a_rule_holds_in_its_range_and_nowhere_else(rule_id: str, version: str) -> None:
    provocation, answer, known = (
        rule_provocations.PROVOCATIONS[rule_id],
        answers(version)[rule_id],
        rule(rule_id),
    )
    warns_only = known.silent or provocation.says is None
    as_said = answer.ok if warns_only else str(provocation.says).lower() in str(answer.error).lower()
    if known.holds_in(tables.minor(version)):
        assert as_said, answer.error
    elif not warns_only:
        assert not as_said, answer.error


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("rule_id", sorted({*rule_provocations.PROVOCATIONS} - ASKED_OTHERWISE))
def test_what_an_older_version_refuses_is_an_error(rule_id: str, version: str, tmp_path: Path) -> None:
    provocation, answer = rule_provocations.PROVOCATIONS[rule_id], answers(version)[rule_id]
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(provocation.config))
    world_size = None if provocation.config.get("train_batch_size") == 5 else provocation.world_size
    with tables.TABLES.chosen(version):
        file = check_files([str(path)], Context(world_size=world_size))[0]
    assert answer.ok or file.failed, answer.error


@functools.cache
def accelerate_answers(version: str) -> dict[str, DeepResult]:
    """What an older Accelerate makes of every provocation."""
    folder = Path(FOLDER, f"provocations-{version}-{os.getpid()}")
    folder.mkdir(parents=True)
    cases = accelerate_provocations.cases(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return dict(zip(cases, asked_of("accelerate", version, list(cases.values())), strict=True))


@pytest.mark.parametrize("version", OLDER_ACCELERATE)
@pytest.mark.parametrize("name", accelerate_provocations.PROVOCATIONS)
def test_rules_of_accelerate_hold_in_its_older_versions(name: str, version: str) -> None:
    provocation, answer = accelerate_provocations.PROVOCATIONS[name], accelerate_answers(version)[name]
    if provocation.says is None:
        assert answer.ok, answer.error
    else:
        assert provocation.says in str(answer.error)
