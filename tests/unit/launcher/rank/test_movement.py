"""What a rank is said to be busy with; frames come from code compiled under the libraries' file names."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from zerokit.launcher.rank.movement import Activity

HUB = "/env/lib/python3/site-packages/huggingface_hub/file_download.py"
ENGINE = "/env/lib/python3/site-packages/deepspeed/runtime/engine.py"


def frame_in(path: str, function: str | None) -> FrameType:
    """A frame of ``function`` in that file, or of the file's own lines while it is imported."""
    lines = f"def {function}():\n    return get()\nframe = {function}()" if function else "frame = get()"
    names: dict[str, Any] = {"get": lambda: sys._getframe(1)}
    exec(compile(lines, path, "exec"), names)  # noqa: S102
    frame = names["frame"]
    assert isinstance(frame, FrameType)
    return frame


@pytest.mark.parametrize(
    ("path", "function", "words"),
    [
        (HUB, "http_get", "downloading"),
        (HUB, "hf_hub_download", None),  # what is in the cache is only looked up
        (HUB, None, None),  # an import, which every script of Transformers does
        (ENGINE, "save_checkpoint", "saving"),
        (ENGINE, "forward", None),
    ],
)
def test_the_innermost_listed_function_tells(path: str, function: str | None, words: str | None) -> None:
    assert Activity().of(frame_in(path, function)) == words
