"""Loaded into every process by ``sitecustomize``: which of them train, and what the model in memory says
just before it is saved.

The scripts stay as their wheels have them. All ranks take part in the forward, as ZeRO-3 needs. Every process
counts four GPUs, so that a tool that starts one process for each would show.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from zerokit.instrument.post_import import PostImport

ANSWER = "before-the-save.json"


def answer(model: Any, device: str = "cpu") -> dict[str, float]:
    """The loss, or for a model that classifies the mean score, on a fixed batch."""
    import torch

    batch = (torch.arange(48, device=device).reshape(2, 24) * 7) % 300 + 5
    mask = torch.ones_like(batch)
    with torch.no_grad():
        scores = model(input_ids=batch, attention_mask=mask).logits.double()
    if scores.dim() == 2:
        return {"score": scores.mean().item()}
    flat = scores[:, :-1].reshape(-1, scores.shape[-1])
    return {"loss": torch.nn.functional.cross_entropy(flat, batch[:, 1:].reshape(-1)).item()}


def trainers(folder: Path) -> list[str]:
    """The ranks of all processes that trained, one entry for each process."""
    return sorted(path.name.split("-")[1] for path in folder.glob("trains-*"))


def _four_gpus(module: ModuleType) -> None:
    """Counted, not available: the ranks go on with the CPU."""
    module.cuda.device_count = lambda: 4


def _four_for_llamafactory(module: ModuleType) -> None:
    module.get_device_count = lambda: 4


def _hook(module: ModuleType) -> None:
    original = module.Trainer.save_model
    original_train = module.Trainer.train

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        Path(f"trains-{os.environ['RANK']}-{os.getpid()}").touch()
        return original_train(self, *args, **kwargs)

    module.Trainer.train = train

    def save_model(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
        engine = self.model_wrapped
        training = engine.training
        engine.eval()
        found = answer(engine, str(self.args.device))
        engine.train(training)
        if os.environ["RANK"] == "0":
            Path(ANSWER).write_text(json.dumps(found))
        original(self, output_dir, _internal_call)

    module.Trainer.save_model = save_model


if "ZEROKIT_RUN_DIR" in os.environ and "RANK" in os.environ:
    PostImport(
        {
            "torch": _four_gpus,
            "llamafactory.extras.misc": _four_for_llamafactory,
            "transformers.trainer": _hook,
        }
    ).install()
