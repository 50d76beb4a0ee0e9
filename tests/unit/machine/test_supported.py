"""The versions a launch works with: refused by name, and the same wherever they are written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.packages import needs
from zerokit.cli import run
from zerokit.machine.supported import SUPPORTED

ROOT = Path(__file__).parents[3]
SCRIPT = str(ROOT / "tests" / "scripts" / "trainer.py")


def install(folder: Path, package: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "site-packages" / f"{package}-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(folder / "site-packages"), *sys.path])


@pytest.mark.parametrize(
    ("package", "version"),
    [("deepspeed", "0.16.8"), ("deepspeed", "0.20.0"), ("accelerate", "1.9.0"), ("accelerate", "2.0.0")],
)
def test_another_version_is_refused_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: str,
    version: str,
) -> None:
    needs("deepspeed")
    needs("accelerate")
    monkeypatch.chdir(tmp_path)
    install(tmp_path, package, version, monkeypatch)
    words = ["launch", "--device", "cpu", "--num-ranks", "2", "--dry-run", SCRIPT]
    assert run(words) == 2
    said = capsys.readouterr().err
    supported = next(supported for supported in SUPPORTED if supported.package == package)
    assert (
        f"{package} {version} is installed" in said
        and f"(tested: {supported.oldest} and {supported.newest})" in said
    )
    assert f"pip install '{supported.specifier}'" in said
    assert run(["doctor", "--strict"]) == 13
    assert f"pip install '{supported.specifier}'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "stage", "refused"),
    [
        ("0.18.7", 1, True),
        ("0.18.9", 2, True),
        ("0.18.9", 3, False),
        ("0.18.6", 2, False),
        ("0.19.0", 2, False),
    ],
)
def test_what_deepspeed_cannot_do_on_cpu_ranks_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: str,
    stage: int,
    refused: bool,
) -> None:
    """ZeRO-1 and 2 of DeepSpeed 0.18.7 to 0.18.9 on gloo, as a script without zerokit showed."""
    needs("deepspeed")
    monkeypatch.chdir(tmp_path)
    install(tmp_path, "deepspeed", version, monkeypatch)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    Path("ds.json").write_text(json.dumps(config))
    words = ["launch", "--device", "cpu", "--num-ranks", "2", "--deepspeed", "ds.json", "--dry-run"]
    assert run([*words, str(ROOT / "tests" / "scripts" / "raw.py")]) == (2 if refused else 0)
    said = capsys.readouterr().err
    assert (f"DeepSpeed {version} fails in its first step with ZeRO-{stage} on CPU ranks" in said) is refused


@pytest.mark.parametrize("version", ["0.16.9", "0.18.9", "0.19.12+cu128", "0.19.9rc1", "unknown"])
def test_what_lies_between_is_not(version: str) -> None:
    assert SUPPORTED[0].problem(version) is None


def test_the_package_asks_for_the_same_versions_and_the_readme_names_them() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    readme = (ROOT / "README.md").read_text()
    for package in SUPPORTED:
        assert f'"{package.specifier}"' in project
        assert f"`{package.specifier}`" in readme
