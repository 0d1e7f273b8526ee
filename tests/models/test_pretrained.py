"""Sizes of transformers' GPT-2 and Whisper."""

import dataclasses

import pytest
import torch
from offline import one_line_error

from pomology.models import cost, pretrained

# Model -> number of parameters and of frozen ones, from the configurations of the model hub.
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


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes_are_the_checkpoints(name):
    task = "speech" if name.startswith("whisper") else "language-model"
    with torch.device("meta"):
        model = pretrained.build(name, task)
    weights = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    frozen = sum(size for size, trained in weights if not trained)
    assert (sum(size for size, _ in weights), frozen) == PARAMETERS[name]
    assert model.training


@pytest.mark.parametrize(("backend", "recompute"), [("mps", False), ("cuda", True)])
def test_a_step_extrapolated_from_few_layers_is_the_step_of_all(backend, recompute):
    """The model has an encoder and a decoder; recomputing moves the peak to another moment."""

    def build(name):
        model = pretrained.build(name, "speech")
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


def test_an_unknown_model_is_an_error_of_one_line():
    words = "model 'gpt3': must be one of gpt2-smoke, gpt2,"
    one_line_error(lambda: pretrained.build("gpt3", "language-model"), words)
    one_line_error(lambda: pretrained.build("whisper-smoke", "classification"), "cannot be built")
