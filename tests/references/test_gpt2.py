"""GPT-2 in both frameworks against transformers' GPT-2, or PyTorch's own encoder, in float64."""

import pytest
from references import gpt2_reference, gpt2_trial

from pomology.models import gpt2, isolated, verify
from pomology.models.definitions import definitions

# As shares of the largest. fp32 errs by less than one part in a million in logits and losses, and
# three in gradients; GELU without tanh is a part in ten thousand off.
ALLOWED = {"logits": 3e-5, "gradient": 3e-4, "losses": 3e-5}


def complaints(result: dict, architecture: str) -> list:
    """Key biases are left out: they add as much to all scores of a query, which softmax ignores."""
    expected = gpt2_reference.reference(gpt2_trial.shape(architecture))
    names = [name for name in sorted(expected) if "key_proj.bias" not in name]
    wrong = []
    for word, allowed in ALLOWED.items():
        some = [name for name in names if name.startswith(word)]
        pair = [{name: each[name] for name in some} for each in (result, expected)]
        wrong.append(verify.difference(*pair, allowed, relative=True)[1])
    return [each for each in wrong if each]


@pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)
def test_the_notebook_in_pytorch(architecture):
    shape = gpt2_trial.shape(architecture)
    names = ("LanguageModel", "loss_function", "adamw")
    code = definitions("gpt2_pretraining", *names, framework="torch", fused=False)

    def halved(model, lr, weight_decay):
        return code.adamw(model, lr, weight_decay / 2)

    assert complaints(gpt2_trial.torch_pass(shape, code, code.adamw), architecture) == []
    assert complaints(gpt2_trial.torch_pass(shape, code, halved), architecture)


@pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)
def test_the_notebook_in_mlx(architecture):
    found = isolated.call("MLX", "references.gpt2_trial:mlx_pass", architecture)
    assert complaints(found, architecture) == []
