"""Layers that Transformers divides as it loads them: traced, beside rehearsals, and run on CPU ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerokit
from tests.support.fsdp2_files import run
from tests.support.fully_sharded import IN_PARTS, Case
from tests.support.packages import needs
from zerokit.catalog import models
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.domain.tensor_plans import MODEL_TYPES
from zerokit.emit.files import plan_files
from zerokit.memory.estimate import estimate_traced

needs("torch")
needs("transformers")
SCRIPT = Path(__file__).parent.parent / "scripts" / "loaded_in_parts.py"
WITHIN = 5e-5
_PHASES = ("init", "forward", "backward", "step")
"""Of an estimate; a rehearsal's begins with load."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (number > 0)) for number, case in enumerate(IN_PARTS)],
    ids=str,
)
def test_peaks_are_those_of_the_library(case: Case) -> None:
    from torch.distributed import is_initialized

    from zerokit.trace.profile import profile_from_config

    config = dict(models.load(case.model).hf_config)
    profile = profile_from_config(config, [case.variant], name=case.model)
    assert not is_initialized()
    found = estimate_traced(profile, case.job, case.strategy, case.cluster).ranks[0]
    assert [found.phases[phase] for phase in _PHASES] == pytest.approx(IN_PARTS[case], rel=WITHIN)
    for phase in _PHASES:
        assert sum(found.phase_components[phase].values()) == found.phases[phase]


def test_model_types_are_those_that_transformers_divides() -> None:
    from tools.tensor_plans import TARGET, text

    assert text() == TARGET.read_text(encoding="utf-8")
    assert {"llama", "qwen2", "qwen3"} <= MODEL_TYPES and not {"gpt2", "mixtral"} & MODEL_TYPES


def test_the_written_file_trains_on_four_ranks_as_one_whole_model_does(tmp_path: Path) -> None:
    settings = Fsdp2Settings(precision="fp32", tp_size=2)
    strategy = Strategy(settings=settings, data_parallel=2, tensor_parallel=2)
    for name, text in plan_files(strategy, Job(), nodes=1, folder=tmp_path).texts.items():
        (tmp_path / name).write_text(text)
    words = ["torch.distributed.run", "--standalone", "--nproc_per_node", "4", str(SCRIPT), str(tmp_path)]
    seen = run(words, tmp_path)
    assert seen["parts"] == pytest.approx(seen["whole"], rel=1e-4)
    assert seen["whole"][-1] < seen["whole"][0]


def test_divided_layers_take_collectives_and_time_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven all-reduces of activations a layer, two forward and one backward for each product that is cut by
    columns; and 4 ms a layer for DTensors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    job = {"model": "llama-3.2-1b", "gpu": "h200", "seq_len": 4096, "engine": "fsdp2"}
    parts = zerokit.estimate(**job, gpus=4, tp=2).planned.candidate.time
    plain = zerokit.estimate(**job, gpus=2).planned.candidate.time
    reduced = 16 * 7 * 4096 * 2048 * 2 / 450e9  # bytes/s of NVLink 4, each way
    assert reduced < parts.parts["link"] - plain.parts["link"] < 4 * reduced
    assert parts.step_seconds > 16 * 4e-3
