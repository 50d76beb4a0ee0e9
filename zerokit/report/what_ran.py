"""Whether a run did what its plan predicts, as the ranks' own records show it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zerokit.domain import planning_again
from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.job import PACKED_LORA, Job, Lora
from zerokit.domain.planned import Chosen, degrees, world_size
from zerokit.domain.settings import BY_OPTION, SETTINGS, Setting, Stated, compare, is_equal
from zerokit.domain.trainers import TRAINERS, Trainer
from zerokit.errors import InputError
from zerokit.report.measured import had_engine
from zerokit.report.schema import Difference
from zerokit.units import counted, parse_count

Facts = Mapping[str, Any]

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_SAME_LENGTH = 0.01
_SAME_PARAMETERS = 0.02  # a vocabulary that was resized, say
_ALL_TRAINED = 0.999
_METHODS = {"lora": "LoRA", "qlora": "QLoRA"}
_FACTS = [row for row in SETTINGS.values() if row.engine and row.name != "optimizer"]
"""What engine and plan say in the same words; an optimizer has several names."""
_OF_A_COMMAND = (
    *((row.label, row.engine) for row in _FACTS),
    ("parameters", "parameters"),
    ("trained parameters", "trainable_parameters"),
    ("DeepSpeed engines", "engines"),
    ("optimizer", "optimizer"),
)
"""Facts of an engine that its command decides."""
_SAID_BY_THEIR_VALUE = {row.option for row in SETTINGS.values() if row.decides_run} | {"seq-len"}
"""Options of ``plan`` whose value is a difference's."""
_SPELLING = re.compile(r"^(deepspeedcpu|fused|paged|apex)+|_?32bit$")


def differences(plan: Facts | None, ranks: Iterable[Facts]) -> list[Difference]:
    """Where the ranks' job was not the plan's; what is not known is no difference."""
    if not isinstance(plan, Mapping):
        return []
    chosen: Chosen = plan.get("chosen", plan)
    request = plan.get("request")
    ranks = list(ranks)
    by_what: dict[str, Difference] = {}
    if isinstance(chosen, Mapping):
        world = world_size(chosen)
        if chosen.get("data_parallel") and world != len(ranks):
            text = f"ranks {len(ranks)} ran, not {world}"
            by_what["ranks"] = Difference(
                what="ranks", planned=str(world), ran=str(len(ranks)), option="gpus", text=text
            )
        for rank in ranks:
            engine = rank.get("engine") or {}
            if rank.get("device") == "cpu":  # launch takes offload out there: all is in host memory
                engine = {**engine, "offload_optimizer": None, "offload_param": None}
            own_differences = of_engine(chosen, engine, request if isinstance(request, Mapping) else None)
            generated = ((rank.get("phase_details") or {}).get("generate") or {}).get("count")
            if generated and not isinstance(chosen.get("rehearsed"), Mapping):
                # a cache of keys and values beside the training, which only a rehearsal predicts
                text = "the script generates between its steps, which the plan does not predict"
                own_differences += _unlike("generation", "none", "generate", text)
            for difference in (*own_differences, *_of_steps(chosen, rank)):
                by_what.setdefault(difference.what, difference)
    return list(by_what.values())


def unlike_plan(plan: Mapping[str, Any], style: str, ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the ranks (of ``report.json``) did something else than the plan (``request`` and ``chosen``)
    decided, one sentence each.

    A Trainer feeds what its arguments say, but a row may be half of a pair (DPO), so its batch is what they
    say when it begins to train, else what it told its engine. What belongs to the job (length, model,
    adapters) is the report's matter alone.
    """
    if style == "trainer":
        ranks = [
            {**rank, "engine": {
                **engine, "batch_rows": None, "batch_columns": None,
                "micro_batch": engine.get("loader_rows") or engine.get("micro_batch"),
            } if (engine := rank.get("engine")) is not None else None}
            for rank in ranks
        ]  # fmt: skip
    return [
        one.text
        for one in differences(plan, ranks)
        if (row := BY_OPTION.get(one.option or "")) is not None and row.decides_run
    ]


def no_engine(ranks: Iterable[Mapping[str, Any]], engine: str = "deepspeed") -> str | None:
    """What to say where no rank trained with the engine (``deepspeed`` or ``fsdp2``) that a configuration was
    given for."""
    if any(had_engine(rank) and _engine_of(rank.get("engine") or {}) == engine for rank in ranks):
        return None
    if engine == "fsdp2":
        return (
            "FSDP2 divided nothing: no forward pass went through a model that fully_shard had divided; "
            "Accelerate divides what accelerator.prepare is given, on GPUs alone; to measure the script as "
            "it is, launch it with --no-plan"
        )
    return (
        "no DeepSpeed engine came up: the script ran without the configuration that it was given; look for "
        "an option of the script that turns DeepSpeed on, say how it takes it (--style raw, accelerate or "
        "trainer), or measure it as it is with --no-plan"
    )


_ENGINES = {"deepspeed": "DeepSpeed", "fsdp2": "FSDP2"}


def _engine_of(facts: Facts) -> str:
    """The engine of a plan's choice, or of a rank's record; one that does not say it is DeepSpeed's."""
    return str(facts.get("engine") or "deepspeed")


def _of_division(chosen: Chosen, engine: Facts) -> list[Difference]:
    """Differences of an engine that is not the plan's, or divides otherwise where no option says it."""
    planned, ran = (_ENGINES.get(name, name) for name in (_engine_of(chosen), _engine_of(engine)))
    if engine and planned != ran:
        return _unlike("engine", planned, ran, f"{ran} divided the training, not {planned}")
    rows = (("ranks that share the weights", "sharding"), ("reshard after forward", "reshard_after_forward"))
    return [one for label, key in rows for one in _unlike(label, chosen.get(key), engine.get(key))]


def chosen_as_ran(chosen: Mapping[str, Any], differing: Sequence[Difference]) -> dict[str, Any]:
    """A plan's choice with what ran in place of what was planned."""
    ran = {row.name: one.ran for one in differing for row in _FACTS if row.option == one.option}
    return {**chosen, **{name: int(value) if value.isdigit() else value for name, value in ran.items()}}


def options_to_plan(plan: Facts | None, differing: Sequence[Difference]) -> list[str]:
    """What follows ``zerokit plan --recipe plan.yaml`` to plan for what ran: with the script, or by options
    where no plan is made with it; empty where neither says it."""
    if not isinstance(plan, Mapping):
        return []
    chosen: Chosen = plan.get("chosen", plan)
    request, script = plan.get("request"), plan.get("script")
    if not isinstance(chosen, Mapping):
        return []
    request = request if isinstance(request, Mapping) else {}
    if script:
        unlike = {d.option: d.ran for d in differing if d.option is not None}
        return list(planning_again.options_with_script(chosen, request, unlike, script)) if differing else []
    ran = {d.option: d.ran for d in differing if d.option in _SAID_BY_THEIR_VALUE}
    return list(planning_again.options_for(chosen, request, ran)) if ran else []


def unlike_rehearsal(engine: Facts, rehearsed: Facts) -> list[str]:
    """Where an engine ran otherwise than in a rehearsal of its command, one sentence each."""
    result = [
        f"{what} {engine[name]}, in the rehearsal {rehearsed[name]}"
        for what, name in _OF_A_COMMAND
        if not (_is_one_family if name == "optimizer" else is_equal)(engine.get(name), rehearsed.get(name))
    ]
    # rows and columns of the largest micro-batch; 0 rows where it is not known
    fed, other_fed = (
        (one.get("batch_rows") or 0, one.get("batch_columns") or 1) for one in (engine, rehearsed)
    )
    size, other_size = math.prod(fed), math.prod(other_fed)
    if size and other_size and abs(size - other_size) > _SAME_LENGTH * size:
        shapes = (" × ".join(map(str, shape)) for shape in (fed, other_fed))
        result.append("the largest micro-batch was {}, in the rehearsal {}".format(*shapes))
    return result


def of_engine(chosen: Chosen, engine: Facts, request: Facts | None = None) -> list[Difference]:
    """Where what an engine ran with is not the plan's choice, nor the job that was asked for.

    A plan that was rehearsed with this very command (``chosen.rehearsed``) predicts what the script does:
    its lengths, models and adapters are no difference.
    """
    if isinstance(chosen.get("rehearsed"), Mapping):
        engine, request = {**engine, "batch_rows": None, "batch_columns": None, "engines": None}, None
    weights = _DTYPES.get(str(engine.get("dtype")))
    ran = {**engine, "precision": engine.get("precision") or weights}
    said = [Stated(setting=one, value=ran.get(one.engine)) for one in _FACTS if one.name == one.engine]
    said = [one for one in said if one.setting.name != "micro_batch"]  # which has rows of its own
    result = [*_of_division(chosen, engine), *_of_batch(chosen, engine, request)]
    for one, planned in compare(chosen, said):
        by_weights = one.setting.name == "precision" and not engine.get("precision")
        text = f"the weights were in {weights}, not {planned}" if by_weights else ""
        result += _unlike(one.setting, planned, one.value, text)
    requested, enabled = chosen.get("activation_checkpointing"), engine.get("gradient_checkpointing")
    if (requested, enabled) in (("full", False), ("none", True)):
        text = f"the script {'turned' if enabled else 'did not turn'} activation checkpointing on"
        ran_with = "full" if enabled else "none"
        result += _unlike(SETTINGS["activation_checkpointing"], requested, ran_with, text)
    if request is not None:
        result += [*_of_training(chosen, engine, request), *_of_size(chosen, engine, request)]
    # of a plan that was rehearsed with the script, with these arguments or others, as many; else one
    # a reference is a copy of the weights, which DeepSpeed holds in an engine of its own
    has_reference = _trainer(request).reference and (request or {}).get("method", "full") == "full"
    planned = (chosen.get("script") or {}).get("engines") or 1 + has_reference
    made = engine.get("engines")
    has = "one: it predicts one model and its training" if planned == 1 else f"{planned}"
    text = f"{counted(made or 0, 'DeepSpeed engine')} ran, but the plan has {has}"
    result += _unlike("engines", planned, made, text)
    if request is not None and made in (None, 1):
        result += _of_other_models(chosen, engine)
    return result


def _trainer(request: Facts | None) -> Trainer:
    """Whose defaults a plan without its script counts."""
    return TRAINERS.get(str((request or {}).get("trainer")), TRAINERS["raw"])


def of_code(plan: Facts, asked: Iterable[Facts]) -> list[Difference]:
    """Where a script's code asks Accelerate for something else than the plan, whose file wins without a word
    (accelerate 1.15, utils/dataclasses.py, ``DeepSpeedPlugin.__post_init__``). ``asked``: as
    :class:`zerokit.instrument.training_facts.TrainingFacts` saw it."""
    said = [
        Stated(setting=SETTINGS[one["setting"]], value=one["code"], where=f"{one['location']}: {one['call']}")
        for one in asked
    ]
    return [
        difference
        for one, planned in compare(plan["chosen"], said)
        for difference in _unlike(
            one.setting, planned, one.value,
            f"{one.where}, but the plan has {one.setting.label} {planned}",
        )
    ]  # fmt: skip


def _of_other_models(chosen: Chosen, engine: Facts) -> list[Difference]:
    """A teacher or a reference that no engine holds; of a plan that has one, as a share of what trains."""
    other_parameters, trained = engine.get("other_parameters") or 0, engine.get("parameters") or 0
    planned = (chosen.get("script") or {}).get("other_parameters") or 0
    share = planned / chosen["parameters"] if planned and chosen.get("parameters") else 0.0
    if not trained or other_parameters / trained <= share + _SAME_PARAMETERS:
        return []
    has = f"of which the plan has {planned:,}" if planned else "which the plan does not have"
    text = f"{other_parameters:,} parameters of other models were held beside the one that trains, {has}"
    return _unlike("other models", planned, other_parameters, text)


def _unlike(
    what: Setting | str, planned: Any, ran: Any, text: str = "", lora: Lora | None = None
) -> list[Difference]:
    """The difference in a setting, or in something that no option of a plan says; none where one of both is
    not known."""
    if is_equal(planned, ran):
        return []
    label, option = (what, None) if isinstance(what, str) else (what.label, what.option)
    sentence = text or f"{label} {ran} ran, not {planned}"
    return [
        Difference(what=label, planned=str(planned), ran=str(ran), option=option, text=sentence, lora=lora)
    ]


def _of_batch(chosen: Chosen, engine: Facts, request: Facts | None) -> list[Difference]:
    rows, columns = engine.get("batch_rows"), engine.get("batch_columns")
    planned, length = chosen.get("micro_batch"), None
    if request is not None:  # tokens of a sequence that one rank was planned to hold
        requested = _count(chosen.get("seq_len") or request.get("seq-len", Job().seq_len)) or 0
        length = requested // degrees(chosen)["sequence_parallel"]
    if rows == 1 and columns and length and planned and columns > length * (1 + _SAME_LENGTH):
        tokens = length * planned  # sequences laid end to end, as one
        if abs(columns - tokens) <= _SAME_LENGTH * tokens:
            return []
        text = f"{columns} tokens per micro-batch ran (one row), not {tokens} ({planned} × {length})"
        return _unlike("tokens per micro-batch", tokens, columns, text)
    fed = rows if rows is not None else engine.get("micro_batch")
    text = ""
    result: list[Difference] = []
    if planned and fed and engine.get("loader_rows") == planned:
        # a pair of the data is one row of it, and two sequences
        of_a_row = chosen.get("sequences_per_row") or _trainer(request).sequences
        planned, of_data = planned * of_a_row, planned
        data = f"{counted(of_data, 'row')} of data"
        text = f"{counted(fed, 'sequence')} ran in each micro-batch of {data}, not {of_a_row} of each row"
        if fed != planned:
            result = _unlike(SETTINGS["micro_batch"], of_data, fed, text)
    else:
        result = _unlike(SETTINGS["micro_batch"], planned, fed)
    if length and columns and abs(columns - length) > _SAME_LENGTH * length:
        result += _unlike(SETTINGS["seq_len"], length, columns)
    return result


def _count(value: Any) -> int | None:
    try:
        return parse_count(str(value))
    except InputError:
        return None


def _of_training(chosen: Chosen, engine: Facts, request: Facts) -> list[Difference]:
    """The optimizer, and which parameters are trained: all, or those of adapters."""
    result: list[Difference] = []
    configured = ((chosen.get("deepspeed_config") or {}).get("optimizer") or {}).get("type")
    planned, ran = configured or request.get("optimizer"), engine.get("optimizer")
    if (optimizer_facts := client_optimizer(planned)) is not None:
        planned = optimizer_facts.class_name
    if not _is_one_family(planned, ran):
        result += _unlike(SETTINGS["optimizer"], planned, ran)
    trained, all_ = engine.get("trainable_parameters"), engine.get("parameters")
    if not trained or not all_:
        return result
    is_full, method = trained >= _ALL_TRAINED * all_, str(request.get("method", "full"))
    lora, unlike = Lora.read(engine.get("adapters")), engine.get("adapters_unlike_lora")
    setting = SETTINGS["method"]
    if method != "full" and is_full:
        text = f"all {all_:,} parameters were trained, not adapters alone"
        return [*result, *_unlike(setting, method, "all", text)]
    if method == "full":
        what = lora or unlike or "adapters, or frozen weights"
        text = f"{trained:,} of {all_:,} parameters were trained ({what}), not all"
        return result if is_full else [*result, *_unlike(setting, "all", str(lora or trained), text, lora)]
    if unlike is not None and not (method == "qlora" and unlike == PACKED_LORA):
        text = f"adapters: {unlike}, but the plan has {_METHODS.get(method, method)}"
        return [*result, *_unlike(setting.label, method, unlike, text)]
    if lora is None:
        return result
    if method == "qlora":
        text = f"adapters: {lora} on weights that are not in 4 bits, but the plan has QLoRA"
        return [*result, *_unlike(setting, method, str(lora), text, lora)]
    words = {name.replace("-", "_"): value for name, value in request.items()}
    rank = _count(words.get("lora_rank") or Lora().rank)
    targets = str(words.get("lora_targets") or ",".join(Lora().targets)).replace(" ", "")
    asked = None if rank is None else Lora(rank=rank, targets=tuple(targets.split(",")))
    if asked is None or lora.is_like(asked):
        return result
    text = f"adapters: {lora}, but the plan has {asked}"
    return [*result, *_unlike(setting, str(asked), str(lora), text, lora)]


def _is_one_family(first: object, second: object) -> bool:
    """Whether optimizers keep the same states, as FusedAdam, DeepSpeedCPUAdam, AdamW and Adam do."""
    families = (
        _SPELLING.sub("", str(one).lower()).replace("adamw", "adam") if one else None
        for one in (first, second)
    )
    return is_equal(*families)


def _of_size(chosen: Chosen, engine: Facts, request: Facts) -> list[Difference]:
    is_unsplit = (chosen.get("tensor_parallel") or 1) * (chosen.get("pipeline_parallel") or 1) == 1
    planned = chosen.get("parameters") or _count(request.get("params", ""))
    ran = engine.get("parameters")
    if not is_unsplit or not planned or not ran:
        return []
    trained = engine.get("trainable_parameters") or ran
    adapters = engine.get("adapters") or engine.get("adapters_unlike_lora")
    if adapters or request.get("method", "full") != "full":
        beside = ran - trained if trained < ran else ran  # a head that is trained whole is no adapter
        if abs(ran / planned - 1) > _SAME_PARAMETERS:
            ran = beside
    if abs(ran / planned - 1) <= _SAME_PARAMETERS:
        return []
    text = f"the model has {ran:,} parameters, the planned one {planned:,}"
    return _unlike(SETTINGS["model"], planned, ran, text)


def _of_steps(chosen: Chosen, rank: Facts) -> list[Difference]:
    """A loop may step at each micro-batch though the engine was told to accumulate. The last step of an epoch
    may be of fewer than that."""
    steps, micro_steps = rank.get("steps") or 0, rank.get("micro_steps") or 0
    planned = chosen.get("gradient_accumulation")
    if steps < 2 or not micro_steps or not planned or (chosen.get("pipeline_parallel") or 1) > 1:
        return []
    if planned * steps <= micro_steps <= planned * (steps + 1):  # the next step has begun
        return []
    if micro_steps < planned * steps and rank.get("most_micro_steps") == planned:
        return []
    ran = round(micro_steps / steps)
    return _unlike(SETTINGS["gradient_accumulation"], planned, ran) if ran else []
