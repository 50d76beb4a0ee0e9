"""Environments of their own for tools whose pins differ from ours, over the packages that are here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_UNLIKE_TORCH = ("torchvision", "torchaudio")
"""Wheels of the index are built for its CUDA torch; beside a CPU torch they cannot be imported."""


def python_with(folder: Path, name: str, *requirements: str) -> Path:
    """A Python with a tool and the pins it asks for, made in ``folder``.

    ``TOOL_ENVIRONMENTS`` names a folder that keeps environments from one run to the next.
    """
    kept = os.environ.get("TOOL_ENVIRONMENTS")
    home = Path(kept or folder) / name
    python = home / "bin" / "python"
    done = home / "installed"
    if done.is_file():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = next((home / "lib").iterdir()) / "site-packages"
    here = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "_here.pth").write_text("\n".join([*here, ""]))
    import torch

    pins = home / "pins.txt"
    pins.write_text(f"torch=={torch.__version__.partition('+')[0]}\n")
    install = [str(python), "-m", "pip", "install", "-q", "--no-input", "-c", str(pins)]
    environment = {**os.environ, "DS_BUILD_OPS": "0"}
    result = subprocess.run(
        [*install, *requirements], env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        pytest.skip(f"{name} cannot be installed here: {result.stderr[-300:]}")
    for package in _UNLIKE_TORCH:
        if subprocess.run(
            [str(python), "-c", f"import {package}"], capture_output=True, check=False
        ).returncode:
            subprocess.run([str(python), "-m", "pip", "uninstall", "-q", "-y", package], check=False)
            if package == "torchaudio":  # LLaMA-Factory imports it, and uses it for audio alone
                (site / "torchaudio.py").write_text('"""No audio is read."""\n')
    done.touch()
    return python
