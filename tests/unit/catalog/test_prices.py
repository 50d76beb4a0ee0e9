"""Prices: another catalogue's lines matched with ours, the newer table, and gpuhunt's catalogues fetched."""

from __future__ import annotations

import datetime
import functools
import gc
import http.server
import importlib
import json
import shutil
import subprocess
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.command import as_json, call, move_elsewhere
from tools.prices import listed
from zerokit.catalog import gpus, prices
from zerokit.catalog.prices import Listed, Offer, Prices
from zerokit.errors import InputError
from zerokit.planner.size_result import TYPICAL


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def offer(gpu: str, number: int, usd: float | None, spot: float | None = None, provider: str = "a") -> Offer:
    return Offer(gpu=gpu, provider=provider, gpus=number, usd=usd, spot_usd=spot)


def keep(folder: Path, **changes: object) -> None:
    """A table of the user's own."""
    path = folder / "cache" / "zerokit" / "prices.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    offers = (offer("h200", 1, 0.5),)
    text = prices.as_text(Prices(date=datetime.date(2099, 1, 1), source="me", offers=offers))
    path.write_text(json.dumps(json.loads(text) | changes))


def test_the_shipped_table_is_of_our_gpus_and_has_every_typical_one() -> None:
    table = prices.table()
    assert {each.gpu for each in table.offers} <= set(gpus.names())
    assert all(table.rate(name, 1) for name in TYPICAL)
    assert table.date <= datetime.date.today() and "SkyPilot" in table.source
    body = json.loads(prices.SHIPPED.read_text())
    assert "Apache-2.0" in body["licence"] and body["date_known_by"]


def test_all_gpus_of_an_instance_are_paid() -> None:
    offers = (offer("h200", 8, 2.0, 1.0), offer("h200", 1, 3.0, provider="b"), offer("l4", 1, 0.5))
    table = Prices(date=datetime.date(2026, 1, 1), source="", offers=offers)
    one, two, full = (table.rate("h200", number) for number in (1, 2, 8))
    assert one and (one.provider, one.usd) == ("b", 3.0)
    assert two and (two.provider, two.usd) == ("a", 8.0)  # 8 × 2.0 for two that are used
    assert full and full.usd == 2.0
    spot = table.rate("h200", 8, spot=True)
    assert spot and spot.usd == 1.0
    assert table.rate("h200", 16) is None and table.rate("l4", 1, spot=True) is None


@pytest.mark.parametrize(
    ("name", "gib", "provider", "instance", "gpu"),
    [
        ("A100-80GB", 80, "lambda", "gpu_8x_a100_80gb_sxm4", "a100-80gb"),
        ("A100", 40, "aws", "p4d.24xlarge", "a100-40gb"),
        ("A100", 80, "aws", "p4de.24xlarge", "a100-80gb"),
        ("A100-80GB", 80, "runpod", "1x_A100-80GB_SECURE A100 PCIe", "a100-pcie-80gb"),
        ("A100", 80, "runpod", "NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("A100", 80, "azure", "Standard_NC24ads_A100_v4", "a100-pcie-80gb"),
        ("A100", 80, "azure", "Standard_ND96amsr_A100_v4", "a100-80gb"),
        ("H100", 80, "runpod", "NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("H100", 80, "lambda", "gpu_1x_h100_pcie", "h100-pcie-80gb"),
        ("H100", 80, "somebody", "big", None),  # which of two forms is not said
        ("H100NVL", 94, "azure", "Standard_NC40ads_H100_v5", "h100-nvl-94gb"),
        ("H200NVL", 141, "runpod", "NVIDIA H200 NVL", None),
        ("H200", 141, "nebius", "gpu-h200-sxm", "h200"),
        ("Tesla-V100", 16, "verda", "1V100.6V", "v100-16gb"),
        ("V100", 32, "aws", "p3dn.24xlarge", "v100-32gb"),
        ("RTX-A6000", 48, "verda", "1A6000.10V", "a6000"),
        ("RTXPRO6000", 96, "runpod", "RTX PRO 6000 Server", "rtx-pro-6000-server"),
        ("A10G", 24, "aws", "g5.xlarge", "a10g"),
        ("A10", 24, "lambdalabs", "gpu_1x_a10", "a10"),
        ("MI300X", 192, "runpod", "AMD Instinct MI300X OAM", "mi300x"),
        ("A100", 20, "azure", "half a card", None),
    ],
)
def test_a_line_of_another_catalogue_is_our_gpu(
    name: str, gib: float, provider: str, instance: str, gpu: str | None
) -> None:
    line = Listed(name=name, gib=gib, provider=provider, instance=instance, gpus=1, usd=1.0, spot=False)
    assert prices.matched(line) == gpu


def test_skypilots_files_become_offers_per_gpu(tmp_path: Path) -> None:
    info = "{{'Gpus': [{{'Name': '{}', 'Count': {}, 'MemoryInfo': {{'SizeInMiB': {}}}}}]}}"
    rows = {
        "verda": [("2A100", "A100-80GB-160GB", 2, 2.4, 1.2, 163840), ("cpu", "", "", 0.2, "", 0)],
        "runpod": [("1x_MI300X", "MI300X", 1.0, 2.39, 2.39, 192)],
        "lambda": [
            ("gpu_8x_h100_sxm5", "H100", 8.0, 24, "", 81920),
            ("gpu_8x_h100_pcie", "H100", 8.0, 32, "", 81920),
        ],
    }
    for provider, lines in rows.items():
        (tmp_path / provider).mkdir()
        text = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,GpuInfo\n"
        for instance, name, number, price, spot, mib in lines:
            told = f'"{info.format(name, number, mib)}"' if name else ""
            text += f"{instance},{name},{number},{price},{spot},{told}\n"
        (tmp_path / provider / "vms.csv").write_text(text)
    assert prices.offers_of(listed(tmp_path)) == (
        offer("a100-80gb", 2, 1.2, 0.6, "verda"),
        offer("h100-pcie-80gb", 8, 4.0, None, "lambda"),
        offer("h100-sxm-80gb", 8, 3.0, None, "lambda"),
        offer("mi300x", 1, 2.39, None, "runpod"),  # a spot price that is none
    )


def test_the_newer_table_holds_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    keep(tmp_path)
    assert prices.table().source == "me"
    older, foreign = {"date": "2001-01-01"}, {"schema": "zerokit.prices/9"}
    for changes in (older, foreign, {"offers": [["h200", "a", 1, -1, 0]]}, {"offers": 3}, {"date": "soon"}):
        keep(tmp_path, **changes)
        assert "SkyPilot" in prices.table().source, changes


@pytest.fixture(scope="module")
def gpuhunt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The real one, in a folder of its own: its wheel would put a package ``tests`` beside ours."""
    folder = tmp_path_factory.mktemp("gpuhunt")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(folder),
        "gpuhunt>=0.1.34",
    ]
    if find_spec("gpuhunt") is None:
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"gpuhunt cannot be installed here: {done.stderr[-200:]}")
        shutil.rmtree(folder / "tests", ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("gpuhunt")
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpuhunt"]:
        del sys.modules[name]


@pytest.fixture
def served(gpuhunt: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that gpuhunt takes for the place where its catalogues are published."""
    folder = tmp_path / "published"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", f"http://127.0.0.1:{server.server_port}")
    yield folder
    server.shutdown()
    server.server_close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # gpuhunt leaves answers of failed requests open


def publish(
    folder: Path, provider: str, version: str, *lines: tuple[str, int, str, int, float, bool]
) -> None:
    """A provider's catalogue as gpuhunt publishes it."""
    gpuhunt = pytest.importorskip("gpuhunt")
    from gpuhunt._internal.storage import dump

    items = [
        gpuhunt.CatalogItem(
            provider=provider, instance_name=instance, location="here", price=price, cpu=8, memory=64,
            gpu_count=number, gpu_name=name, gpu_memory=gib, spot=spot, disk_size=None,
            gpu_vendor=gpuhunt.AcceleratorVendor.NVIDIA,
        )
        for instance, number, name, gib, price, spot in lines
    ]  # fmt: skip
    (folder / provider / version).mkdir(parents=True)
    (folder / provider / "version").write_text(version)
    dump(items, str(folder / "items.csv"))
    with zipfile.ZipFile(folder / provider / version / "catalog.zip", "w") as archive:
        archive.write(folder / "items.csv", f"{provider}.csv")


def test_gpuhunts_catalogues_become_the_table_that_size_reads(
    served: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(served, "aws", "20991231", ("p5.48xlarge", 8, "H100", 80, 40.0, False),
            ("p5.48xlarge", 8, "H100", 80, 16.0, True))  # fmt: skip
    publish(served, "runpod", "20991130-12", ("NVIDIA H100 PCIe", 1, "H100", 80, 2.0, False))
    code, out, err = call(capsys, "gpus", "--update-prices")
    assert (code, err) == (0, "") and out == (
        "prices of 2 GPUs, none older than 2099-11-30, from dstack's gpuhunt (aws, runpod)\n"
    )
    row = as_json(capsys, "size", "--params", "7b", "--gpu", "h100-sxm-80gb", "--method", "lora")["sizes"][0]
    assert row["gpus"] == 1 and row["provider"] == "aws" and row["price_per_gpu_hour"] == 40.0
    assert row["spot"] == {"provider": "aws", "usd": 16.0}


def test_what_cannot_be_fetched_leaves_the_table(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path)
    with pytest.raises(InputError, match=r"cannot be fetched \(HTTP Error 404.*prices are unchanged"):
        prices.update()
    publish(served, "aws", "latest", ("p5.48xlarge", 8, "H100", 80, 40.0, False))
    with pytest.raises(InputError, match=r"of aws has no date \(latest\)"):
        prices.update()
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="refused"):
        prices.update()
    assert prices.table().source == "me"


def test_without_gpuhunt_the_line_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    with pytest.raises(InputError, match=r"pip install gpuhunt$"):
        prices.update()
