"""How a script takes its DeepSpeed configuration, read from its source without running it.

======== =====================================================================================
raw       calls ``deepspeed.initialize`` and parses ``--deepspeed_config`` (and ``--deepspeed``)
accelerate creates an ``Accelerator``: takes it from the environment
trainer   a Hugging Face Trainer (TRL's too): takes it from the environment
none      nothing that takes one was seen
======== =====================================================================================
"""

from __future__ import annotations

import ast
import contextlib
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerokit.domain.settings import SETTINGS
from zerokit.errors import InputError
from zerokit.files import read_regular
from zerokit.script.entry_points import Target
from zerokit.script.own_modules import find_module, installed_package, own_modules, reachable
from zerokit.script.parser_calls import called, parser_calls
from zerokit.suggest import misspelt

STYLES = ("raw", "accelerate", "trainer", "none")
STYLE_WORDS = {
    "raw": "a script that calls deepspeed.initialize",
    "accelerate": "an Accelerate script",
    "trainer": "a Hugging Face Trainer script",
    "none": "a script that takes no DeepSpeed configuration",
}
"""Style → what a script of it is called in messages."""
_MOST_FILES = 60
_LARGEST_SOURCE_BYTES = 4 << 20
_MICRO_BATCH = "train_micro_batch_size_per_gpu"
_ARGUMENT_CLASSES = {"transformers": ("TrainingArguments",), "trl": ("Config",)}  # SFTConfig
PARSERS_OF_DATACLASSES = frozenset({"HfArgumentParser", "TrlParser"})
_TRAINING_ARGUMENTS = {"TrainingArguments", "Seq2SeqTrainingArguments"}
_DEEPSPEED = {"--deepspeed", "--deepspeed_config", "--deepscale", "--deepscale_config"}
"""deepspeed/__init__.py, ``_add_core_arguments``."""
_PARSES = {"parse_args", "parse_intermixed_args", "parse_args_into_dataclasses"}
_MAKE_PARSERS = {"ArgumentParser", "add_argument_group", "add_mutually_exclusive_group"}
_TAKES_OTHERS = {
    "parse_known_args", "parse_known_intermixed_args", "add_subparsers", "parse_json_file", "parse_yaml_file",
    "parse_dict", "argv", "TrlParser", "REMAINDER", "parents", "fromfile_prefix_chars", "prefix_chars",
    "return_remaining_strings",
}  # fmt: skip
"""Names and keywords that mean that its options are not only those which stand in the source."""
ARGUMENT_FILES = (".json", ".yaml", ".yml")
"""How a file of arguments ends that is given in their place."""


@dataclass(slots=True, kw_only=True)
class ScriptFacts:
    """What the script's source (with its own modules beside it) says.

    Attributes:
        options: option strings given to ``add_argument``.
        flags: those of them that take no value.
        option_defaults: literal defaults of its options, by their names with underscores.
        batch_arguments: literal values of keywords such as ``per_device_train_batch_size``.
        passed_on: by the name of a batch's size or its accumulation, the attribute that a call gets it from.
        mentions: every name and attribute used, for looking for ``DummyOptim`` and the like.
        attributes: the attributes among them.
        fields: names annotated in class bodies: what a parser of dataclasses turns into options.
        adding_options: functions that are given its parser, and classes of which one is made; those that are
            ``defined`` in it are read.
        is_whole: all that it imports of its own was read.
        has_subcommands: its parser has subparsers, before which options mean something else.
        own_configurations: ``file:line: argument`` of calls of ``initialize`` with ``config=``.
        argument_classes: names such as ``trl.SFTConfig`` that it imports.
        spells_out_arguments: it makes training arguments itself, with keywords.
        hides_arguments: some of them by ``**``, from a file or a computation.
        names_optimizer: the text ``optimizer`` stands in it, as a key.
        keywords: of all calls, and attributes that are set.
        field_defaults: in its dataclasses, literal defaults of these, of models, lengths, ranks and switches.
        reads_deepspeed_config: it uses the value of its option ``--deepspeed_config``.
        package: the installed package that it belongs to.
        reads_micro_batch: it asks the engine or the configuration how large a micro-batch is to be, or has
            DeepSpeed make its data loader.
    """

    path: Path
    package: str | None = None
    adds_deepspeed_arguments: bool = False
    options: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    option_defaults: dict[str, object] = field(default_factory=dict)
    calls_initialize: bool = False
    initialize_calls: int = 0
    own_configurations: list[str] = field(default_factory=list)
    argument_classes: list[str] = field(default_factory=list)
    spells_out_arguments: bool = False
    hides_arguments: bool = False
    names_optimizer: bool = False
    keywords: set[str] = field(default_factory=set)
    field_defaults: dict[str, object] = field(default_factory=dict)
    reads_deepspeed_config: bool = False
    uses_accelerator: bool = False
    uses_trainer: bool = False
    batch_arguments: dict[str, object] = field(default_factory=dict)
    passed_on: dict[str, str] = field(default_factory=dict)
    mentions: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    has_subcommands: bool = False
    adding_options: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    is_whole: bool = True
    reads_micro_batch: bool = False
    unreadable: str | None = None

    @property
    def style(self) -> str:
        """The best guess; ``raw`` wins where a script does its own ``deepspeed.initialize``."""
        takes_deepspeed_config = self.adds_deepspeed_arguments or "--deepspeed_config" in self.options
        uses_other = self.uses_trainer or self.uses_accelerator
        if takes_deepspeed_config and (self.calls_initialize or not uses_other):
            return "raw"
        return "trainer" if self.uses_trainer else "accelerate" if self.uses_accelerator else "none"

    @property
    def own_configuration(self) -> str | None:
        """Where the script gives ``deepspeed.initialize`` a configuration that it makes itself, as
        ``file:line: argument``; None where one of its calls takes the file of ``--deepspeed_config``."""
        if self.reads_deepspeed_config or len(self.own_configurations) < max(1, self.initialize_calls):
            return None
        return self.own_configurations[0]

    @property
    def why(self) -> str:
        """What the guess rests on."""
        if self.unreadable:
            return self.unreadable
        if self.style == "raw":
            is_own = not self.adds_deepspeed_arguments
            reason = "its own argument parser" if is_own else "deepspeed.add_config_arguments"
            return f"it takes --deepspeed_config through {reason}"
        if self.style == "none" and self.own_configuration:
            return f"it gives deepspeed.initialize one of its own ({self.own_configuration})"
        return {
            "trainer": "it uses a Trainer of Transformers or TRL",
            "accelerate": "it creates an Accelerator",
            "none": "it neither takes --deepspeed_config nor uses Accelerate or a Trainer",
        }[self.style]

    @property
    def asks_for_optimizer(self) -> bool:
        """Whether the script looks whether the DeepSpeed file has an optimizer, and else makes its own."""
        return self.names_optimizer and self.reads_deepspeed_config

    @property
    def parses_training_arguments(self) -> bool:
        """Whether the fields of TrainingArguments are options of the script."""
        return self.uses_trainer and bool(self.mentions & PARSERS_OF_DATACLASSES)

    def lacks(self, option: str) -> bool:
        """Whether it ends at an option, as nothing that its source declares begins so, and it takes no others
        but those of TrainingArguments."""
        others = self.adding_options - self.defined - _TRAINING_ARGUMENTS - {"add_config_arguments"}
        is_open = others or (self.mentions | self.keywords) & _TAKES_OTHERS or not self.is_whole
        if is_open or not self.mentions & _PARSES:
            return False
        declared = {"--help", *self.options, *(f"--{name}" for name in self.fields)}
        declared |= _DEEPSPEED if self.adds_deepspeed_arguments else set()
        return not any(one.replace("-", "_").startswith(option.replace("-", "_")) for one in declared)

    def takes_local_rank(self, arguments: Sequence[str]) -> bool:
        """Whether the ``--local_rank=N`` that the deepspeed launcher puts first would be understood.

        Only a script that declares the option gets it: Trainers and Accelerate read LOCAL_RANK. Never
        before a subcommand, or a file of arguments (``HfArgumentParser`` users look into ``sys.argv[1]``).
        """
        parses_dataclasses = bool(self.mentions & PARSERS_OF_DATACLASSES)
        declared = "--local_rank" in self.options or (parses_dataclasses and "local_rank" in self.fields)
        if not declared or self.has_subcommands:
            return False
        if any(argument.partition("=")[0] == "--local_rank" for argument in arguments):
            return False
        from_file = bool(arguments) and arguments[0].endswith(ARGUMENT_FILES)
        return not (from_file and (parses_dataclasses or "argv" in self.mentions))


def read_script(script: Path | None, module: str | None, source: str | None = None) -> ScriptFacts:
    """Read the script, or the module, and what it imports from its own folder or package.

    Args:
        script: a file, or a folder with ``__main__.py``.
        module: a module's name, where there is no script.
        source: the module that a console command's program imports.

    Raises:
        InputError: there is no such script or module.
    """
    path = script if script is not None else find_module(module or "")
    if path.is_dir():
        folder, path = path, path / "__main__.py"
        if not path.is_file():
            raise InputError(
                f"script {folder}: a folder without __main__.py; name the script in it", field="script"
            )
    if not path.is_file():
        raise InputError(f"script {path}: there is no such file{_elsewhere(path)}", field="script")
    facts = ScriptFacts(path=path)
    package = installed_package(path)
    root = package.parent if package else path.parent if script is not None else Path.cwd()
    waiting = deque([path])
    if source is not None:
        start = find_module(source)
        package = installed_package(start)
        root = package.parent if package else root
        waiting.append(start)
    facts.package = package.name if package else None
    entries = set(waiting)
    trees = _trees(facts, waiting, root)
    # a package may start its own files again, each as a script
    for current, tree in reachable(trees, entries if package is None else trees).items():
        _Reader(facts, current).visit(tree)
        calls = parser_calls(tree, current)
        facts.options |= calls.options
        facts.flags |= calls.flags
        facts.option_defaults = {**calls.defaults, **facts.option_defaults}
        facts.has_subcommands |= calls.has_subcommands
    return facts


def read_target(target: Target) -> ScriptFacts:
    """What :func:`read_script` reads of what the user wants run."""
    script = Path(target.script) if target.script is not None else None
    return read_script(script, target.module, target.source)


def _trees(facts: ScriptFacts, waiting: deque[Path], root: Path) -> dict[Path, ast.Module]:
    """The files that wait and all that they import of the script's own, parsed."""
    trees: dict[Path, ast.Module] = {}
    read: set[Path] = set()
    while waiting and len(read) < _MOST_FILES:
        current = waiting.popleft()
        if current in read:
            continue
        read.add(current)
        tree = _parse(current, facts)
        facts.is_whole &= tree is not None and facts.package is None
        if tree is not None:
            trees[current] = tree
            waiting.extend(own_modules(tree, root, current.parent, facts.package))
    facts.is_whole &= not waiting
    return trees


_FOLDERS_OF_SCRIPTS = ("examples", "scripts")


def _elsewhere(path: Path) -> str:
    """Where a script of the name lies that was not found, or one that is called like it."""
    with contextlib.suppress(OSError):
        below = sorted(path.parent.glob(f"*/{path.name}"))[:2]
        folders = [path.parent, *(path.parent / name for name in _FOLDERS_OF_SCRIPTS)]
        names = ((folder, [file.name for file in folder.glob("*.py")]) for folder in folders)
        alike = ([folder / near for near in misspelt(path.name, there, most=2)] for folder, there in names)
        found = below or next(filter(None, alike), [])
        if found:
            return f"; did you mean {' or '.join(map(str, found))}?"
    return ""


def _parse(path: Path, facts: ScriptFacts) -> ast.Module | None:
    try:
        return ast.parse(read_regular(path, _LARGEST_SOURCE_BYTES, os.sep), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if path == facts.path:
            facts.unreadable = f"its source cannot be read as Python ({type(error).__name__})"
        return None


class _Reader(ast.NodeVisitor):
    """Collects the facts from one file."""

    def __init__(self, facts: ScriptFacts, path: Path) -> None:
        self.facts = facts
        self.path = path
        self.parsers: set[str] = set()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        package = (node.module or "").split(".")[0]
        for alias in node.names:
            self._mention(alias.name, package)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self.facts.fields.add(statement.target.id)
                value = statement.value
                if isinstance(value, ast.Call):
                    value = next((k.value for k in value.keywords if k.arg == "default"), None)
                told = (
                    {statement.target.id}
                    & {*BATCH_KEYWORDS, *SETTINGS["seq_len"].in_scripts, *SETTINGS["model"].in_scripts}
                    or "rank" in statement.target.id
                    or getattr(value, "value", 0) is False
                )
                if told and isinstance(value, ast.Constant):
                    self.facts.field_defaults[statement.target.id] = value.value
        self.facts.defined.add(node.name)
        bases = {ast.unparse(base) for base in node.bases}
        inherits = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        added = {one for one in bases if inherits or one.endswith(("Parser", "Arguments"))}
        self.facts.adding_options |= added
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.facts.mentions.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        package = node.value.id if isinstance(node.value, ast.Name) else ""
        self._mention(node.attr, package)
        self.facts.attributes.add(node.attr)
        self.facts.keywords |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value == _MICRO_BATCH:
            self.facts.reads_micro_batch = True
        self.facts.reads_deepspeed_config |= node.value == "deepspeed_config"
        self.facts.names_optimizer |= node.value == "optimizer"

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Call) and called(node.value) in _MAKE_PARSERS:
            self.parsers |= {ast.unparse(target) for target in node.targets}
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.facts.defined.add(node.name)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = called(node)
        given = (ast.unparse(one) for one in (*node.args, *(k.value for k in node.keywords)))
        if any(text in self.parsers or text.endswith("parser") for text in given):
            self.facts.adding_options.add(name)
        if name == "HfArgumentParser":
            names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            self.facts.adding_options |= names - {name}
        if name == "add_argument" and not all(isinstance(one, ast.Constant) for one in node.args):
            self.facts.adding_options.add(name)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name == "add_config_arguments":
            self.facts.adds_deepspeed_arguments = True
        elif name == "initialize" and isinstance(owner, ast.Name) and owner.id in ("deepspeed", "ds"):
            self._initialize(node)
        elif name.endswith(("TrainingArguments", "Config")):
            made_here = any(class_name.endswith(f".{name}") for class_name in self.facts.argument_classes)
            self.facts.spells_out_arguments |= made_here
            self.facts.hides_arguments |= made_here and not all(k.arg for k in node.keywords)
        self.facts.reads_micro_batch |= any(k.arg == "training_data" for k in node.keywords)
        self.facts.keywords |= {keyword.arg for keyword in node.keywords if keyword.arg}
        for keyword in node.keywords:
            if keyword.arg in BATCH_KEYWORDS and isinstance(keyword.value, ast.Constant):
                self.facts.batch_arguments[keyword.arg] = keyword.value.value
            elif keyword.arg in BATCH_KEYWORDS:
                self.facts.batch_arguments.setdefault(keyword.arg, None)
                if isinstance(keyword.value, ast.Attribute):
                    self.facts.passed_on[keyword.arg] = keyword.value.attr
        self.generic_visit(node)

    def _initialize(self, node: ast.Call) -> None:
        self.facts.calls_initialize = True
        self.facts.initialize_calls += 1
        for keyword in node.keywords:
            if keyword.arg in ("config", "config_params"):
                text = ast.unparse(keyword.value)
                quoted = text if len(text) <= 40 else "…"
                self.facts.own_configurations.append(f"{self.path}:{node.lineno}: {keyword.arg}={quoted}")

    def _mention(self, name: str, package: str) -> None:
        self.facts.mentions.add(name)
        self.facts.reads_deepspeed_config |= name == "deepspeed_config"
        self.facts.reads_micro_batch |= name in (_MICRO_BATCH, "deepspeed_io")
        self.facts.uses_accelerator |= name == "Accelerator"
        if name.endswith(_ARGUMENT_CLASSES.get(package, ())):
            self.facts.argument_classes.append(f"{package}.{name}")
        if package in _ARGUMENT_CLASSES and name.endswith(("Trainer", "TrainingArguments")):
            self.facts.uses_trainer = True


BATCH_KEYWORDS = ("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16",
                  "gradient_checkpointing", "deepspeed", "fsdp", "optim", "use_liger_kernel")  # fmt: skip
