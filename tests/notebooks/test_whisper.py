"""The cost of Whisper's step, counted by the notebooks that train it, against numbers by hand."""

import offload
import pytest
import torch
import whisper
from test_notebooks import definitions

from pomology.models import cost

GIB = 2**30
METAL = 0.75 * GIB  # of each GiB of memory, what Metal recommends


@pytest.fixture(scope="module")
def pretraining():
    return definitions("whisper_pretraining")


def flops(d: int, layers: int, batch: int) -> int:
    """Each matmul is done once forward and twice backward, but for that of the input."""
    tokens, places, words = 32, 1500, 51_865
    first = 2 * places * 80 * 3 * d
    second = places * d * 3 * d
    encoder = layers * (places * 12 * d * d + 2 * places**2 * d)
    within = tokens * 12 * d * d + 2 * tokens**2 * d
    across = tokens * 2 * d * d + places * 2 * d * d + 2 * tokens * places * d
    decoder = layers * (within + across) + tokens * d * words
    return 2 * batch * (2 * first + 3 * (second + encoder + decoder))


def test_the_large_model_fits_a_mac_with_64_gb_only_with_checkpointing(pretraining):
    """The article trained it on an M2 Max. What is computed twice counts once."""
    row, work = pretraining["large"], pretraining["work"]
    found = work(row, "mps")
    assert found.parameters == whisper.PARAMETERS["whisper-large"] == 1_543_304_960
    assert found.flops == pytest.approx(flops(1280, 32, batch=32), rel=0.001)
    assert 36 * METAL < found.bytes < 64 * METAL
    assert work(row | {"gradient_checkpointing": False}, "mps").bytes > 64 * METAL


def test_autocast_keeps_no_less_than_is_counted(pretraining):
    """Compared with what a real step keeps; here attention is fused, as on CUDA."""
    row = {"model": "whisper-tiny", "batch_size": 1, "precision": "bf16"}
    counted = pretraining["work"](row, "cpu").saved_bytes
    model = whisper.build("whisper-tiny", False)
    labels = torch.zeros(1, 32, dtype=torch.long)
    with cost.saved_tensors(model) as kept, torch.autocast("cpu", torch.bfloat16):
        model(input_features=torch.zeros(1, 80, 3000), labels=labels).loss.backward()
    assert 0.75 * kept["peak"] < counted <= kept["peak"]


def test_the_medium_model_fits_a_card_of_8_gb_with_offload_and_checkpointing():
    """On the card: a layer of the decoder, what is in no layer, and what the step keeps."""
    d, words, places = 1024, 51_865, 1500 + 448
    layer = 16 * d * d + 16 * d  # two attentions, two matrices of four widths; three norms
    outside = (words + places + 3 * 80 + 3 * d) * d
    counted = whisper.cost("whisper-medium", 4, True, "cuda")
    found = offload.placed(counted, lambda: whisper.build("whisper-medium", False))
    assert found.state_bytes == pytest.approx(4 * (layer + outside), rel=0.001)
    assert found.bytes < 8e9 < counted.bytes
