"""What is seen of a script's loop is what real DeepSpeed and Accelerate do with it: each micro-batch moves a
weight of its own, and those that did not move were lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.packages import needs
from zerokit.report.training import of_script

needs("deepspeed")
needs("accelerate")
SCRIPT = Path(__file__).parents[1] / "scripts" / "training_facts.py"
LOST = {"by_hand_zero_1": 3, "by_hand_zero_2_offload": 1, "by_the_engine_with_one_step": 15, "two_losses": 1}
"""Of four passes, sixteen or two."""
RIGHT = ("by_hand_zero_0", "by_hand_zero_3", "by_the_boundary", "by_the_engine", "coalesced", "two_engines")
QUIET = ("accumulate", "accumulate_with_a_short_last_step", "clip_alike", "clip_another_model")
SAYS = {
    "accumulate_and_another_file": "gradient_accumulation_steps=4), and the run had gradient accumulation 2",
    "accumulate_by_modulo": "DeepSpeed made 12 optimizer steps where the script asked for 3",
    "accumulate_by_modulo_and_in_the_file": "DeepSpeed made 12 optimizer steps where the script asked for 3",
    "no_accumulate_and_a_file_that_does": "the gradients are 1/4 of what they should be",
    "clip": "does nothing under DeepSpeed, whose configuration has gradient_clipping 1;",
    "clip_with_torch": "clip_grad_norm_(0.25) does nothing under DeepSpeed",
    "saves": "empty.pt does not hold the weights: 1 of 1 tensors are empty",
    "saves_pretrained": "model.safetensors does not hold the weights: 20 of 21 tensors are empty",
    "saves_adapters": "adapter_model.safetensors does not hold the weights: 4 of 4 tensors are empty",
}


def test_what_a_loop_loses_is_seen_and_a_right_one_is_not_accused(tmp_path: Path) -> None:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, cwd=tmp_path, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    results: dict[str, dict[str, Any]] = json.loads(line.removeprefix("RESULTS "))
    for name, lost in LOST.items():
        facts = results[name]["training"]["lost"]
        assert (facts["lost"], min(4, facts["passes"]) - min(3, lost)) == (lost, results[name]["kept"]), name
    for name in RIGHT:
        assert results[name] == {"kept": 4}, name
    for name in QUIET:
        assert not list(of_script({0: results[name]})), name
    for name, text in SAYS.items():
        (finding,) = of_script({0: results[name]})
        assert text in finding.text, name
    assert {name: results[name]["steps"] for name in ("accumulate", "accumulate_by_modulo")} == {
        "accumulate": 3, "accumulate_by_modulo": 12,
    }  # fmt: skip
    assert results["saves_pretrained"]["files"] > 1
    assert {*LOST, *RIGHT, *QUIET, *SAYS} == {*results}
