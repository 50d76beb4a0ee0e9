"""Clipping and accumulation in a script's code, in place of which the configuration counts."""

from __future__ import annotations

import ast
import math
import pathlib
from collections.abc import Iterator
from typing import Any

from zerokit.linter.deepspeed.readers import scripts_of
from zerokit.linter.finding import Finding, Row
from zerokit.script.parser_calls import called, written_value
from zerokit.strictload import Document, Path

CLIPPING_CALL = "clip_grad_norm_"
DEFAULT = 1.0
"""Of DeepSpeed where nobody says one (runtime/constants.py:203, 0.19.8; seen at every stage), and what
Accelerate fills in for ``"auto"`` (1.15.0, accelerator.py:2224)."""
_CLIPPING_IN_CODE = Row(
    "clipping-in-code", "gradient_clipping",
    "{call} of {limit} in {file} does nothing under DeepSpeed, which clips at {held}",
    "set gradient_clipping to {limit}",
    "DeepSpeed 0.19.8, runtime/engine.py:1778, constants.py:203", "warning",
)  # fmt: skip
_ACCUMULATION_IN_CODE = Row(
    "accumulation-in-code", "gradient_accumulation_steps",
    "{call} in {file} does nothing: Accelerate takes the file's {held}",
    "set gradient_accumulation_steps to {steps}, or give the code {held}",
    "Accelerate 1.15.0, accelerator.py:2216", "warning",
)  # fmt: skip
_ACCUMULATION_CALLS = (
    ("Accelerator", "gradient_accumulation_steps", 3),
    ("GradientAccumulationPlugin", "num_steps", 0),
)  # fmt: skip
"""Call, keyword and position of the number of batches; 1 says nothing: it is what Accelerate assumes."""


def lint_clipping(document: Document, key: Path, value: Any, readers: frozenset[str]) -> Iterator[Finding]:
    """Where a script that reads the file clips at another norm than the file.

    Args:
        key: where the file would say it; ``value``: what it says, None: nothing.
        readers: those under whom the code's own clipping does nothing.
    """
    held = DEFAULT if value in (None, "auto") else value
    if isinstance(held, bool) or not isinstance(held, int | float):
        return
    for name, limit in _said(document, CLIPPING_CALL, "max_norm", 1, readers):
        if not isinstance(limit, bool) and isinstance(limit, int | float) and limit not in (held, math.inf):
            yield _CLIPPING_IN_CODE.at(
                document, key if value is not None else key[:-1], call=CLIPPING_CALL, limit=f"{limit:g}",
                file=name, held=f"{held:g}",
            )  # fmt: skip


def lint_accumulation(document: Document, key: Path, value: Any) -> Iterator[Finding]:
    """Where an Accelerator accumulates another number of batches than the file's ``value`` at ``key``."""
    if isinstance(value, bool) or not isinstance(value, int):
        return
    for call, keyword, position in _ACCUMULATION_CALLS:
        for name, steps in _said(document, call, keyword, position, frozenset({"accelerate"})):
            if not isinstance(steps, bool) and isinstance(steps, int) and steps not in (1, value):
                yield _ACCUMULATION_IN_CODE.at(
                    document, key, call=f"{call}({keyword}={steps})", steps=steps, file=name, held=value
                )


def _said(
    document: Document, call: str, keyword: str, position: int, readers: frozenset[str]
) -> Iterator[tuple[str, object]]:
    """``train.py:12`` and the value that the only such call in each script beside the file is given.

    Args:
        position: of the value, if it has no keyword.
    """
    path = pathlib.Path(document.path)
    scripts, name_it = scripts_of(document.path)
    others = [] if name_it else [beside.name for beside in path.parent.glob(f"*{path.suffix}")]
    for script in scripts:
        if call not in script.text or not script.readers & readers:
            continue
        if any(other in script.text for other in others):  # it reads that one
            continue
        try:
            tree = ast.parse(script.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and called(one) == call]
        if len(calls) != 1:  # of several only the run tells which is made
            continue
        (one,) = calls
        given = next((word.value for word in one.keywords if word.arg == keyword), None)
        given = one.args[position] if len(one.args) > position else given
        yield f"{script.path.name}:{one.lineno}", written_value(given, tree, script.path)
