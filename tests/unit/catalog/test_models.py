"""Every model file by itself, its size against transformers and the published figure, and look-up."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.support import nearmiss
from tools import models_index
from zerokit.catalog import models
from zerokit.domain.hf_classes import HEADS, has_other_layers, pads_to_chunks
from zerokit.errors import FileInputError, InputError

MOST_OUTSIDE_THE_INDEX = 10
"""Models that the index may lack: each costs a search of the catalogue the reading of its file."""
FILES = sorted(models.FOLDER.glob("*.yaml"))

# written down apart from the catalogue: exact counts of the published weights
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_432_406_640,
    "phi-2": 2_779_683_840,
    "deepseek-v2": 235_741_434_880,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-12b": 11_846_072_320,
    "bloom-176b": 176_247_271_424,
    "gpt-oss-120b": 116_829_156_672,
    "whisper-large-v3": 1_543_490_560,
    "smollm3-3b": 3_075_098_624,
    "olmo-3-7b": 7_298_011_136,
    "olmo-3-32b": 32_233_522_176,
    "seed-oss-36b": 36_151_104_512,
    "phi-4-mini": 3_836_021_760,
    "gemma-3-270m": 268_098_176,
    "falcon3-10b": 10_305_653_760,
    "exaone-4.0-32b": 32_003_216_384,
    "ernie-4.5-0.3b": 360_748_032,
}


def test_each_file_is_read_strictly() -> None:
    for path in FILES:
        model = models.read_model(path)
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", model.name), path
        # a published count may have towers that are left out here; the file says so then
        most = 0.2 if model.published_differs else 0.1
        assert abs(model.published_parameters / model.parameters - 1) < most, path
        assert len(model.source) > 10 and len(model.licence) >= 3, path


def test_the_catalogue_is_as_broad_as_promised() -> None:
    index = models.index()
    assert len(index) >= 40
    assert len({model.family for model in index}) >= 12
    heads = {"causal", "mlm", "seq2seq", "speech-seq2seq", "image-classification", "image-text"}
    assert {model.head for model in index} == heads <= set(HEADS)


def test_parameter_counts_are_the_published_ones() -> None:
    for name, published in PUBLISHED.items():
        model = models.load(name)
        assert model.parameters == model.published_parameters == published, name


def test_the_index_file_repeats_the_model_files() -> None:
    indexed = json.loads(models.INDEX.read_text(encoding="utf-8"))
    known = {entry["name"] for entry in indexed}
    files = [entry for entry in json.loads(models_index.text()) if entry["name"] in known]
    assert indexed == files, "models/index.json is stale; run: python -m tools.models_index"
    assert len(models.names()) - len(known) < MOST_OUTSIDE_THE_INDEX, "run: python -m tools.models_index"
    assert tuple(model.name for model in models.index()) == models.names()


def test_reading_the_catalogue_imports_nothing_heavy() -> None:
    code = (
        "import sys; from zerokit.catalog import gpus, models; models.nearest(7 * 10**9); gpus.catalog(); "
        "print([name for name in ('torch', 'transformers', 'pydantic', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("published", "counted", "agree"),
    [
        (8_030_261_248, 8_030_261_248, True),
        (8_030_261_248, 8_030_261_249, False),
        (70_000_000_000, 70_553_706_496, True),
        (71_000_000_000, 70_353_706_496, False),
        (7_000_000_000, 6_738_415_616, True),
        (174_600_000_000, 174_604_259_328, True),
        (180_000_000_000, 179_500_000_000, True),
        (180_000_000_000, 174_000_000_000, False),
        (1_000_000_000_000, 999_000_000_000, True),
    ],
)
def test_published_figures_agree_to_the_digits_given(published: int, counted: int, agree: bool) -> None:
    assert models.agrees(published, counted) is agree


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama3.1-8b", "llama-3.1-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"),
        ("openai-community/gpt2", "gpt2"),
        ("gpt2xl", "gpt2-xl"),
        ("GPT3-175B", "gpt-3-175b"),
        ("bert-large-uncased", "bert-large"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("google-t5/t5-base", "t5-base"),
        ("bigscience/bloom", "bloom-176b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("microsoft/phi-1_5", "phi-1.5"),
    ],
)
def test_lookup_forgives(text: str, name: str) -> None:
    assert models.lookup(text).name == name


def test_every_name_of_a_model_leads_to_it() -> None:
    for model in models.index():
        for text in (model.name, model.name.upper(), model.hub or model.name, *model.aliases):
            assert models.lookup(text).name == model.name


@pytest.mark.parametrize("text", ["mixtral", "llama", "qwen2.5"])
def test_an_ambiguous_name_lists_its_candidates(text: str) -> None:
    with pytest.raises(InputError, match=rf"could be any of: {re.escape(text)}") as caught:
        models.lookup(text)
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qwen-14b", "could be any of: qwen2.5-14b, qwen3-14b; name one of them"),
        ("qwen-3b", "could be any of: qwen2.5-3b, qwen2.5-vl-3b, "),  # the fewest words between first
        ("llama8b", "could be any of: llama-3-8b, llama-3.1-8b; name one of them"),
        ("llama-3b", "is incomplete: it could be llama-3.2-3b; "),  # not Llama 3 of any size
    ],
)
def test_a_name_without_its_version_lists_those_with_all_that_was_typed(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        models.lookup(text)


def test_a_single_meaning_of_an_incomplete_name_is_offered_and_not_taken() -> None:
    with pytest.raises(InputError, match=r"is incomplete: it could be qwen3-30b-a3b"):
        models.resolve("qwen3-30b")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("meta-llama/Llama-3.1-8B", None),
        ("LLAMA 3.1 8b", None),
        ("Qwen/Qwen2.5-7B-Instruct", "taken as qwen2.5-7b; -instruct changes no shape"),
        ("meta-llama/Llama-2-70b-chat-hf", "taken as llama-2-70b; -chat-hf changes no shape"),
        ("deepseek-r1", "another name of deepseek-v3"),
    ],
)
def test_what_was_taken_for_what_is_said(text: str, note: str | None) -> None:
    _, notes = models.resolve(text)
    assert notes == (() if note is None else (f"⟨model⟩ {text}: {note}",))


@pytest.mark.parametrize(
    "text",
    ["phi-4-tiny", "gemma-5", "unsloth/Llama-3.1-8B", "gpt2é", "llama-3.18b", "pythia-14b", "gpt 2 xl!"],
)
def test_another_model_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"neither a file nor in the catalogue; did you mean"):
        models.resolve(text)


@pytest.mark.parametrize("count", [300, pytest.param(6000, marks=pytest.mark.slow)])
def test_a_name_that_is_not_a_models_own_never_leads_to_it(count: int) -> None:
    """Over all names: a character more, fewer or other, parts dropped, doubled or swapped."""
    own: dict[str, set[tuple[str, ...]]] = {}
    names = []
    for model in models.index():
        owner, _, repository = (model.hub or model.name).rpartition("/")
        called = [model.name, repository, *model.aliases]
        called += [f"{owner}/{name}" for name in called]
        own[model.name] = {nearmiss.parts(name) for name in called}
        names += called
    random = Random(22)
    resolved = 0
    for _ in range(count):
        text = nearmiss.changed(random, names)
        try:
            found, notes = models.resolve(text)
        except InputError as error:
            assert error.exit_code == 2 and len(str(error)) < 600
            continue
        resolved += 1
        parts = nearmiss.parts(text)
        if parts in own[found.name]:
            continue
        assert notes, f"{text!r} became {found.name} without a word"
        while parts and parts[-1] in ("instruct", "chat", "it", "hf", "pt", "base"):
            parts = parts[:-1]
            if parts in own[found.name]:
                break
        assert parts in own[found.name], f"{text!r} became {found.name}"
    assert resolved > count // 60  # some changes are of case or separators only


@pytest.mark.parametrize("text", ["70b", "", "../gpt2/..", "no-such-model", "x" * 5000, "b", "8"])
def test_an_unknown_name_is_a_clear_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        models.lookup(text)
    assert len(str(caught.value)) < 500


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(InputError, match=r"did you mean llama-3\.1-8b"):
        models.lookup("llama-3.1-9b")


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        (1_200_000_000, "llama-3.2-1b"),
        (3_000_000_000, "llama-3.2-3b"),
        (7_000_000_000, "llama-2-7b"),
        (8_000_000_000, "llama-3.1-8b"),
        (13_000_000_000, "llama-2-13b"),
        (70_000_000_000, "llama-3.1-70b"),
        (175_000_000_000, "gpt-3-175b"),
        (405_000_000_000, "llama-3.1-405b"),
        (1_600_000_000_000, "llama-3.1-405b"),
        (1, "pythia-70m"),
    ],
)
def test_the_stand_in_for_a_bare_size(parameters: int, name: str) -> None:
    assert models.nearest(parameters).name == name


def test_the_stand_in_is_a_dense_language_model_of_about_that_size() -> None:
    smallest, largest = 71e6, 405e9
    for parameters in (round(10 ** (value / 4)) for value in range(24, 52)):
        model = models.nearest(parameters)
        assert model.head == "causal" and model.experts is None and "vision_config" not in model.hf_config
        assert abs(math.log(model.parameters / min(max(parameters, smallest), largest))) < math.log(2)


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        models.nearest(0)


GOOD = (models.FOLDER / "gpt2.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("head: causal", "head: casual"), "not one of causal, mlm"),
        (GOOD.replace("parameters: 124439808", "parameters: 124439807", 1), "rounded to its digits"),
        (GOOD.replace("source:", "published_differs: no reason\nsource:"), "published_differs: .* rounded"),
        (GOOD.replace("licence", "license"), "did you mean 'licence'"),
        (GOOD.replace("  model_type: gpt2\n", ""), "model_type is missing"),
        (GOOD + "  auto_map:\n    AutoModel: evil.Model\n", "no remote code"),
        (GOOD + "  num_experts: 8\n", "experts: must be 8"),
        (GOOD.replace("name: gpt2", "name: gpt3", 1), "must be the file's name"),
        (GOOD.replace("head: causal\n", ""), "missing: head$"),
        (GOOD.replace("parameters: 124439808", "parameters: 124M", 1), "expected a positive whole number"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    assert text != GOOD
    path = tmp_path / "gpt2.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileInputError, match=message) as caught:
        models.read_model(path)
    assert re.match(rf"{re.escape(str(path))}:\d+:\d+: ", str(caught.value))


@pytest.mark.parametrize(
    ("name", "other", "padded"),
    [("lfm2-350m", True, False), ("granite-4.0-h-tiny", True, True), ("qwen3.5-9b", True, True),
     ("nemotron-3-nano-30b-a3b", True, True), ("llama-3.1-8b", False, False)],
)  # fmt: skip
def test_only_state_space_and_linear_attention_layers_pad_to_chunks(
    name: str, other: bool, padded: bool
) -> None:
    """What LFM2's short convolutions allocate is a polynomial of the length, so one trace holds for all."""
    config = models.load(name).hf_config
    assert (has_other_layers(config), pads_to_chunks(config)) == (other, padded)
