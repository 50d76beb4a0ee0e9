"""What measuring a rank costs: real steps with and without the probe, in one process.

    python benchmarks/probe_overhead.py                     # CPU rank, DeepSpeed
    python benchmarks/probe_overhead.py --device cuda       # GPU rank
    python benchmarks/probe_overhead.py --plain             # a plain PyTorch loop

On a GPU whose steps take some 30 ms, as a row of benchmarks/measure/data/probe-overhead.jsonl:

    python benchmarks/probe_overhead.py --device cuda --hidden 2048 --layers 4 --json

Blocks of steps with and without measuring alternate in random order within each pair, so that
drift of the machine cancels; a block is as long as the ticker's period, 0.4 s. Three figures:

- paired: median over pairs of (with - without) / without, with a 95 % bootstrap interval. On a busy
  machine the interval is wider than the effect.
- training thread: time spent in the probe's calls, a step, against the step's time. Exact.
- ticker: CPU time of the ticker thread against wall time. An upper bound on what it can take away
  from the training thread, which it competes with for the interpreter lock only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--steps", type=int, help="steps a block; default: as many as take 0.4 s")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--zero", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="a plain PyTorch loop, without DeepSpeed")
    parser.add_argument("--limit-seconds", type=float, default=100.0, help="begin no pair after so long")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def set_environment(device: str) -> None:
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29471")
    if device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"


class Loop:
    """A model that trains: in DeepSpeed's engine, or by itself."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(hidden_size=args.hidden, intermediate_size=args.hidden * 3, vocab_size=4096,
                             num_hidden_layers=args.layers, num_attention_heads=8)  # fmt: skip
        self.model: Any = LlamaForCausalLM(config)
        self.optimizer: Any = None
        if args.plain:
            dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
            self.model.to(args.device, dtype)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        else:
            self.model = self._engine(args)
        self.tokens = torch.randint(0, 4096, (args.batch, args.seq_len), device=self.model.device)

    def _engine(self, args: argparse.Namespace) -> Any:
        import deepspeed

        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": args.batch,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
            "zero_optimization": {"stage": args.zero},
            "steps_per_print": 10**9,
        }
        if args.device == "cuda":
            settings["bf16"] = {"enabled": True}
        engine, *_ = deepspeed.initialize(
            model=self.model, model_parameters=self.model.parameters(), config=settings
        )
        return engine

    def step(self) -> None:
        """Train on one batch."""
        loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        if self.optimizer is None:
            self.model.backward(loss)
            self.model.step()
        else:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


class Switch:
    """Puts the probe's hooks and ticker in place, and takes them away again."""

    METHODS = ("forward", "backward", "_backward_prologue", "step", "_take_model_step")

    def __init__(self, probe: Any, calls: Any, *, plain: bool) -> None:
        self.probe, self.calls, self.plain = probe, calls, plain
        self.training: Any = None
        self.hooked: dict[str, Any] = {}
        if not plain:
            from deepspeed.runtime.engine import DeepSpeedEngine

            self.owner = DeepSpeedEngine
            self.hooked = {name: DeepSpeedEngine.__dict__[name] for name in self.METHODS}
        self.ticker: Any = None

    def on(self) -> None:
        import torch

        from zerokit.launcher.rank.plain_training import PlainTraining
        from zerokit.launcher.rank.ticker import Ticker

        for name, method in self.hooked.items():
            setattr(self.owner, name, method)
        if self.plain:
            self.training = PlainTraining(self.probe)
            self.training.begin(torch)
        if self.probe.cuda is not None:
            self.probe.cuda.install()
        self.probe._budget._decided = time.monotonic()  # no time for reading is earned while it is off
        self.ticker = Ticker(self.probe, self.calls)
        self.ticker.start()

    def off(self) -> None:
        for name, method in self.hooked.items():
            setattr(self.owner, name, _not_ours(method))
        if self.training is not None:
            self.training.end()
        if self.probe.cuda is not None:
            self.probe.cuda.uninstall()
        if self.ticker is not None:
            self.ticker.stop()

    def ticker_cpu_seconds(self) -> float:
        return time.clock_gettime(time.pthread_getcpuclockid(self.ticker._thread.ident))


def _not_ours(method: Any) -> Any:
    """DeepSpeed's own method, below the wrappers of the probe."""
    while f"{os.sep}zerokit{os.sep}launcher{os.sep}" in method.__code__.co_filename:
        method = method.__wrapped__
    return method


class Stopwatch:
    """Sums the time spent in the probe's calls on the training thread."""

    def __init__(self, probe: Any) -> None:
        self.seconds = 0.0
        for name in ("enter", "step_done"):
            setattr(probe, name, self._timed(getattr(probe, name)))

    def _timed(self, call: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            call(*args, **kwargs)
            self.seconds += time.perf_counter() - began

        return timed


def run_block(loop: Loop, steps: int) -> float:
    """Seconds a step."""
    import torch

    began = time.perf_counter()
    for _ in range(steps):
        loop.step()
    if loop.tokens.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def interval(values: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import torch

    from zerokit.launcher.rank import hooks
    from zerokit.launcher.rank.calls import Calls
    from zerokit.launcher.rank.phase_record import Identity
    from zerokit.launcher.rank.probe import Probe
    from zerokit.launcher.rank_file import TICK_SECONDS

    probe = Probe(
        Identity(rank=0, local_rank=0, world_size=1, host="here", device=args.device, script="-"), folder
    )
    calls = Calls(probe)
    if args.plain:
        probe.cuda = _cuda_memory(torch) if args.device == "cuda" else None
    else:
        hooks.install(probe, calls)
    loop = Loop(args)
    switch, stopwatch = Switch(probe, calls, plain=args.plain), Stopwatch(probe)
    switch.on()
    run_block(loop, 40)  # past the first steps, which are all split into their phases
    switch.off()
    steps = args.steps or max(1, round(TICK_SECONDS / run_block(loop, 5)))
    stopwatch.seconds = 0.0
    chance = random.Random(1)
    ratios, with_probe, ticker_shares = [], [], []
    ends_at = time.monotonic() + args.limit_seconds
    while len(ratios) < args.pairs and time.monotonic() < ends_at:
        seconds: dict[bool, float] = {}
        for measured in chance.sample((True, False), 2):
            if measured:
                switch.on()
                began = time.perf_counter()
            seconds[measured] = run_block(loop, steps)
            if measured:
                ticker_shares.append(switch.ticker_cpu_seconds() / (time.perf_counter() - began))
                switch.off()
        ratios.append(seconds[True] / seconds[False] - 1)
        with_probe.append(seconds[True])
    step = statistics.median(with_probe)
    inside = stopwatch.seconds / (len(ratios) * steps)
    return {
        "device": torch.cuda.get_device_name(0) if args.device == "cuda" else "CPU rank",
        "torch": torch.__version__, "loop": "plain" if args.plain else "deepspeed",
        "step_seconds": step, "pairs": len(ratios), "steps_per_block": steps,
        "paired_median": statistics.median(ratios), "paired_95": interval(ratios),
        "training_thread_seconds_per_step": inside, "training_thread_share": inside / step,
        "ticker_cpu_share": statistics.median(ticker_shares),
    }  # fmt: skip


def _cuda_memory(torch: Any) -> Any:
    from zerokit.launcher.rank.cuda_memory import CudaMemory

    return CudaMemory(torch)


def main() -> None:
    args = parse()
    set_environment(args.device)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args, Path(folder))
    if args.json:
        print(json.dumps(result))
        return
    low, high = result["paired_95"]
    pairs = f"{result['pairs']} pairs of {result['steps_per_block']} steps"
    print(f"step {result['step_seconds'] * 1e3:.1f} ms on {args.device}, {pairs}")
    print(f"paired:          {result['paired_median']:+.2%}   (95 %: {low:+.2%} … {high:+.2%})")
    print(f"training thread: {result['training_thread_share']:.3%}"
          f"   ({result['training_thread_seconds_per_step'] * 1e6:.0f} µs a step)")  # fmt: skip
    print(f"ticker thread:   {result['ticker_cpu_share']:.3%} of one core")


if __name__ == "__main__":
    main()
