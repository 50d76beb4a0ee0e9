"""The wheel: built from the source archive, alone in an environment, it plans from an empty folder."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ("torch", "deepspeed", "accelerate", "transformers", "peft")
HEAVY = (*TRAINING, "numpy", "matplotlib")
PLAN = ["plan", "--params", "7b", "--gpus", "8", "--gpu", "h100-sxm-80gb"]


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive, and the wheel that was built out of it (not out of the checkout)."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def base_distributions(wheel: Path) -> dict[str, importlib.metadata.Distribution]:
    """What `pip install WHEEL` without extras brings along, taken from this environment."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    wanted = re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)
    found: dict[str, importlib.metadata.Distribution] = {}
    while wanted:
        requirement = Requirement(wanted.pop())
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if normal(requirement.name) not in found:
            distribution = importlib.metadata.distribution(requirement.name)
            found[normal(requirement.name)] = distribution
            wanted += distribution.requires or []
    return found


@pytest.fixture(scope="session")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and its base dependencies, nothing else."""
    folder = tmp_path_factory.mktemp("empty") / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in base_distributions(archives[1]).values():
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", ".")}
        for top in tops - {"__pycache__"}:
            (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    done = subprocess.run(
        [*pip, "install", "-q", "--no-deps", "--no-index", str(archives[1])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return python


def in_environment(python: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [python.parent / "zerokit", *args],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_carries_every_data_file(archives: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(archives[1]).namelist())
    for kind in ("templates", "recipes"):
        for file in files_below(ROOT / kind):
            assert f"zerokit/_data/{kind}/{file}" in names
    for file in files_below(ROOT / "zerokit"):
        assert f"zerokit/{file}" in names, "not in the wheel"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_archives_carry_nothing_else(archives: tuple[Path, Path]) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(archives[1]).namelist()}
    assert {"zerokit"} == {top for top in tops if not top.endswith(".dist-info")}
    with tarfile.open(archives[0]) as archive:
        parts = {part for name in archive.getnames() for part in name.split("/")}
    assert not parts & {".venv", "runs", "__pycache__", ".git", "zerokit-plan"}


def test_nothing_but_the_base_dependencies_is_there(installed: Path, tmp_path: Path) -> None:
    probe = (
        "import importlib.util, json, zerokit; "
        f"print(json.dumps([zerokit.__file__, [n for n in {TRAINING!r} if importlib.util.find_spec(n)]]))"
    )
    done = subprocess.run([installed, "-I", "-c", probe], cwd=tmp_path, capture_output=True, text=True)
    where, training = json.loads(done.stdout)
    assert Path(where).is_relative_to(installed.parent.parent)
    assert training == []


def test_plans_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = in_environment(installed, tmp_path, *PLAN, "--json", "--out", "out", "--html", "plan.html")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["schema"] == "zerokit.plan/1"
    assert plan["chosen"]["data_parallel"] >= 1
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "ds_config.json",
        "accelerate.yaml",
        "plan.yaml",
    }
    assert "<svg" in (tmp_path / "plan.html").read_text()


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["gpus"], "h100-sxm-80gb"),
        (["models"], "llama-2-70b"),
        (["--version"], "zerokit"),
        (["--help"], "plan"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_the_catalogues_are_there(installed: Path, tmp_path: Path, args: list[str], shown: str) -> None:
    done = in_environment(installed, tmp_path, *args)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_every_recipe_is_there(installed: Path, tmp_path: Path) -> None:
    done = in_environment(installed, tmp_path, "recipes", "list")
    assert done.returncode == 0, done.stderr
    names = {Path(file).stem for file in files_below(ROOT / "recipes") if file.endswith(".yaml")}
    assert names, "no recipes to look for"
    assert [name for name in names if name not in done.stdout] == []


def test_launching_without_the_training_extra_says_how_to_get_it(installed: Path, tmp_path: Path) -> None:
    assert in_environment(installed, tmp_path, *PLAN).returncode == 0
    (tmp_path / "train.py").write_text("import deepspeed\n")
    done = in_environment(installed, tmp_path, "launch", "--plan", "zerokit-plan", "train.py")
    assert done.returncode == 2, done.stderr
    assert "pip install torch deepspeed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "args",
    [PLAN, ["estimate", *PLAN[1:], "--zero", "3"], ["gpus"], ["models"], ["recipes", "list"], ["--help"]],
    ids=lambda args: args[0],
)
def test_planning_imports_nothing_heavy(tmp_path: Path, args: list[str]) -> None:
    """They are installed here, so only laziness keeps them out."""
    probe = (
        "import sys; from zerokit.cli import run; code = run(sys.argv[1:]); "
        f"print([n for n in {HEAVY!r} if n in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, *args], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_everything_installed_is_pinned() -> None:
    """What zerokit[train,dev] brings along has its exact version in constraints.txt."""
    from packaging.requirements import Requirement

    pins: dict[str, Requirement] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                assert normal(requirement.name) not in pins, f"pinned twice: {line}"
                pins[normal(requirement.name)] = requirement
    found: dict[str, set[str]] = {}
    wanted = [Requirement("zerokit[train,dev]")]
    while wanted:
        requirement = wanted.pop()
        extras = found.setdefault(normal(requirement.name), set())
        new = {"", *requirement.extras} - extras
        extras |= new
        for text in importlib.metadata.requires(requirement.name) or [] if new else []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in new):
                wanted.append(needed)
    wrong = [
        f"{name} {version}"
        for name in sorted(found.keys() - {"zerokit"})
        if (version := importlib.metadata.version(name))
        and (name not in pins or not pins[name].specifier.contains(version))
    ]
    assert wrong == []
    assert len(found) > 40


def test_the_pins_name_no_index_and_no_local_version() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert re.search(r"https?:|file:|--|\+|@", text) is None


def test_the_metadata_is_what_an_index_takes(archives: tuple[Path, Path]) -> None:
    """As `twine check` and the index do: every field is valid, and the description is there."""
    from packaging.metadata import Metadata

    for archive in archives:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as opened:
                (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
                text = opened.read(name)
        else:
            with tarfile.open(archive) as packed:
                (name,) = [
                    name for name in packed.getnames() if name.count("/") == 1 and name.endswith("PKG-INFO")
                ]
                member = packed.extractfile(name)
                assert member is not None
                text = member.read()
        metadata = Metadata.from_email(text, validate=True)
        assert metadata.name == "zerokit" and metadata.description_content_type == "text/markdown"
        assert (metadata.description or "").startswith("# zerokit")


@pytest.mark.slow
def test_twine_takes_both_archives(archives: tuple[Path, Path]) -> None:
    """What the index shows of the README is rendered as the index does it; a warning fails."""
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, archives)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


@pytest.mark.slow
def test_the_container_is_built_and_plans() -> None:
    """Where a builder works; PyTorch alone is some minutes of it."""
    for builder in ("podman", "docker"):
        try:
            works = (
                subprocess.run([builder, "info"], capture_output=True, timeout=60, check=False).returncode
                == 0
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if works:
            break
    else:
        pytest.skip("no container builder works here")
    build = [builder, "build", "-t", "zerokit-test", "-f", "Containerfile", "."]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = subprocess.run(
        [builder, "run", "--rm", "zerokit-test", *PLAN], capture_output=True, text=True, check=False
    )
    assert plan.returncode == 0 and "Fits: " in plan.stdout, plan.stderr
