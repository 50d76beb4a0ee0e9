"""docs/accuracy.md holds every committed measurement."""

from __future__ import annotations

import csv
import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks import accuracy_page, accuracy_runs, plots

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
GIB = 2**30


def page_rows() -> dict[str, list[str]]:
    with (DOCS / "accuracy-runs.csv").open(encoding="utf-8") as file:
        return {cells[0]: cells for cells in itertools.islice(csv.reader(file), 1, None)}


def test_every_committed_run_is_on_the_page_as_it_was_measured() -> None:
    shown = page_rows()
    expected = 0
    for source in accuracy_runs.SOURCES:
        for one in accuracy_runs.rows_of(source):
            expected += 1
            _, status, gpus, measured, predicted, error = shown[one["id"]]
            now = float(error.rstrip("%")) / 100
            assert (status, int(gpus)) == (accuracy_runs.status_of(one, source, now), one["world_size"])
            peaks = [peak / GIB for peak in one["peak_allocated_bytes"]]
            assert min(abs(peak - float(measured)) for peak in peaks) < 0.006
            said = float(predicted) / float(measured) - 1
            assert abs(said - now) < 0.012 / float(measured) + 0.0001
    assert len(shown) == expected >= 80
    text = (DOCS / "accuracy.md").read_text(encoding="utf-8")
    assert re.search(rf"^{expected} runs on 1, 2, 4 and 8 GPUs, (\d\d) model families", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("status", "said", "error", "expected"),
    [
        ("blind", 101, 0.0001, "corrected"),  # was 1 % off, and is not now
        ("blind", 101, -0.006, "blind"),  # still is
        ("blind", 101, 0.05, "blind"),  # worse
        ("blind", 100.05, 0.0, "blind"),  # 0.05 % off: no error that was looked for
        ("blind", None, 0.0, "blind"),  # the file tells, where no prediction was kept
        ("corrected", 101, 0.05, "corrected"),
        ("seen", None, 0.0, "seen"),
    ],
)
def test_a_blind_run_whose_error_was_mended_is_no_longer_called_blind(
    status: str, said: float | None, error: float, expected: str
) -> None:
    measured = {"peak_allocated_bytes": [100], "expected": said and {"peak_allocated_bytes": [said]}}
    source = accuracy_runs.Source(path=DOCS, status=status, words="")
    assert accuracy_runs.status_of(measured, source, error) == expected


def test_the_plots_hold_every_run() -> None:
    runs = len(page_rows())
    for name, most in (("accuracy-peaks.svg", 2 * runs), ("accuracy-groups.svg", 20 * runs)):
        root = ElementTree.parse(DOCS / name).getroot()
        circles = len(root.findall(".//{http://www.w3.org/2000/svg}circle"))
        assert runs <= circles <= most
        assert (DOCS / name).stat().st_size < 300_000
        assert f"({name})" in (DOCS / "accuracy.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_is_what_the_command_writes() -> None:
    used = re.search(
        r"transformers (\d[\d.]*\d)\.? A model", (DOCS / "accuracy.md").read_text(encoding="utf-8")
    )
    assert used is not None
    if metadata.version("transformers") != used[1]:
        pytest.skip(f"the page was written with transformers {used[1]}")
    command = [sys.executable, "-m", "benchmarks.accuracy_page", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_a_plot_places_a_right_prediction_on_the_diagonal() -> None:
    series = [plots.Series(title="a & b", colour="#123456", points=[(10.0, 10.0), (20.0, 40.0)])]
    text = plots.scatter(series, title="t", across="x", up="y")
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    right, off = root.findall(f".//{space}g/{space}circle")
    diagonal = next(p for p in root.findall(f"{space}path") if p.get("stroke-dasharray")).get("d") or ""
    x0, y0, x1, y1 = (float(part) for part in re.findall(r"[\d.]+", diagonal))

    def above(circle: ElementTree.Element) -> float:
        x, y = float(circle.get("cx") or 0), float(circle.get("cy") or 0)
        return (y0 + (x - x0) / (x1 - x0) * (y1 - y0)) - y

    assert abs(above(right)) < 0.2 and above(off) > 5


def test_the_prediction_made_before_the_run_is_kept_apart() -> None:
    one = {"peak_allocated_bytes": [100, 90], "expected": {"peak_allocated_bytes": [101, 99]}}
    assert accuracy_runs._before(one) == (99, 90)
    assert accuracy_runs._before({**one, "expected": {"peak_allocated_bytes": [99]}}) == (99, 90)
    assert accuracy_runs._before({"peak_allocated_bytes": [1]}) is None


def test_the_spread_of_errors() -> None:
    assert accuracy_page.spread([-0.5, 0.001, 0.02]) == ("2.00%", "50%", "50%")
    assert accuracy_page.spread([]) == ("-", "-", "-")


def test_rows_say_what_the_page_groups_by() -> None:
    known = json.loads((accuracy_runs.accuracy.DATA).read_text(encoding="utf-8").splitlines()[0])
    for key in accuracy_runs.GROUPS.values():
        assert key(known)
