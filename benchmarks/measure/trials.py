"""The jobs of ``limits``: a model, a card, and what grows until it no longer fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CARDS_MIB = {16: 16384, 24: 24564, 40: 40960, 48: 49140, 80: 81559, 120: 122880, 141: 143771}
"""GB as they are sold (but 120) -> MiB by nvidia-smi."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A job on a card. ``grow``: ``micro`` or ``seq``; ``options``: of ``zerokit plan``, beyond the usual."""

    model: str
    card: int
    grow: str = "micro"
    seq_len: int = 1024
    micro: int = 1
    gpus: int = 1
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique among the trials."""
        words = [f"{key.replace('-', '')}={value}" for key, value in self.options.items()]
        job = f"s{self.seq_len}" if self.grow == "micro" else f"b{self.micro}"
        return ".".join([f"{self.card}gb", self.model, f"w{self.gpus}", f"{job}+{self.grow}", *words])


def _lora(rank: int = 16, **more: object) -> dict[str, object]:
    return {"method": "lora", "lora-rank": rank, **more}


_FULL, _NONE, _CPU = {"checkpointing": "full"}, {"checkpointing": "none"}, {"offload-optimizer": "cpu"}
TRIALS = (
    # 16 GB
    Trial(model="qwen2.5-0.5b", card=16, grow="seq"),
    Trial(model="smollm2-360m", card=16, seq_len=512),
    Trial(model="pythia-410m", card=16),
    Trial(model="gpt2", card=16),
    Trial(model="bert-large", card=16, seq_len=512),
    Trial(model="smollm2-135m", card=16, grow="seq", micro=4, options={"zero": 2}),
    Trial(model="llama-3.2-1b", card=16, grow="seq", options=_lora()),
    Trial(model="tinyllama-1.1b", card=16, seq_len=2048, options=_lora(8, **_FULL)),
    Trial(model="llama-3.2-3b", card=16, grow="seq", options=_lora(**_FULL)),
    Trial(model="tinyllama-1.1b", card=16, grow="seq", options={**_CPU, **_FULL}),
    # 24 GB
    Trial(model="qwen2.5-0.5b", card=24, grow="seq", micro=2, options={**_FULL, "zero": 2}),
    Trial(model="opt-350m", card=24, options=_NONE),
    Trial(model="bert-base", card=24, seq_len=512, options={"precision": "fp16"}),
    Trial(model="llama-3.1-8b", card=24, grow="seq", options=_lora(8, **_FULL)),
    Trial(model="mistral-7b-v0.3", card=24, seq_len=1024, options=_lora(**_FULL)),
    Trial(model="bloom-560m", card=24, seq_len=256),
    Trial(model="qwen2.5-1.5b", card=24, grow="seq", options=_lora(**_NONE)),
    Trial(model="llama-3.2-1b", card=24, grow="seq", micro=1, gpus=2),
    Trial(model="smollm2-360m", card=24, grow="seq", micro=2, options={"precision": "fp32"}),
    # 40 GB
    Trial(model="llama-3.2-1b", card=40, grow="seq", options={"zero": 3}),
    Trial(model="tinyllama-1.1b", card=40, seq_len=1024),
    Trial(model="pythia-1b", card=40, seq_len=2048),
    Trial(model="qwen2.5-7b", card=40, grow="seq", options=_lora(**_FULL)),
    Trial(model="mistral-7b-v0.3", card=40, grow="seq", options=_lora(32, **_NONE)),
    Trial(model="qwen2.5-0.5b", card=40, options={**_NONE, "attention": "eager"}),
    Trial(model="gemma-3-1b", card=40, options=_FULL),
    Trial(model="qwen2.5-1.5b", card=40, gpus=2, seq_len=2048),
    # 48 GB
    Trial(model="qwen2.5-1.5b", card=48, grow="seq", micro=2, options=_FULL),
    Trial(model="smollm2-1.7b", card=48, seq_len=2048),
    Trial(model="pythia-1.4b", card=48, options={"precision": "fp16"}),
    Trial(model="falcon-7b", card=48, options=_lora(**_FULL)),
    Trial(model="qwen3-4b", card=48, grow="seq", options=_lora(**_NONE)),
    Trial(model="llama-3.2-3b", card=48, grow="seq", gpus=2, options={"zero": 3}),
    Trial(model="llama-3.1-8b", card=48, seq_len=1024, gpus=4, options={"zero": 3, **_FULL}),
    Trial(model="phi-3-mini", card=48, seq_len=1024, options=_lora(**_NONE)),
    # 80 GB
    Trial(model="llama-3.2-1b", card=80, seq_len=4096, options={"zero": 1}),
    Trial(model="gpt2-xl", card=80),
    Trial(model="gemma-2-2b", card=80, seq_len=2048, options=_FULL),
    Trial(model="qwen2.5-3b", card=80, grow="seq", options=_FULL),
    Trial(model="llama-3.1-8b", card=80, grow="seq", options=_lora(64, **_NONE)),
    Trial(model="olmo-2-7b", card=80, seq_len=2048, options=_lora(**_FULL)),
    Trial(model="llama-3.2-3b", card=80, seq_len=2048, gpus=2, options={"zero": 2}),
    Trial(model="llama-3.1-8b", card=80, grow="seq", gpus=2, options={"zero": 3, **_FULL}),
    # 141 GB
    Trial(model="llama-3.2-3b", card=141, grow="seq", micro=2),
    Trial(model="qwen3-4b", card=141, seq_len=2048),
    Trial(model="llama-3.1-8b", card=141, seq_len=1024, options=_lora(**_NONE)),
)
