"""Broken files are caught at the right line with the right fix; files people copy raise no alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.deep import ask
from zerokit.linter.deepspeed.deep import DeepCase
from zerokit.linter.deepspeed.file import Context
from zerokit.linter.files import check_files
from zerokit.strictload import load_json, load_yaml

CORPUS = Path(__file__).parents[1] / "corpus"
BROKEN: list[dict[str, Any]] = load_yaml(CORPUS / "broken.yaml").value
GOOD = sorted(path for path in (CORPUS / "good").rglob("*") if path.is_file() and path.suffix != ".md")


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case["file"])
def test_broken_file_is_caught(case: dict[str, Any]) -> None:
    path = str(CORPUS / "broken" / case["file"])
    file = check_files([path], Context(world_size=case.get("world_size")))[0]
    found = [
        (finding.location.line, finding.rule, finding.fix)
        for finding in file.findings
        if finding.severity != "note"
    ]
    match = [fix for line, rule, fix in found if (line, rule) == (case["line"], case["rule"])]
    assert match, found
    assert any(case["fix"] in fix for fix in match), match


def test_corpus_is_large_and_every_case_names_where_it_was_seen() -> None:
    assert len(BROKEN) >= 60
    assert len({case["file"] for case in BROKEN}) == len(BROKEN)
    assert all(case["seen"].startswith("https://github.com/") for case in BROKEN)
    listed = {case["file"] for case in BROKEN} | {"ds_zero3.json"}
    assert {path.name for path in (CORPUS / "broken").iterdir()} == listed


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_copied_file_raises_no_alarm(path: Path) -> None:
    for file in check_files([str(path)]):
        alarms = [finding for finding in file.findings if finding.severity != "note"]
        assert not alarms, alarms


def test_there_are_files_that_people_copy() -> None:
    assert len(GOOD) >= 35


def test_deepspeed_and_accelerate_accept_the_copied_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What raises no alarm here raises none there."""
    pytest.importorskip("deepspeed")
    monkeypatch.chdir(CORPUS / "good")
    cases = []
    for path in GOOD:
        if path.suffix == ".yaml":
            cases.append(DeepCase(mode="accelerate", path=str(path)))
        elif path.suffix in (".json", ".conf"):
            config = load_json(path).value
            degree = config.get("tensor_parallel", {}).get("autotp_size", 1)
            train, micro = config.get("train_batch_size"), config.get("train_micro_batch_size_per_gpu")
            world = train // micro if isinstance(train, int) and isinstance(micro, int) else 8
            cases.append(DeepCase(config=config, mode="classes", world_size=world, tensor_parallel=degree))
    for case, result in zip(cases, ask(cases), strict=True):
        assert result.ok, (case, result.error)
