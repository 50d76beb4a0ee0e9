"""A file for DeepSpeed as its FSDP2 counterpart, and back; one for FSDP version 1 as version 2."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from zerokit.domain.deepspeed_settings import AUTO, deepspeed, from_config
from zerokit.domain.fsdp2_config import count, from_accelerate, from_arguments, fsdp_version, is_true
from zerokit.domain.fsdp2_settings import fsdp2
from zerokit.domain.job import Job
from zerokit.domain.settings import PLUGIN_KEYS, PLUGINS_STAGE, value_at
from zerokit.domain.strategy import Strategy
from zerokit.emit import fsdp2 as fsdp2_files
from zerokit.emit.accelerate import accelerate_config
from zerokit.emit.deepspeed import deepspeed_config
from zerokit.emit.files import ACCELERATE_NAME, CODE_NAME, DEEPSPEED_NAMES, TRAINER_NAME, plan_files
from zerokit.emit.plan_file import FILE_NAME, PlanFile
from zerokit.emit.plan_file import read as read_plan
from zerokit.errors import InputError, about
from zerokit.files import keep_former, write_whole
from zerokit.linter.accelerate.fsdp import own_layers
from zerokit.linter.arguments_file import find_beside
from zerokit.planner import counterparts
from zerokit.planner.accelerate_file import plugins_config, whole_arguments
from zerokit.planner.counterparts import Change
from zerokit.planner.documents import Document
from zerokit.planner.one_strategy import open_precisions, read_checked
from zerokit.rules.batch import ranks_of
from zerokit.strictload.yamltext import dump_yaml
from zerokit.trainer_files.keys import trainer_of
from zerokit.trainer_files.kinds import take_axolotls_engine
from zerokit.trainer_files.says import Says
from zerokit.values import frozen_dataclass, replace

_BLOCKS = ("distributed_type", "deepspeed_config", "fsdp_config", "parallelism_config", "mixed_precision")
"""Of an accelerate YAML, what an engine decides; all other keys hold under any."""
Converted = tuple[tuple[Change, ...], dict[str, str]]
"""What became of the keys, and the texts of the new files by name."""


@frozen_dataclass
class Source:
    """A file that is converted.

    Attributes:
        kind: accelerate, arguments, deepspeed or plan.
        runs: deepspeed, fsdp1 or fsdp2.
        value: the file's own, FSDP's in the words of version 2; config: DeepSpeed's in the end.
        said: what it says, by dotted key. changes: from version 1 to 2.
        ranks, nodes: of the run; None: not said.
        plan: that it is.
    """

    path: str
    kind: str
    runs: str
    value: Mapping[str, Any]
    config: Mapping[str, Any]
    said: Mapping[str, Any]
    changes: tuple[Change, ...] = ()
    ranks: int | None
    nodes: int
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
        """Write the files; one that is replaced is kept as ``NAME~``. Raises InputError: the folder cannot be
        written."""
        folder = Path(folder)
        if (folder / FILE_NAME).exists():
            raise InputError(f"⟨out⟩ {folder}: holds a plan, whose files these would replace; name another")
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
    """Convert a file; ``to``: the other engine where that is not said. Raises InputError: it cannot be read
    or converted; names the key."""
    if to not in (None, "fsdp2", "deepspeed"):
        raise InputError(f"⟨to⟩ {to}: use one of fsdp2, deepspeed")
    with about("path"):
        source = _read(Path(path), gpus, nodes)
        target = to or ("deepspeed" if source.runs == "fsdp2" else "fsdp2")
        if source.runs == target:
            raise InputError(f"{path}: is for {target} already")
        if source.ranks is None and source.kind != "arguments":
            raise InputError(f"{path}: does not say on how many ranks it runs; give ⟨gpus⟩ N")
        folder = Path(out or "")
        try:
            to_fsdp2 = _to_version_2 if source.runs == "fsdp1" else _to_fsdp2
            made = _to_deepspeed(source, folder) if target == "deepspeed" else to_fsdp2(source, model)
        except InputError as error:
            said = error.marked if error.field or error.marked.startswith(path) else f"{path}: {error.marked}"
            raise InputError(said, field=error.field) from None
    changes = (*(_in_arguments(source, target, folder) if source.kind == "arguments" else ()), *made[0])
    conversion = Conversion(
        source=source.path, converted_from=source.runs, to=target, changes=changes, texts=made[1]
    )
    return conversion if out is None else conversion.write(out)


# ---- reading


def _read(path: Path, gpus: int | None, nodes: int | None) -> Source:
    """The file; ``gpus`` and ``nodes`` are said in place of its own."""
    if path.is_dir() or path.name == FILE_NAME:
        return _of_plan(path, gpus, nodes)
    kind, value = _checked(path, "accelerate", "arguments", "deepspeed")
    if kind == "accelerate":
        given = {"num_processes": gpus, "num_machines": nodes}
        value = {**value, **{name: number for name, number in given.items() if number is not None}}
    of_yaml = value if kind == "accelerate" else {}
    in_file = {"deepspeed_config_file": value if kind == "deepspeed" else value.get("deepspeed")}
    block = (of_yaml.get("deepspeed_config") or {}) if of_yaml else in_file
    runs, named = of_yaml.get("distributed_type", kind), block.get("deepspeed_config_file")
    named = None if runs == "FSDP" else named
    config: Mapping[str, Any] | None = named if isinstance(named, dict) else None
    if isinstance(named, str) and named:
        beside = find_beside(named, str(path))
        if beside is None:
            raise InputError(f"{path}: {named}: there is no such file")
        config = _checked(beside, "deepspeed")[1]
    elif runs == "DEEPSPEED":
        config = plugins_config(block, value.get("mixed_precision"))
    elif runs == "arguments" and config is None:
        value = _fsdps_arguments(value, path)
    elif runs != "FSDP" and config is None:
        raise InputError(f"{path}: uses neither FSDP nor DeepSpeed")
    ranks = gpus or count(of_yaml, "num_processes") or ranks_of(config or {})
    nodes = nodes or count(of_yaml, "num_machines") or 1
    found: tuple[Change, ...] = ()
    if config is not None:
        runs, said = "deepspeed", _of_deepspeed(config, block, value.get("mixed_precision"))
    else:
        runs = f"fsdp{fsdp_version(value.get('fsdp_config'), 1 if of_yaml else 2)}"
        said = _of_fsdp(of_yaml or {"fsdp_config": value.get("fsdp_config")})
    if runs == "fsdp1":
        block, sizes, found = counterparts.of_version_2(
            value.get("fsdp_config") or {}, "fsdp_" * bool(of_yaml), ranks, nodes
        )
        value = {**value, "fsdp_config": block} | ({"parallelism_config": sizes} if sizes else {})
        said |= {"groups of fsdp_sharding_strategy": nodes} if sizes else {}
    return Source(
        path=str(path), kind=kind, runs=runs, value=value, config=config or {}, said=said, changes=found,
        ranks=ranks, nodes=nodes,
    )  # fmt: skip


def _checked(path: Path, *kinds: str) -> tuple[str, Mapping[str, Any]]:
    return read_checked(str(path), kinds, passes=counterparts.REMOVED)[:2]


def _of_plan(path: Path, gpus: int | None, nodes: int | None) -> Source:
    plan = read_plan(path)
    config, value = plan.chosen.get("deepspeed_config") or {}, plan.chosen.get("accelerate_config") or {}
    said = dict(counterparts.leaves(config)) if plan.engine == "deepspeed" else _of_fsdp(value)
    if plan.engine == "deepspeed" and plan.strategy().checkpointing == "full":
        said["activation_checkpointing"] = "full"
    return Source(
        path=str(path), kind="plan", runs=plan.engine, value=value, config=config, said=said,
        ranks=gpus or plan.world_size, nodes=nodes or plan.nodes, plan=plan,
    )  # fmt: skip


def _of_deepspeed(config: Mapping[str, Any], block: Mapping[str, Any], precision: object) -> dict[str, Any]:
    """The keys of DeepSpeed's configuration, with what is unasked; ``block``: of an accelerate YAML; without
    a file in it, Accelerate makes the configuration of its keys."""
    if "deepspeed_config_file" in block:
        off = () if from_config(config).precision == "fp16" else ("fp16.",)
        said = {"zero_optimization.stage": 0, "gradient_clipping": 1.0, **dict(counterparts.leaves(config))}
        said = {key: one for key, one in said.items() if key == "fp16.enabled" or not key.startswith(off)}
    else:
        unasked = {"gradient_clipping": 1.0, "zero_stage": PLUGINS_STAGE}.items()
        said = {PLUGIN_KEYS[key]: one for key, one in unasked if key not in block}
        said["mixed_precision"] = precision or "no"
    own = {f"deepspeed_config.{key}": one for key, one in block.items() if key != "deepspeed_config_file"}
    return said | own


def _of_fsdp(value: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of FSDP's blocks; one of two decides whether gathered weights are freed, or none."""
    blocks = {key: value[key] for key in ("fsdp_config", "mixed_precision", "parallelism_config")
              if value.get(key) is not None}  # fmt: skip
    said = dict(counterparts.leaves(blocks))
    if any(key.endswith("reshard_after_forward") for key in said):
        return {key: one for key, one in said.items() if not key.endswith("sharding_strategy")}
    unasked = "fsdp_config.fsdp_reshard_after_forward"
    return said if any(key.endswith("sharding_strategy") for key in said) else {unasked: True, **said}


_WORDS = {"hybrid_shard": "full_shard", "hybrid_shard_zero2": "shard_grad_op", "true": "full_shard"}
"""What version 2 has of it; groups of ranks are for a ``parallelism_config``."""


def _fsdps_arguments(value: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """A Trainer's arguments, or a trainer's own file; Axolotl's names no ``fsdp`` beside its block."""
    trainer = trainer_of(value)
    if trainer is not None and not trainer.parses_arguments:
        says = Says(trainer, value)
        take_axolotls_engine(says)
        value = {**value, **says.engine.get("fsdp", {})}
    if not value.get("fsdp"):
        raise InputError(f"{path}: uses neither FSDP nor DeepSpeed")
    words = value["fsdp"] if isinstance(value["fsdp"], list) else str(value["fsdp"]).split()
    if "no_shard" in map(str.lower, words):
        raise InputError(f"{path}: fsdp no_shard divides nothing: leave it out")
    fsdp = " ".join(_WORDS.get(word.lower(), word) for word in words)
    return {**whole_arguments(value, path), "fsdp": fsdp}


def _in_arguments(source: Source, to: str, folder: Path) -> tuple[Change]:
    """What a Trainer's arguments, or a trainer's own file, name from now on."""
    trainer, value, text = trainer_of(source.value), source.value, ""
    keys = {name: value[name] for name in ("deepspeed", "fsdp", "fsdp_config") if name in value}
    keys = {name: one if isinstance(one, str) else "…" for name, one in keys.items()}
    becomes = {"deepspeed": str(folder / DEEPSPEED_NAMES["raw"])}
    if to != "deepspeed":
        becomes = {"fsdp": value.get("fsdp", "full_shard"), "fsdp_config": str(folder / TRAINER_NAME)}
        if trainer is not None and not trainer.parses_arguments:
            text = "write the keys of that file below fsdp_config (cpu_offload as offload_params), with "
            text += "fsdp_version: 2"
    return (Change(kind="changed" if text else "kept", keys=keys, becomes=becomes, text=text),)


# ---- converting


def _to_fsdp2(source: Source, model: str | None) -> Converted:
    layers = _layers(model)
    config, plan, ranks = source.config, source.plan, source.ranks or 1
    zero, block = config.get("zero_optimization") or {}, source.value.get("deepspeed_config") or {}
    autos = [name for name, is_auto in open_precisions(config).items() if is_auto and plan is None]
    if plan is not None:
        strategy = plan.strategy()
    elif zero.get("stage") == AUTO:
        raise InputError('zero_optimization.stage is "auto": write the stage')
    else:
        strategy = Strategy(settings=from_config(config), data_parallel=ranks)
    settings = deepspeed(strategy.settings)
    settings = replace(settings, precision=autos[0]) if autos else settings
    shard = zero.get("mics_shard_size")
    shard = shard if isinstance(shard, int) and shard > 0 else 0
    if shard and source.ranks is None:
        raise InputError(f"zero_optimization.mics_shard_size {shard}: give ⟨gpus⟩ N")
    divides_init = source.kind != "accelerate" or is_true(block.get("zero3_init_flag", False))
    new = counterparts.to_fsdp2(settings, ranks, shard, divides_init=divides_init)
    strategy = replace(strategy, settings=new)
    if settings.autotp_size > 1 or strategy.world_size != strategy.data_parallel:
        raise InputError(
            "tensor, pipeline or sequence parallel ranks: FSDP2 is written for data parallel alone"
        )
    accelerate = fsdp2_files.accelerate_config(strategy, source.nodes)
    if autos or source.ranks is None:  # a Trainer's own argument says it
        del accelerate["mixed_precision"]
    accelerate["fsdp_config"] |= {f"fsdp_{name}": ",".join(names) for name, names in layers.items()}
    found = counterparts.changes(source.said, accelerate, settings, new, forth=True)
    texts = {} if source.ranks is None else {ACCELERATE_NAME: _yaml(source, accelerate)}
    texts[TRAINER_NAME] = _json(fsdp2_files.trainer_config(strategy) | layers)
    if plan is not None or isinstance(config.get("train_micro_batch_size_per_gpu"), int):
        texts[CODE_NAME] = fsdp2_files.fully_shard_code(strategy)
    return found, texts


def _to_version_2(source: Source, model: str | None) -> Converted:
    block, layers = source.value["fsdp_config"], _layers(model)
    if source.kind != "accelerate":
        return source.changes, {TRAINER_NAME: _json(block | layers)}
    block = block | {f"fsdp_{name}": ",".join(names) for name, names in layers.items()}
    text = dump_yaml({**source.value, "fsdp_config": block}, header=_HEADER)
    return source.changes, {ACCELERATE_NAME: text}


def _to_deepspeed(source: Source, folder: Path) -> Converted:
    plan, value, nodes = source.plan, source.value, source.nodes
    if plan is not None:
        planned = plan.strategy()
        strategy = replace(planned, data_parallel=planned.zero_ranks, sequence_parallel=1)
    elif source.said.get("fsdp_config.fsdp_sharding_strategy") in ("NO_SHARD", 3, "3"):
        raise InputError("fsdp_sharding_strategy NO_SHARD divides nothing; write distributed_type: MULTI_GPU")
    else:
        block = {name.removeprefix("fsdp_"): one for name, one in (value.get("fsdp_config") or {}).items()}
        read = {**value, "dynamo_config": None, "fsdp_config": block | _UNREAD}
        says = (from_arguments if source.kind == "arguments" else from_accelerate)(read)
        replicas = value_at(value, counterparts.REPLICAS) or 1
        own = replace(says.settings, replicas=replicas)
        strategy = Strategy(settings=own, data_parallel=source.ranks or 1)
    old = fsdp2(strategy.settings)
    new = counterparts.to_deepspeed(old, strategy.data_parallel)
    strategy = replace(strategy, settings=new)
    if plan is not None:
        job = Job(method=plan.method)
        texts = dict(plan_files(strategy, job, nodes=nodes, folder=folder).texts)
        target = deepspeed_config(strategy, job, variant="accelerate")
        target["deepspeed_config"] = {"zero3_init_flag": new.divides_weights}
    else:
        # the batch, the clipping and the optimizer stay the script's: a Trainer and Accelerate fill the first
        left = replace(strategy, settings=replace(new, optimizer=None))
        target, name = deepspeed_config(left, Job(), variant="trainer"), DEEPSPEED_NAMES["raw"]
        if source.kind == "arguments" and old.precision == "fp32":  # bf16 and fp16 are arguments of its own
            target |= {name: {"enabled": AUTO} for name in ("bf16", "fp16")}
        texts = {name: _json(target)}
        if source.kind == "accelerate":
            body = accelerate_config(strategy, nodes, ds_config_path=str((folder / name).absolute()))
            body["deepspeed_config"]["zero3_init_flag"] = new.divides_weights and old.broadcasts
            target["deepspeed_config"] = body["deepspeed_config"]
            texts[ACCELERATE_NAME] = _yaml(source, body)
    return counterparts.changes(source.said, target, new, old, forth=False), texts


_UNREAD = {
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": None,
    "ignored_modules": None, "activation_checkpointing_offload": None,
}  # fmt: skip
"""In place of what a prediction refuses, and has no counterpart."""


def _json(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=2) + "\n"


_HEADER = "For: accelerate launch --config_file THIS train.py"


def _yaml(source: Source, body: Mapping[str, Any]) -> str:
    """The new YAML, with what the old one says of the launch itself."""
    kept = source.value if source.kind == "accelerate" else {}
    merged = {**body, **{key: value for key, value in kept.items() if key not in _BLOCKS}}
    by_hand = "\nOn node k add: --machine_rank k --main_process_ip HOST --main_process_port PORT"
    is_open = merged["num_machines"] > 1 and "main_process_ip" not in merged
    return dump_yaml(merged, header=_HEADER + by_hand * is_open)


def _layers(model: str | None) -> dict[str, Any]:
    """The classes that a model's code says are gathered whole, as a Trainer's ``fsdp_config`` names them; of
    no model: nothing. Raises InputError: its code is not here."""
    from zerokit.machine.model_code import model_code
    from zerokit.planner.models import config_of

    if model is None:
        return {}
    config = config_of(model)
    found = own_layers(model_code(config) or "") if config is not None else None
    if found is None:
        raise InputError(
            f"⟨model⟩ {model}: its layers are not known here; leave it out: Accelerate takes the model's own"
        )
    return {"transformer_layer_cls_to_wrap": re.findall(r"\w+", found)}
