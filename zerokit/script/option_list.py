"""Whether all options of a script can be known from its source, and which of its arguments is none of them.

argparse ends at an option that it does not know. Where options may come from anywhere else (another
library's function gets the parser, arguments are read twice), nothing is known and nothing is said.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NoReturn

from zerokit.domain.settings import SETTINGS
from zerokit.suggest import by_words, fold, misspelt

_PARSER = "ArgumentParser"
_DATACLASS_PARSER = "HfArgumentParser"
_CLASSES = frozenset({_PARSER, _DATACLASS_PARSER})
_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group"})
_PARSES = frozenset({"parse_args", "parse_intermixed_args", "parse_args_into_dataclasses"})
_ELSEWHERE = frozenset({
    "parse_known_args", "parse_known_intermixed_args", "add_subparsers", "parse_json_file", "parse_yaml_file",
    "parse_dict", "argv", "TrlParser", "REMAINDER", "aliases",
})  # fmt: skip
"""Names, keywords and keys that mean that the options are not only those which stand in the source."""
_ARGUMENTS_OF_PARSERS = frozenset({"description", "formatter_class", "prog", "usage", "epilog", "add_help",
                                   "argument_default", "exit_on_error"})  # fmt: skip
_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--deepscale", "--deepscale_config")
"""deepspeed/__init__.py, ``_add_core_arguments``."""
_TRAINING_ARGUMENTS = {"TrainingArguments": "training_args.py",
                       "Seq2SeqTrainingArguments": "training_args_seq2seq.py"}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class OptionList:
    """Of all files of a script.

    Attributes:
        names: of options, in every spelling that a parser takes.
        parses: whether a call that ends at an unknown option was seen.
        is_whole: whether nothing was seen that may add others.
    """

    names: set[str] = field(default_factory=lambda: {"-h", "--help"})
    parses: bool = False
    is_whole: bool = True

    def read(self, tree: ast.Module) -> None:
        """Add what a file says."""
        _File(self, tree).read()

    def unknown(self, arguments: Sequence[str]) -> list[str]:
        """The arguments that are no option of the script's, as far as all of its options are known."""
        return [name for name in self._long(arguments) if not self._beginning_so(name)]

    def ambiguous(self, arguments: Sequence[str]) -> dict[str, list[str]]:
        """The arguments that argparse takes for the beginning of several options, and those options."""
        begun = {name: self._beginning_so(name) for name in self._long(arguments) if name not in self.names}
        return {name: options for name, options in begun.items() if options and _is_refused(name, options)}

    def refuses(self, arguments: Sequence[str]) -> bool:
        """Whether a script is known to end at one of these arguments."""
        return bool(self.unknown(arguments) or self.ambiguous(arguments))

    def _long(self, arguments: Sequence[str]) -> list[str]:
        """The names of the long options among them; none where not all of the script's are known."""
        if not (self.parses and self.is_whole):
            return []
        words = arguments[: arguments.index("--")] if "--" in arguments else arguments
        return [word.partition("=")[0] for word in words if word.startswith("--")]

    def _beginning_so(self, name: str) -> list[str]:
        return sorted(known for known in self.names if known.startswith(name))


def unknown_option(
    script: str, options: OptionList, arguments: Sequence[str], may_mean: Mapping[str, str]
) -> str | None:
    """A warning of the first argument that is no option of the script's; None: there is none, or it is not
    known.

    Args:
        may_mean: what to add of an argument that could be the beginning of several options.
    """
    for name in options.unknown(arguments):
        as_fields_first = sorted(options.names, key=lambda known: ("-" in known[2:], known))
        # what other scripts call the same
        all_names = [{*map(fold, setting.in_scripts)} for setting in SETTINGS.values()]
        same = {one for names in all_names if fold(name) in names for one in names}
        near = (
            misspelt(name, as_fields_first)
            or [option for option in as_fields_first if fold(option) in same][:1]
            or by_words(name, as_fields_first)
        )
        meant = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"`python {script} --help` lists those that it has"
        )
        return f"warning: {script} has no option {name}, and ends where it gets one: {meant}"
    for name, known in options.ambiguous(arguments).items():
        shown = list(dict.fromkeys(one.replace("-", "_").replace("__", "--", 1) for one in known))
        more = " …" if len(shown) > 3 else ""
        return (
            f"warning: {script} ends at {name}, which may be the beginning of {', '.join(shown[:3])}{more}: "
            f"write it out{may_mean.get(name, '')}"
        )
    return None


class _Refused(Exception):
    """argparse would end here."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def _is_refused(name: str, options: Sequence[str]) -> bool:
    """Whether this Python's argparse refuses the beginning of these; the spellings of one option differ in
    hyphens alone."""
    parser = _Parser(add_help=False)
    spellings: dict[str, list[str]] = {}
    for option in options:
        spellings.setdefault(option.replace("-", "_"), []).append(option)
    for same in spellings.values():
        parser.add_argument(*same, nargs="?")
    try:
        parser.parse_known_args([name])
    except _Refused:
        return True
    return False


class _File:
    """One file of a script."""

    def __init__(self, found: OptionList, tree: ast.Module) -> None:
        self.found = found
        self.tree = tree
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self.functions = {node.name for node in functions}
        calls = {
            node.name: {called(n) for n in ast.walk(node) if isinstance(n, ast.Call)} for node in functions
        }
        self.makers = {_PARSER, _DATACLASS_PARSER, *_GROUPS} | {
            name for name, inside in calls.items() if inside & _CLASSES and not inside & _PARSES
        }
        self.classes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
        self.parsers: set[str] = set()

    def read(self) -> None:
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            if isinstance(node.value, ast.Call) and called(node.value) in self.makers:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.parsers |= {ast.unparse(target) for target in targets}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute):
                name = node.id if isinstance(node, ast.Name) else node.attr
                self._require(name not in _ELSEWHERE)
            elif isinstance(node, ast.alias):
                self._require(node.name.rpartition(".")[2] not in _ELSEWHERE)
            elif isinstance(node, ast.Constant | ast.keyword):
                self._require((node.value if isinstance(node, ast.Constant) else node.arg) != "aliases")
            elif isinstance(node, ast.ClassDef):
                self._require(not any(ast.unparse(base).endswith(_PARSER) for base in node.bases))
            elif isinstance(node, ast.Call):
                self._call(node)

    def _require(self, holds: bool) -> None:
        self.found.is_whole &= holds

    def _call(self, node: ast.Call) -> None:
        name = called(node)
        if name == _PARSER:
            self._require(not node.args and {k.arg for k in node.keywords} <= _ARGUMENTS_OF_PARSERS)
        elif name == _DATACLASS_PARSER:
            self._dataclasses(node)
        elif name == "add_argument":
            self._option(node)
        elif name == "add_config_arguments":
            self.found.names.update(_DEEPSPEED)
        elif name in _PARSES:
            self._parse(node)
        elif name not in self.functions:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            self._require(not any(self._is_parser(value) for value in given))

    def _is_parser(self, value: ast.expr) -> bool:
        if not isinstance(value, ast.Name | ast.Attribute):
            return False
        text = ast.unparse(value)
        return text in self.parsers or text.endswith("parser")

    def _parse(self, node: ast.Call) -> None:
        """Only of ``sys.argv`` as it is, and by a parser that is made in this file."""
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        made_here = isinstance(owner, ast.Call) and called(owner) in self.makers - _GROUPS
        known = made_here or (owner is not None and ast.unparse(owner) in self.parsers)
        self._require(known and not node.args and not node.keywords)
        self.found.parses = True

    def _option(self, node: ast.Call) -> None:
        names = _texts(node)
        self._require(len(names) == len(node.args) and bool(names))
        self.found.names.update(names)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        self._require(keywords.get("nargs") != "'...'" and None not in keywords)
        if keywords.get("action", "").endswith("BooleanOptionalAction"):
            self.found.names.update(f"--no-{name[2:]}" for name in names)

    def _dataclasses(self, node: ast.Call) -> None:
        """The fields of each class; one that is not read may have any."""
        first = node.args[0] if len(node.args) == 1 and not node.keywords else None
        items = first.elts if isinstance(first, ast.Tuple | ast.List) else [first]
        for item in items:
            fields = self._fields(item.id) if isinstance(item, ast.Name) else None
            self._require(fields is not None)
            self.found.names.update(_spellings(fields or ()))

    def _fields(self, name: str) -> set[str] | None:
        """Fields of a class and those that it derives from; None: not all are known."""
        if name in _TRAINING_ARGUMENTS and name not in self.classes:
            installed = installed_fields(name)
            return None if installed is None else set(installed)
        if name not in self.classes:
            return None
        fields = own_fields(self.classes[name])
        for base in self.classes[name].bases:
            inherited = self._fields(base.id) if isinstance(base, ast.Name) else None
            if inherited is None:
                return None
            fields |= inherited
        return fields


def _spellings(fields: Collection[str]) -> Iterator[str]:
    """transformers/hf_argparser.py, ``_parse_dataclass_field``: with hyphens too, and ``no_`` of switches."""
    for name in fields:
        for text in (name, f"no_{name}"):
            yield f"--{text}"
            yield f"--{text.replace('_', '-')}"


def own_fields(node: ast.ClassDef) -> set[str]:
    """What a class annotates."""
    return {
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


@cache
def installed_fields(name: str) -> frozenset[str] | None:
    """The fields of the installed Transformers' training arguments, from their source; None: not found."""
    spec = importlib.util.find_spec("transformers")
    fields: set[str] = set()
    for class_name in dict.fromkeys((name, "TrainingArguments")):
        folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
        path = next((f / _TRAINING_ARGUMENTS[class_name] for f in folders), None)
        try:
            tree = ast.parse(path.read_bytes()) if path is not None else ast.Module([], [])
        except (OSError, SyntaxError):
            return None
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        if class_name not in classes:
            return None
        fields |= own_fields(classes[class_name])
    return frozenset(fields)


# ---------------------------------------------------------------- calls of argparse


@dataclass(slots=True, kw_only=True)
class ParserCalls:
    """What the calls of argparse in one file say.

    Attributes:
        options: option strings given to ``add_argument``.
        flags: those of them that take no value.
        defaults: literal defaults by the option's name, with underscores; a path beside the script is whole.
        by_attribute: an option and its literal default, by the attribute that holds its value.
        has_subcommands: the parser has subparsers.
    """

    options: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    defaults: dict[str, object] = field(default_factory=dict)
    by_attribute: dict[str, tuple[str, object]] = field(default_factory=dict)
    has_subcommands: bool = False


def parser_calls(tree: ast.AST, path: Path) -> ParserCalls:
    """Read the file at ``path``."""
    found = ParserCalls()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        found.has_subcommands |= called(node) == "add_subparsers"
        if called(node) != "add_argument":
            continue
        names = _texts(node)
        found.options.update(names)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        action, default = keywords.get("action"), keywords.get("default")
        if isinstance(action, ast.Constant) and str(action.value).startswith("store_"):
            found.flags.update(names)
        value = default.value if isinstance(default, ast.Constant) else None
        option = next((name for name in names if name.startswith("--")), None)
        if option is not None and not isinstance(keywords.get("dest"), ast.Constant):
            found.by_attribute[option[2:].replace("-", "_")] = option, value
        if isinstance(default, ast.Call) and ast.unparse(default).startswith("Path(__file__).with_name("):
            value = next((str(path.with_name(name)) for name in _texts(default)), None)
        if value is not None:
            found.defaults |= {name.lstrip("-").replace("-", "_"): value for name in names}
    return found


def called(node: ast.Call) -> str:
    """The name of what is called, without its owner."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _texts(node: ast.Call) -> list[str]:
    """The arguments without a name that are literal texts."""
    return [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
