"""FSDP2's replay beside a rehearsal of the same training: two models of memory that share hardly any code."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support.fully_sharded import CASES, Case
from tests.support.packages import needs
from tests.support.rehearsals import rehearse
from tests.support.rehearsed_case import ALLOCATOR, GPU, PHASES
from zerokit.catalog import profiles
from zerokit.memory.estimate import estimate_traced

needs("torch")
needs("accelerate")

SCRIPT = Path(__file__).resolve().parent / "scripts" / "fully_sharded.py"
WITHIN = 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("case", [next(case for case in CASES if "--accelerate" in case.options)], ids=str)
def test_both_tell_the_same_peak_of_every_phase(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", ALLOCATOR)
    profile = profiles.load(case.model)
    assert profile is not None
    config = tmp_path / "config.json"
    config.write_text(json.dumps(dict(profile.hf_config)))
    options = ("--gpus", str(case.ranks), "--gpu", GPU, "--whole")
    _, said, errors = rehearse(tmp_path, *options, str(SCRIPT), str(config), *shlex.split(case.options))
    assert said["stopped"] is None, errors
    rehearsed = said["ranks"][0]["phases"]
    estimated = estimate_traced(profile, case.job, case.strategy, case.cluster).ranks[0].phases
    for phase in PHASES:
        assert estimated[phase] == pytest.approx(rehearsed[phase], rel=WITHIN), phase
