"""TrainingArguments in JSON or YAML: what the Trainer refuses about DeepSpeed and FSDP (5.23.0)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from zerokit.linter.finding import Finding, finding_at
from zerokit.strictload import Document

SOURCE = "Transformers 5.23.0, training_args.py"


def lint_arguments(document: Document) -> Iterator[Finding]:
    """Findings about a file of TrainingArguments."""
    value = document.value
    named = value.get("deepspeed")
    if isinstance(named, str) and named and not _is_here(named, document.path):
        yield finding_at(
            document, ("deepspeed",), "arguments-deepspeed-missing",
            f"{named[:60]!r} is not here, nor beside this file: the Trainer looks for it where it is started",
            "correct the path", severity="warning", source=SOURCE,
        )  # fmt: skip
    if named and value.get("fsdp"):
        yield finding_at(
            document, ("fsdp",), "arguments-fsdp-and-deepspeed",
            "fsdp and deepspeed are both given: the Trainer refuses it",
            "keep one of the two", source="Transformers 5.23.0, trainer.py:475",
        )  # fmt: skip
    if value.get("fp16") is True and value.get("bf16") is True:
        yield finding_at(
            document, ("fp16",), "arguments-fp16-and-bf16",
            "fp16 and bf16 are both on: the Trainer refuses it",
            "keep one of the two", source=SOURCE,
        )  # fmt: skip
    if named is None and not value.get("fsdp") and not value.get("fsdp_config"):
        yield finding_at(
            document, (), "not-a-configuration",
            "these are training arguments that name no DeepSpeed JSON: there is nothing to check here",
            "check the DeepSpeed JSON that the Trainer gets", severity="note",
        )  # fmt: skip


def _is_here(name: str, beside: str) -> bool:
    try:
        return pathlib.Path(name).is_file() or (pathlib.Path(beside).parent / name).is_file()
    except (OSError, ValueError):
        return False
