"""``zerokit gpus``: list the GPUs in the catalogue."""

from __future__ import annotations

import json

import click

from zerokit.catalog import gpus, prices
from zerokit.cli.base import Command
from zerokit.cli.prose import aligned, wrapped
from zerokit.cli.say import write, write_json
from zerokit.domain.hardware import Gpu
from zerokit.units import GIB, MIB, counted, format_gib

_KEPT = "driver_kept"
_COLUMNS = ("NAME", "GiB", "bf16 TFLOP/s", "GB/s memory", "GB/s link", "LINK", "TITLE")


@click.command("gpus", cls=Command)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
@click.option(
    "--update-prices", "updates", is_flag=True, help="Fetch what renting costs, for `size`; needs gpuhunt."
)
def command(name: str | None, as_json: bool, updates: bool) -> None:
    """List the GPUs that plans may name with --gpu; with NAME, show one with its sources.

    GiB is what nvidia-smi shows of a card, as in plans; torch can use a little less, which NAME shows too.

    NAME forgives case and separators: `A100-80GB` and `a100 80gb` lead to the same entry, and so does what
    nvidia-smi prints.
    """
    if updates:
        table = prices.update()
        priced = counted(len({offer.gpu for offer in table.offers}), "GPU")
        told = f"prices of {priced}, none older than {table.date}, from {table.source}"
        write_json(json.loads(prices.as_text(table))) if as_json else write(told)
        return
    if name is not None:
        gpu = gpus.lookup(name, option="")
        write_json(gpus.as_dict(gpu)) if as_json else write(_one(gpu))
        return
    everything = gpus.catalog()
    if as_json:
        listed = [gpus.as_dict(gpu) for gpu in everything]
        write_json({"schema": "zerokit.gpus/1", "gpus": listed})
    else:
        write(_table(everything))


def _table(everything: tuple[Gpu, ...]) -> str:
    rows = [_COLUMNS]
    for gpu in sorted(everything, key=lambda gpu: (gpu.vram_bytes, gpu.name)):
        bf16 = f"{gpu.peak_flops['bf16'] / 1e12:g}" if gpu.supports("bf16") else "fp16 only"
        memory, link = f"{gpu.hbm_bytes_per_second / 1e9:g}", f"{gpu.link_bytes_per_second / 1e9:g}"
        card = f"{gpu.driver_vram_bytes / GIB:.1f}"
        rows.append((gpu.name, card, bf16, memory, link, gpu.link, gpu.title))
    return "\n".join(aligned(rows, right=(1, 2, 3, 4)))


def _one(gpu: Gpu) -> str:
    flops = [
        (f"{precision}_tflops", f"{precision} matrix rate", f"{value / 1e12:g} TFLOP/s dense")
        for precision, value in gpu.peak_flops.items()
    ]
    rates = (("measured", gpu.matmul_efficiency), ("sustained", gpu.sustained_efficiency))
    flops += [
        (f"{kind}_matmul_tflops", f"{kind} matmul rate", f"{share:.1%} of the datasheet's")
        for kind, share in rates
        if share is not None
    ]
    figures = [
        ("vram_gib", "memory torch can use", format_gib(gpu.vram_bytes)),
        ("driver_vram_mib", "memory the driver reports", f"{gpu.driver_vram_bytes // MIB} MiB"),
        (_KEPT, "kept by the driver", format_gib(gpu.driver_kept_bytes)),
        *flops,
        ("hbm_gb_per_second", "memory bandwidth", f"{gpu.hbm_bytes_per_second / 1e9:g} GB/s"),
        ("link_gb_per_second", f"{gpu.link} per direction", f"{gpu.link_bytes_per_second / 1e9:g} GB/s"),
        ("pcie_gb_per_second", "host link per direction", f"{gpu.pcie_bytes_per_second / 1e9:g} GB/s"),
        *_networks(gpu),
        ("context_mib", "context of a process", f"{gpu.context_bytes // MIB} MiB"),
        ("peer_to_peer", "peer access", "yes" if gpu.peer_to_peer else "no"),
        ("expandable_segments", "expandable segments", "yes" if gpu.expandable_segments else "no"),
        ("host_gib_per_gpu", "host memory per GPU", format_gib(gpu.host_bytes_per_gpu, 0)),
        ("max_gpus_per_node", "GPUs per node, at most", str(gpu.max_gpus_per_node)),
        *_chip(gpu),
    ]
    rows: list[tuple[str, ...]] = [("", "FIGURE", "VALUE", "SOURCE")]
    sources = {**gpu.sources, _KEPT: "the difference of these two"}
    rows += [("", name, value, sources.get(key, "")) for key, name, value in figures]
    also = wrapped(f"also called: {', '.join(gpu.aliases)}") if gpu.aliases else []
    return "\n".join([f"{gpu.name}: {gpu.title}", *aligned(rows), *also])


def _networks(gpu: Gpu) -> list[tuple[str, str, str]]:
    rates = (
        ("network_gb_per_second", "network per GPU, usual", gpu.network_bytes_per_second),
        ("slowest_network_gb_per_second", "network per GPU, slowest", gpu.slowest_network_bytes_per_second),
    )
    return [(key, name, f"{rate / 1e9:g} GB/s") for key, name, rate in rates if rate is not None]


def _chip(gpu: Gpu) -> list[tuple[str, str, str]]:
    chip = gpu.chip
    if chip is None:
        return []
    clock = chip.memory_clock_mhz
    return [
        ("compute_capability", "compute capability", "{}.{}".format(*chip.compute_capability)),
        ("multiprocessors", "multiprocessors", str(chip.processors.count)),
        ("threads_per_multiprocessor", "threads per multiprocessor", f"{chip.processors.threads:,}"),
        ("l2_cache_mib", "L2 cache", f"{chip.l2_cache_bytes / MIB:g} MiB"),
        *([("memory_clock_mhz", "memory clock", f"{clock:,} MHz")] if clock else []),
    ]
