"""What is seen of losses and gradient norms."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from zerokit.launcher.rank.training_watch import TrainingWatch  # noqa: E402


def watch(losses: list[float], norms: list[Any]) -> dict[str, Any]:
    training = TrainingWatch()
    for loss in losses:
        training.see_loss(torch.tensor(loss, requires_grad=True))
    for norm in norms:
        training.see_gradient_norm(norm)
    known: dict[str, Any] = training.account().get("learning", {})
    return known


def test_runs_of_the_same_and_of_no_number() -> None:
    seen = watch([1.0, 2.0, 2.0, 2.0], [])
    assert {name: seen[name] for name in ("loss", "losses", "same", "not_finite", "zero_gradients")} == {
        "loss": 2.0, "losses": 4, "same": 3, "not_finite": 0, "zero_gradients": 0
    }  # fmt: skip
    assert watch([2.0, float("nan"), float("inf")], [])["not_finite"] == 2
    assert watch([float("nan"), 2.0], [])["same"] == 1
    assert watch([], []) == {}


def test_the_first_losses_tell_whether_ranks_read_the_same_batches() -> None:
    losses = [5.0 - 0.1 * number for number in range(40)]
    training, again = watch(losses, []), watch([*losses[:32], 1.5], [])
    assert training["first_losses"] == again["first_losses"]
    assert watch([*losses[:20], 9.0, *losses[21:]], [])["first_losses"] != training["first_losses"]
    assert "first_losses" not in watch(losses[:31], [])
    coarse = [5.0 - (number // 6) / 16 for number in range(128)]  # as losses in bf16 are, with any data
    assert "first_losses" not in watch(coarse[:127], [])
    assert watch([*coarse, 1.5], [])["first_losses"] == watch(coarse, [])["first_losses"]
    assert "first_losses" not in watch([2.0, 1.0] * 1000 + losses, [])
    assert "first_losses" not in watch([float("nan")] * 64, [])


def test_a_norm_that_was_never_computed_is_not_zero() -> None:
    zero = torch.zeros(())
    assert watch([1.0], [0.0, 0.0, None])["zero_gradients"] == 0
    assert watch([1.0], [torch.ones(()), zero, zero])["zero_gradients"] == 2


def test_weights_that_stay_are_told_from_those_that_move_by_the_smallest_step() -> None:
    model, training = torch.nn.Linear(8, 8), TrainingWatch()
    training.see_loss(torch.ones((), requires_grad=True))
    for rate in (0.0, 0.0, 0.0, 1e-7):
        with torch.no_grad():
            model.weight -= rate
        training.see_weights(model)
        seen = training.account()["learning"]
    assert (seen["weights"], seen["same_weights"]) == (4, 1)
    training.see_weights(model.bfloat16())  # in which such a step may be lost
    model.requires_grad_(False)
    training.see_weights(model.float())
    assert training.account()["learning"]["weights"] == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_nobody_waits() -> None:
    training = TrainingWatch()
    for _ in range(5):
        training.see_loss(torch.full((), 2.0, device="cuda"))
        torch.cuda.synchronize()
    assert training.account()["learning"]["same"] == 4  # the last is on its way
