"""Each MLX twin makes the step that its notebook makes in PyTorch."""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pomology.models import isolated

FIRST, SSL, TODAY = "m1_ultra_vs_rtx_2070", "m1_and_m2_ssl", "today"
PROFILING = "profiling_apple_silicon"


@dataclass(frozen=True)
class Twin:
    """A notebook's workload and its twin, or the functions that return them.

    samples: of a step. settings: arguments of the notebook's function. values: parameters of the
    notebook. of_twin: arguments of the twin's function, by default `settings`. every: number of the
    pixels that are taken, in both directions of images: MLX's convolutions take a CPU long. absent:
    parameters that only PyTorch's model has.
    """

    notebook: str
    workload: str
    source: str
    samples: int
    settings: tuple = ()
    values: dict[str, Any] = field(default_factory=dict)
    of_twin: tuple = ()
    every: int = 1
    absent: int = 0


TWINS = {
    "vae": Twin("vae", "vae", f"{FIRST}/vae_mlx.py:vae", 4),
    "siamese": Twin("siamese", "siamese", f"{FIRST}/siamese_mlx.py:siamese", 4),
    "dcgan": Twin("dcgan", "dcgan", f"{FIRST}/dcgan_mlx.py:dcgan", 1),
    "transformer_lm": Twin(
        *("transformer_lm", "language_model", f"{FIRST}/transformer_lm_mlx.py:language_model", 2),
        settings=(16, 2, 24),
        of_twin=(
            {"embedding_size": 16, "layers": 2, "hidden_size": 24},
            *(33_278, 217_646, 20.0),  # words of the vocabulary and of the evaluation, lr
        ),
    ),
    "simclr": Twin(
        *("simclr", "simclr", f"{SSL}/simclr_mlx.py:workload", 4),
        of_twin=({"batch_size": 64}, 50_000, 10_000, 0.06),
        every=2,
    ),
    "rasbt_vgg16": Twin(
        *("rasbt_vgg16", "rasbt_vgg16", f"{SSL}/rasbt_vgg16_mlx.py:workload", 1),
        values={"image_size": 64, "width": 64},
        of_twin=({"image_size": 64}, 64, 5e-4),
    ),
    "model_sizes": Twin(
        *("model_sizes", "workload", f"{SSL}/model_sizes_mlx.py:workload", 2),
        settings=("resnet18", 64),
    ),
    "resnet50": Twin(
        *("resnet50", "classifier", f"{TODAY}/resnet50_mlx.py:workload", 2),
        values={"image_size": 64},
        of_twin=({"image_size": 64}, 0.01),
    ),
    "bert_base": Twin(
        *("bert_base", "classifier", f"{TODAY}/bert_base_mlx.py:workload", 2),
        settings=(16,),
        values={"layers": 2},
        of_twin=({"sequence": 16}, 2, 1e-4),
    ),
    "gpt2_small": Twin(
        *("gpt2_small", "language_model", f"{TODAY}/gpt2_small_mlx.py:workload", 2),
        settings=(16,),
        values={"layers": 2},
        of_twin=({"sequence": 16}, 2, 1e-4),
    ),
    "gpt2_finetuning": Twin(
        *("gpt2_finetuning", "workload", f"{PROFILING}/gpt2_finetuning_mlx.py:workload", 2),
        settings=("gpt2-smoke", False, "none"),
        values={"text_tokens": 16},
        of_twin=({"model": "gpt2-smoke", "lora": False}, 16, 5e-5),
    ),
    "gpt2_finetuning with LoRA": Twin(
        *("gpt2_finetuning", "workload", f"{PROFILING}/gpt2_finetuning_mlx.py:workload", 2),
        settings=("gpt2-smoke", True, "none"),
        values={"text_tokens": 16},
        of_twin=({"model": "gpt2-smoke", "lora": True}, 16, 5e-5),
        absent=2 * 64,  # peft keeps the score that it replaces
    ),
    "whisper": Twin(
        *("whisper_finetuning", "workload", f"{PROFILING}/whisper_mlx.py:workload", 1),
        settings=({"model": "whisper-smoke", "offload": "none", "recompute": False},),
        of_twin=({"model": "whisper-smoke"}, 1e-5),
    ),
}
# Model of `mlp_cnn_lstm` -> names in MLX of its layers that have weights.
KERAS = {"mlp": ["1", "4", "6"], "cnn": ["0", "3", "6", "9", "11"], "lstm": ["lstm", "classes"]}
# The twin draws its images twice, so the generator's statistics move twice.
EXCEPT = {"dcgan": r"generator\..*running_(mean|var)"}
LOSS, GRADIENT, UPDATE = 1e-4, 3e-3, 1e-3  # relative; rounding turns gradients where a ReLU bends
BYTES = 0.03  # of the bytes that are kept and moved, which a twin declares for a sample
LEAST = 1e-9  # of the largest gradient: smaller ones are rounding alone


# Up to 10 s of a core each. `make test-all` runs the others, and `make test-machines` the largest.
QUICK = ("vae", "transformer_lm")
LARGEST = ("gpt2_small", "bert_base")


def marked(name):
    marks = () if name in QUICK else pytest.mark.machines if name in LARGEST else pytest.mark.long
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [marked(name) for name in TWINS])
def test_a_twin_makes_the_same_step(name):
    twin = TWINS[name]
    place = "references.twins_reference"
    inputs = twin.samples, twin.every, twin.values
    declared = twin.notebook, twin.workload, *inputs, *twin.settings
    reference = isolated.call("PyTorch", f"{place}:in_torch", *declared)
    reference["cost"][0] -= twin.absent
    settings = twin.of_twin or twin.settings
    result = isolated.call("MLX", f"{place}:in_mlx", twin.source, reference, *settings)
    compare(result, reference, EXCEPT.get(name, "-"))


@pytest.mark.long
def test_a_twin_makes_the_steps_of_keras():
    place = "references.keras_reference"
    references = isolated.call("Keras", f"{place}:in_keras", KERAS, 4)
    moved_bytes = isolated.call("PyTorch", f"{place}:moved_bytes")
    source = "m2_max_vs_nvidia/mlp_cnn_lstm_mlx.py:workload"
    for model, reference in references.items():
        reference["cost"][-1] = moved_bytes[model]
        settings = {"model": model, "batch_size": 32}, 10_000
        function = "references.twins_reference:in_mlx"
        compare(isolated.call("MLX", function, source, reference, *settings), reference)


def compare(result: dict[str, Any], reference: dict[str, Any], ignored: str = "-") -> None:
    """Assert that a twin's step is the reference's. ignored: pattern of tensors after updates."""
    *exact, saved, moved = result["cost"]
    assert exact == pytest.approx(reference["cost"][:2], rel=1e-9)
    assert saved == pytest.approx(reference["cost"][2], rel=BYTES)
    assert moved in (None, pytest.approx(reference["cost"][3], rel=BYTES))
    assert result["loss"] == pytest.approx(reference["loss"], rel=LOSS)
    first = {}
    for update in reference["updates"][: len(reference["updates"]) // 2]:
        first |= update
    assert result["gradients"].keys() == first.keys()
    largest = max(np.abs(gradient).max() for gradient in first.values())
    for tensor, gradient in first.items():
        if np.abs(gradient).max() > LEAST * largest:
            off = np.abs(result["gradients"][tensor] - gradient).max()
            assert off <= GRADIENT * np.abs(gradient).max(), f"gradient of {tensor}"
    for tensor, weight in reference["after"].items():
        if re.fullmatch(ignored, tensor):
            continue
        moved = weight - reference["start"][tensor]
        off = np.abs(result["after"][tensor] - weight).max()
        assert off <= UPDATE * np.abs(moved).max() + 1e-6 * np.abs(weight).max(), tensor
