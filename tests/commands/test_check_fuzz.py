"""Whatever the files hold, every format shows the findings of all of them, and zerokit never fails."""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import io
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from zerokit.cli import run
from zerokit.errors import FileInputError
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.files import INTERNAL_ERROR, check_files
from zerokit.linter.fix import fix_file
from zerokit.linter.output import as_dict, as_github, as_text
from zerokit.strictload import load_json

CORPUS = Path(__file__).parents[1] / "corpus"
RECIPES = Path(__file__).parents[2] / "recipes"
SEEDS = sorted(
    path
    for folder in (CORPUS / "good", CORPUS / "broken", RECIPES)
    for path in folder.iterdir()
    if path.is_file() and path.suffix != ".md"
)
ODD: list[Any] = [
    None, True, False, 0, -1, 3, 2.5, 1e308, 10**30, "", "auto", "x", "1e5", "true", [], [1], ["auto"],
    [[]], {}, {"a": [1]}, {"": None}, {"enabled": "auto"}, {"device": 3},
    "\u0000", "é", "{key}", "a.b", [{"stage": 3}],
]  # fmt: skip
BROKEN = '{\n "train_micro_batch_size_per_gpu": 1,\n "zero_optimization": {"stage": 7}\n}\n'


def containers(value: Any) -> list[Any]:
    """Every mapping and list of a document."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict | list) and value else []
    return own + [inner for child in children for inner in containers(child)]


def with_odd_values(value: Any, chance: random.Random) -> Any:
    """The document with a few values replaced, keys renamed and blocks moved."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.randint(1, 3)):
        parts = containers(value)
        if not parts:
            return copy.deepcopy(chance.choice(ODD))
        part = chance.choice(parts)
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        if not keys:
            continue
        key = chance.choice(keys)
        if isinstance(part, dict) and chance.random() < 0.2:
            part[chance.choice(["", "x.y", "stage", "params", f"{key}s"])] = part.pop(key)
        else:
            part[key] = copy.deepcopy(chance.choice(ODD))
    return value


def with_odd_text(text: str, chance: random.Random) -> str:
    """The text with a piece taken out, doubled, or replaced by a mark of its grammar."""
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice([0, 1, 1, 5, 40]))
        middle = chance.choice(
            ["", text[start:end] * 2, "{", "}", "[", '"', ":", ",", "\n", "\t", "#", "&a *a", "\r", "﻿", "- "]
        )
        text = text[:start] + middle + text[end:]
    return text


def odd_file(path: Path, chance: random.Random) -> str:
    """A file that a seed turned into."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if chance.random() < 0.6 and path.suffix in (".json", ".conf"):
        try:
            return json.dumps(with_odd_values(load_json(path, strict=False).value, chance), indent=1)
        except FileInputError:
            pass
    return with_odd_text(text, chance)


@functools.cache
def a_plan() -> Path:
    """A plan file, as ``zerokit plan`` writes it."""
    folder = tempfile.mkdtemp(prefix="zerokit-fuzz-")
    atexit.register(shutil.rmtree, folder)
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["plan", "--params", "1b", "--gpus", "1", "--gpu", "a100-80gb", "--out", folder]) == 0
    return Path(folder) / "plan.yaml"


def shown_in_every_format(folder: Path, paths: list[str], context: Context) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run(["check", *paths, "--json"]) == 2
    listed = json.loads(printed.getvalue())["findings"]
    assert INTERNAL_ERROR not in {item["rule"] for item in listed}
    files = check_files(paths, context)
    wrong = [finding for file in files for finding in file.findings if finding.rule == INTERNAL_ERROR]
    assert not wrong, wrong
    body = json.loads(json.dumps(as_dict(files)))
    assert any(item["path"] == paths[-1] and item["line"] == 3 for item in body["findings"])
    assert f"{paths[-1]}:3:" in as_text(files, notes=True)
    assert all(line.startswith("::") for line in as_github(files, notes=True).splitlines())


@given(st.sampled_from([None, *SEEDS]), st.integers(0, 2**32))
@hypothesis_settings(max_examples=40, deadline=None)  # other ones at each run
def test_one_odd_file_never_loses_the_findings_of_another(path: Path | None, number: int) -> None:
    seed = path or a_plan()
    chance = random.Random(number)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        odd = folder / seed.name
        odd.write_text(odd_file(seed, chance), encoding="utf-8", newline="")
        broken = folder / "broken.json"
        broken.write_text(BROKEN)
        world = chance.choice([None, 1, 4])
        context = Context(world_size=world, gpus_per_node=world, key_value_heads=chance.choice([None, 2]))
        shown_in_every_format(folder, [str(odd), str(broken)], context)
        for file in check_files([str(odd)]):
            fix_file(file, unsafe=chance.random() < 0.5)
        shown_in_every_format(folder, [str(odd), str(broken)], context)


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("key", ["optimizer", "scheduler", "zero_optimization", "data_types", "fp16"])
def test_odd_blocks_and_parameters(key: str, value: object, tmp_path: Path) -> None:
    for name, config in (("a.json", {key: value}), ("b.json", {key: {"type": "AdamW", "params": value}})):
        path = tmp_path / name
        path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, **config}))
        rules = {finding.rule for file in check_files([str(path)]) for finding in file.findings}
        assert INTERNAL_ERROR not in rules


@pytest.mark.parametrize("style", ["json", "github", "text"])
def test_a_list_under_params_keeps_the_other_files_findings(
    style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd, broken = tmp_path / "odd.json", tmp_path / "broken.json"
    odd.write_text('{"train_micro_batch_size_per_gpu": 1,\n "optimizer": {"type": "AdamW", "params": [1]}}')
    broken.write_text(BROKEN)
    assert run(["check", str(odd), str(broken), "--format", style]) == 2
    out = capsys.readouterr().out
    assert "params must be an object" in out and "stage is 7" in out


def test_a_fault_of_zerokit_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("zerokit.linter.files.lint_hostfile", fails)
    hosts, broken = tmp_path / "hostfile", tmp_path / "broken.json"
    hosts.write_text("a slots=1\n")
    broken.write_text(BROKEN)
    assert run(["check", str(hosts), str(broken), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {item["rule"] for item in findings} >= {"internal-error", "wrong-value"}
    assert "on purpose" in findings[0]["message"]
