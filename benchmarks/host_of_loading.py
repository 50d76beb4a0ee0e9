"""What a process takes of its host while Transformers loads a model: its own memory, and pages of the file.

    python -m benchmarks.host_of_loading OUT.jsonl [FOLDER]   # on a GPU machine with bitsandbytes

Makes a Llama of 2.8 B parameters with random weights in bf16, once, and loads it in three processes: in 4
bits, in 8 bits, and as it is with a move to the GPU afterwards, each after a tiny model, with which libraries
load what they need themselves. One line each, in MiB of /proc/self/status: before, the most while it was
loaded (looked at every 5 ms), loaded, moved. ``RssFile`` are pages of mapped files, which the kernel takes
back when memory is short; ``RssAnon`` is what a host must have.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

KINDS = ("four", "eight", "plain")
_FIELDS = ("RssAnon", "RssFile", "VmHWM", "VmRSS")


def resident() -> dict[str, int]:
    """MiB, of this process."""
    lines = (line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) // 1024 for name, value in lines if name in _FIELDS}


def make(folder: Path, layers: int) -> None:
    """A model in one safetensors file; ``layers`` 0: nearly nothing."""
    import torch
    import transformers

    width = 3072 if layers else 192
    config = transformers.LlamaConfig(
        vocab_size=32000 if layers else 100, hidden_size=width, intermediate_size=8192 if layers else 512,
        num_hidden_layers=layers or 1, num_attention_heads=24, num_key_value_heads=8,
    )  # fmt: skip
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="50GB")


def load(kind: str, folder: Path) -> dict[str, object]:
    """One line."""
    import torch
    import transformers

    torch.zeros(1, device="cuda")
    packed = {
        "four": lambda: transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        ),
        "eight": lambda: transformers.BitsAndBytesConfig(load_in_8bit=True),
    }  # fmt: skip
    quantization = packed[kind]() if kind in packed else None
    if quantization is not None:
        import bitsandbytes  # noqa: F401 - what it takes itself is none of the load

    def loaded_from(place: Path) -> transformers.PreTrainedModel:
        return transformers.AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.bfloat16, quantization_config=quantization
        )

    small = loaded_from(folder / "small")  # libraries load what they need, once
    if quantization is None:
        small.to("cuda")
    del small
    before, done = resident(), threading.Event()
    most = dict(before)

    def watch() -> None:
        while not done.wait(0.005):
            for name, size in resident().items():
                most[name] = max(most[name], size)

    watching = threading.Thread(target=watch)
    watching.start()
    began = time.monotonic()
    model = loaded_from(folder / "large")
    loaded = resident()
    if quantization is None:
        model.to("cuda")
    torch.cuda.synchronize()
    moved = resident()
    done.set()
    watching.join()
    return {
        "kind": kind, "parameters": model.num_parameters(), "seconds": round(time.monotonic() - began, 1),
        "before": before, "most": most, "loaded": loaded, "moved": moved,
        "gpu_mib": torch.cuda.memory_allocated() >> 20,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "gpu": torch.cuda.get_device_name()},
    }  # fmt: skip


def main() -> None:
    """Each load in a process of its own."""
    if sys.argv[1] in KINDS:
        print(json.dumps(load(sys.argv[1], Path(sys.argv[2]))))
        return
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else name)
        make(folder / "large", 26)
        make(folder / "small", 0)
        for kind in KINDS:
            words = [sys.executable, "-m", "benchmarks.host_of_loading", kind, str(folder)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            with out.open("a") as file:
                file.write(done.stdout.splitlines()[-1] + "\n")


if __name__ == "__main__":
    main()
