"""The arguments of a plan (:data:`zerokit.planner.options.OPTIONS`) as options of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from zerokit.fields import as_options
from zerokit.planner.options import BY_NAME, OPTIONS, folded

F = TypeVar("F", bound=Callable[..., Any])


_ELSEWHERE: Mapping[str, Mapping[str, str | None]] = {
    "estimate": {
        "all_gpus": None,
        "pipeline_module": None,
        "gradient_accumulation": "Forward passes per optimizer step. [default: 1]",
        "micro_batch": "Sequences per GPU and forward pass. [default: 1]",
        "zero": "ZeRO stage. [default: 0]",
        "tp": "Tensor parallel degree; ranks of a group must get the same batch. [default: 1]",
        "pp": "Pipeline stages of a script that builds a PipelineModule. [default: 1]",
        "sp": "Sequence parallel degree (Ulysses); batches must carry position_ids. [default: 1]",
        "checkpointing": "Activation checkpointing. [default: none]",
        "offload_optimizer": "Where the optimizer states live. [default: none]",
        "offload_param": "Where ZeRO-3's weights live. [default: none]",
    },
    "size": {
        "nodes": None,
        "device": None,
        "no_calibration": None,
        "all_gpus": None,
        "gpus": "No more GPUs than these, on all nodes together.",
        "gpu": "Kinds of GPU, comma-separated; `zerokit gpus` lists them. [default: eight typical ones]",
        "host_ram": "Host memory per node: 1TiB. [default: what such nodes have]",
        "method": "What is trained, comma-separated to compare. [default: each of them]",
    },
    "tune": {
        "inference": None,
        "quant": None,
        "new_tokens": None,
        "vram": None,
        "all_gpus": None,
        "gpu": "Refuses to run where this machine has another kind of GPU.",
    },
}
"""Command and argument → what the help says of it there; None: it is refused there, and not in the help."""
_DEGREES = ("tp", "sp")


def _fold(ctx: click.Context, param: click.Parameter, value: object) -> object:
    return folded(BY_NAME[param.name or ""], value) if isinstance(value, str) else value


def shared(name: str) -> Callable[[F], F]:
    """Adds every argument of a plan to the command of this name, in the order of the table.

    Those that a command refuses are hidden: the error says what to do instead.
    """
    elsewhere = _ELSEWHERE.get(name, {})

    def add(command: F) -> F:
        for option in reversed(OPTIONS):
            text = elsewhere.get(option.name, option.help)
            one = name == "estimate" and option.name in _DEGREES
            command = click.option(
                option.option,
                is_flag=option.is_flag,
                metavar=None if option.is_flag else "N" if one else option.metavar,
                callback=_fold,
                default="auto" if option.name == "device" else None,
                help=as_options(text or option.help),
                hidden=text is None,
            )(command)
        return command

    return add


def of_check(command: F) -> F:
    """Adds the arguments that say whether a file fits."""
    for option in reversed(OPTIONS):
        if option.in_check is not None:
            command = click.option(
                option.option, metavar=option.metavar, help=option.in_check, callback=_fold
            )(command)
    return command


def explain(command: F) -> F:
    """Adds ``--explain``: the details below the answer."""
    text = "Show memory and time in detail, other plans and the files too."
    return click.option("-v", "--explain", is_flag=True, help=text)(command)
