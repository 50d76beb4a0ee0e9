"""Figures that the documentation quotes, each computed from committed data or from the code.

A function for each group of figures; ``benchmarks/quotes.py`` names the sentences that hold them.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import zerokit
from benchmarks import bare_loop_times, race, rehearsal_page, step_time
from benchmarks.common import rows
from benchmarks.engines import jobs as engines
from benchmarks.measure import limits, quality
from benchmarks.rehearsal_page import DATA, PEAKS, PREDICTED, ROOT, TIMES, Case, Step, cases, steps
from zerokit.catalog import gpus
from zerokit.memory.closed_form import REST_WITHIN, WITHIN
from zerokit.rehearsal.process.machine import PLAN_SECONDS
from zerokit.report.measured import MOST_BYTES, MOST_FRACTION
from zerokit.timing import host_speed
from zerokit.units import GIB, MIB

Figures = dict[str, str]


def size(share: float, digits: int = 0) -> str:
    """The absolute value of a share as per cent, without the sign."""
    return f"{100 * abs(share):.{digits}f}"


def _mean(errors: Iterable[float]) -> float:
    return statistics.mean(map(abs, errors))


# ---- step times


def hosts() -> Figures:
    """The hosts that were probed."""
    ranges = [
        row["host_factor_range"][1] / row["host_factor"]
        for path in sorted(DATA.glob("script-times*.jsonl"))
        for row in rows(path)
        if row.get("host_factor_range")
    ]
    return {
        "fastest": f"{host_speed.FASTEST}", "slowest": f"{host_speed.SLOWEST}",
        "usual": f"{host_speed.USUAL}",
        "spread": f"{statistics.median(ranges):.1f}", "runs": str(len(ranges)),
    }  # fmt: skip


def _last_lists() -> list[Step]:
    names = ("fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
    return [step for name in names for step in steps(TIMES[name])]


def rehearsed_steps() -> Figures:
    """Steps of scripts that were predicted first: the last lists together, and the last two of these."""
    found = _last_lists()
    last = [step.error for name in ("eighth", "ninth") for step in steps(TIMES[name])]
    on_first = [step.factor for step in steps(TIMES["sixth"]) if step.host == "first H200"]
    return {
        "number": str(len(found)), "mean": size(_mean(step.error for step in found), 1),
        "worst": size(max((step.error for step in found), key=abs), 1),
        "last_number": str(len(last)), "last_mean": size(_mean(last), 1),
        "last_worst": size(max(last, key=abs), 1),
        "low": f"{min(on_first):.2f}", "high": f"{max(on_first):.2f}",
    }  # fmt: skip


@cache
def _published() -> dict[str, list[tuple[Any, float]]]:
    """(run, predicted seconds) of what others published, by file."""
    from benchmarks import planner  # needs numpy

    megatron = planner.megatron_runs(planner.MEGATRON_FILE, gpus.load("a100-40gb"))
    found = {"megatron": list(zip(megatron, planner.predict(megatron, planner.MEGATRON), strict=True))}
    for name, path in planner.FSDP_FILES.items():
        runs = planner.fsdp_runs(path, gpus.load(name))
        found[name] = list(zip(runs, planner.predict(runs, planner.fsdp_stack(name)), strict=True))
    return found


def published() -> Figures:
    """Mean errors on runs of others, and on the project's own."""
    errors = {
        name: _mean(said / run.seconds - 1 for run, said in found) for name, found in _published().items()
    }
    fsdp = [error for name, error in errors.items() if name != "megatron"]
    alone = [_mean(_timed_errors(name)) for name in ("quality", "quality-2gpu", "quality-2gpu-second")]
    return {
        "megatron": size(errors["megatron"]), "low": size(min(fsdp)), "high": size(max(fsdp)),
        "own": size(min(alone)), "four": size(max(alone)),
        "shared": size(statistics.mean(_timed_errors("h200-deepspeed"))),
    }  # fmt: skip


def _timed_errors(name: str) -> list[float]:
    return [step_time.timed(row).error for row in step_time.rows(name)]


def near_the_limit() -> Figures:
    """Published FSDP runs with full checkpointing: how much longer than predicted they took."""
    from benchmarks import planner

    near, far = [], []
    for name in planner.FSDP_FILES:
        for run, said in _published()[name]:
            if planner.near_limit(run):
                near.append(run.seconds / said - 1)
            elif run.strategy.checkpointing == "full":
                far.append(run.seconds / said - 1)
    return {
        "number": _WORDS[len(near)], "low": size(min(near)), "high": size(max(near)),
        "others": str(len(far)), "most": size(max(far)),
    }  # fmt: skip


_WORDS = {8: "Eight", 9: "Nine", 10: "Ten"}


def best_of_three() -> Figures:
    """What picking by prediction loses against the measured best, on the published Megatron runs."""
    from benchmarks import planner

    runs, said = zip(*_published()["megatron"], strict=True)
    return {
        "three": f"{100 * statistics.mean(planner.regrets(runs, said, 3)):.1f}",
        "one": f"{100 * statistics.mean(planner.regrets(runs, said)):.1f}",
    }


def bare_loops() -> Figures:
    """How much the steps of one ZeRO-3 run vary, and the probe's rounds beside them."""
    found = rows(DATA / "zero-3-second.jsonl")
    of_median = [seconds / row["step_seconds_median"] for row in found for seconds in row["step_seconds"]]
    rounds = [limit / row["host_factor"] for row in found for limit in row["host_factor_range"]]
    return {
        "below": size(1 - min(of_median)), "above": size(max(of_median) - 1),
        "low": f"{min(rounds):.1f}", "high": f"{max(rounds):.1f}",
    }  # fmt: skip


def choices() -> Figures:
    """What the planner chose for eight jobs on two GPUs, against the other strategies that were run."""
    found = [
        verdict
        for name in ("quality-2gpu", "quality-2gpu-second")
        for verdict in quality.verdicts(rows(DATA / f"{name}.jsonl"))
    ]
    lost = sorted(verdict.regret for verdict in found)
    slower = [regret for regret in lost if regret > 0.1]
    assert all(verdict.regret_of_three == 0 for verdict in found)
    good = {13: "Thirteen"}[len(lost) - len(slower)]
    return {
        "number": {16: "sixteen"}[len(found)], "jobs": {8: "eight"}[len({one.name for one in found})],
        "good": good, "within": size(lost[len(lost) - len(slower) - 1]),
        "slower": {3: "three"}[len(slower)], "low": size(slower[0]), "high": size(slower[-1]),
    }  # fmt: skip


# ---- memory


def _last_cases() -> list[Case]:
    numbers = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    lists = [f"public, {number}" for number in numbers]
    return [case for name in lists for case in cases(PEAKS[name]) if not case.is_bound]


def rehearsed_peaks() -> Figures:
    """Scripts that were rehearsed first, in the lists of public scripts after the first."""
    found = _last_cases()
    peak = rehearsal_page.spread(case.peak_error for case in found)
    reserved = rehearsal_page.spread(case.reserved_error for case in found)
    return {
        "number": str(len(found)), "exact": str(sum(abs(case.peak_error) < 1e-5 for case in found)),
        "peak": peak[1], "worst": peak[2], "reserved": reserved[1], "reserved_worst": reserved[2],
    }  # fmt: skip


def after_softmax() -> Figures:
    """The list that was measured after the copy of a softmax was counted."""
    found = [case for case in cases(PEAKS["public, tenth"]) if not case.is_bound]
    return {"worst": rehearsal_page.spread(case.peak_error for case in found)[2]}


def misses() -> Figures:
    """Two scripts of the first public list, and the ranks of one run."""
    found = {case.name: case for case in cases(PEAKS["public"])}
    (eight,) = (
        row["peak_reserved_bytes"]
        for row in rows(ROOT / "tests" / "data" / "h200" / "h200-deepspeed.jsonl")
        if row["id"] == "llama3.1-8b.w8.z3.b2.s4096.ck"
    )
    return {
        "gkd": size(found["trl.gkd"].peak_error), "dcgan": size(found["pytorch.dcgan"].peak_error),
        "ranks": size(max(eight) / min(eight) - 1, 1),
    }  # fmt: skip


def entry_points() -> Figures:
    """The list of public scripts that were rehearsed."""
    found = rows(PREDICTED / "entry-points-rehearsed.jsonl")
    ended = [row for row in found if row["complete"]]
    seconds = [row["cpu_seconds"] for row in ended]
    return {
        "number": str(len(found)), "complete": str(len(ended)),
        "median": f"{statistics.median(seconds):.0f}", "most": f"{max(seconds):.0f}",
    }  # fmt: skip


def rehearsal_cost() -> Figures:
    """CPU seconds of rehearsals and of a plan beside those of an import, and the most memory of one."""
    found = {row["name"]: row for row in rows(DATA / "rehearsal-cost.jsonl")}
    return {
        **{name.replace("-", "_"): f"{found[name]['in_imports']:.1f}"
           for name in ("8b", "8b-ranks", "70b-ranks", "8b-lora-ranks", "plan")},
        "again": f"{found['the same plan again']['cpu_seconds']:.1f}",
        "memory": f"{max(row.get('memory_bytes', 0) for row in found.values()) / 2**30:.1f}",
    }  # fmt: skip


def few_layers() -> Figures:
    """By how much a peak with few layers is off that with all, and its step longer, at most."""
    found = rows(PREDICTED / "few-layers.jsonl")
    most = max(abs(off) for row in found for phase, off in row["off"].items() if phase != "reserved")
    longer = max(row["step_off"] for row in found)
    return {"most": f"{100 * most:.2f}", "longer": f"{100 * longer:.1f}"}


def rehearsal_gate() -> Figures:
    """Commits that were held to the one before, those of which something grew, and the most CPU seconds."""
    _, *found = rows(DATA / "rehearsal-gate.jsonl")
    return {
        "commits": str(len(found)), "grown": str(sum(bool(row["grown"]) for row in found)),
        "most": f"{max(row['cpu_seconds'] for row in found):.0f}",
    }  # fmt: skip


def host_of_loading() -> Figures:
    """Of the three loads: the most of a process's own memory and of pages beyond what it had before."""
    found = rows(DATA / "host-of-loading.jsonl")

    def most(field: str) -> str:
        return f"{max(row['most'][field] - row['before'][field] for row in found) / 1024:.2f}"

    return {
        "billions": f"{found[0]['parameters'] / 1e9:.1f}",
        "own": most("RssAnon"),
        "pages": f"{float(most('RssFile')):.1f}",
    }


def predicted_again() -> Figures:
    """Runs of another job than their plan's, which were rehearsed after their end."""
    found = rows(PREDICTED / "measured-again.jsonl")
    before = {row["name"]: row["peak_allocated_bytes"] for row in rows(PREDICTED / "predicted-again.jsonl")}
    for row in found:
        assert row["peak_bytes"]["predicted"] == row["peak_bytes"]["measured"] == before[row["name"]]
    return {"number": {7: "Seven"}[len(found)]}


def families() -> Figures:
    """The replay beside rehearsals of families that no GPU has measured."""
    found = rows(DATA / "replayed-families.jsonl")
    worst = max(abs(said / seen - 1) for row in found for said, seen in row["pairs"].values())
    return {"number": str(len(found)), "worst": f"{100 * worst:.3f}"}


def losses() -> Figures:
    """Peaks and phases under losses of libraries, and under options of the script, on an H200."""
    return {
        "losses": _below(_option_errors("loss-peaks")),
        "options": _below(_option_errors("memory-options")),
    }


def planted_growths() -> Figures:
    """How many growths that were planted the gate named, and by how much they raised the peak, or that of the
    one phase that they are in."""
    planted = rows(ROOT / "benchmarks/rehearsal/planted-growths.jsonl")[1:]
    found = [row for row in planted if row["exit_code"] == 15 and (row["line"] or row["modules"])]
    by = [100 * row["peak_grown"] or float(row["grown"][0].split()[1].rstrip("%")) for row in found]
    return {"planted": len(planted), "found": len(found), "low": f"{min(by):.1f}", "high": f"{max(by):.1f}"}


def outliers() -> Figures:
    """What a base in 8 bits took more where nearly every column has an outlier."""
    said, took = (
        {row["name"]: row["peak_allocated_bytes"] for row in rows(DATA / f"memory-options{end}.jsonl")}
        for end in ("-predicted", "")
    )
    return {"more": size(took["lora-int8.outliers"] / said["lora-int8.outliers"] - 1, 1)}


def _option_errors(name: str) -> list[float]:
    said = {row["name"]: row for row in rows(DATA / f"{name}-predicted.jsonl")}
    return [
        said[row["name"]]["phases"][phase] / took - 1
        for row in rows(DATA / f"{name}.jsonl")
        if "outliers" not in row["name"]
        for phase, took in row["phases"].items()
    ]


def _below(errors: Iterable[float]) -> str:
    """The next round share above the worst, in per cent."""
    worst = 100 * max(map(abs, errors))
    return f"{next(bar for bar in (0.001, 0.002, 0.005, 0.01, 0.1) if worst <= bar)}"


def limits_of_cards() -> Figures:
    """Plans at the limit of a card, and one notch beyond."""
    found = [row for row in rows(DATA / "fits.jsonl") if "trial" in (row.get("about") or {})]
    at_limit = [row for row in found if row["about"]["kind"] == "fits"]
    beyond = [
        row
        for row in found
        if row["about"]["kind"] == "beyond" and (row["oom"] or limits.fullness(row) is not None)
    ]
    assert not any(row["oom"] for row in at_limit)
    assert all(row["oom"] or (limits.fullness(row) or 0) >= limits.NEAR for row in beyond)
    return {"launched": str(len(at_limit)), "beyond": str(len(beyond)), "near": size(1 - limits.NEAR)}


def all_runs() -> Figures:
    """The first table of docs/accuracy.md: all runs, and those predicted before them as they were then."""
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    runs, _, median, high, worst = _line_of(page, "**all**")
    blind, _, _, first_high, first_worst = _line_of(
        page, "predicted before the run: as it was predicted then"
    )
    assert median == 0
    words = next(line for line in page.splitlines() if " model families" in line)
    return {
        "runs": f"{runs:.0f}", "high": f"{high:.1f}", "worst": f"{worst:.1f}", "blind": f"{blind:.0f}",
        "first_high": f"{first_high:.1f}", "first_worst": f"{first_worst:.0f}",
        "families": words.split(" model families")[0].split()[-1],
    }  # fmt: skip


def _line_of(page: str, name: str) -> list[float]:
    line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
    return [float(cell.strip(" %")) for cell in line.strip("| ").split("|")[1:]]


@cache
def zero_3_waiting() -> Figures:
    """ZeRO-3 beside a probe of the host, as predicted now, and before any was measured."""
    now, again, earlier = (
        [loop.error for loop in bare_loop_times.loops(rows(DATA / f"zero-3-{name}.jsonl"))]
        for name in ("waiting", "again", "second")
    )
    for name in ("waiting", "again"):
        assert all(loop.is_inside for loop in bare_loop_times.loops(rows(DATA / f"zero-3-{name}.jsonl")))
    adapters = [loop.error for loop in bare_loop_times.loops(rows(DATA / "zero-3-adapters.jsonl"))]
    full = bare_loop_times.loops(row for row in rows(DATA / "zero-3-again.jsonl") if not row["lora"])
    longer = [measured / said - 1 for measured, said in _as_predicted("zero-3-waiting")]
    first = [said / measured - 1 for measured, said in _as_predicted("zero-3-again")]
    return {
        "runs": str(len(now)), "mean": size(_mean(now), 1), "worst": size(max(now, key=abs), 1),
        "low": size(min(longer)), "high": size(max(longer)),
        "first": size(_mean(first), 1), "worst_first": size(max(first, key=abs), 1),
        "again": size(_mean(again), 1), "worst_again": size(max(again, key=abs), 1),
        "full": size(max((loop.error for loop in full), key=abs), 1),
        "longer": size(max(adapters), 1), "shorter": size(min(adapters), 1),
        "mean_before": size(_mean(earlier), 1), "worst_before": size(max(earlier, key=abs), 1),
    }  # fmt: skip


def race_of_jobs() -> Figures:
    """How many times as fast plans are as what trainers document."""
    found = race.figures()
    assert (found["jobs"], found["slower"]) == (9, "")
    return {name: found[name] for name in ("least", "most", "median", "said_median")}


def _as_predicted(name: str) -> list[tuple[float, float]]:
    """(measured, predicted before it ran) seconds of each row, at what the probe found of its host."""
    said = {row["id"]: row["seconds_by_host_factor"] for row in rows(DATA / f"{name}-predicted.jsonl")}
    return [
        (row["step_seconds_median"], rehearsal_page.at_factor(row["host_factor"], said[row["id"]]))
        for row in rows(DATA / f"{name}.jsonl")
    ]


def without_engine() -> Figures:
    """Steps of TRL's files without an engine, over what was predicted."""
    said = {row["name"]: row["expected"] for row in rows(DATA / "trainer-files-predicted.jsonl")}
    over = [
        row["alone_step_seconds"] / said[row["name"]]["step_seconds"]
        for row in rows(DATA / "trainer-files.jsonl")
        if "alone_step_seconds" in row
    ]
    assert len(over) == 10
    return {"less": size(1 - min(over)), "more": size(max(over) - 1)}


def trainer_files() -> Figures:
    """Peaks of trainers' files on an H200, over what was predicted before."""
    said = {name: row for name, row in _trainer_files().items() if not _is_rated(row)}
    was = {name: row["measured"] for name, row in said.items()}
    errors = [abs(said[name]["expected"]["peak_allocated_bytes"] / peak - 1) for name, peak in was.items()]
    of = Counter(row.get("trainer", "trl") for row in said.values())
    by_axolotl = [e for e, name in zip(errors, was, strict=True) if said[name].get("trainer") == "axolotl"]
    others = [e for e, name in zip(errors, was, strict=True) if said[name].get("trainer") != "axolotl"]
    back = sum(name.startswith("plan.") or bool(said[name].get("given_back")) for name in was)
    return {
        **{trainer: str(count) for trainer, count in of.items()}, "planned": str(back),
        "others": str(len(others)), "close": str(sum(error < 2e-3 for error in others)),
        "worst": size(max(others), 1), "least": size(min(by_axolotl)), "most": size(max(by_axolotl)),
    }  # fmt: skip


def rated_answers() -> Figures:
    """The same of training by preferences, rewards and GRPO by axolotl, ms-swift and TRL."""
    found = {name: row for name, row in _trainer_files().items() if _is_rated(row)}
    errors = {
        name: abs(row["expected"]["peak_allocated_bytes"] / row["measured"] - 1)
        for name, row in found.items()
    }
    worst = max(errors, key=errors.__getitem__)
    assert worst == "ax.kto.lora"
    others = [error for name, error in errors.items() if name != worst]
    return {
        "files": str(len(errors)), "exact": str(sum(error < 5e-4 for error in others)),
        "others": size(max(others), 1), "worst": size(errors[worst], 1),
    }  # fmt: skip


def _trainer_files() -> dict[str, dict[str, Any]]:
    """What was said of each file, and the peak ``measured``."""
    was = {row["name"]: row["peak_allocated_bytes"] for row in rows(DATA / "trainer-files.jsonl")}
    said = rows(DATA / "trainer-files-predicted.jsonl")
    return {row["name"]: {**row, "measured": was[row["name"]]} for row in said}


def _is_rated(row: Mapping[str, Any]) -> bool:
    return row["stage"] == "grpo" or (row.get("trainer") in ("axolotl", "swift") and row["stage"] != "sft")


def engine_pairs() -> Figures:
    """FSDP2 beside DeepSpeed on two H200s."""
    compared = engines.compared(rows(ROOT / "benchmarks" / "engines" / "h200-2gpu.jsonl"))
    found, first = engines.Summary.of(compared), engines.Summary.of(engines.as_predicted(compared))
    packed = [-one.time_error for _, one in compared if "packed" in one.said]
    (unsteady,) = (one.was["seconds"] for pair, one in compared if pair == "other.1")
    return {
        "packed": str(len(packed)), "quickest": f"{min(unsteady):.2f}", "slowest": f"{max(unsteady):.2f}",
        "least_packed": size(min(packed)), "most_packed": size(max(packed)),
        "first_named": str(first.named), "first_mean": size(_mean(first.times)),
        "named": str(found.named), "pairs": str(found.pairs), "mean": size(_mean(found.times)),
    }  # fmt: skip


def shared_sequences() -> Figures:
    """FSDP2's context parallelism on two H200s."""
    compared = engines.compared(rows(ROOT / "benchmarks" / "engines" / "h200-2gpu.jsonl"))
    own = [(pair, one) for pair, one in compared if pair.startswith("cp.")]
    found, first = engines.Summary.of(own), engines.Summary.of(engines.as_predicted(own))
    return {
        "jobs": str(len(own)), "mean": size(_mean(found.times)), "worst": size(max(found.times)),
        "peak": "0.01" if max(found.peaks) < 1e-4 else "more", "before": size(max(first.peaks), 1),
    }  # fmt: skip


def fsdp2_scripts() -> Figures:
    """Public scripts under FSDP2 on two H200s."""
    lists = (PEAKS["public, eleventh"], PEAKS["public, eleventh, corrected"])
    found = {one.name: one for peaks in lists for one in cases(peaks)}
    return {"scripts": str(len(found)), "equal": str(sum(one.peak_error == 0 for one in found.values()))}


def engine_rows() -> Figures:
    """FSDP2's peaks on one and two H200s."""
    folder = ROOT / "benchmarks" / "engines"
    compared = engines.compared([*rows(folder / "h200-2gpu.jsonl"), *rows(folder / "h200-1gpu.jsonl")])
    found = engines.Summary.of(compared)
    *_, second, worst = sorted(engines.Summary.of(engines.as_predicted(compared)).peaks)
    (packed,) = (one for pair, one in compared if pair == "one.4")
    return {
        "rows": str(len(found.peaks)), "close": str(sum(error < 2e-4 for error in found.peaks)),
        "worst": size(max(found.peaks), 1), "first_second": size(second, 1), "first_worst": size(worst, 1),
        "took": f"{packed.took:.2f}", "said": f"{packed.was['said']['step_seconds']:.2f}",
    }  # fmt: skip


# ---- what the code and its catalogue say


def closed_form() -> Figures:
    """How far the closed form may be off."""
    return {"within": size(WITHIN), "rest": size(REST_WITHIN)}


def attention_plans() -> Figures:
    """What cuDNN's attention takes for a length that it has not met, forward and backward together."""
    measured = rows(DATA / "attention-plans.jsonl")
    parts = [row[name] for row in measured for name in ("chosen", "cudnn_attention")]
    both = [sum(part[name][0] - part[name][1] for name in ("forward", "backward")) / 1e3 for part in parts]
    low, high = PLAN_SECONDS
    assert low <= min(both) and max(both) <= high
    return {"low": f"{low:g}", "high": f"{high:g}"}


def bare_loop() -> Figures:
    """From which difference on a launch rehearses its command."""
    return {"share": size(MOST_FRACTION), "bytes": str(MOST_BYTES // MIB)}


def on_a_24_gb_card() -> Figures:
    """The plan with LoRA beside the QLoRA one of the page."""
    chosen = zerokit.plan(
        model="llama-3.1-8b", method="lora", gpus=1, gpu="rtx-4090", seq_len=2048, global_batch=16
    ).chosen
    assert chosen.strategy.checkpointing == "full"
    estimate = chosen.estimate
    return {
        "required": f"{estimate.min_vram_bytes / GIB:.1f}", "seconds": f"{estimate.step_seconds:.1f}"
    }  # fmt: skip


def desktop_hosts() -> Figures:
    """Host memory of a node with a desktop card."""
    gpu = gpus.load("rtx-4090")
    assert gpu.host_bytes_per_gpu is not None
    return {"one": f"{gpu.host_bytes_per_gpu / GIB:.0f}", "two": f"{2 * gpu.host_bytes_per_gpu / GIB:.0f}"}
