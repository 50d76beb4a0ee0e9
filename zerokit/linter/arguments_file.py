"""TrainingArguments in JSON or YAML: what the Trainer refuses or ignores of DeepSpeed, FSDP and its keys."""

from __future__ import annotations

import functools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from zerokit.domain.client_optimizers import fails_on_shards
from zerokit.domain.fsdp2_config import fsdp_version
from zerokit.linter.accelerate.keys import POLICIES, PREFETCHES, STATE_DICTS, STRATEGIES, TRUTH_WORDS, is_file
from zerokit.linter.deepspeed.file import Context, lint_deepspeed
from zerokit.linter.finding import Finding, Row, is_missing, meant, read_past
from zerokit.linter.trainer_file import lint_named_deepspeed, lint_trainer_file
from zerokit.rules import FRAMEWORKS
from zerokit.rules.types import Edit
from zerokit.strictload import Document
from zerokit.suggest import distance, fold, nearest
from zerokit.trainer_files.kinds import KINDS, take_axolotls_engine
from zerokit.trainer_files.reading import SCRIPT_ENDING, trainer_in
from zerokit.trainer_files.says import Says

_FSDP_AND_DEEPSPEED = Row(
    "arguments-fsdp-and-deepspeed", "fsdp", "fsdp and deepspeed are both given: the Trainer refuses it",
    "keep one of the two", "Transformers 5.23.0, trainer.py:475",
)  # fmt: skip
_FP16_AND_BF16 = Row(
    "arguments-fp16-and-bf16", "fp16", "fp16 and bf16 are both on: the Trainer refuses it",
    "keep one of the two",
)  # fmt: skip
_NOT_A_CONFIGURATION = Row(
    "not-a-configuration", "",
    "these are training arguments that name no DeepSpeed JSON: only their names are checked",
    "check the DeepSpeed JSON that the Trainer gets", "", "note",
)  # fmt: skip
_UNKNOWN_KEY = Row(
    "arguments-unknown-key", "",
    "TrainingArguments has no {key!r}: HfArgumentParser refuses it unless the script has one",
    "did you mean {guess!r}?", "", "warning",
)  # fmt: skip
_VALUE_AS_TEXT = Row(
    "arguments-value-as-text", "",
    "{key} is {value!r}: {effect} HfArgumentParser; parsers that convert read {kind}", "{fix}",
    "Transformers 5.23.0, hf_argparser.py:358",
)  # fmt: skip
_FSDP_OFF = Row(
    "arguments-fsdp-off", "fsdp_config",
    "fsdp_config is given, and fsdp is not: the Trainer ignores it and runs without FSDP",
    "add \"fsdp\": true, or remove fsdp_config", "", "warning",
)  # fmt: skip
_FSDP_OPTION = Row(
    "arguments-fsdp-option", "fsdp", "fsdp has no option {word!r}: the Trainer refuses it", "{fix}",
)  # fmt: skip
_FSDP_1_OPTION = Row(
    "arguments-fsdp-option", "fsdp",
    "{word} needs FSDP 1, and the Trainer runs FSDP 2: it refuses the file",
    "use full_shard or shard_grad_op, or set \"version\": 1 in fsdp_config",
)  # fmt: skip
_FSDP_IGNORED_KEY = Row(
    "arguments-fsdp-ignored-key", "", "the Trainer ignores {key!r} in fsdp_config", "{fix}", "", "warning",
)  # fmt: skip
_FSDP_OPTIMIZER = Row(
    "arguments-fsdp-optimizer", "", "{key} is {name!r}: {why}",
    "use adamw_torch_fused, or adamw_torch_8bit (torchao)", "bitsandbytes 0.50.2, optim/optimizer.py:570",
)  # fmt: skip
_FSDP_PACKED = Row(
    "arguments-fsdp-packed", "load_in_4bit",
    "load_in_4bit without bnb_4bit_quant_storage: FSDP2 leaves the packed weights whole on every GPU "
    "(Accelerate before 1.14 fails on them)",
    "add bnb_4bit_quant_storage: bfloat16, or the dtype of training",
    "Accelerate 1.15.0, utils/fsdp_utils.py:785", "warning",
)  # fmt: skip
_FSDP_VALUE = Row(
    "arguments-fsdp-value", "", "{key} is {value!r}: the Trainer fails on it", "use {allowed}",
)  # fmt: skip


_MOST_TYPOS = 2
_LIST = pathlib.Path(__file__).with_name("training-arguments.json")
_PATH = re.compile(r"[./\\]")
_WORDS = (*map(str.lower, STRATEGIES), "offload", "auto_wrap")
_VALUES: Mapping[str, tuple[str, ...]] = {
    "version": ("1", "2"),
    "auto_wrap_policy": POLICIES,
    "state_dict_type": STATE_DICTS,
    "backward_prefetch": PREFETCHES,
}
_ASKED_AS_WORDS = (
    "activation_checkpointing", "cpu_ram_efficient_loading", "forward_prefetch", "limit_all_gathers",
    "sync_module_states", "use_orig_params",
)  # fmt: skip


@functools.cache
def argument_list() -> Mapping[str, Any]:
    """The Trainer's arguments and keys of ``fsdp_config``; written by ``python -m tools.arguments_keys``."""
    loaded: Mapping[str, Any] = json.loads(_LIST.read_text(encoding="utf-8"))
    return loaded


def _source() -> str:
    return f"Transformers {argument_list()['transformers']}, training_args.py"


def named_deepspeed(document: Document) -> str | None:
    """The path of a DeepSpeed JSON that a trainer's file names; a word alone may be a framework's own."""
    named = document.value.get("deepspeed")
    return named if isinstance(named, str) and _PATH.search(named) else None


def lint_arguments(document: Document, context: Context) -> Iterator[Finding]:
    """Findings about a file of TrainingArguments, and about the DeepSpeed block in a trainer's file."""
    value, trainer = document.value, trainer_in(document)
    named, path = value.get("deepspeed"), named_deepspeed(document)
    inner = document.below("deepspeed") if isinstance(named, dict) else None
    for problem in document.problems:
        if problem.rule == "duplicate-key" and (inner is None or problem not in inner.problems):
            yield read_past(document, problem, "warning")
    if path and not find_beside(path, document.path):
        yield _missing(document, "deepspeed", path)
    if inner is not None:
        yield from lint_deepspeed(inner, replace(context, readers=FRAMEWORKS))
    if trainer is not None:
        yield from lint_trainer_file(document, trainer)
        if path and (there := find_beside(path, document.path)):
            yield from lint_named_deepspeed(document, there)
        if not trainer.parses_arguments:
            says = Says(trainer, value)
            take_axolotls_engine(says)
            if fsdp := says.engine.get("fsdp"):
                yield from _steps_shards(document, fsdp["fsdp_config"], "optimizer")
            return
    # keys that differ from an argument's in spelling: any other may be one of the script's own
    known_fields = argument_list()["fields"]
    for key in document.value if trainer is None else ():
        guess = None if key in known_fields else nearest(str(key), known_fields)
        if guess is None or guess in document.value or distance(fold(str(key)), fold(guess)) > _MOST_TYPOS:
            continue
        edit = Edit(kind="rename", key=str(key), value=guess, safe=False)
        yield _UNKNOWN_KEY.at(
            document,
            (key,),
            source=_source(),
            suggests=guess,
            edits=(edit,),
            key=key,
            guess=guess,
        )
    if trainer is None or not (KINDS[trainer.name].converts or document.path.endswith(SCRIPT_ENDING)):
        yield from _texts(document)
    if named and value.get("fsdp"):
        yield _FSDP_AND_DEEPSPEED.at(document)
    elif trainer is not None and trainer.name == "swift":
        pass  # its fsdp names a JSON, or is a path to one (ms-swift 4.6, arguments/sft_args.py:285)
    elif value.get("fsdp") or value.get("fsdp_config"):
        yield from _fsdp(document)
    if value.get("fp16") is True and value.get("bf16") is True:
        yield _FP16_AND_BF16.at(document, source=_source())
    if trainer is None and named is None and not value.get("fsdp") and not value.get("fsdp_config"):
        yield _NOT_A_CONFIGURATION.at(document)


def _texts(document: Document) -> Iterator[Finding]:
    """Numbers and booleans in quotes: HfArgumentParser hands a file's values on as they are."""
    for key, kind in argument_list()["fields"].items():
        value = document.value.get(key)
        if not isinstance(value, str) or not _stands_for(kind, value):
            continue
        unquoted = any(problem.location == document.values.get((key,)) for problem in document.problems)
        effect = "YAML reads it as text, and so does" if unquoted else "it stays text for"
        fix = "write it with a point, as 5.0e-5" if unquoted else "write it without quotes"
        yield _VALUE_AS_TEXT.at(
            document, (key,), severity="note" if unquoted else "warning", key=key, value=value,
            effect=effect, kind="true or false" if kind == "boolean" else "a number", fix=fix,
        )  # fmt: skip


def _stands_for(kind: str, text: str) -> bool:
    if kind == "boolean":
        return text.lower() in ("true", "false", "yes", "no", "on", "off")
    if kind not in ("integer", "number"):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def _fsdp(document: Document) -> Iterator[Finding]:
    value = document.value
    config = value.get("fsdp_config")
    if isinstance(config, str) and config and not find_beside(config, document.path):
        yield _missing(document, "fsdp_config", config)
    if not value.get("fsdp"):
        yield _FSDP_OFF.at(document, source=_source())
        return
    block: Mapping[str, Any] = config if isinstance(config, dict) else {}
    yield from _fsdp_words(document, block)
    yield from _fsdp_block(document, block, ("fsdp_config",))
    if fsdp_version(block, 2) == 1:
        return
    yield from _steps_shards(document, block, "optim")
    if value.get("load_in_4bit") is True and value.get("bnb_4bit_quant_storage") in (None, "uint8"):
        yield _FSDP_PACKED.at(document)


def _steps_shards(document: Document, block: object, key: str) -> Iterator[Finding]:
    """Whether the optimizer that a key names fails on what FSDP2 divides."""
    name = document.value.get(key)
    if fsdp_version(block, 2) == 2 and (why := fails_on_shards(name)) is not None:
        yield _FSDP_OPTIMIZER.at(document, (key,), key=key, name=name, why=why)


def _fsdp_words(document: Document, block: Mapping[str, Any]) -> Iterator[Finding]:
    """``fsdp`` as a text or a list of options, which version 2 takes a part of."""
    value = document.value["fsdp"]
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    version = str(block.get("version", block.get("fsdp_version", 2)))
    for word in map(str, words):
        if word.lower() not in _WORDS:
            guess = nearest(word, _WORDS)
            fix = f"did you mean {guess}?" if guess else f"use {', '.join(_WORDS)}"
            yield _FSDP_OPTION.at(document, source=_source(), word=word, fix=fix)
        elif word.upper() in STRATEGIES[2:] and version == "2":
            yield _FSDP_1_OPTION.at(document, source=_source(), word=word)


def lint_fsdp_config(document: Document) -> Iterator[Finding]:
    """Find what the Trainer ignores or refuses of an ``fsdp_config`` in a file of its own."""
    yield from (read_past(document, problem, "warning") for problem in document.problems)
    yield from _fsdp_block(document, document.value, ())


def _fsdp_block(document: Document, block: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[Finding]:
    known_keys = argument_list()["fsdp_config"]
    for key, value in block.items():
        name, path = str(key).removeprefix("fsdp_"), (*at, key)
        if name not in known_keys:
            guess = nearest(name, known_keys)
            fix = f"use {', '.join(known_keys)}, or remove it"
            fix = meant(guess, {str(one).removeprefix("fsdp_") for one in block}) if guess else fix
            yield _FSDP_IGNORED_KEY.at(
                document, path, source=_source(), suggests=guess or "", key=key, fix=fix
            )
        elif not _is_value(name, value):
            allowed = _VALUES.get(name, ("true", "false"))
            yield _FSDP_VALUE.at(
                document, path, severity="warning" if value is None else "error", source=_source(), key=key,
                value=value, allowed=" or ".join(allowed),
            )  # fmt: skip


def _is_value(name: str, value: object) -> bool:
    if name in _VALUES:
        return str(value).upper() in _VALUES[name] and not isinstance(value, bool)
    return name not in _ASKED_AS_WORDS or str(value).lower() in TRUTH_WORDS


def _missing(document: Document, key: str, name: str) -> Finding:
    row = Row(f"arguments-{key.replace('_', '-')}-missing", key, "{why}", "correct the path", _source())
    severity = "warning" if trainer_in(document) is None else "note"
    return row.at(document, severity=severity, why=is_missing(name, "the Trainer"))


def find_beside(name: str, path: str) -> pathlib.Path | None:
    """The file of a relative name: from here, beside the file at ``path``, or from a folder above it."""
    folders = (pathlib.Path(), *(pathlib.Path.cwd() / path).parents)
    return next((folder / name for folder in folders if is_file(folder / name)), None)
