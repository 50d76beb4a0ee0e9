"""What is said while a script is rehearsed: its steps, and now and then how long it takes."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from zerokit.rehearsal.order import PHASE
from zerokit.units import format_seconds

LIKELY_STEPS = 3
"""Optimizer steps after which the peaks of most scripts repeat; the last one's time tells what is left."""
QUIET_SECONDS = 30.0
"""After so long without a line one says where the rehearsal is."""


def pass_on(
    descriptor: int,
    say: Callable[[str], None],
    over: threading.Event,
    quiet_seconds: float = QUIET_SECONDS,
) -> None:
    """Say each line that a rehearsed process writes, with the time so far, until it writes no more.

    Args:
        over: the process has ended; what it left running may keep the pipe open.
    """
    started_at, reached, rest = time.monotonic(), "in load", b""
    step_began, left, done = started_at, 0.0, 0
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], quiet_seconds)
            took = format_seconds(time.monotonic() - started_at)
            if not ready:
                if over.is_set():
                    return
                rest_of_steps = left - (time.monotonic() - step_began)
                more = f", about {format_seconds(rest_of_steps)} left" if rest_of_steps > 0 else ""
                say(f"rehearsing for {took} so far: {reached}{more}")
                continue
            data = pipe.read(1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                text = line.decode("utf-8", "replace")
                if text.startswith(PHASE):
                    reached = f"in {text.removeprefix(PHASE)}"
                    if reached == "in forward" and not done:
                        step_began = time.monotonic()
                else:
                    reached, done = f"after {text.partition(':')[0]}", done + 1
                    now = time.monotonic()
                    left, step_began = max(0, LIKELY_STEPS - done) * (now - step_began), now
                    say(f"{text}, after {took}")
