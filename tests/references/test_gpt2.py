"""GPT-2 of both notebooks against transformers' GPT-2, or PyTorch's own encoder, in float64."""

import subprocess
import sys

import numpy as np
import pytest
from references import gpt2_reference, gpt2_trial

from pomology.models import gpt2, verify

# As shares of the largest. fp32 errs by less than one part in a million in logits and losses, and three in gradients;
# GELU without tanh is a part in ten thousand off.
ALLOWED = {"logits": 3e-5, "gradient": 3e-4, "losses": 3e-5}


def complaints(result: dict, trial: gpt2_trial.Trial) -> list:
    """Key biases are left out: they add as much to all scores of a query, which softmax ignores."""
    both = result, gpt2_reference.reference(trial)
    wrong = []
    for word, allowed in ALLOWED.items():
        pair = [
            {
                name: each[name]
                for name in sorted(each)
                if name.startswith(word) and "key_proj.bias" not in name
            }
            for each in both
        ]
        wrong.append(verify.difference(*pair, allowed, relative=True)[1])
    return [each for each in wrong if each]


@pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)
def test_the_notebook_in_pytorch(architecture):
    trial = gpt2_trial.trial(architecture)
    names = ("LanguageModel", "loss_function", "adamw")
    code = gpt2_trial.code("gpt2_pretraining", *names, framework="torch", fused=False)
    assert complaints(gpt2_trial.torch_pass(trial, *code), trial) == []
    assert complaints(
        gpt2_trial.torch_pass(gpt2_trial.trial(architecture), *code[:2], halved(code[2])), trial
    )


def halved(optimizer):
    """Half of the decay of weights."""
    return lambda model, lr, weight_decay: optimizer(model, lr, weight_decay / 2)


@pytest.mark.parametrize(
    ("architecture", "bias_correction"),
    [("transformer_lm", True), ("true_gpt2", True), ("transformer_lm", False)],
)
def test_the_notebook_in_mlx(tmp_path, architecture, bias_correction):
    path = tmp_path / "mlx.npz"
    command = [sys.executable, gpt2_trial.__file__, str(path), architecture, str(bias_correction)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(path) as file:
        assert complaints(dict(file), gpt2_trial.trial(architecture, bias_correction)) == []
