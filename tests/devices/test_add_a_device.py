"""The examples of CONTRIBUTING.md: one line for a GPU of PyTorch, one file for a framework."""

import re
import subprocess
import sys

import torch

from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.paths import root

TEXT = (root() / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## Add a")[2]
LINE, FILE = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_a_new_backend_of_pytorch_is_one_line(monkeypatch):
    monkeypatch.setitem(devices_torch.GPUS, "xpu", "")  # which takes it out after the test
    exec(LINE, vars(devices_torch))
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda: "Intel Arc B580")
    for other in (torch.cuda, torch.mps):
        monkeypatch.setattr(other, "is_available", lambda: False)
    cpu, xpu = find.find("auto")
    assert [device.backend for device in find.find("xpu")] == ["xpu"] and "xpu" in find.choices()
    assert (xpu.kind, xpu.name, xpu.handle) == ("gpu", "Intel Arc B580", torch.device("xpu"))
    assert cpu.unified_memory and not xpu.unified_memory


EXPERIMENT = """
import sys
import numpy
from pomology import devices
devices.__path__.append(sys.argv[1])
from pomology.devices import find
from pomology.experiment.experiment import Experiment
from pomology.models.cost import Workload

assert list(find.frameworks()) == ["torch", "tensorflow", "numpy", "mlx"]
(cpu,) = find.find("auto", "numpy")
bf16 = "data type 'bfloat16' not understood"
assert cpu.precisions() == {"fp32": None, "fp16": None, "bf16": bf16, "fp64": None}
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
assert record.framework_version == numpy.__version__
print(record.status, record.reason, record.framework)
"""


def test_a_new_framework_is_one_file(tmp_path):
    (tmp_path / "numpy_.py").write_text(FILE)
    command = [sys.executable, "-c", EXPERIMENT, tmp_path, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ok None numpy"
