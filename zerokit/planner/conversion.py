"""A file for DeepSpeed as its FSDP2 counterpart, and back; one for FSDP version 1 as version 2."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from zerokit.domain.deepspeed_settings import AUTO, DeepSpeedSettings, deepspeed, from_config
from zerokit.domain.fsdp2_config import from_accelerate, from_arguments, fsdp_version, is_true
from zerokit.domain.fsdp2_settings import fsdp2
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.emit import accelerate as accelerate_files
from zerokit.emit import fsdp2 as fsdp2_files
from zerokit.emit.deepspeed import deepspeed_config
from zerokit.emit.files import ACCELERATE_NAME, CODE_NAME, DEEPSPEED_NAMES, TRAINER_NAME, plan_files
from zerokit.emit.plan_file import FILE_NAME, PlanFile
from zerokit.emit.plan_file import read as read_plan
from zerokit.errors import InputError, about
from zerokit.files import keep_former, write_whole
from zerokit.linter.arguments_file import find_beside, trainer_of
from zerokit.planner import counterparts
from zerokit.planner.accelerate_file import plugins_config, whole_arguments
from zerokit.planner.counterparts import Change
from zerokit.planner.documents import Document
from zerokit.planner.one_strategy import open_precisions, read_checked
from zerokit.rules.batch import ranks_of
from zerokit.strictload.yamldump import dump_yaml
from zerokit.values import frozen_dataclass, replace

ENGINES = ("fsdp2", "deepspeed")
_BLOCKS = ("distributed_type", "deepspeed_config", "fsdp_config", "parallelism_config", "mixed_precision")
"""Of an accelerate YAML, what an engine decides; all other keys hold under any."""
_REPLICAS = f"{fsdp2_files.PREFIX}dp_replicate_size"


@frozen_dataclass
class Source:
    """A file that is converted.

    Attributes:
        kind: accelerate, arguments, deepspeed or plan.
        runs: deepspeed, fsdp1 or fsdp2.
        value: the file's own; config: of DeepSpeed, what it is given in the end.
        said: key as the file has it → the key of the table of counterparts, and the value.
        ranks, nodes: of the run, where the file says them.
        plan: that it is.
    """

    path: str
    kind: str
    runs: str
    value: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    ranks: int | None = None
    nodes: int | None = None
    plan: PlanFile | None = None


@frozen_dataclass
class Conversion(Document):
    """A file in the form of the other engine.

    Attributes:
        source: the file.
        converted_from: what it was for: deepspeed, fsdp1 or fsdp2.
        to: what it is for now: fsdp2 or deepspeed.
        changes: what became of each key: kept, changed, left to the script, lost.
        texts: name of each new file → its text.
        files: name → path, of what was written.
    """

    SCHEMA = "zerokit.conversion/1"
    PUBLISHED = ("source", "converted_from", "to", "changes", "texts", "files")

    source: str
    converted_from: str
    to: str
    changes: tuple[Change, ...]
    texts: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: str | Path) -> Conversion:
        """Write the files; one that is replaced is kept as ``NAME~``.

        Raises:
            InputError: the folder cannot be written.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in self.texts.items():
                keep_former(folder / name, text)
                write_whole(folder / name, text, through_links=True)
        except OSError as error:
            raise InputError(f"⟨out⟩ {folder}: cannot be written: {error.strerror or error}") from None
        return replace(self, files={name: str(folder / name) for name in self.texts})


def convert(
    path: str,
    *,
    to: str | None = None,
    gpus: int | None = None,
    nodes: int | None = None,
    model: str | None = None,
    out: str | None = None,
) -> Conversion:
    """Convert a file; ``to``: the other engine where that is not said.

    Raises:
        InputError: it cannot be read or converted; names the key.
    """
    if to not in (None, *ENGINES):
        raise InputError(f"⟨to⟩ {to}: use one of {', '.join(ENGINES)}")
    with about("path"):
        source = _read(Path(path))
        target = to or ("deepspeed" if source.runs == "fsdp2" else "fsdp2")
        if source.runs == target:
            raise InputError(f"{path}: is for {target} already")
        source = replace(source, ranks=gpus or source.ranks, nodes=nodes or source.nodes or 1)
        if source.ranks is None and source.kind != "arguments":
            raise InputError(f"{path}: does not say on how many ranks it runs; give ⟨gpus⟩ N")
        try:
            layers = _layers(model) if model is not None and target == "fsdp2" else None
            folder = Path(out or "")
            made = _to_deepspeed(source, folder) if target == "deepspeed" else _to_fsdp2(source, layers)
            conversion = replace(made, changes=(*_in_arguments(source, target, folder), *made.changes))
        except InputError as error:
            said = error.marked if error.field or error.marked.startswith(path) else f"{path}: {error.marked}"
            raise InputError(said, field=error.field) from None
    return conversion if out is None else conversion.write(out)


# ---- reading


def _read(path: Path) -> Source:
    if path.is_dir() or path.name == FILE_NAME:
        plan = read_plan(path)
        if plan.engine == "deepspeed":
            config = plan.chosen["deepspeed_config"]
            said = {key: (key, value) for key, value in counterparts.leaves(config)}
            if plan.strategy().checkpointing == "full":
                said["activation_checkpointing"] = (counterparts.PLANNED_CHECKPOINTING, "full")
        else:
            config, said = {}, _of_fsdp(plan.chosen["accelerate_config"])
        return Source(
            path=str(path), kind="plan", runs=plan.engine, value=plan.chosen.get("accelerate_config") or {},
            config=config, said=said, ranks=plan.world_size, nodes=plan.nodes, plan=plan,
        )  # fmt: skip
    kind, value, _ = read_checked(
        str(path), ("accelerate", "arguments", "deepspeed"), passes=counterparts.REMOVED
    )
    if kind == "deepspeed":
        return _of_deepspeed(path, kind, value, value)
    if kind == "arguments":
        return _of_arguments(path, value)
    runs, block = value.get("distributed_type"), value.get("deepspeed_config") or {}
    if runs == "FSDP":
        version = fsdp_version(value.get("fsdp_config"))
        source = Source(path=str(path), kind=kind, runs=f"fsdp{version}", value=value, said=_of_fsdp(value))
    elif runs == "DEEPSPEED" and (named := block.get("deepspeed_config_file")):
        source = _of_named(path, kind, value, named)
    elif runs == "DEEPSPEED":
        source = _of_deepspeed(path, kind, value, plugins_config(block, value.get("mixed_precision")))
    else:
        raise InputError(f"{path}: uses neither FSDP nor DeepSpeed")
    counts = (value.get("num_processes"), value.get("num_machines"))
    ranks, nodes = (count if isinstance(count, int) and count > 0 else None for count in counts)
    return replace(source, ranks=ranks or source.ranks, nodes=nodes)


def _of_named(path: Path, kind: str, value: Mapping[str, Any], named: str) -> Source:
    """A file that names DeepSpeed's JSON."""
    beside = find_beside(named, str(path))
    if beside is None:
        raise InputError(f"{path}: {named}: there is no such file")
    config = read_checked(str(beside), ("deepspeed",), passes=counterparts.REMOVED)[1]
    return _of_deepspeed(path, kind, value, config)


def _of_deepspeed(path: Path, kind: str, value: Mapping[str, Any], config: Mapping[str, Any]) -> Source:
    unasked = {"zero_optimization.stage": 0, "gradient_clipping": 1.0}
    all_said = {**unasked, **dict(counterparts.leaves(config))}
    decided = from_config(config).precision
    said = {
        key: (key, one)
        for key, one in all_said.items()
        if decided == "fp16" or not key.startswith("fp16.") or key == "fp16.enabled"
    }
    block = value.get("deepspeed_config") if kind == "accelerate" else None
    if isinstance(block, dict):
        own = {f"deepspeed_config.{key}": one for key, one in block.items() if key != "deepspeed_config_file"}
        if "deepspeed_config_file" not in block:  # Accelerate makes the configuration of these
            said = (
                {"gradient_clipping": ("gradient_clipping", 1.0)} if "gradient_clipping" not in block else {}
            )
            said["mixed_precision"] = ("bf16.enabled", value.get("mixed_precision") or "no")
        said |= {key: (key, one) for key, one in own.items()}
    return Source(
        path=str(path), kind=kind, runs="deepspeed", value=value, config=config, said=said,
        ranks=ranks_of(config),
    )  # fmt: skip


def _of_arguments(path: Path, value: Mapping[str, Any]) -> Source:
    """A Trainer's arguments, or a trainer's own file; Axolotl's names no ``fsdp`` beside its block."""
    named, trainer = value.get("deepspeed"), trainer_of(value)
    if isinstance(named, dict):
        return _of_deepspeed(path, "arguments", value, named)
    if isinstance(named, str) and named:
        return _of_named(path, "arguments", value, named)
    if trainer is not None and not trainer.parses_arguments and value.get("fsdp_config"):
        block = {"version": value.get("fsdp_version", 1), **value["fsdp_config"]}
        value = {**value, "fsdp": value.get("fsdp") or "full_shard", "fsdp_config": block}
    if not value.get("fsdp"):
        raise InputError(f"{path}: uses neither FSDP nor DeepSpeed")
    value = whole_arguments(value, path)
    version = fsdp_version(value.get("fsdp_config"), 2)
    said = _of_fsdp({"fsdp_config": value.get("fsdp_config") or {}})
    words = value["fsdp"] if isinstance(value["fsdp"], list) else str(value["fsdp"]).split()
    if "no_shard" in map(str.lower, words):
        raise InputError(f"{path}: fsdp no_shard divides nothing: leave it out")
    value = {**value, "fsdp": " ".join(_WORDS.get(word.lower(), word) for word in words)}
    return Source(path=str(path), kind="arguments", runs=f"fsdp{version}", value=value, said=said)


_WORDS = {"hybrid_shard": "full_shard", "hybrid_shard_zero2": "shard_grad_op", "true": "full_shard"}
"""What version 2 has of it; groups of ranks are for a ``parallelism_config``."""


def _in_arguments(source: Source, to: str, folder: Path) -> tuple[Change, ...]:
    """What a Trainer's arguments, or a trainer's own file, name from now on."""
    if source.kind != "arguments":
        return ()
    trainer = trainer_of(source.value)
    keys = {name: source.value[name] for name in ("deepspeed", "fsdp", "fsdp_config") if name in source.value}
    keys = {name: value if isinstance(value, str) else "…" for name, value in keys.items()}
    if to == "deepspeed":
        becomes, text = {"deepspeed": str(folder / DEEPSPEED_NAMES["raw"])}, ""
    else:
        becomes = {"fsdp": source.value.get("fsdp", "full_shard"), "fsdp_config": str(folder / TRAINER_NAME)}
        own = trainer is not None and not trainer.parses_arguments
        text = "write the keys of that file below fsdp_config, with fsdp_version: 2" if own else ""
    return (Change(kind="changed" if text else "kept", keys=keys, becomes=becomes, text=text),)


def _of_fsdp(value: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """The keys of FSDP's blocks, by their names in Accelerate's."""
    said, decides, other = {}, "fsdp_reshard_after_forward", {"fsdp_cpu_offload": "fsdp_offload_params"}
    block = {f"fsdp_{str(key).removeprefix('fsdp_')}": key for key in value.get("fsdp_config") or {}}
    if decides not in block and "fsdp_sharding_strategy" in block:
        other["fsdp_sharding_strategy"] = decides
    elif decides not in block:
        said[f"fsdp_config.{decides}"] = (f"fsdp_config.{decides}", True)
    for name, key in block.items():
        said[f"fsdp_config.{key}"] = (f"fsdp_config.{other.get(name, name)}", value["fsdp_config"][key])
    if "mixed_precision" in value:
        said["mixed_precision"] = ("mixed_precision", value["mixed_precision"])
    sizes = value.get("parallelism_config") or {}
    return said | {
        f"parallelism_config.{key}": (f"parallelism_config.{key}", one) for key, one in sizes.items()
    }


# ---- converting


def _to_fsdp2(source: Source, layers: str | None) -> Conversion:
    if source.runs == "fsdp1":
        return _of_version_1(source, layers)
    settings, config, is_open = _deepspeed_settings(source), source.config, False
    if source.plan is None:
        autos = [name for name, is_auto in open_precisions(config).items() if is_auto]
        is_open = bool(autos)
        settings = replace(settings, precision=autos[0]) if autos else settings
    shard = (config.get("zero_optimization") or {}).get("mics_shard_size")
    shard = shard if isinstance(shard, int) and shard > 0 else 0
    if shard and source.ranks is None:
        raise InputError(f"zero_optimization.mics_shard_size {shard}: give ⟨gpus⟩ N")
    block = source.value.get("deepspeed_config") or {}
    divides_init = source.kind != "accelerate" or is_true(block.get("zero3_init_flag", False))
    ranks = source.ranks or 1
    new = counterparts.to_fsdp2(settings, ranks, shard, divides_init=divides_init)
    if source.plan is not None:
        strategy = replace(source.plan.strategy(), settings=new)
    else:
        strategy = Strategy(settings=new, data_parallel=ranks)
    if settings.autotp_size > 1 or strategy.world_size != strategy.data_parallel:
        raise InputError(
            "tensor, pipeline or sequence parallel ranks: FSDP2 is written for data parallel alone"
        )
    accelerate = fsdp2_files.accelerate_config(strategy, source.nodes or 1)
    if is_open or source.ranks is None:  # a Trainer's own argument says it
        del accelerate["mixed_precision"]
    block = fsdp2_files.trainer_config(strategy)
    if layers is not None:
        accelerate["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] = layers
        block["transformer_layer_cls_to_wrap"] = layers.split(",")
    found = counterparts.changes(source.said, accelerate, settings, new, forth=True)
    texts = {} if source.ranks is None else {ACCELERATE_NAME: _yaml(source, accelerate)}
    texts[TRAINER_NAME] = json.dumps(block, indent=2) + "\n"
    if source.plan is not None or isinstance(config.get("train_micro_batch_size_per_gpu"), int):
        texts[CODE_NAME] = fsdp2_files.fully_shard_code(strategy)
    return _done(source, "fsdp2", found, texts)


def _of_version_1(source: Source, layers: str | None) -> Conversion:
    is_yaml = source.kind == "accelerate"
    block, replicas, found = counterparts.of_version_2(
        source.value.get("fsdp_config") or {}, "fsdp_" * is_yaml, source.ranks, source.nodes or 1
    )
    if layers is not None:
        name = f"{'fsdp_' * is_yaml}transformer_layer_cls_to_wrap"
        block[name] = layers if is_yaml else layers.split(",")
    if not is_yaml:
        return _done(source, "fsdp2", found, {TRAINER_NAME: json.dumps(block, indent=2) + "\n"})
    body = {**source.value, "fsdp_config": block}
    if replicas > 1 and source.ranks:
        sizes = {_REPLICAS: replicas, f"{fsdp2_files.PREFIX}dp_shard_size": source.ranks // replicas}
        body["parallelism_config"] = sizes
    return _done(source, "fsdp2", found, {ACCELERATE_NAME: dump_yaml(body, header=_HEADER)})


def _to_deepspeed(source: Source, folder: Path) -> Conversion:
    value, nodes, said = dict(source.value), source.nodes or 1, dict(source.said)
    if source.runs == "fsdp1":
        prefix = "fsdp_" * (source.kind == "accelerate")
        if said.get("fsdp_config.fsdp_sharding_strategy", ("", ""))[1] in ("NO_SHARD", 3, "3"):
            raise InputError(
                "fsdp_sharding_strategy NO_SHARD divides nothing; write distributed_type: MULTI_GPU"
            )
        block, replicas, _ = counterparts.of_version_2(
            value.get("fsdp_config") or {}, prefix, source.ranks, nodes
        )
        value["fsdp_config"] = block
        if replicas > 1:
            said["groups of fsdp_sharding_strategy"] = (f"parallelism_config.{_REPLICAS}", replicas)
    if source.plan is not None:
        strategy = source.plan.strategy()
        old, ranks = fsdp2(strategy.settings), strategy.data_parallel
    else:
        block = {
            key: one for key, one in (value.get("fsdp_config") or {}).items() if counterparts.is_read(key)
        }
        wraps = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
        read = {**value, "dynamo_config": None, "fsdp_config": {**block, **wraps}}
        says = (from_arguments if source.kind == "arguments" else from_accelerate)(read)
        old, ranks = says.settings, source.ranks or 1
        if source.runs == "fsdp1":
            old = replace(old, replicas=replicas)
        strategy = Strategy(settings=old, data_parallel=ranks)
    new = counterparts.to_deepspeed(old, ranks)
    strategy = replace(strategy, settings=new)
    texts: dict[str, str]
    if source.plan is not None:
        texts = dict(plan_files(strategy, _job(source.plan), nodes=nodes, folder=folder).texts)
        config = deepspeed_config(strategy, _job(source.plan), variant="accelerate")
        flag = new.divides_weights
        target: dict[str, Any] = {**config, "deepspeed_config": {"zero3_init_flag": flag}}
    else:
        # the batch, the clipping and the optimizer stay the script's: a Trainer and Accelerate fill the first
        own = replace(new, optimizer=None)
        config = deepspeed_config(replace(strategy, settings=own), Job(), variant="trainer")
        name = DEEPSPEED_NAMES["raw"]
        if source.kind == "arguments" and old.precision == "fp32":  # bf16 and fp16 are arguments of its own
            config |= {name: {"enabled": AUTO} for name in ("bf16", "fp16")}
        texts = {name: json.dumps(config, indent=2) + "\n"}
        target = config
        if source.kind == "accelerate":
            body = accelerate_files.accelerate_config(
                strategy, nodes, ds_config_path=str((folder / name).absolute())
            )
            body["deepspeed_config"]["zero3_init_flag"] = new.divides_weights and old.broadcasts
            target = {**config, "deepspeed_config": body["deepspeed_config"]}
            texts[ACCELERATE_NAME] = _yaml(source, body)
    return _done(source, "deepspeed", counterparts.changes(said, target, new, old, forth=False), texts)


def _deepspeed_settings(source: Source) -> DeepSpeedSettings:
    if source.plan is not None:
        return deepspeed(source.plan.strategy().settings)
    if (source.config.get("zero_optimization") or {}).get("stage") == AUTO:
        raise InputError('zero_optimization.stage is "auto": write the stage')
    return from_config(source.config)


def _job(plan: PlanFile) -> Job:
    return Job(method=plan.method)


_HEADER = "For: accelerate launch --config_file THIS train.py"


def _yaml(source: Source, body: Mapping[str, Any]) -> str:
    """The new YAML, with what the old one says of the launch itself."""
    kept = source.value if source.kind == "accelerate" else {}
    merged = {**body, **{key: value for key, value in kept.items() if key not in _BLOCKS}}
    by_hand = "\nOn node k add: --machine_rank k --main_process_ip HOST --main_process_port PORT"
    is_open = merged["num_machines"] > 1 and "main_process_ip" not in merged
    return dump_yaml(merged, header=_HEADER + by_hand * is_open)


def _done(source: Source, to: str, changes: tuple[Change, ...], texts: Mapping[str, str]) -> Conversion:
    return Conversion(source=source.path, converted_from=source.runs, to=to, changes=changes, texts=texts)


_NO_SPLIT = re.compile(r"_no_split_modules = \[([^\]]+)\]")


def _layers(model: str) -> str:
    """The classes that a model's code says are gathered whole.

    Raises:
        InputError: its code is not here.
    """
    from zerokit.machine.model_code import model_code
    from zerokit.planner.models import config_of

    config = config_of(model)
    found = _NO_SPLIT.search(model_code(config) or "") if config is not None else None
    if found is None:
        raise InputError(
            f"⟨model⟩ {model}: its layers are not known here; leave it out: Accelerate takes the model's own"
        )
    return ",".join(re.findall(r"\w+", found[1]))
