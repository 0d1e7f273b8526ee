"""GPT-2 and Whisper as transformers builds them: true sizes, and where their weights come from."""

from __future__ import annotations

import dataclasses

import huggingface_hub
import pytest
import torch
from offline import hub_folder, one_line_error

from pomology.models import cost, pretrained

# Counted by others: the configurations of the model hub.
PARAMETERS = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
PARAMETERS |= {"whisper-tiny": 37_760_640, "whisper-small": 241_734_912}
PARAMETERS |= {"whisper-medium": 763_857_920, "whisper-large": 1_543_304_960}
FROZEN = {"whisper-medium": 763_857_920 - 762_321_920, "whisper-large": 1_543_304_960 - 1_541_384_960}


def count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", pretrained.CHECKPOINTS)
def test_sizes_are_the_checkpoints(name):
    with torch.device("meta"):
        model, note = pretrained.build(name, "speech" if name.startswith("whisper") else "language-model")
    assert count(model) == PARAMETERS[name] and note == pretrained.RANDOM
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    assert frozen == FROZEN.get(name, frozen) and bool(frozen) == name.startswith("whisper")
    assert model.training and {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("backend", ["mps", "cuda"])
@pytest.mark.parametrize("again", [False, True])
def test_a_step_counted_with_few_layers_is_the_step_of_all(backend, again):
    """With encoder and decoder, and with recomputing, whose peak is at another moment."""

    def build(name):
        model, _ = pretrained.build(name, "speech")
        if again:
            model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
            model.model.decoder.gradient_checkpointing = False
        return model

    def step(model):
        model(input_features=torch.zeros(2, 80, 3000), labels=torch.zeros(2, 9, dtype=torch.long)).loss.backward()

    few = pretrained.workload("whisper-tiny", build, step, 2, backend)
    whole = cost.workload(lambda: build("whisper-tiny"), step, 2, backend)
    assert dataclasses.astuple(few) == dataclasses.astuple(whole)
    assert few.parameters == PARAMETERS["whisper-tiny"]


def test_what_cannot_be_is_said_in_one_line():
    for asked, words in (
        (("gpt3", "language-model"), "model 'gpt3': must be one of gpt2-smoke, gpt2,"),
        (("gpt2-smoke", "translation"), "task 'translation': must be one of"),
        (("whisper-smoke", "classification"), "whisper-smoke cannot be built"),
        (("gpt2-smoke", "language-model", "download"), "weights 'download': must be one of auto, random"),
    ):
        one_line_error(lambda asked=asked: pretrained.build(*asked), words)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Hugging Face's cache, empty; `gpt2` is as small as the smoke model. Returns the folder for its checkpoint."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(pretrained.SIZES, "gpt2", pretrained.SIZES["gpt2-smoke"])
    return hub_folder("openai-community/gpt2")


@pytest.fixture
def saved(cache):
    """A checkpoint in it, and the model that was saved."""
    torch.manual_seed(3)
    model, _ = pretrained.build("gpt2-smoke", "language-model")
    model.save_pretrained(cache)
    return model


def weights(model) -> torch.Tensor:
    return model.transformer.h[1].mlp.c_fc.weight


@pytest.mark.parametrize("task", ["language-model", "classification"])
def test_a_checkpoint_of_the_cache_is_taken(saved, task, capfd):
    model, note = pretrained.build("gpt2", task)
    assert note == "checkpoint openai-community/gpt2"
    assert torch.equal(weights(model), weights(saved)) and model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    if task == "classification":
        assert (model.config.num_labels, model.config.pad_token_id) == (2, pretrained.END_OF_TEXT)
    said = capfd.readouterr()
    assert said.err == said.out == "", "transformers has something to say"


def test_random_never_looks_and_neither_does_counting(saved):
    model, note = pretrained.build("gpt2", "language-model", "random")
    assert note == pretrained.RANDOM and not torch.equal(weights(model), weights(saved))
    with torch.device("meta"):
        model, note = pretrained.build("gpt2", "language-model")
    assert note == pretrained.RANDOM and weights(model).is_meta


def test_a_checkpoint_in_parts_is_taken_when_all_are_there(cache):
    pretrained.build("gpt2-smoke", "language-model")[0].save_pretrained(cache, max_shard_size="3MB")
    parts = sorted(cache.glob("model-*.safetensors"))
    assert len(parts) > 1
    assert pretrained.build("gpt2", "language-model")[1] == "checkpoint openai-community/gpt2"
    parts[-1].unlink()
    assert pretrained.build("gpt2", "language-model")[1] == pretrained.RANDOM


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_an_unfinished_download_is_no_checkpoint(saved, cache, lost):
    """The hub links to a file when it has arrived; a link to nothing is a file that was cleaned away."""
    (cache / lost).unlink()
    (cache / lost).symlink_to("../../blobs/gone")
    assert pretrained.build("gpt2", "language-model")[1] == pretrained.RANDOM


def test_a_checkpoint_that_is_damaged_or_of_another_size_is_refused(saved, cache, monkeypatch):
    size = pretrained.SIZES["gpt2-smoke"]
    with monkeypatch.context() as patch:
        patch.setitem(pretrained.SIZES, "gpt2", {**size, "n_layer": 3})
        one_line_error(lambda: pretrained.build("gpt2", "language-model"), "openai-community/gpt2: n_layer is 2 in ")
    whole = (cache / "model.safetensors").read_bytes()
    (cache / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    words = "openai-community/gpt2: cannot be read (", "; remove ", "or ask for"
    one_line_error(lambda: pretrained.build("gpt2", "language-model"), *words)
