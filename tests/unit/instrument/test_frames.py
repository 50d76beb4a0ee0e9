"""Frames of threads are read in a process whose garbage holds what Python 3.11 deadlocks on."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from zerokit.instrument.frames import frames_of_threads

# sixty new threads' frames are made while the next collection frees thread-local values
DEADLOCKS = """
import gc, threading
from zerokit.instrument.frames import frames_of_threads
stop = threading.Event()
threads = [threading.Thread(target=stop.wait, daemon=True) for _ in range(60)]
for thread in threads: thread.start()
class Cycle: pass
gc.collect()
gc.disable()
for _ in range(50):
    cycle = Cycle()
    cycle.itself, cycle.local = cycle, threading.local()
    cycle.local.value = 1
del cycle
gc.set_threshold(gc.get_count()[0] + 20)
gc.enable()
assert len(frames_of_threads()) == 61 and gc.isenabled()
"""


def test_no_collection_stops_the_process() -> None:
    # sys._current_frames in its place: this never ends on Python 3.11.7
    subprocess.run([sys.executable, "-c", DEADLOCKS], check=True, timeout=60)


def test_what_was_turned_off_stays_off() -> None:
    gc.disable()
    try:
        assert threading.get_ident() in frames_of_threads()
        assert not gc.isenabled()
    finally:
        gc.enable()
