"""Which attention kernel a call runs in, by PyTorch's version (``sdp_utils.cpp``, messages in its wheels)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from zerokit.rehearsal.process.sdpa_choice import Kernel, choose  # noqa: E402

HOPPER, ADA = (9, 0), (8, 9)


def heads(dim: int, dtype: str = "float16", *, requires_grad: bool = False) -> torch.Tensor:
    return torch.empty(2, 4, 48, dim, dtype=getattr(torch, dtype), device="meta", requires_grad=requires_grad)


@pytest.mark.parametrize(
    ("version", "dropout", "kernel"),
    [
        ("2.11.0+cu130", 0.1, Kernel.CUDNN),  # BERT in fp16 on an H200: cuDNN's blocks in its history
        ("2.12.1", 0.1, Kernel.EFFICIENT),  # "cuDNN dropout probability resolution is limited to 1/16"
        ("2.12.1", 0.125, Kernel.CUDNN),
        ("2.9.1", 0.1, Kernel.EFFICIENT),  # cuDNN comes last before 2.10
    ],
)
def test_cudnn_takes_any_dropout_until_pytorch_2_12(
    version: str, dropout: float, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    query = heads(64)
    mask = torch.empty(2, 1, 48, 48, dtype=torch.bool, device="meta")
    assert choose(HOPPER, query, query, query, mask, dropout_p=dropout) is kernel
    assert choose(ADA, query, query, query, mask, dropout_p=dropout) is Kernel.EFFICIENT


@pytest.mark.parametrize(
    ("version", "dim", "requires_grad", "kernel"),
    [
        ("2.13.0", 256, True, Kernel.FLASH),
        ("2.14.1", 256, True, Kernel.CUDNN),
        ("2.14.1", 160, False, Kernel.CUDNN),
        ("2.14.1", 160, True, Kernel.FLASH),  # "does not support backward with these head dimensions"
        ("2.14.1", 128, True, Kernel.CUDNN),
    ],
)
def test_cudnn_takes_wide_heads_from_pytorch_2_14(
    version: str, dim: int, requires_grad: bool, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    query = heads(dim, requires_grad=requires_grad)
    assert choose(HOPPER, query, query, query) is kernel
