"""Rehearse the cases: ``python -m benchmarks.rehearsal.gpu.predict OUT.jsonl [NAME…]``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.rehearsal.__main__ import allocator_of_run
from benchmarks.rehearsal.gpu.cases import CASES, STEPS, Case, CaseInputs, script_path
from zerokit.catalog import gpus
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.senders import rehearse
from zerokit.script.entry_points import Target


def predict(case: Case, inputs: CaseInputs) -> dict[str, object]:
    """What a rehearsal says of a case."""
    arguments = inputs.filled(case, inputs.model(case.model), inputs.folder / "out")
    target = Target(script=str(script_path(case)), module=None, arguments=arguments)
    with allocator_of_run(case.alloc_conf):
        done = rehearse(
            RehearsalRequest(
                target=target,
                gpu=gpus.load("h200"),
                gpus=case.gpus,
                steps=STEPS,
                launcher=case.launcher,
            )
        )
    rank = done.ranks[0]
    return {
        "name": case.name,
        "complete": done.complete,
        "stopped": None if done.stopped is None else f"{done.stopped.location}: {done.stopped.reason}",
        "phases": rank.phases,
        "peak_allocated_bytes": rank.peak_allocated_bytes,
        "peak_reserved_bytes": rank.peak_reserved_bytes,
        "steps": done.steps,
        "versions": done.versions,
        "guesses": [f"{guess.location}: {guess.what}" for guess in done.guesses if guess.decides_sizes],
        "warnings": done.warnings,
        "cpu_seconds": done.cpu_seconds,
    }


def main() -> None:
    """All cases, or those named."""
    out, names = Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="zerokit-predict-") as folder:
        inputs = CaseInputs(Path(folder) / "inputs")
        for case in CASES:
            if names and not any(part in case.name for part in names):
                continue
            said = predict(case, inputs)
            with out.open("a") as file:
                file.write(json.dumps(said) + "\n")
            peak = int(str(said["peak_allocated_bytes"])) / 2**30
            print(
                f"{case.name:<28} {peak:7.2f} GiB  {said['cpu_seconds']} s  {said['stopped'] or ''}",
                flush=True,
            )


if __name__ == "__main__":
    main()
