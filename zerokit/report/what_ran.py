"""Whether a run did what its plan predicts, as the ranks' own records show it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.domain import planning_again
from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.job import PACKED_LORA, Job, Lora
from zerokit.errors import InputError
from zerokit.units import counted, parse_count

Facts = Mapping[str, Any]

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_DEGREES = ("data_parallel", "tensor_parallel", "pipeline_parallel", "sequence_parallel")
_SAME_LENGTH = 0.01
_SAME_PARAMETERS = 0.02  # a vocabulary that was resized, say
_ALL_TRAINED = 0.999
_TRAINED = "trained parameters"
_METHODS = {"lora": "LoRA", "qlora": "QLoRA"}
_OF_A_COMMAND = (
    ("ZeRO stage", "zero_stage"),
    ("batch size per GPU", "micro_batch"),
    ("gradient accumulation", "gradient_accumulation"),
    ("optimizer offload", "offload_optimizer"),
    ("weight offload", "offload_param"),
    ("precision", "precision"),
    ("activation checkpointing", "gradient_checkpointing"),
    ("parameters", "parameters"),
    ("trained parameters", "trainable_parameters"),
    ("DeepSpeed engines", "engines"),
)
"""Facts of an engine that its command decides."""
_SAID_BY_THEIR_VALUE = ("micro-batch", "gradient-accumulation", "zero", "precision", "seq-len")
"""Options of ``plan`` whose value is a difference's."""
_OF_CHOICE = {
    "micro-batch": "micro_batch", "gradient-accumulation": "gradient_accumulation",
    "precision": "precision", "checkpointing": "activation_checkpointing", "zero": "zero_stage",
    "offload-optimizer": "offload_optimizer", "offload-param": "offload_param",
}  # fmt: skip
"""Option -> what it is of a plan's choice."""
_SPELLING = re.compile(r"^(deepspeedcpu|fused|paged|apex)+|_?32bit$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that ran otherwise than planned.

    Attributes:
        what: the thing, in our words.
        option: the option of ``zerokit plan`` and ``estimate`` that says it; None where none does.
        text: both values, in one sentence.
        lora: the adapters that ran, where they are the difference.
    """

    what: str
    planned: str
    ran: str
    option: str | None
    text: str
    lora: Lora | None = None

    def to_dict(self) -> dict[str, str | None]:
        """For ``report.json``."""
        return {"what": self.what, "planned": self.planned, "ran": self.ran, "option": self.option,
                "text": self.text}  # fmt: skip


def differences(plan: Facts | None, ranks: Iterable[Facts]) -> list[Difference]:
    """Where the ranks' job was not the plan's; what is not known is no difference."""
    if not isinstance(plan, Mapping):
        return []
    chosen = plan.get("chosen", plan)
    request = plan.get("request")
    ranks = list(ranks)
    by_what: dict[str, Difference] = {}
    if isinstance(chosen, Mapping):
        for difference in _of_world(chosen, len(ranks)):
            by_what.setdefault(difference.what, difference)
        for rank in ranks:
            engine = rank.get("engine") or {}
            if rank.get("device") == "cpu":  # launch takes offload out there: all is in host memory
                engine = {**engine, "offload_optimizer": None, "offload_param": None}
            own_differences = of_engine(chosen, engine, request if isinstance(request, Mapping) else None)
            for difference in (*own_differences, *_of_steps(chosen, rank), *_of_generation(chosen, rank)):
                by_what.setdefault(difference.what, difference)
    return list(by_what.values())


def chosen_as_ran(chosen: Facts, differing: Sequence[Difference]) -> dict[str, Any]:
    """A plan's choice with what ran in place of what was planned."""
    ran = {_OF_CHOICE[d.option]: d.ran for d in differing if d.option in _OF_CHOICE}
    return {**chosen, **{name: int(value) if value.isdigit() else value for name, value in ran.items()}}


def options_to_plan(plan: Facts | None, differing: Sequence[Difference]) -> list[str]:
    """What follows ``zerokit plan --recipe plan.yaml`` to plan for what ran: with the script, or by options
    where no plan is made with it; empty where neither says it."""
    if not isinstance(plan, Mapping):
        return []
    chosen, request, script = plan.get("chosen", plan), plan.get("request"), plan.get("script")
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
    pairs = [(what, engine.get(name), rehearsed.get(name)) for what, name in _OF_A_COMMAND]
    result = [
        f"{what} {measured}, in the rehearsal {rehearsed_value}"
        for what, measured, rehearsed_value in pairs
        if measured is not None and rehearsed_value is not None and measured != rehearsed_value
    ]
    measured, rehearsed_value = engine.get("optimizer"), rehearsed.get("optimizer")
    if measured and rehearsed_value and _family(str(measured)) != _family(str(rehearsed_value)):
        result.append(f"optimizer {measured}, in the rehearsal {rehearsed_value}")
    fed, other_fed = _fed(engine), _fed(rehearsed)
    size, other_size = math.prod(fed), math.prod(other_fed)
    if size and other_size and abs(size - other_size) > _SAME_LENGTH * size:
        shapes = (" × ".join(map(str, shape)) for shape in (fed, other_fed))
        result.append("the largest micro-batch was {}, in the rehearsal {}".format(*shapes))
    return result


def _fed(engine: Facts) -> tuple[int, int]:
    """Rows and columns of the largest micro-batch; 0 rows where it is not known."""
    return engine.get("batch_rows") or 0, engine.get("batch_columns") or 1


def of_engine(chosen: Facts, engine: Facts, request: Facts | None = None) -> list[Difference]:
    """Where what an engine ran with is not the plan's choice, nor the job that was asked for.

    A plan that was rehearsed with this very command (``chosen.rehearsed``) predicts what the script does:
    its lengths, models and adapters are no difference.
    """
    if isinstance(chosen.get("rehearsed"), Mapping):
        engine, request = {**engine, "batch_rows": None, "batch_columns": None, "engines": None}, None
    result = [*_of_batch(chosen, engine, request)]
    for what, option, name in (
        ("ZeRO stage", "zero", "zero_stage"),
        ("gradient accumulation", "gradient-accumulation", "gradient_accumulation"),
        ("tensor parallel", "tp", "tensor_parallel"),
        ("optimizer offload", "offload-optimizer", "offload_optimizer"),
        ("weight offload", "offload-param", "offload_param"),
    ):
        result += _unlike(what, chosen.get(name), engine.get(name), option)
    weights = _DTYPES.get(str(engine.get("dtype")))
    text = "" if engine.get("precision") else f"the weights were in {weights}, not {chosen.get('precision')}"
    ran = engine.get("precision") or weights
    result += _unlike("precision", chosen.get("precision"), ran, "precision", text)
    result += _of_checkpointing(chosen, engine)
    if request is not None:
        result += [*_of_training(chosen, engine, request), *_of_size(chosen, engine, request)]
    result += _of_engines(chosen, engine)
    if request is not None and engine.get("engines") in (None, 1):
        result += _of_other_models(chosen, engine)
    return result


def _of_engines(chosen: Facts, engine: Facts) -> list[Difference]:
    """Those that a plan has which was rehearsed with the script, with these arguments or others; else one."""
    planned, ran = (chosen.get("script") or {}).get("engines") or 1, engine.get("engines")
    has = "one: it predicts one model and its training" if planned == 1 else f"{planned}"
    text = f"{counted(ran or 0, 'DeepSpeed engine')} ran, but the plan has {has}"
    return _unlike("engines", planned, ran, None, text)


def _of_other_models(chosen: Facts, engine: Facts) -> list[Difference]:
    """A teacher or a reference that no engine holds; of a plan that has one, as a share of what trains."""
    other_parameters, trained = engine.get("other_parameters") or 0, engine.get("parameters") or 0
    planned = (chosen.get("script") or {}).get("other_parameters") or 0
    share = planned / chosen["parameters"] if planned and chosen.get("parameters") else 0.0
    if not trained or other_parameters / trained <= share + _SAME_PARAMETERS:
        return []
    has = f"of which the plan has {planned:,}" if planned else "which the plan does not have"
    text = f"{other_parameters:,} parameters of other models were held beside the one that trains, {has}"
    return _unlike("other models", planned, other_parameters, None, text)


def _unlike(
    what: str, planned: Any, ran: Any, option: str | None, text: str = "", lora: Lora | None = None
) -> list[Difference]:
    if planned is None or ran is None or planned == ran:
        return []
    sentence = text or f"{what} {ran} ran, not {planned}"
    return [
        Difference(what=what, planned=str(planned), ran=str(ran), option=option, text=sentence, lora=lora)
    ]


def _of_batch(chosen: Facts, engine: Facts, request: Facts | None) -> list[Difference]:
    rows, columns = engine.get("batch_rows"), engine.get("batch_columns")
    planned = chosen.get("micro_batch")
    length = _length(chosen, request)
    if rows == 1 and columns and length and planned and columns > length * (1 + _SAME_LENGTH):
        tokens = length * planned  # sequences laid end to end, as one
        if abs(columns - tokens) <= _SAME_LENGTH * tokens:
            return []
        text = f"{columns} tokens per micro-batch ran (one row), not {tokens} ({planned} × {length})"
        return _unlike("tokens per micro-batch", tokens, columns, None, text)
    fed = rows if rows is not None else engine.get("micro_batch")
    loaded, text = engine.get("loader_rows"), ""
    if planned and fed and loaded == planned:  # a pair of the data is one row of it, and two sequences
        if fed == planned * chosen.get("sequences_per_row", 1):
            return _of_length(chosen, columns, request)
        data = f"{counted(planned, 'row')} of data"
        text = f"{counted(fed, 'sequence')} ran in each micro-batch of {data}, not one of each row"
    return _unlike("batch size per GPU", planned, fed, "micro-batch", text) + _of_length(
        chosen, columns, request
    )


def _of_length(chosen: Facts, columns: int | None, request: Facts | None) -> list[Difference]:
    length = _length(chosen, request)
    if length and columns and abs(columns - length) > _SAME_LENGTH * length:
        return _unlike("sequence length", length, columns, "seq-len")
    return []


def _length(chosen: Facts, request: Facts | None) -> int | None:
    """Tokens of a sequence that one rank was planned to hold."""
    if request is None:
        return None
    requested = _count(chosen.get("seq_len") or request.get("seq-len", Job().seq_len))
    return requested // max(1, _count(chosen.get("sequence_parallel")) or 1) if requested else None


def _count(value: Any) -> int | None:
    try:
        return parse_count(str(value))
    except InputError:
        return None


def _of_checkpointing(chosen: Facts, engine: Facts) -> list[Difference]:
    requested, enabled = chosen.get("activation_checkpointing"), engine.get("gradient_checkpointing")
    if enabled is False and requested == "full":
        text = "the script did not turn activation checkpointing on"
        return _unlike("activation checkpointing", requested, "none", "checkpointing", text)
    if enabled is True and requested == "none":
        text = "the script turned activation checkpointing on"
        return _unlike("activation checkpointing", requested, "full", "checkpointing", text)
    return []


def _of_training(chosen: Facts, engine: Facts, request: Facts) -> list[Difference]:
    """The optimizer, and which parameters are trained."""
    result: list[Difference] = []
    configured = ((chosen.get("deepspeed_config") or {}).get("optimizer") or {}).get("type")
    planned, ran = configured or request.get("optimizer"), engine.get("optimizer")
    if (optimizer_facts := client_optimizer(planned)) is not None:
        planned = optimizer_facts.class_name
    if planned and ran and _family(str(planned)) != _family(str(ran)):
        result += _unlike("optimizer", planned, ran, "optimizer")
    return [*result, *_of_trained(engine, request)]


def _of_trained(engine: Facts, request: Facts) -> list[Difference]:
    """Which parameters are trained: all, or those of adapters."""
    trained, all_ = engine.get("trainable_parameters"), engine.get("parameters")
    if not trained or not all_:
        return []
    is_full = trained >= _ALL_TRAINED * all_
    method = str(request.get("method", "full"))
    if method != "full" and is_full:
        text = f"all {all_:,} parameters were trained, not adapters alone"
        return _unlike(_TRAINED, method, "all", "method", text)
    if method == "full":
        return [] if is_full else _of_frozen(engine, trained, all_)
    lora, unlike = Lora.read(engine.get("adapters")), engine.get("adapters_unlike_lora")
    requested = _requested_lora(request)
    if unlike is not None and not (method == "qlora" and unlike == PACKED_LORA):
        text = f"adapters: {unlike}, but the plan has {_METHODS.get(method, method)}"
        return _unlike(_TRAINED, method, unlike, None, text)
    if lora is None:
        return []
    if method == "qlora":
        text = f"adapters: {lora} on weights that are not in 4 bits, but the plan has QLoRA"
        return _unlike(_TRAINED, method, str(lora), "method", text, lora)
    if requested is None or lora.is_like(requested):
        return []
    text = f"adapters: {lora}, but the plan has {requested}"
    return _unlike(_TRAINED, str(requested), str(lora), "method", text, lora)


def _of_frozen(engine: Facts, trained: int, all_: int) -> list[Difference]:
    """Not all weights are trained, though the plan has all."""
    lora = Lora.read(engine.get("adapters"))
    what = lora or engine.get("adapters_unlike_lora") or "adapters, or frozen weights"
    text = f"{trained:,} of {all_:,} parameters were trained ({what}), not all"
    return _unlike(_TRAINED, "all", str(lora or trained), "method", text, lora)


def _requested_lora(request: Facts) -> Lora | None:
    """The adapters of a plan's request; None where it does not say them readably."""
    words = {name.replace("-", "_"): value for name, value in request.items()}
    rank = _count(words.get("lora_rank") or Lora().rank)
    targets = str(words.get("lora_targets") or ",".join(Lora().targets)).replace(" ", "")
    return None if rank is None else Lora(rank=rank, targets=tuple(targets.split(",")))


def _family(optimizer: str) -> str:
    """Optimizers that keep the same states are one: FusedAdam, DeepSpeedCPUAdam, AdamW and Adam."""
    return _SPELLING.sub("", optimizer.lower()).replace("adamw", "adam")


def _of_size(chosen: Facts, engine: Facts, request: Facts) -> list[Difference]:
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
    return _unlike("model", planned, ran, "model", text)


def _of_world(chosen: Facts, ranks: int) -> list[Difference]:
    planned = 1
    for name in _DEGREES:
        if name == "data_parallel" and not chosen.get(name):
            return []
        planned *= int(chosen.get(name) or 1)
    return _unlike("ranks", planned, ranks, "gpus")


def _of_steps(chosen: Facts, rank: Facts) -> list[Difference]:
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
    return _unlike("gradient accumulation", planned, ran, "gradient-accumulation") if ran else []


def _of_generation(chosen: Facts, rank: Facts) -> list[Difference]:
    """Generating takes a cache of keys and values beside the training, which only a rehearsal predicts."""
    if isinstance(chosen.get("rehearsed"), Mapping):
        return []
    ran = ((rank.get("phase_details") or {}).get("generate") or {}).get("count")
    text = "the script generates between its steps, which the plan does not predict"
    return _unlike("generation", "none", "generate", None, text) if ran else []
