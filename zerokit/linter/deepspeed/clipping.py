"""Clipping in a script's code, which does nothing under DeepSpeed: the value of its configuration counts."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.linter.deepspeed.readers import scripts_of
from zerokit.linter.finding import Finding, Row
from zerokit.script.parser_calls import called, parser_calls
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


def lint_clipping(document: Document, key: Path, value: Any, readers: frozenset[str]) -> Iterator[Finding]:
    """Where a script that reads the file clips at another norm than the file.

    Args:
        key: where the file would say it; ``value``: what it says, None: nothing.
        readers: those under whom the code's own clipping does nothing.
    """
    held = DEFAULT if value in (None, "auto") else value
    if isinstance(held, bool) or not isinstance(held, int | float):
        return
    for script in scripts_of(document.path)[0]:
        if CLIPPING_CALL not in script.text or not script.readers & readers:
            continue
        try:
            tree = ast.parse(script.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and called(one) == CLIPPING_CALL]
        if len(calls) != 1:  # of several only the run tells which is made
            continue
        limit = _limit(calls[0], parser_calls(tree, script.path).by_attribute)
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit in (held, math.inf):
            continue
        yield _CLIPPING_IN_CODE.at(
            document, key if value is not None else key[:-1], call=CLIPPING_CALL, limit=f"{limit:g}",
            file=f"{script.path.name}:{calls[0].lineno}", held=f"{held:g}",
        )  # fmt: skip


def _limit(call: ast.Call, options: Mapping[str, object]) -> object:
    """The norm that a call is given: a literal, or the default of an option of the script's."""
    given = next((word.value for word in call.keywords if word.arg == "max_norm"), None)
    given = call.args[1] if len(call.args) > 1 else given
    if isinstance(given, ast.Attribute):
        return options.get(given.attr)
    return given.value if isinstance(given, ast.Constant) else None
