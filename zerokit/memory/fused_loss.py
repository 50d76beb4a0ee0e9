"""Losses other than the model's own: what replaces a trace's output head and cross-entropy. Most never make
the logits of all tokens.

A stored trace has the ordinary loss of a Transformers model. Its layers are the same under any other; so the
instants of head and loss are taken out and those of the library's own function put in their place. Read from

* ``liger``: Liger Kernel 0.8.5, ops/fused_linear_cross_entropy.py (chunks of tokens whose logits take no more
  than the hidden states; both gradients are made in forward and kept until backward);
* ``chunked``: TRL 1.16, kernels/chunked_logprob.py (tiles of 4,096 tokens by 32,768 words, made again in
  backward, which adds both gradients up in fp32), the loss of its SFT trainer;
* ``cut``: cut-cross-entropy 25.1, cce.py and cce_backward.py (no logits in memory at all);
* ``logprobs``: LLaMA-Factory 0.9.5, train/dpo/trainer.py:186 and trainer_utils.py:608, of pairs: the logits
  in fp32, which it keeps for what it logs, those with a next token (of several sequences a copy), and their
  log-softmax;
* ``kto``: the same of single answers, with a pass of others without a graph (train/kto/trainer.py:182);
* ``selected``: TRL 0.29, trainer/utils.py, ``selective_log_softmax``, of what the model returns: of logits in
  fp32 their logsumexp, of others a log-softmax, a row at a time; ``selected-nll``: with the cross-entropy of
  the chosen answers (experimental/orpo/orpo_trainer.py:747, experimental/cpo/cpo_trainer.py);
* ``copied``, ``copied-nll``: the same in axolotl's Triton function (0.19, monkeypatch/trainer/utils.py:491),
  which keeps a copy of the logits that have a next token; ``copied-kto``: with what TRL 1.9 logs of them
  (trainer/kto_trainer.py:1617); ``copied-slices``: of those of what was generated alone
  (trainer/grpo_trainer.py:1516);
* ``value``: LLaMA-Factory 0.9.5, train/rm/trainer.py:98, over models/modeling_value_head.py:138 of TRL 0.24,
  which runs the model with its own loss and all hidden states and casts its logits to fp32; what counts is a
  head of one output beside that of the words;
* ``score``: one output for each token instead of the words, of which the last counts
  (transformers/modeling_layers.py, ``GenericForSequenceClassification``, 5.23).

Every token counts as a target but the last of each sequence, as in a batch without masked labels; of what a
trainer has generated the new ones alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

from zerokit.domain.activations import ActivationTrace, Mark, Pass, Polynomial, Run, Timeline
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory.rank_model import RankModel, layers_of
from zerokit.values import frozen_dataclass, replace


@frozen_dataclass
class HeadMarks:
    """When the output head runs.

    Attributes:
        name: of its module.
        forward: mark of forward at which it begins.
        backward: mark of backward at which its outputs' gradient is there.
    """

    name: str
    forward: int
    backward: int


@lru_cache(maxsize=256)
def head_marks(model: RankModel) -> HeadMarks | None:
    """When the output head runs; ``None``: the model, or this stage of a pipeline, ends with no head."""
    weights = {p.name for p in model.parameters} | set(model.profile.ties)
    forward = model.trace.marks_forward
    start, name = max(
        (
            (i, name)
            for i, (kind, name) in enumerate(forward)
            if kind == "fwd_pre" and f"{name}.weight" in weights
        ),
        default=(-1, ""),
    )
    if start < 0 or not model.trace.forward or model.trace.forward[-1].stack:
        return None
    backward = model.trace.marks_backward
    end = next((i for i, (kind, module) in enumerate(backward) if kind == "bwd_pre" and module == name), None)
    return None if end is None else HeadMarks(name=name, forward=start, backward=end)


def loss_bytes(model: RankModel, timeline: Timeline, phase: str, position: int | None, between: bool) -> int:
    """Bytes of the loss at the highest instant of a phase; 0 where it is not alive then, or cannot be told.

    Args:
        position: the mark at or before which the instant is, of ``timeline.forward`` or, in backward, of
            ``timeline.backward`` at stage 3; ``None``: the highest of ``timeline.forward``, or the way to
            the first mark of ``timeline.gradients``.
        between: on the way to the mark instead of at it.
    """
    marks = head_marks(model)
    if marks is None:
        return 0
    # a fused loss works in the head's own backward
    start, end = marks.forward, marks.backward + (model.loss != "standard")
    forward, backward = timeline.forward, timeline.backward
    before = forward.levels[start]
    if phase == "forward":
        if position is None:
            position, between = max(range(len(forward.peaks)), key=forward.peaks.__getitem__), True
        live = (forward.peaks if between else forward.levels)[position] if position > start else before
    elif position is None:
        # up to the first gradient the head's backward may reach higher than the loss: then it is not the loss
        live = timeline.gradients.peaks[0]
        if live > max(backward.peaks[: end + 1]):
            live = before
    else:
        live = (backward.peaks if between else backward.levels)[position] if position <= end else before
    return max(0, round(live - before))


_TRL_TOKENS, _TRL_WORDS = 4096, 32768
"""A tile: ``TOKEN_CHUNK_SIZE`` of kernels/chunked_logprob.py, ``_CHUNKED_LOGPROB_CHUNK_SIZE`` of
trainer/utils.py (TRL 1.16)."""
_INT64 = 8
_FP32 = 4

FUSED_LOSS_SAVES = 0.8
"""At most, of the loss's memory: what Liger Kernel states for its chunked losses (README of 0.8.5)."""


@frozen_dataclass
class LossSize:
    """What the bytes of a loss depend on.

    Attributes:
        sequences, seq_len: of a micro-batch on one rank.
        hidden, vocabulary: columns and rows of the output head.
        element_bytes: of weights and hidden states.
        product_bytes: of what operators take and make: fewer under autocast on weights in fp32.
        output_bytes: of what the model returns.
        trained: whether the head's weight has a gradient.
        adds_in_place: whether the GPU adds 16-bit products to a 16-bit gradient (from Ampere on).
        has_graph: whether a backward pass follows.
        returned_bytes: of the layers' inputs, where the model returns all of them and backward needs none.
        scored: tokens of a sequence that count; None: all with a next one.
    """

    sequences: int
    seq_len: int
    hidden: int
    vocabulary: int
    element_bytes: int
    product_bytes: int
    trained: bool
    output_bytes: int = 2
    adds_in_place: bool = True
    has_graph: bool = True
    returned_bytes: int = 0
    scored: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.sequences * self.seq_len

    @property
    def headed(self) -> int:
        """Tokens whose logits a model makes that is told which count: those, and the one before them."""
        return self.tokens if self.scored is None else self.sequences * (self.scored + 1)

    @property
    def targets(self) -> int:
        """Tokens that count."""
        return self.sequences * (max(0, self.seq_len - 1) if self.scored is None else self.scored)

    @property
    def hidden_bytes(self) -> int:
        """Bytes of the hidden states that the head reads."""
        return self.tokens * self.hidden * self.element_bytes

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the head's gradient; 0 where it is frozen."""
        return self.vocabulary * self.hidden * self.element_bytes if self.trained else 0


@frozen_dataclass
class LossBytes:
    """Bytes above what the layers keep, the hidden states that the head reads among them.

    Attributes:
        forward: the most while the loss is computed.
        kept: from then until backward.
        backward: the most until the hidden states' gradient stands alone, the head's gradient included.
        head: of a loss that is computed when the model's forward has ended, the most until then.
        afterwards: of such a loss, the most of its backward before that of the head.
        first_pass: beside what backward needs, what is there until a reference model's pass ends: of the
            policy's, or of the first of two.
    """

    forward: int
    kept: int
    backward: int
    head: int = 0
    afterwards: int = 0
    first_pass: int = 0

    def most(self, reference: bool) -> tuple[int, int]:
        """The most in forward, with a pass through a ``reference`` model, and in backward."""
        beside = self.kept + self.first_pass if reference else 0
        return max(self.head, self.forward + beside), max(self.afterwards, self.backward)


def _liger(size: LossSize) -> LossBytes:
    per_pass = -(-size.vocabulary // size.hidden)
    rows = min(size.tokens, 1 << (-(-size.tokens // per_pass) - 1).bit_length())
    logits = rows * size.vocabulary * size.element_bytes
    added = 0
    if size.trained and (size.element_bytes == 4 or not size.adds_in_place):
        # the product, and its fp32 copy where it is in 16 bits
        added = size.vocabulary * size.hidden * (_FP32 if size.element_bytes == 4 else _FP32 + 2)
    # losses in fp32, which tokens count, and the shifted labels with what they were padded from
    vectors = size.tokens * (_FP32 + 1 + 2 * _INT64)
    gradients = size.hidden_bytes + size.gradient_bytes
    return LossBytes(
        forward=size.hidden_bytes + gradients + logits + added + vectors, kept=gradients, backward=gradients
    )


def _chunked(size: LossSize) -> LossBytes:
    chosen = size.targets * size.hidden * size.element_bytes  # hidden states with a target: a copy
    rows = min(size.targets, _TRL_TOKENS)
    tile = rows * _TRL_WORDS * size.product_bytes  # however few words there are
    one_cast, casts = _casts(size, rows)
    # seven running statistics in fp32; targets, and where they are, in int64; which tokens count
    vectors = size.targets * (7 * _FP32 + 3 * _INT64) + size.tokens
    kept_bytes = chosen + size.targets * (2 * _FP32 + 3 * _INT64) + size.tokens
    summed = size.targets * size.hidden * _FP32
    if size.trained:
        summed += size.vocabulary * size.hidden * _FP32
    narrow = 0 if size.element_bytes == 4 else chosen + size.gradient_bytes
    return LossBytes(
        forward=size.hidden_bytes + chosen + tile + one_cast + vectors,
        kept=kept_bytes,
        backward=kept_bytes + summed + tile + casts + narrow,
    )


def _casts(size: LossSize, rows: int) -> tuple[int, int]:
    """Bytes of a tile's factors in the products' dtype, in forward and in backward, where the part of the
    weight before is still there when the next is cast (a variable, ``w_chunk``)."""
    if size.product_bytes == size.element_bytes:
        return 0, 0
    one, all_words = min(_TRL_WORDS, size.vocabulary), size.vocabulary
    if size.targets > _TRL_TOKENS:  # the first part of the next tokens' comes after the last of these
        all_words = max(all_words, 2 * one)
    of_row = size.hidden * size.product_bytes
    return (rows + one) * of_row, (rows + min(2 * one, all_words)) * of_row


def _cut(size: LossSize) -> LossBytes:
    # logsumexp and the target's logit in fp32, valid targets in int64, the mean logit of every word
    vectors = size.targets * (2 * _FP32 + _INT64) + size.vocabulary * _FP32
    kept_bytes = size.hidden_bytes + size.targets * (_FP32 + _INT64) + size.vocabulary * _FP32
    order = size.vocabulary * (_FP32 + _INT64 + _FP32)
    return LossBytes(
        forward=size.hidden_bytes + vectors,
        kept=kept_bytes,
        backward=kept_bytes + size.hidden_bytes + size.gradient_bytes + order,
    )


def _score(size: LossSize) -> LossBytes:
    scores = size.tokens * size.element_bytes
    places = size.tokens * (1 + 2 * _FP32)  # which tokens are no padding, and their places in int32
    gradients = size.hidden_bytes + scores + size.gradient_bytes
    return LossBytes(
        forward=size.hidden_bytes + scores + places,
        kept=size.hidden_bytes + scores,
        backward=size.hidden_bytes + scores + gradients,
    )


def _logprobs(size: LossSize) -> LossBytes:
    logits, chosen = (count * size.vocabulary * _FP32 for count in (size.tokens, size.targets))
    product, casts, needed = _through_head(size)
    return LossBytes(
        head=size.hidden_bytes + casts + product + logits,
        forward=needed + logits + chosen + (chosen if size.sequences > 1 else 0),
        kept=needed + logits + chosen,
        afterwards=needed + 3 * chosen,
        backward=needed + product + size.hidden_bytes + size.gradient_bytes,
    )


def _through_head(size: LossSize) -> tuple[int, int, int]:
    """Bytes of the head's product, of the casts of its factors, and of what its backward needs."""
    casts = 0
    if size.product_bytes != size.element_bytes:
        casts = (size.headed + size.vocabulary) * size.hidden * size.product_bytes
    read = size.headed * size.hidden * size.element_bytes
    needed = ((read if not casts else 0) * size.trained + casts) * size.has_graph
    return size.headed * size.vocabulary * size.product_bytes, casts, needed


def _selected(size: LossSize, *, nll: bool = False) -> LossBytes:
    logits, chosen = _of_outputs(size)
    beside = chosen * nll
    sliced = 0 if size.scored is None else logits  # the gradient of a slice of what was generated
    if size.output_bytes == _FP32:
        copied = beside if size.sequences > 2 else 0  # those of one answer without its last are a view
        forward, kept = logits + beside + copied, logits + beside
        # of a row's logsumexp three at once, beside those of the rows before; then all rows in one
        rows = max(2 * logits, logits + 2 * logits // size.sequences)
        return _of_loss(size, forward=forward, kept=kept, afterwards=kept + rows + sliced)
    # the log-softmax of every row, without a graph of two at once
    rows = size.sequences if size.has_graph else min(2, size.sequences)
    forward = logits + logits * rows // size.sequences + beside
    afterwards = 2 * (logits + sliced) + beside
    return _of_loss(size, forward=forward, kept=logits + beside, afterwards=afterwards)


def _copied(size: LossSize, *, nll: bool = False, logged: int = 0, slices: bool = False) -> LossBytes:
    """Bytes with a copy of the logits; ``logged``: how many more are made of it to log them; ``slices``: of a
    slice of a slice, each of which has a gradient."""
    logits, chosen = _of_outputs(size)
    beside, copy = chosen * nll, size.targets * size.vocabulary * size.output_bytes
    afterwards = 2 * logits + beside if nll else (1 + slices) * (logits + copy)
    return _of_loss(
        size,
        forward=logits + copy * max(1, logged) + beside,
        kept=copy + beside,
        afterwards=afterwards,
        first_pass=logits,
    )


def _of_outputs(size: LossSize) -> tuple[int, int]:
    """Bytes of the logits that the model returns, and of those of the chosen answers, half of all."""
    a_token = size.vocabulary * size.output_bytes
    return size.headed * a_token, size.targets // 2 * a_token


def _of_loss(size: LossSize, *, forward: int, kept: int, afterwards: int, first_pass: int = 0) -> LossBytes:
    """The bytes of a loss of what the model returns, which has so many beside what the head keeps."""
    product, casts, needed = _through_head(size)
    returned = 0 if size.output_bytes == size.product_bytes else _of_outputs(size)[0]
    return LossBytes(
        head=product + max(size.hidden_bytes + casts, needed + returned),
        forward=needed + forward,
        kept=needed + kept,
        afterwards=needed + afterwards,
        backward=needed + product + size.hidden_bytes + size.gradient_bytes,
        first_pass=first_pass,
    )


def _kto(size: LossSize) -> LossBytes:
    return replace(_logprobs(size), first_pass=size.tokens * size.vocabulary * _FP32)


def _value(size: LossSize) -> LossBytes:
    logits, casts, _ = _through_head(size)
    wide = size.tokens * size.vocabulary * _FP32
    # log-softmax of the model's own loss, and a copy of logits that are not in fp32
    words = logits + wide + (wide if size.product_bytes != _FP32 else 0)
    kept = size.tokens * size.hidden * (size.product_bytes + 1)  # behind dropout, and its mask
    return LossBytes(
        head=size.hidden_bytes + casts + words + size.returned_bytes + kept,
        forward=size.hidden_bytes + kept,
        kept=kept,
        backward=kept + size.tokens * size.hidden * _FP32,
    )


_FORMULAS: Mapping[str, Callable[[LossSize], LossBytes]] = {
    "liger": _liger, "chunked": _chunked, "cut": _cut, "logprobs": _logprobs, "kto": _kto, "score": _score,
    "value": _value, "selected": _selected, "selected-nll": partial(_selected, nll=True), "copied": _copied,
    "copied-nll": partial(_copied, nll=True), "copied-kto": partial(_copied, logged=2),
    "copied-slices": partial(_copied, slices=True),
}  # fmt: skip


FUSED = ("liger", "chunked", "cut")
"""Losses that read the head's weight without running the head."""


def loss_size(
    model: RankModel,
    sequences: int,
    seq_len: int,
    settings: TrainingSettings,
    adds_in_place: bool,
    scored: int | None = None,
) -> LossSize | None:
    """The size of a model's loss; None where the model does not end with an output head."""
    marks = head_marks(model)
    if marks is None:
        return None
    weight = f"{marks.name}.weight"
    listed = model.profile.ties.get(weight, weight)
    parameter = next(p for p in model.parameters if p.name == listed)
    vocabulary, hidden = parameter.shape
    returned = 0
    if model.loss == "value" and model.checkpointing == "none" and settings.parameter_bytes < _FP32:
        # norms keep what they read in fp32 alone
        returned = len(layers_of(model.parameters)) * sequences * seq_len * hidden * settings.parameter_bytes
    return LossSize(
        sequences=sequences, seq_len=seq_len, hidden=hidden, vocabulary=vocabulary,
        element_bytes=parameter.element_bytes or settings.parameter_bytes,
        product_bytes=settings.product_bytes,
        output_bytes=settings.output_bytes,
        trained=parameter.trainable and model.loss != "value", adds_in_place=adds_in_place,
        returned_bytes=returned, scored=scored,
    )  # fmt: skip


def fused_loss(loss: str, size: LossSize) -> LossBytes:
    """The bytes of a loss of :data:`zerokit.domain.job.LOSSES` other than the standard one."""
    return _FORMULAS[loss](size)


@lru_cache(maxsize=64)
def with_score_head(model: RankModel) -> RankModel:
    """The model with one trained output, as its loss asks for: instead of those of its words, or beside them,
    which then get no gradient."""
    marks = head_marks(model)
    if model.loss not in ("score", "value") or marks is None:
        return model
    weight, beside = f"{marks.name}.weight", model.loss == "value"
    tied = weight in model.profile.ties
    listed = next(p for p in model.parameters if p.name == model.profile.ties.get(weight, weight))
    name = _VALUE_HEAD if beside else weight
    score = replace(listed, name=name, shape=(1, listed.shape[1]), trainable=True, stored_bytes=0)
    model = replace(model, trace=_with_gradient(model.trace, weight, name))
    if not (tied or beside):
        parameters = tuple(score if p is listed else p for p in model.parameters)
        return replace(model, parameters=parameters)
    ties = {alias: own for alias, own in model.profile.ties.items() if beside or alias != weight}
    profile = replace(model.profile, ties=ties)
    table = listed.name if tied and listed.trainable else ""
    return replace(model, parameters=(*model.parameters, score), profile=profile, untied=table)


_VALUE_HEAD = "v_head.summary.weight"


def _with_gradient(trace: ActivationTrace, weight: str, name: str) -> ActivationTrace:
    """The trace with the gradient of the output ``name`` in place of that of the head's weight; below ZeRO-3,
    where there is none, before all others: its level is the loss's to say."""
    if weight != name:
        renamed = (
            tuple(replace(m, name=name) if m.name == weight else m for m in marks) for marks in trace.segments
        )
        trace = replace(trace, segments=tuple(renamed))
    if not trace.gradients or trace.marks_gradients[0][1] == name:
        return trace
    nothing: Polynomial = (0, 0, 0, 0, 0, 0)
    mark = Mark(kind="grad", name=name, peaks=(nothing,), level=nothing, after=nothing)
    gradients = (Run(segment=len(trace.segments)), *trace.gradients)
    return replace(trace, segments=(*trace.segments, (mark,)), gradients=gradients)


@lru_cache(maxsize=512)
def with_loss(model: RankModel, timeline: Timeline, size: LossSize) -> Timeline:
    """The timeline with the model's own loss instead of the one traced."""
    marks = head_marks(model)
    assert marks is not None
    loss = fused_loss(model.loss, size)
    tied = model.untied or model.profile.ties.get(f"{marks.name}.weight")
    of_table = sum(p.numel * size.element_bytes for p in model.trainable if p.name == tied)
    base = after = timeline.forward.levels[marks.forward] - size.hidden_bytes
    if loss.head or size.product_bytes != size.element_bytes:  # autocast's casts of weights end with forward
        made = size.hidden_bytes + max(size.gradient_bytes, of_table)
        after = min(base, timeline.backward.levels[marks.backward + 1] - made)
    # from the head on: the loss at once, then what it keeps, with the hidden states until the end; or the
    # loss at the end
    more = len(timeline.forward.levels) - marks.forward - 2
    held_bytes = base + loss.kept + size.hidden_bytes
    at_head, at_end = [base + loss.forward, *[held_bytes] * more], base + loss.kept
    if loss.head:
        held_bytes = min(held_bytes, base + loss.head)
        at_head = [base + loss.head, *[held_bytes] * (more - 1), after + loss.forward]
        at_end = after + loss.kept
    forward = Pass(
        peaks=(*timeline.forward.peaks[: marks.forward + 1], *at_head),
        levels=_ended(timeline.forward.levels, marks.forward, [held_bytes] * more, at_end),
        afters=_ended(timeline.forward.afters, marks.forward, [held_bytes] * more, at_end),
    )
    base = after
    backward = _backward(timeline.backward, marks.backward, base, loss)
    names = [name for _, name in model.trace.marks_gradients]
    # of an output that the trace does not train the gradient is there with the loss's
    output = _VALUE_HEAD if model.loss == "value" else f"{marks.name}.weight"
    own = int(names[0] == output and ("grad", output) not in model.trace.marks_backward)
    first = names[own]
    complete = (
        position
        for position, (kind, name) in enumerate(model.trace.marks_backward)
        if kind in ("grad", "kept") and name == first
    )
    reached = next(complete, marks.backward)
    # on the way to the first gradient: the loss, and what the layers before it do since
    later = backward.peaks[marks.backward + 1 : reached + 1]
    whole = base + max(loss.kept, loss.afterwards, loss.backward)
    gradients = timeline.gradients
    peaks = ((whole,) * own + (max(whole, *later),))[: len(gradients.peaks)]
    at_own = (base + loss.backward,) * own
    gradients = Pass(
        peaks=(*peaks, *gradients.peaks[len(peaks) :]),
        levels=(*at_own, *gradients.levels[own:]),
        afters=(*at_own, *gradients.afters[own:]),
    )
    if tied is not None and of_table and (model.untied or model.loss in FUSED):
        change = _of_input_alone if model.untied else _added_in_place
        at = names.index(tied)
        if ("grad", tied) in model.trace.marks_backward:
            mark = model.trace.marks_backward.index(("grad", tied))
            in_input = backward.levels[mark - 1]
            gradients = change(gradients, own, at, of_table, in_input)
            backward = change(backward, marks.backward + 2, mark, of_table, in_input)
        else:
            gradients = change(gradients, own, at, of_table, gradients.afters[at - 1])
    return Timeline(forward=forward, backward=backward, forward_peak=max(forward.peaks), gradients=gradients)


def _added_in_place(traced: Pass, first: int, mark: int, table_bytes: int, before: float) -> Pass:
    """Where the gradient of an embedding is added to that of the head which is tied to it: the loss's own
    function returned the head's, which takes the sum; that of a linear module is a view, and gets a copy
    (``accumulate``, torch/csrc/autograd/input_buffer.cpp, 2.13)."""
    most = min(traced.peaks[mark], traced.afters[mark - 1] + table_bytes)
    return replace(traced, peaks=(*traced.peaks[:mark], most, *traced.peaks[mark + 1 :]))


def _of_input_alone(traced: Pass, first: int, mark: int, table_bytes: int, before: float) -> Pass:
    """Where no gradient of the head waits from the mark ``first`` on for that of the embedding, before which
    so many bytes are live with it."""

    def lowered(values: Sequence[float]) -> tuple[float, ...]:
        return (*values[:first], *[value - table_bytes for value in values[first:mark]], *values[mark:])

    peaks = lowered(traced.peaks)
    return Pass(
        peaks=(*peaks[:mark], min(peaks[mark], before), *peaks[mark + 1 :]),
        levels=lowered(traced.levels),
        afters=lowered(traced.afters),
    )


def _ended(traced: Sequence[float], head: int, held: list[float], last: float) -> tuple[float, ...]:
    return (*traced[: head + 1], *held, last)


def _backward(traced: Pass, head: int, base: float, loss: LossBytes) -> Pass:
    """Up to the head's backward what was kept, and the loss's own; then the head's, to the trace's level."""
    levels = [base + loss.kept] * (head + 1)
    at_once = [*levels[:head], base + max(loss.kept, loss.afterwards)]
    return Pass(
        peaks=(*at_once, base + loss.backward, *traced.peaks[head + 2 :]),
        levels=(*levels, *traced.levels[head + 1 :]),
        afters=(*levels, *traced.afters[head + 1 :]),
    )
