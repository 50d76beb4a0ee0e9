"""Findings as text, with the line that they are about."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.support.check_runs import GOOD as CONFIG
from tests.support.check_runs import check, write
from zerokit.linter.files import check_files
from zerokit.linter.output import as_junit, as_sarif, as_text

BROKEN = '{\n "train_micro_batch_size_per_gpu": 1,\n "zero_optimization": {"stage": 7}\n}\n'
GOOD = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}'


def test_the_source_line_stands_below_the_finding(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(BROKEN)
    lines = as_text(check_files([str(path)])).splitlines()
    assert lines[1] == '  3 |  "zero_optimization": {"stage": 7}'
    assert lines[2] == "    |                        ^^^^^^^"
    path.write_text(GOOD[:-1] + ', "comet": {"api_key": 3}}')
    assert "api_key" not in "".join(as_text(check_files([str(path)])).splitlines()[1:2])


def test_fix_says_where_it_has_nothing_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the answer is the same as without it."""
    wrong = write(tmp_path, "wrong.json", {**CONFIG, "train_batch_size": 7, "gradient_accumulation_steps": 2})
    err = check(wrong, "--fix", "--world-size", "2", capsys=capsys)[2]
    assert err == "zerokit: nothing that --fix can write\n"
    zero = {"stage": 2, "offload_param": {"device": "cpu"}}
    ignored = write(
        tmp_path, "ignored.json", {**CONFIG, "gradient_accumulation_step": 2, "zero_optimization": zero}
    )
    check(ignored, "--fix", capsys=capsys)
    once_more = check(ignored, "--fix", capsys=capsys)[2]
    assert once_more.startswith("zerokit: nothing that --fix can write; --fix --unsafe writes ")
    assert "nothing that" not in check(ignored, capsys=capsys)[2]
    assert check(write(tmp_path, "good.json", CONFIG), "--fix", capsys=capsys)[2] == ""


BROKEN_report = '{\n "train_micro_batch_size_per_gpu": 1,\n "zero_optimization": {"stage": 7}\n}\n'
GOOD_report = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}'


def test_sarif_is_what_code_scanning_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(BROKEN_report)
    Path("good.json").write_text(GOOD_report)
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
    path.write_text(GOOD_report[:-1] + ', "a<b>&\\u0001": 1, "fp16": {"<": 1}}')
    root = ElementTree.fromstring(as_junit(check_files([str(path)])))
    cases = root.findall("./testsuite/testcase")
    assert [case.get("name") for case in cases] == [str(path)]
    assert root.get("failures") == str(len(root.findall(".//failure"))) == "3"
