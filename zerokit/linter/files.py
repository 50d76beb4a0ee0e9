"""Read files of any kind, find out what they are, lint each, and lint what belongs together."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from zerokit.errors import FileInputError, InputError
from zerokit.files import leaves
from zerokit.linter.accelerate.deepspeed_block import lint_pair
from zerokit.linter.accelerate.keys import LAUNCH, is_file
from zerokit.linter.accelerate.keys import key_list as accelerate_keys
from zerokit.linter.accelerate.parallelism import runs_as
from zerokit.linter.accelerate.top_level import lint_accelerate, named_config, number_of_processes
from zerokit.linter.arguments_file import find_beside, lint_arguments, lint_fsdp_config, named_deepspeed
from zerokit.linter.deepspeed.file import Context, lint_deepspeed
from zerokit.linter.deepspeed.keylist import wrapper
from zerokit.linter.deepspeed.readers import forget_scripts, scripts_of
from zerokit.linter.deepspeed.tables import key_list
from zerokit.linter.finding import Finding, Row, is_missing
from zerokit.linter.hostfile import lint_hostfile
from zerokit.linter.suppress import without_ignored
from zerokit.rules import FRAMEWORKS
from zerokit.rules.batch import ranks_of
from zerokit.strictload import (
    BYTE_ORDER_MARK,
    MAX_BYTES,
    Document,
    Location,
    Problem,
    decode,
    load_json,
    parse_json,
    parse_yaml,
    read_text,
)
from zerokit.suggest import alternatives, few_searches, misspelt, nearest, synonym
from zerokit.trainer_files.keys import TrainerKeys, trainer_of
from zerokit.trainer_files.reading import SCRIPT_ENDING, script_document, trainer_in

_MOST_NAMES = 3


_CONFIG_FILE_MISSING = Row(
    "accelerate-config-file-missing", "deepspeed_config.deepspeed_config_file", "{message}",
    "correct the path; an absolute one works from everywhere", LAUNCH, "warning",
)  # fmt: skip
_NOT_A_CONFIGURATION = Row(
    "not-a-configuration", "", "is no DeepSpeed configuration: it {what_else}",
    "leave it out, or say --kind deepspeed if it is one", "", "warning",
)  # fmt: skip
_SKIPPED = Row(
    "unreadable", "", "skipped: {by} names it, and it is outside of that folder", "name it, too, to check it",
    "", "note",
)  # fmt: skip
_CONFIG_FILE_KIND = Row(
    "accelerate-config-file-kind", "deepspeed_config.deepspeed_config_file",
    "{named_path} is no DeepSpeed JSON but {kind}: Accelerate fails on it", "name a DeepSpeed JSON", LAUNCH,
)  # fmt: skip


def load_deepspeed(path: Path, *, strict: bool = True) -> Document:
    """Read it. Raises InputError: it cannot be read or is no JSON object; names the file that was probably
    meant."""
    is_folder, is_there = False, True
    with contextlib.suppress(OSError):  # a name too long, or no permission: the reader says so
        is_folder, is_there = path.is_dir(), path.exists()
    if is_folder:
        raise InputError(f"{path}: is a folder; give the DeepSpeed JSON in it{_one_of(_inside(path))}")
    if not is_there:
        raise InputError(f"{path}: there is no such file{similar(path)}")
    if path.suffix in (".yaml", ".yml"):
        raise InputError(f"{path}: ⟨deepspeed⟩ takes DeepSpeed's JSON; {_of_yaml(path)}")
    if path.suffix == ".py":
        raise InputError(f"{path}: ⟨deepspeed⟩ takes DeepSpeed's JSON, and this is a Python script")
    document = load_json(path, strict=strict)
    if not isinstance(document.value, dict):
        raise document.error((), "expected a JSON object: a DeepSpeed configuration")
    return document


def _inside(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [str(folder / path.name) for path in sorted(folder.glob("*.json"))[:_MOST_NAMES]]
    return []


def _one_of(names: Sequence[str]) -> str:
    return f": {alternatives(names)}" if names else ""


def similar(path: Path, endings: Collection[str] = (".json",)) -> str:
    """The file beside it, or one folder below, that is called like it, to end a message with."""
    with contextlib.suppress(OSError):
        below = [str(found) for found in sorted(path.parent.glob(f"*/{path.name}"))[:_MOST_NAMES]]
        names = [found.name for found in path.parent.iterdir() if found.suffix in endings]
        beside = misspelt(path.name, sorted(names), most=2)
        names = [str(path.with_name(name)) for name in beside] or below
        return f"; did you mean {alternatives(names)}?" if names else ""
    return ""


def _of_yaml(path: Path) -> str:
    """What a YAML is, and which JSON belongs to it."""
    checked = f": `zerokit check {shlex.quote(str(path))}` says more"
    try:
        text = read_text(path)
        kind, document = detect_kind(str(path), text), parse_yaml(text, str(path))
    except FileInputError as error:
        return "zerokit knows no such YAML" + checked if error.message == UNKNOWN else error.message
    if kind == "plan":
        return f"it is a plan: ⟨plan⟩ {path.parent}"
    name = named_config(document)
    if name is not None and kind == "accelerate":
        return f"this is Accelerate's YAML, which names it: {name}"
    runs = document.value.get("distributed_type") if isinstance(document.value, dict) else None
    if kind != "accelerate" or not isinstance(runs, str):
        return "this YAML names none" + checked
    if runs == "DEEPSPEED":
        file = shlex.quote(str(path))
        return (
            f"this is Accelerate's YAML, which names none: `zerokit check {file} --model MODEL --gpu GPU` "
            f"tells whether it fits; to run, {_MAKES_PLAN} and launch that, or {_runs_as_it_is(path)}"
        )
    estimates = f"`zerokit estimate ⟨accelerate⟩ {shlex.quote(str(path))} ⟨model⟩ MODEL ⟨gpu⟩ GPU`"
    told = (
        f"{estimates} tells whether it fits"
        if runs_as(document.value) == "FSDP 2"
        else rehearsal_of(document.value)
    )
    return f"this is Accelerate's YAML, and does not use DeepSpeed: {told}"


_MAKES_PLAN = "make a plan with `zerokit plan ⟨gpus⟩ N ⟨gpu⟩ GPU -- SCRIPT`"


def _runs_as_it_is(path: Path) -> str:
    """What runs an Accelerate YAML that names no JSON, without zerokit."""
    return f"run it as it is: `accelerate launch --config_file {shlex.quote(str(path))} SCRIPT`"


def in_place_of_plan(path: Path) -> str | None:
    """What a file is that was named as a plan, and what to do with it; None: a plan, or nothing known."""
    try:
        text = read_text(path)
        kind = detect_kind(str(path), text)
    except FileInputError:
        return None
    file = shlex.quote(str(path))
    if kind == "accelerate":
        name = named_config(parse_yaml(text, str(path)))
        said = f"is Accelerate's YAML, not a plan: {_MAKES_PLAN}"
        if name is None:
            return f"{said} and launch that, or {_runs_as_it_is(path)}"
        return (
            f"{said}, or run the JSON that it names: `zerokit launch ⟨deepspeed⟩ {shlex.quote(name)} SCRIPT`"
        )
    return {
        "deepspeed": "is a DeepSpeed JSON, not a plan: "
        f"`zerokit launch ⟨deepspeed⟩ {file} SCRIPT` runs with it",
        "recipe": f"is a recipe, not a plan: `zerokit plan ⟨recipe⟩ {file}` makes one",
        "hostfile": "is a hostfile, not a plan: "
        f"`zerokit launch ⟨plan⟩ DIR ⟨hostfile⟩ {file} SCRIPT` uses both",
        "arguments": f"has a Trainer's arguments, and is not a plan: {_MAKES_PLAN}",
    }.get(kind)


def rehearsal_of(value: Mapping[str, Any]) -> str:
    """What tells whether the run of an accelerate YAML without DeepSpeed fits."""
    ranks = value.get("num_processes")
    gpus = f" --gpus {ranks}" if isinstance(ranks, int) and ranks > 1 else ""
    variables = ""
    if value.get("distributed_type") == "FSDP":
        variables = ", with the settings of its fsdp_config as variables (ACCELERATE_USE_FSDP=true, "
        variables += "FSDP_VERSION=…)"
    return f"`zerokit rehearse --launcher accelerate{gpus} --gpu GPU SCRIPT` tells whether it fits{variables}"


_HOSTFILE_LINE = re.compile(r"^\s*[^\s#{\[\"':]+\s+slots\s*=", re.MULTILINE)
_PLAN_SCHEMA = "zerokit.planfile/"
UNKNOWN = "is neither a DeepSpeed JSON, an accelerate YAML, a hostfile, a plan nor a recipe; say --kind"
_ARGUMENTS = frozenset(
    {
        "output_dir", "per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs",
        "learning_rate", "model_name_or_path", "save_steps", "logging_steps", "evaluation_strategy",
        "eval_strategy", "do_train", "report_to", "save_strategy", "lr_scheduler_type", "warmup_ratio",
        "gradient_checkpointing", "max_steps",
    }
)  # fmt: skip
_MODEL = frozenset({"architectures", "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads"})
_SHARDING = frozenset({"auto_wrap_policy", "reshard_after_forward", "transformer_layer_cls_to_wrap"})
"""Of a Trainer's ``fsdp_config`` as a file; its ``activation_checkpointing`` is a key of DeepSpeed's."""
_PACKAGE = frozenset({"dependencies", "devDependencies", "scripts"})


JSON_ENDINGS = (".json", ".jsonc")
"""The latter is what editors call JSON with comments, which hjson reads for DeepSpeed."""
_OF_OTHERS = (".py", ".pyi", ".ipynb", ".sh", ".slurm", ".sbatch", ".md", ".rst", ".toml")


@functools.lru_cache(maxsize=1)
def parsed(path: str, text: str, grammar: Literal["json", "yaml"]) -> Document:
    """What the text says, in either grammar; kept, for who asks first what it is. Not to be changed."""
    return (parse_json if grammar == "json" else parse_yaml)(text, path, strict=False)


def detect_kind(path: str, text: str) -> str:
    """What a file is. Raises FileInputError: it cannot be told, or the text cannot be read at all."""
    name = pathlib.Path(path).name.lower()
    if path.endswith(SCRIPT_ENDING):
        script_document(path, text)  # raises
        return "arguments"
    if name.endswith(_OF_OTHERS) or text.startswith("#!"):
        raise FileInputError(path, UNKNOWN, 1, 1)
    start = text.lstrip()[:1]
    has_lines = _HOSTFILE_LINE.search(text) and not name.endswith((*JSON_ENDINGS, ".yaml", ".yml"))
    if start != "{" and (name.startswith("hostfile") or has_lines):
        return "hostfile"
    if name.endswith(JSON_ENDINGS) or (start == "{" and not name.endswith((".yaml", ".yml"))):
        value = parsed(path, text, "json").value
        return _kind_of_json(value) if isinstance(value, dict) else "deepspeed"
    value = parsed(path, text, "yaml").value
    if isinstance(value, dict):
        return _kind_of_mapping(path, value)
    raise FileInputError(path, UNKNOWN, 1, 1)


def _kind_of_json(value: Mapping[str, Any]) -> str:
    keys = set(value)
    if "distributed_type" in keys:
        return "accelerate"
    table = key_list()
    deepspeed_keys = keys & {*table["blocks"][""]["keys"], *table["removed"]["top_level"]}
    if "zero_optimization" in keys or wrapper(value) is not None:
        return "deepspeed"
    if len(keys & _ARGUMENTS) >= 2 or trainer_of(value):
        return "arguments"
    if {key.removeprefix("fsdp_") for key in keys} & _SHARDING:
        return "fsdp_config"
    if keys & (_MODEL | _PACKAGE) and not keys & {"train_micro_batch_size_per_gpu", "train_batch_size"}:
        return "other"
    if not keys or deepspeed_keys or any(_could_be(key) for key in keys):
        return "deepspeed"
    return "other"


def _could_be(key: str) -> bool:
    """Whether a top-level key looks like one of DeepSpeed's, misspelt or misplaced."""
    blocks = key_list()["blocks"]
    if nearest(key, blocks[""]["keys"]) or synonym(key, blocks[""]["keys"]):
        return True
    return key in ("stage", "zero_stage", "offload_optimizer", "offload_param", "overlap_comm")


def _kind_of_mapping(path: str, value: dict[str, Any]) -> str:
    keys = {str(key) for key in value}
    if str(value.get("schema", "")).startswith(_PLAN_SCHEMA):
        return "plan"
    if keys & {"distributed_type", "compute_environment", "deepspeed_config", "num_machines"}:
        return "accelerate"
    if trainer_of(value):
        return "arguments"
    if keys & {"model", "params"} and keys & {"gpus", "gpu", "vram", "expect", "nodes"}:
        return "recipe"
    deepspeed = set(key_list()["blocks"][""]["keys"])
    if len(keys & deepspeed) >= max(1, len(keys) // 2):
        if scripts_of(path)[1]:  # a script beside names it, and makes a dictionary of it
            return "deepspeed"
        raise FileInputError(path, "is a DeepSpeed configuration in YAML; DeepSpeed reads JSON only", 1, 1)
    if len(keys & _ARGUMENTS) >= 2:
        return "arguments"
    if 2 * len(keys & set(accelerate_keys()["cluster"])) >= max(1, len(keys)):
        return "accelerate"
    if isinstance(value.get("deepspeed"), str):
        return "arguments"
    raise FileInputError(path, UNKNOWN, 1, 1)


def what_else(value: object) -> str:
    """What a JSON is that DeepSpeed does not read."""
    keys = set(value) if isinstance(value, dict) else set()
    if keys & _MODEL:
        return "looks like a model's config.json"
    if keys & _PACKAGE:
        return "looks like a package.json"
    return "has none of DeepSpeed's keys"


@dataclass(slots=True, kw_only=True)
class CheckedFile:
    """One file, what it is, and what was found.

    Attributes:
        text: as it was read.
        batch_ranks: the only number of ranks that its batch sizes are for, where the run's was not said.
        is_read: False: another file names it, and it is outside of that one's folder.
    """

    path: str
    kind: str
    document: Document | None = field(repr=False)
    findings: list[Finding] = field(default_factory=list)
    text: str = field(default="", repr=False)
    batch_ranks: int | None = None
    is_read: bool = True

    @property
    def trainer(self) -> TrainerKeys | None:
        """Whose file it is, where a trainer has files of its own."""
        value = self.document.value if self.document is not None and self.kind == "arguments" else None
        return trainer_in(self.document) if self.document and isinstance(value, dict) else None

    @property
    def failed(self) -> bool:
        """Whether there is an error."""
        return any(finding.severity == "error" for finding in self.findings)


def check_files(
    paths: Sequence[str],
    context: Context | None = None,
    *,
    kind: str | None = None,
    ignore: frozenset[str] = frozenset(),
    discovered: Mapping[str, str] = MappingProxyType({}),
    texts: Mapping[str, str] = MappingProxyType({}),
) -> list[CheckedFile]:
    """Lint every file, and every DeepSpeed JSON and hostfile that a YAML among them names.

    Files of kind ``plan`` and ``recipe`` are read and left to the caller; ``-`` is standard input.

    Args:
        ignore: rules that are not shown.
        discovered: paths that were found in a folder, and that folder: what is no configuration is left
            out, and a file outside of it that one of them names.
        texts: of files that an editor has open, by path: what is in it and not saved.
    """
    context = context or Context()
    forget_scripts()
    files = [read_file(path, kind=kind, text=texts.get(path)) for path in paths]
    files = [file for file in files if file.path not in discovered or _is_configuration(file)]
    real_paths = {_real(file.path) for file in files}
    for yaml_file in [file for file in files if _may_name(file)]:
        for named, named_kind in ((_named_file(yaml_file), "deepspeed"), (_hostfile(yaml_file), "hostfile")):
            if named is None or _real(named) in real_paths:
                continue
            real_paths.add(_real(named))
            folders = (discovered.get(yaml_file.path, os.curdir), pathlib.Path(yaml_file.path).parent)
            is_outside = all(leaves(named, folder) for folder in folders)
            text = texts.get(_real(named))
            files.append(
                _outside(named, yaml_file)
                if is_outside
                else read_file(str(named), kind=named_kind, text=text)
            )
    _lint(files, context)
    for file in files:
        file.findings = without_ignored(file.findings, file.text, ignore)
        file.findings.sort(key=lambda finding: (finding.location, finding.rule))
    return files


def _outside(named: pathlib.Path, by: CheckedFile) -> CheckedFile:
    """A file that is not read, because another file alone names it."""
    path = str(named)
    finding = _SKIPPED.found(path, Location(1, 1), by=by.path)
    return CheckedFile(path=path, kind="unknown", document=None, findings=[finding], is_read=False)


STANDARD_INPUT = "<stdin>"
_ENDINGS = (".json", ".yaml", ".yml", "")


def read_file(path: str, *, kind: str | None = None, text: str | None = None) -> CheckedFile:
    """Read one file (``-``: standard input), or take its text from an editor; what keeps it from being read
    is its only finding."""
    text, is_open = text or "", text is not None
    try:
        if path == "-":
            path, text = STANDARD_INPUT, decode(sys.stdin.buffer.read(MAX_BYTES), STANDARD_INPUT)
        elif not is_open:
            text = read_text(path, keep_mark=True)
        without_bom = text.removeprefix(BYTE_ORDER_MARK)
        with few_searches():
            kind = kind or detect_kind(path, without_bom)
        document = _parse(path, text, without_bom, kind)
        return CheckedFile(path=path, kind=kind, document=document, text=text)
    except FileInputError as error:
        message = error.message
        if not is_open and not os.path.lexists(path) and path != STANDARD_INPUT:
            message = f"there is no such file{similar(pathlib.Path(path), _ENDINGS)}"
        row = Row("syntax" if error.line else "unreadable", "", "{message}", "")
        finding = row.found(path, Location(error.line or 1, error.column or 1), message=message)
    except Exception as error:
        finding = internal_error(path, error)
    finally:
        parsed.cache_clear()
    return CheckedFile(path=path, kind=kind or "unknown", document=None, findings=[finding], text=text)


def _parse(path: str, text: str, without_bom: str, kind: str) -> Document:
    if kind == "hostfile":
        return Document(path=path, text=text)
    if kind == "arguments" and path.endswith(SCRIPT_ENDING):
        return script_document(path, text)
    is_json = path.endswith(JSON_ENDINGS) or (path == STANDARD_INPUT and without_bom.lstrip()[:1] == "{")
    is_yaml = kind != "deepspeed" or path.endswith((".yaml", ".yml"))
    if is_yaml and not is_json:
        if kind in ("accelerate", "arguments", "deepspeed"):
            return parsed(path, without_bom, "yaml")
        return parse_yaml(without_bom, path)  # zerokit's own, which take no duplicate
    document = parsed(path, without_bom, "json")
    return document if without_bom == text else replace(document, problems=[*document.problems, _MARK])


_MARKS = re.compile(
    r"[\"']?(zero_optimization|train_micro_batch_size_per_gpu|train_batch_size|distributed_type|deepspeed_config)"
    r"[\"']?\s*:"
)


def _is_configuration(file: CheckedFile) -> bool:
    """Whether a file that nobody named is one to check."""
    if file.kind in ("fsdp_config", "hostfile", "plan", "recipe") or file.trainer:
        return True
    if file.document is not None and isinstance(file.document.value, list):
        return False
    if any(finding.message == UNKNOWN for finding in file.findings):
        return False
    return file.kind != "other" and _MARKS.search(file.text) is not None


_MARK = Problem(
    rule="json-byte-order-mark", location=Location(1, 1), fix="save the file as UTF-8 without it",
    message="a byte order mark: raw DeepSpeed reads past it, Accelerate and the Trainer fail",
)  # fmt: skip


def _may_name(file: CheckedFile) -> bool:
    has_keys = isinstance(getattr(file.document, "value", None), dict)
    return has_keys and file.kind in ("accelerate", "arguments")


def _where(name: str, yaml_file: str) -> tuple[pathlib.Path, ...]:
    """Where a file that a YAML names may be: here, as Accelerate looks, beside the YAML, or where a folder
    above it is the one in which the command is started."""
    above = pathlib.Path(yaml_file).absolute().parents[1:]
    folders = (pathlib.Path(), pathlib.Path(yaml_file).parent, *above)
    return tuple(folder / name for folder in folders)


def _named_file(file: CheckedFile) -> pathlib.Path | None:
    """The DeepSpeed JSON that a YAML names; where there is none, a finding says so."""
    assert file.document is not None
    if file.kind == "arguments":
        path = named_deepspeed(file.document)
        return find_beside(path, file.path) if path else None
    name = named_config(file.document)
    if name is None or name.endswith((".yaml", ".yml")):
        return None  # the lint of the block speaks of a YAML
    named = next(filter(is_file, _where(name, file.path)), None)
    if named is not None:
        return named
    file.findings.append(_CONFIG_FILE_MISSING.at(file.document, message=is_missing(name, "Accelerate")))
    return None


def _hostfile(file: CheckedFile) -> pathlib.Path | None:
    """The hostfile an accelerate YAML names, when it is here; its absence is a finding of the block."""
    value = file.document.value if file.document is not None else None
    block = value.get("deepspeed_config") if isinstance(value, dict) else None
    name = block.get("deepspeed_hostfile") if isinstance(block, dict) else None
    return pathlib.Path(name) if isinstance(name, str) and is_file(name) else None


def _real(path: str | pathlib.Path) -> str:
    """The file behind links; a path that cannot be one (a NUL, a loop of links) stays as it is."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return str(path)


INTERNAL_ERROR = "internal-error"
"""The rule of a finding that is a fault of zerokit."""
_INTERNAL_ERROR = Row(
    INTERNAL_ERROR, "", "zerokit failed on this file ({message}); its other checks are missing",
    "report it, with the file",
)  # fmt: skip


def _add(file: CheckedFile, lint: Callable[[], Iterable[Finding]]) -> None:
    """Add what ``lint`` finds; where it breaks, that is a finding, and the other files keep theirs."""
    try:
        with few_searches():
            file.findings += lint()
    except Exception as error:
        file.findings.append(internal_error(file.path, error))


def internal_error(path: str, error: Exception) -> Finding:
    """The finding that stands for a fault of zerokit."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return _INTERNAL_ERROR.found(path, Location(1, 1), message=message)


def _lint(files: list[CheckedFile], context: Context) -> None:
    processes: dict[str, int] = {}
    named: set[str] = set()
    for file in files:
        if file.kind == "arguments" and _may_name(file):
            named.add(_real(_named_file(file) or file.path))
        if file.document is None or file.kind != "accelerate":
            continue
        partner = _partner(file, files)
        config = partner.document if partner is not None and partner.kind == "deepspeed" else None
        arguments = (file.document, context.world_size, config, context.model_code)
        _add(file, functools.partial(lint_accelerate, *arguments))
        count, hostfile = number_of_processes(file.document), _hostfile(file)
        if partner is not None and partner.kind not in ("deepspeed", "unknown"):
            found = _CONFIG_FILE_KIND.at(file.document, named_path=partner.path, kind=partner.kind)
            file.findings.append(found)
        elif partner is not None and partner.document is not None:
            named.add(_real(partner.path))  # a Trainer may run under accelerate launch, too
            if isinstance(partner.document.value, dict):
                pair = functools.partial(lint_pair, file.document, partner.document.value, partner.path)
                _add(file, pair)
            if count is not None:
                processes[_real(partner.path)] = count
        if hostfile is not None and count is not None:
            processes[_real(hostfile)] = count
    for file in files:
        world_size = context.world_size or processes.get(_real(file.path))
        if file.kind == "other" and file.document is not None:
            what = what_else(file.document.value)
            file.findings.append(_NOT_A_CONFIGURATION.at(file.document, what_else=what))
        elif file.kind == "arguments" and isinstance(getattr(file.document, "value", None), dict):
            assert file.document is not None
            _add(file, functools.partial(lint_arguments, file.document, context))
        elif file.kind == "fsdp_config" and file.document is not None:
            _add(file, functools.partial(lint_fsdp_config, file.document))
        elif file.kind == "hostfile" and file.document is not None:
            _add(file, functools.partial(lint_hostfile, file.document, world_size))
        elif file.kind == "deepspeed" and file.document is not None:
            readers = context.readers
            if readers is None and _real(file.path) in named:
                readers = FRAMEWORKS
            if world_size is None and isinstance(file.document.value, dict):
                file.batch_ranks = ranks_of(file.document.value)
            file_context = replace(context, world_size=world_size, readers=readers)
            _add(file, functools.partial(lint_deepspeed, file.document, file_context))


def _partner(yaml_file: CheckedFile, files: list[CheckedFile]) -> CheckedFile | None:
    assert yaml_file.document is not None
    name = named_config(yaml_file.document)
    if name is None:
        return None
    candidates = {_real(path) for path in _where(name, yaml_file.path)}
    return next((file for file in files if _real(file.path) in candidates), None)
