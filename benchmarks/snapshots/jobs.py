"""Jobs of known memory, each recorded as PyTorch's memory snapshot with what the allocator counted beside it.

``python -m benchmarks.snapshots.jobs NAME FOLDER`` writes ``NAME.pickle`` and ``NAME.json``. The measured
phases are between calls, by ``torch.cuda.max_memory_allocated`` with a reset at the start of each. ``--device
cpu`` runs the same lines without recording.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

PYTHON: dict[str, Any] = {"stacks": "python"}
JOBS: dict[str, tuple[Callable[[Recording], None], dict[str, Any] | None]] = {}
"""What runs, and the arguments with which its history is recorded from the start; None: it begins it itself,
or has none."""
STEPS = 4


class Recording:
    """Recording of one job."""

    def __init__(self, name: str, folder: Path, device: str) -> None:
        self.name, self.folder, self.device = name, folder, device
        self.phases: dict[str, int] = {}
        self.planted: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        self.dumped = False

    def history(self, **arguments: Any) -> None:
        """Begin recording, with the arguments of PyTorch's own function."""
        if self.device == "cuda":
            torch.cuda.memory._record_memory_history(**arguments)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the peak allocated within, in bytes."""
        if self.device != "cuda":
            yield
            return
        torch.cuda.synchronize()
        self.phases["other"] = max(self.phases.get("other", 0), torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        try:
            yield
        finally:
            self.phases[name] = max(self.phases.get(name, 0), torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()

    def wrap(self, owner: Any, method: str, phase: str) -> None:
        """Measure every call of a method as a phase."""
        original = getattr(owner, method)

        def measured(*arguments: Any, **named: Any) -> Any:
            with self.phase(phase):
                return original(*arguments, **named)

        setattr(owner, method, measured)

    def holdings(self, model: nn.Module, optimizer: Any = None) -> None:
        """Note how many bytes weights, gradients and optimizer states take now."""
        weights = list(model.parameters())
        states = [v for s in optimizer.state.values() for v in s.values()] if optimizer is not None else []
        self.facts |= {
            "weights": storage_bytes(weights),
            "gradients": storage_bytes([w.grad for w in weights if w.grad is not None]),
            "optimizer_states": storage_bytes(states),
        }

    def dump(self) -> None:
        """Write the snapshot and what the allocator counted."""
        if self.dumped:
            return
        self.dumped = True
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.facts |= {
                "allocated": torch.cuda.memory_allocated(),
                "reserved": torch.cuda.memory_reserved(),
                "peak_allocated": max([torch.cuda.max_memory_allocated(), *self.phases.values()]),
                "peak_reserved": torch.cuda.max_memory_reserved(),
                "torch": torch.__version__,
                "python": sys.version.split()[0],
                "gpu": torch.cuda.get_device_name(),
            }
            torch.cuda.memory._dump_snapshot(str(self.folder / f"{self.name}.pickle"))
        facts = {"name": self.name, "phases": self.phases, "planted": self.planted, **self.facts}
        (self.folder / f"{self.name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def storage_bytes(tensors: list[Any]) -> int:
    """Count the bytes of the distinct GPU storages, rounded as the allocator rounds them."""
    local = [getattr(t, "_local_tensor", t) for t in tensors]  # of FSDP2's, whose own has no storage
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in local
        if isinstance(t, torch.Tensor) and t.is_cuda
    }
    return sum((n + 511) // 512 * 512 for n in storages.values())


def job(history: dict[str, Any] | None = PYTHON) -> Callable[[Any], Any]:
    def keep(run: Callable[[Recording], None]) -> Callable[[Recording], None]:
        JOBS[run.__name__.replace("_", "-")] = run, history
        return run

    return keep


def planted_line() -> int:
    """Give the line that calls this, where a leak is planted."""
    return sys._getframe(1).f_lineno


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Classifier(nn.Module):
    def __init__(self, width: int = 512, depth: int = 3, words: int = 4000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(r: Recording, rows: int = 4, length: int = 256, words: int = 4000) -> torch.Tensor:
    return torch.randint(0, words, (rows, length), device=r.device)


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    scores = model(ids)
    return functional.cross_entropy(scores.flatten(0, 1), ids.flatten())


def llama(layers: int = 4, **changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=8000,
        **changes,
    )
    return LlamaForCausalLM(config)


def train(
    r: Recording, model: nn.Module, optimizer: Any, loss_of: Callable[[Any, torch.Tensor], torch.Tensor],
    *, steps: int = STEPS, **sizes: int,
) -> None:  # fmt: skip
    """Train some steps, each phase of them measured; ``sizes``: of a batch."""
    for _ in range(steps):
        ids = batch(r, **sizes)
        with r.phase("forward"):
            loss = loss_of(model, ids)
        with r.phase("backward"):
            loss.backward()
        r.holdings(model, optimizer)
        with r.phase("step"):
            optimizer.step()
            optimizer.zero_grad()


def plain_loop(r: Recording, length: int = 256, steps: int = STEPS) -> None:
    with r.phase("load"):
        model = Classifier().to(r.device)
    train(r, model, torch.optim.AdamW(model.parameters()), loss_of, steps=steps, length=length)


JOBS |= {
    "plain": (plain_loop, {}),
    "plain-long": (partial(plain_loop, length=512), PYTHON),
    "cut-short": (plain_loop, {**PYTHON, "max_entries": 150}),
    "without-history": (plain_loop, None),
    "without-stacks": (plain_loop, {"context": None}),
    "state-only": (plain_loop, {**PYTHON, "enabled": "state"}),
}


@job(None)
def begun_late(r: Recording) -> None:
    model = Classifier().to(r.device)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, foreach=False)
    train(r, model, optimizer, loss_of, steps=1)
    r.history(**PYTHON)
    train(r, model, optimizer, loss_of, steps=STEPS - 1)


@job({**PYTHON, "global_record_annotations": True})
def annotated(r: Recording) -> None:
    note = getattr(torch.cuda.memory, "_set_memory_metadata", lambda text: None)
    model = Classifier().to(r.device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        ids = batch(r)
        note("forward")
        loss = loss_of(model, ids)
        note("backward")
        loss.backward()
        note("step")
        optimizer.step()
        optimizer.zero_grad()
        note("")


@job()
def expandable(r: Recording) -> None:
    plain_loop(r)
    torch.cuda.empty_cache()


def transformer_loop(r: Recording, model: Any, optimizer: Any) -> None:
    train(r, model, optimizer, lambda of, ids: of(input_ids=ids, labels=ids).loss, words=8000)


@job()
def checkpointing(r: Recording) -> None:
    with r.phase("load"):
        model = llama().to(r.device)
    model.gradient_checkpointing_enable()
    model.train()
    transformer_loop(r, model, torch.optim.AdamW(model.parameters(), foreach=False))


@job()
def lora(r: Recording) -> None:
    from peft import LoraConfig, get_peft_model

    with r.phase("load"):
        base = llama(dtype=torch.bfloat16).to(r.device)
        model = get_peft_model(base, LoraConfig(r=16, target_modules="all-linear"))
    trained = [w for w in model.parameters() if w.requires_grad]
    transformer_loop(r, model, torch.optim.AdamW(trained))


@job()
def trainer(r: Recording) -> None:
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 8000, (32, 256))]
    arguments = TrainingArguments(
        output_dir=str(r.folder / "trainer"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=3,
        report_to=[],
        save_strategy="no",
        bf16=r.device == "cuda",
        use_cpu=r.device != "cuda",
        disable_tqdm=True,
    )
    with r.phase("load"):
        run = Trainer(model=llama(), args=arguments, train_dataset=rows)
    r.wrap(run, "compute_loss", "forward")
    r.wrap(run.accelerator, "backward", "backward")
    run.train()
    r.holdings(run.model, run.optimizer)


def deepspeed_loop(r: Recording, stage: int) -> None:
    import deepspeed

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(29600 + stage)}  # fmt: skip
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    }
    with r.phase("load"):
        model = llama()
    with r.phase("init"):
        engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    for _ in range(STEPS):
        ids = batch(r, words=8000)
        with r.phase("forward"):
            loss = engine(input_ids=ids, labels=ids).loss
        with r.phase("backward"):
            engine.backward(loss)
        with r.phase("step"):
            engine.step()
    r.holdings(model)


JOBS |= {f"zero-{stage}": (partial(deepspeed_loop, stage=stage), PYTHON) for stage in (2, 3)}


@job()
def fsdp2(r: Recording) -> None:
    import torch.distributed as distributed
    from torch.distributed.fsdp import fully_shard

    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29620"}
    distributed.init_process_group("nccl" if r.device == "cuda" else "gloo")
    with r.phase("load"):
        model = llama().to(r.device)
    with r.phase("init"):
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    transformer_loop(r, model, torch.optim.AdamW(model.parameters()))
    distributed.destroy_process_group()


@job()
def generation(r: Recording) -> None:
    with r.phase("load"):
        model = llama(layers=3).to(r.device).eval()
    with r.phase("generate"):
        model.generate(batch(r, words=8000), max_new_tokens=12, min_new_tokens=12, do_sample=False)


@job()
def compiled(r: Recording) -> None:
    model = Classifier(depth=2).to(r.device)
    fast = torch.compile(model)
    train(r, model, torch.optim.AdamW(model.parameters()), lambda _, ids: loss_of(fast, ids), steps=3)


def out_of_memory(r: Recording, run: Callable[[], None]) -> None:
    """Run until memory is out, with a snapshot written by PyTorch's observer."""

    def observer(device: int, asked: int, held: int, free: int) -> None:
        r.facts |= {"asked": asked, "device_held": held, "device_free": free}
        (r.folder / f"{r.name}.pickle").write_bytes(pickle.dumps(torch.cuda.memory._snapshot()))

    if r.device == "cuda":
        torch._C._cuda_attach_out_of_memory_observer(observer)
        torch.cuda.set_per_process_memory_fraction(0.6e9 / torch.cuda.get_device_properties(0).total_memory)
    try:
        run()
    except torch.cuda.OutOfMemoryError as error:
        r.facts["message"] = str(error)
    r.facts["allocated_peak"] = torch.cuda.max_memory_allocated() if r.device == "cuda" else 0
    facts = {"name": r.name, "phases": r.phases, **r.facts}
    (r.folder / f"{r.name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    r.dumped = True


@job({})
def oom(r: Recording) -> None:
    out_of_memory(r, lambda: plain_loop(r, length=4096, steps=1))


@job()
def oom_fragmented(r: Recording) -> None:
    """Free every second of many blocks: plenty is free, no piece is large enough."""

    def run() -> None:
        kept = [torch.empty(4 << 20, dtype=torch.uint8, device=r.device) for _ in range(140)]
        del kept[::2]
        torch.empty(100 << 20, dtype=torch.uint8, device=r.device)
        del kept

    out_of_memory(r, run)


def leaking(
    r: Recording, keep: Callable[[nn.Module, torch.Tensor, torch.Tensor], None], prepare: Any = None
) -> None:
    """Train small steps, with something kept at each."""
    model = Classifier(width=128, depth=2, words=500).to(r.device)
    optimizer = torch.optim.AdamW(model.parameters())
    if prepare is not None:
        prepare(model)
    for _ in range(8):
        ids = batch(r, words=500)
        loss = loss_of(model, ids)
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        keep(model, ids, loss)


KEPT: list[Any] = []


@job()
def leak_losses(r: Recording) -> None:
    """Sum losses that still hold their graph."""
    model = Classifier(width=128, depth=2, words=500).to(r.device)
    optimizer = torch.optim.AdamW(model.parameters())
    total: Any = 0
    for _ in range(8):
        ids = batch(r, words=500)
        scores = model(ids)
        r.planted["loss"] = planted_line() + 1
        loss = functional.cross_entropy(scores.flatten(0, 1), ids.flatten())
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        total = total + loss
    KEPT.append(total)


@job({})
def leak_outputs(r: Recording) -> None:
    """Keep each step's scores for a metric."""

    def keep(model: nn.Module, ids: torch.Tensor, loss: torch.Tensor) -> None:
        with torch.no_grad():
            r.planted["outputs"] = planted_line() + 1
            KEPT.append(model(ids).softmax(-1))

    leaking(r, keep)


@job()
def leak_hook(r: Recording) -> None:
    """Keep every activation that a hook sees."""

    def prepare(model: Any) -> None:
        def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
            r.planted["hook"] = planted_line() + 1
            KEPT.append(output.detach().clone())

        model.blocks[0].register_forward_hook(hook)

    leaking(r, lambda model, ids, loss: None, prepare)


@job()
def leak_batches(r: Recording) -> None:
    """Keep the batches of a run on the GPU."""

    def keep(model: nn.Module, ids: torch.Tensor, loss: torch.Tensor) -> None:
        r.planted["batches"] = planted_line() + 1
        KEPT.append(torch.randn(64, 1024, device=r.device))

    leaking(r, keep)


@job()
def leak_gradients(r: Recording) -> None:
    """Keep copies of the gradients' norms by weight, never averaged."""
    history: dict[str, list[torch.Tensor]] = {}

    def prepare(model: nn.Module) -> None:
        for name, weight in model.named_parameters():

            def hook(gradient: torch.Tensor, name: str = name) -> None:
                r.planted["gradients"] = planted_line() + 1
                history.setdefault(name, []).append(gradient.clone())

            weight.register_hook(hook)

    leaking(r, lambda model, ids, loss: None, prepare)
    KEPT.append(history)


@job()
def leak_replay(r: Recording) -> None:
    """Fill a replay buffer that has no limit."""
    buffer = torch.zeros(0, 1024, device=r.device)

    def keep(model: nn.Module, ids: torch.Tensor, loss: torch.Tensor) -> None:
        nonlocal buffer
        rows = torch.randn(128, 1024, device=r.device)
        r.planted["replay"] = planted_line() + 1
        buffer = torch.cat([buffer, rows])

    leaking(r, keep)
    KEPT.append(buffer)


@job()
def leak_average(r: Recording) -> None:
    """Keep a copy of the weights at every step."""

    def keep(model: nn.Module, ids: torch.Tensor, loss: torch.Tensor) -> None:
        r.planted["average"] = planted_line() + 1
        KEPT.append({name: weight.detach().clone() for name, weight in model.named_parameters()})

    leaking(r, keep)


@job()
def leak_cache(r: Recording) -> None:
    """Grow a key-value cache across prompts."""
    cache: list[torch.Tensor] = []

    def keep(model: Any, ids: torch.Tensor, loss: torch.Tensor) -> None:
        with torch.no_grad():
            words = model.words(ids)
            r.planted["cache"] = planted_line() + 1
            cache.append(model.blocks[0].up(words))

    leaking(r, keep)
    KEPT.append(cache)


@job()
def leak_cycle(r: Recording) -> None:
    """Keep tensors in reference cycles, with the collector off."""
    import gc

    gc.disable()

    class Node:
        def __init__(self, scores: torch.Tensor) -> None:
            self.scores, self.me = scores, self

    def keep(model: nn.Module, ids: torch.Tensor, loss: torch.Tensor) -> None:
        r.planted["cycle"] = planted_line() + 1
        Node(torch.nn.functional.one_hot(ids, 500).float())

    leaking(r, keep)


@job()
def leak_exceptions(r: Recording) -> None:
    """Keep exceptions, whose frames hold what their functions held."""

    def fails(ids: torch.Tensor) -> None:
        r.planted["exceptions"] = planted_line() + 1
        mask = torch.ones(ids.shape[0], 256, 256, device=r.device)
        raise ValueError(f"bad batch of {len(mask)}")

    def keep(model: nn.Module, ids: torch.Tensor, loss: torch.Tensor) -> None:
        try:
            fails(ids)
        except ValueError as error:
            KEPT.append(error)

    leaking(r, keep)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*JOBS])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    recording = Recording(options.name, options.folder, options.device)
    run, history = JOBS[options.name]
    if history is not None:
        recording.history(**history)
    run(recording)
    recording.dump()


if __name__ == "__main__":
    main()
