"""What ``launch --resume`` has a rank do: load the converted checkpoint in place of the one that another
number of ranks wrote, and end where it would train otherwise than that run did.

Only the load that the run goes on from is converted: later ones (the best model's, at the end) are its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from zerokit.instrument.phases import in_place_of

RESUMED_VARIABLE = "ZEROKIT_RESUMED"
"""The checkpoint that the run is to go on from, which another run wrote."""
RANKS_VARIABLE = "ZEROKIT_RESUMED_RANKS"
"""How many wrote it: files beside it may be another run's, or on other machines."""
UNIVERSAL_VARIABLE = "ZEROKIT_UNIVERSAL"
"""The folder of ZeRO's files in it that are not to be loaded themselves, but what was converted of them."""
_CONVERTED = "{}_universal"


class Resumed:
    """The hooks; none where nothing is resumed."""

    def __init__(self) -> None:
        self.checkpoint = os.environ.get(RESUMED_VARIABLE)
        self._universal = os.environ.get(UNIVERSAL_VARIABLE)
        self._is_loaded = False

    def hook_engine(self, engine: Any) -> None:
        """DeepSpeed's loading (0.19.8, runtime/engine.py:4388), and the first step after it."""
        if self.checkpoint is None:
            return
        load = engine.load_checkpoint

        @in_place_of(engine, "load_checkpoint")
        def load_checkpoint(this: Any, load_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
            self._is_loaded = True
            found = tag if tag is not None else _latest(load_dir)
            if self._universal is None or found is None or not _same(load_dir, found, self._universal):
                return load(this, load_dir, tag, *args, **kwargs)
            kept, this._config.load_universal_checkpoint = this._config.load_universal_checkpoint, True
            try:
                result = load(this, load_dir, _CONVERTED.format(found), *args, **kwargs)
            finally:
                this._config.load_universal_checkpoint = kept
            self._universal = None
            _restore_optimizer(this, Path(load_dir, _CONVERTED.format(found)))
            steps = this.global_steps
            before = round(this.global_samples / steps) if steps else 0
            _check_batch(before, this.train_batch_size())
            return result

        _before(engine, "_take_model_step", self._check_loaded)

    def hook_accelerate(self, module: ModuleType) -> None:
        """Note that the script loads a state of Accelerate's, which reshards what FSDP2 divides."""
        if self.checkpoint is not None:
            _before(module.Accelerator, "load_state", self._loads)

    def hook_accelerated_optimizer(self, module: ModuleType) -> None:
        """End at Accelerate's first step without it."""
        if self.checkpoint is not None:
            _before(module.AcceleratedOptimizer, "step", self._check_loaded)

    def _loads(self) -> None:
        self._is_loaded = True

    def _check_loaded(self) -> None:
        if not self._is_loaded:
            raise RuntimeError(
                f"zerokit launch --resume: the script did not load {self.checkpoint} and would train "
                "from the beginning; --resume-option names its option that takes a checkpoint"
            )

    def hook_trainer(self, module: ModuleType) -> None:
        """A Trainer's, after :mod:`zerokit.launcher.rank.checkpoints` has named it the checkpoint."""
        if self.checkpoint is None:
            return
        original = module.Trainer._inner_training_loop

        @in_place_of(module.Trainer, "_inner_training_loop")
        def loop(this: Any, *args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("resume_from_checkpoint")
            if not self._is_loaded:
                if not given or _real(given) != _real(str(self.checkpoint)):
                    raise RuntimeError(
                        f"zerokit launch --resume: this Trainer would train from {given or 'the beginning'}, "
                        f"not from {self.checkpoint}: give it the same output_dir, which is "
                        f"{this.args.output_dir}, and no checkpoint"
                    )
                self._is_loaded = True
                ranks = int(os.environ[RANKS_VARIABLE])
                _check_batch(_batch_of_trainer(Path(given), ranks), _trained_batch(this.args))
            return original(this, *args, **kwargs)


def _before(owner: Any, name: str, action: Callable[[], None]) -> None:
    """Have ``action`` called before each call of a method."""
    original = getattr(owner, name)

    @in_place_of(owner, name)
    def method(this: Any, *args: Any, **kwargs: Any) -> Any:
        action()
        return original(this, *args, **kwargs)


def _check_batch(before: int, now: int) -> None:
    if before and before != now:
        raise RuntimeError(
            f"zerokit launch --resume: the global batch is {now}, and the checkpoint's was {before}: change "
            "the gradient accumulation (or the batch size per GPU) so that it stays the same"
        )


def _trained_batch(args: Any) -> int:
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def _batch_of_trainer(checkpoint: Path, ranks: int) -> int:
    """The global batch of the run that wrote it; 0: not told."""
    path = checkpoint / "training_args.bin"
    if not path.exists():
        return 0
    args = sys.modules["torch"].load(path, weights_only=False)
    return int(args.per_device_train_batch_size * args.gradient_accumulation_steps * ranks)


def _restore_optimizer(engine: Any, folder: Path) -> None:
    """Undo what ZeRO-3 mixes up (0.19.8, runtime/zero/stage3.py:3661): every group of parameters gets the
    settings of the first, weight decay among them, where the file has those of each; and all have one tensor
    that counts their steps, which PyTorch's Adam then counts on once for each of them. Of any stage that
    tensor is the host's, and a fused Adam wants its parameter's device (torch/optim/optimizer.py, 2.13)."""
    path = folder / "zero" / "optimizer_state.pt"
    kept = sys.modules["torch"].load(path, map_location="cpu", mmap=True, weights_only=False)
    optimizer = engine.optimizer.optimizer
    saved = kept.get("param_groups") or ()
    if len(saved) == len(optimizer.param_groups):
        for group, values in zip(optimizer.param_groups, saved, strict=True):
            group.update({name: value for name, value in values.items() if name != "params"})
    on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    for parameter, state in optimizer.state.items():
        if hasattr(state.get("step"), "clone"):
            state["step"] = state["step"].clone().to(parameter.device if on_device else "cpu")


def _latest(folder: Any) -> str | None:
    path = Path(folder, "latest")
    return path.read_text().strip() if path.is_file() else None


def _same(folder: Any, tag: Any, other: str) -> bool:
    return _real(Path(folder, str(tag))) == _real(other)


def _real(path: Any) -> Path:
    return Path(path).resolve()
