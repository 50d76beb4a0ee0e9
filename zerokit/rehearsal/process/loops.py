"""Training loops of the user's own code end when enough was seen, so that what stands behind them is reached.

``for`` and ``while`` loops that train ask one question more before each round: whether enough was seen, and
whether an optimizer step was done since they began. A loop whose round brought an optimizer that was not
seen before (of another fold, of another layer; in the first round they all are) has another round. What loops
do every so many rounds (``if step % 1000 == 0``) they do when enough was seen, in one more round. Nothing
else of the code changes; its lines stay where they are. Loops of installed libraries are left alone: the
Trainer is told to end by its callbacks.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from zerokit.rehearsal.process.guesses import is_library
from zerokit.rehearsal.process.phases import Context

_FOR, _WHILE, _EVERY = "__zerokit_rounds__", "__zerokit_goes_on__", "__zerokit_every__"
_TRAINS = re.compile(r"(?:^|_)(?:step|backward|train|fit|epoch)", re.IGNORECASE)


STUB = "rounds of training loops after those that were rehearsed"
_MOST_ROUNDS_WITH_NEW = 8
"""Of one loop, in which optimizers step for the first time: folds and layers are rarely more."""


class Loop:
    """One run of a loop; ``periodic``: whether it does something every so many rounds."""

    def __init__(self, context: Context, periodic: bool) -> None:
        self._context = context
        self._steps_before = context.phases.steps
        self._optimizers_before = context.phases.optimizers
        self._rounds_with_new = 0
        self._rounds_left = 1 if periodic else 0

    def is_over(self) -> bool:
        """Whether enough was seen and done before another round."""
        phases = self._context.phases
        has_new = phases.optimizers > self._optimizers_before
        self._optimizers_before = phases.optimizers
        self._rounds_with_new += has_new
        if not phases.enough or phases.steps == self._steps_before:
            return False
        if has_new and self._rounds_with_new < _MOST_ROUNDS_WITH_NEW:
            return False
        if self._rounds_left:
            self._rounds_left -= 1
            return False
        self._context.machine.stub(STUB)
        return True


class Rounds:
    """The values of a ``for`` loop, until enough was seen."""

    def __init__(self, context: Context, values: Iterable[Any], periodic: bool) -> None:
        self._values = iter(values)
        self._loop = Loop(context, periodic)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._loop.is_over():
            raise StopIteration
        return next(self._values)


class _Endings(ast.NodeTransformer):
    """Puts the questions into loops that train."""

    def __init__(self) -> None:
        self.loops = 0
        self._inside = 0
        self._periodic = False

    def visit_For(self, node: ast.For) -> ast.AST:
        periodic = self._visit_loop(node)
        if periodic is not None:
            node.iter = _call(node.iter, _FOR, ast.Constant(periodic))
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        periodic = self._visit_loop(node)
        if periodic is not None:
            location = ast.Constant(f"{node.lineno}:{node.col_offset}")
            node.test = _call(node.test, _WHILE, location, ast.Constant(periodic))
        return node

    def _visit_loop(self, node: ast.For | ast.While) -> bool | None:
        """Whether it does something every so many rounds; None: it does not train."""
        if not _trains(node):
            self.generic_visit(node)
            return None
        self.loops += 1
        outside, self._periodic = self._periodic, False
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1
        periodic, self._periodic = self._periodic, outside
        return periodic

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if self._inside and not _steps(node):
            node.test = self._periodically(node.test)
        return node

    def _periodically(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            test.values = [self._periodically(value) for value in test.values]
        elif _is_every(test):
            self._periodic = True
            return _call(test, _EVERY)
        return test


def _is_every(test: ast.expr) -> bool:
    """``a % b == 0`` or ``not a % b``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value: ast.expr = test.operand
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        right = test.comparators[0]
        if not (isinstance(right, ast.Constant) and right.value == 0):
            return False
        value = test.left
    else:
        return False
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod)


def _steps(node: ast.If) -> bool:
    """Whether an optimizer steps there (accumulation), or the loop ends."""
    return any(
        isinstance(child, ast.Break | ast.Return | ast.Continue | ast.Raise)
        or (isinstance(child, ast.Attribute) and child.attr in ("step", "backward"))
        for statement in node.body
        for child in ast.walk(statement)
    )


def _call(value: ast.expr, name: str, *arguments: ast.expr) -> ast.expr:
    call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[value, *arguments], keywords=[])
    return ast.fix_missing_locations(ast.copy_location(call, value))


def _trains(loop: ast.For | ast.While) -> bool:
    """Whether its body calls something that is named for a step, a backward pass or a training."""
    nodes = (node for statement in loop.body for node in ast.walk(statement))
    functions = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = [one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in functions]
    return any(_TRAINS.search(name) for name in names)


def compiled(source: Any, path: Any) -> CodeType:
    """The code of a file of the user's. Raises SyntaxError: as ``compile`` does."""
    tree = ast.parse(source, path)
    endings = _Endings()
    changed = endings.visit(tree)
    return compile(changed if endings.loops else source, path, "exec", dont_inherit=True)


def install(context: Context) -> None:
    """Loaders of source files compile the user's own with the question in their loops."""
    began: dict[str, Loop] = {}

    def goes_on(condition: Any, key: str, periodic: bool) -> Any:
        if not condition:
            began.pop(key, None)
            return condition
        if key not in began:
            began[key] = Loop(context, periodic)
        return not began[key].is_over()

    setattr(builtins, _FOR, lambda values, periodic: Rounds(context, values, periodic))
    setattr(builtins, _WHILE, goes_on)
    setattr(builtins, _EVERY, lambda value: value or context.phases.enough)
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
