"""Trainers' own files: keys and values that the trainer refuses or ignores, and what does not go together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from zerokit.linter.finding import Finding, Row, meant
from zerokit.linter.trainer_conflicts import conflicts
from zerokit.rules.types import Edit, Severity
from zerokit.strictload import Document, Path
from zerokit.suggest import leaves_no_doubt, nearest
from zerokit.trainer_files.keys import BASE, Key, TrainerKeys, trainer
from zerokit.trainer_files.kinds import KINDS, Kind, is_llamafactory_v1
from zerokit.trainer_files.reading import SCRIPT_ENDING
from zerokit.trainer_files.says import is_computed

_UNKNOWN_KEY = Row(
    "trainer-unknown-key", "", "{title} has no {key}{where}: it {effect}", "{fix}",
)  # fmt: skip
_OTHER_STAGE = Row(
    "trainer-other-stage", "",
    "{key} is for {title}'s {stages}, and this file is {what}: {title} {effect}", "{fix}",
)  # fmt: skip
_RETIRED_KEY = Row(
    "trainer-retired-key", "", "{title} {until} was the last to have {key}{where}: {effect}", "{fix}",
)  # fmt: skip
_WRONG_KIND = Row(
    "trainer-wrong-kind", "", "{key} is {value!r}: {effect}", "write {kind}",
)  # fmt: skip
_WRONG_CHOICE = Row(
    "trainer-wrong-choice", "", "{key} is {value!r}: {effect}", "{fix}",
)  # fmt: skip
_OUT_OF_RANGE = Row(
    "trainer-out-of-range", "", "{key} is {value!r}: {effect}", "write a number {bound}",
)  # fmt: skip
_CONFLICT = Row("trainer-conflict", "", "{what}: {title} refuses it", "{fix}")
_MISMATCH = Row(
    "trainer-deepspeed-mismatch", "",
    "{key} is {value!r}, and {setting} of {file} is {other!r}: the Trainer refuses it",
    "write \"auto\" in the JSON, or the same in both", "Transformers 5.23.0, integrations/deepspeed.py:235",
)  # fmt: skip


_REPLACED_IN_BASE: Mapping[str, str] = {
    "evaluation_strategy": "eval_strategy", "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size", "warmup_ratio": "warmup_steps",
}  # fmt: skip
"""What took the place of a key of Transformers' own."""
_MOST_OTHERS = 8


def lint_trainer_file(document: Document, found: TrainerKeys) -> Iterator[Finding]:
    """Findings about a file of a trainer."""
    check = _Check(document, found, KINDS[found.name], _stages(found, document.value))
    yield from check.block(document.value, found.keys, ())
    for conflict, key in conflicts(found.name, document.value):
        yield _CONFLICT.at(
            document, tuple(key.split(".")), source=conflict.source, what=conflict.what, fix=conflict.fix,
            title=found.title,
        )  # fmt: skip


def _stages(found: TrainerKeys, value: Mapping[str, Any]) -> frozenset[str]:
    """Which of the trainer's commands, or of axolotl's plugins, a file is for; empty: not told."""
    if found.name == "axolotl":
        plugins = value.get("plugins")
        names = [str(one).split(".") for one in plugins] if isinstance(plugins, list) else []
        return frozenset({"axolotl", *(part for name in names for part in name)})
    if found.name == "llamafactory":
        return frozenset({"v1"} if is_llamafactory_v1(value) else {"train", "eval"})
    return frozenset()


class _Check(NamedTuple):
    """One file of a trainer, being looked through."""

    document: Document
    trainer: TrainerKeys
    reader: Kind
    stages: frozenset[str]

    def block(self, value: Mapping[Any, Any], known: Mapping[str, Key], path: Path) -> Iterator[Finding]:
        """What is wrong below ``path``."""
        for name, one in value.items():
            key, at = known.get(str(name)), (*path, name)
            if key is None and one is None and not self.reader.refuses_keys:
                continue  # nothing is lost
            if key is None:
                yield self._unknown(str(name), value, known, at)
            elif key.until:
                yield self._retired(key, value, known, at)
            elif not path and key.of and self.stages and self.stages.isdisjoint(key.of):
                yield self._of_another_stage(key, at)
            else:
                yield from self._value(key, one, at)

    def _value(self, key: Key, value: object, at: Path) -> Iterator[Finding]:
        if problem := self._problem(key, value):
            yield problem.at(
                self.document, at, source=self.trainer.source, severity=self._value_severity(key),
                title=self.trainer.title, key=".".join(map(str, at)), value=value, **self._texts(key, value),
            )  # fmt: skip
        elif key.keys:
            blocks = [(at, value)] if isinstance(value, dict) else []
            if isinstance(value, list):
                blocks = [((*at, number), one) for number, one in enumerate(value)]
            for where, block in blocks:
                if isinstance(block, dict) and not key.open:
                    yield from self.block(block, key.keys, where)

    def _problem(self, key: Key, value: object) -> Row | None:
        if is_computed(value) and self.document.path.endswith(SCRIPT_ENDING):
            return None
        if value is None:
            return _WRONG_KIND if key.not_null else None
        kinds = key.kind.split("|")
        if "any" not in kinds and not any(_is(kind, value, self.trainer.name) for kind in kinds):
            return _WRONG_KIND
        if key.choices and not _is_choice(value, key.choices):
            return _WRONG_CHOICE
        if self.reader.refuses_values and not _within(key, value):
            return _OUT_OF_RANGE
        return None

    def _value_severity(self, key: Key) -> Severity:
        return "error" if self.reader.refuses_values and not key.of_base else "warning"

    def _texts(self, key: Key, value: object) -> dict[str, str]:
        kinds = " or ".join(_KINDS[kind] for kind in key.kind.split("|") if kind != "any")
        guess = nearest(str(value), list(map(str, key.choices)))
        some = " or ".join(map(str, key.choices[:_MOST_OTHERS]))
        takes = (f"{some} or others" if len(key.choices) > _MOST_OTHERS else some) or kinds
        refuses = f"{self.trainer.title} refuses it"
        bounds = {"of at least": key.least, "above": key.above, "of at most": key.most, "below": key.below}
        return {
            "kind": kinds,
            "effect": refuses if self.reader.refuses_values else f"{self.trainer.title} reads {takes}",
            "fix": f"did you mean {guess}?" if guess else f"use {takes}",
            "bound": " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None),
        }

    def _unknown(self, name: str, value: Mapping[Any, Any], known: Mapping[str, Key], at: Path) -> Finding:
        names = [one for one, key in known.items() if not key.until]
        guess = self.reader.replaced.get(name) or nearest(name, names) or nearest(name, known) or ""
        few = ", ".join(names) if len(names) <= _MOST_OTHERS else ""
        fix = meant(guess, value) if guess else f"use {few}, or remove it" if few else "remove it"
        return _UNKNOWN_KEY.at(
            self.document, at, severity=self._key_severity(at, guess), source=self.trainer.source,
            suggests=guess, edits=self._rename(name, guess, value, names, at), title=self.trainer.title,
            key=repr(name), where=_below(at), effect=self._effect(at), fix=fix,
        )  # fmt: skip

    def _retired(self, key: Key, value: Mapping[Any, Any], known: Mapping[str, Key], at: Path) -> Finding:
        owner, replaced = self.trainer, self.reader.replaced
        if key.of_base:
            owner, replaced = trainer(BASE), _REPLACED_IN_BASE
        guess = replaced.get(key.name, "")
        guess = guess if guess in known else ""
        severity = "note" if key.of_base else self._key_severity(at, "old")
        return _RETIRED_KEY.at(
            self.document, at, severity=severity, source=owner.source, title=owner.title, until=key.until,
            key=repr(key.name), where=_below(at), effect="later releases do not read it",
            fix=f"use {guess}" if guess else "remove it", suggests=guess,
            edits=self._rename(key.name, guess, value, (), at),
        )  # fmt: skip

    def _of_another_stage(self, key: Key, at: Path) -> Finding:
        plugin = self.trainer.name == "axolotl"
        return _OTHER_STAGE.at(
            self.document, at, source=self.trainer.source, title=self.trainer.title, key=repr(key.name),
            severity=self._key_severity(at, "old"), effect=self._effect(at),
            stages=f"{'plugin' if plugin else 'stage'} {' and '.join(key.of)}",
            what="without it" if plugin else "of another",
            fix=f"add axolotl.integrations.{key.of[0]} to plugins, or remove it" if plugin else "remove it",
        )  # fmt: skip

    def _effect(self, at: Path) -> str:
        if self.reader.refuses_keys and len(at) == 1:
            own = " unless the script has one" if self.reader.own_arguments else ""
            return f"refuses the file{own}"
        return "ignores it"

    def _key_severity(self, at: Path, guess: str) -> Severity:
        plugins = self.document.value.get("plugins") or ()
        others = isinstance(plugins, list) and any(not str(one).startswith("axolotl.") for one in plugins)
        if (others or self.reader.own_arguments) and len(at) == 1:
            return "warning" if guess else "note"
        return "error" if self.reader.refuses_keys and len(at) == 1 else "warning"

    def _rename(
        self, name: str, guess: str, value: Mapping[Any, Any], names: Any, at: Path
    ) -> tuple[Edit, ...]:
        if not guess or guess in value or any(not isinstance(part, str) for part in at):
            return ()
        stops = self.reader.refuses_keys and len(at) == 1 and not self.reader.own_arguments
        safe = stops and (not names or leaves_no_doubt(name, guess, names))
        return (Edit(kind="rename", key=".".join(map(str, at)), value=guess, safe=safe),)


def _below(at: Path) -> str:
    names = [str(part) for part in at[:-1] if isinstance(part, str)]
    return f" in {'.'.join(names)}" if names else ""


_KINDS = {
    "text": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "list": "a list", "mapping": "a block of keys",
}  # fmt: skip
_TRUTH_WORDS: Mapping[bool, tuple[str, ...]] = {
    True: ("True", "true", "yes", "on"), False: ("False", "false", "no", "off", "none"),
}  # fmt: skip
_TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0", "y", "n", "t", "f")


def _is(kind: str, value: object, name: str) -> bool:
    """Whether a trainer takes a value for one of a kind."""
    if kind in ("integer", "number"):
        if isinstance(value, bool):
            return name == "axolotl"
        whole = kind == "integer"
        if not isinstance(value, (int, float, str)):
            return False
        try:
            number = float(value)
        except ValueError:
            return False
        return not whole or number == number // 1
    if kind == "boolean":
        return isinstance(value, bool) or str(value).lower() in _TRUTH or value in (0.0, 1.0)
    if kind == "list":
        return isinstance(value, (list, tuple)) or (name != "axolotl" and not isinstance(value, dict))
    if kind == "mapping":
        as_json = (
            isinstance(value, str)
            and name != "axolotl"
            and (value.lstrip().startswith("{") or value.endswith((".json", ".yaml", ".yml")))
        )
        return isinstance(value, dict) or as_json
    if name == "axolotl":
        return isinstance(value, str)
    return name == "swift" or not isinstance(value, dict)  # which writes it as JSON


def _is_choice(value: object, choices: tuple[Any, ...]) -> bool:
    if isinstance(value, list):
        return all(_is_choice(one, choices) for one in value)
    words = {*map(str, choices)}
    if isinstance(value, bool):
        return not words.isdisjoint(_TRUTH_WORDS[value])  # YAML reads off and no so
    if {"True", "False"} <= words and _is("boolean", value, ""):
        return True
    return value in choices or str(value) in map(str, choices)


def _within(key: Key, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    return not (
        (key.least is not None and value < key.least)
        or (key.above is not None and value <= key.above)
        or (key.most is not None and value > key.most)
        or (key.below is not None and value >= key.below)
    )


_FILLED: Mapping[str, tuple[str, ...]] = {
    "train_micro_batch_size_per_gpu": ("per_device_train_batch_size", "micro_batch_size"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("max_grad_norm",),
    "bf16.enabled": ("bf16",),
    "fp16.enabled": ("fp16",),
    "optimizer.params.lr": ("learning_rate",),
    "optimizer.params.weight_decay": ("weight_decay",),
}
"""The settings that the Trainer compares with its arguments (integrations/deepspeed.py:160)."""


def lint_named_deepspeed(document: Document, named: FilePath) -> Iterator[Finding]:
    """Settings of a DeepSpeed JSON that the file names, and says otherwise."""
    try:
        config = json.loads(named.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    for setting, keys in _FILLED.items():
        other: Any = config
        for part in setting.split("."):
            other = other.get(part) if isinstance(other, dict) else None
        key = next((one for one in keys if document.value.get(one) is not None), None)
        value = document.value[key] if key is not None else None
        if (
            key is not None
            and isinstance(value, (bool, int, float))
            and isinstance(other, (bool, int, float))
            and value != other
        ):
            yield _MISMATCH.at(
                document, (key,), key=key, value=value, setting=setting, file=named.name, other=other
            )
