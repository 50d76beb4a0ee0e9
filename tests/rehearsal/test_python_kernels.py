"""Operators whose CUDA kernel is written in Python (bitsandbytes has such): which one a CUDA tensor gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from zerokit.rehearsal.process import tensors  # noqa: E402


@pytest.mark.parametrize("order", [("default", "cuda"), ("cuda", "default")])
def test_the_default_kernel_runs_where_there_is_none_for_cuda(
    order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.library, "register_kernel", lambda op, kind: lambda kernel: kernel)
    mode: Any = SimpleNamespace(cuda_kernels={})
    tensors._collect_python_kernels(mode)
    for kind in order:
        torch.library.register_kernel("lib::both", kind)(f"both on {kind}")
    torch.library.register_kernel("lib::one", "default")("one on default")
    torch.library.register_kernel("lib::host", "cpu")("host")
    assert mode.cuda_kernels == {"lib::both": "both on cuda", "lib::one": "one on default"}
