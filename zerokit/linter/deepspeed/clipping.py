"""Clipping and accumulation in a script's code, in place of which the configuration counts."""

from __future__ import annotations

import ast
import math
import pathlib
from collections.abc import Iterator
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
    """Where a script that reads the file clips at another norm than the file. ``key``: where the file would
    say it; ``value``: what it says, None: nothing. ``readers``: those under whom the code's own clipping does
    nothing."""
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
    ``position``: of the value, if it has no keyword."""
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
        yield f"{script.path.name}:{one.lineno}", _written_value(given, tree, script.path)


def _written_value(given: ast.expr | None, tree: ast.AST, path: pathlib.Path, depth: int = 4) -> object:
    """The literal that an expression stands for where the file gives it once: by itself, as an option's
    default, or under the name that is read. None: only the run knows."""
    if isinstance(given, ast.Constant):
        return given.value
    if given is None or not depth:
        return None
    if isinstance(given, ast.Call) and called(given) in ("float", "int") and len(given.args) == 1:
        value = _written_value(given.args[0], tree, path, depth - 1)
        return value if isinstance(value, int | float) else None
    options = parser_calls(tree, path).by_attribute
    if isinstance(given, ast.Attribute) and given.attr in options:
        return options[given.attr]
    name = _name(given)
    values = [value for at, value in _names_given(tree) if at == name] if name else []
    return _written_value(values[0], tree, path, depth - 1) if len(values) == 1 else None


def _names_given(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Names, attributes and keys that the file gives a value, each time, with the value where it shows."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((_name(target), value) for target in targets)
            case ast.AnnAssign(target=target, value=ast.Call(keywords=[*words])):  # field(default=…)
                yield _name(target), next((word.value for word in words if word.arg == "default"), None)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                yield _name(target), value
            case ast.AugAssign(target=target) | ast.For(target=target) | ast.NamedExpr(target=target):
                yield _name(target), None
            case ast.arg(arg=name):
                yield name, None
            case ast.Dict(keys=keys, values=values):
                yield from (
                    (key.value, value)
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                )


def _name(node: ast.expr) -> str:
    """What an expression reads or sets: a name, an attribute, or a literal key; empty: something else."""
    match node:
        case (
            ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name)))
        ):
            return name
    return ""
