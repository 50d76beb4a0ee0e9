"""Lists of GPU architectures, against the function of DeepSpeed that reads them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.packages import needs
from zerokit.machine import architectures

needs("deepspeed")


@pytest.fixture(scope="module")
def builder() -> Any:
    """An operator of no sources: only its compiler flags are asked for."""
    from deepspeed.ops.op_builder.builder import CUDAOpBuilder  # seconds

    class Builder(CUDAOpBuilder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("nothing")
            self.jit_mode = True

        def absolute_name(self) -> str:
            return "nothing"

        def sources(self) -> list[str]:
            return []

    return Builder()


@pytest.mark.parametrize(
    "listed", ["9.0a", "8.0 9.0a 10.0+PTX", "Hopper;9.0", "8.0;9.0+PTX", "7.5 8.0", " 9.0 ;"]
)
def test_deepspeed_fails_on_what_is_unreadable_and_takes_what_is_readable(
    listed: str, builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(value: str) -> None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", value)
        builder.compute_capability_args()

    if architectures.unreadable(listed):
        with pytest.raises(ValueError, match="invalid literal for int"):
            read(listed)
    else:
        read(listed)
    read(architectures.readable(listed))
