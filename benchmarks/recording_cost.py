"""What recording collectives costs a step: the recorder's own seconds, counted beside the step's.

    python -m benchmarks.recording_cost                                          # two CPU ranks, gloo
    python -m benchmarks.recording_cost --device cuda --hidden 2048 --layers 16  # GPUs, NCCL

Real ZeRO-3 steps of a Llama. Each function that zerokit wraps is timed twice: around zerokit's wrapper, and
around PyTorch's or DeepSpeed's own function inside it. The difference, less what the two clocks themselves
take (measured on a function that does nothing), is the recorder's. On GPUs that is time of the host's thread,
which a step waits for only where it is not ahead of the GPU. PyTorch's own flight recorder is C++ and has no
such seam: runs with and without it are shown beside each other (``--flight-recorder``).
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--flight-recorder", action="store_true", help="on and off, --pairs times")
    parser.add_argument("--pairs", type=int, default=3)
    return parser.parse_args()


class Seam:
    """Seconds and calls, outside and inside zerokit's wrappers."""

    def __init__(self) -> None:
        self.outside = self.inside = 0.0
        self.calls = 0
        self._depth = 0

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """PyTorch's function, timed; the wrapper is to find the signature that it looks for."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                if self._depth == 1:
                    self.inside += time.perf_counter() - began

        timed.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        timed.__name__ = function.__name__
        return timed

    def without(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """zerokit's wrapper, timed; one inside another is the outer one's."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            began = time.perf_counter()
            try:
                return wrapper(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.outside += time.perf_counter() - began
                    self.calls += 1

        return timed

    def own_cost(self) -> float:
        """Seconds a call that the clocks themselves put between outside and inside."""
        seam = Seam()
        nothing = seam.without(seam.within(lambda: None))
        for _ in range(20_000):
            nothing()
        return (seam.outside - seam.inside) / seam.calls


def hook(seam: Seam, folder: Path, rank: int, args: argparse.Namespace) -> None:
    """zerokit's own hooks of collectives and of ZeRO-3's fetches, between two clocks."""
    import torch.distributed.distributed_c10d as c10d
    from deepspeed.runtime.zero import partitioned_param_coordinator as zero3

    from zerokit.launcher.rank import calls as recorder
    from zerokit.launcher.rank.phase_record import Identity
    from zerokit.launcher.rank.probe import Probe

    probe = Probe(Identity(rank=rank, local_rank=rank, world_size=args.ranks, host="here", device=args.device,
                           script="-"), folder)  # fmt: skip
    calls = recorder.Calls(probe)
    names = [name for name in recorder._COLLECTIVES if inspect.isfunction(getattr(c10d, name, None))]
    _each(c10d, names, seam.within)
    calls.hook(c10d)
    _each(c10d, names, seam.without)
    owner = zero3.PartitionedParameterCoordinator
    owner.fetch_sub_module = seam.within(owner.fetch_sub_module)
    calls.hook_zero3(zero3)
    owner.fetch_sub_module = seam.without(owner.fetch_sub_module)
    for name in names:  # torch.distributed took the functions over when it was imported
        if hasattr(sys.modules["torch.distributed"], name):
            setattr(sys.modules["torch.distributed"], name, getattr(c10d, name))


def _each(module: ModuleType, names: list[str], wrap: Callable[..., Any]) -> None:
    for name in names:
        setattr(module, name, wrap(getattr(module, name)))


def train(args: argparse.Namespace) -> dict[str, Any]:
    """One rank: its figures."""
    import deepspeed
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    seam, rank = Seam(), int(os.environ["RANK"])
    hook(seam, Path(os.environ["FOLDER"]), rank, args)
    deepspeed.init_distributed(dist_backend="nccl" if args.device == "cuda" else "gloo")
    config = LlamaConfig(hidden_size=args.hidden, intermediate_size=3 * args.hidden, vocab_size=4096,
                         num_hidden_layers=args.layers, num_attention_heads=8)  # fmt: skip
    model = LlamaForCausalLM(config)
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": args.batch, "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
        "zero_optimization": {"stage": 3}, "bf16": {"enabled": args.device == "cuda"},
    }  # fmt: skip
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    tokens = torch.randint(0, 4096, (args.batch, args.seq_len), device=engine.device)
    seconds, recorded, counts = [], [], []
    for step in range(args.steps + 5):  # ZeRO-3 learns the order of the modules in the first
        before, calls, began = seam.outside - seam.inside, seam.calls, time.perf_counter()
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
        if args.device == "cuda":
            torch.cuda.synchronize()
        if step >= 5:
            seconds.append(time.perf_counter() - began)
            counts.append(seam.calls - calls)
            recorded.append(seam.outside - seam.inside - before - counts[-1] * OWN_COST)
    torch.distributed.barrier()
    step, own = statistics.median(seconds), statistics.median(recorded)
    return {
        "device": torch.cuda.get_device_name(0) if args.device == "cuda" else "CPU rank",
        "torch": torch.__version__, "ranks": args.ranks, "hidden": args.hidden, "layers": args.layers,
        "batch": args.batch, "seq_len": args.seq_len, "step_seconds": step,
        "calls_per_step": statistics.median(counts), "recorder_seconds_per_step": own,
        "recorder_share": own / step,
        "flight_recorder": os.environ.get("TORCH_FR_BUFFER_SIZE", "on, as zerokit sets it"),
    }  # fmt: skip


def run(args: argparse.Namespace, flight_recorder: bool | None = None) -> dict[str, Any]:
    """All ranks; rank 0's figures."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.close()
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "FOLDER": folder,
                       "WORLD_SIZE": str(args.ranks)}  # fmt: skip
        if args.device == "cpu":
            environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        if flight_recorder is not None:
            environment["TORCH_FR_BUFFER_SIZE"] = "2000" if flight_recorder else "0"
        command = [sys.executable, "-m", "benchmarks.recording_cost", *sys.argv[1:]]
        ranks = [
            subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                             stdout=subprocess.PIPE, text=True)
            for rank in range(args.ranks)
        ]  # fmt: skip
        output = [process.communicate()[0] for process in ranks]
    result: dict[str, Any] = json.loads(output[0].splitlines()[-1])
    return result


def main() -> None:
    args = parse()
    if "RANK" in os.environ:
        print(json.dumps(train(args)), flush=True)
        return
    for flight_recorder in (True, False) * args.pairs if args.flight_recorder else (None,):
        print(json.dumps(run(args, flight_recorder)), flush=True)


OWN_COST = Seam().own_cost()

if __name__ == "__main__":
    main()
