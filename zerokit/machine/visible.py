"""What ``CUDA_VISIBLE_DEVICES`` and its like leave of a machine's GPUs, read as the drivers read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zerokit.values import frozen_dataclass


@frozen_dataclass
class FoundGpu:
    """One GPU as its driver lists it.

    Attributes:
        index: as the driver counts, in PCI bus order.
        driver_vram_bytes: the driver's total; ``None``: the driver does not say.
        used_bytes: taken by any process when looked at; ``None``: unknown.
    """

    index: int
    uuid: str
    name: str
    driver_vram_bytes: int | None
    used_bytes: int | None = None


def visible(
    gpus: Sequence[FoundGpu], environment: Mapping[str, str], variables: Sequence[str]
) -> tuple[tuple[FoundGpu, ...], str]:
    """Those that the environment leaves visible, in its order, and a remark that says so."""
    selected = tuple(gpus)
    remarks = []
    for variable in variables:
        value = environment.get(variable)
        if value is None:
            continue
        if "MIG-" in value:
            return (), f", but {variable} names MIG slices, whose size it does not tell: give ⟨vram⟩ SIZE"
        selected, _ = chosen(selected, value)
        remarks.append(f"{variable}={value} leaves {len(selected)}")
    return selected, "".join(f", {remark}" for remark in remarks)


def chosen(gpus: Sequence[FoundGpu], value: str) -> tuple[tuple[FoundGpu, ...], str]:
    """The GPUs that one variable's value names, and what is wrong with it (empty: nothing).

    As CUDA reads it: indexes or (shortened) UUIDs; the list ends at the first entry that names no GPU,
    or several; a GPU named twice hides all; an empty value or -1 hides all.
    """
    named: list[FoundGpu] = []
    for part in (part.strip() for part in value.split(",")):
        if part.isdecimal():
            # an index counts among what an earlier variable left
            fits = [gpus[int(part)]] if int(part) < len(gpus) else []
        elif part.upper().startswith("GPU-"):
            fits = [gpu for gpu in gpus if _same_uuid(gpu.uuid, part)]
        else:
            fits = []
        if len(fits) > 1:
            return tuple(named), f"{part} fits {len(fits)} GPUs; write more of the UUID"
        if not fits:
            break
        if fits[0] in named:
            return (), f"names GPU {fits[0].index} twice; CUDA would see none"
        named += fits
    return tuple(named), ""


def _same_uuid(uuid: str, part: str) -> bool:
    # rocm-smi prints the unique id as 0x…, the variable takes GPU-…
    full = uuid.lower().removeprefix("gpu-").removeprefix("0x")
    start = part.lower().removeprefix("gpu-").removeprefix("0x")
    return bool(start) and full.startswith(start)
