"""Every finding about accelerate YAML, against Accelerate itself: what it refuses, and what it lets pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deepspeed.accelerate_provocations import FSDP, PROVOCATIONS, cases, write
from zerokit.linter.deepspeed.deep import DeepResult, run_deep
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.files import check_files

OURS = {"accelerate-world-size"}  # speaks of what the command line says
"""Rules that Accelerate has no say in."""


def test_every_rule_is_provoked() -> None:
    source = "".join(path.read_text() for path in Path(check_files.__code__.co_filename).parent.rglob("*.py"))
    rules = set(re.findall(r'"(accelerate-[a-z0-9-]+)"', source)) - {"accelerate-says"}
    assert rules == set(PROVOCATIONS) | OURS


@pytest.mark.parametrize("rule", PROVOCATIONS)
def test_rule_sees_its_provocation(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, rule)
    monkeypatch.chdir(path.parent)
    files = check_files(["a.yaml"], Context(model_code="class OtherLayer:"), kind="accelerate")
    assert rule in {finding.rule for file in files for finding in file.findings}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DeepResult]:
    """What Accelerate makes of every provocation, asked in one process."""
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp("accelerate")
    asked = cases(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return dict(zip(asked, run_deep(list(asked.values())), strict=True))


@pytest.mark.parametrize("rule", PROVOCATIONS)
def test_accelerate_does_what_the_rule_says(rule: str, answers: dict[str, DeepResult]) -> None:
    provocation, answer = PROVOCATIONS[rule], answers[rule]
    if provocation.says is None:
        assert answer.ok, answer.error
        assert provocation.built.items() <= answer.built.items()
    else:
        assert not answer.ok
        assert provocation.says in str(answer.error)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SHARDING_STRATEGY", "FULL"),
        ("AUTO_WRAP_POLICY", "LAYERS"),
        ("BACKWARD_PREFETCH", "BEFORE"),
        ("STATE_DICT_TYPE", "FULL"),
    ],
)
def test_fsdp_refuses_the_values_that_are_errors(
    variable: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    path = tmp_path / "a.yaml"
    path.write_text(f"{FSDP}fsdp_config: {{fsdp_{variable.lower()}: {value}}}\n")
    rules = {finding.rule for finding in check_files([str(path)])[0].findings}
    assert rules - {"accelerate-fsdp-no-wrap"} == {"accelerate-fsdp-value"}
    monkeypatch.setenv(f"FSDP_{variable}", value)
    with pytest.raises((KeyError, ValueError)):
        dataclasses.FullyShardedDataParallelPlugin()


def test_fsdp_keys_are_named_with_and_without_their_prefix(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"{FSDP}fsdp_config: {{fsdp_version: 2, auto_wrap_policy: SIZE_BASED_WRAP, shard: 1}}\n")
    assert [(finding.rule, finding.location.line) for finding in check_files([str(path)])[0].findings] == [
        ("accelerate-ignored-key", 5)
    ]
