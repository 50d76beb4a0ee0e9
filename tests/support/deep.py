"""What DeepSpeed and Accelerate say to files, asked of one process by all tests of a worker."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from zerokit.linter.deepspeed import deep


@functools.cache
def _engine() -> subprocess.Popen[str]:
    """The engine of ``check --deep``, which ends with this process."""
    return subprocess.Popen(
        [sys.executable, str(deep.ENGINE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, cwd=tempfile.mkdtemp(), env=deep.environment(),
    )  # fmt: skip


def ask(cases: Sequence[deep.DeepCase]) -> list[deep.DeepResult]:
    """As :func:`~zerokit.linter.deepspeed.deep.run_deep`, without the seconds of a start."""
    engine = _engine()
    assert engine.stdin is not None and engine.stdout is not None
    engine.stdin.write(deep.question(cases))
    engine.stdin.flush()
    return [deep.answer(engine.stdout.readline()) for _ in cases]
