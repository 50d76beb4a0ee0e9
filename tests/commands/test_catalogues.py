"""``zerokit gpus`` and ``zerokit models``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import zerokit
from tests.support.command import called
from zerokit.catalog import gpus, models, profiles
from zerokit.domain.profile_json import check


def _zerokit(*arguments: str) -> str:
    code, out, err = called(*arguments, folder=Path.cwd())
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize(("command", "names"), [("gpus", gpus.names()), ("models", models.names())])
def test_the_list_has_one_line_each(command: str, names: tuple[str, ...]) -> None:
    assert sorted(line.split()[0] for line in _zerokit(command).splitlines()[1:]) == sorted(names)


@pytest.mark.parametrize(("command", "names"), [("gpus", gpus.names()), ("models", models.names())])
def test_json_is_one_object_and_nothing_else(command: str, names: tuple[str, ...]) -> None:
    answer = json.loads(_zerokit(command, "--json"))
    assert answer["schema"] == f"zerokit.{command}/1"
    assert [entry["name"] for entry in answer[command]] == list(names)


def test_one_gpu_is_shown_with_its_sources() -> None:
    listed = _zerokit("gpus").splitlines()
    assert listed[0].split()[:2] == ["NAME", "GiB"]  # as plans count a card: as nvidia-smi shows it
    assert next(line.split()[1] for line in listed if line.startswith("h100-sxm-80gb")) == "79.6"
    shown = _zerokit("gpus", "NVIDIA H100 80GB HBM3")
    assert shown.startswith("h100-sxm-80gb: ")
    assert "NVIDIA H100 datasheet" in shown and "81559 MiB" in shown
    answer = json.loads(_zerokit("gpus", "h200", "--json"))
    assert answer["driver_vram_bytes"] == 143771 << 20
    assert answer["peak_flops"]["bf16"] == 989e12


def test_one_model_is_shown_with_its_configuration() -> None:
    shown = _zerokit("models", "meta-llama/Llama-3.1-8B")
    assert "8,030,261,248" in shown and "Llama 3.1 Community License" in shown
    answer = json.loads(_zerokit("models", "llama-3.1-8b", "--json"))
    assert answer["hf_config"]["num_key_value_heads"] == 8


def test_models_of_one_family() -> None:
    shown = _zerokit("models", "--family", "mixtral")
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["mixtral-8x7b", "mixtral-8x22b"]


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_every_committed_profile_holds(every: int) -> None:
    for name in profiles.names()[::every]:
        document = profiles.document((profiles.FOLDER / f"{name}.json.gz").read_bytes())
        check({**document, "parameter_sets": dict(document["parameter_sets"])})


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "a100-80gb", "rtx-4090"])
def test_what_surrounds_a_plan_is_called_alike_on_the_card(
    gpu: str,
) -> None:
    """``nvidia-smi``'s total less PyTorch's is no process's; a context is part of "context and libraries"."""
    estimated = zerokit.estimate(model="gpt2", gpus=1, gpu=gpu).around_peak
    figures = re.compile(r"^  (kept by the driver|context of a process) +([\d.]+) ", re.MULTILINE)
    shown = dict(figures.findall(_zerokit("gpus", gpu)))
    assert float(shown["kept by the driver"]) == round(estimated["kept by the driver"] / 2**30, 2)
    assert 0 < int(shown["context of a process"]) << 20 < estimated["context and libraries"]
