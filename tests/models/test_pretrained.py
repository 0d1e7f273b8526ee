"""GPT-2 and Whisper of transformers: true sizes, and where their weights come from."""

import dataclasses

import huggingface_hub
import pytest
import torch
from offline import hub_folder, one_line_error

from pomology.models import cost, pretrained

# Counted by others: the configurations of the model hub. name -> all weights, frozen ones.
PARAMETERS = {
    "gpt2": (124_439_808, 0),
    "gpt2-medium": (354_823_168, 0),
    "gpt2-large": (774_030_080, 0),
    "gpt2-xl": (1_557_611_200, 0),
    "whisper-tiny": (37_760_640, 1500 * 384),
    "whisper-small": (241_734_912, 1500 * 768),
    "whisper-medium": (763_857_920, 1500 * 1024),
    "whisper-large": (1_543_304_960, 1500 * 1280),
}


@pytest.mark.parametrize("name", pretrained.CHECKPOINTS)
def test_sizes_are_the_checkpoints(name):
    task = "speech" if name.startswith("whisper") else "language-model"
    with torch.device("meta"):
        model, note = pretrained.build(name, task)
    weights = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    frozen = sum(size for size, trained in weights if not trained)
    assert (sum(size for size, _ in weights), frozen) == PARAMETERS[name]
    assert note == pretrained.RANDOM and model.training


@pytest.mark.parametrize(("backend", "recompute"), [("mps", False), ("cuda", True)])
def test_a_step_counted_with_few_layers_is_the_step_of_all(backend, recompute):
    """With encoder and decoder, and with recomputing, whose peak is at another moment."""

    def build(name):
        model, _ = pretrained.build(name, "speech")
        if recompute:
            model.activation_checkpointing_enable({"use_reentrant": True})
            model.model.decoder.gradient_checkpointing = False
        return model

    def step(model):
        labels = torch.zeros(2, 9, dtype=torch.long)
        model(input_features=torch.zeros(2, 80, 3000), labels=labels).loss.backward()

    few = pretrained.workload("whisper-tiny", build, step, 2, backend)
    whole = cost.workload(lambda: build("whisper-tiny"), step, 2, backend)
    assert dataclasses.astuple(few) == dataclasses.astuple(whole)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (("gpt3", "language-model"), "model 'gpt3': must be one of gpt2-smoke, gpt2,"),
        (("gpt2-smoke", "translation"), "task 'translation': must be one of"),
        (("whisper-smoke", "classification"), "whisper-smoke cannot be built"),
        (("gpt2-smoke", "language-model", "new"), "weights 'new': must be one of auto, random"),
    ],
)
def test_what_cannot_be_built_is_one_line(request_, words):
    one_line_error(lambda: pretrained.build(*request_), words)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a checkpoint in Hugging Face's cache; `gpt2` is as small as the smoke model."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(pretrained.SIZES, "gpt2", pretrained.SIZES["gpt2-smoke"])
    return hub_folder("openai-community/gpt2")


@pytest.fixture
def saved(folder):
    torch.manual_seed(3)
    model, _ = pretrained.build("gpt2-smoke", "language-model")
    model.save_pretrained(folder)
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
        assert model.config.num_labels == 2
    said = capfd.readouterr()
    assert said.err == said.out == "", "transformers has something to say"


def test_random_never_looks_and_neither_does_counting(saved):
    model, note = pretrained.build("gpt2", "language-model", "random")
    assert note == pretrained.RANDOM and not torch.equal(weights(model), weights(saved))
    with torch.device("meta"):
        model, note = pretrained.build("gpt2", "language-model")
    assert note == pretrained.RANDOM and weights(model).is_meta


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_an_unfinished_download_is_no_checkpoint(saved, folder, lost):
    """The hub links to a file when it has arrived; a link to nothing was cleaned away."""
    (folder / lost).unlink()
    (folder / lost).symlink_to("../../blobs/gone")
    assert pretrained.build("gpt2", "language-model")[1] == pretrained.RANDOM


def test_a_damaged_checkpoint_is_refused(saved, folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    words = "openai-community/gpt2: cannot be read (", "; remove ", "or ask for"
    one_line_error(lambda: pretrained.build("gpt2", "language-model"), *words)
