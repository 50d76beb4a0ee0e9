"""What a rank is busy with outside its steps, in words, read from the training thread's stack.

Long phases look like hangs from outside: an operator that is compiled, a download, a tokeniser. They
are known by the functions that are running: a table, one row each.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType

_DEEPEST = 128


def _operator(frame: FrameType) -> str:
    return f"building operator {frame.f_locals.get('name', '')}".rstrip()


def _lock(frame: FrameType) -> str:
    path = getattr(frame.f_locals.get("self"), "lock_file_path", "")
    return f"waiting for another build to release {path or 'its lock'}"


# end of the file's name, functions, words; the innermost frame that is listed wins. An import of a file is
# none of its functions: the hub's client is imported by scripts that download nothing.
_TABLE: tuple[tuple[str, frozenset[str], str | Callable[[FrameType], str]], ...] = (
    ("torch/utils/file_baton.py", frozenset({"wait"}), _lock),
    ("torch/utils/cpp_extension.py", frozenset({"_jit_compile"}), _operator),
    ("huggingface_hub/file_download.py",
     frozenset({"http_get", "xet_get", "get_hf_file_metadata", "_download_to_tmp_and_move"}), "downloading"),
    ("huggingface_hub/_snapshot_download.py", frozenset({"snapshot_download"}), "downloading"),
    ("datasets/download/download_manager.py", frozenset({"_download_batched", "_download_single"}),
     "downloading"),
    ("urllib/request.py", frozenset({"urlopen", "urlretrieve"}), "downloading"),
    ("datasets/builder.py", frozenset({"download_and_prepare", "as_dataset"}), "preparing data"),
    ("datasets/arrow_dataset.py", frozenset({"map", "filter", "from_generator", "_map_single"}),
     "preparing data"),
    ("torch/serialization.py", frozenset({"save"}), "saving"),
    ("safetensors/torch.py", frozenset({"save_file"}), "saving"),
    ("deepspeed/runtime/engine.py", frozenset({"save_checkpoint", "save_16bit_model"}), "saving"),
    ("deepspeed/runtime/engine.py", frozenset({"load_checkpoint"}), "loading a checkpoint"),
    ("transformers/modeling_utils.py", frozenset({"from_pretrained"}), "loading weights"),
    ("transformers/modeling_utils.py", frozenset({"save_pretrained"}), "saving"),
)  # fmt: skip

_Words = str | Callable[[FrameType], str] | None


class Activity:
    """Remembers which code means what, so that a look costs a dictionary's look-up a frame."""

    def __init__(self) -> None:
        self._known: dict[CodeType, _Words] = {}

    def of(self, frame: FrameType | None) -> str | None:
        """What the stack below ``frame`` is doing, if it is in the table."""
        depth = 0
        while frame is not None and depth < _DEEPEST:
            words = self._words(frame.f_code)
            if words is not None:
                return words if isinstance(words, str) else words(frame)
            frame, depth = frame.f_back, depth + 1
        return None

    def _words(self, code: CodeType) -> _Words:
        if code not in self._known:
            path = code.co_filename.replace("\\", "/")
            self._known[code] = next(
                (
                    words
                    for end, functions, words in _TABLE
                    if path.endswith(end) and code.co_name in functions
                ),
                None,
            )
        return self._known[code]


def waits_for_child(frame: FrameType | None) -> bool:
    """Whether the innermost Python function waits for a process of its own."""
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(("subprocess.py", "multiprocessing/popen_fork.py")):
            return True
        frame = frame.f_back
    return False
