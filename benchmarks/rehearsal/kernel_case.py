"""One case of ``benchmarks/measure/kernels.py`` as a script: ``kernel_case.py NAME``, on the GPU there is.

Rehearsed, it gives the operators whose GPU and host seconds ``kernels.jsonl`` holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measure.kernels import CASES
from benchmarks.measure.models import build, make_batch, training_dtype

STEPS = 4


def main() -> None:
    """As the measuring loop does it, without the measuring."""
    import deepspeed

    deepspeed.init_distributed()
    case = next(case for case in CASES if case["id"] == sys.argv[1])
    model = build(case)
    trainable = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trainable, config=case["deepspeed_config"]
    )
    batch = make_batch(case, model, training_dtype(case["deepspeed_config"]))
    for _ in range(STEPS):
        loss = engine(**batch).loss
        engine.backward(loss)
        del loss
        engine.step()


if __name__ == "__main__":
    main()
