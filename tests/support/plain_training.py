"""Rehearsals of ``tests/rehearsal/scripts/plain_training.py``: what training without an engine allocates."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.rehearsed_case import RehearsedCase
from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.ddp_settings import DdpSettings
from zerokit.domain.job import Job, Lora


@dataclass(frozen=True, slots=True)
class Case(RehearsedCase):
    """One row."""

    @property
    def job(self) -> Job:
        """What is trained."""
        rank, bits = int(self.value("--lora", "0")), self.value("--bits", "16")
        lora = Lora(rank=rank, dropout=float(self.value("--dropout", "0")))
        return Job(
            seq_len=int(self.value("--tokens", "512")),
            method="full" if not rank else "qlora" if bits == "4" else "lora",
            lora=lora if rank else None,
            quantization="int8" if bits == "8" else "none",
            use_reentrant_checkpointing="--reentrant" in self.options,
            trainer="transformers",
        )

    @property
    def settings(self) -> DdpSettings:
        """Its settings."""
        mixed, optim = self.value("--mixed", "bf16"), self.value("--optim", "adamw_torch_fused")
        weight_bytes = 4 if self.value("--dtype", "bfloat16") == "float32" else 2
        made = optim if client_optimizer(optim) is not None else None
        return DdpSettings(
            precision={"no": "bf16" if weight_bytes == 2 else "fp32"}.get(mixed, mixed),
            micro_batch=int(self.value("--batch", "1")),
            gradient_accumulation=int(self.value("--accumulation", "1")),
            gradient_clipping=1.0,
            optimizer=None if made else "SGD" if optim == "sgd" else "AdamW",
            client_optimizer=made,
            torch_adam=optim == "adamw_torch",
            weight_bytes=weight_bytes,
            adapter_bytes=weight_bytes if "--narrow" in self.options else 4,
            autocast=mixed != "no",
            by_trainer=True,
        )


CASES: dict[Case, tuple[int, int, int, int]] = {
    Case("llama-3.2-1b", 1, "--tokens 1024"):
        (2_471_629_824, 10_593_114_112, 11_004_392_960, 9_953_718_272),
    Case("llama-3.2-1b", 1, "--tokens 1024 --dtype float32"):
        (4_943_258_624, 20_827_883_520, 21_082_154_496, 19_840_233_472),
    Case("llama-3.2-1b", 1, "--tokens 1024 --lora 16"):
        (2_516_718_592, 5_933_007_872, 6_191_276_544, 2_719_226_880),
    Case("llama-3.2-1b", 2, "--tokens 1024"):
        (4_943_259_648, 13_327_412_224, 13_476_022_784, 12_425_348_096),
    Case("llama-3.2-1b", 2, "--tokens 1024 --lora 16"):
        (3_070_399_488, 6_236_375_040, 6_236_366_336, 2_764_316_672),
    Case("llama-3.2-1b", 1, "--tokens 1024 --lora 16 --bits 4 --optim paged_adamw_8bit"):
        (1_072_781_312, 4_140_683_264, 4_398_951_936, 1_195_337_728),
    Case("llama-3.2-1b", 1, "--tokens 1024 --batch 2 --checkpointing --accumulation 3"):
        (2_471_629_824, 12_748_568_576, 13_273_871_872, 9_953_800_192),
    Case("llama-3.2-1b", 1, "--tokens 1024 --dtype float32 --checkpointing --batch 4 --optim adamw_torch"):
        (4_943_258_624, 23_276_737_536, 22_347_633_152, 24_783_195_136),
    Case("llama-3.2-1b", 1, "--tokens 1024 --dtype float32 --mixed no"):
        (4_943_258_624, 21_610_629_120, 22_144_345_600, 19_840_233_472),
    Case("llama-3.2-1b", 1, "--tokens 1024 --lora 16 --dropout 0.05"):
        (2_516_718_592, 6_262_260_736, 6_520_529_408, 2_719_226_880),
    Case("llama-3.2-1b", 1, "--tokens 1024 --lora 16 --checkpointing --reentrant --batch 2"):
        (2_516_718_592, 5_483_078_656, 5_977_448_960, 2_719_243_264),
    Case(
        "llama-3.2-1b", 1,
        "--tokens 1024 --lora 16 --checkpointing --dropout 0.1 --batch 4 --accumulation 2",
    ):
        (2_516_718_592, 8_314_373_120, 9_325_658_624, 2_719_341_568),
    Case("llama-3.2-1b", 1, "--tokens 1024 --lora 16 --mixed no"):
        (2_516_718_592, 6_585_222_144, 6_843_687_424, 2_719_226_880),
    Case("llama-3.2-1b", 1, "--tokens 1024 --lora 16 --dtype float32"):
        (4_988_347_392, 10_868_003_840, 11_122_078_208, 5_190_855_680),
    Case("llama-3.2-1b", 2, "--tokens 1024 --checkpointing --batch 2"):
        (4_943_258_624, 12_748_503_040, 13_476_038_144, 12_425_363_456),
    Case("llama-3.2-1b", 2, "--tokens 1024 --dtype float32 --accumulation 2"):
        (9_886_517_248, 30_968_695_808, 30_968_687_104, 24_783_508_480),
    Case("llama-3.2-1b", 1, "--tokens 1024 --optim adamw_bnb_8bit"):
        (2_471_629_824, 9_728_236_544, 10_139_515_392, 9_088_840_704),
    Case("llama-3.2-1b", 1, "--tokens 1024 --optim paged_adamw_32bit --checkpointing"):
        (2_471_629_824, 3_936_809_984, 6_061_601_280, 5_010_926_592),
    Case("qwen2.5-0.5b", 1, "--tokens 2048 --batch 2"):
        (988_097_536, 14_929_391_616, 16_173_985_280, 4_020_760_576),
    Case("qwen2.5-0.5b", 2, "--tokens 1024 --lora 8 --checkpointing --mixed fp16 --dtype float16"):
        (1_453_071_360, 3_042_866_688, 3_042_858_496, 1_145_479_680),
    Case("gpt2", 1, "--tokens 1024 --batch 4"):
        (248_879_616, 6_157_880_832, 6_556_937_216, 1_063_819_264),
    Case("pythia-1.4b", 2, "--tokens 512 --checkpointing --batch 2"):
        (5_658_592_256, 12_023_417_856, 14_220_048_896, 14_215_853_056),
    Case("llama-3.2-1b", 1, "--tokens 1024 --lora 16 --narrow"):
        (2_494_174_208, 5_574_394_880, 5_832_860_160, 2_629_049_344),
    Case("llama-3.2-1b", 1, "--tokens 2048 --optim schedule_free_adamw"):
        (2_471_629_824, 13_704_061_952, 14_229_381_632, 12_425_288_704),
    Case("llama-3.2-1b", 1, "--tokens 1024 --lora 16 --bits 8"):
        (1_545_147_392, 4_693_001_216, 4_951_269_888, 1_747_655_680),
    Case(
        "llama-3.2-1b", 1,
        "--tokens 1024 --lora 16 --bits 4 --checkpointing --batch 4 --dropout 0.05 --optim adamw_bnb_8bit",
    ):
        (1_072_781_312, 6_757_912_576, 7_769_198_080, 1_207_969_792),
    Case("llama-3.2-1b", 2, "--tokens 1024 --lora 16 --bits 4 --checkpointing --batch 2 --accumulation 4"):
        (1_383_160_320, 4_623_804_928, 4_623_788_544, 1_320_494_080),
    Case("qwen2.5-0.5b", 1, "--tokens 1024 --dtype float32"):
        (1_976_132_096, 10_185_007_616, 10_492_420_096, 7_972_849_664),
    Case("llama-3.1-8b", 1, "--tokens 512 --lora 16 --bits 4 --checkpointing"):
        (5_870_528_512, 7_161_053_184, 7_204_302_336, 6_441_193_472),
    Case("llama-3.1-8b", 2, "--tokens 512 --lora 16 --batch 2"):
        (17_832_657_920, 25_584_114_176, 25_584_105_984, 16_966_743_040),
    Case("llama-3.2-1b", 1, "--tokens 512 --optim sgd"):
        (2_471_629_824, 4_094_270_464, 6_061_052_416, 5_010_377_728),
    Case("mistral-7b-v0.3", 1, "--tokens 512 --lora 8 --checkpointing --batch 2"):
        (14_579_934_208, 15_486_440_448, 15_503_200_768, 14_898_949_120),
    Case("qwen3-8b", 2, "--tokens 512 --lora 8 --bits 4 --batch 2"):
        (7_670_390_784, 15_361_699_328, 15_361_691_136, 6_577_436_672),
}  # fmt: skip
"""What was rehearsed of rank 0: the most allocated in init, forward, backward and step, in bytes (torch
2.13.0, transformers 5.23.0, accelerate 1.15.0, peft 0.21.2, bitsandbytes 0.50.2, schedulefree 1.4.1; all
layers, ``zerokit rehearse --whole``)."""
BY_TRL: dict[tuple[int, str, int, str], tuple[int, int, int, int]] = {
    (1, "full", 4, "full"): (4_943_258_624, 17_455_994_880, 20_907_718_144, 19_840_266_240),
    (1, "lora", 2, "none"): (2_516_718_592, 7_385_373_696, 7_359_957_504, 2_719_259_648),
    (1, "qlora", 2, "full"): (1_095_431_168, 1_510_032_384, 1_699_538_432, 1_230_339_072),
}  # fmt: skip
"""(GPUs, method, bytes of a weight, checkpointing) -> what TRL 1.16's sft.py allocates of llama-3.2-1b, two
rows of 1,024 tokens each, its loss in chunks (Triton 3.7), LoRA of rank 16 on all linear layers."""
