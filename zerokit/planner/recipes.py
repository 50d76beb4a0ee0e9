"""Recipes: plan requests kept as YAML files, each with the strategy and prediction it is expected to give.

A recipe's keys are the long options of ``zerokit plan`` with underscores, plus ``title``,
``description`` and ``expect``. Committed ones lie in ``recipes/`` and go by their file's name; a path
to a ``.yaml`` file names one's own, and a ``plan.yaml`` is a recipe by its request.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from zerokit import fields, planner, resources
from zerokit.commands import command_text
from zerokit.emit import plan_file
from zerokit.emit.outside import remember
from zerokit.errors import FileInputError, InputError, ZerokitError, about
from zerokit.fields import as_options
from zerokit.files import write_whole
from zerokit.linter.files import similar
from zerokit.planner.documents import STRATEGY_FIELDS
from zerokit.planner.options import BY_NAME, as_text, given_options, suggestion
from zerokit.strictload import Document, load_yaml, parse_yaml
from zerokit.strictload.yamltext import dump_yaml
from zerokit.suggest import alike, alternatives
from zerokit.temporary import temporary_folder
from zerokit.units import counted
from zerokit.values import frozen_dataclass, replace

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*", re.ASCII)
_MAX_NAME = 100


@frozen_dataclass
class Recipe:
    """One plan request.

    Attributes:
        request: option of ``zerokit plan`` (underscores) -> value as written.
        expect: ``strategy`` (fields of the chosen strategy) and ``prediction``, or empty.
        decided_by_script: those of the request that the script of a plan decided, not its user.
        script: what a plan kept of the script that it was made with; empty: none.
    """

    name: str
    path: pathlib.Path
    title: str
    description: str
    request: Mapping[str, Any]
    expect: Mapping[str, Any] = field(default_factory=dict)
    decided_by_script: tuple[str, ...] = ()
    script: Mapping[str, Any] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """The request as :func:`zerokit.planner.plan` takes it."""
        values = {key: value for key, value in self.request.items() if value is not None}
        return {key: bool(value) if BY_NAME[key].is_flag else as_text(value) for key, value in values.items()}

    def arguments(self) -> list[str]:
        """The request as arguments of ``zerokit plan``."""
        words: list[str] = []
        for key, value in self.request.items():
            option = BY_NAME[key].option
            if BY_NAME[key].is_flag:
                words += [option] if value else []
            elif value is not None:
                words += [option, as_text(value)]
        return words

    def to_dict(self) -> dict[str, Any]:
        """What ``recipes show --json`` prints."""
        texts = {"name": self.name, "title": self.title, "description": self.description}
        arguments = self.arguments()
        return {
            "schema": "zerokit.recipe/1", **texts, "request": dict(self.request), "arguments": arguments,
            "expect": dict(self.expect),
        }  # fmt: skip


_ABOUT = ("title", "description", "expect")
EXPECTED_STRATEGY = (*STRATEGY_FIELDS, "replicas", "reshard_after_forward")
"""Fields of a strategy; the last are FSDP2's alone."""


_ENDINGS = (".yaml", ".yml")
EXPECTED_PREDICTION: Mapping[str, float] = {
    "peak_allocated_gib": 0.01,
    "host_gib_per_node": 0.01,
    "tokens_per_second_per_gpu": 0.01,
}
"""Figure -> relative difference at which a recipe no longer gives what it says."""


def names() -> list[str]:
    """Names of the committed recipes, sorted."""
    folder = resources.folder("recipes")
    return sorted(path.stem for path in folder.glob("*.yaml") if NAME.fullmatch(path.stem))


def committed_path(name: str) -> pathlib.Path:
    """The file of a committed recipe, without opening it. Raises InputError: the name breaks the rule, or
    there is no such recipe."""
    stem = name.removesuffix(".yaml")
    if len(name) > _MAX_NAME or not NAME.fullmatch(stem):
        raise InputError(
            f"recipe {name[:60]!r}: a name has lower-case letters, digits, dots, hyphens and underscores; "
            "`zerokit recipes list` shows them"
        )
    if stem not in names():
        hint = _recipe_alike(stem) or "; `zerokit recipes list` shows them"
        raise InputError(f"there is no recipe {name!r}{hint}")
    path = resources.folder("recipes") / f"{stem}.yaml"
    if path.is_symlink():
        raise InputError(f"recipe {stem!r} is a symbolic link; recipes are plain files")
    return path


def _recipe_alike(stem: str) -> str:
    """The committed recipes that are called like it, to end a message with."""
    close = alike(stem, names(), most=3)
    return f"; did you mean {alternatives(close)}?" if close else ""


def load(name: str) -> Recipe:
    """A committed recipe, by its name. Raises InputError: no such recipe, or a bad name. FileInputError: the
    file is wrong, with line and column."""
    return parse_recipe(load_yaml(committed_path(name)))


def load_any(text: str) -> Recipe:
    """What ``--recipe`` names: a committed recipe, a file, or a ``plan.yaml`` (or its folder). Raises
    InputError: nothing of that name. FileInputError: the file is wrong, with line and column."""
    path = pathlib.Path(text)
    if (path / plan_file.FILE_NAME).is_file():
        path = path / plan_file.FILE_NAME
    elif not path.is_file() and (path.suffix not in _ENDINGS or text.removesuffix(".yaml") in names()):
        return load(text)
    if not os.path.lexists(path):
        hint = similar(path, _ENDINGS) or _recipe_alike(path.stem)
        raise InputError(f"there is no file or recipe {text!r}{hint}")
    document = load_yaml(path)
    if isinstance(document.value, dict) and str(document.value.get("schema", "")).startswith(
        "zerokit.planfile/"
    ):
        plan = plan_file.read(path)
        request = {str(key).replace("-", "_"): value for key, value in plan.request.items()}
        body = {key: value for key, value in request.items() if value is not None}
        _check_request(document, body, ("request",))
        return Recipe(
            name=path.stem, path=path, title=f"plan {path}", description="", request=body,
            decided_by_script=tuple(str(name).replace("-", "_") for name in plan.decided_by_script),
            script=plan.chosen.get("script") or {},
        )  # fmt: skip
    return parse_recipe(document)


def parse_recipe(document: Document) -> Recipe:
    """Read a recipe strictly. Raises FileInputError: an unknown key, a value out of range, a missing one;
    with line and column."""
    body = document.value
    if not isinstance(body, dict):
        raise document.error((), "a recipe is a mapping of keys")
    request = {key: value for key, value in body.items() if key not in _ABOUT}
    if body and not body.keys() & {*BY_NAME, *_ABOUT, "expect"}:
        raise document.error((), "has no key of a recipe; `zerokit check` says what the file is")
    _check_request(document, request, ())
    for key in ("title", "description"):
        if not isinstance(body.get(key, ""), str):
            raise document.error((key,), f"{key} must be text")
    if not body.get("title"):
        raise document.error((), "title is missing: say in one line what the recipe is for")
    expect = body.get("expect") or {}
    _check_expect(document, expect)
    path = pathlib.Path(document.path)
    description = body.get("description", "").strip()
    return Recipe(
        name=path.stem,
        path=path,
        title=body["title"],
        description=description,
        request=request,
        expect=expect,
    )


def _check_request(
    document: Document, request: Mapping[str, Any], prefix: tuple[str, ...], *, needs_model: bool = True
) -> None:
    for key, value in request.items():
        if key not in BY_NAME:
            hint = _hint(str(key), ": ", *_ABOUT)
            raise document.error((*prefix, key), f"unknown key {key!r}; {hint}")
        try:
            BY_NAME[key].checked(value, key)
        except InputError as error:
            raise document.error((*prefix, key), str(error)) from None
    if "model" in request and "params" in request:
        raise document.error((*prefix, "params"), "model and params both name the model; keep one")
    if needs_model and "model" not in request and "params" not in request:
        raise document.error(prefix, "model or params is missing")
    gpus, nodes = (int(request.get(name, 1)) for name in ("gpus", "nodes"))
    if gpus % nodes:
        raise document.error(
            (*prefix, "nodes"), f"{counted(gpus, 'GPU')} cannot be divided over {nodes} nodes"
        )


def _hint(key: str, sign: str, *more: str) -> str:
    """What to write in place of a key that there is not."""
    switches = {name: option.is_flag for name, option in BY_NAME.items()} | dict.fromkeys(more, False)
    return fields.as_keys(suggestion(key, *more), switches, sign)


def _check_expect(document: Document, expect: object) -> None:
    if not isinstance(expect, dict):
        raise document.error(("expect",), "expect must be a mapping with strategy and prediction")
    for part, allowed in (("strategy", EXPECTED_STRATEGY), ("prediction", tuple(EXPECTED_PREDICTION))):
        block = expect.get(part, {})
        if not isinstance(block, dict):
            raise document.error(("expect", part), f"{part} must be a mapping")
        for key, value in block.items():
            if key not in allowed:
                raise document.error(("expect", part, key), f"unknown key {key!r}; use {', '.join(allowed)}")
            if part == "prediction" and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise document.error(("expect", part, key), f"{key} must be a number")
    extra = set(expect) - {"strategy", "prediction"}
    if extra:
        name = sorted(map(str, extra))[0]
        raise document.error(("expect", name), f"unknown key {name!r}; use strategy and prediction")


def with_overrides(recipe: Recipe, overrides: Sequence[str], *, for_script: bool = False) -> Recipe:
    """The recipe with ``key=value`` applied (``key=`` takes the key out); ``expect`` then no longer holds.
    ``for_script``: a script is planned for, so that no model need be left: it tells its own. Raises
    InputError: not ``key=value``, an unknown key, or a value out of range."""
    if not overrides:
        return recipe
    request = dict(recipe.request)
    decided = set(recipe.decided_by_script)
    for text in overrides:
        key, separator, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not separator:
            raise InputError(f"override {text!r}: write KEY=VALUE, or KEY= to remove it")
        if key not in BY_NAME:
            raise InputError(f"override {text!r}: unknown key {key!r}; {_hint(key, '=')}")
        decided.discard(key)
        for partner in ({"model", "params"}, {"gpu", "vram"}):
            if key in partner:
                for conflicting in partner - {key}:
                    request.pop(conflicting, None)
        if not value.strip():
            request.pop(key, None)
            continue
        document = parse_yaml(f"{key}: {value}", f"override {text!r}")
        request[key] = document.value[key]
    document = Document(path=f"recipe {recipe.name} with {' '.join(overrides)}", text="", value=request)
    try:
        _check_request(document, request, (), needs_model=not for_script)
    except FileInputError as error:
        raise InputError(f"{error.path}: {error.message}") from None
    return replace(recipe, request=request, expect={}, decided_by_script=tuple(decided))


def merged(
    recipe: str, options: Mapping[str, Any], overrides: Sequence[str] = (), *, for_script: bool = False
) -> dict[str, Any]:
    """``options`` with the recipe's request where the command line says nothing.

    Args:
        overrides: ``key=value``, as the recipe itself would say it.
        for_script: a script is planned for, so what a script decided is read of it again.

    Raises:
        InputError: there is no such recipe, or an override that it cannot take.
        FileInputError: the file asks for an option that does not exist.
    """
    with about("recipe"):
        found = with_overrides(load_any(recipe), overrides, for_script=for_script)
    is_typed = any(text.partition("=")[0].strip() == "nvme" for text in overrides)
    if is_typed or found.path.parent == resources.folder("recipes"):
        remember(found.request.get("nvme"))
    left_out = found.decided_by_script if for_script else ()
    result = dict(options)
    for key, value in found.request.items():
        if key in left_out:
            continue
        if BY_NAME[key].is_flag:
            result[key] = bool(value) or bool(result.get(key))
        elif key == "device":
            result["device"] = value if result.get("device", "auto") == "auto" else result["device"]
        elif result.get(key) is None and value is not None:
            result[key] = as_text(value)
    if options.get("params") or options.get("model"):
        result["params"], result["model"] = options.get("params"), options.get("model")
    return result


@contextlib.contextmanager
def named_in_refusals(typed: Mapping[str, Any], requested: Mapping[str, Any]) -> Iterator[None]:
    """Words a refusal of a value that nobody typed as the recipe's, and says how to take it out. ``typed``:
    the options that were given. ``requested``: the same with the recipe's, from :func:`merged`. Raises
    InputError: as it was raised, in other words."""
    try:
        yield
    except InputError as error:
        message = error.marked
        for key in fields.named(message):
            if typed.get(key) is None and requested.get(key) is not None:
                taken_out = f"take it out of the recipe with {key}="
                message = re.sub(rf"leave (zerokit's )?⟨{key}⟩ out", taken_out, message)
                if message.startswith(f"⟨{key}⟩ "):
                    message = f"the recipe's {message}"
        error.reword(message)
        raise


def copy(name: str, destination: str | pathlib.Path) -> pathlib.Path:
    """Copy a committed recipe to a folder or a new file, to be changed; returns its path. Raises InputError:
    no such recipe; the destination exists or cannot be written."""
    source = committed_path(name)
    target = pathlib.Path(destination)
    if target.is_dir() or str(destination).endswith(os.sep):
        target = target / source.name
    if target.exists() or target.is_symlink():
        raise InputError(f"{target} already exists; name another file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, source.read_text(encoding="utf-8"), through_links=True)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from None
    return target


def differences(recipe: Recipe, chosen: Mapping[str, Any]) -> list[str]:
    """Where a chosen strategy (STRATEGY of ``plan --json``) is not what the recipe expects."""
    result = []
    for key, expected in dict(recipe.expect.get("strategy", {})).items():
        if chosen.get(key) != expected:
            result.append(f"{key}: expected {expected}, the plan has {chosen.get(key)}")
    figures = prediction_of(chosen)
    for key, expected in dict(recipe.expect.get("prediction", {})).items():
        value = figures.get(key)
        if value is None or abs(value - expected) > EXPECTED_PREDICTION[key] * max(abs(expected), 1e-9):
            result.append(f"{key}: expected {expected}, the plan has {value}")
    return result


def prediction_of(chosen: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a chosen strategy that recipes keep, rounded as they are written."""
    estimate = chosen.get("estimate", {})
    speed = estimate.get("tokens_per_second_per_gpu")
    figures = {
        "peak_allocated_gib": round(estimate.get("peak_allocated_bytes", 0) / 2**30, 2),
        "host_gib_per_node": round(estimate.get("host_bytes_per_node", 0) / 2**30, 2),
    }
    if speed is not None:
        figures["tokens_per_second_per_gpu"] = round(speed, 1)
    return figures


def check_recipe(recipe: Recipe, *, write: bool = False) -> list[str]:
    """Plan it, and say where the plan is not what it expects; ``write``: make that its expectation instead.
    Raises InputError: it expects nothing yet, or cannot be planned or written. Raises NothingFits: no
    strategy fits."""
    with temporary_folder("recipe") as folder:
        chosen = planner.plan(recipe.options(), top=1, out=folder).chosen.to_dict()
    if write:
        # put the planned strategy and figures below the request, which stays as its author wrote it
        document = load_yaml(recipe.path)
        if "schema" in document.value:
            raise InputError("is a plan, which holds its prediction already; --write is for recipes")
        head = document.text
        if "expect" in document.value:
            if list(document.value)[-1] != "expect":
                raise document.error(("expect",), "expect must be the last key, for --write to replace it")
            line = document.keys[("expect",)].line
            head = "".join(document.text.splitlines(keepends=True)[: line - 1])
        head = head.rstrip() + "\n"
        expect = {
            "strategy": {key: chosen[key] for key in EXPECTED_STRATEGY if key in chosen},
            "prediction": prediction_of(chosen),
        }
        write_whole(recipe.path, f"{head}\n{dump_yaml({'expect': expect})}", through_links=True)
        return []
    if not recipe.expect:
        raise InputError("has no expect block; `zerokit recipes check --write` fills it")
    return differences(recipe, chosen)


def check_recipes(names: Iterable[str], *, write: bool = False) -> dict[str, list[str]]:
    """What is wrong with each recipe, by its name or file; nothing where it plans to what it expects."""
    problems: dict[str, list[str]] = {}
    for name in names:
        try:
            problems[name] = check_recipe(load_any(name), write=write)
        except ZerokitError as error:
            problems[name] = [as_options(error.marked)]
    return problems


@frozen_dataclass
class ScriptBefore:
    """The script of the plan that another is made from.

    Attributes:
        words: its name and arguments, where it is in this folder; else empty.
        model: the name of its model, where that is planned for; empty: another is, or it is not known.
        note: that the plan is not rehearsed with it, and what rehearses it.
    """

    words: tuple[str, ...]
    model: str
    note: str


def script_before(
    recipe: str, overrides: Sequence[str], options: Mapping[str, Any], request: Mapping[str, Any]
) -> ScriptBefore | None:
    """The script that the plan named as a recipe was made with; None: it was made with none. ``options``:
    those given beside the recipe. ``request``: what is planned for, with both."""
    found = load_any(recipe)
    if not found.script.get("name"):
        return None
    name, arguments = str(found.script["name"]), map(str, found.script.get("arguments") or ())
    words = (name, *arguments) if Path(name).is_file() else ()
    is_same = "model" in found.decided_by_script and request.get("model") == found.request.get("model")
    again = command_text(
        "plan", "--recipe", recipe, *overrides, options=given_options(options), script=words or ("SCRIPT",)
    )
    return ScriptBefore(
        words=words,
        model=str(found.script.get("model") or "") if is_same else "",
        note=f"not rehearsed with {name}, as the plan was that it is made from; to do so: {again}",
    )
