"""What a script's own code passes to Accelerate and to its training arguments, held to a plan."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOADER = "DataLoader"
ARGUMENTS = ("TrainingArguments", "Config")  # SFTConfig, DPOConfig …
CLIPPING = "clip_grad_norm_"
_CALLS = ("Accelerator", "DeepSpeedPlugin", "GradientAccumulationPlugin", CLIPPING, *ARGUMENTS, _LOADER)
_SECOND: Mapping[str, str] = {_LOADER: "batch_size", CLIPPING: "max_norm"}
"""What the second argument of a call is, where it has no name."""
_NOT_FOR_TRAINING = re.compile(r"eval|val|test|dev", re.IGNORECASE)
PLANNED: Mapping[tuple[str, str], str] = {
    ("Accelerator", "gradient_accumulation_steps"): "gradient_accumulation",
    ("DeepSpeedPlugin", "gradient_accumulation_steps"): "gradient_accumulation",
    ("GradientAccumulationPlugin", "num_steps"): "gradient_accumulation",
    ("DeepSpeedPlugin", "zero_stage"): "zero_stage",
    ("DeepSpeedPlugin", "offload_optimizer_device"): "offload_optimizer",
    ("DeepSpeedPlugin", "offload_param_device"): "offload_param",
    ("Accelerator", "mixed_precision"): "precision",
}
"""The calls of Accelerate and their keywords that say what a plan says, and the plan's name for it."""


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
    bound = _bound_once(tree)
    options = _options(tree)
    targets = _targets(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = _called(node)
        if not call.endswith(_CALLS):
            continue
        target = targets.get(node, "")
        yield CodeSetting(path=path, line=node.lineno, call=call, name="", target=target)
        for name, expression in _named(node, call):
            if isinstance(expression, ast.Name):
                expression = bound.get(expression.id, expression)
            option: str | None = None
            value: object = expression.value if isinstance(expression, ast.Constant) else None
            if isinstance(expression, ast.Attribute) and expression.attr in options:
                option, value = options[expression.attr]
            yield CodeSetting(
                path=path, line=node.lineno, call=call, name=name, value=value, option=option,
                makes=f"{_called(expression)}(…)" if isinstance(expression, ast.Call) else None,
                target=target,
            )  # fmt: skip


def _named(node: ast.Call, call: str) -> Iterator[tuple[str, ast.expr]]:
    """The keywords of a call, and what its second argument is."""
    second = next((name for suffix, name in _SECOND.items() if call.endswith(suffix)), None)
    if second is not None and len(node.args) > 1:
        yield second, node.args[1]
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value


def _targets(tree: ast.AST) -> dict[ast.expr, str]:
    """Expressions that are given a name at once, and the name."""
    return {
        node.value: ast.unparse(node.targets[0]) for node in ast.walk(tree) if isinstance(node, ast.Assign)
    }


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _bound_once(tree: ast.AST) -> dict[str, ast.expr]:
    """Names that one plain assignment binds, and nothing else in the file."""
    stores = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not _is_load(n))
    stores.update(n.arg for n in ast.walk(tree) if isinstance(n, ast.arg))
    return {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and len(node.targets) == stores[node.targets[0].id] == 1
    }


def _is_load(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _options(tree: ast.AST) -> dict[str, tuple[str, object]]:
    """The parser's options with a literal default, by the attribute that holds them."""
    result: dict[str, tuple[str, object]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) != "add_argument":
            continue
        names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        option = next((name for name in names if name.startswith("--")), None)
        given = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
        if option is not None and "dest" not in given:
            result[option[2:].replace("-", "_")] = option, given.get("default")
    return result


def own_option(settings: Iterable[CodeSetting], name: str) -> CodeSetting | None:
    """Where training arguments, or Accelerate, take ``name`` from an option of the script's own parser."""
    return next((one for one in settings if one.name == name and one.option), None)


def training_batches(settings: Iterable[CodeSetting]) -> list[CodeSetting]:
    """The batch size of each data loader that may be the training's; one that has none is a ``None``."""
    loaders = [
        one for one in settings if one.call.endswith(_LOADER) and not _NOT_FOR_TRAINING.search(one.target)
    ]
    sizes = [one for one in loaders if one.name == "batch_size"]
    calls = sum(1 for one in loaders if not one.name)
    return sizes if len(sizes) == calls else []


def bound_value(settings: Iterable[CodeSetting], name: str) -> CodeSetting | None:
    """Where training arguments take ``name`` from a name that is bound to a literal."""
    return next((s for s in settings if s.name == name and s.value is not None and not s.option), None)


def made_once(settings: Iterable[CodeSetting]) -> list[CodeSetting]:
    """Those of classes that are called at one place: of several only the run tells which call is made."""
    settings = list(settings)
    calls = Counter(one.call for one in settings if not one.name)
    return [one for one in settings if calls[one.call] == 1]


def unlike_plan(
    settings: Iterable[CodeSetting], style: str, chosen: Mapping[str, Any], precision: str
) -> list[str]:
    """Where the code asks Accelerate for something else than the plan, one sentence each.

    The plan's file reaches Accelerate by the environment and wins, without a word, over what the code says
    (accelerate 1.15, utils/dataclasses.py, ``DeepSpeedPlugin.__post_init__``).

    Args:
        settings: of the script.
        style: how the script takes its configuration.
        chosen: the plan's choice.
        precision: as the ranks will run.
    """
    if style != "accelerate":
        return []
    result = []
    for one in made_once(settings):
        planned = _planned(one, chosen, precision)
        if one.value is not None and one.option is None and planned is not None and one.value != planned:
            result.append(f"{one.text}, but the plan has {one.name} {planned}")
    return result


def _planned(setting: CodeSetting, chosen: Mapping[str, Any], precision: str) -> object:
    name = PLANNED.get((setting.call, setting.name))
    if name == "precision":
        return "no" if precision == "fp32" else precision
    return None if name is None else chosen.get(name)
