"""What a script's own code passes to Accelerate and to training arguments, whatever its options say."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from zerokit.domain.settings import CLIPPING_CALL
from zerokit.script.parser_calls import called, parser_calls

ARGUMENTS = ("TrainingArguments", "Config")  # SFTConfig, DPOConfig …
_CALLS = ("Accelerator", "DeepSpeedPlugin", "GradientAccumulationPlugin", CLIPPING_CALL, *ARGUMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSetting:
    """One keyword of such a call, or the call itself.

    Attributes:
        call: the class that is called.
        name: of the keyword; empty for the call itself.
        value: a literal, that of a name which is bound once, or an option's default; None: computed.
        option: of the script's own parser, whose value is passed on; None: there is none.
    """

    path: Path
    line: int
    call: str
    name: str
    value: object = None
    option: str | None = None

    @property
    def text(self) -> str:
        """``train.py:12: Accelerator(mixed_precision='bf16')``."""
        return f"{self.path}:{self.line}: {self.call}({self.name}={self.value!r})"


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
    options = parser_calls(tree, path).by_attribute
    for node in nodes:
        if not isinstance(node, ast.Call) or not (call := called(node)).endswith(_CALLS):
            continue
        yield CodeSetting(path=path, line=node.lineno, call=call, name="")
        named = [("max_norm", node.args[1])] if call == CLIPPING_CALL and len(node.args) > 1 else []
        for name, given in [*named, *((word.arg, word.value) for word in node.keywords if word.arg)]:
            expression = bound.get(given.id, given) if isinstance(given, ast.Name) else given
            option: str | None = None
            value: object = expression.value if isinstance(expression, ast.Constant) else None
            if isinstance(expression, ast.Attribute) and expression.attr in options:
                option, value = options[expression.attr]
            yield CodeSetting(
                path=path, line=node.lineno, call=call, name=name, value=value, option=option,
            )  # fmt: skip


def own_option(settings: Iterable[CodeSetting], name: str) -> CodeSetting | None:
    """Where training arguments, or Accelerate, take ``name`` from an option of the script's own parser."""
    return next((one for one in settings if one.name == name and one.option), None)


def bound_value(settings: Iterable[CodeSetting], name: str) -> CodeSetting | None:
    """Where training arguments take ``name`` from a name that is bound to a literal."""
    return next((s for s in settings if s.name == name and s.value is not None and not s.option), None)


def made_once(settings: Iterable[CodeSetting]) -> list[CodeSetting]:
    """Calls of classes that are called at one place: of several only the run tells which call is made."""
    settings = list(settings)
    calls = Counter(one.call for one in settings if not one.name)
    return [one for one in settings if calls[one.call] == 1]
