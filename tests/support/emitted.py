"""What zerokit writes, through the same lint as anybody's files."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.linter.accelerate.deepspeed_block import lint_pair
from zerokit.linter.accelerate.top_level import lint_accelerate, named_config
from zerokit.linter.deepspeed.file import Context, lint_deepspeed
from zerokit.linter.finding import Finding
from zerokit.rules import EVERY_READER
from zerokit.strictload import parse_json, parse_yaml

_NEVER_OURS = ("accelerate-ignored-key", "unknown-key")
"""Warnings for others; a key that is ignored in a file of ours is a bug."""


def verify(texts: Mapping[str, str], *, ranks: int, gpus_per_node: int | None = None) -> None:
    """No error in DeepSpeed JSON and accelerate YAML, by file name, for so many ranks."""
    findings: list[Finding] = []
    context = Context(world_size=ranks, gpus_per_node=gpus_per_node, readers=EVERY_READER)
    configs = {}
    for name, text in texts.items():
        if name.startswith("ds_config"):
            document = parse_json(text, name)
            configs[name] = document.value
            findings += lint_deepspeed(document, context)
    for name, text in texts.items():
        if name.endswith(".yaml"):
            document = parse_yaml(text, name)
            findings += lint_accelerate(document, ranks)
            named = (named_config(document) or "").rpartition("/")[2]
            findings += lint_pair(document, configs[named], named) if named in configs else []
    assert not [one for one in findings if one.severity == "error" or one.rule in _NEVER_OURS]
