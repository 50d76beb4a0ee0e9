"""``zerokit convert``: convert a DeepSpeed configuration into FSDP2's, or back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli.base import Command
from zerokit.cli.prose import wrapped
from zerokit.cli.say import write, write_json

if TYPE_CHECKING:
    from zerokit.planner.conversion import Conversion

_TITLES = {
    "kept": "Kept",
    "changed": "Changed",
    "script": "The script must say",
    "lost": "Lost",
}


@click.command(
    "convert",
    cls=Command,
    examples=(
        ("A DeepSpeed file, as FSDP2", "zerokit convert ds_config.json --gpus 8"),
        ("FSDP version 1 as version 2", "zerokit convert fsdp.yaml --out fsdp2"),
        ("FSDP as DeepSpeed", "zerokit convert fsdp2.yaml --to deepspeed --out zero3"),
    ),
)
@click.argument("path", metavar="FILE|DIR")
@click.option(
    "--to",
    metavar="fsdp2|deepspeed",
    help="What it becomes. [default: the other one than the file's; of FSDP version 1, fsdp2]",
)
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="All ranks, where the file does not say.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Their nodes. [default: the file's, or 1]")
@click.option(
    "--model",
    metavar="NAME|PATH",
    help="Name its layers as those to wrap. [default: Accelerate does]",
)
@click.option("--out", metavar="DIR", help="Folder for the new files. [default: none is written]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output, with the files' texts.")
def command(path: str, as_json: bool, **options: Any) -> None:
    """Convert a file for DeepSpeed into its FSDP2 counterpart, or back; or FSDP version 1 into version 2.

    FILE is a DeepSpeed JSON, an accelerate YAML or a Trainer's arguments; DIR a plan's folder. Says of each
    key what became of it: kept, changed, left to the script, or lost.
    """
    from zerokit.planner.conversion import convert

    conversion = convert(path, **options)
    write_json(conversion.to_dict()) if as_json else write(_text(conversion))


def _text(conversion: Conversion) -> str:
    lines = wrapped(f"{conversion.source}: {conversion.converted_from} → {conversion.to}")
    for kind, title in _TITLES.items():
        changes = [change for change in conversion.changes if change.kind == kind]
        lines += ["", f"{title}:"] if changes else []
        for change in changes:
            becomes = f" → {_pairs(change.becomes)}" if change.becomes else ""
            text = f": {change.text}" if change.text else ""
            lines += wrapped(f"{_pairs(change.keys)}{becomes}{text}", "  ")
    written = ", ".join(conversion.files.values())
    lines += [
        "",
        *wrapped((written and f"Written: {written}") or "Nothing is written: name a folder with --out"),
    ]
    return "\n".join(lines)


def _pairs(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())
