"""What a script's own code says, whatever its options say: what it passes to Accelerate, to training
arguments and to data loaders, what it sets once arguments are read, and where it adds adapters."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from zerokit.domain.settings import CLIPPING_CALL
from zerokit.script.option_list import called, parser_calls

_LOADER = "DataLoader"
ARGUMENTS = ("TrainingArguments", "Config")  # SFTConfig, DPOConfig …
_CALLS = ("Accelerator", "DeepSpeedPlugin", "GradientAccumulationPlugin", CLIPPING_CALL, *ARGUMENTS, _LOADER)
_SECOND = {_LOADER: "batch_size", CLIPPING_CALL: "max_norm"}
"""What the second argument of a call is, where it has no name."""
_NOT_FOR_TRAINING = re.compile(r"eval|val|test|dev", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSetting:
    """One keyword of such a call, or the call itself.

    Attributes:
        call: the class that is called.
        name: of the keyword; empty for the call itself.
        value: a literal, that of a name which is bound once, or an option's default; None: computed.
        option: of the script's own parser, whose value is passed on; None: there is none.
        makes: the class of an object that is made for it.
        target: the name that the call's result is given at once; empty: none.
    """

    path: Path
    line: int
    call: str
    name: str
    value: object = None
    option: str | None = None
    makes: str | None = None
    target: str = ""

    @property
    def text(self) -> str:
        """``train.py:12: Accelerator(mixed_precision='bf16')``."""
        return f"{self.path}:{self.line}: {self.call}({self.name}={self.makes or repr(self.value)})"


def code_settings(tree: ast.AST, path: Path) -> Iterator[CodeSetting]:
    """A file's calls and their keywords."""
    nodes = list(ast.walk(tree))
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    stores = Counter(n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    stores.update(n.arg for n in nodes if isinstance(n, ast.arg))
    bound = {  # names that one plain assignment binds, and nothing else in the file
        node.targets[0].id: node.value
        for node in assigned
        if isinstance(node.targets[0], ast.Name) and len(node.targets) == stores[node.targets[0].id] == 1
    }
    targets = {node.value: ast.unparse(node.targets[0]) for node in assigned}
    options = parser_calls(tree, path).by_attribute
    for node in nodes:
        if not isinstance(node, ast.Call) or not (call := called(node)).endswith(_CALLS):
            continue
        target = targets.get(node, "")
        yield CodeSetting(path=path, line=node.lineno, call=call, name="", target=target)
        second = next((name for suffix, name in _SECOND.items() if call.endswith(suffix)), None)
        named = [(second, node.args[1])] if second is not None and len(node.args) > 1 else []
        for name, given in [*named, *((word.arg, word.value) for word in node.keywords if word.arg)]:
            expression = bound.get(given.id, given) if isinstance(given, ast.Name) else given
            option: str | None = None
            value: object = expression.value if isinstance(expression, ast.Constant) else None
            if isinstance(expression, ast.Attribute) and expression.attr in options:
                option, value = options[expression.attr]
            yield CodeSetting(
                path=path, line=node.lineno, call=call, name=name, value=value, option=option,
                makes=f"{called(expression)}(…)" if isinstance(expression, ast.Call) else None,
                target=target,
            )  # fmt: skip


def own_option(settings: Iterable[CodeSetting], name: str) -> CodeSetting | None:
    """Where training arguments, or Accelerate, take ``name`` from an option of the script's own parser."""
    return next((one for one in settings if one.name == name and one.option), None)


def bound_value(settings: Iterable[CodeSetting], name: str) -> CodeSetting | None:
    """Where training arguments take ``name`` from a name that is bound to a literal."""
    return next((s for s in settings if s.name == name and s.value is not None and not s.option), None)


def training_batches(settings: Iterable[CodeSetting]) -> list[CodeSetting]:
    """The batch size of each data loader that may be the training's; one that has none is a ``None``."""
    loaders = [
        one for one in settings if one.call.endswith(_LOADER) and not _NOT_FOR_TRAINING.search(one.target)
    ]
    sizes = [one for one in loaders if one.name == "batch_size"]
    return sizes if len(sizes) == sum(1 for one in loaders if not one.name) else []


def made_once(settings: Iterable[CodeSetting]) -> list[CodeSetting]:
    """Calls of classes that are called at one place: of several only the run tells which call is made."""
    settings = list(settings)
    calls = Counter(one.call for one in settings if not one.name)
    return [one for one in settings if calls[one.call] == 1]


# ---------------------------------------------------------------- assignments


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A literal that an attribute is set to, as of training arguments once they are read: ``args.bf16 =
    False``."""

    path: Path
    line: int
    target: str
    name: str
    value: object

    @property
    def text(self) -> str:
        """``train.py:12 sets args.bf16 to False``."""
        return f"{self.path}:{self.line} sets {self.target}.{self.name} to {self.value}"


def assignments(tree: ast.AST, path: Path) -> Iterator[Assignment]:
    """What a file sets so, by ``setattr`` with a literal name too; not what it sets of ``self``, which is a
    class's own."""
    for node in ast.walk(tree):
        parts: list[tuple[ast.expr, str, ast.expr]] = []
        if isinstance(node, ast.Assign):
            parts = [
                (one.value, one.attr, node.value) for one in node.targets if isinstance(one, ast.Attribute)
            ]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            match node.args:
                case [target, ast.Constant(value=str(name)), value]:
                    parts = [(target, name, value)]
        for target, name, value in parts:
            if not isinstance(value, ast.Constant) or value.value is None:
                continue
            text = ast.unparse(target)
            if text.partition(".")[0] not in ("self", "cls"):
                line = getattr(node, "lineno", 0)
                yield Assignment(path=path, line=line, target=text, name=name, value=value.value)


# ---------------------------------------------------------------- adapters

_CONDITIONS = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.Match, ast.BoolOp, ast.Lambda)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call by name, in a function (empty: none), under a condition or not."""

    name: str
    inside: str
    conditional: bool
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCalls:
    """Adapters of a script's own file.

    Attributes:
        added_at: where every run adds them; None: nowhere.
        targets: the modules that its one ``LoraConfig`` names in plain text, or ``all-linear``; None: not
            known. targets_at: where.
    """

    added_at: str | None = None
    targets: tuple[str, ...] | None = None
    targets_at: str = ""


def adapter_calls(tree: ast.Module, path: Path) -> AdapterCalls:
    """What the file says of adapters, whatever its options say.

    A call of ``get_peft_model`` under a condition, or in a function that is called under conditions only, may
    be an option's. Another text than ``all-linear`` is a pattern to PEFT, whose matches are not known here.
    """
    calls = _calls(tree, inside="", conditional=False)
    added = (
        f"{path}:{call.line}: {call.name}"
        for call in calls
        if call.name == "get_peft_model" and not call.conditional and _runs(call.inside, calls, set())
    )
    configs = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) == "LoraConfig"]
    names: object = None
    if len(configs) == 1:
        given = next((word.value for word in configs[0].keywords if word.arg == "target_modules"), None)
        try:
            names = None if given is None else ast.literal_eval(given)
        except ValueError:
            names = None
    names = (names,) if names == "all-linear" else names
    if not isinstance(names, list | tuple | set) or not all(isinstance(name, str) for name in names):
        return AdapterCalls(added_at=next(added, None))
    return AdapterCalls(
        added_at=next(added, None), targets=tuple(sorted(names)), targets_at=f"{path}:{configs[0].lineno}"
    )


def _calls(node: ast.AST, *, inside: str, conditional: bool) -> list[_Call]:
    found = []
    if isinstance(node, ast.Call):
        found.append(_Call(name=called(node), inside=inside, conditional=conditional, line=node.lineno))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inside, conditional = node.name, False
    elif isinstance(node, _CONDITIONS):
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)  # which a run meets
        conditional |= not is_main
    for child in ast.iter_child_nodes(node):
        found += _calls(child, inside=inside, conditional=conditional)
    return found


def _runs(function: str, calls: list[_Call], seen: set[str]) -> bool:
    """Whether a run calls the function; one that its own file does not call is taken as called."""
    if not function or function in seen:
        return not function
    of_it = [call for call in calls if call.name == function]
    return not of_it or any(
        not call.conditional and _runs(call.inside, calls, {*seen, function}) for call in of_it
    )
