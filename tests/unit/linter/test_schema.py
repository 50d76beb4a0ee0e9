"""The JSON Schemas accept the files that people copy, and catch what needs no second look."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.schema_mistakes import mistakes
from zerokit.cli import run
from zerokit.linter.files import check_files
from zerokit.linter.schema import accelerate_schema, deepspeed_schema
from zerokit.strictload import load_json, load_yaml

ROOT = Path(__file__).parents[3]
GOOD = ROOT / "tests" / "corpus" / "good"
JSONS = sorted(path for path in GOOD.iterdir() if path.suffix in (".json", ".conf"))
YAMLS = sorted(GOOD.glob("*.yaml"))


def errors(schema: dict[str, Any], value: object) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(value)]


@pytest.mark.parametrize("path", [*JSONS, *YAMLS], ids=lambda path: path.name)
def test_files_that_people_copy_are_valid(path: Path) -> None:
    if path.suffix == ".yaml":
        assert not errors(accelerate_schema(), load_yaml(path).value)
    else:
        assert not errors(deepspeed_schema(), load_json(path).value)


def test_mistakes_of_one_key_are_caught() -> None:
    schema = deepspeed_schema()
    caught, missed = 0, []
    for path in JSONS[::4]:
        for kind, broken in mistakes(load_json(path).value, path.name):
            if errors(schema, broken):
                caught += 1
            else:
                missed.append((kind, path.name))
    assert caught > 100 and len(missed) <= 0.02 * caught, missed


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {zero_stage: 2}\n", True),
        ("distributed_type: NO\n", True),
        ("distributed_type: deepspeed\n", False),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, reshard_after_forward: true}\n", True),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_shard: 2}\n", False),
        ("distributed_type: DEEPSPEED\nnum_processes: '8'\n", False),
        ("distributed_type: DEEPSPEED\nmain_process_port: 99999\n", False),
        ("distributed_type: DEEPSPEED\nturbo: true\n", False),
    ],
)
def test_accelerate_schema(text: str, valid: bool) -> None:
    assert (not errors(accelerate_schema(), yaml.safe_load(text))) is valid


@pytest.mark.parametrize("name", ["deepspeed", "accelerate"])
def test_schema_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"].endswith("draft-07/schema#")
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(schema)


def test_pre_commit_hooks_and_action_run_what_exists() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    for hook in hooks:
        assert run([*shlex.split(hook["entry"])[1:], str(JSONS[0])]) == 0
        wanted = re.compile(hook["files"])
        for name in (
            "ds_config.json",
            "configs/zero3.json",
            "deepspeed/a.json",
            "accelerate.yaml",
            "hostfile",
        ):
            assert wanted.search(name), name
        for name in ("package.json", "src/config.json", "pyproject.toml"):
            assert not wanted.search(name), name
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    commands = [step["run"] for step in action["runs"]["steps"]]
    assert any("zerokit check" in command and "--format github" in command for command in commands)


def test_a_good_file_of_the_schema_is_a_good_file_of_check() -> None:
    files = check_files([str(path) for path in JSONS])
    assert not [finding for file in files for finding in file.findings if finding.severity == "error"]
