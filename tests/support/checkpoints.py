"""A run with a checkpoint, without a training: the files of DeepSpeed and a Trainer, of small tensors."""

from __future__ import annotations

import json
from pathlib import Path

from zerokit.launcher.rank_file import RankWriter


def write_run_with_checkpoint(run: Path, checkpoint: Path, *, ranks: int) -> None:
    """A run folder whose ranks told of a Trainer's checkpoint, of ZeRO-2 with Adam."""
    import torch

    run.mkdir(parents=True)
    (run / "command.json").write_text(json.dumps({"expected_ranks": ranks}))
    folder = checkpoint / "global_step200"
    folder.mkdir(parents=True)
    for name in ("trainer_state.json", "config.json"):
        (checkpoint / name).write_text("{}")
    (checkpoint / "latest").write_text(folder.name)
    weight, state = torch.zeros(8, 8), torch.zeros(64 // ranks)
    for rank in range(ranks):
        record = {"type": "checkpoint", "kind": "trainer", "folder": str(checkpoint.resolve()), "step": 200}
        RankWriter(run / f"rank-{rank:05d}.jsonl", rank).write(record)
        base = {"state": {0: {"step": 200, "exp_avg": state, "exp_avg_sq": state}}, "param_groups": []}
        states = {"zero_stage": 2, "partition_count": [ranks], "base_optimizer_state": base}
        states["single_partition_of_fp32_groups"] = [state]
        torch.save(
            {"optimizer_state_dict": states}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        )
    model = {"module": {"weight": weight}, "param_shapes": [{"weight": weight.shape}], "buffer_names": []}
    torch.save(model, folder / "mp_rank_00_model_states.pt")
