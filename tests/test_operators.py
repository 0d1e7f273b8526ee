"""Notebooks on a pretended device that sees what a Mac would refuse; and that device against faults planted in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pretended_mps
import pytest

from pomology import __main__
from pomology.errors import PomologyError
from pomology.runner import notebooks, operators

TORCH = [notebook for notebook in notebooks.notebooks() if operators.uses_torch(notebook)]


@pytest.mark.parametrize("notebook", TORCH, ids=lambda notebook: notebook.name)
def test_a_notebook_s_steps_would_run_on_mps(notebook, forked):
    use = operators.rehearse(notebook.name)
    assert use.faults == []
    assert use.missing() == []
    about = notebooks.read_notebook(notebook.path)["metadata"]["pomology"]
    allowed = {"ok", "unsupported"} if about.get("may_be_unsupported") else {"ok"}
    if about["article"] == "kit":  # finds out, rightly, that this device does not work by itself
        allowed.add("mismatch")
    assert use.cases and {status for status, _ in use.cases.values()} <= allowed, use.cases
    # Something was really computed there, and looked up.
    assert len(use.operators) > 5 and operators.KERNEL in use.support.values()


def test_kernels_of_this_torch():
    """From the list that PyTorch was built from; these are known of 2.13."""
    for name in ("addmm", "_lstm_mps", "native_batch_norm", "_fused_adamw_", "mm", "embedding_dense_backward"):
        assert pretended_mps.support(name) == operators.KERNEL, name
    for name in ("_ctc_loss", "mode", "poisson", "take", "_upsample_bicubic2d_aa_backward", "_fused_adagrad_"):
        assert pretended_mps.support(name) == operators.MISSING, name
    assert pretended_mps.support("convolution") == pretended_mps.support("square") == operators.COMPOSITE
    assert pretended_mps.support("embedding_renorm_") == operators.SILENT
    assert pretended_mps.support("no_such_operator") == operators.MISSING
    assert len(pretended_mps.kernels()) > 3000


# Planted faults -------------------------------------------------------------------------------------------------------

FRAME = """
import copy, json, os, sys
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
import pretended_mps
from pomology.runner.operators import Use

rehearsal = pretended_mps.Rehearsal()
device = rehearsal.handle
answers = {}
for name, code in json.load(sys.stdin).items():
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
def pretended() -> dict[str, dict]:
    """What every program of `PLANTED` and `FINE` asked of the pretended MPS, run one after another in one process."""
    programs = {name: code for name, (code, _) in PLANTED.items()} | FINE
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FRAME],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


PLANTED = {
    "a number of NumPy's": ("torch.tensor(np.float64(2)).to(device)", "makes float64 on the device"),
    "an array, made there": ("torch.as_tensor(np.ones(3), device=device)", "makes float64 on the device"),
    "a new tensor": (
        "torch.ones(2, device=device).new_tensor(np.ones(2), dtype=torch.float64)",
        "makes float64 on the device",
    ),
    "complex": ("torch.ones(3, device=device, dtype=torch.complex128)", "makes complex128 on the device"),
    "CTC": (
        "x = torch.randn(10, 2, 5, device=device).log_softmax(-1)\n"
        "F.ctc_loss(x, torch.ones(2, 4, dtype=torch.long, device=device), (10, 10), (4, 4))",
        "no kernel for _ctc_loss",
    ),
    "mode": ("torch.ones(4, device=device).mode()", "no kernel for mode"),
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
    "tensors of two devices": (
        "nn.Linear(3, 3).to(device)(torch.ones(2, 3))",
        "RuntimeError: addmm: expected all tensors on one device, but found at least two, cpu and mps",
    ),
    "numpy": ("torch.ones(3, device=device).numpy()", "TypeError: can't convert mps"),
    "a permuted sequence": (
        "nn.LSTM(3, 3).to(device)(torch.rand(4, 2, 3, device=device).transpose(0, 1))",
        "LSTM gets a permuted input",
    ),
}


FINE = {
    "numbers": """
x = torch.tensor([1.0, 2.0], device=device)
assert x.device == device and x.tolist() == [1.0, 2.0]
assert x.new_tensor([3]).dtype == torch.float32 and (x + torch.tensor(2.0)).tolist() == [3.0, 4.0]
""",
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
    "autocast": """
layer = nn.Linear(8, 8).to(device)
x = torch.rand(4, 8, device=device)
with torch.autocast(device.type, dtype=torch.bfloat16):
    y = layer(x)
    assert y.dtype == torch.bfloat16 and torch.softmax(y, -1).dtype == torch.float32
scaler = torch.amp.GradScaler(device.type)
optimizer = torch.optim.SGD(layer.parameters())
scaler.scale(y.float().sum()).backward()
scaler.step(optimizer)
scaler.update()
""",
    "attention": """
layer = nn.TransformerEncoderLayer(16, 2, 32).to(device)
optimizer = torch.optim.Adam(layer.parameters())
layer(torch.rand(5, 3, 16, device=device)).sum().backward()
optimizer.step()
""",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(pretended, name):
    words = PLANTED[name][1]
    assert any(words in text for text in (*pretended[name]["faults"], pretended[name]["error"])), pretended[name]


@pytest.mark.parametrize("name", FINE)
def test_what_mps_can_do_gives_there_what_the_cpu_gives(pretended, name):
    assert {key: pretended[name][key] for key in ("error", "faults", "missing")} == {
        "error": "",
        "faults": [],
        "missing": [],
    }


def test_optimisers_the_scaler_and_attention_take_the_way_of_mps(pretended):
    """One tensor at a time without `fused`, and attention as products: no multi-tensor and no fused kernels."""
    training, attention = pretended["training"]["operators"], pretended["attention"]["operators"]
    assert training["_fused_adamw_"] == 20 and training["_local_scalar_dense"] == 1
    assert training["native_batch_norm"] == 20  # the host's model is not counted
    assert "_amp_foreach_non_finite_check_and_unscale_" in pretended["autocast"]["operators"]
    assert not [name for name in attention if "foreach" in name or "scaled_dot" in name] and attention["bmm"] >= 2


# The command ----------------------------------------------------------------------------------------------------------


def test_doctor_shows_the_table(monkeypatch, capsys):
    use = operators.Use(
        operators={"addmm": 12, "_ctc_loss": 1, "convolution": 3},
        support={"addmm": "kernel", "_ctc_loss": "no kernel", "convolution": "made of others"},
        faults=["MPS has no kernel for _ctc_loss: it fails, or runs on the CPU where that is allowed"],
        cases={"torch-mps batch_size=2": ["ok", None], "torch-mps batch_size=4": ["error", "KeyError: 'x'"]},
    )
    monkeypatch.setattr(operators, "rehearse", lambda name: use)
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
        operators.rehearse("vae")


def test_without_a_checkout_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(operators, "root", lambda: tmp_path)
    with pytest.raises(PomologyError, match=r"^--operators vae: needs a checkout of the kit, for tests.pretended_mps"):
        operators.rehearse("vae")


def test_the_table_of_a_notebook(monkeypatch):
    uses = {
        "vae": operators.Use({"addmm": 3, "convolution": 1}, {"addmm": "kernel", "convolution": "made of others"}),
        "siamese": operators.Use(
            *({"_ctc_loss": 1, "addmm": 1}, {"_ctc_loss": "no kernel", "addmm": "kernel"}),
            faults=["MPS has no kernel for _ctc_loss"],
        ),
    }

    def rehearse(name):
        if name not in uses:
            raise PomologyError(f"{name}: its rehearsal did not get to its end: KeyError: 'x'")
        return uses[name]

    monkeypatch.setattr(operators, "rehearse", rehearse)
    rows = {row.cells[0]: row.cells[1:] for row in operators.table("vae siamese dcg* mlp").rows}
    assert rows["vae"] == ("2", "1", "1", "none", "nothing")
    assert rows["siamese"] == ("2", "1", "0", "_ctc_loss", "MPS has no kernel for _ctc_loss")
    assert rows["dcgan"][-1].endswith("KeyError: 'x'") and "mlp" not in rows, "TensorFlow's"
    assert operators.table("").rows == ()
    with pytest.raises(PomologyError, match="vea: no notebook is named so"):
        operators.table("vea")
