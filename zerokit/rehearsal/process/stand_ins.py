"""Packages of compiled kernels that the run has and this machine lacks: made up where the run asks for them.

Libraries choose their code by what is installed, so a stand-in is offered only to a run that names it:
``flash_attention_2`` among the arguments, in a file that they name or in the script, or an import without
which the script would end.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, ModuleType

from zerokit.rehearsal.order import Order

FLASH_ATTENTION_VERSION = "2.8.3"
NOT_STOOD_IN = {
    "apex": "apex",
    "transformer_engine": "Transformer Engine",
    "mamba_ssm": "Mamba's kernels",
    "causal_conv1d": "causal-conv1d",
    "fla": "flash-linear-attention",
    "xformers": "xFormers",
    "flash_attn": "flash-attn",
}
"""Packages of kernels by the module that is imported, which code takes where they are installed."""
_ASK_WITHOUT_USE = {"deepspeed"}
"""Import apex wherever it is, and use it only where a configuration says ``amp``."""
_ASKS = re.compile(r"flash_attention_2|^(?:from|import) flash_attn\b", re.MULTILINE)
_MOST_BYTES = 1 << 20
_READ = (".json", ".yaml", ".yml", ".toml", ".sh")


def offer(order: Order) -> list[str]:
    """Put stand-ins where imports find them, after all that is installed.

    Returns:
        What they are, to be told.
    """
    if not _asks_for_flash_attention(order) or importlib.util.find_spec("flash_attn") is not None:
        return []
    folder = Path(order.folder, "stand-ins")
    package, about = folder / "flash_attn", folder / f"flash_attn-{FLASH_ATTENTION_VERSION}.dist-info"
    for path in (package, about):
        path.mkdir(parents=True)
    module = "zerokit.rehearsal.process.flash_attention"
    for name in ("__init__", "flash_attn_interface", "bert_padding"):
        (package / f"{name}.py").write_text(
            f'from {module} import *\n__version__ = "{FLASH_ATTENTION_VERSION}"\n'
        )
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {FLASH_ATTENTION_VERSION}\n"
    )
    (about / "top_level.txt").write_text("flash_attn\n")
    (about / "RECORD").write_text("flash_attn/__init__.py,,\n")
    sys.path.append(str(folder))
    return [f"flash-attn, which is not installed here: as version {FLASH_ATTENTION_VERSION}"]


_SPARSE = re.compile(r"aten[.:]+_?\w*(to_sparse|sparse_(csr|csc|bsr|bsc|compressed)_tensor|to_dense)")


class Missing:
    """A meta path finder, the last one: what is imported, and not found, of :data:`NOT_STOOD_IN`.

    A look-up (``importlib.util.find_spec``) is no import.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Nothing; tells what is missing."""
        name = NOT_STOOD_IN.get(fullname)
        importer = _importer() if name is not None else None
        if importer is not None and importer not in _ASK_WITHOUT_USE:
            self._warn(
                f"{name} is imported and not installed here: where the run has it, it may take other code "
                "and allocate otherwise"
            )


def _importer() -> str | None:
    """The package whose import statement asks the finders; None where it is a look-up: behind ``_find_spec``
    stands what asked."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "_find_and_load_unlocked":
        if frame.f_globals.get("__name__") != "importlib._bootstrap":
            return None
        frame = frame.f_back
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("importlib"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]


def explain(error: BaseException) -> str:
    """What is to be said of an error that ended the script: an import without a stand-in, a sparse tensor."""
    if _SPARSE.search(str(error)) and not isinstance(error, ModuleNotFoundError):
        return (
            "; of sparse tensors only those of coordinates (COO) are modelled: where the script has an "
            "option for dense ones, rehearse it with that"
        )
    root = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or root not in NOT_STOOD_IN:
        return ""
    return (
        f"; nothing stands in for {NOT_STOOD_IN[root]} in a rehearsal: where the script has an option for "
        "PyTorch's own kernels, rehearse it with that"
    )


def _asks_for_flash_attention(order: Order) -> bool:
    named = [Path(part) for argument in order.arguments for part in argument.rpartition("=")[::2] if part]
    # os.path: a text that is too long for a name is no folder, where pathlib raises
    files = [path / "config.json" if os.path.isdir(path) else path for path in named]  # noqa: PTH112
    texts = [*order.arguments, *(_text(file) for file in files if file.suffix in _READ)]
    if not order.is_module:
        texts.append(_text(Path(order.target)))
    return any(_ASKS.search(text) for text in texts)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace") if path.stat().st_size <= _MOST_BYTES else ""
    except OSError:
        return ""
