"""From measured step times to factors on predicted ones, as ``zerokit tune`` collects them.

Two things carry over, and they are kept apart:

* to the **same job** (model, sequence length, method) on as many GPUs: the ratio of measured to
  predicted time of each strategy that ran, and for the others the mean of those ratios, so that a
  strategy does not look faster than a measured one only because it was never tried;
* to **other jobs with layers of the same width**: a factor per layer (:class:`LayerFactor`). On the
  published A100 runs these correct times at once, and choices from about four tuned jobs of a width on
  (``python -m benchmarks.planner``, *jobs of this width tuned before*), so fewer are not used.

To other widths nothing carries over: there a factor makes predictions worse (same table).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from zerokit.domain.deepspeed_settings import deepspeed
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy, TimeEstimate
from zerokit.timing.constants import Calibration, JobFactors, LayerFactor
from zerokit.values import replace

FEWEST_JOBS = 4
"""Of one width, before their layer factors are used for other jobs."""
_LAYER_PARTS = ("compute", "launch")
_LAYER_SHARE = 0.5
"""A step whose layers take less than this share says too little about them."""
_OVERSHOOT = 1.1  # the kernel of Calibration.layer_factor pulls towards 1; a few rounds make up for it
_ROUNDS = 3

LayerPoint = tuple[int, int, int]
"""Hidden width, tensor parallel degree, tokens of one micro-batch on one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One strategy that ran, and its step time. All plain values: it is kept in a file.

    Attributes:
        gpu: catalogue name, or ``cpu``.
        hidden, layers, parameters, seq_len, method, attention: model and job.
        tokens: of one micro-batch on one rank.
        predicted_step_seconds: without any factor from tuning.
        layer_factor: measured over predicted time of its layers; None where they are not most of the step.
    """

    gpu: str
    gpus: int
    nodes: int
    hidden: int
    layers: int
    parameters: int
    seq_len: int
    method: str
    attention: str
    zero_stage: int
    offload_optimizer: str
    offload_param: str
    data_parallel: int
    tensor_parallel: int
    pipeline_parallel: int
    sequence_parallel: int
    micro_batch: int
    gradient_accumulation: int
    checkpointing: str
    precision: str
    tokens: int
    predicted_step_seconds: float
    measured_step_seconds: float
    layer_factor: float | None
    measured_at: str

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_step_seconds / self.predicted_step_seconds

    @property
    def job_key(self) -> tuple[object, ...]:
        """What makes it the same job."""
        return (self.hidden, self.layers, self.parameters, self.seq_len, self.method, self.attention)

    @property
    def key(self) -> tuple[object, ...]:
        """What a newer observation replaces."""
        return (
            self.gpu,
            self.gpus,
            self.nodes,
            *self.job_key,
            *self.strategy_key,
            self.gradient_accumulation,
        )

    @property
    def strategy_key(self) -> tuple[object, ...]:
        """The strategy, as ``Strategy.family`` gives it."""
        return (
            self.zero_stage, self.offload_optimizer, self.offload_param, self.data_parallel,
            self.tensor_parallel, self.pipeline_parallel, self.sequence_parallel, self.micro_batch,
            self.checkpointing, self.precision,
        )  # fmt: skip


def job_key(shape: ModelShape, job: Job) -> tuple[object, ...]:
    """The job as an observation names it."""
    layers = sum(stack.layers for stack in shape.stacks)
    return (shape.hidden, layers, shape.parameters, job.seq_len, job.method, job.attention)


def layer_point(shape: ModelShape, job: Job, strategy: Strategy) -> LayerPoint:
    """Where on the map of layers a strategy's lie."""
    tokens = strategy.settings.micro_batch * job.row_tokens / strategy.sequence_parallel
    return (shape.hidden, strategy.tensor_parallel, max(1, round(tokens)))


def fit_layer_factors(
    points: Sequence[LayerPoint],
    measured_seconds: Sequence[float],
    predict: Callable[[tuple[LayerFactor, ...]], Sequence[float]],
) -> tuple[LayerFactor, ...]:
    """The factors, one per point, under which ``predict`` gives the measured step times on average."""
    factors: dict[LayerPoint, float] = {}
    for _ in range(_ROUNDS):
        errors = defaultdict(list)
        for point, measured, seconds in zip(
            points, measured_seconds, predict(_factors(factors)), strict=True
        ):
            errors[point].append(math.log(measured / seconds))
        factors = {
            point: factors.get(point, 1.0) * math.exp(_OVERSHOOT * _mean(values))
            for point, values in errors.items()
        }
    return _factors(factors)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _factors(factors: Mapping[LayerPoint, float]) -> tuple[LayerFactor, ...]:
    return tuple(
        LayerFactor(hidden=hidden, tensor_parallel=degree, tokens=tokens, factor=factor)
        for (hidden, degree, tokens), factor in factors.items()
    )


def observe(
    shape: ModelShape,
    job: Job,
    cluster: Cluster,
    measured: Sequence[tuple[Strategy, float]],
    estimate: Callable[[Strategy, Calibration], TimeEstimate],
    rates: Calibration,
    at: str,
) -> list[Observation]:
    """Measured step times of a job as observations.

    Args:
        measured: strategies that ran, with the seconds of a step.
        estimate: the time model under a calibration.
        rates: what ``doctor --measure`` found, without factors from tuning.
        at: time stamp.
    """
    uncalibrated = {id(strategy): estimate(strategy, rates) for strategy, _ in measured}
    telling = [
        (strategy, seconds)
        for strategy, seconds in measured
        if sum(uncalibrated[id(strategy)].parts.get(name, 0.0) for name in _LAYER_PARTS)
        >= _LAYER_SHARE * uncalibrated[id(strategy)].step_seconds
    ]
    points = [layer_point(shape, job, strategy) for strategy, _ in telling]
    factors = fit_layer_factors(
        points,
        [seconds for _, seconds in telling],
        lambda factors_: [
            estimate(s, replace(rates, layer_factors=factors_)).step_seconds for s, _ in telling
        ],
    )
    by_point = {(f.hidden, f.tensor_parallel, round(f.tokens)): f.factor for f in factors}
    point_of = dict(zip(map(id, (strategy for strategy, _ in telling)), points, strict=True))
    trial_factors = []
    for strategy, seconds in measured:
        settings = deepspeed(strategy.settings)
        point = point_of.get(id(strategy))
        trial_factors.append(
            Observation(
                gpu=cluster.gpu.name, gpus=cluster.gpus, nodes=cluster.nodes, hidden=shape.hidden,
                layers=sum(stack.layers for stack in shape.stacks), parameters=shape.parameters,
                seq_len=job.seq_len, method=job.method, attention=job.attention,
                zero_stage=settings.zero_stage, offload_optimizer=settings.optimizer_device,
                offload_param=settings.weights_device,
                data_parallel=strategy.data_parallel, tensor_parallel=strategy.tensor_parallel,
                pipeline_parallel=strategy.pipeline_parallel, sequence_parallel=strategy.sequence_parallel,
                micro_batch=settings.micro_batch, gradient_accumulation=settings.gradient_accumulation,
                checkpointing=strategy.checkpointing, precision=settings.precision,
                tokens=layer_point(shape, job, strategy)[2],
                predicted_step_seconds=uncalibrated[id(strategy)].step_seconds, measured_step_seconds=seconds,
                layer_factor=None if point is None else by_point[point], measured_at=at,
            )
        )  # fmt: skip
    return trial_factors


def calibrate(
    rates: Calibration, observations: Iterable[Observation], shape: ModelShape, job: Job, cluster: Cluster
) -> tuple[Calibration, tuple[Observation, ...]]:
    """``rates`` with the factors that observations of this machine give, and those that gave any."""
    on_this_gpu = [observation for observation in observations if observation.gpu == cluster.gpu.name]
    same_size = [
        observation
        for observation in on_this_gpu
        if (observation.gpus, observation.nodes) == (cluster.gpus, cluster.nodes)
    ]
    same_job = tuple(observation for observation in same_size if observation.job_key == job_key(shape, job))
    if same_job:
        ratios = defaultdict(list)
        for observation in same_job:
            ratios[observation.strategy_key].append(math.log(observation.ratio))
        ratio_of = {key: math.exp(_mean(values)) for key, values in ratios.items()}
        mean = math.exp(_mean([math.log(ratio) for ratio in ratio_of.values()]))
        return replace(rates, tuned=JobFactors(by_family=ratio_of, otherwise=mean)), same_job
    wide = [
        observation
        for observation in on_this_gpu
        if observation.hidden == shape.hidden and observation.layer_factor is not None
    ]
    if (
        len({(observation.gpus, observation.nodes, observation.job_key) for observation in wide})
        < FEWEST_JOBS
    ):
        return rates, ()
    logs = defaultdict(list)
    for observation in wide:
        logs[observation.hidden, observation.tensor_parallel, observation.tokens].append(
            math.log(observation.layer_factor or 1.0)
        )
    factors = _factors({point: math.exp(_mean(values)) for point, values in logs.items()})
    return replace(rates, layer_factors=factors), tuple(wide)
