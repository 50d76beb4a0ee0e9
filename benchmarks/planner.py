"""How good the planner's time model is, on published runs: the one command behind the bars.

    python -m benchmarks.planner                     # the tables in benchmarks/planner.md
    python -m benchmarks.planner --megatron FILE     # other runs in the same columns
    python -m benchmarks.planner --fsdp FILE --gpu h100-sxm-80gb
    python -m benchmarks.planner --h200              # the runs measured by the project alone

Needs numpy (for the fits). Regret: measured time of the picked plan over the best measured one, less 1,
in groups of four or more plans that compete for the same job.

* catalogue: constants of ``zerokit/timing/constants.py``, none of them fitted to the rows shown.
* left out: constants and layer factors fitted to all other shapes than the one judged.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import step_time
from benchmarks.common import options_of
from benchmarks.measure.quality import possible
from benchmarks.published_runs import FSDP_FILE, FSDP_FILES, MEGATRON_FILE, Run, fsdp_runs, megatron_runs
from benchmarks.stacks import MEGATRON, fsdp_stack
from zerokit.catalog import gpus
from zerokit.domain.hardware import Gpu
from zerokit.domain.strategy import MemoryEstimate
from zerokit.memory.closed_form import FUSED_LOSS_BYTES, estimate_analytic
from zerokit.search.explain import LAYERS_NEAR_LIMIT, layers_of_room
from zerokit.timing.calibration import fit_layer_factors, layer_point
from zerokit.timing.constants import Calibration, Constants
from zerokit.timing.step_time import TimeModel

FITTED = (
    "gemm_m0", "gemm_n0", "hidden_bytes", "ffn_bytes", "score_bytes", "launch_seconds",
    "tensor_launch_seconds", "link_efficiency", "tensor_link_share", "half_bytes", "step_launch_seconds",
    "launch_join", "adam_bytes", "logit_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run that was predicted elsewhere."""

    seconds: float
    predicted: float
    rivals: tuple[object, ...]


def predict(runs: Iterable[Run], constants: Constants, calibration: Calibration | None = None) -> list[float]:
    """Step seconds of each run."""
    models: dict[tuple[object, ...], TimeModel] = {}
    found = []
    for run in runs:
        key = (id(run.shape), run.job, run.cluster.gpus)
        if key not in models:
            models[key] = TimeModel(run.shape, run.job, run.cluster, constants, calibration)
        found.append(models[key].estimate(run.strategy).step_seconds)
    return found


def fit(runs: Sequence[Run], start: Constants, names: Sequence[str], pull: float = 0.05) -> Constants:
    """Least squares on the logarithms (Levenberg-Marquardt), pulled towards ``start``."""
    measured = np.array([run.seconds for run in runs])
    origin = np.log([getattr(start, name) for name in names])

    def constants(x: np.ndarray) -> Constants:
        return replace(start, **{name: float(np.exp(value)) for name, value in zip(names, x, strict=True)})

    def residuals(x: np.ndarray) -> np.ndarray:
        error = np.log(np.array(predict(runs, constants(x))) / measured)
        return np.concatenate([error, pull * math.sqrt(len(runs) / len(names)) * (x - origin)])

    x, damping = origin.copy(), 1e-2
    now = residuals(x)
    for _ in range(8):
        steps = 0.02 * np.eye(len(x))
        jacobian = np.stack([(residuals(x + step) - now) / 0.02 for step in steps], axis=1)
        normal = jacobian.T @ jacobian
        for _ in range(5):
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -jacobian.T @ now)
            trial = residuals(x + np.clip(move, -0.7, 0.7))
            if trial @ trial < now @ now:
                break
            damping *= 5
        else:
            break
        gain = 1 - (trial @ trial) / (now @ now)
        x, now, damping = x + np.clip(move, -0.7, 0.7), trial, max(damping / 5, 1e-6)
        if gain < 1e-4:
            break
    return constants(x)


def layer_factors(runs: Sequence[Run], constants: Constants) -> Calibration:
    """What the fitted formulas leave over, by width, tensor parallel degree and tokens of a layer."""
    found = fit_layer_factors(
        [layer_point(run.shape, run.job, run.strategy) for run in runs],
        [run.seconds for run in runs],
        lambda factors: predict(runs, constants, Calibration(layer_factors=factors)),
    )
    return Calibration(layer_factors=found)


def left_out(
    runs: Sequence[Run],
    group: Callable[[Run], object],
    predictor: Callable[[list[Run], list[Run]], list[float]],
) -> list[float]:
    """Predictions of each group by what was fitted to all others."""
    found: dict[int, float] = {}
    for value in sorted({str(group(run)) for run in runs}):
        training = [run for run in runs if str(group(run)) != value]
        judged = [run for run in runs if str(group(run)) == value]
        if training:
            found.update(zip(map(id, judged), predictor(training, judged), strict=True))
    return [found.get(id(run), math.nan) for run in runs]


def regrets(runs: Sequence[Run | Measured], predicted: Sequence[float], top: int = 1) -> list[float]:
    """Per group of at least four rivals: best measured of the ``top`` picked over the best, less 1."""
    groups = defaultdict(list)
    for run, seconds in zip(runs, predicted, strict=True):
        groups[run.rivals].append((seconds, run.seconds))
    return [
        min(measured for _, measured in sorted(group)[:top]) / min(measured for _, measured in group) - 1
        for group in groups.values()
        if len(group) >= 4
    ]


def row(name: str, runs: Sequence[Run | Measured], predicted: Sequence[float]) -> str:
    """One line of the table."""
    error = [abs(seconds / run.seconds - 1) for run, seconds in zip(runs, predicted, strict=True)]
    bias = statistics.mean(seconds / run.seconds - 1 for run, seconds in zip(runs, predicted, strict=True))
    line = f"{name:<52} {statistics.mean(error):>7.1%} {bias:>+7.1%}"
    picked = sorted(regrets(runs, predicted))
    if len(picked) > 1:
        worst = picked[min(len(picked) - 1, round(0.95 * (len(picked) - 1)))]
        line += f" {statistics.mean(picked):>9.2%} {worst:>9.1%}"
        line += f" {statistics.mean(regrets(runs, predicted, 3)):>9.2%} {len(picked):>7}"
    return line


def rule_of_thumb(runs: Sequence[Run]) -> list[float]:
    """Not seconds but an order: most data parallel first, then the largest micro-batch."""
    return [1.0 / (run.strategy.data_parallel + 1e-3 * run.strategy.settings.micro_batch) for run in runs]


_HEAD = f"{'':<52} {'error':>7} {'bias':>7} {'regret':>9} {'95th':>9} {'of top 3':>9} {'groups':>7}"


def megatron(path: Path, gpu: Gpu) -> None:
    """Tables of the Megatron-DeepSpeed runs."""
    runs = megatron_runs(path, gpu)
    print(f"\n{path.name}: {len(runs)} runs on {gpu.name}\n{_HEAD}")
    picked = sorted(regrets(runs, rule_of_thumb(runs)))
    print(
        f"{'rule: most data parallel, then micro-batch':<52} {'':>7} {'':>7} {statistics.mean(picked):>9.2%}"
    )
    print(row("catalogue constants", runs, predict(runs, MEGATRON)))

    def parametric(training: list[Run], judged: list[Run]) -> list[float]:
        return predict(judged, fit(training, MEGATRON, FITTED))

    def with_factors(training: list[Run], judged: list[Run]) -> list[float]:
        constants = fit(training, MEGATRON, FITTED)
        return predict(judged, constants, layer_factors(training, constants))

    if len({run.shape_key for run in runs}) > 1:
        print(row("shape left out: constants", runs, left_out(runs, lambda r: r.shape_key, parametric)))
        print(row("shape left out: constants and layer factors", runs,
                  left_out(runs, lambda r: r.shape_key, with_factors)))  # fmt: skip
    if len({run.shape.hidden for run in runs}) > 1:
        print(row("width left out: constants and layer factors", runs,
                  left_out(runs, lambda r: r.shape.hidden, with_factors)))  # fmt: skip
    if len({run.cluster.gpus for run in runs}) > 1:
        print(row("GPU count left out: constants and layer factors", runs,
                  left_out(runs, lambda r: r.cluster.gpus, with_factors)))  # fmt: skip
    for jobs in (0, 1, 2, 4, 6, 8, 12):
        error, lost = tuned_before(runs, jobs)
        if not math.isnan(error):
            name = f"{jobs} jobs of this width tuned before, their best 3"
            print(f"{name:<52} {error:>7.1%} {'':>7} {lost:>9.2%}")


def tuned_before(runs: Sequence[Run], jobs: int, picked: int = 3, draws: int = 5) -> tuple[float, float]:
    """Mean time error and regret of each job when ``jobs`` others of its width were tuned before it:
    the best ``picked`` predictions of each run, and layer factors taken from them alone."""
    groups = defaultdict(list)
    for run in runs:
        groups[run.rivals].append(run)
    rivals = [group for group in groups.values() if len(group) >= 4]
    plain = {id(run): seconds for run, seconds in zip(runs, predict(runs, MEGATRON), strict=True)}
    chance = random.Random(2)
    errors, lost = [], []
    for group in rivals:
        others = [o for o in rivals if o is not group and o[0].shape.hidden == group[0].shape.hidden]
        for _ in range(draws if len(others) >= jobs else 0):
            ran = [run for other in chance.sample(others, jobs)
                   for run in sorted(other, key=lambda run: plain[id(run)])[:picked]]  # fmt: skip
            seconds = predict(group, MEGATRON, layer_factors(ran, MEGATRON) if ran else None)
            errors += [abs(s / run.seconds - 1) for s, run in zip(seconds, group, strict=True)]
            lost += regrets(group, seconds)
    return (statistics.mean(errors), statistics.mean(lost)) if errors else (math.nan, math.nan)


def fsdp(path: Path, gpu: Gpu) -> None:
    """Tables of the FSDP runs."""
    runs, stack = fsdp_runs(path, gpu), fsdp_stack(gpu.name)
    measured = [run.seconds for run in runs]
    constant = statistics.median(
        seconds / (6 * run.shape.parameters) / _tokens(run)
        for run, seconds in zip(runs, measured, strict=True)
    )
    print(f"\n{path.name}: {len(runs)} runs on {gpu.name}\n{_HEAD[:68]}")
    print(
        row(
            "constant MFU (fitted median)",
            runs,
            [constant * 6 * r.shape.parameters * _tokens(r) for r in runs],
        )
    )
    predicted = predict(runs, stack)
    print(row("catalogue constants", runs, predicted))
    for near, words in ((True, "near the card's limit"), (False, "all others")):
        part = [pair for pair in zip(runs, predicted, strict=True) if near_limit(pair[0]) is near]
        worst = min(part, key=lambda pair: pair[1] / pair[0].seconds, default=None)
        if worst is not None:
            name = f"  {words}, {len(part)} runs, {worst[1] / worst[0].seconds - 1:+.1%} at worst"
            print(row(name, *map(list, zip(*part, strict=True))))

    def one(training: list[Run], judged: list[Run]) -> list[float]:
        factor = statistics.median(
            run.seconds / seconds for run, seconds in zip(training, predict(training, stack), strict=True)
        )
        return [factor * seconds for seconds in predict(judged, stack)]

    print(f"{'micro-batches judged to fit (all did)':<52} {sum(map(fits, runs))} of {len(runs)}")
    print(
        row("one efficiency constant, model size left out", runs, left_out(runs, lambda r: r.shape_key, one))
    )


def h200() -> None:
    """Tables of the DeepSpeed runs on H200s that the project measured."""
    print(f"\nDeepSpeed 0.19.8 on h200, measured by the project\n{_HEAD}")
    agreement = []
    for name, words in (("quality", "4 GPUs, alone on their host"), ("quality-2gpu", "2 GPUs, the same")):
        alone = [(kept, step_time.timed(kept)) for kept in step_time.rows(name)]
        runs = [_measured(timed, ()) for _, timed in alone]
        print(_line(words, runs))
        print(_line("  by job and card it was run for", _rivals(alone)))
        agreement.append((words, runs))
    shared = [_measured(step_time.timed(kept), ()) for kept in step_time.rows("h200-deepspeed")]
    print(_line("1 to 8 GPUs, up to eight runs on a host", shared))
    busy = [_measured(timed, ()) for timed in step_time.kernels()]
    print(_line("kernels of forward and backward, GPU seconds", busy))
    for name, group in (*agreement, ("up to eight runs on a host", shared)):
        print(f"{'rank correlation: ' + name:<52} {rank_agreement(group):>7.2f}")


def _rivals(alone: Iterable[tuple[dict[str, Any], step_time.Timed]]) -> list[Measured]:
    """Each run once for every card that its measured peak leaves room on."""
    return [
        _measured(timed, (kept["about"]["comparison"], card))
        for kept, timed in alone
        for card in kept["about"]["cards"]
        if possible(kept, card)
    ]


def _measured(timed: step_time.Timed, rivals: tuple[object, ...]) -> Measured:
    return Measured(seconds=timed.measured, predicted=timed.seconds, rivals=rivals)


def _line(name: str, runs: Sequence[Measured]) -> str:
    return row(name, runs, [run.predicted for run in runs])


def rank_agreement(runs: Sequence[Measured]) -> float:
    """Spearman's correlation of predicted and measured times."""

    def ranks(values: list[float]) -> list[float]:
        return [float(sum(other < value for other in values)) for value in values]

    return statistics.correlation(
        ranks([run.predicted for run in runs]), ranks([run.seconds for run in runs])
    )


def memory_of(run: Run) -> MemoryEstimate:
    """The closed form's, with llm-foundry's flash attention (Transformers' MPT has none), fused loss and
    FSDP's gradients, which are reduced block by block rather than in a bucket of 5e8 elements."""
    zero = replace(run.strategy.settings.zero, reduce_bucket_size=50_000_000)
    strategy = replace(run.strategy, settings=replace(run.strategy.settings, zero=zero))
    shape = replace(run.shape, kept=replace(run.shape.kept, score_bytes=(0.0, 0.0)))
    return estimate_analytic(shape, run.job, strategy, run.cluster, bytes_per_logit=FUSED_LOSS_BYTES)


def fits(run: Run) -> bool:
    """Whether the run is judged to fit."""
    return memory_of(run).min_vram_bytes <= run.cluster.gpu.driver_vram_bytes


def near_limit(run: Run) -> bool:
    """Whether a plan like the run would say that its time is unsure so near the GPU's limit."""
    room = layers_of_room(memory_of(run), run.shape, run.cluster)
    return run.strategy.checkpointing == "full" and 0 <= room <= LAYERS_NEAR_LIMIT


def _tokens(run: Run) -> float:
    return run.strategy.settings.micro_batch * run.strategy.settings.gradient_accumulation * run.job.seq_len


def main() -> None:
    """Print the tables."""
    parser = options_of(__doc__)
    parser.add_argument("--megatron", type=Path, help=f"default: {MEGATRON_FILE.name}")
    parser.add_argument("--fsdp", type=Path, help=f"default: {FSDP_FILE.name}")
    parser.add_argument("--h200", action="store_true", help="the project's own runs")
    parser.add_argument("--gpu", help="of the files given; default: a100-40gb (Megatron), a100-80gb (FSDP)")
    arguments = parser.parse_args()
    every = arguments.megatron is None and arguments.fsdp is None and not arguments.h200
    if every or arguments.megatron:
        megatron(arguments.megatron or MEGATRON_FILE, gpus.lookup(arguments.gpu or "a100-40gb"))
    if arguments.fsdp:
        fsdp(arguments.fsdp, gpus.lookup(arguments.gpu or "a100-80gb"))
    for name, path in FSDP_FILES.items() if every else ():
        fsdp(path, gpus.load(name))
    if every or arguments.h200:
        h200()


if __name__ == "__main__":
    main()
