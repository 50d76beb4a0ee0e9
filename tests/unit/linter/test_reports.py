"""SARIF and JUnit, as their readers have them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from zerokit.linter.files import check_files
from zerokit.linter.reports import as_junit, as_sarif

BROKEN = '{\n "train_micro_batch_size_per_gpu": 1,\n "zero_optimization": {"stage": 7}\n}\n'
GOOD = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}'


def test_sarif_is_what_code_scanning_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(BROKEN)
    Path("good.json").write_text(GOOD)
    files = check_files(["ds.json", "good.json"])
    log = json.loads(as_sarif(files))
    (only,) = log["runs"]
    assert log["version"] == "2.1.0" and only["tool"]["driver"]["name"] == "zerokit"
    (result,) = only["results"]
    assert only["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "wrong-value"
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "ds.json"
    assert location["region"] == {"startLine": 3, "startColumn": 24}


def test_junit_is_well_formed_whatever_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a<&.json"
    path.write_text(GOOD[:-1] + ', "a<b>&\\u0001": 1, "fp16": {"<": 1}}')
    root = ElementTree.fromstring(as_junit(check_files([str(path)])))
    cases = root.findall("./testsuite/testcase")
    assert [case.get("name") for case in cases] == [str(path)]
    assert root.get("failures") == str(len(root.findall(".//failure"))) == "3"
