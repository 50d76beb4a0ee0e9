"""Write the keys of trainers' files: ``python -m tools.trainer_keys --write WHEEL_OR_FOLDER…``.

Reads the schema of each release that is given (wheel, source archive or checkout; several releases of several
trainers) without importing it, and writes one file per trainer below ``zerokit/trainer_files/keys``. Which
keys are irrelevant to a step's memory and time is decided by hand, in these files, and kept. Without
``--write``: tells what would change.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import functools
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "zerokit" / "trainer_files" / "keys"
_KINDS = {
    "bool": "boolean", "int": "integer", "float": "number", "str": "text", "Path": "text", "list": "list",
    "List": "list", "tuple": "list", "Sequence": "list", "set": "list", "conlist": "list", "dict": "mapping",
    "Dict": "mapping", "Mapping": "mapping", "PluginConfig": "mapping", "NonNegativeInt": "integer",
    "PositiveInt": "integer",
}  # fmt: skip
_TRANSPARENT = ("Optional", "Union", "Annotated", "Final", "SkipJsonSchema")


class Root(NamedTuple):
    """Classes that are read together: their files, and a pattern of their names.

    Attributes:
        stage: what they are for; empty: for all, ``*``: as the class is called, ``/``: as its folder is.
    """

    stage: str
    file: str
    classes: str


class TrainerSource(NamedTuple):
    """Where a trainer's keys are.

    Attributes:
        package: the folder of its source; a release has it, and its roots lie below.
        base: whose keys its stages take, too.
        based: stages that take them; empty: all.
    """

    title: str
    package: str
    source: str
    roots: Sequence[Root]
    base: str = ""
    based: tuple[str, ...] = ()


TRAINERS: Mapping[str, TrainerSource] = {
    "transformers": TrainerSource(
        "Transformers", "transformers", "training_args.py",
        [Root("", "training_args.py", "TrainingArguments"),
         Root("seq2seq", "training_args_seq2seq.py", "Seq2SeqTrainingArguments")],
    ),
    "axolotl": TrainerSource(
        "axolotl", "axolotl", "utils/schemas and integrations",
        [Root("", "utils/schemas/config.py", "AxolotlInputConfig"),
         Root("/", "integrations/*/args.py", r"(?!.*Training)\w+Args|SwanLabConfig")],
    ),
    "llamafactory": TrainerSource(
        "LLaMA-Factory", "llamafactory", "hparams and v1/config",
        [Root("train", "hparams/*_args.py",
              "(Model|Data|Finetuning|Generating|Training|MegatronBridge)Arguments"),
         Root("train", "hparams/parser.py", "_KTransformersRuntimeArguments"),
         Root("eval", "hparams/*_args.py", "(Model|Data|Finetuning|Evaluation)Arguments"),
         Root("v1", "v1/config/*.py", r"\w+Arguments")],
        "transformers", ("train",),
    ),
    "swift": TrainerSource(
        "ms-swift", "swift", "arguments, megatron/arguments and ray",
        [Root(stage, file, classes) for stage, classes in (
            ("sft", "(Sft|Train|Pretrain)Arguments"), ("rlhf", "RLHFArguments"), ("infer", "InferArguments"),
            ("export", "ExportArguments"), ("eval", "EvalArguments"), ("deploy", "DeployArguments"),
            ("rollout", "RolloutArguments"), ("sample", "SamplingArguments"))
         for file in ("arguments/*.py", "llm/argument/*.py")]
        + [Root("megatron", file, r"Megatron(Sft|Train|Pretrain|RLHF|Export)Arguments")
           for file in ("megatron/arguments/*.py", "megatron/argument/*.py")],
        "transformers", ("sft", "rlhf"),
    ),
    "trl": TrainerSource(
        "TRL", "trl", "trainer/*_config.py, experimental and scripts; alignment-handbook, configs.py",
        [Root("*", "trainer/*_config.py", r"(?!_|Model)\w+Config"),
         Root("*", "experimental/*/*_config.py", r"\w+Config"),
         Root("", "trainer/model_config.py", "ModelConfig"),
         Root("", "scripts/utils.py", "ScriptArguments|DatasetMixtureConfig"),
         Root("*", "scripts/*.py", r"\w+ScriptArguments"),
         Root("", "alignment/configs.py", "ScriptArguments"),
         Root("*", "alignment/configs.py", "(SFT|DPO|ORPO)Config")],
        "transformers",
    ),
}  # fmt: skip
_ALSO = {"trl": ("alignment",)}
"""Packages of others that a trainer's configurations are for, and what they are read with."""


_READ_BY_CODE: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "swift": {  # ms-swift 4.6.0, cli/main.py:53 and ray/megatron/driver_utils.py:84
        "ENV": {"kind": "mapping", "irrelevant": True},
        "colocate_groups": {"kind": "list", "of": ["ray"], "since": "4.6.0"},
        "nnodes": {"kind": "integer", "of": ["ray"], "since": "4.6.0"},
        **{
            group: {"kind": "mapping", "of": ["ray"], "since": "4.6.0", "keys": {"gpus": {"kind": "integer"}},
                    "open": True}
            for group in ("train", "rollout", "teacher")
        },
    },
    "trl": {"env": {"kind": "mapping", "irrelevant": True}},  # TRL 1.16.0, scripts/utils.py: TrlParser
}  # fmt: skip
"""Keys that no class has, and the code that takes them out of the file."""
_LATER = {("axolotl", "optimizer"): "OptimizerNames"}
"""Fields whose other texts are one of an enumeration of Transformers', which refuses them later."""
_CHECKED = ("axolotl",)
"""Trainers that check each value against its annotation."""
_PREFIXED = {"axolotl": {"fsdp_config": "fsdp_"}}
"""Blocks whose keys may begin with a word: axolotl 0.19.0, utils/schemas/validation.py:1085."""


class Package:
    """The Python files of one release, by their path below the trainer's package (``utils/x.py``)."""

    def __init__(self, where: Path) -> None:
        self.where = where
        texts = dict(_texts(where))
        self.name, self._files = _package(texts)
        self.version = _version(where, texts)

    @functools.cached_property
    def _classes(self) -> Mapping[str, str]:
        """The file of each class; of several of one name the first."""
        named: dict[str, str] = {}
        for file, text in self._files.items():
            for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE):
                named.setdefault(name, file)
        return named

    @functools.cache  # noqa: B019
    def _tree(self, file: str) -> ast.Module:
        return ast.parse(self._files[file])

    def files(self, pattern: str) -> list[str]:
        """Those below a pattern; a package of modules counts as its module."""
        folder = pattern.removesuffix("/*.py")
        return [
            file
            for file in self._files
            if fnmatch.fnmatch(file, pattern) and (folder == pattern or file.startswith(f"{folder}/"))
        ]

    def classes(self, file: str) -> Mapping[str, ast.ClassDef]:
        """Those that a file defines, by name."""
        return {node.name: node for node in ast.walk(self._tree(file)) if isinstance(node, ast.ClassDef)}

    def find(self, name: str, file: str) -> tuple[str, ast.ClassDef] | None:
        """A class as a file names it, and the file that defines it; None: of another package."""
        for _ in range(8):
            if name in (own := self.classes(file)):
                return file, own[name]
            if alias := _alias(self._tree(file), name):
                return self.find(alias, file)
            imported = self._imported(file, name)
            if imported is None:
                return None
            file, name = imported
        return None

    def _imported(self, file: str, name: str) -> tuple[str, str] | None:
        for node in ast.walk(self._tree(file)):
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                if (alias.asname or alias.name) != name:
                    continue
                module = node.module or ""
                if not node.level and module.split(".")[0] != self.name:
                    return None
                start = file.split("/")[: -node.level] if node.level else []
                parts = [*start, *(module.split(".") if node.level else module.split(".")[1:])]
                base = "/".join(part for part in parts if part)
                for path in (f"{base}.py", f"{base}/__init__.py"):
                    if path in self._files and (path != file) and self._has(path, alias.name):
                        return path, alias.name
                found = self._classes.get(alias.name)
                return (found, alias.name) if found and found != file else None
        return None

    def _has(self, file: str, name: str) -> bool:
        return name in self.classes(file) or self._imported(file, name) is not None


def _alias(tree: ast.Module, name: str) -> str:
    """The class that ``name = Class`` stands for."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Name)
            and name in map(ast.unparse, node.targets)
        ):
            return node.value.id
    return ""


def _texts(where: Path) -> Iterator[tuple[str, str]]:
    """The Python files of a wheel, a source archive or a folder, by path."""
    if where.is_dir():
        for path in sorted(where.rglob("*.py")):
            yield str(path.relative_to(where)), path.read_text(encoding="utf-8", errors="replace")
    elif where.suffix == ".whl":
        with zipfile.ZipFile(where) as wheel:
            for name in wheel.namelist():
                if name.endswith(".py"):
                    yield name, wheel.read(name).decode()
    else:
        with tarfile.open(where) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.name.endswith(".py") else None
                if content is not None:
                    yield member.name, content.read().decode()


def _package(texts: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Name and files of the trainer's package in a release, by path below it."""
    packages = (*(trainer.package for trainer in TRAINERS.values()), *sum(_ALSO.values(), ()))
    starts = [
        (len(name), package, name.removesuffix("__init__.py"))
        for name in texts
        for package in packages
        if f"/{name}".endswith(f"/{package}/__init__.py")
    ]
    if starts:
        _, package, start = min(starts)
        keep = f"{package}/" if package not in {trainer.package for trainer in TRAINERS.values()} else ""
        below = {name.removeprefix(start): text for name, text in texts.items() if name.startswith(start)}
        return package, {keep + name: text for name, text in below.items()}
    raise SystemExit("no trainer's package in it")


def _version(where: Path, texts: Mapping[str, str]) -> str:
    if not where.is_dir():
        return where.name.removesuffix(".tar.gz").split("-")[1]
    named = [text for name, text in texts.items() if name.endswith(("version.py", "extras/env.py"))]
    found = re.search(r"^(?:__version__|VERSION) = [\"']([\w.]+)", "\n".join(named), re.MULTILINE)
    return found[1] if found else ""


class Reader:
    """The keys of one release's classes."""

    def __init__(
        self, package: Package, others: Sequence[Package] = (), transformers: Package | None = None
    ) -> None:
        self._packages = (package, *others)
        self._transformers = transformers

    def keys(self, file: str, node: ast.ClassDef, package: Package) -> dict[str, Any]:
        """Of a class with those that it inherits; a key that it sets to something else, as it sets it."""
        found: dict[str, Any] = {}
        for base in reversed(node.bases):
            name = ast.unparse(base).split(".")[-1]
            for one in self._packages:
                if one is not package and isinstance(base, ast.Name):
                    continue
                at = one.find(name, file) if one is package else self._anywhere(one, name)
                if at is not None and at[1] is not node:
                    found |= self.keys(*at, one)
                    break
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found |= self._field(statement, statement.target.id, file, package)
        for name in _read_before(node) & found.keys():
            found[name] = {word: one for word, one in found[name].items() if word != "choices"} | {
                "kind": "any"
            }
        return found

    @staticmethod
    def _anywhere(package: Package, name: str) -> tuple[str, ast.ClassDef] | None:
        file = package._classes.get(name)
        return (file, package.classes(file)[name]) if file else None

    def _field(self, node: ast.AnnAssign, name: str, file: str, package: Package) -> dict[str, Any]:
        annotation = ast.unparse(node.annotation)
        if name.startswith("_") or "ClassVar" in annotation or "InitVar" in annotation:
            return {}
        key: dict[str, Any] = {"kind": "any"}
        kinds, choices, blocks, is_open = self._kind(node.annotation, file, package)
        if kinds:
            key["kind"] = "|".join(sorted(kinds))
        value, names, given = node.value, [name], {}
        if package.name in _CHECKED and not re.search(r"\bNone\b|\bOptional\b|\bAny\b", annotation):
            given["not_null"] = True
        if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in ("field", "Field"):
            arguments = {keyword.arg: keyword.value for keyword in value.keywords}
            if ast.unparse(arguments.get("init", ast.Constant(True))) == "False":
                return {}
            value = arguments.get("default", value.args[0] if value.args else None)
            names = _names(name, arguments)
            choices = choices or _listed(arguments.get("metadata"))
            for word, constraint in (("ge", "least"), ("gt", "above"), ("le", "most"), ("lt", "below")):
                if word in arguments and (number := _literal(arguments[word])) is not None:
                    given[constraint] = number
        if later := self._of_transformers(_LATER.get((package.name, name), "")):
            own = [value for part in _parts(node.annotation) for value in self._own(part, file, package)]
            choices = list(dict.fromkeys([*own, *later]))
        if choices:
            key["choices"] = choices
        default = self._default(value, file, package) if value is not None else None
        if default is not None and default != [...]:
            key["default"] = default
        key |= given
        if blocks:
            key["keys"] = blocks
            if is_open:
                key["open"] = True
        return {one: dict(key) for one in names}

    def _kind(
        self, node: ast.expr, file: str, package: Package
    ) -> tuple[set[str], list[Any], dict[str, Any], bool]:
        """Kinds of values, the values where they are listed, the block's keys, whether it may have more."""
        kinds: set[str] = set()
        choices: list[Any] = []
        blocks: dict[str, Any] = {}
        is_open, is_listed = False, True
        for part in _parts(node):
            text = ast.unparse(part)
            name = re.split(r"[\[(]", text)[0].split(".")[-1]
            if text == "None":
                continue
            if name == "Literal" and isinstance(part, ast.Subscript):
                values = [value for value in _literals(part.slice) if value is not None]
                kinds |= {_kind_of(value) for value in values}
                choices += values
            elif name == "bool":
                kinds.add("boolean")
                choices += [True, False]
            elif name in _KINDS:
                kinds.add(_KINDS[name])
                is_listed = False
                is_open |= _KINDS[name] == "mapping"
                if _KINDS[name] == "list" and isinstance(part, (ast.Subscript, ast.Call)):
                    blocks |= self._blocks_in(part, file, package)
            elif at := package.find(name, file):
                values = _enumeration(at[1])
                if values:
                    kinds.add("text" if all(isinstance(one, str) for one in values) else "any")
                    choices += values
                else:
                    is_listed = False
                    kinds.add("mapping")
                    blocks |= self.keys(*at, package)
            elif values := self._of_transformers(name):
                kinds.add("text")
                choices += values
            else:
                return {"any"}, [], blocks, True
        is_listed &= None not in choices and kinds != {"boolean"}
        return kinds, choices if is_listed else [], blocks, is_open

    @staticmethod
    def _own(part: ast.expr, file: str, package: Package) -> list[Any]:
        at = package.find(ast.unparse(part), file)
        return _enumeration(at[1]) if at is not None else []

    def _of_transformers(self, name: str) -> list[Any]:
        """The values of one of its enumerations, as of its optimizers."""
        at = self._anywhere(self._transformers, name) if self._transformers is not None else None
        return _enumeration(at[1]) if at is not None else []

    def _blocks_in(self, node: ast.expr, file: str, package: Package) -> dict[str, Any]:
        blocks: dict[str, Any] = {}
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Name)
                and inner.id not in _KINDS
                and (at := package.find(inner.id, file))
            ):
                blocks |= {} if _enumeration(at[1]) else self.keys(*at, package)
        return blocks

    @staticmethod
    def _default(node: ast.expr, file: str, package: Package) -> Any:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            at = package.find(node.value.id, file)
            members = _members(at[1]) if at is not None else {}
            return members.get(node.attr)
        return _literal(node)


def _read_before(node: ast.ClassDef) -> set[str]:
    """The fields that a model's own code reads before their annotations count."""
    return {
        str(name.value)
        for function in node.body
        if isinstance(function, ast.FunctionDef)
        for call in function.decorator_list
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "field_validator"
        if any(ast.unparse(keyword) == "mode='before'" for keyword in call.keywords)
        for name in call.args
        if isinstance(name, ast.Constant)
    }


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """The members of a union, as they are written."""
    if isinstance(node, ast.BinOp):
        yield from _parts(node.left)
        yield from _parts(node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _parts(ast.parse(node.value, mode="eval").body)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value).split(".")[-1] in _TRANSPARENT:
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in inner[:1] if "Annotated" in ast.unparse(node.value) else inner:
            yield from _parts(part)
    else:
        yield node


def _literals(node: ast.expr) -> list[Any]:
    value = ast.literal_eval(node)
    return list(value) if isinstance(value, tuple) else [value]


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
        json.dumps(value)
    except (ValueError, TypeError):
        return None
    return None if value is Ellipsis else value


def _listed(node: ast.expr | None) -> list[Any]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "choices":
                return _literal(value) or []
    return []


def _names(name: str, arguments: Mapping[str | None, ast.expr]) -> list[str]:
    """Under which names a pydantic field is read; axolotl's models take the field's own beside an alias."""
    alias = arguments.get("validation_alias", arguments.get("alias"))
    if alias is None:
        return [name]
    values = alias.args if isinstance(alias, ast.Call) else [alias]
    return [name, *(one for one in map(_literal, values) if isinstance(one, str) and one != name)]


def _members(node: ast.ClassDef) -> dict[str, Any]:
    if not any("Enum" in ast.unparse(base) for base in node.bases):
        return {}
    return {
        target.id: _literal(statement.value)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    }


def _enumeration(node: ast.ClassDef) -> list[Any]:
    return list(_members(node).values())


def _kind_of(value: object) -> str:
    return _KINDS.get(type(value).__name__, "any")


def release_keys(
    trainer: TrainerSource, package: Package, others: Sequence[Package], transformers: Package | None = None
) -> dict[str, Any]:
    """All keys of one release: ``of`` the stages that have it, where not all do."""
    stages: dict[str, dict[str, Any]] = {}
    reader = Reader(package, others, transformers)
    for root in trainer.roots:
        if package.name != trainer.package and not root.file.startswith(package.name):
            continue
        for file in package.files(root.file):
            for name, node in package.classes(file).items():
                if re.fullmatch(root.classes, name):
                    stage = root.stage.replace("*", _stage(name)).replace("/", Path(file).parent.name)
                    stages.setdefault(stage, {}).update(reader.keys(file, node, package))
    named = [stage for stage in stages if stage]
    keys: dict[str, Any] = {}
    for name in {name: None for block in stages.values() for name in block}:
        has = [stage for stage in stages if name in stages[stage]]
        merged = _together({stage: stages[stage][name] for stage in has})
        if "" not in has and (len(has) < len(named) or trainer.based):
            merged["of"] = sorted(has)
        keys[name] = merged
    return keys


def _stage(name: str) -> str:
    """The stage that a class of TRL is for: ``GRPOScriptArguments`` is of ``grpo``."""
    words = re.sub(r"(Config|ScriptArguments|Arguments)$", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", words).lower()


def _together(stages: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """One key of several stages: kinds and choices of all; defaults by stage where they differ."""
    first, *others = stages.values()
    merged = dict(first)
    for other in others:
        kinds = {*merged["kind"].split("|"), *other["kind"].split("|")}
        merged["kind"] = "any" if "any" in kinds else "|".join(sorted(kinds))
        if "choices" in merged:
            extra = [one for one in other.get("choices", ()) if one not in merged["choices"]]
            merged["choices"] = [*merged["choices"], *extra] if "choices" in other else []
    if not merged.get("choices"):
        merged.pop("choices", None)
    defaults = {stage: key.get("default") for stage, key in stages.items()}
    if len({json.dumps(one) for one in defaults.values()}) > 1:
        merged.pop("default", None)
        merged["defaults"] = {stage: one for stage, one in sorted(defaults.items()) if one is not None}
    return merged


def over_releases(releases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The keys of all releases, each as the newest that has it knows it, with the first and last of these."""
    versions = list(releases)
    keys: dict[str, Any] = {}
    for name in sorted({name for release in releases.values() for name in release}):
        having = [version for version in versions if name in releases[version]]
        key = dict(releases[having[-1]][name])
        if having[0] != versions[0]:
            key["since"] = having[0]
        if having[-1] != versions[-1]:
            key["until"] = having[-1]
        inner = {version: releases[version][name].get("keys", {}) for version in having}
        if any(inner.values()):
            key["keys"] = over_releases(inner)
        keys[name] = key
    return keys


def _keep(new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    """What was decided by hand."""
    for name, key in new.items():
        before = old.get(name, {})
        if before.get("irrelevant"):
            key["irrelevant"] = True
        _keep(key.get("keys", {}), before.get("keys", {}))


def as_text(row: Mapping[str, Any]) -> str:
    """One key to a line, and a block's keys below it."""
    head = {name: value for name, value in row.items() if name != "keys"}
    return json.dumps(head, ensure_ascii=False)[:-1] + f',\n"keys": {_block(row["keys"], 1)}}}\n'


def _block(keys: Mapping[str, Any], depth: int) -> str:
    lines = []
    for name, key in keys.items():
        plain = {word: value for word, value in key.items() if word != "keys"}
        text = json.dumps(plain, ensure_ascii=False)
        if key.get("keys"):
            text = f'{text[:-1]}, "keys": {_block(key["keys"], depth + 1)}}}'
        lines.append(f"{' ' * depth}{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n" + " " * (depth - 1) + "}"


def _order(version: str) -> tuple[tuple[int, str], ...]:
    parts = re.split(r"[.\-]", version)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def trainer_file(name: str, packages: Sequence[Package]) -> dict[str, Any]:
    """What a trainer's file says, of the releases among the packages."""
    trainer = TRAINERS[name]
    own = sorted(
        (one for one in packages if one.name == trainer.package), key=lambda one: _order(one.version)
    )
    newest = max(
        (one for one in packages if one.name == "transformers"),
        key=lambda one: _order(one.version),
        default=None,
    )
    releases = {one.version: release_keys(trainer, one, (), newest) for one in own}
    for also in (one for one in packages if one.name in _ALSO.get(name, ())):
        keys = release_keys(trainer, also, own[-1:])
        releases = {version: {**keys, **release} for version, release in releases.items()}
    versions = list(releases)
    keys = over_releases(releases)
    for block, prefix in _PREFIXED.get(name, {}).items():
        inner = keys[block]["keys"]
        inner |= {prefix + key: dict(row) for key, row in inner.items() if not key.startswith(prefix)}
    keys = dict(sorted((keys | {key: dict(row) for key, row in _READ_BY_CODE.get(name, {}).items()}).items()))
    if trainer.base:
        base_keys = json.loads((FOLDER / f"{trainer.base}.json").read_text(encoding="utf-8"))["keys"]
        for key, row in keys.items():
            if key in base_keys and "until" not in base_keys[key]:
                row.pop("until", None)  # the base's alone now
    path = FOLDER / f"{name}.json"
    if path.exists():
        _keep(keys, json.loads(path.read_text(encoding="utf-8"))["keys"])
    head = {"trainer": name, "title": trainer.title}
    head["source"] = f"{trainer.title} {versions[0]} to {versions[-1]}, {trainer.source}"
    base = {"base": {"of": trainer.base, "stages": list(trainer.based)}} if trainer.base else {}
    return {**head, "versions": versions, **base, "keys": keys}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the releases and write, or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write the files")
    options = parser.parse_args(arguments)
    packages = [Package(path) for path in options.release]
    for name, trainer in TRAINERS.items():
        if not any(package.name == trainer.package for package in packages):
            continue
        path, text = FOLDER / f"{name}.json", as_text(trainer_file(name, packages))
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = {*text.splitlines()} ^ {*before.splitlines()}
        print(f"{path}: {len(json.loads(text)['keys'])} keys, {len(lines)} lines differ")
        if options.write:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
