"""``zerokit weights``: write a divided checkpoint's weights as from_pretrained loads them."""

from __future__ import annotations

from pathlib import Path

import click

from zerokit.cli.base import Command
from zerokit.cli.say import say, write


@click.command(
    "weights",
    cls=Command,
    examples=(
        ("Of a run's newest checkpoint", "zerokit weights runs/first --out model"),
        ("What it would take", "zerokit weights out/checkpoint-200 --out model --dry-run"),
    ),
)
@click.argument("path", metavar="RUN|CHECKPOINT")
@click.option("--out", required=True, metavar="DIR", help="New folder for the weights.")
@click.option("--dry-run", is_flag=True, help="Say what it takes, and write nothing.")
def command(path: str, out: str, dry_run: bool) -> None:
    """Write the whole weights of a divided checkpoint as safetensors, with its configuration and tokenizer.

    Of ZeRO's checkpoints DeepSpeed's zero_to_fp32 writes them, of FSDP's Accelerate's merge_fsdp_weights.
    The disk and host memory that it takes are said before; it ends where there is less (exit code 3).
    """
    from zerokit.checkpoints.converting import Weights
    from zerokit.launcher.resume import is_run, point_of

    folder = Path(path)
    checkpoint = point_of(folder).checkpoint.path if is_run(folder) else folder
    weights = Weights.of(checkpoint)
    say(f"writing the weights of {checkpoint} takes {weights.needs}")
    for name in weights.write(Path(out), dry_run=dry_run):
        write(str(Path(out, name)))
