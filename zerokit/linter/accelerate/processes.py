"""How many ranks an accelerate YAML starts, where, and how they are divided."""

from __future__ import annotations

import re
from collections.abc import Iterator

from zerokit.linter.accelerate.keys import LAUNCH, TOP_LEVEL, fits, short
from zerokit.linter.finding import Finding, Row
from zerokit.rules.types import ACCELERATE_VERSION
from zerokit.strictload import Document
from zerokit.suggest import nearest
from zerokit.units import counted

_RENDEZVOUS = ("static", "c10d", "etcd", "etcd-v2")
_DEVICES = re.compile(r"\s*[\w-]*\d[\w:/.-]*(\s*,\s*[\w-]*\d[\w:/.-]*)*\s*,?\s*")


_ONE_PROCESS = Row(
    "accelerate-one-process", "distributed_type",
    "distributed_type is NO: accelerate launch starts one process, and {effect}",
    "set distributed_type to DEEPSPEED, FSDP or MULTI_GPU (on CPUs, too), with num_processes: {wanted}",
    LAUNCH, "warning",
)  # fmt: skip
_NUM_PROCESSES_MISSING = Row(
    "accelerate-num-processes", "num_processes",
    "num_processes is missing: accelerate launch stops unless --num_processes is given",
    "add num_processes: the number of GPUs on all machines together", LAUNCH, "warning",
)  # fmt: skip
_NUM_PROCESSES_UNEVEN = Row(
    "accelerate-num-processes", "num_processes",
    "{processes} cannot be divided over {machines} machines (it counts them all)",
    "use a multiple of {machines}", LAUNCH,
)  # fmt: skip
_WORLD_SIZE = Row(
    "accelerate-world-size", "num_processes", "num_processes is {processes}, the job has {ranks}",
    "use {world_size}", "", "warning",
)  # fmt: skip
_MACHINE_RANK_NULL = Row(
    "accelerate-machine-rank", "machine_rank",
    "machine_rank is null with {machines} machines: accelerate launch fails on it",
    "use 0 to {last}, another on each machine", LAUNCH,
)  # fmt: skip
_MACHINE_RANK_TOO_HIGH = Row(
    "accelerate-machine-rank", "machine_rank",
    "machine_rank {rank} with {machines}: they count from 0, the others wait for ever", "use 0 to {last}",
    LAUNCH,
)  # fmt: skip
_NUMBER = Row(
    "accelerate-number", "", "{name} is {value}: accelerate launch {effect}",
    "use a whole number of at least {least}{most}, without quotes", LAUNCH,
)  # fmt: skip
_RDZV_BACKEND = Row(
    "accelerate-rdzv-backend", "rdzv_backend",
    "rdzv_backend is {backend}: torch has no such rendezvous, and the launch fails", "{fix}",
    f"Accelerate {ACCELERATE_VERSION}, commands/launch.py; torch/distributed/elastic/rendezvous",
)  # fmt: skip
_GPU_IDS_AS_NUMBERS = Row(
    "accelerate-gpu-ids", "gpu_ids", "gpu_ids is {ids}: accelerate launch reads a text, and fails on it",
    "write the numbers in quotes, as gpu_ids: '0,1', or gpu_ids: all", LAUNCH,
)  # fmt: skip
_GPU_IDS_WITHOUT_GPU = Row(
    "accelerate-gpu-ids", "gpu_ids",
    "gpu_ids is {ids}: it becomes CUDA_VISIBLE_DEVICES, where it names no GPU",
    "write numbers such as '0,1', or all", LAUNCH,
)  # fmt: skip
_GPU_IDS_OF_ONE = Row(
    "accelerate-gpu-ids", "gpu_ids",
    "gpu_ids names one GPU, and distributed_type is MULTI_GPU: accelerate launch refuses it",
    "name two or more GPUs, or set distributed_type: 'NO'", LAUNCH,
)  # fmt: skip
_GPU_IDS_TOO_FEW = Row(
    "accelerate-gpu-ids", "gpu_ids",
    "gpu_ids names {count} for {processes} processes: ranks beyond them find no GPU",
    "name {processes} GPUs, or write gpu_ids: all", LAUNCH,
)  # fmt: skip


def number_of_processes(document: Document) -> int | None:
    """``num_processes``, when it is a usable number."""
    value = document.value.get("num_processes") if isinstance(document.value, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def lint_processes(document: Document, world_size: int | None) -> Iterator[Finding]:
    """Findings about ranks, machines, ports and GPUs."""
    value = document.value
    processes, machines = value.get("num_processes"), value.get("num_machines", 1)
    usable = True
    for name in ("num_processes", "num_machines", "machine_rank", "main_process_port"):
        if name not in value or (value[name] is None and name != "num_machines"):
            continue
        if not fits(name, value[name]):
            usable = False
            yield _not_a_number(document, name, value[name], machines)
    yield from _rendezvous(document)
    if not usable:
        return
    yield from _gpu_ids(document, processes, machines)
    if value.get("distributed_type") == "NO":
        yield from _one_process(document, processes, world_size)
    elif value.get("compute_environment") != "AMAZON_SAGEMAKER":  # whose own launcher counts them
        yield from _world_size(document, processes, machines, world_size)
    yield from _machine_rank(document, machines)


def _one_process(document: Document, processes: int | None, world_size: int | None) -> Iterator[Finding]:
    """Of ``distributed_type: 'NO'``, where accelerate launch reads no number of processes."""
    wanted = world_size or processes or 1
    if wanted == 1:
        return
    what = f"the job has {wanted} ranks" if world_size else f"ignores num_processes {wanted}"
    yield _ONE_PROCESS.at(document, effect=what, wanted=wanted)


def _world_size(
    document: Document, processes: int | None, machines: int, world_size: int | None
) -> Iterator[Finding]:
    if processes is None:
        yield _NUM_PROCESSES_MISSING.at(document, missing="num_processes")
    elif processes % machines:
        yield _NUM_PROCESSES_UNEVEN.at(
            document, processes=counted(processes, "process", "processes"), machines=machines
        )
    elif world_size is not None and processes != world_size:
        yield _WORLD_SIZE.at(
            document, processes=processes, ranks=counted(world_size, "rank"), world_size=world_size
        )


def _machine_rank(document: Document, machines: int) -> Iterator[Finding]:
    rank = document.value.get("machine_rank", 0)
    if rank is None and machines > 1:
        yield _MACHINE_RANK_NULL.at(document, machines=machines, last=machines - 1)
    elif rank is not None and rank >= machines:
        yield _MACHINE_RANK_TOO_HIGH.at(
            document, rank=rank, machines=counted(machines, "machine"), last=machines - 1
        )


def _not_a_number(document: Document, name: str, value: object, machines: object) -> Finding:
    least, most = TOP_LEVEL[name]["minimum"], TOP_LEVEL[name].get("maximum")
    one_machine = machines == 1 and not isinstance(machines, bool)
    # in quotes two of them work, where nobody counts with them
    works = isinstance(value, str) and value.isdecimal() and name in ("num_processes", "machine_rank")
    return _NUMBER.at(
        document,
        (name,),
        severity="warning" if works and one_machine else "error",
        name=name,
        value=short(value),
        effect="takes it for text" if works else "fails on it",
        least=least,
        most=f" and at most {most}" if most else "",
    )


def _rendezvous(document: Document) -> Iterator[Finding]:
    backend = document.value.get("rdzv_backend")
    if backend is None or backend in _RENDEZVOUS:
        return
    guess = nearest(str(backend), _RENDEZVOUS)
    yield _RDZV_BACKEND.at(
        document,
        backend=short(backend),
        fix=f"did you mean {guess}?" if guess else f"use one of {', '.join(_RENDEZVOUS)}",
    )


def _gpu_ids(document: Document, processes: int | None, machines: int) -> Iterator[Finding]:
    ids = document.value.get("gpu_ids")
    if ids is not None and not isinstance(ids, str):
        yield _GPU_IDS_AS_NUMBERS.at(document, ids=short(ids))
        return
    if isinstance(ids, str) and ids != "all" and not _DEVICES.fullmatch(ids):
        yield _GPU_IDS_WITHOUT_GPU.at(document, ids=short(ids))
        return
    if ids in (None, "all") or processes is None or machines > 1:
        return
    count = len([part for part in str(ids).split(",") if part.strip()])
    if document.value.get("distributed_type") == "MULTI_GPU" and "," not in ids:
        yield _GPU_IDS_OF_ONE.at(document)
    elif count < processes:
        yield _GPU_IDS_TOO_FEW.at(document, count=counted(count, "GPU"), processes=processes)
