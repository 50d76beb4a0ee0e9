"""Every finding about accelerate YAML, against Accelerate itself: what it refuses, and what it lets pass."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.deepspeed.accelerate_provocations import FSDP, PROVOCATIONS, cases, write
from tests.support.deep import ask
from zerokit.linter.accelerate.keys import key_list
from zerokit.linter.deepspeed.deep import DeepCase, DeepResult
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
        return dict(zip(asked, ask(list(asked.values())), strict=True))


@pytest.mark.parametrize("rule", PROVOCATIONS)
def test_accelerate_does_what_the_rule_says(rule: str, answers: dict[str, DeepResult]) -> None:
    provocation, answer = PROVOCATIONS[rule], answers[rule]
    if provocation.says is None:
        assert answer.ok, answer.error
        assert provocation.built.items() <= answer.built.items()
    else:
        assert not answer.ok
        assert provocation.says in str(answer.error)


VALUES = ("null", "yes")


def test_fsdp_values_that_are_errors_are_those_that_accelerate_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    # the launcher's stand-in below says both for itself, as they ask for a GPU
    keys = {*key_list()["fsdp_config"]} - {"fsdp_sync_module_states", "fsdp_cpu_ram_efficient_loading"}
    paths = []
    for version, key, value in itertools.product((1, 2), sorted(keys), VALUES):
        policy = "SIZE_BASED_WRAP" if key == "fsdp_min_num_params" else "TRANSFORMER_BASED_WRAP"
        block = {"fsdp_version": version, "fsdp_auto_wrap_policy": policy, key: value}
        paths.append(Path(f"{version}-{key}-{VALUES.index(value)}.yaml"))
        paths[-1].write_text(
            f"{FSDP}fsdp_config:\n" + "".join(f"  {name}: {said}\n" for name, said in block.items())
        )
    files = check_files([*map(str, paths)], kind="accelerate")
    ours = [any(finding.severity == "error" for finding in file.findings) for file in files]
    answers = ask([DeepCase(mode="accelerate", path=str(path.absolute())) for path in paths])
    unlike = {
        path.read_text(): str(answer.error)
        for path, refused, answer in zip(paths, ours, answers, strict=True)
        if refused is answer.ok
    }
    assert unlike == {}
    assert 10 < sum(ours) < len(ours) - 10


def test_fsdp_keys_are_named_with_and_without_their_prefix(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"{FSDP}fsdp_config: {{fsdp_version: 2, auto_wrap_policy: SIZE_BASED_WRAP, shard: 1}}\n")
    assert [(finding.rule, finding.location.line) for finding in check_files([str(path)])[0].findings] == [
        ("accelerate-ignored-key", 5)
    ]


def test_a_class_to_wrap_is_one_whole_name(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    named = "fsdp_transformer_layer_cls_to_wrap: 'OtherLayer, LastLayer'"
    path.write_text(f"{FSDP}fsdp_config: {{fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, {named}}}\n")
    (file,) = check_files([str(path)], Context(model_code="class OtherLayer: ...\nclass LastLayer: ..."))
    (finding,) = file.findings
    assert (finding.rule, "' LastLayer'" in finding.message) == ("accelerate-fsdp-class", True)
