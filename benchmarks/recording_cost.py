"""What recording collectives costs a step: the recorder's own seconds, counted beside the step's.

    python -m benchmarks.recording_cost                                          # two CPU ranks, gloo
    python -m benchmarks.recording_cost --device cuda --hidden 2048 --layers 16  # GPUs, NCCL

Real ZeRO-3 steps of a Llama. Each function that zerokit wraps is timed twice: around zerokit's wrapper, and
around PyTorch's or DeepSpeed's own function inside it. The difference is the recorder's and the two clocks'.
In every other step the wrapper is left out, and what is counted there is the clocks' own. On GPUs the result
is time of the host's thread, which a step waits for only where it is not ahead of the GPU. PyTorch's own
flight recorder is C++ and has no such seam: runs with and without it are shown beside each other
(``--flight-recorder``).
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
from typing import Any

from benchmarks.common import options_of


def parse() -> argparse.Namespace:
    parser = options_of(__doc__)
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
    """Seconds of each call outside zerokit's wrapper less those inside it, by what is called. Where
    ``recording`` is off, the outer clock calls the inner one at once: what remains is the clocks' own."""

    def __init__(self) -> None:
        self.recording = True
        self.seconds: dict[tuple[str, bool], list[float]] = {}
        self._inside = 0.0  # of the inner clock that stopped last: a wrapper's own, as it stops before it

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """PyTorch's function, timed; the wrapper is to find the signature that it looks for."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = time.perf_counter() - began

        timed.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        timed.__name__ = function.__name__
        return timed

    def without(
        self, wrapper: Callable[..., Any], within: Callable[..., Any], what: str
    ) -> Callable[..., Any]:
        """zerokit's wrapper around ``within``, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            recording = self.recording
            function = wrapper if recording else within
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - began - self._inside
                self.seconds.setdefault((what, recording), []).append(spent)

        return timed

    def microseconds(self, what: str) -> float:
        """The recorder's own, a call: the mean of those that the system did not interrupt."""
        calls, clocks = (sorted(self.seconds[what, recording]) for recording in (True, False))
        calls, clocks = (entry[: len(entry) - len(entry) // 20] for entry in (calls, clocks))
        return 1e6 * (statistics.fmean(calls) - statistics.fmean(clocks))


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
    names = recorder.collectives_of(c10d)
    inner = {name: seam.within(getattr(c10d, name)) for name in names}
    for name in names:
        setattr(c10d, name, inner[name])
    calls.hook(c10d)
    for name in names:
        setattr(c10d, name, seam.without(getattr(c10d, name), inner[name], "collective"))
    owner = zero3.PartitionedParameterCoordinator
    fetch = owner.fetch_sub_module = seam.within(owner.fetch_sub_module)
    calls.hook_zero3(zero3)
    owner.fetch_sub_module = seam.without(owner.fetch_sub_module, fetch, "fetch")
    for name in names:  # torch.distributed took the functions over when it was imported
        if hasattr(sys.modules["torch.distributed"], name):
            setattr(sys.modules["torch.distributed"], name, getattr(c10d, name))


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
    steps: list[float] = []
    for step in range(2 * args.steps + 6):
        seam.recording = step % 2 == 0
        if step == 6:  # ZeRO-3 learns the order of the modules in the first
            seam.seconds.clear()
        began = time.perf_counter()
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
        if args.device == "cuda":
            torch.cuda.synchronize()
        steps.append(time.perf_counter() - began)
    counts = {what: len(seam.seconds[what, True]) / args.steps for what in ("fetch", "collective")}
    cost = {what: seam.microseconds(what) for what in counts}
    torch.distributed.barrier()
    seconds, own = statistics.median(steps[6:]), sum(1e-6 * cost[what] * counts[what] for what in counts)
    return {
        "device": torch.cuda.get_device_name(0) if args.device == "cuda" else "CPU rank",
        "torch": torch.__version__, "ranks": args.ranks, "hidden": args.hidden, "layers": args.layers,
        "batch": args.batch, "seq_len": args.seq_len, "step_seconds": seconds,
        **{f"{what}_calls_per_step": counts[what] for what in counts},
        **{f"{what}_microseconds": round(cost[what], 3) for what in cost},
        "recorder_seconds_per_step": own, "recorder_share": own / seconds,
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


if __name__ == "__main__":
    main()
