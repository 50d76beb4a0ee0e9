"""How many ranks an accelerate YAML starts, where, and how they are divided."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from zerokit.domain.fsdp2_config import count
from zerokit.linter.accelerate.keys import LAUNCH, TOP_LEVEL, fits
from zerokit.linter.finding import Finding, Row, broken, one_of
from zerokit.rules.types import ACCELERATE_VERSION
from zerokit.strictload import Document
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
