"""The programs of docs/add-a-device.md: a backend of PyTorch is one entry, a framework is one file."""

import re
import subprocess
import sys
from types import SimpleNamespace

import torch

from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.paths import root

# The programs of docs/add-a-device.md.
TEXT = (root() / "docs" / "add-a-device.md").read_text(encoding="utf-8")
ENTRY, FILE = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_a_new_backend_of_pytorch_is_one_entry(monkeypatch):
    hpu = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "Gaudi 3")
    monkeypatch.setattr(torch, "hpu", hpu, raising=False)
    monkeypatch.setitem(devices_torch.BACKENDS, "hpu", None)  # which takes it out after the test
    exec(ENTRY, vars(devices_torch))
    for name in ("cuda", "xpu"):
        monkeypatch.setattr(getattr(torch, name), "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    cpu, hpu = find.find("auto")
    assert [device.backend for device in find.find("hpu")] == ["hpu"] and "hpu" in find.choices()
    assert (hpu.kind, hpu.name, hpu.handle, hpu.unified_memory) == (
        "gpu",
        "Gaudi 3",
        torch.device("hpu"),
        False,
    )
    assert cpu.unified_memory


EXPERIMENT = """
import sys
import numpy
from pomology import devices
devices.__path__.append(sys.argv[1])
from pomology.devices import base, find
from pomology.experiment.experiment import Experiment
from pomology.models.cost import Workload

assert list(find.frameworks()) == ["torch", "tensorflow", "mlx", "numpy"]
(cpu,) = find.find("auto", "numpy")
assert cpu.precisions() == {"fp32": None, "fp16": None, "bf16": "data type 'bfloat16' not understood", "fp64": None}
experiment = Experiment("vae", article="003", framework="numpy", out=sys.argv[2], profile="smoke",
                        expects_learning=False)
(case,) = experiment.cases(batch_size=[8])
with case:
    weights = case.watch_model([numpy.zeros((4, 4))])
    case.require_memory(Workload(16, 100, state_bytes=64, saved_bytes=0))
    case.require_time(10)
    for (batch,) in case.steps([[numpy.ones(2)]] * 30):
        assert case.backend.to_device(batch).dtype == "float32"
        weights[0] += 1
assert not {"torch", "tensorflow", "mlx"} & set(sys.modules)
(record,) = experiment.records
print(record.status, record.reason, record.framework, record.framework_version == numpy.__version__)
"""


def test_a_new_framework_is_one_file(tmp_path):
    (tmp_path / "numpy_.py").write_text(FILE)
    command = [sys.executable, "-c", EXPERIMENT, tmp_path, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ok None numpy True"
