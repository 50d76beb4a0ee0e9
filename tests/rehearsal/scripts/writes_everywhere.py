"""Tries to write in every way a training script does; each must be refused, not only the first."""

import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import torch
from safetensors.torch import save_file

weight = torch.zeros(8, 8, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.square().sum().backward()
    optimizer.step()


def refused(what, *arguments, **options):
    try:
        what(*arguments, **options)
    except PermissionError as error:
        assert "rehearsal" in str(error), error
    else:
        raise SystemExit(f"{what} was let through")


home = Path.home()
refused(Path("log.txt").write_text, "done")
refused(home.joinpath("left-behind.txt").write_text, "done")
refused(save_file, {"weight": torch.zeros(2)}, "model.safetensors")
refused(os.mkdir, "checkpoint-3")
refused(os.replace, "model.safetensors", "old.safetensors")
refused(os.remove, "model.safetensors")
refused(os.truncate, "model.safetensors", 0)
refused(os.chmod, "model.safetensors", 0o600)
refused(shutil.rmtree, home)
refused(sqlite3.connect, "runs.db")
refused(subprocess.run, ["touch", "left-behind"])
refused(os.system, "touch left-behind")
