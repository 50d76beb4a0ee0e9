"""How fast this host issues work, in rounds over some seconds: of a model where Transformers is installed.

One reading of some milliseconds says little: on one host of H200s it gave 0.59 to 0.91 within four
minutes, and operators in a loop of their own run out of warm caches, which a model's do not. So every round
times each kind of work once, the first seconds are thrown away (the CPU's clock settles), and what comes out
is the middle of the rounds and their spread. Nothing is pinned to a core: a training run is not either.

Rounds follow each other without a pause, as a step's layers do. Whether they pause hardly matters (on two
H200s 49 and 54 ms a round without, 58 and 59 with a wait for the GPU between), nor whether a training step
ran just before (1.00 times a second round, 20 rank-runs of ``zero-3-waiting.jsonl``); what matters is that
all ranks issue at once, and on the host of the run: cores there change between two speeds, 1.65 apart, within
tens of milliseconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from zerokit.timing.host_speed import MODEL

SECONDS = 8.0
_WARM_UP_SHARE = 0.2
_FEWEST_ROUNDS = 3
_CHAIN = 200
_LAYERS, _TOKENS = 16, 64

Work = tuple[Callable[[], Any], int]
"""What is done, and how often in a round."""


def probe_host(device: torch.device, seconds: float = SECONDS) -> dict[str, list[float]]:
    """Seconds to issue the model of ``host_speed.REFERENCE_SECONDS`` once, by round; its other kinds of work
    where Transformers is not installed."""
    probe = HostProbe(device)
    took: dict[str, list[float]] = {name: [] for name in probe.kinds}
    began = time.perf_counter()
    rounds = 0
    while min(map(len, took.values())) < _FEWEST_ROUNDS or time.perf_counter() - began < seconds:
        warm = rounds > 0 and time.perf_counter() - began >= _WARM_UP_SHARE * seconds
        for name, spent in probe.round().items():
            if warm:
                took[name].append(spent)
        rounds += 1
    return took


class HostProbe:
    """The probe's work, ready to be timed; a model takes a twentieth of a second a round."""

    def __init__(self, device: torch.device) -> None:
        has_model = importlib.util.find_spec("transformers") is not None
        self._work = {MODEL: (_model(device), 1)} if has_model else _operators(device)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of work that are timed."""
        return tuple(self._work)

    def round(self) -> dict[str, float]:
        """Seconds to issue each kind of work once."""
        seconds = {}
        with _own_linear():
            for name, (do, repeats) in self._work.items():
                # seconds of the host for one; short enough for the launch queue of a GPU that is idle or
                # nearly so
                started = time.perf_counter()
                for _ in range(repeats):
                    do()
                took = (time.perf_counter() - started) / repeats
                seconds[name] = took / (_CHAIN if name == "linear_backward" else 1)
        return seconds


@contextlib.contextmanager
def _own_linear() -> Iterator[None]:
    """Torch's own ``linear`` while active. ``zero.Init`` replaces it by a Python function, and leaves that
    (partition_parameters.py:414, DeepSpeed 0.19.8): a round then takes 1.27 times as long (1.23 to 1.32, ten
    rank-runs of ``zero-3-waiting.jsonl``)."""
    functional = torch.nn.functional
    found = functional.linear
    functional.linear = torch._C._nn.linear
    try:
        yield
    finally:
        functional.linear = found


def _operators(device: torch.device) -> dict[str, Work]:
    functional = torch.nn.functional
    matrix = torch.randn(64, 64, device=device, dtype=torch.bfloat16)
    recorded, weight = matrix.clone().requires_grad_(), matrix.clone().requires_grad_()
    layer = torch.nn.Linear(64, 64, device=device, dtype=torch.bfloat16)
    chained = recorded
    for _ in range(_CHAIN):
        chained = functional.linear(chained, weight)
    total = chained.sum()
    backward = partial(torch.autograd.grad, total, (recorded, weight), retain_graph=True)
    return {
        "add": (lambda: matrix + matrix, _CHAIN),
        "add_in_place": (lambda: matrix.mul_(1.0), _CHAIN),
        "add_with_gradient": (lambda: recorded + recorded, _CHAIN),
        "view": (lambda: matrix.view(-1), _CHAIN),
        "linear": (lambda: layer(recorded), _CHAIN),
        "linear_backward": (backward, 1),
    }


def _model(device: torch.device) -> Callable[[], Any]:
    """Forward and backward of the Llama that was timed on the reference host."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama", vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=_LAYERS,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(device).train()
    ids = torch.randint(0, 1000, (1, _TOKENS), device=device)

    def step() -> None:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    return step
