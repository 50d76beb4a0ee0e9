"""What is said of a rehearsal that goes on."""

from __future__ import annotations

import os
import re
import threading
import time

from zerokit.rehearsal.conduct import pass_on
from zerokit.rehearsal.order import PHASE, STEP

TOOK = re.compile(r"\d+(\.\d)? (ms|s)")


def said_of(*written: str | float, over: bool = False) -> list[str]:
    """The lines, without their figures; numbers among ``written`` are seconds in which nothing is."""
    reading, writing = os.pipe()
    lines: list[str] = []
    ended = threading.Event()
    reader = threading.Thread(target=pass_on, args=(reading, lines.append, ended, 0.2))
    reader.start()
    for part in written:
        if isinstance(part, float):
            time.sleep(part)
        else:
            os.write(writing, part.encode())
    if over:
        ended.set()
    else:
        os.close(writing)
    reader.join(timeout=20)
    assert not reader.is_alive()
    if over:
        os.close(writing)
    return [TOOK.sub("T", line) for line in lines]


def test_a_step_is_said_with_the_time_and_a_phase_is_not() -> None:
    step = f"{STEP}1: peak allocated so far 3.20 GiB"
    assert said_of(f"{PHASE}init\n{step[:20]}", f"{step[20:]}\n") == [f"{step}, after T"]


def test_a_long_silence_names_the_phase_or_the_last_step() -> None:
    assert set(said_of(0.5)) == {"rehearsing for T so far: in load"}
    assert set(said_of(f"{PHASE}init\n", 0.5)) == {"rehearsing for T so far: in init"}
    step = f"{STEP}1: peak\n"
    assert said_of(step, 0.5)[-1] == "rehearsing for T so far: in load, after optimizer step 1"
    *_, last = said_of(step, f"{PHASE}eval, importing a.b\n", 0.5)
    assert last == "rehearsing for T so far: in eval, importing a.b, after optimizer step 1"


def test_phases_that_go_by_are_no_news() -> None:
    assert said_of(*[f"{PHASE}forward\n", 0.1, f"{PHASE}backward\n", 0.1] * 2)


def test_other_news_is_no_step() -> None:
    assert said_of("no namespaces here\n", 0.5)[-1] == "rehearsing for T so far: in load"


def test_nothing_is_said_once_the_process_has_ended() -> None:
    assert said_of(f"{STEP}2: peak\n", over=True) == ["optimizer step 2: peak, after T"]
