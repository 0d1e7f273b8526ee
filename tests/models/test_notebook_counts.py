"""What the notebooks count before they run, against numbers worked out by hand."""

import functools

import pytest
import torch
from test_notebooks import definitions

from pomology.models import cost, offload, pretrained

GIB = 2**30
METAL = 0.75 * GIB  # of each GiB of memory, what Metal recommends

load = functools.cache(definitions)


@pytest.mark.parametrize(
    ("notebook", "row", "state_mib", "saved_mib"),
    [
        ("vae", 1, 10, 48),
        ("siamese", 1, 175, 729),
        ("transformer_lm", 0, 105, 107),
        ("transformer_lm", 4, 409, 3395),
    ],
)
def test_memory_of_small_models(notebook, row, state_mib, saved_mib):
    """At batch 5120, at batch 1024, and with 2 and 10 layers."""
    scope = load(notebook)
    rows = scope["rows"] if "rows" in scope else scope["batch_sizes"]
    work = scope["work"](rows[row])
    assert work.state_bytes * 1024 / GIB == pytest.approx(state_mib, rel=0.01)
    assert work.saved_bytes * 1024 / GIB == pytest.approx(saved_mib, rel=0.02)


def whisper_flops(d: int, layers: int, batch: int) -> int:
    """Each product is done once forward and twice backward, but for that of the input."""
    tokens, places, words = 32, 1500, 51_865
    first = 2 * places * 80 * 3 * d
    second = places * d * 3 * d
    encoder = layers * (places * 12 * d * d + 2 * places**2 * d)
    within = tokens * 12 * d * d + 2 * tokens**2 * d
    across = tokens * 2 * d * d + places * 2 * d * d + 2 * tokens * places * d
    decoder = layers * (within + across) + tokens * d * words
    return 2 * batch * (2 * first + 3 * (second + encoder + decoder))


def test_whisper_large_fits_a_mac_with_64_gb_only_with_recomputing():
    """The article trained it on an M2 Max. What is computed twice counts once."""
    scope = load("whisper_pretraining")
    row = scope["large"]
    work = scope["work"](row, "mps")
    assert work.parameters == 1_543_304_960
    assert work.flops == pytest.approx(whisper_flops(1280, 32, batch=32), rel=0.001)
    assert 36 * METAL < work.bytes < 64 * METAL
    assert scope["work"](row | {"gradient_checkpointing": False}, "mps").bytes > 64 * METAL


def test_autocast_keeps_no_less_than_is_counted():
    """Against what a real step keeps; here attention is fused, as on CUDA."""
    scope = load("whisper_pretraining")
    row = {"model": "whisper-tiny", "batch_size": 1, "precision": "bf16"}
    counted = scope["work"](row, "cpu").saved_bytes
    model = scope["build"]("whisper-tiny", False)
    labels = torch.zeros(1, 32, dtype=torch.long)
    with cost.saved_tensors(model) as kept, torch.autocast("cpu", torch.bfloat16):
        model(input_features=torch.zeros(1, 80, 3000), labels=labels).loss.backward()
    assert 0.75 * kept["peak"] < counted <= kept["peak"]


def gpt2_flops(width: int, layers: int, head: int, lora: bool) -> tuple[float, float]:
    """Forward and backward pass with a head of so many outputs for each of 16 x 128 tokens."""
    batch, tokens = 16, 128
    rows = batch * tokens
    attention = 4 * batch * tokens**2 * width  # scores, and their product with the values
    dense = 2 * rows * 12 * width**2
    narrow = 2 * rows * 8 * (width + 3 * width) if lora else 0
    last = 2 * rows * width * head
    forward = layers * (dense + attention + narrow) + last
    if not lora:
        return forward, 2 * forward
    # A frozen matrix needs the gradient of its input only, the first one not even that.
    first = 2 * rows * width * 3 * width + 2 * rows * 8 * width
    return forward, layers * (dense + 2 * attention + 2 * narrow) - first + 2 * last


@pytest.mark.parametrize(("head", "lora"), [(2, False), (2, True), (50_257, False)])
def test_operations_of_fine_tuning_gpt2(head, lora):
    task = "classification" if head == 2 else "language-model"
    work = load("gpt2_finetuning")["count"]("gpt2-large", 16, lora, task, "mps")
    found = work.forward_flops, work.flops - work.forward_flops
    assert found == pytest.approx(gpt2_flops(1280, 36, head, lora), rel=1e-9)


def test_memory_of_fine_tuning_gpt2_with_lora_and_with_offload():
    def count(model, batch_size, lora, backend, way="none"):
        scope = load("gpt2_finetuning")
        return scope["count"](model, batch_size, lora, "classification", backend, offload=way)

    plain, lora = (count("gpt2-large", 16, lora, "mps") for lora in (False, True))
    weights, adapters = 774_030_080 + 2560, 1_474_560 + 2560
    assert plain.state_bytes == 16 * weights
    # peft keeps the score that it replaces.
    assert lora.state_bytes == 4 * (weights + adapters) + 12 * adapters
    assert plain.saved_bytes / GIB == pytest.approx(12.69, abs=0.01)
    small_plain, small_lora = (count("gpt2-large", 4, lora, "mps") for lora in (False, True))
    assert small_lora.bytes < 16 * METAL < small_plain.bytes
    # CUDA's dropout keeps a byte where others keep a float: 73 of them, and 36 of the adapters.
    fused = count("gpt2-large", 16, True, "cuda").saved_bytes
    assert fused / GIB == pytest.approx(9.85 - 109 * 16 * 128 * 1280 * 3 / GIB, rel=0.01)
    # The token embedding and the positions are in no block, of which each has 12 width² weights.
    xl = count("gpt2-xl", 16, False, "cuda", "fsdp")
    assert xl.state_bytes == pytest.approx(4 * 1600 * (50_257 + 1024 + 12 * 1600), rel=0.001)
    assert xl.host_bytes == 16 * (1_557_611_200 + 2 * 1600)


@pytest.mark.parametrize(
    ("name", "attention", "saved_gib"),
    [
        ("whisper-medium", "written out", 23.5),
        ("whisper-medium", "fused", 10.9),
        ("whisper-large", "written out", 312.0),
        ("gpt2-large", "written out", 12.69),
        # CUDA's dropout keeps a byte where others keep a float: 73 tensors of 16 x 128 x 1280.
        ("gpt2-large", "fused", 11.64 - 73 * 16 * 128 * 1280 * 3 / GIB),
        ("gpt2-xl", "written out", 21.1),
        ("gpt2-xl", "fused", 19.4 - 97 * 16 * 128 * 1600 * 3 / GIB),
    ],
)
def test_memory_of_the_four_models(name, attention, saved_gib):
    """Matrices of attention: batch x heads x rows x columns x 4 bytes, in each layer."""
    work = load("model_memory")["work"](name, attention)
    assert work.saved_bytes / GIB == pytest.approx(saved_gib, rel=0.01)


def test_checkpointing_keeps_the_input_of_each_layer_and_one_layer():
    work = load("model_memory")["work"]
    plain = work("whisper-large", "written out")
    again = work("whisper-large", "written out", True)
    inputs = 32 * (1500 + 32) * 1280 * 4 * 32  # batch x positions x width x 4 bytes x layers
    assert inputs < again.saved_bytes < inputs + 1.2 * 312 * GIB / 32
    assert again.state_bytes == plain.state_bytes
    assert again.flops / plain.flops == pytest.approx(4 / 3, rel=0.02)


def test_whisper_medium_fits_a_card_of_8_gb_with_offload_and_recomputing():
    """Offloaded, what is in no layer (the tokens, mostly), a layer and what is kept remain."""
    scope = load("model_memory")
    counted = scope["work"]("whisper-medium", "fused", True)
    build = functools.partial(pretrained.build, "whisper-medium", "speech")
    found = offload.placed(counted, build)
    outside = 1024 * (51_865 + 1500 + 448 + 80 * 3 + 1024 * 3)
    layer = 16 * 1024**2  # of the decoder: twice the attention, and the two dense matrices
    expected = 4 * (outside + layer) / GIB + 1.03
    assert found.bytes / GIB == pytest.approx(expected, abs=0.01) and expected < 1.4
