"""Write the list of the installed Trainer's arguments: ``python -m tools.arguments_keys``.

The fields of TrainingArguments with the kind of value that each takes, and the keys of ``fsdp_config`` that
its code asks for.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import pathlib
import re
from typing import Any

FILE = pathlib.Path(__file__).parents[1] / "zerokit" / "linter" / "training-arguments.json"
_KINDS = {"bool": "boolean", "int": "integer", "float": "number", "str": "text"}
_ASKED = re.compile(
    r"(?<!xla_)fsdp_config(?:\.get\(|\.setdefault\(|\[)\s*\"(\w+)\"|\"(\w+)\" in self\.fsdp_config"
)


def arguments() -> dict[str, Any]:
    """What the installed Transformers says."""
    import transformers
    from transformers import TrainingArguments
    from transformers.trainer import Trainer

    # not the fields' own types, which an HfArgumentParser of the same process narrows
    types = {
        name: annotation
        for part in reversed(TrainingArguments.__mro__)
        for name, annotation in inspect.get_annotations(part).items()
    }
    fields = {field.name: _kind(str(types[field.name])) for field in dataclasses.fields(TrainingArguments)}
    source = inspect.getsource(TrainingArguments) + inspect.getsource(Trainer)
    asked = {first or second for first, second in _ASKED.findall(source)}
    return {"transformers": transformers.__version__, "fields": fields, "fsdp_config": sorted(asked)}


def _kind(annotation: str) -> str:
    named = annotation.removeprefix("<class '").removesuffix("'>")
    parts = {part.strip() for part in named.split("|")} - {"None"}
    return _KINDS.get(parts.pop(), "any") if len(parts) == 1 else "any"


def main() -> None:
    """Write the file."""
    FILE.write_text(json.dumps(arguments(), indent=1) + "\n", encoding="utf-8")
    print(FILE)


if __name__ == "__main__":
    main()
