"""GPT-2 of the notebook in both frameworks, against what PyTorch and transformers ship."""

import pytest
from references.trainings_reference import complaint

from pomology.models import gpt2, isolated

# Of what trainings may be off: GELU without tanh is a part in ten thousand off.
STRICTNESS = 10


FIRST, *OTHERS = gpt2.ARCHITECTURES


@pytest.mark.long
@pytest.mark.parametrize(
    "architecture", [FIRST, *(pytest.param(each, marks=pytest.mark.machines) for each in OTHERS)]
)
def test_the_notebook_computes_what_others_do(architecture):
    place = "references.gpt2_reference"
    found = isolated.call("PyTorch", f"{place}:in_torch", architecture)
    mlx = isolated.call("MLX", f"{place}:in_mlx", architecture)
    reference = found["reference"]
    assert complaint(found["notebook"], reference, STRICTNESS) is None
    assert complaint(mlx, reference, STRICTNESS) is None
    assert complaint(found["half the decay"], reference, STRICTNESS).startswith("later losses")
