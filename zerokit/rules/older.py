"""What older versions of DeepSpeed refuse, and the present one takes; each end of a range was run."""

from __future__ import annotations

from zerokit.rules.types import Rule, Setup


def _kind(setup: Setup) -> str:
    return (setup.settings.optimizer or "").lower()


def _fp16_master_weights(setup: Setup) -> bool | dict[str, str]:
    settings = setup.settings
    if not settings.fp16_master_weights_and_grads:
        return False
    if settings.zero.stage != 2:
        return {"why": f"stage 2, and the stage is {settings.zero.stage}"}
    if settings.zero.offload_optimizer.device == "none":
        return {"why": "the optimizer offloaded to the CPU"}
    return False


OLDER_RULES: tuple[Rule, ...] = (
    Rule(
        id="older-fp16-master-weights",
        until=(0, 17),
        severity="error",
        silent=False,
        source="deepspeed-0.17.6/runtime/config.py:977",
        key="fp16.fp16_master_weights_and_grads",
        message="fp16_master_weights_and_grads needs {why}: this DeepSpeed refuses the file",
        fix='set "stage": 2 and "offload_optimizer": {"device": "cpu"}, or use DeepSpeed 0.18 or later',
        broken=_fp16_master_weights,
        scope="file",
    ),
    Rule(
        id="older-autocast-with-precision",
        since=(0, 17),
        until=(0, 17),
        severity="error",
        silent=False,
        source="deepspeed-0.17.6/runtime/torch_autocast.py:32",
        key="torch_autocast.enabled",
        message="torch_autocast together with {precision}: this DeepSpeed refuses the file",
        fix="enable one of the two",
        broken=lambda s: (
            s.settings.torch_autocast is not None
            and s.settings.precision != "fp32"
            and {"precision": s.settings.precision}
        ),
        scope="file",
    ),
    Rule(
        id="older-muon-at-stage-3",
        since=(0, 17),
        until=(0, 17),
        severity="error",
        silent=False,
        source="deepspeed-0.17.6/runtime/engine.py:1576",
        key="optimizer.type",
        message="Muon cannot run at stage 3 before DeepSpeed 0.18: the engine fails to start",
        fix="use stage 0, or DeepSpeed 0.18 or later",
        broken=lambda s: s.settings.zero.stage == 3 and _kind(s) == "muon",
        scope="file",
    ),
    Rule(
        id="older-muon-untested",
        since=(0, 17),
        until=(0, 17),
        severity="error",
        silent=False,
        source="deepspeed-0.17.6/runtime/engine.py:1385",
        key="optimizer.type",
        message="Muon is not on the list of optimizers that ZeRO takes before DeepSpeed 0.18: the engine fails to start",
        fix='add "zero_allow_untested_optimizer": true, or use DeepSpeed 0.18 or later',
        broken=lambda s: (
            s.settings.zero.stage in (1, 2)
            and _kind(s) == "muon"
            and s.get("zero_allow_untested_optimizer") is not True
        ),
        scope="file",
    ),
    Rule(
        id="older-muon",
        until=(0, 16),
        severity="error",
        silent=False,
        source="deepspeed-0.16.9/runtime/engine.py:1522",
        key="optimizer.type",
        message="DeepSpeed before 0.17 has no Muon: it takes torch's, where torch has one, and that refuses every "
        "parameter which is not a matrix",
        fix="use AdamW, or DeepSpeed 0.17 or later",
        broken=lambda s: _kind(s) == "muon",
        scope="file",
    ),
)
