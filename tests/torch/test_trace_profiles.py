"""Traced profiles: against torch's own count of the whole model, stored and read, and of hostile configs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import needs

torch = pytest.importorskip("torch")
needs("transformers")


from tests.support.models import MODELS, SMALL  # noqa: E402
from tests.support.torch_counts import count_by_torch  # noqa: E402
from zerokit.catalog import gpus, models, profiles  # noqa: E402
from zerokit.cli import run  # noqa: E402
from zerokit.domain.profile import ModelProfile, Variant  # noqa: E402
from zerokit.domain.profile_json import (  # noqa: E402
    check,
    from_json,
    to_json,
)
from zerokit.errors import InputError  # noqa: E402
from zerokit.trace import store  # noqa: E402
from zerokit.trace.building.build import AUTO_CLASSES, read_config  # noqa: E402
from zerokit.trace.profile import profile_from_config  # noqa: E402


@pytest.fixture(scope="session")
def traced() -> dict[tuple[str, bool], ModelProfile]:
    return {}


def profile(name: str, checkpointing: bool, known: dict[tuple[str, bool], ModelProfile]) -> ModelProfile:
    head, config = MODELS[name]
    if (name, checkpointing) not in known:
        variant = Variant(checkpointing="full" if checkpointing else "none")
        known[name, checkpointing] = profile_from_config(dict(config), [variant], name=name, head=head)
    return known[name, checkpointing]


@pytest.mark.slow
def test_layers_that_training_may_skip_at_random_are_all_counted() -> None:
    """LayerDrop draws a number, which a tensor without values has not."""
    config = {"model_type": "opt", "hidden_size": 64, "ffn_dim": 160, "num_hidden_layers": 6,
              "num_attention_heads": 4, "word_embed_proj_dim": 64, "layerdrop": 0.5, **SMALL}  # fmt: skip
    found = profile_from_config(config, [Variant()], name="opt").trace(Variant(), 512)
    assert found is not None
    layers = {name for kind, name in found.marks_forward if kind == "fwd_post" and name.count(".") == 3}
    assert {name for name in layers if ".layers." in name} == {f"model.decoder.layers.{i}" for i in range(6)}


@pytest.mark.slow
def test_what_zero3_saves_and_hooks_in_its_own_way_is_known() -> None:
    """Experts are taken transposed, which saves views of them; DeepSpeed hooks their block as one module."""
    _, config = MODELS["mixtral"]
    found = profile_from_config(dict(config), [Variant()], name="mixtral")
    assert found.views == ("experts.down_proj", "experts.gate_up_proj")
    assert found.leaves == ("mlp",)
    again = from_json(json.loads(json.dumps(to_json(found))))
    assert (again.views, again.leaves) == (found.views, found.leaves)


SLOW = pytest.mark.slow
QUICK = ("llama",)
POINTS = [(name, False) for name in MODELS] + [("llama", True), ("gemma3", True), ("t5", True)]


@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [pytest.param(*point, marks=[] if point in [(n, False) for n in QUICK] else SLOW) for point in POINTS],
)
@pytest.mark.parametrize(("micro_batch", "seq_len"), [(5, 384), (2, 1600)])
def test_polynomials_of_a_cut_model_are_the_whole_model(
    name: str,
    checkpointing: bool,
    micro_batch: int,
    seq_len: int,
    traced: dict[tuple[str, bool], ModelProfile],
) -> None:
    """At points that were never traced, beyond and below the sliding window, with every layer there."""
    head, config = MODELS[name]
    own = profile(name, checkpointing, traced)
    variant = Variant(checkpointing="full" if checkpointing else "none")
    found = own.trace(variant, seq_len)
    assert found is not None
    timeline = found.timeline(micro_batch, seq_len)
    forward, level, backward = count_by_torch(head, dict(config), micro_batch, seq_len, checkpointing)
    inputs = 2 * 8 * micro_batch * seq_len  # token ids and labels, where a trace counts them
    assert abs(timeline.forward_peak - forward) <= inputs
    assert abs(timeline.after_forward - level) <= inputs
    assert abs(max(timeline.backward.peaks) - backward) <= inputs


FALCON = {"model_type": "falcon", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
          "vocab_size": 777, "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False,
          "new_decoder_architecture": False}  # fmt: skip


@pytest.mark.slow
def test_a_batch_of_one_may_run_other_operators() -> None:
    """Falcon's product of queries and its one key head, expanded, copies the keys of two sequences, and not
    those of one."""
    own = profile_from_config(dict(FALCON), [Variant()], name="falcon")
    stored = from_json(check(json.loads(json.dumps(to_json(own)))))
    for micro_batch in (1, 5):
        forward, level, backward = count_by_torch("causal", dict(FALCON), micro_batch, 1200, False)
        for found in (own, stored):
            trace = found.trace(Variant(), 1200, micro_batch)
            assert trace is not None
            timeline = trace.timeline(micro_batch, 1200)
            inputs = 2 * 8 * micro_batch * 1200
            assert abs(timeline.forward_peak - forward) <= inputs
            assert abs(timeline.after_forward - level) <= inputs
            assert abs(max(timeline.backward.peaks) - backward) <= inputs


@pytest.mark.slow
def test_sums_over_rows_take_partial_results_on_a_gpu() -> None:
    """The gradients of BERT's biases: with them another instant of the backward pass is the highest."""
    config = {"model_type": "bert", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 7,
              "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
    gpu = gpus.load("h200").processors
    assert gpu is not None
    made = profile_from_config(dict(config), [Variant()], name="bert", head="mlm")
    found = made.trace(Variant(), 480)
    assert found is not None
    _, _, backward = count_by_torch("mlm", dict(config), 8, 480, False, gpu)
    _, _, without = count_by_torch("mlm", dict(config), 8, 480, False)
    for timeline, expected in ((found.timeline(8, 480, gpu), backward), (found.timeline(8, 480), without)):
        assert abs(max(timeline.gradients.peaks) - expected) <= 2 * 8 * 8 * 480  # as above, inputs
    assert backward > without + (1 << 23)
    stored = json.loads(json.dumps(to_json(made)))
    again = from_json(check(stored)).trace(Variant(), 480)
    assert again is not None and again.timeline(8, 480, gpu) == found.timeline(8, 480, gpu)
    summed = next(mark for segment in stored["segments"] for mark in segment if len(mark) == 6)
    for summed[5] in ([[0, 0, 0, 2]], [[10**9, 0, 256, 2]], [[0, 0, 256]], [0]):
        with pytest.raises(ValueError, match="segments is malformed"):
            check(stored)


CHUNKED = {
    "mamba2": {"model_type": "mamba2", "hidden_size": 64, "state_size": 16, "num_hidden_layers": 6,
               "head_dim": 16, "num_heads": 8, "n_groups": 1, "chunk_size": 64, "vocab_size": 777},
    "falcon_h1": {"model_type": "falcon_h1", "hidden_size": 64, "intermediate_size": 160,
                  "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1,
                  "mamba_d_state": 16, "mamba_chunk_size": 64, **SMALL},
    "qwen3_next": {"model_type": "qwen3_next", "hidden_size": 64, "intermediate_size": 160,
                   "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
                   "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                   "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_experts": 4,
                   "num_experts_per_tok": 2, **SMALL},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [
        pytest.param(name, checkpointing, marks=() if (name, checkpointing) == ("mamba2", False) else SLOW)
        for name in CHUNKED
        for checkpointing in (False, True)
    ],
)
def test_state_space_and_linear_attention_layers_are_traced_at_their_length(
    name: str, checkpointing: bool
) -> None:
    """At a length that is no whole number of chunks, and at no other: chunks are padded."""
    config, variant = CHUNKED[name], Variant(checkpointing="full" if checkpointing else "none")
    found = profile_from_config(dict(config), [variant], name=name, seq_len=200)
    assert found.trace(variant, 199) is None and found.trace(variant, 201) is None
    trace = found.trace(variant, 200)
    assert trace is not None
    timeline = trace.timeline(5, 200)
    forward, level, backward = count_by_torch("causal", dict(config), 5, 200, checkpointing)
    inputs = 2 * 8 * 5 * 200
    assert abs(timeline.forward_peak - forward) <= inputs
    assert abs(timeline.after_forward - level) <= inputs
    assert abs(max(timeline.backward.peaks) - backward) <= inputs
    again = from_json(json.loads(json.dumps(to_json(found))))
    assert again.trace(variant, 199) is None and again.trace(variant, 200) is not None


@pytest.mark.slow
def test_one_sequence_of_a_model_with_position_bias_is_never_underrated(
    traced: dict[tuple[str, bool], ModelProfile],
) -> None:
    """T5's position bias has no batch dimension: its gradient is summed over the batch unless that is 1, and
    the polynomials, traced at 2 and 3, count the sum's result there too."""
    own = profile("t5", False, traced).trace(Variant(), 1536)
    assert own is not None
    timeline = own.timeline(1, 1536)
    head, config = MODELS["t5"]
    forward, _, backward = count_by_torch(head, dict(config), 1, 1536, False)
    assert timeline.forward_peak >= forward
    assert backward <= max(timeline.backward.peaks) <= backward + 2 * 4 * 1536**2


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=SLOW) for n in MODELS])
def test_parameters_are_the_whole_models(name: str, traced: dict[tuple[str, bool], ModelProfile]) -> None:
    import transformers

    head, config = MODELS[name]
    own = profile(name, False, traced)
    with torch.device("meta"):
        model = getattr(transformers, AUTO_CLASSES[head]).from_config(read_config(dict(config)))
    shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert [(p.name, p.shape) for p in own.parameters] == shapes
    gradients = [key for kind, key in own.trace(Variant(), 256).marks_backward if kind == "grad"]  # type: ignore[union-attr]
    assert sorted(gradients) == sorted(name for name, _ in shapes)


# ------------------------------------------------------------------ storage


def test_a_profile_is_the_same_after_a_round_trip(
    traced: dict[tuple[str, bool], ModelProfile], tmp_path: Path
) -> None:
    for name in QUICK:
        own = profile(name, False, traced)
        again = from_json(json.loads(json.dumps(to_json(own))))
        assert to_json(again) == to_json(own)
        assert profiles.packed(again) == profiles.packed(own)
        assert to_json(from_json(profiles.document(profiles.packed(own)))) == to_json(own)
        store.keep(own, tmp_path / "a.profile")
        read = store.read(tmp_path / "a.profile")
        assert read is not None
        for variant, traces in own.traces.items():
            for before, after in zip(traces, read.traces[variant], strict=True):
                assert before.timeline(3, 700) == after.timeline(3, 700)
                assert before.marks_backward == after.marks_backward


def test_another_format_or_a_broken_file_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"profile format 'zerokit\.profile/99'"):
        from_json({"format": "zerokit.profile/99"})
    path = tmp_path / "x.json.gz"
    assert store.read(path) is None
    path.write_bytes(b"\x1f\x8b\x08no")
    with pytest.raises(store.DamagedProfile):
        store.read(path)


def test_a_committed_profile_is_what_a_trace_gives_today() -> None:
    """The smallest of the catalogue, traced afresh: every peak of every mark, at other sizes than traced."""
    name = "smollm2-135m"
    committed = profiles.load(name)
    assert committed is not None
    model = models.load(name)
    fresh = profile_from_config(dict(model.hf_config), [Variant()], name=name, head=model.head)
    assert fresh.parameters == committed.parameters
    assert fresh.ties.items() <= committed.ties.items()  # under adapters the names are others
    for micro_batch, seq_len in ((3, 777), (1, 8192)):
        new, old = fresh.trace(Variant(), seq_len), committed.trace(Variant(), seq_len)
        assert new is not None
        assert old is not None
        assert old.marks_forward == new.marks_forward
        assert old.marks_backward == new.marks_backward
        before, after = old.timeline(micro_batch, seq_len), new.timeline(micro_batch, seq_len)
        inputs = 2 * 8 * micro_batch * seq_len  # a profile may leave token ids and labels out
        for was, now in ((before.forward, after.forward), (before.backward, after.backward)):
            assert now.peaks == pytest.approx(was.peaks, rel=0, abs=inputs)
            assert now.levels == pytest.approx(was.levels, rel=0, abs=inputs)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW if at % 12 else ()) for at, name in enumerate(profiles.names())]
)
def test_committed_profiles_are_whole(name: str) -> None:
    """Each by itself: it reads, has its model's parameters, and a gradient for each that is trained."""
    own = profiles.load(name)
    idle = ".correction_coefs.lora_"  # its weight is read, the layer not called (modeling_gemma3n.py:1059)
    assert own is not None and own.parameter_count == models.load(name).parameters
    for key, traces in own.traces.items():
        trained = [p.name for p in own.parameter_sets.get(key, own.parameters) if p.trainable]
        wanted = sorted(name for name in trained if idle not in name)
        for trace in traces:
            if not trace.backward:  # of inference
                assert trace.forward
                continue
            assert sorted(key for kind, key in trace.marks_backward if kind == "grad") == wanted


# ------------------------------------------------------------------ what users hand in


def test_remote_code_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config with auto_map, its code beside it: read as data, even when the type is unknown."""
    marker = tmp_path / "ran"
    source = f"from pathlib import Path\nPath({str(marker)!r}).touch()\nclass Evil: pass\n"
    for name in ("modeling_evil.py", "configuration_evil.py"):
        (tmp_path / name).write_text(source)
    auto_map = {"AutoConfig": "configuration_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    known = MODELS["llama"][1] | {"auto_map": auto_map, "trust_remote_code": True}
    unknown = {"model_type": "evil", "auto_map": auto_map}
    monkeypatch.chdir(tmp_path)
    for config in (known, unknown):
        (tmp_path / "config.json").write_text(json.dumps(config))
        code = run(["estimate", "--model", str(tmp_path), "--gpus", "1", "--json"])
        out, err = capsys.readouterr()
        assert not marker.exists()
        assert not {"modeling_evil", "configuration_evil"} & sys.modules.keys()
        assert "Traceback" not in err
        if config is known:
            assert code == 0, err
            assert json.loads(out)["basis"] == "traced"


def test_what_cannot_be_traced_is_said_clearly() -> None:
    with pytest.raises(InputError, match="model_type 'evil' is not known to the installed transformers"):
        profile_from_config({"model_type": "evil"}, [Variant()], name="x")
    with pytest.raises(InputError, match="no model_type; it must be a Hugging Face config"):
        profile_from_config({"hidden_size": 64}, [Variant()], name="x")
    with pytest.raises(InputError, match=r"tp 3: .*rows, which 3 does not divide"):
        profile_from_config(dict(MODELS["llama"][1]), [Variant(tensor_parallel=3)], name="x", head="causal")
    with pytest.raises(InputError, match="lora_targets nothing"):
        variant = Variant(lora_rank=4, lora_targets=("nothing",))
        profile_from_config(dict(MODELS["llama"][1]), [variant], name="x", head="causal")


def test_a_catalogue_model_is_estimated_without_torch() -> None:
    program = """
import sys
from zerokit.cli import main
try:
    main(["estimate", "--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "h200", "--zero", "3", "--json"])
except SystemExit as end:
    assert not end.code, end.code
heavy = ("torch", "transformers", "deepspeed", "numpy")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("[]"), done.stderr
    assert json.loads(done.stdout)["basis"] == "traced"


# ------------------------------------------------------------------ autocast


def test_autocast_on_the_cpu_casts_as_cudas_does() -> None:
    """What both devices do alike (linear layers), and what CUDA does in fp32 (norms, softmax, losses)."""
    from zerokit.trace.recording.kernels import cuda_lists

    narrow, wide = torch.zeros(2, 8, dtype=torch.bfloat16), torch.zeros(2, 8)
    weight = torch.zeros(8, 8, requires_grad=True)
    functional = torch.nn.functional
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outside = functional.layer_norm(narrow, (8,)).dtype
        with cuda_lists():
            assert functional.linear(wide, weight).dtype == torch.bfloat16
            assert functional.layer_norm(narrow, (8,)).dtype == torch.float32
            assert torch.softmax(narrow, -1).dtype == torch.float32
            assert narrow.pow(2).dtype == torch.float32
            assert functional.cross_entropy(narrow, torch.zeros(2, dtype=torch.long)).dtype == torch.float32
            assert (narrow + wide).dtype == torch.float32
        assert functional.layer_norm(narrow, (8,)).dtype == outside == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["none", pytest.param("full", marks=SLOW)])
def test_autocast_of_a_cut_model_is_the_whole_model(checkpointing: str) -> None:
    """Weights cast in each layer live to the end of the forward pass, however many layers there are."""
    peaks = []
    for layers in (9, 5):
        config = MODELS["llama"][1] | {"num_hidden_layers": layers}
        variant = Variant(precision="32", checkpointing=checkpointing, autocast=True)
        own = profile_from_config(config, [variant], name="llama", head="causal")
        found = own.trace(variant, 512)
        assert found is not None
        timeline = found.timeline(2, 512)
        peaks.append((timeline.forward_peak, timeline.after_forward, timeline.backward.afters[-1]))
    assert peaks[0][2] == peaks[1][2] == 2 * 512 * 8  # token ids alone
    assert peaks[0][0] > peaks[1][0] > 0
    cast = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160)
    if checkpointing == "full":
        assert peaks[0][0] - peaks[1][0] >= 4 * cast
        assert peaks[0][1] - peaks[1][1] == 4 * 2 * 512 * 64 * 4  # the border of a layer, in fp32
