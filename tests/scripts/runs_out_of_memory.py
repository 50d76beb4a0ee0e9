"""The example's training, which runs out of memory in its second step at the ZeRO stage that is named first.

runs_out_of_memory.py STAGE ARGUMENTS…
"""

import json
import sys
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_causal_lm.py"
sys.path.insert(0, str(EXAMPLE.parent))
fails_at = int(next(argument for argument in sys.argv[1:] if argument.isdigit()))
sys.argv.remove(str(fails_at))

import train_causal_lm as example  # noqa: E402

made = 0
make_batch = example.make_batch


def make_batch_or_fail(*args: object) -> torch.Tensor:
    global made
    made += 1
    config = json.loads(Path(sys.argv[sys.argv.index("--deepspeed_config") + 1]).read_text())
    if made == 2 and config["zero_optimization"]["stage"] == fails_at:
        torch.empty(1 << 60, dtype=torch.int8)  # the allocator's own refusal
    return make_batch(*args)  # type: ignore[arg-type]


example.make_batch = make_batch_or_fail
example.main()
