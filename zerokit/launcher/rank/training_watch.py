"""Whether a rank learns: its losses and gradient norms, seen without making the GPU wait."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import struct
import sys
from typing import Any

from zerokit.launcher.rank_file import Record


class _FirstLosses:
    """A fingerprint of a rank's first losses, by which ranks that read the same batches are found. It is
    taken at 32, 64, ... or 1,024 losses, as soon as 16 values differ: losses in bf16 are coarse."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._values: set[float] = set()
        self._count = 0
        self.fingerprint: str | None = None

    def add(self, loss: float) -> None:
        """The next loss; those after the fingerprint, or after 1,024, are not looked at."""
        if self.fingerprint is not None or self._count == 1024:
            return
        self._digest.update(struct.pack("d", loss))
        self._values.add(loss)
        self._count += 1
        if self._count >= 32 and self._count.bit_count() == 1 and len(self._values) >= 16:
            self.fingerprint = self._digest.hexdigest()[:16]


class _Series:
    """Numbers that may be on a GPU: copied beside the training, read when they have arrived. ``seen``: how
    many; ``same``: how often in a row the last one was the same."""

    def __init__(self) -> None:
        self.seen = self.same = 0
        self.last: float | None = None
        self._copy: Any = None
        self._arrived: Any = None

    def see(self, value: Any) -> float | None:
        """The newest number that is here; None where none has arrived since the last call."""
        number = self._read(value)
        if number is not None:
            self.seen += 1
            self.same = self.same + 1 if number == self.last else 1
            self.last = number
        return number

    def _read(self, value: Any) -> float | None:
        """A value that comes while another is under way is not looked at."""
        if not hasattr(value, "is_cuda"):
            return float(value)
        if not value.is_cuda:
            return float(value.detach())
        torch = sys.modules["torch"]
        if torch.cuda.is_current_stream_capturing():
            return None
        number = None
        if self._arrived is not None:
            if not self._arrived.query():
                return None
            number = float(self._copy)
        if self._copy is None or self._copy.dtype != value.dtype:
            self._copy = torch.empty((), dtype=value.dtype, pin_memory=True)
            self._arrived = torch.cuda.Event()
        self._copy.copy_(value.detach().reshape(()), non_blocking=True)
        self._arrived.record()
        return number


_SOME = 256
"""Of a parameter's elements."""


class TrainingWatch:
    """How often in a row the loss was the same or no number, and the gradients nothing, out of how many.
    ``zero_rates``: steps whose learning rate was 0, of ``rates``."""

    def __init__(self) -> None:
        self._loss, self._norm, self._weights = _Series(), _Series(), _Series()
        self.not_finite = self.zero_gradients = self.rates = self.zero_rates = 0
        self.most_norm = 0.0
        self._first = _FirstLosses()
        self._data_parallel = 0

    def hook(self, engine: Any) -> None:
        """Look at what DeepSpeed's engine class is given and finds."""
        backward, step = engine.backward, engine._take_model_step

        @functools.wraps(backward)
        def watched_backward(this: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                self.see_loss(loss)
                self._data_parallel = int(this.dp_world_size)
            return backward(this, loss, *args, **kwargs)

        @functools.wraps(step)
        def watched_step(this: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                self.see_rates(this.get_lr())
            result = step(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                self.see_gradient_norm(this._global_grad_norm)
                if not hasattr(this._global_grad_norm, "is_cuda"):  # ZeRO-0 in fp32 computes none
                    self.see_weights(this.module)
            return result

        engine.backward, engine._take_model_step = watched_backward, watched_step

    def see_loss(self, loss: Any) -> None:
        """A loss, of one element, that a backward pass begins with."""
        number = self._loss.see(loss) if loss.numel() == 1 else None
        if number is None:
            return
        finite = math.isfinite(number)
        self.not_finite = 0 if finite else self.not_finite + 1
        self._loss.same *= finite
        if finite:
            self._first.add(number)

    def see_gradient_norm(self, norm: Any) -> None:
        """DeepSpeed's norm of all gradients; a plain 0.0 is what it has before it has computed one."""
        number = self._norm.see(norm) if hasattr(norm, "is_cuda") else None
        if number is None:
            return
        self.zero_gradients = self.zero_gradients + 1 if number == 0 else 0
        if math.isfinite(number):
            self.most_norm = max(self.most_norm, number)

    def see_weights(self, module: Any) -> None:
        """The weights after a step, by some of the first and the last that train; in fp32 alone, where the
        smallest of steps shows."""
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not trained or any(str(parameter.dtype) != "torch.float32" for parameter in trained):
            return
        some = [parameter.detach().reshape(-1)[:_SOME].sum() for parameter in (*trained[:3], *trained[-3:])]
        self._weights.see(sum(some))

    def see_rates(self, rates: Any) -> None:
        """The learning rates, one for each group of parameters, with which a step is made."""
        if isinstance(rates, list) and rates and all(isinstance(rate, int | float) for rate in rates):
            self.rates += 1
            self.zero_rates += not any(rates)

    def account(self) -> Record:
        """For a tick; empty before the first loss."""
        losses, norms, weights = self._loss, self._norm, self._weights
        if losses.last is None:
            return {}
        facts: Record = {
            "loss": losses.last if math.isfinite(losses.last) else None,
            "losses": losses.seen, "same": losses.same, "not_finite": self.not_finite,
            "norms": norms.seen, "same_norms": norms.same, "zero_gradients": self.zero_gradients,
            "most_norm": self.most_norm, "rates": self.rates, "zero_rates": self.zero_rates,
            "weights": weights.seen, "same_weights": weights.same,
        }  # fmt: skip
        if self._first.fingerprint is not None:
            facts |= {"first_losses": self._first.fingerprint, "data_parallel": self._data_parallel}
        return {"learning": facts}
