"""Whether somebody's DeepSpeed file fits, as ``zerokit estimate`` sees it."""

from __future__ import annotations

from typing import Any

from zerokit.cli.inprocess import json_of
from zerokit.errors import NothingFits
from zerokit.units import format_gib

_PASSED_ON = ("model", "params", "gpus", "nodes", "gpu", "vram", "seq_len")


def why_it_does_not_fit(path: str, options: dict[str, Any]) -> str | None:
    """A sentence with the figures, or ``None`` when the file fits (or no memory was named)."""
    arguments = ["--deepspeed", path]
    for name in _PASSED_ON:
        if options.get(name):
            arguments += [f"--{name.replace('_', '-')}", str(options[name])]
    if options.get("world_size") and not options.get("gpus"):
        arguments += ["--gpus", str(options["world_size"])]
    try:
        answer = json_of("estimate", arguments)
    except NothingFits as error:
        return str(error)
    if answer["fits"] is not False:
        return None
    return (
        f"does not fit: the worst GPU needs {format_gib(answer['min_vram_bytes'])} "
        f"(peak of tensors {format_gib(answer['peak_allocated_bytes'])})"
    )
