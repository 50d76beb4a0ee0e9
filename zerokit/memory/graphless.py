"""Passes without a graph, read from a trace under checkpointing: through a reference model, of an evaluation,
and over prompts to which a model generates answers."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.domain.activations import ActivationTrace, Pass, Run, Timeline
from zerokit.domain.hardware import Gpu, Processors
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory.components import Component
from zerokit.memory.fused_loss import LossSize, fused_loss, head_marks, loss_size
from zerokit.memory.generation import cache_bytes, cast_bytes, decoding_bytes, gathered_bytes
from zerokit.memory.rank_model import RankModel
from zerokit.values import replace


def with_reference(
    model: RankModel,
    checkpointed: ActivationTrace,
    timeline: Timeline,
    point: tuple[int, int],
    size: LossSize | None,
    processors: Processors | None,
    *,
    in_step: bool,
) -> Timeline:
    """The timeline with the pass through a reference model of the same shape, without a graph.

    Under full checkpointing a layer's forward keeps nothing but its input, so that pass is the checkpointed
    one without these inputs: TRL's DPO runs it so (trl/trainer/dpo_trainer.py:1327, 1.16,
    ``torch.no_grad``), and computes the loss of its log-probabilities in the same chunks.

    Args:
        checkpointed: the trace under full checkpointing.
        point: sequences and tokens of each.
        size: of the loss, where it is not the model's own.
        in_step: between forward and backward; else before them.
    """
    peaks = tuple(_without_graph(model, checkpointed, point, size, processors, with_adapters=False))
    if not in_step:
        return replace(timeline, evaluation=Pass(peaks=peaks, levels=peaks, afters=peaks))
    before = timeline.after_forward + (0 if size is None else fused_loss(model.loss, size).first_pass)
    held = tuple(peak + before for peak in peaks)
    return replace(timeline, reference=Pass(peaks=held, levels=held, afters=held))


def with_evaluation(
    model: RankModel,
    checkpointed: ActivationTrace,
    timeline: Timeline,
    point: tuple[int, int],
    settings: TrainingSettings,
    gpu: Gpu,
) -> Timeline:
    """The timeline with a pass of an evaluation (transformers/trainer.py, ``evaluation_loop``, which keeps
    the loss alone where nobody computes metrics), of ``point`` sequences and tokens. ``checkpointed``: the
    trace under full checkpointing."""
    size = loss_size(model, *point, settings, gpu.supports("bf16"))
    peaks = tuple(_without_graph(model, checkpointed, point, size, gpu.processors, with_adapters=True))
    return replace(timeline, evaluation=Pass(peaks=peaks, levels=peaks, afters=peaks))


def with_generation(
    model: RankModel,
    checkpointed: ActivationTrace,
    timeline: Timeline,
    job: Job,
    strategy: Strategy,
    gpu: Gpu,
) -> Timeline:
    """The timeline with the generation of a step's sequences at once (transformers/generation/utils.py,
    ``_sample``, 5.23). ``checkpointed``: the trace under full checkpointing of the pass that reads prompts,
    which has the cache of all layers at the last."""
    settings = strategy.settings
    sequences = settings.micro_batch * settings.gradient_accumulation
    prompt, longest = job.serving_tokens
    plain = replace(model, trace=checkpointed, loss="standard")
    size = loss_size(plain, sequences, prompt, settings, False)
    peaks = _without_graph(plain, checkpointed, (sequences, prompt), size, gpu.processors, with_adapters=True)
    marks = head_marks(plain)
    layers = max(peaks if marks is None else peaks[: marks.forward + 1])
    # hidden states are as wide as the embedding's and the head's weights
    wide = settings.parameter_bytes if size is None else size.element_bytes
    words, head = (0, (0, 0)) if size is None else (size.vocabulary, (size.vocabulary * size.hidden, wide))
    product_bytes = settings.product_bytes if job.method == "full" else settings.parameter_bytes
    cache, layer = (sequences * each for each in cache_bytes(model, wide, product_bytes))
    casts = cast_bytes(model, settings.parameter_bytes, product_bytes, head) if job.method == "full" else 0
    decoding = decoding_bytes(layer * longest, sequences * words, product_bytes, casts)
    cached, beside = max((cache * prompt, layers), (cache * longest, decoding), key=sum)
    live = {
        Component.KV_CACHE.value: cached,
        Component.GATHERED_PARAMETERS.value: gathered_bytes(model, settings),
        Component.ACTIVATIONS.value: beside,
    }
    return replace(timeline, generation=live)


def _without_graph(
    model: RankModel,
    checkpointed: ActivationTrace,
    point: tuple[int, int],
    size: LossSize | None,
    processors: Processors | None,
    *,
    with_adapters: bool,
) -> list[float]:
    """The peaks of a pass without a graph at the marks of the model's forward: those under full checkpointing
    without the layers' inputs, which that keeps. What autocast casts stays."""
    forward = checkpointed.timeline(*point, processors).forward
    highest = forward.peaks if with_adapters else _without_adapters(checkpointed, forward)
    peaks, start, layers, cast = list[float](), None, 0, 0.0
    for run, first, stop in _blocks(checkpointed):
        level = forward.afters[first - 1] if first else 0.0
        level = forward.afters[stop - 1] - (forward.afters[stop - 1] - level) / (1 + run.jump)
        if run.stack and start is None:
            start = level
        kept = 0.0 if start is None else level - start
        if with_adapters and size is not None:
            layers += run.jump
            inputs, cast = layers * size.hidden_bytes, max(0.0, kept - layers * size.hidden_bytes)
            # the embedding's output, the first one's, is a local of the model's forward
            kept = min(kept, inputs) - (size.hidden_bytes if layers and run.stack else 0)
            layers += bool(run.stack)
        peaks += [peak - kept for peak in highest[first:stop]]
    marks = head_marks(replace(model, trace=checkpointed))
    if size is not None and marks is not None and (with_adapters or model.loss != "standard"):
        beside = cast + (0.0 if start is None else max(0.0, start - size.hidden_bytes))
        after = len(peaks) - marks.forward - 1
        if model.loss == "standard":  # above what the norm before the head keeps
            more = beside + size.hidden_bytes - forward.levels[marks.forward]
            peaks[marks.forward + 1 :] = [peak + more for peak in forward.peaks[marks.forward + 1 :]]
        else:
            loss = fused_loss(model.loss, replace(size, has_graph=False))
            peaks[marks.forward + 1 :] = [beside + (loss.head or loss.forward)] * after
            peaks[-1] = beside + loss.forward
    if checkpointed.marks_forward != model.trace.marks_forward:
        peaks = [max(peaks)] * len(model.trace.marks_forward)
    return peaks


def _without_adapters(trace: ActivationTrace, forward: Pass) -> list[float]:
    """The peaks of a pass in which no adapter runs: those beside a module's own product are none."""
    peaks, adapted, level = list(forward.peaks), "", 0.0
    for number, (kind, name) in enumerate(trace.marks_forward):
        if adapted:
            peaks[number] = min(peaks[number], level)
            adapted = "" if (kind, name) == ("fwd_post", adapted) else adapted
        elif kind == "fwd_post" and name.endswith(".base_layer"):
            adapted, level = name.removesuffix(".base_layer"), forward.afters[number]
    return peaks


def _blocks(trace: ActivationTrace) -> Iterator[tuple[Run, int, int]]:
    """Of every layer, and of what lies between: its run (with layers left out before the first alone), its
    first mark and the one after its last."""
    position = 0
    for run in trace.forward:
        marks = len(trace.segments[run.segment])
        for number in range(run.count):
            yield run if number == 0 else replace(run, jump=0), position, position + marks
            position += marks
