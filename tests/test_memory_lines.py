"""docs/memory-lines.md explains every line of a memory table, and its remedies shrink that line.

Each option in the last column is tried on an estimate in which the line stands, one that the words of the
cell describe: the line must be smaller with it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import zerokit
from zerokit.errors import InputError
from zerokit.memory.card import CONTEXT, DRIVER, NCCL, RESERVED
from zerokit.memory.components import Component, HostComponent
from zerokit.planner.options import OPTIONS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "memory-lines.md").read_text()
NAMES = {option.option: option.name for option in OPTIONS}
OPTION = re.compile(r"`(--[a-z-]+)(?: ([^`]+))?`")

JOB: Mapping[str, Any] = {
    "model": "llama-3.1-8b",
    "gpus": 8,
    "gpu": "h200",
    "seq_len": 2048,
    "micro_batch": 2,
}
"""What every estimate starts from; its catalogue's trace answers without torch."""

CHANGED: Mapping[str, Any] = {
    "--micro-batch": 1, "--seq-len": 1024, "--gpus": 16, "--tp": 2, "--sp": 2, "--cp": 2,
    "--optimizer": "AdamW",
    "--reduce-bucket": 50_000_000, "--prefetch-bucket": 5_000_000, "--sub-group": 50_000_000,
    "--offload-activations": False,
}  # fmt: skip
"""Values of the options that the page names without one; ``--nodes`` is in :func:`remedy`."""

SHORT = {"seq_len": 128, "micro_batch": 1}
SHORT_FP32 = {"model": "lfm2-350m", "precision": "fp32", **SHORT}
OFFLOADED = {"zero": 3, "offload_optimizer": "cpu", "offload_param": "cpu"}
NVME = {"zero": 3, "offload_optimizer": "nvme", "offload_param": "nvme", "nvme": "/mnt/nvme"}
ON_GPU: Mapping[Component, tuple[Mapping[str, Any], ...]] = {
    Component.ACTIVATIONS: ({"zero": 2}, {"engine": "fsdp2"}),
    Component.LOSS: ({"zero": 2}, {"engine": "fsdp2"}),
    Component.PARAMETERS: ({"zero": 1}, {"zero": 3}),
    Component.FROZEN_PARAMETERS: ({"zero": 0, "method": "lora"},),
    Component.MASTER_WEIGHTS: ({"zero": 0}, {"zero": 1}),
    Component.OPTIMIZER_STATES: ({"zero": 0}, {"zero": 1}),
    Component.FIRST_OPTIMIZER: ({"zero": 1, "optimizer": "Adagrad"},),
    Component.GRADIENTS: ({"zero": 1, "gradient_accumulation": 4},),
    Component.GRADIENT_PARTITION: ({"zero": 3},),
    Component.FLAT_GRADIENT: ({"zero": 0}, {"zero": 3}),
    Component.FP32_GRADIENT: ({"zero": 0}, {"zero": 3}),
    Component.GRADIENT_NORM: ({"zero": 1, **SHORT_FP32},),
    Component.OPTIMIZER_TEMPORARIES: ({"zero": 1, "optimizer": "Adagrad", **SHORT},),
    Component.GRADIENT_BUCKET: ({"zero": 3},),
    Component.REDUCE_COPY: ({"zero": 2, "checkpointing": "full", "micro_batch": 1},),
    Component.OFFLOAD_BUFFER: ({"zero": 1, "offload_optimizer": "cpu"},),
    Component.OFFLOAD_COPY: ({"zero": 1, "offload_optimizer": "cpu", **SHORT},),
    Component.GATHERED_PARAMETERS: ({"zero": 3},),
    Component.GATHER_BUFFERS: ({"zero": 3, **SHORT_FP32},),
    Component.GATHER_COPY: ({**OFFLOADED, **SHORT},),
    Component.INITIALISATION: ({"zero": 0}, {"zero": 3}),
}
"""Configurations in which a line stands; each remedy of it must help in one of them."""

ON_HOST: Mapping[HostComponent, tuple[Mapping[str, Any], ...]] = {
    HostComponent.PROCESS: ({"zero": 2},),
    HostComponent.MODEL_BEFORE_IT_MOVES: ({"zero": 2},),
    HostComponent.DEFRAGMENTATION: ({"zero": 3},),
    HostComponent.PARAMETERS: (OFFLOADED,),
    HostComponent.PARAMETERS_WHILE_BUILT: (OFFLOADED,),
    HostComponent.MASTER_WEIGHTS: (OFFLOADED,),
    HostComponent.OPTIMIZER_STATES: (OFFLOADED,),
    HostComponent.GRADIENTS: (OFFLOADED,),
    HostComponent.GRADIENT_PARTITION: (OFFLOADED,),
    HostComponent.ACCUMULATED_GRADIENTS: (
        {"zero": 2, "offload_optimizer": "cpu", "gradient_accumulation": 4},
    ),
    HostComponent.STAGING: ({"zero": 2, "offload_optimizer": "cpu"},),
    HostComponent.OFFLOAD_BUFFER: ({"zero": 2, "offload_optimizer": "cpu"},),
    HostComponent.PARAMETER_BUFFERS: (NVME,),
    HostComponent.SWAP_BUFFERS: (NVME,),
    HostComponent.NVME_PARAMETERS: (NVME,),
    HostComponent.NVME_OPTIMIZER: (NVME,),
}

TRACED = ((Component, Component.KV_CACHE), (HostComponent, HostComponent.ACTIVATIONS))
"""Their estimates need torch and a trace; tests/torch holds what they take."""


def rows(kind: type[Component] | type[HostComponent]) -> list[tuple[Any, str, str]]:
    """(component, what it is, what reduces it) of each row in the page's table of GPU or host memory."""
    title = "## GPU memory" if kind is Component else "## Host memory"
    section = PAGE.split(title)[1].split("\n## ")[0]
    found = []
    of_label = {component.label: component for component in kind}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" |")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] not in ("line", "---"):
            found.append((of_label[cells[0]], cells[1], cells[2]))
    return found


@pytest.mark.parametrize("kind", [Component, HostComponent])
def test_every_component_has_a_row_with_its_meaning(kind: type[Component] | type[HostComponent]) -> None:
    assert sorted((part.label, means) for part, means, _ in rows(kind)) == sorted(
        (part.label, part.meaning) for part in kind
    )


def test_what_stands_around_a_peak_has_a_row() -> None:
    section = PAGE.split("## Around the peak")[1].split("\n## ")[0]
    named = re.findall(r"^\| ([A-Za-z ]+) \|", section, re.MULTILINE)[1:]
    assert sorted(named) == sorted((CONTEXT, DRIVER, NCCL, RESERVED))


def remedies() -> Iterator[tuple[Component | HostComponent, str, str]]:
    for kind in (Component, HostComponent):
        for part, _, cell in rows(kind):
            if (kind, part) not in TRACED:
                yield from ((part, option, value) for option, value in OPTION.findall(cell))


def remedy(option: str, value: str) -> dict[str, Any]:
    """The arguments of ``zerokit.estimate`` that follow the page."""
    if option == "--nodes":
        return {"nodes": 4, "gpus": 16}
    taken: Any = int(value) if value.isdigit() else value or CHANGED[option]
    change = {NAMES[option]: taken}
    return {**change, "zero": 3} if change == {"offload_param": "cpu"} else change


@cache
def sizes(arguments: tuple[tuple[str, Any], ...], of_host: bool) -> Counter[str]:
    """Bytes of each component: of host memory and disk, or the most of one GPU's phases."""
    estimate = zerokit.estimate(**dict(arguments))
    if of_host:
        return Counter({**estimate.host_components, **on_disk(estimate)})
    found: Counter[str] = Counter()
    document = estimate.to_dict()
    ranks = [rank["components"] for rank in document["per_rank"]]
    for parts in [*ranks, *document["components_by_phase"].values()]:
        found |= Counter(parts)
    return found


def on_disk(estimate: Any) -> dict[str, int]:
    """The whole of it stands for each line: the document names no more."""
    lines = (HostComponent.NVME_PARAMETERS, HostComponent.NVME_OPTIMIZER)
    return {line.value: estimate.to_dict()["nvme_bytes_per_node"] for line in lines}


@pytest.mark.parametrize(("part", "option", "value"), list(remedies()), ids=str)
def test_what_reduces_a_line_does(part: Component | HostComponent, option: str, value: str) -> None:
    of_host = isinstance(part, HostComponent)
    found = []
    for base in ON_HOST[part] if isinstance(part, HostComponent) else ON_GPU[part]:
        start = {**JOB, **base}
        changed = {**start, **remedy(option, value)}
        with suppress(InputError):  # offload at stage 0
            before, after = (sizes(tuple(sorted(a.items())), of_host)[part.value] for a in (start, changed))
            assert before > 0, f"{part.label} is not there with {base}"
            found.append((before, after))
    assert any(after < before for before, after in found), (part.label, option, found)


def test_the_short_table_says_what_the_long_one_does() -> None:
    """That of docs/out-of-memory.md names lines and options of this page."""
    whole = {part.label: set(OPTION.findall(cell)) for part, _, cell in rows(Component)}
    table = (DOCS / "out-of-memory.md").read_text().split("| line | what reduces it |")[1].split("\n\n")[0]
    short = [
        line.strip("| ").split(" | ") for line in table.splitlines() if "--" in line and "---" not in line
    ]
    assert len(short) >= 5
    for labels, cell in short:
        for name in labels.split(", "):
            assert {option for option, _ in OPTION.findall(cell)} <= {option for option, _ in whole[name]}, (
                name
            )
