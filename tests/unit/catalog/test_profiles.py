"""Profiles by release of Transformers: each range has its own, and a plan says which it took."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from zerokit.catalog import models, profiles
from zerokit.catalog.profiles import NEWEST, OLDEST, alike, is_before
from zerokit.cli import run
from zerokit.trace import store
from zerokit.values import replace

RANGES = [(name, release) for name in profiles.names() for release in profiles.ranges(name)]


def install(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Transformers, as far as its metadata go."""
    (folder / "site" / f"transformers-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(folder / "site"), *sys.path])


def test_t5_and_gemma_2_have_a_profile_for_each_range() -> None:
    """As the sweep of releases found: tools/sweep_transformers.py."""
    assert profiles.ranges("t5-base") == ("5.0", "5.15", "5.20")
    assert profiles.ranges("gemma-2-2b") == ("5.21",)
    assert profiles.ranges("llama-3.1-8b") == ()


def test_a_range_holds_a_trace_of_its_own_releases() -> None:
    for name, release in RANGES:
        older = profiles.load(name, _one_before(release))
        newest = profiles.load(name)
        assert older is not None and newest is not None
        assert is_before(older.transformers_version, release), name
        assert not is_before(newest.transformers_version, release), name
        assert older.parameter_count == newest.parameter_count == models.load(name).parameters
        assert set(older.traces) <= set(newest.traces), name


def _one_before(release: str) -> str:
    major, minor = map(int, release.split("."))
    return f"{major}.{minor - 1}" if minor else f"{major - 1}.57"


@pytest.mark.parametrize(
    ("version", "traced"),
    [("4.57.6", "4.57.6"), ("5.14.1", "5.13.1"), ("5.19.0", "5.19.0"), ("5.20.0", "5.23.0")],
)
def test_a_plan_takes_the_profile_of_the_installed_release(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: str,
    traced: str,
) -> None:
    install(tmp_path, version, monkeypatch)
    asked = ["plan", "--model", "t5-base", "--gpus", "1", "--gpu", "h200", "--micro-batch", "16", "--seq-len",
             "512", "--checkpointing", "none", "--out", str(tmp_path / "plan"), "--json"]  # fmt: skip
    assert run(asked) == 0
    body = json.loads(capsys.readouterr().out)
    said = [note for note in body["assumptions"] if note.startswith(f"Transformers {version} is installed")]
    if version.split(".")[:2] == traced.split(".")[:2]:
        assert not said
    else:
        assert len(said) == 1 and f"traces are of {traced}, with the same result" in said[0]
    activations = body["chosen"]["estimate"]["per_rank"][0]["components"]["activations"]
    # 5.23 keeps less than half of what 5.19 and older do
    assert (activations > 14e9) is (traced != "5.23.0")


def test_a_release_that_was_not_swept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "9.1.0", monkeypatch)
    assert run(["plan", "--model", "llama-3.2-1b", "--gpus", "1", "--gpu", "h200", "--json"]) == 0
    assert "Transformers 9.1.0 is installed" in (said := capsys.readouterr().out)
    assert "versions may keep more or less" in said and "zerokit estimate" in said


def test_what_the_installed_release_has_traced_is_taken_and_the_note_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "9.1.0", monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = ["plan", "--model", "llama-3.2-1b", "--gpus", "1", "--gpu", "h200", "--method", "lora", "--json"]

    def assumed() -> str:
        assert run(asked) == 0
        return "\n".join(json.loads(capsys.readouterr().out)["assumptions"])

    before = assumed()
    assert "(transformers 5.23.0)" in before
    own_job = "`zerokit estimate --model llama-3.2-1b --gpus 1 --gpu h200 --method lora"
    assert own_job in before
    assert "` traces with the installed one" in before
    entry, profile = models.load("llama-3.2-1b"), profiles.load("llama-3.2-1b")
    assert profile is not None
    path = store.cache_path(entry.hf_config, entry.head)
    store.keep(replace(profile, transformers_version="9.1.0"), path)
    after = assumed()
    assert "(transformers 9.1.0)" in after and "Transformers 9.1.0 is installed" not in after


def test_the_note_on_another_release_gives_way_to_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "9.1.0", monkeypatch)
    asked = ["plan", "--model", "llama-3.1-70b", "--gpus", "16", "--nodes", "2", "--gpu", "h200"]
    monkeypatch.chdir(tmp_path)  # a longer folder takes a line from the notes
    assert run([*asked, "--out", "plan"]) == 0
    shown = capsys.readouterr().out
    assert "--loss chunked (TRL) or liger (Trainer) would " in shown
    assert "Transformers 9.1.0 is installed" not in shown


@pytest.mark.parametrize(
    ("model_type", "version", "other", "same"),
    [
        ("llama", f"{OLDEST}.2", f"{NEWEST}.9", True),
        ("llama", "5.24.0", "5.23.0", False),
        ("llama", "4.55.0", "5.23.0", False),
        ("mixtral", "5.0.0", "5.23.0", True),
        ("mixtral", "4.57.1", "5.23.0", False),
        ("t5", "5.19.0", "5.23.0", False),
        ("t5", "5.19.0", "5.15.0", True),
        ("gemma2", "5.20.2", "5.21.0", False),
        ("llama", "main", "5.23.0", False),
    ],
)
def test_releases_are_alike_only_where_the_sweep_says_so(
    model_type: str, version: str, other: str, same: bool
) -> None:
    assert alike(model_type, version, other) is same


SHAPED = [m.name for m in models.index() if not m.has_closed_form and m.name in profiles.names()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if at % 4 else ()) for at, name in enumerate(SHAPED)]
)
def test_a_model_without_a_closed_form_is_planned_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Its shape stands beside its profile: nothing is built, nothing is traced."""
    shape = profiles.shape(name)
    assert shape is not None
    assert (shape.name, shape.parameters) == (name, models.load(name).parameters)
    for package in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)  # neither is found, and to import one fails
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = ["--model", name, "--gpus", "128", "--gpu", "h200", "--json"]
    strategy = ["--zero", "3", "--micro-batch", "1", "--checkpointing"]
    for asked in (["estimate", *job, *strategy, "none"], ["estimate", *job, *strategy, "full"],
                  ["plan", *job, "--out", str(tmp_path)]):  # fmt: skip
        assert run(asked) in (0, 3)  # it is said whether 128 of them are enough
        out, err = capsys.readouterr()
        assert "tracing" not in err
        if asked[0] == "estimate":
            assert json.loads(out)["basis"] == "traced"
        else:
            assert out


def test_what_is_not_stored_is_refused_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = ["plan", "--model", SHAPED[0], "--gpus", "8", "--gpu", "h200", "--attention", "eager"]
    assert run([*asked, "--out", str(tmp_path)]) == 2
    assert "torch and transformers are not installed here" in capsys.readouterr().err
    job = ["--model", "llama-3.2-1b", "--method", "lora", "--trainer", "trl", "--load-dtype", "fp32"]
    without = ["estimate", *job, "--gpus", "1", "--gpu", "h200", "--engine", "ddp"]
    assert run(without) == 2
    assert "torch and transformers are not installed here" in " ".join(capsys.readouterr().err.split())


def test_a_shape_is_stored_only_where_the_configuration_does_not_say_it() -> None:
    assert profiles.shape("llama-3.2-1b") is None
    assert profiles.shape("no-such-model") is None
