"""A user's own config.json: counted as Transformers builds it, or refused with the file and the key."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.config_files import LLAMA
from zerokit.cli import run


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 12_000_000_000_000_000}, "num_hidden_layers is 12000000000000000"),
        ({"num_hidden_layers": 20_000}, "num_hidden_layers is 20000; expected at most 10,000"),
        ({"num_labels": 100_000_000}, "num_labels is 100000000; expected at most 1,000,000"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 10**30}, "expected at most 1,000,000,000"),
        ({"rms_norm_eps": float("inf")}, "Infinity is not a number in JSON"),
        ({"vocab_size": float("nan")}, "NaN is not a number in JSON"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        ({"model_type": "no-such-model"}, "no-such-model"),
        ({"model_type": {"a": [1]}, "architectures": None}, "model_type is {'a': [1]}; expected a text"),
        ({"architectures": ["LlamaForMultipleChoice"]}, "one output in place of the vocabulary"),
        ({"architectures": ["Qwen2_5_VLForConditionalGeneration"]}, "joins a text model with a tower"),
        ({"architectures": ["MyOwnModel"]}, "MyOwnModel is not modelled"),
        (
            {"model_type": "electra", "architectures": ["ElectraForPreTraining"]},
            "ElectraForPreTraining is not modelled: its loss is not a language model's",
        ),
        ({"architectures": ["RoCBertForPreTraining"]}, "RoCBertForPreTraining is not modelled"),
        ({"model_type": "qwen2_vl", "vision_config": {}}, "give the images of a sequence, --images N"),
        ({"model_type": "mllama", "vision_config": {}}, "with a tower for images is not modelled"),
        ({"model_type": "gemma3n", "audio_config": {}}, "with a tower for sound is not modelled"),
    ],
)
def test_what_cannot_be_is_refused_with_the_file_and_the_key(
    capsys: pytest.CaptureFixture[str], write_config: Any, change: dict[str, Any], words: str
) -> None:
    place = write_config(LLAMA | change)
    started = time.process_time()
    for command in ("plan", "estimate"):
        assert run([command, "--model", place, "--gpus", "1", "--gpu", "h200"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and words in err and place in err and "Traceback" not in err
    assert time.process_time() - started < 20
