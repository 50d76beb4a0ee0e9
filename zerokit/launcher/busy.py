"""How much longer than on an idle machine something may take now."""

from __future__ import annotations

import os

MOST = 10.0


def slowdown() -> float:
    """How many times longer a process takes that shares the processors: 1 to :data:`MOST`.

    By the load average of the last minute: processes that run or want to, by processor.
    """
    return min(MOST, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
