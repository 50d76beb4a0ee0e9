"""What zerokit itself is about to write, through the same lint as anybody's files."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.linter.accelerate.deepspeed_block import lint_pair
from zerokit.linter.accelerate.top_level import lint_accelerate, named_config
from zerokit.linter.deepspeed.file import Context, lint_deepspeed
from zerokit.linter.finding import Finding
from zerokit.rules import EVERY_READER
from zerokit.strictload import parse_json, parse_yaml

_NEVER_OURS = frozenset({"accelerate-ignored-key", "unknown-key"})
"""Warnings for others; a key that is ignored in a file of ours is a bug."""


def verify(
    texts: Mapping[str, str],
    *,
    ranks: int,
    gpus_per_node: int | None = None,
    readers: Mapping[str, frozenset[str]] | None = None,
) -> None:
    """Lint DeepSpeed JSON and accelerate YAML, by file name, for so many ranks.

    ``readers``: who reads each DeepSpeed JSON; None: each of them, of every JSON. What lies in the working
    folder never decides that of a file that is not written yet.

    Raises:
        RuntimeError: an error in them; whoever wrote them has a bug.
    """
    findings: list[Finding] = []
    configs = {}
    for name, text in texts.items():
        if name.endswith(".json") and (readers is None or name in readers):
            document = parse_json(text, name)
            configs[name] = document.value
            read_by = EVERY_READER if readers is None else readers[name]
            context = Context(world_size=ranks, gpus_per_node=gpus_per_node, readers=read_by)
            findings += lint_deepspeed(document, context)
    for name, text in texts.items():
        if not name.endswith(".yaml"):
            continue
        document = parse_yaml(text, name)
        findings += lint_accelerate(document, ranks)
        named = (named_config(document) or "").rpartition("/")[2]
        if named in configs:
            findings += lint_pair(document, configs[named], named)
    errors = [finding for finding in findings if finding.severity == "error" or finding.rule in _NEVER_OURS]
    if errors:
        first = errors[0]
        raise RuntimeError(
            f"a bug in zerokit: the {first.path} of this plan breaks {first.rule} "
            f"(line {first.location.line}): {first.message}; nothing was written, please report it"
        )
