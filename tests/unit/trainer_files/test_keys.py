"""The keys of trainers' files: whose file it is, and what is known of a key."""

from __future__ import annotations

import pytest

from zerokit.trainer_files.keys import NAMES, trainer, trainer_of


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["base_model", "sequence_len", "micro_batch_size", "sample_packing"], "axolotl"),
        (["model_name_or_path", "finetuning_type", "cutoff_len", "learning_rate"], "llamafactory"),
        (["model", "model_class", "dist_config", "micro_batch_size"], "llamafactory"),
        (["model", "tuner_type", "split_dataset_ratio", "per_device_train_batch_size"], "swift"),
        (["model_name_or_path", "dataset_mixture", "dataset_name"], "trl"),
        (["output_dir", "learning_rate", "bf16", "deepspeed"], None),
        (["sample_packing", "output_dir", "learning_rate"], None),
        (["micro_batch_size", "adapter", "model_name_or_path"], None),
    ],
)
def test_two_keys_that_one_trainer_alone_has(keys: list[str], name: str | None) -> None:
    found = trainer_of(dict.fromkeys(keys))
    assert (found.name if found else None) == name


def test_what_releases_had() -> None:
    # TRL 0.20.0's notes: max_seq_length is gone
    assert trainer("trl").keys["max_seq_length"].until == "0.19.1"
    assert trainer("axolotl").keys["layer_offloading"].since == "0.16.1"  # 0.16's notes
    assert trainer("swift").keys["train_type"].until == "4.0.4"  # tuner_type since


def test_a_key_is_as_its_class_says() -> None:
    axolotl, trl = trainer("axolotl").keys, trainer("trl").keys
    assert (axolotl["load_in_4bit"].kind, axolotl["base_model"].kind) == ("boolean", "text")
    assert axolotl["fsdp_config"].keys["reshard_after_forward"].kind == "boolean"
    assert axolotl["datasets"].keys["path"].irrelevant
    assert trainer("llamafactory").keys["finetuning_type"].choices == ("lora", "oft", "freeze", "full")
    assert trl["learning_rate"].default_of("dpo") == 1e-6  # TRL 1.16.0, trainer/dpo_config.py
    assert trl["max_length"].default_of("sft") == 1024
    assert "grpo" in trl["num_generations"].of
    assert "sft" not in trl["num_generations"].of


@pytest.mark.parametrize("name", NAMES)
def test_transformers_arguments_are_a_trainers_where_it_takes_them(name: str) -> None:
    found = trainer(name)
    inherited = {key for key, one in found.keys.items() if one.of_base}
    assert ("adam_epsilon" in inherited) == (name != "axolotl")
    assert found.keys["per_device_train_batch_size"].kind == "integer" if inherited else True
