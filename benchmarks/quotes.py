"""Sentences of the documentation that quote measured or predicted figures.

    python -m benchmarks.quotes      # every sentence as it should stand; 1 when a page says otherwise

A row of QUOTES is a page, a sentence with the figures left open, and what computes them. The test of this
module finds each sentence on its page, and every figure of the prose in a sentence or in UNTIED.
``docs/accuracy.md`` and ``docs/rehearsal-accuracy.md`` are written whole by commands of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import quoted_figures as figures
from benchmarks.rehearsal_page import ROOT

QUOTES: tuple[tuple[str, str, Callable[[], figures.Figures]], ...] = (
    (
        "README.md",
        "Across {runs} training runs on H200s, the median error of the predicted peak is less than "
        "0.001 % and the worst is {worst} %",
        figures.all_runs,
    ),
    (
        "docs/predictions.md",
        "the error of the traced peak is less than 0.001 % in the median, {high} % at the 95th percentile "
        "and {worst} % at worst. {blind} of the runs were predicted before they ran; these "
        "first predictions were off by {first_high} % at the 95th percentile and {first_worst} % at worst",
        figures.all_runs,
    ),
    (
        "README.md",
        "its activations are known to {within} %",
        figures.closed_form,
    ),
    (
        "docs/predictions.md",
        "measured for this project ({fastest} to {slowest} times",
        figures.hosts,
    ),
    (
        "docs/rehearsal.md",
        "each length that the run has not met costs its step {low} to {high} s more",
        figures.attention_plans,
    ),
    (
        "docs/predictions.md",
        "{number} published FSDP runs that left as little took {low} to {high} % longer than predicted, "
        "the other {others} with full checkpointing at most {most} %",
        figures.near_the_limit,
    ),
    (
        "docs/predictions.md",
        "activations within {within} % and all else within {rest} %",
        figures.closed_form,
    ),
    (
        "docs/predictions.md",
        "The {runs} committed training runs on 1 to 8 H200s cover {families} families",
        figures.all_runs,
    ),
    (
        "docs/predictions.md",
        "the peaks of {number} of them, at small sizes under ZeRO-2 with checkpointing, differ by at most"
        " {worst} %",
        figures.families,
    ),
    (
        "docs/predictions.md",
        "(`python -m benchmarks.option_peaks`): every peak and phase within {losses} %",
        figures.losses,
    ),
    (
        "docs/predictions.md",
        "every peak and phase on an H200 within {options} %",
        figures.losses,
    ),
    (
        "docs/predictions.md",
        "outliers in nearly every column took {more} % more than said",
        figures.outliers,
    ),
    (
        "docs/rehearsal.md",
        "Of {planted} growths of {low} to {high} % that were planted in TRL's sft.py, one at a time, it "
        "found {found}, each by its line or the modules that took more",
        figures.planted_growths,
    ),
    (
        "docs/options.md",
        "are not counted ({more} % of the peak on an H200",
        figures.outliers,
    ),
    (
        "docs/predictions.md",
        "{launched} plans at the limit of cards of 16 to 141 GB were launched with the allocator capped "
        "to such a card. None ran out of memory. All {beyond} configurations tried one notch beyond did, "
        "or came within {near} % of the limit.",
        figures.limits_of_cards,
    ),
    (
        "docs/predictions.md",
        "{runs} runs of 0.5B to 8B parameters on two H200s, full and LoRA, with the host probed on both "
        "ranks right before: mean error {mean} %, at most {worst} %, each within its range (`python -m "
        "benchmarks.bare_loop_times benchmarks/measure/data/zero-3-waiting.jsonl`). Before the model was "
        "corrected after them, they took {low} to {high} % longer than predicted. Eight further runs were "
        "predicted first and then measured (`zero-3-again.jsonl`): mean error {first} %, at most "
        "{worst_first} %. What DeepSpeed gathers twice with adapters is counted since: {again} %, at most "
        "{worst_again} %, each within its range; without LoRA at most {full} %. The two with adapters, "
        "measured again later: {longer} % too long and {shorter} % too short (`zero-3-adapters.jsonl`). "
        "Eight earlier runs: {mean_before} and {worst_before} %",
        figures.zero_3_waiting,
    ),
    (
        "docs/predictions.md",
        "nine jobs on one and two H200s, trained as the pages of LLaMA-Factory, TRL and the alignment "
        "handbook give them and as planned. The plan was {least} to {most} times as fast, {median} in the "
        "median, where {said_median} was predicted first; it was never slower",
        figures.race_of_jobs,
    ),
    (
        "README.md",
        "Nine jobs on H200s ran {least} to {most} times as fast with a plan as",
        figures.race_of_jobs,
    ),
    (
        "docs/predictions.md",
        "Step times are within about {megatron} % on published Megatron-DeepSpeed runs on A100s, {low} to"
        " {high} % on llm-foundry's on A100s and H100s, and {own} to {four} % on two and four H200s, whose "
        "hosts nobody had probed.",
        figures.published,
    ),
    (
        "docs/predictions.md",
        "predictions were {shared} % too short on average",
        figures.published,
    ),
    (
        "docs/predictions.md",
        "The steps of one run lie between {below} % below and {above} % above their median, and nine "
        "tenths of the probe's rounds between {low} and {high} times theirs",
        figures.bare_loops,
    ),
    (
        "docs/predictions.md",
        "ten steps of TRL's `sft` on one H200, full and LoRA, 1B to 8B parameters, were predicted first; "
        "they took between {less} % less and {more} % more",
        figures.without_engine,
    ),
    (
        "docs/predictions.md",
        "The planner made {number} choices for {jobs} jobs on two H200s. {good} were the fastest of the "
        "strategies run or within {within} % of it; {slower} were {low} to {high} % slower",
        figures.choices,
    ),
    (
        "docs/guide/tune.md",
        "the best of the three plans predicted fastest is {three} % off the measured best, the first "
        "alone {one} %",
        figures.best_of_three,
    ),
    (
        "docs/guide/launch.md",
        "at most {worst} % off in the {runs} measured runs",
        figures.all_runs,
    ),
    (
        "docs/guide/launch.md",
        "is off the plan by more than {share} % and more than {bytes} MiB",
        figures.bare_loop,
    ),
    (
        "docs/quickstart/lora-24gb.md",
        "({required} GiB required, with full checkpointing, {seconds} s a step)",
        figures.on_a_24_gb_card,
    ),
    (
        "docs/which-gpu.md",
        "{one} GiB for one card of 24 GiB, {two} GiB for two",
        figures.desktop_hosts,
    ),
    (
        "docs/rehearsal.md",
        "({fastest} to {slowest} times a reference host's seconds); `step_seconds` is for a host in the "
        "middle ({usual})",
        figures.hosts,
    ),
    (
        "docs/rehearsal.md",
        "the upper end is {spread} times the middle, as in the middle of {runs} probed runs",
        figures.hosts,
    ),
    (
        "docs/rehearsal.md",
        "Over the last six lists ({number} steps, two kinds of GPU) the mean error was {mean} % and the "
        "worst {worst} %, by the probe alone; in the last two, {last_number} steps of models and settings "
        "that were never timed, {last_mean} % and {last_worst} %",
        figures.rehearsed_steps,
    ),
    (
        "docs/rehearsal.md",
        "the probe's factor went from {low} to {high} during",
        figures.rehearsed_steps,
    ),
    (
        "docs/rehearsal.md",
        "the list after it is {worst} off at worst",
        figures.after_softmax,
    ),
    (
        "docs/rehearsal.md",
        "({number} scripts), the error of the peak is less than 0.001 % in {exact} of them, {peak} at the"
        " 95th percentile and {worst} at worst; reserved memory is {reserved} off at the 95th percentile "
        "and {reserved_worst} at worst",
        figures.rehearsed_peaks,
    ),
    (
        "docs/rehearsal.md",
        "generates its batches, was {gkd} % low",
        figures.misses,
    ),
    (
        "docs/rehearsal.md",
        "DCGAN was {dcgan} % low",
        figures.misses,
    ),
    (
        "docs/rehearsal.md",
        "the eight ranks of one run differ by {ranks} % (Llama-3.1-8B)",
        figures.misses,
    ),
    (
        "docs/rehearsal.md",
        "{number} public scripts, unmodified, are listed",
        figures.entry_points,
    ),
    (
        "docs/rehearsal.md",
        "{complete} ran to completion (torch 2.13, transformers 5.23; {median} s of CPU in the median, "
        "{most} s at most)",
        figures.entry_points,
    ),
    (
        "docs/rehearsal.md",
        "so {complete} of {number} is not a random sample",
        figures.entry_points,
    ),
    (
        "docs/rehearsal.md",
        "{8b} times the CPU seconds of importing its libraries on one GPU and {8b_ranks} times under ZeRO-3 "
        "on eight, with 70B {70b_ranks} times, with {memory} GiB of memory at most",
        figures.rehearsal_cost,
    ),
    (
        "docs/rehearsal.md",
        "With LoRA under ZeRO-3 it takes {8b_lora_ranks} times for a model of the catalogue",
        figures.rehearsal_cost,
    ),
    (
        "docs/rehearsal.md",
        "A plan takes {plan} times, the same one again {again} s of CPU",
        figures.rehearsal_cost,
    ),
    (
        "docs/rehearsal.md",
        "differ by {most} % of a peak at most, and few layers make a step up to {longer} % longer",
        figures.few_layers,
    ),
    (
        "docs/rehearsal.md",
        "Of {commits} successive commits of TRL that touch its SFT trainer or scripts, it found {grown}",
        figures.rehearsal_gate,
    ),
    ("docs/rehearsal.md", "a rehearsal takes {most} s of CPU at most", figures.rehearsal_gate),
    (
        "docs/rehearsal.md",
        "{number} runs on an H200, each with a plan for full training on texts",
        figures.predicted_again,
    ),
    (
        "docs/deepspeed-or-fsdp2.md",
        "the faster engine of such a pair, or one within 4 %, was named in {first_named} of {pairs}, and "
        "FSDP2's step times were {first_mean} % off on average. FSDP2's host times were then raised by "
        "what these runs showed: now it is {named} of {pairs} and {mean} %",
        figures.engine_pairs,
    ),
    (
        "docs/deepspeed-or-fsdp2.md",
        "FSDP2's peaks are predicted within 0.02 % in {close} of {rows} rows on one and two GPUs, QLoRA and "
        "experts among them; the other, torchao's AdamW of 4 bits, is {worst} % above. Two were "
        "{first_second} and {first_worst} % off before they ran",
        figures.engine_rows,
    ),
    (
        "docs/deepspeed-or-fsdp2.md",
        "sft.py with all weights and with LoRA: {equal} of {scripts} [rehearsed "
        "peaks](rehearsal-accuracy.md) are equal to the byte",
        figures.fsdp2_scripts,
    ),
    (
        "docs/deepspeed-or-fsdp2.md",
        "on one GPU beside a steady host a QLoRA step took {took} s, for {said} s predicted",
        figures.engine_rows,
    ),
    (
        "docs/deepspeed-or-fsdp2.md",
        "are predicted {least_packed} to {most_packed} % too short beside {packed} runs on two GPUs. The "
        "host paced them, and it was unsteady ({quickest} to {slowest} s within one run)",
        figures.engine_pairs,
    ),
    (
        "docs/quickstart/axolotl-llama-factory.md",
        "{trl} files for TRL, {llamafactory} for LLaMA-Factory, {swift} for ms-swift and {axolotl} for "
        "axolotl (examples with other rows), {planned} of them given back by a plan. {close} of the {others} "
        "peaks of the first three were predicted within 0.2 %, all within {worst} %; axolotl's were {least} "
        "to {most} % off",
        figures.trainer_files,
    ),
    (
        "docs/quickstart/axolotl-llama-factory.md",
        "Ten files of preferences, rewards and GRPO (axolotl, ms-swift, TRL) ran there afterwards: {exact} "
        "peaks were predicted within 0.05 %, two within {others} %, and KTO by axolotl {worst} % too high",
        figures.rated_answers,
    ),
    (
        "docs/quickstart/fsdp2.md",
        "Of {rows} runs on one and two H200s, {close} peaks are within 0.02 %",
        figures.engine_rows,
    ),
    (
        "docs/quickstart/fsdp2.md",
        "of those on two were {first_mean} % off on average when they were predicted",
        figures.engine_pairs,
    ),
    (
        "docs/quickstart/fsdp2.md",
        "On two H200s, {jobs} jobs took {mean} % more or less on average than is said now, {worst} % at "
        "most, and peaked within {peak} % of it; before they ran, peaks with checkpointing were said up to "
        "{before} % too low",
        figures.shared_sequences,
    ),
    (
        "docs/memory-lines.md",
        "Loading {billions} B parameters took at most {own} GiB of a process's own memory, and {pages} "
        "GiB of such pages",
        figures.host_of_loading,
    ),
)
"""Page, sentence, and what computes its figures."""

UNTIED = (
    # names, limits and settings: nothing was measured
    "on one 24 GB card", "2% or 0.02. [default: 2%]",
    "400Gb/s or 50GB/s", "24GiB, 81559MiB", "1TiB", "activations of 1 KiB and more",
    "between 60 s (300 s for what a rank does for the first time) and 600 s; it is 600 s where",
    "tried after 60 s",
    "where its ends are more than 10 % apart",
    "more than 4,096 rows or 32 MiB", "measured hosts differ by more than 2 %",
    "which looks every 0.1 s",
    "a difference above 0.1 % in a phase",
    # rounded so far that a reader takes them for what they are
    "some 15 s, once", "costs at most 0.1 % of the time", "by some 2 to 4 GiB", "10 to 60 s of",
    "some 5 % of a 3B's", "some 7,000 operators a second",
)  # fmt: skip
"""Phrases with a figure that no measurement stands behind."""


def sentences() -> list[tuple[str, str]]:
    """(page, sentence) of every row, with the figures of today."""
    return [(page, text.format(**compute())) for page, text, compute in QUOTES]


def main() -> int:
    """Print the sentences; 1 when a page says otherwise."""
    missing = 0
    for page, text in sentences():
        found = text in " ".join((ROOT / page).read_text(encoding="utf-8").split())
        missing += not found
        print(f"{'' if found else 'NOT THERE: '}{page}: {text}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
