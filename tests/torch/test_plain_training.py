"""Phases and steps of training without a DeepSpeed engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.support.allocator import Allocator, installed, probe_on  # noqa: E402
from zerokit.launcher.rank.plain_training import PlainTraining  # noqa: E402
from zerokit.launcher.rank.probe import Probe  # noqa: E402

MIB = 1 << 20
Loop = SimpleNamespace
"""``probe``, the stand-in ``allocator``, and ``plain``, which follows the loop."""


class Taking(torch.nn.Module):
    """A layer whose call takes so many MiB, and whose gradient twice as many."""

    def __init__(self, allocator: Allocator, size: int) -> None:
        super().__init__()
        self.linear, self.allocator, self.size = torch.nn.Linear(4, 4), allocator, size

    def forward(self, x: Any) -> Any:
        self.allocator.spike(self.size * MIB)
        result = self.linear(x)
        if result.requires_grad:
            result.register_hook(lambda _: self.allocator.spike(2 * self.size * MIB))
        return result


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    allocator = installed(monkeypatch, torch)
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)  # put back after
    with probe_on(torch, tmp_path) as probe:
        plain = PlainTraining(probe)
        plain.hook_torch(torch)
        allocator.allocate(MIB)
        yield Loop(probe=probe, allocator=allocator, plain=plain)
        plain.end()


def peaks(probe: Probe) -> dict[str, int]:
    return {
        name: phase["peak_allocated_bytes"] // MIB for name, phase in probe.account("tick")["phases"].items()
    }


def counts(probe: Probe) -> dict[str, int]:
    return {name: phase["count"] for name, phase in probe.account("tick")["phases"].items()}


def train(model: Any, optimizer: Any, steps: int, accumulation: int = 1) -> None:
    for _ in range(steps):
        for _ in range(accumulation):
            model(torch.ones(2, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_each_phase_has_its_peak_and_steps_their_time(loop: Loop) -> None:
    model = Taking(loop.allocator, 10)
    optimizer = torch.optim.AdamW(model.parameters())
    loop.allocator.spike(5 * MIB)
    train(model, optimizer, steps=3, accumulation=2)
    with torch.no_grad():
        model(torch.ones(2, 4))
        loop.allocator.spike(30 * MIB)
    loop.probe.enter("other")  # a phase is read when the next one begins
    account = loop.probe.account("end")
    assert peaks(loop.probe) == {
        "load": 6, "forward": 11, "backward": 21, "step": 1, "other": 1, "eval": 31,
    }  # fmt: skip
    assert (account["steps"], account["micro_steps"], account["most_micro_steps"]) == (3, 6, 2)
    assert account["steps_counted_by"] == "optimizer" and account["median_step_seconds"] > 0
    assert account["learning"]["loss"] > 0
    assert "work" not in account  # DDP's reducer waits unseen, so nobody is called a straggler


def test_a_reference_model_in_a_forward_and_recomputed_layers(loop: Loop) -> None:
    reference, model = Taking(loop.allocator, 50), Taking(loop.allocator, 10)

    class Recomputing(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                reference(x)
            return checkpoint(model, x, use_reentrant=False)

    train(Recomputing(), torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
    assert counts(loop.probe) == {"load": 1, "forward": 1, "backward": 1, "step": 1, "other": 1}
    assert peaks(loop.probe)["forward"] == 51  # a reference that is called within the model is part of it
    assert peaks(loop.probe)["backward"] == 21


def test_a_reference_model_between_forward_and_backward(loop: Loop) -> None:
    reference, model = Taking(loop.allocator, 50), Taking(loop.allocator, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(2, 4)).mean()
    with torch.no_grad():
        reference(torch.ones(2, 4))
    assert loop.probe.phase == "forward"
    (loss * 2).backward()
    optimizer.step()
    assert peaks(loop.probe) == {
        "load": 1, "forward": 11, "eval": 51, "backward": 21, "step": 1, "other": 0,
    }  # fmt: skip


def two_optimizers(model: Any) -> int:
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    for _ in range(2):  # as of a GAN
        for optimizer in (first, second):
            train(model, optimizer, steps=1)
    return 4


def one_inside_another(model: Any) -> int:
    class Outer(torch.optim.SGD):
        inner = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    train(model, Outer(model.parameters(), lr=0.1), steps=3)
    return 3


def with_a_closure(model: Any) -> int:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return 3


def one_step_fails(model: Any) -> int:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, steps=1)
    model.linear.weight.grad = torch.ones(4, 4).to_sparse()
    optimizer.param_groups[0]["maximize"] = "not a switch"
    optimizer.param_groups[0]["lr"] = "no number"
    with pytest.raises(Exception):  # noqa: B017
        optimizer.step()
    optimizer.param_groups[0] |= {"lr": 0.1, "maximize": False}
    optimizer.zero_grad()
    train(model, optimizer, steps=2)
    return 3


def within_the_backward_pass(model: Any) -> int:
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    model(torch.ones(2, 4)).mean().backward()
    return 0


def of_a_compiled_model(model: Any) -> int:
    torch._dynamo.reset()
    compiled = torch.compile(model.linear, backend="eager", fullgraph=True)
    train(compiled, torch.optim.SGD(model.parameters(), lr=0.1), steps=3)
    return 3


@pytest.mark.parametrize(
    "training",
    [two_optimizers, one_inside_another, with_a_closure, one_step_fails, within_the_backward_pass,
     of_a_compiled_model],
)  # fmt: skip
def test_how_many_steps_a_loop_makes(loop: Loop, training: Callable[[Any], int]) -> None:
    expected = training(Taking(loop.allocator, 10))
    assert loop.probe.steps == expected


def test_calls_of_another_thread_are_no_phase(loop: Loop) -> None:
    model = Taking(loop.allocator, 10)
    torch.optim.SGD(model.parameters(), lr=0.1)
    thread = threading.Thread(target=lambda: model(torch.ones(2, 4)).mean().backward())
    thread.start()
    thread.join()
    assert counts(loop.probe) == {"load": 1}


def test_what_an_evaluation_does_belongs_to_it(loop: Loop) -> None:
    model = Taking(loop.allocator, 10)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
    before = loop.probe.begin("eval")
    model(torch.ones(2, 4))
    loop.probe.finish(before)
    assert counts(loop.probe)["forward"] == 1 and peaks(loop.probe)["eval"] == 11


def test_an_engine_takes_over(loop: Loop) -> None:
    call, backward = torch.nn.Module.__call__, torch.autograd.backward
    model = Taking(loop.allocator, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert torch.nn.Module.__call__ is not call and torch.autograd.backward is not backward
    loop.plain.end()
    assert torch.nn.Module.__call__ is call and torch.autograd.backward is backward
    train(model, optimizer, steps=2)
    torch.optim.SGD(model.parameters(), lr=0.1)  # none is waited for any more
    assert loop.probe.steps == 0 and torch.nn.Module.__call__ is call
    assert "steps_counted_by" not in loop.probe.account("tick")


def test_the_optimizer_of_an_engine_that_is_being_made_is_not_the_script_s(loop: Loop) -> None:
    call = torch.nn.Module.__call__
    before = loop.probe.begin("init")
    torch.optim.SGD(Taking(loop.allocator, 10).parameters(), lr=0.1)
    loop.probe.finish(before)
    assert torch.nn.Module.__call__ is call
