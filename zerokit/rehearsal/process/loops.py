"""Training loops of the user's own code end when enough was seen, so that what stands behind them is reached.

``for`` and ``while`` loops that train ask one question more before each round: whether enough was seen, and
whether an optimizer step was done since they began. Nothing else of the code changes; its lines stay where
they are. Loops of installed libraries are left alone: the Trainer is told to end by its callbacks.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from zerokit.rehearsal.process.context import Context
from zerokit.rehearsal.process.guesses import is_library

_FOR, _WHILE = "__zerokit_rounds__", "__zerokit_goes_on__"
_TRAINS = re.compile(r"(?:^|_)(?:step|backward|train|fit|epoch)", re.IGNORECASE)


class Rounds:
    """The values of a ``for`` loop, until enough was seen."""

    def __init__(self, context: Context, values: Iterable[Any]) -> None:
        self._context = context
        self._values = iter(values)
        self._steps_before = context.phases.steps

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if _is_over(self._context, self._steps_before):
            raise StopIteration
        return next(self._values)


def _is_over(context: Context, steps_before: int) -> bool:
    phases = context.phases
    over = phases.enough and phases.steps > steps_before
    if over:
        context.machine.stub("rounds of training loops after their peaks repeat")
    return over


class _Endings(ast.NodeTransformer):
    """Puts the question into loops that train."""

    def __init__(self) -> None:
        self.loops = 0

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if _trains(node):
            self.loops += 1
            node.iter = _call(node.iter, _FOR)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        if _trains(node):
            self.loops += 1
            node.test = _call(node.test, _WHILE, ast.Constant(f"{node.lineno}:{node.col_offset}"))
        return node


def _call(value: ast.expr, name: str, *arguments: ast.expr) -> ast.expr:
    call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[value, *arguments], keywords=[])
    return ast.fix_missing_locations(ast.copy_location(call, value))


def _trains(loop: ast.For | ast.While) -> bool:
    """Whether its body calls something that is named for a step, a backward pass or a training."""
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                function = node.func
                if isinstance(function, ast.Attribute):
                    name = function.attr
                else:
                    name = function.id if isinstance(function, ast.Name) else ""
                if _TRAINS.search(name):
                    return True
    return False


def compiled(source: Any, path: Any) -> CodeType:
    """The code of a file of the user's.

    Raises:
        SyntaxError: as ``compile`` does.
    """
    tree = ast.parse(source, path)
    endings = _Endings()
    changed = endings.visit(tree)
    return compile(changed if endings.loops else source, path, "exec", dont_inherit=True)


def install(context: Context) -> None:
    """Loaders of source files compile the user's own with the question in their loops."""
    began: dict[str, int] = {}

    def goes_on(condition: Any, key: str) -> Any:
        if not condition:
            began.pop(key, None)
            return condition
        return not _is_over(context, began.setdefault(key, context.phases.steps))

    setattr(builtins, _FOR, lambda values: Rounds(context, values))
    setattr(builtins, _WHILE, goes_on)
    real_code, real_compile = SourceFileLoader.get_code, SourceFileLoader.source_to_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if is_library(path):
            return real_code(self, fullname)
        return self.source_to_code(self.get_data(path), path)  # a cached file has the loops as they were

    def source_to_code(self: SourceFileLoader, data: Any, path: Any, **options: Any) -> CodeType:
        if isinstance(data, ast.AST) or is_library(str(path)):
            code: CodeType = real_compile(self, data, path, **options)
            return code
        return compiled(data, path)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign,assignment]
