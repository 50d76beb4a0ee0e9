"""``zerokit size`` as a user and as a program call it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.command import as_json, call, move_elsewhere
from zerokit.catalog import prices


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def test_why_there_is_none_names_options(capsys: pytest.CaptureFixture[str]) -> None:
    _, shown, _ = call(capsys, "size", "--model", "llama-3.1-8b", "--gpu", "h200", "--engine", "fsdp2",
                       "--loss", "liger")  # fmt: skip
    assert "memory under --engine fsdp2 is not modelled for" in " ".join(shown.split())


@pytest.mark.slow
def test_size_counts_gpus_time_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    body = as_json(capsys, "size", "--params", "175b", "--gpu", "a100-40gb", "--price", "2")
    rows = {(row["method"], row["offload_allowed"]): row for row in body["sizes"]}
    assert rows.keys() == {(m, o) for m in ("full", "lora", "qlora") for o in (False, True)}
    full = rows["full", False]
    assert 72 <= full["gpus"] <= 128  # 16 bytes a parameter are 2.8 TB: 71 cards at the very least
    assert rows["full", True]["gpus"] < full["gpus"]
    assert rows["lora", False]["gpus"] < full["gpus"]
    assert rows["qlora", False]["gpus"] is None  # each card loads all 4-bit weights, some 90 GB, by itself
    assert full["cost_per_1e9_tokens"] == pytest.approx(2 * full["gpu_hours_per_1e9_tokens"])
    assert full["seconds_per_1e9_tokens"] * full["gpus"] / 3600 == pytest.approx(
        full["gpu_hours_per_1e9_tokens"]
    )


def test_size_answers_first_and_names_the_plan_to_make_next(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("size", "--model", "qwen2.5-14b", "--method", "lora", "--gpu", "l4,h200,l40s")
    code, out, _ = call(capsys, *words, "--price", "l40s=1,h200=9")
    assert code == 0
    first, _, rest = out.partition("Next")
    assert "fewest GPUs: 1 × l40s (" in first and "1 × h200 would do as well" in " ".join(first.split())
    assert "fewest GPU-hours: 1 × h200" in first and "none given for l4): 1 × l40s" in first
    assert "at 1 per GPU-hour" in " ".join(first.split())
    rest = call(capsys, *words, "--price", "l40s=1,h200=9", "--explain")[1].partition("Assumed")[2]
    assert rest.count("  l40s") == 1 and rest.count("  l4 ") == 2  # offload changes the answer for l4 alone
    command = next(line.strip() for line in out.splitlines() if line.startswith("  zerokit plan"))
    assert command == "zerokit plan --model qwen2.5-14b --method lora --gpus 1 --gpu l40s"
    assert call(capsys, *command.split()[1:])[0] == 0
    body = as_json(capsys, *words)
    assert body["next"] == command and len(body["sizes"]) == 6
    assert "lowest cost:" not in rest  # it is that plan
    _, out, _ = call(capsys, *words, "--price", "l40s=5,h200=6")
    cheapest = out.partition("# or, for the lowest cost:\n")[2].splitlines()[0].strip()
    assert cheapest == command.replace("l40s", "h200")
    assert as_json(capsys, *words, "--price", "l40s=5,h200=6")["next_for_lowest_cost_by_method"] == {
        "lora": cheapest
    }
    words = (*words, "--price", "l40s=5,h200=6", "--cheapest")
    shown = call(capsys, *words)[1].partition("\nNext\n")[2].splitlines()
    assert [line.strip() for line in shown[:3]] == [cheapest, "# or, for the fewest GPUs:", command]
    assert as_json(capsys, *words)["next"] == cheapest


def test_costs_are_those_of_the_table_and_of_the_whole_job(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("size", "--model", "qwen2.5-14b", "--method", "lora", "--gpu", "l4,rtx-4090,h200")
    body = as_json(capsys, *words, "--tokens", "200m", "--cheapest")
    table = prices.table()
    assert body["prices"] == {
        "date": str(table.date), "days_old": table.days_old, "currency": "USD", "source": table.source,
    }  # fmt: skip
    for row in body["sizes"]:
        rate, spot = (table.rate(row["gpu"], row["gpus"], spot=on_spot) for on_spot in (False, True))
        assert row["provider"] == (rate and rate.provider) and row["price_per_gpu_hour"] == (
            rate and rate.usd
        )
        hours, job = row["gpu_hours_per_1e9_tokens"], row["job"]
        assert (job["tokens"], job["gpu_hours"]) == (200_000_000, pytest.approx(hours / 5))
        assert job["cost"] == (rate and pytest.approx(hours / 5 * rate.usd))
        assert job["spot_cost"] == (spot and pytest.approx(hours / 5 * spot.usd))
    costs = [row["job"]["cost"] for row in body["sizes"]]
    known = [cost for cost in costs if cost is not None]
    assert known == sorted(known) and costs[len(known) :] == [None] * (len(costs) - len(known)) != []
    lowest, on_spot, fewest = body["answer"][:3]
    assert lowest.startswith("lowest known cost: ") and "for 200,000,000 tokens" in lowest
    assert on_spot.startswith("lowest cost where GPUs can be taken away: ") and "on spot)" in on_spot
    assert fewest.startswith("fewest GPUs")
    _, shown, _ = call(capsys, *words)
    assert f"prices over 90 days old, of {table.date}: `zerokit gpus --update-prices`" in shown
    typed = as_json(capsys, *words, "--price", "3")
    assert typed["prices"] is None and {row["provider"] for row in typed["sizes"]} == {None}
    assert {row["price_per_gpu_hour"] for row in typed["sizes"]} == {3.0}


def test_of_one_row_alone_it_is_said_who_rents_it(capsys: pytest.CaptureFixture[str]) -> None:
    body = as_json(capsys, "size", "--model", "qwen2.5-14b", "--method", "lora", "--gpu", "rtx-4090")
    (row,) = (row for row in body["sizes"] if row["provider"])  # nobody in the table rents four
    known = f"lowest known cost: {row['gpus']} × rtx-4090"
    assert any(known in said and f"({row['provider']})" in said for said in body["answer"])


def test_a_card_that_is_not_the_catalogues_has_no_price(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("size", "--params", "7b", "--method", "lora", "--gpu", "h200", "--vram", "100GiB")
    assert as_json(capsys, *words)["sizes"][0]["cost_per_1e9_tokens"] is None
    code, _, err = call(capsys, *words, "--cheapest")
    assert code == 2 and "--cheapest: no price is known of h200; give --price" in err
    _, _, err = call(capsys, "size", "--params", "1b", "--vram", "24GiB", "--cheapest")
    assert "no price is known of 24.0 GiB GPU" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "more", "beside"),
    [
        (("--params", "14b"), ("--gpu", "l40s,a100-80gb", "--price", "a100-80gb=2,l40s=1"), []),
        (("--model", "qwen3-14b"), ("--gpu", "l40s,h200,b200", "--price", "2.10"), ["lora", "qlora"]),
    ],
)
def test_the_lowest_cost_of_each_method_has_its_command(
    model: tuple[str, ...], more: tuple[str, ...], beside: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan that is made so takes as long as the row that costs least, with offload where that is faster."""
    words = ("size", *model, "--method", "lora,qlora", *more)
    _, out, _ = call(capsys, *words, "--explain")
    body = as_json(capsys, *words)
    commands = body["next_for_lowest_cost_by_method"]
    assert list(commands) == beside  # of others the plan for the fewest GPUs is it
    assert out.partition("# or, for the lowest cost:\n")[2].split("\n") == [
        *(f"  {c}" for c in commands.values()),
        "",
    ]
    for method, command in (body["next_by_method"] | commands).items():
        rows = [row for row in body["sizes"] if row["method"] == method and row["cost_per_1e9_tokens"]]
        least = min(rows, key=lambda row: row["cost_per_1e9_tokens"])
        planned = as_json(capsys, *shlex.split(command)[1:])["chosen"]["estimate"]
        seconds = 1e9 / planned["tokens_per_second_per_gpu"] / least["gpus"]
        assert seconds == pytest.approx(least["seconds_per_1e9_tokens"], rel=1e-3)
        (said,) = (line for line in body["answer"] if line.startswith(f"{method}: lowest cost"))
        cost = f"{least['cost_per_1e9_tokens']:,.0f} per 1e9 tokens"
        offloads = "offload to cpu" in least["why"]
        assert cost in said and (" with offload to host memory, " in said) == offloads


def test_a_card_that_is_barely_enough_is_named_after_one_with_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # in any case
    words = ("size", "--model", "qwen3-8b", "--method", "LoRA", "--lora-dropout", "0.05", "--margin", "0",
             "--gpu")  # fmt: skip
    both = as_json(capsys, *words, "a100-40gb,l40s")
    assert (
        "fewest GPUs: 1 × l40s (" in both["answer"][0] and "a100-40gb (barely: 0.5 GiB" in both["answer"][0]
    )
    assert both["next"].endswith("--gpus 1 --gpu l40s")
    assert "per GPU, barely: 0.5 GiB headroom)" in as_json(capsys, *words, "a100-40gb")["answer"][0]
    code, out, _ = call(capsys, *both["next"].replace("l40s", "a100-40gb").split()[1:])
    assert code == 0 and "per GPU, barely: 0.5 GiB headroom\n" in out  # a plan by the same rule


@pytest.mark.parametrize(
    ("params", "method", "vram"),
    [
        pytest.param(
            "14b", "lora", "24GiB", marks=pytest.mark.slow
        ),  # with offload it is faster, and it has room without
        pytest.param(
            "8b", "qlora", "12GiB", marks=pytest.mark.slow
        ),  # with offload or without, it barely fits
        ("8b", "lora", "24GiB"),
        pytest.param("8b", "full", "24GiB", marks=pytest.mark.slow),
    ],
)
def test_the_next_command_makes_the_plan_that_the_answer_names(
    params: str, method: str, vram: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = as_json(capsys, "size", "--params", params, "--method", method, "--vram", vram)
    row = next(
        row
        for row in body["sizes"]
        if f"fewest GPUs: {row['gpus']} × {row['shown_as']}" in body["answer"][0]
        and row["offload_allowed"] == ("offload to host memory" in body["answer"][0])
    )
    assert "speeds assumed to be those of rtx-4090" in " ".join(body["assumptions"])
    plan = as_json(capsys, *shlex.split(body["next"])[1:])["chosen"]
    assert plan["estimate"]["min_vram_bytes"] == row["min_vram_bytes"]
    assert {name: plan[name] for name in row["strategy"]} == row["strategy"]


def test_a_kind_that_need_not_offload_is_named_before_a_smaller_one_that_must(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = as_json(
        capsys, "size", "--model", "qwen2.5-14b", "--method", "full", "--gpu", "h100-sxm-80gb,h200,b200"
    )
    rows = {(row["gpu"], row["offload_allowed"]): row for row in body["sizes"]}
    assert rows["h100-sxm-80gb", True]["gpus"] == rows["h200", False]["gpus"] == 2
    assert rows["h100-sxm-80gb", False]["gpus"] > 2
    assert body["answer"][0].startswith("fewest GPUs: 2 × h200 (")
    assert "; 2 × h100-sxm-80gb (with offload) or b200 would do as well" in body["answer"][0]
    assert body["next"].endswith("--gpus 2 --gpu h200")


def test_a_size_given_for_a_name_leads_to_both(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "size", "--model", "14b", "--method", "lora")
    assert code == 2 and "--params 14b, or one of this size: qwen2.5-14b, qwen3-14b;" in err
    assert as_json(capsys, "size", "--params", "14b", "--gpu", "h200", "--method", "lora")["model"] == (
        "14.0B parameters, built like llama-2-13b"
    )


def test_the_global_batch_that_rows_assume_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("size", "--model", "qwen2.5-14b", "--method", "full", "--gpu", "l40s,h200")
    said = " ".join(as_json(capsys, *words)["assumptions"])
    # 32 sequences a GPU, unless that is more than 262,144 tokens a step: 128 sequences
    assert "global batch 64 to 128 sequences, by the number of GPUs: --global-batch not given" in said
    assert "global batch" not in " ".join(as_json(capsys, *words, "--global-batch", "64")["assumptions"])


@pytest.mark.slow
def test_what_fits_on_none_says_why_as_a_plan_does(capsys: pytest.CaptureFixture[str]) -> None:
    one = ("--model", "qwen2.5-14b", "--method", "full", "--gpu", "rtx-4090", "--gpus", "1")
    code, out, err = call(capsys, "size", *one)
    assert (code, out) == (3, "") and re.search(
        r"and 33[78]\.\d GiB of host memory per node, where 48\.0 GiB are assumed \(ZeRO", err
    )
    assert err == call(capsys, "plan", *one)[2]
    several = ("--model", "qwen2.5-14b", "--method", "full", "--gpu", "l4,rtx-4090", "--gpus", "1")
    code, out, err = call(capsys, "size", *several)
    assert (code, out) == (3, "") and "does not fit on up to 1 GPU (l4 or rtx-4090)\nfor example, noth" in err
    assert "What would make it fit:\n  - --method qlora" in err
    code, out, err = call(capsys, "size", *several, "--json")
    assert code == 3 and json.loads(out)["answer"] == []


@pytest.mark.parametrize(("method", "gpus"), [("full", 40), ("lora", 16)])
def test_a_stage_that_no_number_of_gpus_helps_is_named_with_what_would(
    method: str, gpus: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", "llama-3.1-70b", "--gpu", "l4", "--method", method)
    code, _, err = call(capsys, "size", *words, "--zero", "0")
    assert code == 3 and f"  - without --zero 0, and with {gpus - 8} more GPUs (--gpus {gpus} on " in err
    assert call(capsys, "plan", *words, "--gpus", str(gpus))[0] == 0
    if method == "full":
        (named,) = re.findall(r"with --zero 0 the model states alone require at least ([\d.]+) GiB", err)
        # a 16-bit weight, its fp32 copy and Adam's moments of each of 80 layers' weights
        layers = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192)
        assert float(named) == pytest.approx(14 * layers / 2**30, rel=0.001)


@pytest.mark.slow
def test_a_kind_that_does_not_fit_says_what_would_also_where_another_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--model", "qwen2.5-14b", "--method", "qlora", "--seq-len", "32768")
    kinds = "rtx-4090,l40s,a100-80gb,h200"
    whys = {row["gpu"]: row["why"] for row in as_json(capsys, "size", *words, "--gpu", kinds)["sizes"]}
    end = "does not fit on 16,384 GPUs; it would with --"
    assert (whys["rtx-4090"], whys["l40s"]) == (f"{end}sp 8", f"{end}loss chunked (TRL) or liger (Trainer)")
    assert whys["h200"].startswith("ZeRO")
    sized = as_json(capsys, "size", *words, "--gpu", "l40s", "--loss", "liger")["sizes"]
    assert sized[0]["gpus"] == 1


@pytest.mark.parametrize("command", ["plan", "size"])
def test_memory_in_whole_gb_is_doubted_before_the_answer(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """nvidia-smi shows 23,028 MiB of an A10 and 24,564 of a 4090; both are sold as 24 GB."""
    words = (command, "--params", "1b", "--method", "lora", "--vram")
    code, _, err = call(capsys, *words, "24GB")
    assert code == 0
    assert "cards sold as 24 GB have 22.5 to 24.0 GiB; name the --gpu, or write it in GiB\n" in err
    _, _, err = call(capsys, *words, "24GB", "--gpu", "rtx-4090")
    assert "24.0 GiB; leave it out, as --gpu names the card, or write it in GiB\n" in err
    assert "sold as" not in call(capsys, *words, "24GiB")[2]
    assert "sold as" not in call(capsys, *words, "23028MiB")[2]


@pytest.mark.slow
def test_every_number_up_to_the_most_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    """16 bytes of each of 20e9 parameters are 149 GiB on each of two GPUs of 140, and 99 on each of three."""
    words = ("size", "--params", "20b", "--method", "full", "--gpu", "h200", "--zero", "3",
             "--offload-optimizer", "none", "--offload-param", "none", "--gpus")  # fmt: skip
    assert call(capsys, *words, "2")[0] == 3
    assert as_json(capsys, *words, "3")["sizes"][0]["gpus"] == 3
    nodes = ("size", "--model", "llama-3.1-70b", "--method", "full", "--gpu", "rtx-4090", "--gpus")
    code, _, err = call(capsys, *nodes, "39")
    assert code == 3 and "32 more GPUs (--gpus 40 on 5 nodes)" in err  # than the 8 of a node
    for most in ("40", "47", "64"):
        assert {row["gpus"] for row in as_json(capsys, *nodes, most)["sizes"] if row["gpus"]} == {40}


@pytest.mark.slow
def test_size_compares_kinds_of_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(
        capsys, "size", "--model", "llama-3.1-8b", "--gpu", "rtx-4090,h200", "--method", "full"
    )
    assert code == 0
    assert "rtx-4090" in out and "h200" in out
    code, _, err = call(
        capsys, "size", "--params", "70b", "--gpu", "t4", "--method", "full", "--gpus", "8",
        "--host-ram", "64GiB",
    )  # fmt: skip
    assert code == 3 and "nothing fits 8 × t4 (15.0 GiB each)" in err
    for wrong, words in ((("--gpu", "h100-sxm,h200", "--vram", "80GiB"), "--vram: 2 kinds"),
                         (("--price", "cheap"), "--price"), (("--tp", "3"), "--tp 3 does not divide"),
                         (("--gpu", "t4", "--precision", "bf16"), "t4 has no bf16 in hardware")):  # fmt: skip
        code, out, err = call(capsys, "size", "--params", "8b", "--gpu", "h200", *wrong)
        assert code == 2 and words in err and out == ""
