"""Every rule has an example that breaks it, and an explanation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zerokit.cli import run
from zerokit.linter.explain import as_text, examples, explain
from zerokit.rules import all_rules
from zerokit.rules.layout import LAYOUT_RULES

LINTER = Path(__file__).parents[3] / "zerokit" / "linter"
# said of what the command line names, by DeepSpeed itself, or of a file that is none
WITHOUT_EXAMPLE = {
    "precision-not-in-hardware", "internal-error", "unreadable", "accelerate-says", "deepspeed-says",
    "hostfile-too-many", "does-not-fit", "accelerate-not-a-mapping",
    "pipeline-with-stage-2",
}  # fmt: skip


def test_the_example_of_each_rule_breaks_it() -> None:
    for rule in examples():
        explanation = explain(rule)
        assert explanation.finding.rule == rule
        text = as_text(explanation)
        assert explanation.finding.message in text and "Example" in text, rule


def test_every_rule_has_an_example() -> None:
    source = "".join(path.read_text() for path in LINTER.rglob("*.py"))
    named = set(re.findall(r'"((?:accelerate|hostfile|json|yaml|arguments|trainer)-[a-z0-9-]+)"', source))
    rules = {rule.id for rule in all_rules()} - {rule.id for rule in LAYOUT_RULES}  # those are the planner's
    assert rules - WITHOUT_EXAMPLE <= set(examples())
    assert named - WITHOUT_EXAMPLE - {"json-"} <= set(examples())


def test_explain_prints_and_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--explain", "fp16-and-bf16"]) == 0
    assert "both enabled" in capsys.readouterr().out
    assert run(["check", "--explain", "fp16-and-bf"]) == 2
    assert "did you mean fp16-and-bf16?" in capsys.readouterr().err
    assert run(["check", "--explain", "nosuchrule"]) == 2
    assert len(said := capsys.readouterr().err) < 200 and "in [ ]" in said
    assert run(["check", "--explain", "offload-anything-whatever-it-is"]) == 2
    assert "did you mean " in capsys.readouterr().err
