"""Which DeepSpeed and accelerate versions a launch works with: the one place that says so.

Both ends were run on two CPU ranks, raw and Trainer scripts (``tests/corpus_scripts/test_supported.py``).

DeepSpeed 0.18.7 to 0.18.9 cannot train with ZeRO-1 or ZeRO-2 on several CPU ranks. Their first step gathers
the weights into views that autograd watches (``runtime/zero/stage_1_and_2.py:2205`` of 0.18.9), which gloo
refuses: "Output 0 of Split is a view and is being modified inplace". A script of DeepSpeed alone ends so with
torch 2.11 and 2.13; with 0.18.6 and 0.19.0 it trains.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION
from zerokit.machine.versions import installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Supported:
    """Versions of one package: the oldest and the newest that the tests run, and the first that is
    refused."""

    package: str
    oldest: str
    newest: str
    below: str

    @property
    def specifier(self) -> str:
        """Version specifier as pip writes it."""
        return f"{self.package}>={self.oldest},<{self.below}"

    def problem(self, version: str) -> str | None:
        """Why this version is refused; None: it is supported, or is no number that can be compared."""
        number = _numbers(version)
        if not number or _numbers(self.oldest) <= number < _numbers(self.below):
            return None
        return (
            f"{self.package} {version} is installed, but zerokit launch works with {self.specifier} "
            f"(tested: {self.oldest} and {self.newest}): pip install '{self.specifier}'"
        )


SUPPORTED = (
    Supported(package="deepspeed", oldest="0.16.9", newest=DEEPSPEED_VERSION, below="0.20"),
    Supported(package="accelerate", oldest="1.10.0", newest="1.15.0", below="2"),
)


def refusal(*packages: str) -> str | None:
    """Why these packages cannot be used as they are installed here; None: they can, or are not installed."""
    for supported in SUPPORTED:
        version = installed(supported.package) if supported.package in packages else None
        if version is not None and (problem := supported.problem(version)) is not None:
            return problem
    return None


def cpu_refusal(zero_stage: int, ranks: int) -> str | None:
    """Why the installed DeepSpeed cannot train at this stage on so many CPU ranks; None: it can."""
    version = installed("deepspeed")
    if version is None or ranks < 2 or zero_stage not in (1, 2):
        return None
    if not (0, 18, 7) <= _numbers(version) < (0, 19):
        return None
    return (
        f"DeepSpeed {version} fails in its first step with ZeRO-{zero_stage} on CPU ranks (0.18.7 to "
        "0.18.9 do): pip install 'deepspeed>=0.19,<0.20', or use ZeRO-3"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """``(0, 19, 8)`` of ``0.19.8+cpu``; a release candidate counts as its release."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
