"""Notebooks on a pretended device that sees what a Mac would refuse; and that device against faults planted in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pomology import __main__
from pomology.errors import PomologyError
from pomology.runner import mps_rehearsal, notebooks

PATHS = [notebook.path for notebook in notebooks.notebooks()]


def uses_torch(path: Path) -> bool:
    cells = notebooks.read_notebook(path)["cells"]
    return any("import torch" in "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


TORCH = [path for path in PATHS if uses_torch(path)]


@pytest.mark.parametrize("path", TORCH, ids=[path.stem for path in TORCH])
def test_a_notebook_s_steps_would_run_on_mps(path):
    use = mps_rehearsal.rehearse(path.stem)
    assert use.faults == []
    assert use.missing() == []
    about = notebooks.read_notebook(path)["metadata"]["pomology"]
    allowed = {"ok", "unsupported"} if about.get("may_be_unsupported") else {"ok"}
    if about["article"] == "kit":  # finds out, rightly, that this device does not work by itself
        allowed.add("mismatch")
    assert use.cases and {status for status, _ in use.cases.values()} <= allowed, use.cases
    # Something was really computed there, and looked up.
    assert len(use.operators) > 5 and mps_rehearsal.KERNEL in use.on_mps().values()


def test_kernels_of_this_torch():
    """From the list that PyTorch was built from; these are known of 2.13."""
    for name in ("addmm", "_lstm_mps", "native_batch_norm", "_fused_adamw_", "mm", "embedding_dense_backward"):
        assert mps_rehearsal.support(name) == mps_rehearsal.KERNEL, name
    for name in ("_ctc_loss", "mode", "poisson", "take", "_upsample_bicubic2d_aa_backward", "_fused_adagrad_"):
        assert mps_rehearsal.support(name) == mps_rehearsal.MISSING, name
    assert mps_rehearsal.support("convolution") == mps_rehearsal.support("square") == mps_rehearsal.COMPOSITE
    assert mps_rehearsal.support("embedding_renorm_") == mps_rehearsal.SILENT
    assert mps_rehearsal.support("no_such_operator") == mps_rehearsal.MISSING
    assert len(mps_rehearsal.kernels()) > 3000


# Planted faults -------------------------------------------------------------------------------------------------------

FRAME = """
import json, os, sys
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from pomology.runner import mps_rehearsal as operators

rehearsal = operators.Rehearsal()
device = rehearsal.handle
error = ""
with rehearsal.entered():
    try:
{code}
    except Exception as caught:
        error = f"{{type(caught).__name__}}: {{caught}}"
use = rehearsal.use
print(json.dumps({{"error": error, "faults": use.faults, "missing": use.missing(), "operators": use.operators}}))
sys.stdout.flush()
os._exit(0)  # as `operators` ends its process, and for the same reason
"""


def pretended(code: str) -> dict:
    lines = "\n".join(f"        {line}" for line in code.strip().splitlines())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FRAME.format(code=lines)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


PLANTED = {
    "a number of NumPy's": ("torch.tensor(np.float64(2)).to(device)", "makes float64 on the device"),
    "an array of NumPy's": ("torch.from_numpy(np.ones(3)).to(device)", "makes float64 on the device"),
    "a number of NumPy's, made there": ("torch.tensor(np.float64(2), device=device)", "makes float64 on the device"),
    "an array, made there": ("torch.as_tensor(np.ones(3), device=device)", "makes float64 on the device"),
    "a new tensor": (
        "torch.ones(2, device=device).new_tensor(np.ones(2), dtype=torch.float64)",
        "makes float64 on the device",
    ),
    "double": ("torch.ones(3, device=device).double()", "makes float64 on the device"),
    "a double model": ("nn.Linear(2, 2).double().to(device)", "makes float64 on the device"),
    "complex": ("torch.ones(3, device=device, dtype=torch.complex128)", "makes complex128 on the device"),
    "CTC": (
        "x = torch.randn(10, 2, 5, device=device).log_softmax(-1)\n"
        "F.ctc_loss(x, torch.ones(2, 4, dtype=torch.long, device=device), (10, 10), (4, 4))",
        "no kernel for _ctc_loss",
    ),
    "3-d pooling": ("F.adaptive_avg_pool3d(torch.ones(1, 1, 4, 4, 4, device=device), 2)", "no kernel for"),
    "mode": ("torch.ones(4, device=device).mode()", "no kernel for mode"),
    "poisson": ("torch.poisson(torch.ones(4, device=device))", "no kernel for poisson"),
    "antialiased bicubic": (
        "x = torch.ones(1, 1, 8, 8, device=device, requires_grad=True)\n"
        "F.interpolate(x, size=(4, 4), mode='bicubic', antialias=True).sum().backward()",
        "no kernel for _upsample_bicubic2d_aa_backward",
    ),
    "max_norm": (
        "nn.Embedding(5, 4, max_norm=1.0).to(device)(torch.tensor([1, 2]).to(device))",
        "hands embedding_renorm_ to the CPU without a word",
    ),
    "non_blocking": ("torch.ones(3).to(device, non_blocking=True)", "non_blocking=True"),
    "channels_last": (
        "torch.ones(1, 2, 3, 3, device=device).to(memory_format=torch.channels_last)",
        "with channels_last",
    ),
    "a permuted input": (
        "nn.BatchNorm2d(3).to(device)(torch.rand(2, 4, 4, 3, device=device).permute(0, 3, 1, 2))",
        "BatchNorm2d gets a permuted input",
    ),
    "a permuted sequence": (
        "nn.LSTM(3, 3).to(device)(torch.rand(4, 2, 3, device=device).transpose(0, 1))",
        "LSTM gets a permuted input",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(name):
    code, words = PLANTED[name]
    found = pretended(code)
    assert any(words in fault for fault in found["faults"]), found


def test_numbers_come_to_the_device():
    found = pretended(
        "x = torch.tensor([1.0, 2.0], device=device)\n"
        "assert x.device == device and x.tolist() == [1.0, 2.0]\n"
        "assert x.new_tensor([3]).dtype == torch.float32 and (x + torch.tensor(2.0)).tolist() == [3.0, 4.0]"
    )
    assert (found["error"], found["faults"]) == ("", [])


def test_tensors_of_two_devices_do_not_meet():
    found = pretended("nn.Linear(3, 3).to(device)(torch.ones(2, 3))")
    assert found["error"].startswith("RuntimeError") and "at least two, cpu and mps" in found["error"]
    assert pretended("torch.ones(3, device=device).numpy()")["error"].startswith("TypeError: can't convert mps")


WORKING = """
torch.manual_seed(0)
host = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
images, classes = torch.rand(16, 1, 8, 8), torch.randint(0, 10, (16,))
import copy
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
"""


def test_training_there_gives_what_the_cpu_gives():
    found = pretended(WORKING)
    assert found["error"] == "" and found["faults"] == [] and found["missing"] == []
    assert found["operators"]["_fused_adamw_"] == 20 and found["operators"]["_local_scalar_dense"] == 1
    assert found["operators"]["native_batch_norm"] == 20  # the host's model is not counted


RECURRENT = """
torch.manual_seed(0)
host, inputs = nn.LSTM(8, 8, 2), torch.randn(5, 2, 8)
import copy
ours = copy.deepcopy(host).to(device)
sums = [module(x)[0].pow(2).sum() for module, x in ((host, inputs), (ours, inputs.to(device)))]
for item in sums:
    item.backward()
assert abs(sums[0].item() - sums[1].item()) < 1e-5
for one, other in zip(host.parameters(), ours.parameters()):
    assert torch.allclose(one.grad, other.grad.cpu(), atol=1e-5)
"""


def test_an_lstm_there_gives_what_the_cpu_gives():
    found = pretended(RECURRENT)
    assert (found["error"], found["faults"], found["missing"]) == ("", [], [])


def test_autocast_and_the_gradient_scaler_are_those_of_mps():
    found = pretended(
        "layer = nn.Linear(8, 8).to(device)\n"
        "x = torch.rand(4, 8, device=device)\n"
        "with torch.autocast(device.type, dtype=torch.bfloat16):\n"
        "    y = layer(x)\n"
        "    assert y.dtype == torch.bfloat16 and torch.softmax(y, -1).dtype == torch.float32\n"
        "scaler = torch.amp.GradScaler(device.type)\n"
        "optimizer = torch.optim.SGD(layer.parameters())\n"
        "scaler.scale(y.float().sum()).backward()\n"
        "scaler.step(optimizer)\n"
        "scaler.update()"
    )
    assert (found["error"], found["faults"], found["missing"]) == ("", [], [])
    assert "_amp_foreach_non_finite_check_and_unscale_" in found["operators"]


def test_optimisers_and_attention_take_the_way_of_mps():
    """One tensor at a time without `fused`, and attention as products: no multi-tensor and no fused kernels."""
    found = pretended(
        "layer = nn.TransformerEncoderLayer(16, 2, 32).to(device)\n"
        "optimizer = torch.optim.Adam(layer.parameters())\n"
        "layer(torch.rand(5, 3, 16, device=device)).sum().backward()\n"
        "optimizer.step()"
    )
    assert found["error"] == "" and found["missing"] == []
    assert not [name for name in found["operators"] if "foreach" in name or "scaled_dot" in name]
    assert found["operators"]["bmm"] >= 2


# The command ----------------------------------------------------------------------------------------------------------


def test_doctor_shows_the_table(monkeypatch, capsys):
    use = mps_rehearsal.Use(
        operators={"addmm": 12, "_ctc_loss": 1, "convolution": 3},
        faults=["MPS has no kernel for _ctc_loss: it fails, or runs on the CPU where that is allowed"],
        cases={"torch-mps batch_size=2": ["ok", None], "torch-mps batch_size=4": ["error", "KeyError: 'x'"]},
    )
    monkeypatch.setattr(mps_rehearsal, "rehearse", lambda name: use)
    assert __main__.main(["doctor", "--operators", "vae"]) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["addmm", "12"], ["convolution", "3"], ["_ctc_loss", "1"]]
    assert lines[3].endswith("no kernel") and "torch-mps batch_size=4: error; KeyError: 'x'" in lines
    assert lines[-1] == "vae: 3 operators, 1 of them without a kernel for MPS (_ctc_loss)"


def test_a_notebook_that_is_not_there_is_one_line(capsys):
    assert __main__.main(["doctor", "--operators", "vea"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pomology: --operators vea: no notebook is named so; there are ") and said.count("\n") == 1


def test_a_notebook_that_fails_says_why_in_one_line(tmp_path, monkeypatch):
    notebook = next(item for item in notebooks.notebooks() if item.name == "vae")
    folder = tmp_path / "jane"
    (folder / "notebooks" / "a").mkdir(parents=True)
    (folder / "params" / "smoke").mkdir(parents=True)
    text = notebook.path.read_text(encoding="utf-8").replace("import tempfile", "import no_such_module")
    (folder / "notebooks" / "a" / "vae.ipynb").write_text(text, encoding="utf-8")
    (folder / "params" / "smoke" / "vae.yaml").write_text("profile: smoke\n", encoding="utf-8")
    monkeypatch.setattr(
        notebooks, "notebooks", lambda: [notebooks.Notebook("vae", folder / "notebooks/a/vae.ipynb", "", "", {})]
    )
    with pytest.raises(PomologyError, match=r"^vae: its rehearsal did not get to its end: ModuleNotFoundError"):
        mps_rehearsal.rehearse("vae")
