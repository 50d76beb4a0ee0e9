"""What a rule is, and what it looks at."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.values import frozen_dataclass, replace

ACCELERATE_VERSION = "1.15.0"
"""The release of Accelerate that sources cite, and whose keys are checked unless another is chosen."""

_FIELD = re.compile(r"\{(\w+)\}")

Severity = Literal["error", "warning", "note"]

READERS: Mapping[str, str] = {
    "raw": "deepspeed.initialize",
    "trainer": "the Trainer",
    "accelerate": "Accelerate",
}
"""Who may read a DeepSpeed JSON -> as messages name it."""
EVERY_READER = frozenset(READERS)
FRAMEWORKS = frozenset({"trainer", "accelerate"})
"""Those that read the file with ``json.load`` and fill ``"auto"``."""


@frozen_dataclass
class Setup:
    """A configuration and where it runs; ``None`` where that is not known.

    Attributes:
        raw: the DeepSpeed JSON as written; ``None`` when a planner asks about a strategy.
        planned_parts: tensor parallel ranks of Transformers' ``DistributedConfig``.
        key_value_heads: of the model, for tensor parallelism.
        model, job: for the rules of scope ``layout``, which a planner asks.
        readers: who may read the file.
    """

    settings: DeepSpeedSettings
    raw: Mapping[str, Any] | None = None
    world_size: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    sequence_parallel: int = 1
    context_parallel: int = 1
    planned_parts: int = 1
    gpus_per_node: int | None = None
    key_value_heads: int | None = None
    model: ModelShape | None = None
    job: Job | None = None
    readers: frozenset[str] = EVERY_READER

    def get(self, key: str, default: Any = None) -> Any:
        """Value of a dotted key of the file; ``default`` when it is absent."""
        value: Any = self.raw
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    def has(self, key: str) -> bool:
        """Whether a dotted key is written in the file."""
        missing = object()
        return self.get(key, missing) is not missing


@frozen_dataclass
class Edit:
    """A change of the text: what ``check --fix`` writes; ``safe``: it cannot change what runs; others are
    written with ``--unsafe`` alone."""

    kind: Literal["remove", "set", "rename"]
    key: str
    value: Any = None
    safe: bool = True

    @property
    def done(self) -> str:
        """What it wrote, in words."""
        if self.kind == "rename":
            return f"renamed {self.key} to {self.value}"
        return (
            f"removed {self.key}" if self.kind == "remove" else f"set {self.key} to {json.dumps(self.value)}"
        )


@frozen_dataclass
class Rule:
    """One thing DeepSpeed refuses, ignores or gets wrong.

    Attributes:
        severity: ``error``: the run fails, or does not do what the file says where it matters;
            ``warning``: something is ignored or risky; ``note``: worth knowing.
        silent: DeepSpeed accepts it without a word (else it raises or warns).
        source: file:line in the DeepSpeed release named by ``settings.DEEPSPEED_VERSION``, or in that which
            the path names (``deepspeed-0.17.6/…``).
        key: dotted key a finding points at; may hold ``{fields}`` of the details.
        message: what is wrong and what will happen; may hold ``{fields}`` of the details.
        broken: falsy when the rule is kept; true, or the details that the texts need.
        scope: ``strategy``: settings and degrees are enough; ``file``: needs the raw dictionary; ``layout``:
            needs the model and the job.
        readers: for whom it holds.
        otherwise: severity where somebody else may read the file, too; ``None``: it is not shown then.
        since, until: first and last minor version of DeepSpeed in which it holds, of those that there are
            tables for.
        unmodelled: what runs so may go well; nothing here tells what it takes.
        without_effect: the run works, and the setting does nothing: an estimate asks which of the two is meant.
        option_fix: the fix in options of ``zerokit plan``, where they set what is wrong; empty: ``fix`` says it.
        missing: the key whose absence it is; a misspelt one is a finding of its own.
        edits: changes that ``check --fix`` can write.
    """

    id: str
    source: str
    key: str
    message: str
    fix: str
    broken: Callable[[Setup], bool | Mapping[str, Any] | None]
    severity: Severity = "error"
    silent: bool = False
    scope: Literal["strategy", "file", "layout"] = "file"
    edits: tuple[Edit, ...] = ()
    readers: frozenset[str] = EVERY_READER
    otherwise: Severity | None = "warning"
    option_fix: str = ""
    missing: str = ""
    unmodelled: bool = False
    without_effect: bool = False
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (99, 0)

    def holds_in(self, version: tuple[int, int]) -> bool:
        """Whether it holds in a minor version of DeepSpeed."""
        return self.since <= version <= self.until

    @property
    def versions(self) -> str:
        """The range in words; empty where it holds in every version."""
        first, last = (".".join(map(str, end)) for end in (self.since, self.until))
        if self.since == self.until:
            return f"DeepSpeed {first}"
        if self.until < (99, 0):
            return f"DeepSpeed up to {last}" if self.since == (0, 0) else f"DeepSpeed {first} to {last}"
        return f"DeepSpeed {first} and later" if self.since > (0, 0) else ""


@frozen_dataclass
class Violation:
    """A broken rule, with what its texts name."""

    rule: Rule
    details: Mapping[str, Any] = field(default_factory=dict)

    def _filled(self, text: str) -> str:
        # not str.format: the texts show JSON, which has braces of its own
        return _FIELD.sub(lambda match: str(self.details.get(match[1], match[0])), text)

    @property
    def reason(self) -> str:
        """The rule's id in words: what a search counts rejected candidates by."""
        return self.rule.id.replace("-", " ")

    @property
    def key(self) -> str:
        """Dotted key the finding points at."""
        return self._filled(self.rule.key)

    @property
    def message(self) -> str:
        """What is wrong and what will happen."""
        return self._filled(self.rule.message)

    @property
    def fix(self) -> str:
        """How to fix it."""
        return self._filled(self.rule.fix)

    @property
    def option_fix(self) -> str:
        """How to fix it with the options of a plan."""
        return self._filled(self.rule.option_fix or self.rule.fix)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Changes that ``check --fix`` can write."""
        return tuple(replace(edit, key=self._filled(edit.key)) for edit in self.rule.edits)
