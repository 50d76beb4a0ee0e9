"""Rehearsals of ``tests/rehearsal/scripts/fully_sharded.py``: what FSDP2 itself allocates."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.rehearsed_case import RehearsedCase
from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.job import Job, Lora

CLIENTS = {
    "torchao.optim.AdamW8bit": "adamw_torch_8bit",
    "torchao.optim.AdamW4bit": "adamw_torch_4bit",
    "schedulefree.AdamWScheduleFree": "schedule_free_adamw",
}
"""Class of an optimizer -> its name among a Trainer's ``optim``."""


@dataclass(frozen=True, slots=True)
class Case(RehearsedCase):
    """One row."""

    @property
    def job(self) -> Job:
        """What is trained."""
        lora = int(self.value("--lora", "0"))
        tokens = int(self.value("--tokens", "512"))
        adapters = Lora(rank=lora, targets=("all-linear",), dropout=0.0) if lora else None
        packed, reentrant = "--packed" in self.options, "--reentrant" in self.options
        return Job(
            seq_len=tokens, method="qlora" if packed else "lora" if lora else "full", lora=adapters,
            trainer="axolotl" if "--kbit" in self.options else "raw", use_reentrant_checkpointing=reentrant,
            loss="liger" if "--liger" in self.options else "standard",
        )  # fmt: skip

    @property
    def settings(self) -> Fsdp2Settings:
        """Its settings."""
        narrow = "--dtype bfloat16" in self.options and "--lora" not in self.options
        sixteen = "fp16" if "--fp16" in self.options else "bf16"
        made = self.value("--client", "torch.optim.AdamW")
        client, parts = CLIENTS.get(made), int(self.value("--tp", "1"))
        sent = "float32" if parts > 1 and "--fp32" not in self.options else None
        return Fsdp2Settings(
            precision="fp32" if "--fp32" in self.options and not narrow else sixteen,
            optimizer=None if client else made.rpartition(".")[2],
            client_optimizer=client,
            micro_batch=int(self.value("--batch", "1")),
            gradient_accumulation=int(self.value("--accumulation", "1")),
            torch_adam="--foreach" in self.options,
            reshard_after_forward="--keep-gathered" not in self.options,
            replicas=int(self.value("--replicas", "1")),
            rotation=self.value("--rotate", "allgather"),
            offload="--offload" in self.options,
            reduce_dtype=self.value("--reduce", "") or sent,
            master_bytes=2 if narrow else 4,
            frozen_bytes=None if narrow or "--accelerate" in self.options else 4,  # loaded in fp32
            sync_each_batch="--sync-each-batch" in self.options,
            broadcasts="--broadcast" in self.options,
            wrapping="accelerate" if "--accelerate" in self.options or parts > 1 else "layers",
            tp_size=parts,
        )


CASES: dict[Case, tuple[int, int, int, int]] = {
    Case("llama-3.2-1b", 2, "--accelerate --tokens 2048"):
        (3_522_311_168, 14_351_101_440, 14_754_778_624, 9_953_716_736),
    Case("llama-3.2-1b", 4, "--accelerate --tokens 2048 --checkpointing --batch 2 --foreach"):
        (2_286_496_768, 10_011_103_744, 10_940_068_352, 6_246_215_168),
    Case("llama-3.2-1b", 4, "--tokens 1024 --accumulation 3"):
        (2_286_496_768, 10_004_272_640, 10_266_932_224, 5_010_450_432),
    Case("llama-3.2-1b", 2, "--tokens 1024 --fp32"):
        (3_522_311_168, 15_489_699_328, 16_181_791_744, 9_953_708_032),
    Case("llama-3.2-1b", 8, "--accelerate --replicas 2 --tokens 1024 --checkpointing"):
        (2_286_496_768, 5_819_131_392, 7_457_351_168, 5_010_450_944),
    Case("qwen2.5-0.5b", 4, "--tokens 1024 --dtype bfloat16 --fp32 --batch 4 --checkpointing"):
        (519_314_944, 7_541_785_600, 8_786_379_264, 1_057_533_952),
    Case("qwen2.5-0.5b", 3, "--accelerate --tokens 1024 --keep-gathered"):
        (1_203_682_304, 6_038_607_872, 6_319_915_520, 2_704_835_072),
    Case("llama-3.1-8b", 8, "--accelerate --tokens 4096 --checkpointing"):
        (8_217_839_616, 20_677_552_128, 20_677_511_168, 16_127_814_656),
    Case("llama-3.1-8b", 8, "--tokens 512"):
        (8_217_840_640, 18_719_100_416, 20_438_886_912, 16_127_785_472),
    Case("llama-3.1-8b", 8, "--tokens 512 --checkpointing --reduce float32"):
        (8_217_840_640, 17_192_272_384, 21_906_511_360, 16_127_785_472),
    Case("mistral-7b-v0.3", 4, "--accelerate --tokens 512 --offload --checkpointing"):
        (1_207_975_936, 1_510_269_952, 1_996_827_136, 67_114_496),
    Case("mistral-7b-v0.3", 8, "--accelerate --tokens 512 --accumulation 2 --checkpointing"):
        (4_697_769_984, 26_878_501_376, 26_748_535_808, 14_563_310_592),
    Case("mistral-7b-v0.3", 2, "--accelerate --tokens 512 --lora 16 --dtype bfloat16"):
        (7_869_051_904, 11_815_106_560, 11_496_555_008, 7_650_911_232),
    Case("qwen2.5-7b", 4, "--accelerate --tokens 1024 --lora 16 --dtype bfloat16 --checkpointing"):
        (6_028_441_600, 7_963_590_144, 7_177_674_240, 4_038_740_992),
    Case("qwen3-8b", 8, "--accelerate --tokens 1024 --keep-gathered --checkpointing"):
        (9_074_055_168, 31_871_594_496, 30_938_083_328, 16_448_904_192),
    Case("qwen2.5-0.5b", 2, "--accelerate --accumulation 2 --sync-each-batch --tokens 512 --checkpointing"):
        (1_532_639_744, 5_127_562_752, 5_253_316_096, 4_021_721_088),
    Case("qwen2.5-0.5b", 4, "--accumulation 2 --sync-each-batch --reduce float32 --replicas 2 --tokens 256"):
        (1_532_639_744, 5_066_367_488, 5_885_202_944, 4_020_670_464),
    Case("llama-3.2-1b", 4, "--lora 16 --tokens 1024 --checkpointing --batch 4"):
        (2_297_768_960, 7_557_767_680, 8_591_597_568, 1_348_160_512),
    Case("pythia-1.4b", 4, "--accelerate --tokens 512 --checkpointing"):
        (2_238_844_928, 5_037_572_608, 6_191_555_072, 5_727_951_872),
    Case("gpt2", 2, "--accelerate --tokens 1024 --batch 4"):
        (406_419_456, 5_174_805_504, 5_572_269_568, 1_063_791_104),
    Case("qwen2.5-0.5b", 3, "--accelerate --tokens 512 --broadcast"):
        (1_566_708_224, 3_835_027_456, 3_960_756_736, 2_704_830_464),
    Case("llama-3.2-1b", 2, "--accelerate --tokens 512 --broadcast --offload"):
        (1_576_009_728, 2_269_618_688, 2_410_795_520, 67_113_984),
    Case("llama-3.1-8b", 8, "--accelerate --tokens 512 --checkpointing --broadcast"):
        (6_116_476_928, 15_021_957_120, 18_406_883_328, 16_127_785_472),
    Case("llama-3.2-1b", 2, "--accelerate --lora 16 --packed --dtype bfloat16 --tokens 1024 --checkpointing"):
        (1_601_560_576, 2_607_035_904, 2_833_675_776, 679_096_320),
    Case("qwen3-8b", 2, "--accelerate --lora 16 --packed --kbit --dtype bfloat16 --tokens 512 --batch 2"):
        (13_052_291_072, 15_685_189_120, 14_743_289_344, 4_753_688_576),
    Case("llama-3.2-1b", 2, "--accelerate --lora 16 --packed --dtype bfloat16 --tokens 512 --offload"):
        (1_335_678_976, 2_123_914_752, 2_221_321_728, 82_794_496),
    Case("llama-3.2-1b", 4, "--accelerate --lora 16 --packed --dtype bfloat16 --tokens 1024 --replicas 2"):
        (1_601_560_576, 4_181_607_936, 4_408_247_808, 679_096_320),
    Case(
        "llama-3.1-8b", 4,
        "--accelerate --lora 16 --packed --kbit --dtype bfloat16 --tokens 1024 --checkpointing --reentrant",
    ): (9_938_163_712, 5_936_590_336, 5_140_188_672, 2_269_689_856),
    Case("llama-3.2-1b", 2, "--accelerate --tokens 1024 --checkpointing --reentrant"):
        (3_522_311_168, 9_526_574_592, 11_651_636_736, 9_953_708_032),
    Case("llama-3.2-1b", 2, "--accelerate --tokens 2048 --checkpointing --liger"):
        (3_522_311_168, 8_847_561_216, 11_267_065_344, 9_953_716_224),
    Case("llama-3.1-8b", 8, "--accelerate --tokens 1024 --checkpointing --liger"):
        (8_217_839_616, 15_583_832_064, 18_411_081_728, 16_127_789_568),
    Case("llama-3.2-1b", 4, "--accelerate --tokens 1024 --fp16"):
        (2_286_496_768, 7_532_644_864, 7_673_662_464, 5_010_452_992),
    Case("qwen3-30b-a3b", 8, "--accelerate --tokens 1024"):
        (17_755_431_936, 58_980_861_952, 65_677_869_056, 61_131_782_656),
    Case("qwen3-30b-a3b", 8, "--accelerate --tokens 512 --checkpointing --lora 16 --dtype bfloat16"):
        (9_376_003_584, 13_159_517_696, 14_004_602_880, 9_693_550_080),
    Case("llama-3.2-1b", 2, "--accelerate --tokens 512 --checkpointing --client torch.optim.RMSprop"):
        (3_522_311_168, 6_356_111_872, 9_179_658_752, 9_953_629_184),
    Case("llama-3.2-1b", 4, "--accelerate --tokens 1024 --replicas 2"):
        (3_522_311_168, 11_240_087_040, 12_624_510_464, 9_953_708_032),
    Case(
        "llama-3.2-1b", 4,
        "--accelerate --tokens 1024 --replicas 2 --lora 16 --dtype bfloat16 --checkpointing",
    ): (1_783_831_552, 3_412_390_400, 3_547_804_160, 1_393_224_704),
    Case("llama-3.2-1b", 4, "--accelerate --tokens 1024 --replicas 2 --offload --accumulation 2"):
        (1_576_017_920, 6_296_754_688, 6_437_771_776, 67_118_080),
    Case("llama-3.2-1b", 2, "--accelerate --tokens 2048 --cp 2"):
        (3_522_311_168, 11_307_286_016, 11_651_465_216, 9_953_765_888),
    Case("llama-3.1-8b", 4, "--accelerate --tokens 4096 --cp 2"):
        (12_232_970_240, 42_653_622_272, 42_128_278_016, 32_188_435_456),
    Case("llama-3.1-8b", 8, "--accelerate --tokens 32768 --cp 8 --checkpointing"):
        (8_217_839_616, 20_695_443_456, 20_695_435_776, 16_128_830_464),
    Case("qwen3-8b", 4, "--accelerate --tokens 8192 --cp 4 --rotate alltoall"):
        (13_169_418_240, 46_789_408_768, 46_167_071_232, 32_830_610_432),
    Case("mistral-7b-v0.3", 4, "--accelerate --tokens 4096 --cp 2 --lora 16 --dtype bfloat16"):
        (4_203_097_088, 17_683_280_384, 17_532_285_952, 3_859_254_784),
    Case("qwen2.5-7b", 4, "--accelerate --tokens 8192 --cp 4 --lora 16 --dtype bfloat16 --checkpointing"):
        (6_028_441_600, 9_753_308_672, 9_271_488_512, 4_038_995_456),
    Case("qwen2.5-0.5b", 4, "--accelerate --tokens 2048 --cp 2 --batch 2 --accumulation 2"):
        (1_038_603_776, 8_877_563_904, 9_470_069_248, 2_044_639_232),
    Case("llama-3.2-1b", 8, "--accelerate --tokens 4096 --cp 2 --replicas 2 --rotate alltoall"):
        (2_286_496_768, 10_778_056_192, 11_181_750_272, 5_010_573_824),
    Case("qwen3-30b-a3b", 8, "--accelerate --tokens 4096 --cp 4 --checkpointing"):
        (17_755_431_936, 49_807_491_072, 65_496_550_400, 61_131_906_048),
}  # fmt: skip
"""What was rehearsed of rank 0, of ranks that share a sequence the more of ranks 0 and 1: the most allocated
in init, forward, backward and step, in bytes (torch 2.13.0, transformers 5.23.0, accelerate 1.15.0, peft
0.21.2; all layers, ``zerokit rehearse --whole``)."""

IN_PARTS: dict[Case, tuple[int, int, int, int]] = {
    Case("llama-3.2-1b", 4, "--tp 2 --tokens 1024"):
        (1_235_891_200, 6_850_223_616, 7_052_057_600, 5_273_389_056),
    Case("llama-3.2-1b", 4, "--tp 2 --tokens 1024 --checkpointing --batch 4"):
        (1_235_915_776, 9_950_293_504, 10_940_075_008, 5_273_413_632),
    Case("qwen3-0.6b", 4, "--tp 2 --tokens 1024"):
        (596_139_008, 5_012_355_072, 5_307_778_048, 2_607_364_096),
    Case("qwen2.5-7b", 8, "--tp 2 --tokens 512 --checkpointing"):
        (3_807_937_024, 13_479_471_616, 17_674_719_744, 15_301_097_984),
    Case("llama-3.1-8b", 8, "--tp 4 --tokens 1024 --checkpointing"):
        (4_015_539_200, 14_255_087_616, 17_660_866_048, 16_129_387_008),
    Case("qwen2.5-0.5b", 4, "--tp 2 --tokens 512 --batch 4"):
        (494_128_128, 6_727_746_048, 7_335_128_064, 2_180_876_288),
    Case("mistral-7b-v0.3", 8, "--tp 2 --tokens 1024 --dtype bfloat16"):
        (1_812_081_664, 10_506_041_344, 10_885_597_696, 7_315_556_864),
    Case("llama-3.2-1b", 4, "--tp 2 --tokens 512 --accumulation 2"):
        (1_235_887_104, 9_128_056_320, 9_198_560_256, 5_273_384_960),
    Case("llama-3.2-1b", 4, "--tp 2 --tokens 512 --accumulation 2 --sync-each-batch --foreach"):
        (1_235_887_104, 7_104_094_720, 7_174_598_656, 6_509_192_192),
    Case("llama-3.2-1b", 8, "--tp 2 --tokens 512 --replicas 2 --checkpointing"):
        (1_235_887_104, 5_059_757_568, 6_586_731_520, 5_273_384_960),
    Case("qwen3-8b", 8, "--tp 4 --tokens 2048 --checkpointing --batch 2"):
        (4_095_882_240, 20_543_862_784, 21_477_283_328, 16_450_722_304),
    Case("llama-3.2-1b", 6, "--tp 2 --tokens 512"):
        (824_483_840, 4_371_461_632, 4_941_111_808, 3_540_207_616),
    Case("llama-3.2-3b", 4, "--tp 2 --tokens 512 --fp32"):
        (3_212_930_048, 15_123_378_176, 16_858_987_520, 13_312_946_176),
}  # fmt: skip
"""The same of ranks that divide layers by Transformers' ``DistributedConfig``, which it loads in parts: the
most allocated in load, forward, backward and step."""
