"""How many ranks an accelerate YAML starts, where, and how they are divided."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from zerokit.linter.accelerate.keys import (
    ACCELERATE_VERSION,
    LAUNCH,
    PARALLELISM_PREFIX,
    key_list,
    short,
)
from zerokit.linter.finding import Finding, finding_at
from zerokit.strictload import Document
from zerokit.suggest import nearest


def number_of_processes(document: Document) -> int | None:
    """``num_processes``, when it is a usable number."""
    value = document.value.get("num_processes") if isinstance(document.value, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def lint_processes(document: Document, world_size: int | None) -> Iterator[Finding]:
    """Findings about ranks, machines, ports and GPUs."""
    value = document.value
    processes, machines, rank = (
        value.get(name, default)
        for name, default in (("num_processes", None), ("num_machines", 1), ("machine_rank", 0))
    )
    port = value.get("main_process_port")
    unusable = False
    for name, number, least in (
        ("num_processes", processes, 1),
        ("num_machines", machines, 1),
        ("machine_rank", rank, 0),
        ("main_process_port", port, 0),
    ):
        if number is None and name in ("num_processes", "main_process_port"):
            continue
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            unusable = True
            yield finding_at(
                document,
                (name,),
                "accelerate-number",
                f"{name} is {short(number)}",
                f"use a whole number of at least {least}, without quotes",
                # in quotes it works, where nobody counts with it
                severity="warning" if isinstance(number, str) and number.isdecimal() else "error",
                source=LAUNCH,
            )
    if unusable:
        return
    yield from _gpu_ids(document, processes, machines)
    if processes is None:
        yield finding_at(
            document,
            ("num_processes",),
            "accelerate-num-processes",
            "num_processes is missing: accelerate launch stops unless --num_processes is given",
            "add num_processes: the number of GPUs on all machines together",
            severity="warning",
            source=LAUNCH,
        )
    elif processes % machines:
        yield finding_at(
            document,
            ("num_processes",),
            "accelerate-num-processes",
            f"{processes} processes do not divide over {machines} machines (it counts them all)",
            f"use a multiple of {machines}",
            source=LAUNCH,
        )
    elif world_size is not None and processes != world_size:
        yield finding_at(
            document,
            ("num_processes",),
            "accelerate-world-size",
            f"num_processes is {processes}, the job has {world_size} ranks",
            f"use {world_size}",
            severity="warning",
        )
    if rank >= machines:
        yield finding_at(
            document,
            ("machine_rank",),
            "accelerate-machine-rank",
            f"machine_rank {rank} with {machines} machine(s): they count from 0, the others wait for ever",
            f"use 0 to {machines - 1}",
            source=LAUNCH,
        )


def _gpu_ids(document: Document, processes: int | None, machines: int) -> Iterator[Finding]:
    ids = document.value.get("gpu_ids")
    if ids in (None, "all") or processes is None or machines > 1:
        return
    count = len([part for part in str(ids).split(",") if part.strip()])
    if count != processes:
        yield finding_at(
            document,
            ("gpu_ids",),
            "accelerate-gpu-ids",
            f"gpu_ids names {count} GPU(s) for {processes} processes: ranks beyond them find no GPU",
            f"name {processes} GPUs, or write gpu_ids: all",
            source=LAUNCH,
        )


def lint_parallelism(document: Document) -> Iterator[Finding]:
    """Findings about ``parallelism_config``, which Accelerate reads for sequence parallelism."""
    block = document.value.get("parallelism_config")
    if block in (None, {}):
        return
    if not isinstance(block, dict):
        yield finding_at(
            document,
            ("parallelism_config",),
            "accelerate-ignored-key",
            f"parallelism_config is {short(block)}: Accelerate ignores it",
            "write a mapping of parallelism_config_… keys",
            source=LAUNCH,
        )
        return
    known = key_list()["parallelism_config"]
    for key in block:
        if key in known:
            continue
        prefixed = f"{PARALLELISM_PREFIX}{key}"
        guess = prefixed if prefixed in known else nearest(str(key), known)
        yield finding_at(
            document,
            ("parallelism_config", key),
            "accelerate-ignored-key",
            f"Accelerate ignores {short(key)} in parallelism_config",
            f"did you mean {guess!r}?" if guess else "remove it",
            source=LAUNCH,
        )
    for key, size in block.items():
        if key in known and str(key).endswith("_size") and not _is_size(size):
            yield finding_at(
                document,
                ("parallelism_config", key),
                "accelerate-number",
                f"{key} is {short(size)}: accelerate launch fails on it",
                "use a whole number of at least 1, without quotes",
                source=LAUNCH,
            )
    sizes = [
        block.get(f"{PARALLELISM_PREFIX}{name}_size", 1)
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    ]
    processes = number_of_processes(document)
    if not all(map(_is_size, sizes)) or processes is None:
        return
    product = functools.reduce(lambda left, right: left * right, sizes)
    if sizes[4] > 1 and product != processes:
        yield finding_at(
            document,
            ("parallelism_config", f"{PARALLELISM_PREFIX}sp_size"),
            "accelerate-parallelism-product",
            f"the sizes multiply to {product}, num_processes is {processes}: the device mesh cannot be built",
            f"set {PARALLELISM_PREFIX}dp_replicate_size: {processes // sizes[4] or 1}",
            source=f"accelerate/parallelism_config.py ({ACCELERATE_VERSION})",
        )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
