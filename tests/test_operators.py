"""The pretended MPS against faults planted in it."""

import json

import apart
import pytest

FRAME = """
import copy, json, os, sys
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
import pretended_mps
from pretended_mps import Use

rehearsal = pretended_mps.Rehearsal()
device = rehearsal.handle
answers = {}
for name, code in json.loads(sys.argv[1]).items():
    rehearsal.use, error = Use(), ""
    rehearsal.counts.clear()
    with rehearsal.entered():
        try:
            exec(code, dict(globals()))
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
    use = rehearsal.use
    answers[name] = {"error": error, "faults": use.faults, "missing": use.missing(), "operators": use.operators}
print(json.dumps(answers))
sys.stdout.flush()
os._exit(0)  # as `pretended_mps` ends its process, and for the same reason
"""


@pytest.fixture(scope="module")
def pretended(tmp_path_factory) -> dict[str, dict]:
    """What every program of `PLANTED` and `FINE` asked of the pretended MPS, run one after another in one process."""
    programs = FINE | {code: code for code in PLANTED}
    return apart.answers(tmp_path_factory.mktemp("pretended"), FRAME, json.dumps(programs))


PLANTED = {  # a program -> the fault that is named
    "torch.as_tensor(np.ones(3), device=device)": "makes float64 on the device",
    "F.multi_margin_loss(torch.ones(2, 3, device=device), torch.tensor([1, 2]).to(device))": "no kernel for multi_",
    "nn.Embedding(5, 4, max_norm=1.0).to(device)(torch.tensor([1, 2]).to(device))": "embedding_renorm_ to the CPU",
    "torch.ones(3).to(device, non_blocking=True)": "non_blocking=True",
    "torch.ones(1, 2, 3, 3, device=device).to(memory_format=torch.channels_last)": "with channels_last",
    "nn.BatchNorm2d(3).to(device)(torch.rand(2, 4, 4, 3, device=device).permute(0, 3, 1, 2))": (
        "BatchNorm2d gets a permuted input"
    ),
    "nn.LSTM(3, 3).to(device)(torch.rand(4, 2, 3, device=device).transpose(0, 1))": "LSTM gets a permuted input",
    "nn.Linear(3, 3).to(device)(torch.ones(2, 3))": "RuntimeError: addmm: expected all tensors on one device",
    "torch.ones(3, device=device).numpy()": "TypeError: can't convert mps",
}


FINE = {
    "training": """
torch.manual_seed(0)
host = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
images, classes = torch.rand(16, 1, 8, 8), torch.randint(0, 10, (16,))
ours = copy.deepcopy(host).to(device)
ends = []
for model, x, y in ((host, images, classes), (ours, images.to(device), classes.to(device))):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ends.append((loss.item(), next(model.parameters()).detach().cpu().sum().item()))
(first, weights), (second, others) = ends
assert abs(first - second) < 1e-4 and abs(weights - others) < 1e-3, ends
assert first < 1.0, ends
""",
    "LSTM": """
torch.manual_seed(0)
host, inputs = nn.LSTM(8, 8, 2), torch.randn(5, 2, 8)
ours = copy.deepcopy(host).to(device)
sums = [module(x)[0].pow(2).sum() for module, x in ((host, inputs), (ours, inputs.to(device)))]
for item in sums:
    item.backward()
assert abs(sums[0].item() - sums[1].item()) < 1e-5
for one, other in zip(host.parameters(), ours.parameters()):
    assert torch.allclose(one.grad, other.grad.cpu(), atol=1e-5)
""",
    "attention": """
layer = nn.TransformerEncoderLayer(16, 2, 32).to(device)
optimizer = torch.optim.Adam(layer.parameters())
layer(torch.rand(5, 3, 16, device=device)).sum().backward()
optimizer.step()
""",
}


@pytest.mark.parametrize(("code", "words"), PLANTED.items())
def test_a_planted_fault_is_named(pretended, code, words):
    assert any(words in text for text in (*pretended[code]["faults"], pretended[code]["error"])), (
        pretended[code]
    )


def test_what_mps_can_do_gives_there_what_the_cpu_gives_in_the_way_of_mps(pretended):
    """One tensor at a time without `fused`, and attention as products: no multi-tensor and no fused kernels."""
    for name in FINE:
        assert (
            pretended[name]["error"],
            pretended[name]["faults"],
            pretended[name]["missing"],
        ) == ("", [], []), name
    training, attention = pretended["training"]["operators"], pretended["attention"]["operators"]
    assert training["_fused_adamw_"] == 20 and training["_local_scalar_dense"] == 1
    assert training["native_batch_norm"] == 20  # the host's model is not counted
    assert (
        not [name for name in attention if "foreach" in name or "scaled_dot" in name]
        and attention["bmm"] >= 2
    )
