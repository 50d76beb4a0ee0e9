"""Lint an accelerate YAML: its keys, and how many ranks it starts, where, and how they are divided.

Accelerate refuses unknown keys at the top level and checks neither nested keys nor values
(accelerate/commands/config/config_args.py); most of what is found here fails late, or never.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.fsdp2_config import count
from zerokit.linter.accelerate.deepspeed_block import fix_beside_file, lint_deepspeed_block
from zerokit.linter.accelerate.fsdp import lint_fsdp
from zerokit.linter.accelerate.keys import (
    CONFIG,
    LAUNCH,
    TOP_LEVEL,
    fits,
    key_list,
)
from zerokit.linter.accelerate.parallelism import lint_parallelism
from zerokit.linter.finding import Finding, Row, broken, meant, one_for_each_cause, one_of, read_past
from zerokit.rules.types import ACCELERATE_VERSION, Edit, Severity
from zerokit.strictload import Document, Location, Path
from zerokit.suggest import leaves_no_doubt, nearest, synonym
from zerokit.units import counted

_RENDEZVOUS = ("static", "c10d", "etcd", "etcd-v2")
_DEVICES = re.compile(r"\s*[\w-]*\d[\w:/.-]*(\s*,\s*[\w-]*\d[\w:/.-]*)*\s*,?\s*")


_OF_RANKS = (
    Row(
        "accelerate-one-process", "distributed_type",
        "distributed_type is NO: accelerate launch starts one process, and {effect}",
        "set distributed_type to DEEPSPEED, FSDP or MULTI_GPU (on CPUs, too), with num_processes: {wanted}",
        LAUNCH, "warning", lambda at: at["kind"] == "NO" and at["wanted"] > 1,
    ),
    Row(
        "accelerate-num-processes", "num_processes",
        "num_processes is missing: accelerate launch stops unless --num_processes is given",
        "add num_processes: the number of GPUs on all machines together", LAUNCH, "warning",
        lambda at: at["is_counted"] and at["count"] is None, missing="num_processes",
    ),
    Row(
        "accelerate-num-processes", "num_processes",
        "{processes} cannot be divided over {machines} machines (it counts them all)",
        "use a multiple of {machines}", LAUNCH,
        broken=lambda at: at["is_counted"] and (at["count"] or 0) % at["machines"],
    ),
    Row(
        "accelerate-world-size", "num_processes", "num_processes is {count}, the job has {ranks}",
        "use {wanted}", "", "warning",
        lambda at: at["is_counted"] and at["count"] not in (None, at["wanted"])
        and not at["count"] % at["machines"],
    ),
    Row(
        "accelerate-machine-rank", "machine_rank",
        "machine_rank is null with {machines} machines: accelerate launch fails on it",
        "use 0 to {last}, another on each machine", LAUNCH,
        broken=lambda at: at["rank"] is None and at["machines"] > 1,
    ),
    Row(
        "accelerate-machine-rank", "machine_rank",
        "machine_rank {rank} with {of_machines}: they count from 0, the others wait for ever",
        "use 0 to {last}", LAUNCH, broken=lambda at: (at["rank"] or 0) > at["last"],
    ),
)  # fmt: skip
_NUMBER = Row(
    "accelerate-number", "{name}", "{name} is {value!r}: accelerate launch {effect}",
    "use a whole number of at least {least}{most}, without quotes", LAUNCH,
)  # fmt: skip
_RDZV_BACKEND = Row(
    "accelerate-rdzv-backend", "rdzv_backend",
    "rdzv_backend is {backend!r}: torch has no such rendezvous, and the launch fails", "{fix}",
    f"Accelerate {ACCELERATE_VERSION}, commands/launch.py; torch/distributed/elastic/rendezvous",
)  # fmt: skip
_OF_GPUS = (
    Row(
        "accelerate-gpu-ids", "gpu_ids",
        "gpu_ids is {ids!r}: accelerate launch reads a text, and fails on it",
        "write the numbers in quotes, as gpu_ids: '0,1', or gpu_ids: all", LAUNCH,
        broken=lambda at: at["ids"] is not None and not isinstance(at["ids"], str),
    ),
    Row(
        "accelerate-gpu-ids", "gpu_ids",
        "gpu_ids is {ids!r}: it becomes CUDA_VISIBLE_DEVICES, where it names no GPU",
        "write numbers such as '0,1', or all", LAUNCH,
        broken=lambda at: at["ids"] not in (None, "all") and not _DEVICES.fullmatch(at["ids"]),
    ),
    Row(
        "accelerate-gpu-ids", "gpu_ids",
        "gpu_ids names one GPU, and distributed_type is MULTI_GPU: accelerate launch refuses it",
        "name two or more GPUs, or set distributed_type: 'NO'", LAUNCH,
        broken=lambda at: at["here"] and at["kind"] == "MULTI_GPU" and "," not in at["ids"],
    ),
    Row(
        "accelerate-gpu-ids", "gpu_ids",
        "gpu_ids names {gpus} for {count} processes: ranks beyond them find no GPU",
        "name {count} GPUs, or write gpu_ids: all", LAUNCH,
        broken=lambda at: at["here"] and _named(at["ids"]) < at["count"]
        and {"gpus": counted(_named(at["ids"]), "GPU")},
    ),
)  # fmt: skip
"""Of which the first that holds is said."""


def number_of_processes(document: Document) -> int | None:
    """``num_processes``, when it is a usable number."""
    return count(document.value, "num_processes") if isinstance(document.value, dict) else None


def lint_processes(document: Document, world_size: int | None) -> Iterator[Finding]:
    """Findings about ranks, machines, ports and GPUs."""
    value = document.value
    processes, machines = value.get("num_processes"), value.get("num_machines", 1)
    one_machine = machines == 1 and not isinstance(machines, bool)
    usable = True
    for name in ("num_processes", "num_machines", "machine_rank", "main_process_port"):
        number = value.get(name)
        if name not in value or fits(name, number) or (number is None and name != "num_machines"):
            continue
        usable = False
        most = TOP_LEVEL[name].get("maximum")
        # in quotes two of them work, where nobody counts with them
        works = isinstance(number, str) and number.isdecimal() and name in ("num_processes", "machine_rank")
        yield _NUMBER.at(
            document, severity="warning" if works and one_machine else "error", name=name, value=number,
            effect="takes it for text" if works else "fails on it",
            least=TOP_LEVEL[name]["minimum"], most=f" and at most {most}" if most else "",
        )  # fmt: skip
    backend = value.get("rdzv_backend")
    if backend is not None and backend not in _RENDEZVOUS:
        yield _RDZV_BACKEND.at(document, backend=backend, fix=one_of(str(backend), _RENDEZVOUS))
    if not usable:
        return
    kind, ids, wanted = value.get("distributed_type"), value.get("gpu_ids"), world_size or processes or 1
    at = {
        "kind": kind, "ids": ids, "count": processes, "machines": machines, "last": machines - 1,
        "rank": value.get("machine_rank", 0), "wanted": wanted, "ranks": counted(wanted, "rank"),
        "processes": counted(processes or 0, "process", "processes"),
        "of_machines": counted(machines, "machine"),
        "effect": f"the job has {wanted} ranks" if world_size else f"ignores num_processes {wanted}",
        # it reads no number of processes for NO, and SageMaker's own launcher counts them
        "is_counted": kind != "NO" and value.get("compute_environment") != "AMAZON_SAGEMAKER",
        "here": ids not in (None, "all") and processes is not None and machines == 1,
    }  # fmt: skip
    yield from itertools.islice(broken(_OF_GPUS, document, at, **at), 1)
    yield from broken(_OF_RANKS, document, at, **at)


def _named(ids: str) -> int:
    return len([part for part in ids.split(",") if part.strip()])


_NOT_A_MAPPING = Row(
    "accelerate-not-a-mapping", "", "is not a mapping of keys", "write key: value",
)  # fmt: skip
_UNKNOWN_KEY = Row(
    "accelerate-unknown-key", "", "Accelerate refuses the file: it has no key {key!r}", "{fix}", CONFIG,
)  # fmt: skip
_OF_TYPES = (
    Row(
        "accelerate-distributed-type", "distributed_type",
        "distributed_type is {kind!r}: accelerate launch takes it for none, and starts one process",
        "write one of the names, such as DEEPSPEED", LAUNCH,
        # NO without quotes is a boolean that launches as NO does
        broken=lambda of: "distributed_type" in of and of["distributed_type"] is not False
        and not isinstance(of["distributed_type"], str),
    ),
    Row(
        "accelerate-distributed-type", "distributed_type",
        "distributed_type is missing: Accelerate refuses the file", "add distributed_type: DEEPSPEED", CONFIG,
        broken=lambda of: "distributed_type" not in of, missing="distributed_type",
    ),
    Row(
        "accelerate-distributed-type", "distributed_type",
        "{kind!r} is no distributed type: Accelerate refuses the file", "{fix}", CONFIG,
        broken=lambda of: isinstance(of.get("distributed_type"), str) and not _is_known(of)
        and {"fix": one_of(of["distributed_type"], key_list()["distributed_types"])},
    ),
    Row(
        "accelerate-deepspeed-unused", "deepspeed_config",
        "distributed_type is {kind}: the deepspeed_config block is ignored and DeepSpeed does not run",
        "set distributed_type: DEEPSPEED", LAUNCH, "warning",
        lambda of: isinstance(of.get("distributed_type"), str) and _is_known(of)
        and of["distributed_type"] != "DEEPSPEED" and of.get("deepspeed_config"),
    ),
    Row(
        "accelerate-fsdp-unused", "fsdp_config",
        "distributed_type is DEEPSPEED: the fsdp_config block is ignored", "remove one of the two", LAUNCH,
        "warning", lambda of: of.get("distributed_type") == "DEEPSPEED" and of.get("fsdp_config"),
    ),
)  # fmt: skip
_FLAG_AS_TEXT = Row(
    "accelerate-flag-as-text", "{key}", "{key} is {value!r}: accelerate launch {effect}",
    "write true or false without quotes", LAUNCH,
)  # fmt: skip
_ENVIRONMENT = Row(
    "accelerate-environment", "compute_environment",
    "compute_environment is {environment!r}: Accelerate takes the file for SageMaker's, and refuses it",
    "write LOCAL_MACHINE", CONFIG,
    broken=lambda of: of.get("compute_environment", "LOCAL_MACHINE") not in ("LOCAL_MACHINE", _SAGEMAKER),
)  # fmt: skip
_OF_PRECISION = (
    Row(
        "accelerate-precision-unquoted", "mixed_precision",
        "mixed_precision: no without quotes is a boolean in YAML: accelerate launch fails on it",
        "write 'no' in quotes", LAUNCH,
        broken=lambda of: of.get("mixed_precision") is False
        and {"edits": (Edit(kind="set", key="mixed_precision", value="no"),)},
    ),
    Row(
        "accelerate-precision", "mixed_precision",
        "mixed_precision is {precision!r}: accelerate launch refuses it",
        "use 'no', fp16, bf16 or fp8", f"Accelerate {ACCELERATE_VERSION}, utils/launch.py",
        broken=lambda of: of.get("mixed_precision") is not None and of["mixed_precision"] is not False
        and str(of["mixed_precision"]).lower() not in key_list()["mixed_precisions"],
    ),
)  # fmt: skip


def _is_known(of: Mapping[str, Any]) -> bool:
    is_sagemakers = of.get("compute_environment") == _SAGEMAKER
    return is_sagemakers or of["distributed_type"] in key_list()["distributed_types"]


def named_config(document: Document) -> str | None:
    """The DeepSpeed JSON that an accelerate YAML names."""
    block = document.value.get("deepspeed_config") if isinstance(document.value, dict) else None
    name = block.get("deepspeed_config_file") if isinstance(block, dict) else None
    return name if isinstance(name, str) and name else None


def lint_accelerate(
    document: Document,
    world_size: int | None = None,
    config: Document | None = None,
    model_code: str | None = None,
) -> list[Finding]:
    """Every finding about an accelerate YAML. ``config``: the DeepSpeed JSON that it names, where that was
    read. ``model_code``: the source that defines the model's classes."""
    if not isinstance(document.value, dict):
        return [_NOT_A_MAPPING.at(document)]
    findings = [
        read_past(document, problem, "warning" if problem.rule == "duplicate-key" else "error")
        for problem in document.problems
        if problem.rule != "yaml-number-as-text" or _is_read(document, problem.location)
    ]
    findings += _top_level(document, config)
    findings += lint_processes(document, world_size)
    precision = document.value.get("mixed_precision")
    findings += broken(_OF_PRECISION, document, document.value, precision=precision)
    if document.value.get("distributed_type") == "DEEPSPEED":
        findings += lint_deepspeed_block(document, config)
    else:
        findings += lint_fsdp(document, model_code)
    findings += lint_parallelism(document, number_of_processes(document))
    return one_for_each_cause(findings)


def _is_read(document: Document, location: Location) -> bool:
    """Whether a key stands there that takes a number, which Accelerate does not read out of text itself."""
    lists = key_list()
    read: list[Path] = [(key,) for key in lists["cluster"]]
    read += [("deepspeed_config", key) for key in lists["deepspeed_config"] if key != "gradient_clipping"]
    return any(document.values.get(path) == location for path in read)


def _top_level(document: Document, config: Document | None) -> Iterator[Finding]:
    environment = document.value.get("compute_environment")
    yield from _unknown_keys(document, environment == _SAGEMAKER, config)
    yield from broken([_ENVIRONMENT], document, document.value, environment=environment)
    # accelerate asks whether they are true, as Python does; a mapping it takes apart
    for key in _FLAGS:
        value = document.value.get(key)
        if value is None or isinstance(value, bool):
            continue
        fails = key == "use_cpu" and isinstance(value, dict)
        effect = "fails on it" if fails else f"takes it for {str(bool(value)).lower()}"
        severity: Severity = "error" if fails else "warning"
        yield _FLAG_AS_TEXT.at(document, severity=severity, key=key, value=value, effect=effect)
    kind = document.value.get("distributed_type")
    yield from broken(_OF_TYPES, document, document.value, kind=kind)


def _unknown_keys(document: Document, sagemaker: bool, config: Document | None) -> Iterator[Finding]:
    value, lists = document.value, key_list()
    known_keys = {*lists["sagemaker" if sagemaker else "cluster"], *lists["legacy"]}
    for key in value:
        if key in known_keys:
            continue
        guess = nearest(str(key), known_keys) or synonym(str(key), dict.fromkeys(known_keys))
        plugin_key = str(key) if key in lists["deepspeed_config"] else guess
        beside_file = fix_beside_file(document, plugin_key, value[key], config)
        block = next((one for one in ("deepspeed_config", "parallelism_config") if key in lists[one]), None)
        edits: tuple[Edit, ...] = ()
        if beside_file is not None:
            fix = beside_file
        elif block is not None:
            below = value.get(block)
            is_there = isinstance(below, dict) and key in below
            fix = f"remove it; {block} has it" if is_there else f"move it below {block}"
        else:
            fix = meant(guess, value) if guess else "remove it"
            if guess and guess not in value and fits(guess, value[key]):
                safe = leaves_no_doubt(str(key), guess, known_keys)
                edits = (Edit(kind="rename", key=str(key), value=guess, safe=safe),)
        yield _UNKNOWN_KEY.at(document, (key,), edits=edits, suggests=guess or str(key), key=key, fix=fix)


_FLAGS = ("use_cpu", "debug", "same_network", "enable_cpu_affinity")
_SAGEMAKER = "AMAZON_SAGEMAKER"
