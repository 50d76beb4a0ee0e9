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
            document, (name,), severity="warning" if works and one_machine else "error", name=name,
            value=short(number), effect="takes it for text" if works else "fails on it",
            least=TOP_LEVEL[name]["minimum"], most=f" and at most {most}" if most else "",
        )  # fmt: skip
    backend = value.get("rdzv_backend")
    if backend is not None and backend not in _RENDEZVOUS:
        guess = nearest(str(backend), _RENDEZVOUS)
        fix = f"did you mean {guess}?" if guess else f"use one of {', '.join(_RENDEZVOUS)}"
        yield _RDZV_BACKEND.at(document, backend=short(backend), fix=fix)
    if not usable:
        return
    yield from _gpu_ids(document, processes, machines)
    wanted = world_size or processes or 1
    if value.get("distributed_type") == "NO":  # accelerate launch reads no number of processes
        effect = f"the job has {wanted} ranks" if world_size else f"ignores num_processes {wanted}"
        if wanted > 1:
            yield _ONE_PROCESS.at(document, effect=effect, wanted=wanted)
    elif value.get("compute_environment") == "AMAZON_SAGEMAKER":
        pass  # its own launcher counts them
    elif processes is None:
        yield _NUM_PROCESSES_MISSING.at(document, missing="num_processes")
    elif processes % machines:
        of_all = counted(processes, "process", "processes")
        yield _NUM_PROCESSES_UNEVEN.at(document, processes=of_all, machines=machines)
    elif world_size is not None and processes != world_size:
        ranks = counted(world_size, "rank")
        yield _WORLD_SIZE.at(document, processes=processes, ranks=ranks, world_size=world_size)
    rank = value.get("machine_rank", 0)
    if rank is None and machines > 1:
        yield _MACHINE_RANK_NULL.at(document, machines=machines, last=machines - 1)
    elif rank is not None and rank >= machines:
        of_machines = counted(machines, "machine")
        yield _MACHINE_RANK_TOO_HIGH.at(document, rank=rank, machines=of_machines, last=machines - 1)


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
