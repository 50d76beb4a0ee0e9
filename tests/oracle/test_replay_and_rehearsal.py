"""The replay beside a rehearsal of the same loop: two models of memory that share hardly any code."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay_and_rehearsal import LIMIT, compare, names

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

SHOWN = ("llama.z3.ck",)
_UNTRACED = "the trace refuses this configuration: other operators at other batch sizes (TraceMismatch)"
DIFFERENT = {
    "gemma3.z2.ck": "the step is 4.3 MB (0.24 %) higher in the rehearsal; the cause is not known",
    "idefics3.z0": _UNTRACED,
    "smolvlm.z0": _UNTRACED,
}
NOT_RUN = ("idefics3.", "smolvlm.")
"""Families whose other settings have not been run since their rehearsals reach the end."""


def _case(name: str) -> object:
    if name in SHOWN:
        return name
    marks = [pytest.mark.slow]
    if name in DIFFERENT:
        marks.append(pytest.mark.xfail(reason=DIFFERENT[name], strict=True))
    elif name.startswith(NOT_RUN):
        marks.append(pytest.mark.xfail(reason=f"not run yet; likely {_UNTRACED}", strict=False))
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [_case(name) for name in names()])
def test_both_tell_the_same_peak_of_every_phase(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = compare(name, tmp_path)
    assert found.problem is None
    assert max(map(abs, found.errors().values())) <= LIMIT, found.pairs
