"""The cost of fine-tuning GPT-2 with LoRA and without, against numbers worked out by hand."""

import pytest
from test_notebooks import definitions

GIB = 2**30
METAL = 0.75 * GIB  # of each GiB of memory, what Metal recommends
BATCH, TOKENS = 16, 128


@pytest.fixture(scope="module")
def count():
    return definitions("gpt2_finetuning")["count"]


def flops(width: int, layers: int, lora: bool) -> tuple[float, float]:
    """Forward and backward pass, with a head of two outputs for each token."""
    rows = BATCH * TOKENS
    attention = 4 * BATCH * TOKENS**2 * width  # scores, and their product with the values
    dense = 2 * rows * 12 * width**2
    narrow = 2 * rows * 8 * (width + 3 * width) if lora else 0
    last = 2 * rows * width * 2
    forward = layers * (dense + attention + narrow) + last
    if not lora:
        return forward, 2 * forward
    # A frozen matrix needs the gradient of its input only, the first one not even that.
    first = 2 * rows * width * 3 * width + 2 * rows * 8 * width
    return forward, layers * (dense + 2 * attention + 2 * narrow) - first + 2 * last


@pytest.mark.parametrize("lora", [False, True])
def test_operations(count, lora):
    work = count("gpt2-large", 16, lora, "mps")
    found = work.forward_flops, work.flops - work.forward_flops
    assert found == pytest.approx(flops(1280, 36, lora), rel=1e-9)


def test_memory_with_lora(count):
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


def test_memory_with_offload(count):
    """The card holds a block and what is in none; the host everything that training keeps."""
    work, d = count("gpt2", 1, False, "cuda", "fsdp"), 768
    block = 12 * d * d + 13 * d
    outside = (50_257 + 1024 + 2 + 2) * d  # embeddings, the last norm, and the score
    assert work.state_bytes == 4 * (block + outside)
    assert work.host_bytes == 16 * (12 * block + outside)
