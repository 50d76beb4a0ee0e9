"""Every GPU file by itself, its figures against independently written ones, and forgiving look-up."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from tests.support import nearmiss
from zerokit.catalog import gpus
from zerokit.errors import FileInputError, InputError
from zerokit.rehearsal.order import FakeGpu
from zerokit.units import GIB, MIB

FILES = sorted(gpus.FOLDER.glob("*.yaml"))

# name: GiB torch reports, MiB nvidia-smi reports, dense bf16 (or fp16) TFLOP/s, GB/s of memory, link GB/s:
# the project's list of measured sizes and datasheet rates, written down apart from the catalogue
LISTED = {
    "v100-16gb": (15.77, 16384, 125, 900, 150),
    "v100-32gb": (31.73, 32768, 125, 900, 150),
    "t4": (14.6, 15360, 65, 320, 15.75),
    "rtx-3090": (23.69, 24576, 71, 936, 31.5),
    "rtx-4090": (23.64, 24564, 165, 1008, 31.5),
    "rtx-5090": (31.35, 32607, 210, 1792, 63),
    "a10": (22.1, 23028, 125, 600, 31.5),
    "l4": (22.05, 23034, 121, 300, 31.5),
    "l40s": (44.39, 46068, 362, 864, 31.5),
    "a6000": (47.45, 49140, 155, 768, 31.5),
    "a100-40gb": (39.4, 40960, 312, 1555, 300),
    "a100-80gb": (79.15, 81920, 312, 2039, 300),
    "a100-pcie-80gb": (79.15, 81920, 312, 1935, 31.5),
    "h100-pcie-80gb": (79.2, 81559, 756, 2000, 63),
    "h100-sxm-80gb": (79.2, 81559, 989, 3350, 450),
    "h200": (139.80, 143771, 989, 4800, 450),
    "b200": (178.35, 183359, 2250, 8000, 900),
    "gb200": (184.3, 189471, 2500, 8000, 900),
    "mi250x": (63.98, 65520, 191.5, 1640, 50),
    "mi300x": (191.98, 196592, 1300, 5300, 64),
    "b300": (267.69, 275040, 2250, 8000, 900),
    "gb300": (276.5, 284208, 2500, 8000, 900),
    "h20-96gb": (94.97, 97871, 148, 4000, 450),
    "h800-sxm-80gb": (79.2, 81559, 989, 3350, 200),
    "a800-80gb": (79.15, 81920, 312, 2039, 200),
    "rtx-pro-6000": (94.97, 97887, 503.8, 1792, 63),
    "mi325x": (255.98, 262128, 1307.4, 6000, 64),
    "mi355x": (287.98, 294896, 2516.6, 8000, 76.8),
}


def test_each_file_is_read_strictly_and_hangs_together() -> None:
    for path in FILES:
        gpu = gpus.read_gpu(path)
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", gpu.name), path
        assert 0 < gpu.vram_bytes <= gpu.driver_vram_bytes * 1.001, path
        assert gpu.context_bytes < gpu.vram_bytes / 8, path
        assert gpu.supports("fp16") and gpu.supports("fp32"), path
        assert gpu.matmul_efficiency is None or 0.4 < gpu.matmul_efficiency < 1, path
        # a bus of the host is never faster than the memory of the card
        assert gpu.pcie_bytes_per_second < gpu.hbm_bytes_per_second, path
        assert all(isinstance(source, str) and len(source) > 5 for source in gpu.sources.values()), path


def test_figures_are_those_of_the_list() -> None:
    for name, (vram_gib, driver_mib, tflops, memory_gb, link_gb) in LISTED.items():
        gpu = gpus.load(name)
        assert gpu.vram_bytes == round(vram_gib * GIB), name
        assert gpu.driver_vram_bytes == driver_mib * MIB, name
        peak = gpu.peak_flops["bf16"] if gpu.supports("bf16") else gpu.peak_flops["fp16"]
        assert peak == pytest.approx(tflops * 1e12, rel=0.003), name
        assert gpu.hbm_bytes_per_second == memory_gb * 1e9, name
        assert gpu.link_bytes_per_second == link_gb * 1e9, name


@pytest.mark.parametrize(
    ("name", "measured", "datasheet"),
    [
        ("a100-80gb", 271, 312),
        ("h100-sxm-80gb", 790, 989),
        ("h200", 790, 989),
        ("b200", 1745, 2250),
        ("mi300x", 668, 1300),
    ],
)
def test_matmul_efficiency_is_measured_over_datasheet(name: str, measured: int, datasheet: int) -> None:
    assert gpus.load(name).matmul_efficiency == pytest.approx(measured / datasheet)


def test_long_runs_are_slower_than_short_ones_where_that_is_known() -> None:
    slower = {gpu.name for gpu in gpus.catalog() if gpu.sustained_efficiency is not None}
    assert slower >= {"h100-sxm-80gb", "h200"}
    for name in ("h100-sxm-80gb", "h200"):
        assert gpus.load(name).sustained_efficiency == pytest.approx(720 / 989)
    for name in slower:
        gpu = gpus.load(name)
        assert gpu.matmul_efficiency and gpu.sustained_efficiency
        assert gpu.sustained_efficiency < gpu.matmul_efficiency


# name: compute capability, multiprocessors, threads on each, MiB of L2, from NVIDIA's papers
CHIPS = {
    "t4": ("7.5", 40, 1024, 4),
    "v100-16gb": ("7.0", 80, 2048, 6),
    "a100-80gb": ("8.0", 108, 2048, 40),
    "a30": ("8.0", 56, 2048, 24),
    "a10g": ("8.6", 80, 1536, 6),
    "rtx-4090": ("8.9", 128, 1536, 72),
    "h100-pcie-80gb": ("9.0", 114, 2048, 50),
    "h200": ("9.0", 132, 2048, 60),
    "b200": ("10.0", 148, 2048, 126.5),
    "rtx-5090": ("12.0", 170, 1536, 96),
}


def test_the_chip_is_that_of_the_data_sheet() -> None:
    for name, figures in CHIPS.items():
        chip = gpus.load(name).chip
        assert chip is not None, name
        capability = "{}.{}".format(*chip.compute_capability)
        processors = chip.processors
        assert (capability, processors.count, processors.threads, chip.l2_cache_bytes / MIB) == figures, name


def test_a_rehearsal_takes_every_gpu_whose_chip_is_known() -> None:
    threads: dict[tuple[int, int], int] = {}
    for gpu in gpus.catalog():
        if gpu.chip is None:
            with pytest.raises(
                InputError, match=r"cannot be rehearsed: .* takes one of a10, .*, v100-32gb"
            ) as e:
                FakeGpu.of(gpu, 1)
            assert gpu.name not in str(e.value).partition("of these")[2].split(", ")
            assert gpu.title.startswith("AMD") or gpu.name in ("b300", "gb300")
            continue
        fake = FakeGpu.of(gpu, 1)
        assert (fake.processors, fake.capability) == (gpu.processors, gpu.chip.compute_capability), gpu.name
        assert 40 <= fake.multiprocessors <= 200 and 4 <= fake.l2_cache_bytes / MIB <= 128, gpu.name
        assert fake.threads_per_multiprocessor in (1024, 1536, 2048), gpu.name
        # alike in an architecture
        known = threads.setdefault(fake.capability, fake.threads_per_multiprocessor)
        assert known == fake.threads_per_multiprocessor, gpu.name


def test_old_gpus_have_no_bf16() -> None:
    assert {gpu.name for gpu in gpus.catalog() if not gpu.supports("bf16")} == {
        "t4",
        "v100-16gb",
        "v100-32gb",
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h200", "h200"),
        ("A100-80GB", "a100-80gb"),
        ("a100 80gb", "a100-80gb"),
        ("a100_80G", "a100-80gb"),
        ("H100 SXM", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("Tesla T4", "t4"),
        ("rtx4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A6000", "a6000"),
        ("L40", "l40"),
        ("A10", "a10"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA H20", "h20-96gb"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000"),
        ("MI355X", "mi355x"),
    ],
)
def test_lookup_forgives(text: str, name: str) -> None:
    assert gpus.lookup(text).name == name


def test_every_name_of_a_gpu_leads_to_it() -> None:
    for gpu in gpus.catalog():
        for name in (gpu.name, gpu.title, *gpu.aliases):
            assert gpus.lookup(name).name == gpu.name
        for name in gpu.aliases:
            assert gpus.for_driver(name, gpu.driver_vram_bytes)[0] == gpu


def test_an_ambiguous_name_lists_its_candidates() -> None:
    with pytest.raises(InputError, match=r"a100-40gb, a100-80gb, a100-pcie-40gb, a100-pcie-80gb") as caught:
        gpus.lookup("A100")
    assert caught.value.exit_code == 2
    with pytest.raises(InputError, match="could be any of: a100-80gb, a100-pcie-80gb"):
        gpus.lookup("A100-80")
    assert gpus.lookup("H100").name == gpus.lookup("h100 80GB").name == "h100-sxm-80gb"
    with pytest.raises(InputError, match="is incomplete: it could be mi300x"):
        gpus.lookup("MI300")
    with pytest.raises(InputError, match="could be any of: rtx-3090, rtx-4090; "):
        gpus.lookup("RTX 24GB")


@pytest.mark.parametrize("count", [1500, pytest.param(6000, marks=pytest.mark.slow)])
def test_a_name_that_is_not_a_gpus_own_never_leads_to_it(count: int) -> None:
    """Over all names, as for models; a vendor's words may stand or be missing."""
    vendors = ("nvidia", "tesla", "geforce", "amd", "instinct", "graphics", "gpu", "generation")

    def own(text: str) -> tuple[str, ...]:
        text = re.sub(r"(\d[\s_.,()/-]*)(gib|g)(?![a-z])", r"\1gb", text.lower())
        return tuple(part for part in nearmiss.parts(text) if part not in (*vendors, "/"))

    names = [name for gpu in gpus.catalog() for name in (gpu.name, gpu.title, *gpu.aliases)]
    owners = {own(name): gpu for gpu in gpus.catalog() for name in (gpu.name, gpu.title, *gpu.aliases)}
    random = Random(22)
    resolved = 0
    for _ in range(count):
        text = nearmiss.changed(random, names)
        try:
            found = gpus.lookup(text)
        except InputError as error:
            assert error.exit_code == 2 and len(str(error)) < 500
            continue
        resolved += 1
        assert own(text) in owners, f"{text!r} became {found.name}"
        assert owners[own(text)].name == found.name
        assert not (nearmiss.parts(text)[0] == "amd" and "NVIDIA" in found.title), text
    assert resolved > count // 60


@pytest.mark.parametrize("text", ["gb400", "NVIDIA GB400", "mi455x", "b400", "gaudi-3", "h200+", "amd t4"])
def test_another_gpu_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not in the catalogue|not modelled"):
        gpus.lookup(text)


@pytest.mark.parametrize("text", ["h2000", "rtx 4900", "a100-60gb", "", "gb", "../secret", "x" * 5000])
def test_an_unknown_name_is_a_clear_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        gpus.lookup(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("text", "meant"), [("rtx-5099", "rtx-5090"), ("rtx4909", "rtx-4090")])
def test_a_near_miss_is_suggested(text: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"did you mean {meant}\\?"):
        gpus.lookup(text)


def test_a_found_card_with_other_memory_keeps_its_own() -> None:
    gpu, reason = gpus.for_driver("Tesla T4", 15109 * MIB)
    assert gpu is not None
    assert gpu.name == "t4"
    assert gpu.driver_vram_bytes == 15109 * MIB
    assert gpu.vram_bytes < 14.6 * GIB
    assert "driver reports 14.75 GiB" in reason


@pytest.mark.parametrize(
    ("name", "mib"), [("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40192), ("NVIDIA B400", 97871), ("Quadro", 8192)]
)
def test_a_card_that_is_not_in_the_catalogue_is_not_guessed(name: str, mib: int) -> None:
    gpu, reason = gpus.for_driver(name, mib * MIB)
    assert gpu is None
    assert name in reason


@pytest.mark.parametrize(
    ("gib", "name"), [(24, "rtx-4090"), (40, "a100-40gb"), (80, "a100-80gb"), (141, "h200")]
)
def test_speeds_for_a_bare_memory_size_come_with_the_reason(gib: int, name: str) -> None:
    gpu, reason = gpus.for_vram(gib * GIB)
    assert gpu.name == name
    assert name in reason and "⟨gpu⟩" in reason


GOOD = (gpus.FOLDER / "t4.yaml").read_text(encoding="utf-8")


def _without(key: str, indent: str = "") -> str:
    return re.sub(rf"^{indent}{key}: .*\n", "", GOOD, count=1, flags=re.M)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "colour: green\n", r":\d+: unknown key 'colour'"),
        (GOOD.replace("vram_gib: 14.6", "vram_gb: 14.6"), r"'vram_gb'; did you mean 'vram_gib'"),
        (_without("link"), "missing: link$"),
        (GOOD.replace("fp16_tflops: 65", "fp16_tflops: fast"), r":\d+: fp16_tflops: expected a positive"),
        (GOOD.replace("fp16_tflops: 65", "fp16_tflops: -65"), "expected a positive number"),
        (GOOD.replace("fp16_tflops: 65", "fp16_tflops: .nan"), r":\d+:\d+: "),
        (GOOD.replace("fp16_tflops: 65", "fp16_tflops: 65.5.5"), "expected a positive number"),
        (GOOD.replace("fp16_tflops: 65", "fp16_tflops: true"), "expected a positive number"),
        (GOOD.replace("link: pcie", "link: ribbon"), "not one of nvlink, pcie, xgmi"),
        (GOOD.replace("name: t4", "name: t5"), "must be the file's name"),
        (GOOD.replace("vram_gib: 14.6", "vram_gib: 15360"), "check the units"),
        (GOOD + GOOD, r":\d+:\d+: .*name"),
        (_without("hbm_gb_per_second", "  "), "sources: say where"),
        (GOOD + "  horsepower: guess\n", "no such figure"),
        (_without("multiprocessors"), r":\d+:\d+: compute_capability needs multiprocessors beside it"),
        (_without("compute_capability"), "multiprocessors needs compute_capability beside it"),
        (GOOD.replace('"7.5"', "7.5"), "compute_capability: expected text, got 7.5"),
        (GOOD.replace('"7.5"', "sm_75"), "compute_capability: expected major and minor"),
        (_without("compute_capability", "  "), "sources: say where these come from: compute_capability"),
        (GOOD.replace("peer_to_peer: true", "peer_to_peer: maybe"), "expected true or false"),
        ("- just\n- a list\n", "expected a mapping"),
        ("", r":1"),
        ("name: [", r":\d+:\d+: "),
        ("name: " + "[" * 3000, r":\d+:\d+: "),
        ("name: !!python/object/apply:os.getcwd []", r":1:\d+: "),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t4.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileInputError, match=message) as caught:
        gpus.read_gpu(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t4.yaml"
    path.write_bytes(b"name: \xff\xfe\x00")
    with pytest.raises(FileInputError, match="UTF-8"):
        gpus.read_gpu(path)
    with pytest.raises(FileInputError, match="absent"):
        gpus.read_gpu(tmp_path / "absent.yaml")
