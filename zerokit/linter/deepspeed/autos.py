"""``"auto"``: who fills which key, and what happens to one that nobody fills.

The Trainer fills from TrainingArguments, Accelerate from its plugin and from what is prepared; both
then walk the whole file in ``Accelerator.prepare`` and raise on whatever still says ``"auto"``.
``deepspeed.initialize`` fills nothing: its pydantic blocks drop the key and take their default
(runtime/config_utils.py:56), everything else meets the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.linter.deepspeed.tables import key_list
from zerokit.linter.deepspeed.values import finding
from zerokit.linter.finding import Finding
from zerokit.rules import FRAMEWORKS
from zerokit.rules.known import TRAINER_FILLS
from zerokit.rules.types import ACCELERATE_VERSION, READERS, Severity
from zerokit.strictload import Document

_FILLED_BY_BOTH = frozenset(
    {
        # from the precision and the model
        "fp16.enabled", "bf16.enabled", "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
        # by the plugin, from its own arguments
        "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size",
        "gradient_clipping",
        "zero_optimization.stage", "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_param.device", "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_param.nvme_path",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        # set for every run
        "steps_per_print",
    }
)  # fmt: skip
_FILLED_FROM_DUMMIES = frozenset(
    {
        "optimizer.params.lr", "optimizer.params.weight_decay", "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_max_lr", "scheduler.params.warmup_num_steps",
        "scheduler.params.total_num_steps",
    }
)  # fmt: skip
"""By Accelerate, from a DummyOptim or DummyScheduler of the script."""
_AUTO_IS_A_VALUE = (
    "zero_optimization.zenflow.", "pipeline.", "data_types.keep_in_fp32_modules", "autotuning.",
)  # fmt: skip
_SOURCE = f"Accelerate {ACCELERATE_VERSION}, accelerator.py, _prepare_deepspeed"


def autos(raw: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the keys whose value is ``"auto"``."""
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from autos(value, (*prefix, key))
        elif value == "auto":
            yield (*prefix, key)


def stops_initialize(raw: Mapping[str, Any]) -> bool:
    """Whether there is an ``"auto"`` that ``deepspeed.initialize`` neither drops nor takes for a value."""
    return any(
        not _is_dropped(path) and not ".".join(path).startswith(_AUTO_IS_A_VALUE) for path in autos(raw)
    )


def _is_dropped(path: tuple[str, ...]) -> bool:
    block = key_list()["blocks"].get(".".join(path[:-1]), {"unknown": "ignored"})
    return bool(block["unknown"] == "refused")


def fills(reader: str, key: str) -> bool:
    """Whether ``reader`` replaces ``"auto"`` at a dotted key."""
    if reader == "raw":
        return False
    if key in _FILLED_BY_BOTH:
        return True
    return key in (TRAINER_FILLS if reader == "trainer" else _FILLED_FROM_DUMMIES)


def lint_autos(
    document: Document, readers: frozenset[str], *, every_reader: bool = False
) -> Iterator[Finding]:
    """Findings about the ``"auto"`` values that nobody fills who may read the file, one for all of which the
    same comes. ``every_reader``: each of them must fill it, rather than one."""
    if "trainer" in readers:
        yield from _held_against_the_trainers(document)
    told: dict[tuple[_Unfilled, tuple[str, ...]], list[tuple[str, ...]]] = {}
    for path in autos(document.value):
        key = ".".join(path)
        if readers == {"raw"} and key.startswith(_AUTO_IS_A_VALUE):
            continue
        lacking = frozenset(reader for reader in readers if not fills(reader, key))
        if not lacking or (lacking != readers and not every_reader):
            continue
        if lacking & FRAMEWORKS:
            path = _unread(path)
            who = "only the Trainer fills" if fills("trainer", key) else "nobody fills"
            fails = (
                "the Trainer and Accelerate fail when they prepare"
                if lacking >= FRAMEWORKS
                else f"{READERS[next(iter(lacking & FRAMEWORKS))]} fails when it prepares"
            )
            passes = "raw" in readers and _is_dropped(path)
            also = ", deepspeed.initialize takes its default" if passes else ""
            what = _Unfilled(
                effect=f'{who} "auto" for {{names}}: {fails} the model{also}',
                severity="warning" if passes and not every_reader else "error",
                source=_SOURCE,
            )
        else:
            dropped = _is_dropped(path)
            severity: Severity = "error"
            if key == "zero_optimization.stage":
                effect = 'deepspeed.initialize drops "auto" for {names}, and runs stage 0'
            elif dropped and key in ("fp16.enabled", "bf16.enabled"):
                effect = 'deepspeed.initialize drops "auto" for {names}: off'
            elif dropped:
                severity = "warning"
                effect = 'deepspeed.initialize drops "auto" for {names}, and takes the default'
            else:
                effect = 'deepspeed.initialize fills no "auto": the engine fails on the text, for {names}'
            source = "DeepSpeed 0.19.8, runtime/config_utils.py:56"
            what = _Unfilled(effect=effect, severity=severity, source=source)
        told.setdefault((what, () if _is_known(path) else path), []).append(path)
    for (what, _), paths in told.items():
        yield _once(document, what, list(dict.fromkeys(paths)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unfilled:
    """What comes of an ``"auto"``; ``effect`` holds ``{names}``, of all the keys that it comes of."""

    effect: str
    severity: Severity
    source: str


def _once(document: Document, what: _Unfilled, paths: Sequence[tuple[str, ...]]) -> Finding:
    """One finding for all keys of which the same comes, at the first of them."""
    last = Counter(path[-1] for path in paths)
    names = [path[-1] if last[path[-1]] == 1 and path[-1] != "enabled" else ".".join(path) for path in paths]
    problem = what.effect.replace("{names}", ", ".join(names))
    fix = "write the value" if len(paths) == 1 else "write the values"
    return finding(
        document, paths[0], "auto-not-filled", problem, fix, severity=what.severity, source=what.source,
        also=tuple(map(document.location, paths[1:])),
    )  # fmt: skip


def _held_against_the_trainers(document: Document) -> Iterator[Finding]:
    """A train_batch_size in numbers whose parts the Trainer fills: it must be what they make."""
    train = document.value.get("train_batch_size")
    parts = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    if isinstance(train, int) and any(document.value.get(key) == "auto" for key in parts):
        yield finding(
            document,
            ("train_batch_size",),
            "train-batch-size-beside-auto",
            f"the Trainer refuses the file unless its arguments make {train}: "
            "per_device_train_batch_size (8 unless given) × gradient_accumulation_steps (1) × ranks",
            'write "auto", or give it those arguments',
            severity="warning",
            source="transformers 5.24, integrations/deepspeed.py, trainer_config_process",
        )


def _unread(path: tuple[str, ...]) -> tuple[str, ...]:
    """The path, or that of the unknown key which holds it: one cause, that has a finding of its own."""
    for length in range(1, len(path)):
        block = key_list()["blocks"].get(".".join(path[: length - 1]))
        if block is not None and block["unknown"] != "any" and path[length - 1] not in block["keys"]:
            return path[:length]
    return path


def _is_known(path: tuple[str, ...]) -> bool:
    """Whether DeepSpeed reads the key: an unknown one has a finding of its own at its location."""
    block = key_list()["blocks"].get(".".join(path[:-1]))
    return block is None or block["unknown"] == "any" or path[-1] in block["keys"]
