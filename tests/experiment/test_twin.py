"""MLX twins of a notebook's cases, in a process of their own."""

import subprocess
import sys
from pathlib import Path

import pytest
import records
import rehearsal
import smoke
from small_model import fit

from pomology.errors import PomologyError
from pomology.experiment import twin
from pomology.models import isolated
from pomology.paths import root
from pomology.results.run import set_aside

LINEAR = """
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models.workload_mlx import Pass


def evaluate(model, inputs):
    assert not model.training and len(inputs) == 2
    return model(inputs)


def step(model, optimizer, inputs):
    loss, gradients = nn.value_and_grad(model, lambda inputs: model(inputs).square().mean())(inputs)
    optimizer.update(model, gradients)
    return loss


def workload(config, width, passes=0):
    def batch(size):
        return (mx.random.uniform(shape=(size, width * config["sequence"])),)

    return Workload(
        build=lambda: nn.Linear(width * config["sequence"], 1),
        batch=batch,
        passes=[Pass("evaluation", evaluate, batch, 2, steps=passes)] if passes else (),
        optimizer=lambda model: optim.SGD(0.01),
        step=step,
        parameters=width * config["sequence"] + 1,
        flops_per_sample=1e6,
        slots=1,  # MLX keeps a velocity without momentum, too
    )
"""


def test_a_record_gives_the_twin_its_kind_of_device_and_its_scale():
    config = {"batch_size": 100}
    of_record = twin.of_case(records.record(config=config, backend="mps", scaled=True), samples=250)
    assert of_record == twin.TwinCase(config, epoch_steps=3, kind="gpu", scaled=True)
    assert twin.of_case(config, samples=0) == twin.TwinCase(config)
    assert twin.of_case(config, samples=250, drop_last=True).epoch_steps == 2


def test_finished_cases_are_those_of_the_notebooks_framework_and_repeat(make):
    (case,) = make().cases([{"batch_size": 8, "offload": "none"}])
    with case:
        fit(case)
    (slow,) = make().cases([{"batch_size": 9, "offload": "none"}])
    with slow:
        raise ValueError("a bug")
    experiment = make()
    assert [each.config["batch_size"] for each in experiment.finished()] == [8]
    assert [each.config["batch_size"] for each in experiment.finished(precision="fp32")] == [8]
    assert experiment.finished(precision="bf16") == experiment.finished(offload="fsdp") == []
    assert make(repeat=1).finished() == []


def test_a_twin_has_the_metrics_of_its_notebook(make, tmp_path, capfd):
    (tmp_path / "linear_mlx.py").write_text(LINEAR, encoding="utf-8")
    source = str(tmp_path / "linear_mlx.py:workload")
    experiment = make()
    experiment.twin(source, [], width=3)
    assert "PyTorch finished no case" in capfd.readouterr().out
    config = {"batch_size": 8, "sequence": 5}
    rows = [records.record(config=config, backend="mps", scaled=True)]  # this MLX may have no GPU
    experiment.twin(source, rows, steps=30, throughput="tokens/s", width=3)
    (record,) = experiment.records
    assert (record.framework, record.status, record.scaled) == ("mlx", "ok", True), record.reason
    assert record.parameters == 16
    values = record.metrics
    assert values["throughput"].unit == "tokens/s"
    assert values["throughput"].value * values["step_s"].value == pytest.approx(8 * 5)
    assert values["fit_s"].value == values["epoch_s"].value
    assert record.blocks["training"]["epoch_steps"] == 30
    assert experiment.finished() == []  # PyTorch's cases alone


def test_a_twin_may_write_much_to_stderr_and_its_last_words_are_kept(make, tmp_path):
    """A pipe of 64 KB would block it, since its parent reads its stdout first."""
    code = "import os\nos.write(2, b'y' * 200_000 + b'\\nthe GPU was lost\\n')\nos.abort()\n"
    (tmp_path / "loud_mlx.py").write_text(code, encoding="utf-8")
    rows = [{"batch_size": 8, "sequence": 5}]
    with pytest.raises(PomologyError, match="the GPU was lost"):
        make().twin(str(tmp_path / "loud_mlx.py:workload"), rows, samples=80)


def test_a_twin_whose_memory_ends_says_so(make, tmp_path):
    code = (
        LINEAR + "\nimport os\ndef full(config):\n    os.write(2, b'  what():  std::bad_alloc\\n')"
    )
    (tmp_path / "full_mlx.py").write_text(f"{code}\n    os.abort()\n", encoding="utf-8")
    with pytest.raises(PomologyError, match="std::bad_alloc"):
        make().twin(str(tmp_path / "full_mlx.py:full"), [{"batch_size": 8}], samples=80)
    (record,) = make().records
    assert record.status == "out-of-memory" and "std::bad_alloc" in record.reason


def test_an_epoch_of_a_twin_has_its_evaluation(make, tmp_path):
    (tmp_path / "linear_mlx.py").write_text(LINEAR, encoding="utf-8")
    source = str(tmp_path / "linear_mlx.py:workload")
    experiment = make()
    rows = [{"batch_size": 8, "sequence": 5}, {"batch_size": 9, "sequence": 5}]
    experiment.twin(source, rows[:1], samples=80, width=3, passes=7)
    experiment.twin(source, rows[1:], samples=80, epochs=3, width=3, passes=7)
    (epoch, training) = experiment.records
    assert [epoch.status, training.status] == ["ok", "ok"]
    values = epoch.metrics
    assert epoch.blocks["evaluation"]["epoch_steps"] == 7
    alone_s = values["compute_epoch_s"].value - 10 * values["step_s"].value
    blocks = epoch.blocks["evaluation"]
    timed = [(1, blocks["first_step_s"]), *blocks["warmup"], *blocks["steady"]]
    assert sum(steps for steps, _ in timed) == 7
    assert alone_s == pytest.approx(sum(seconds for _, seconds in timed), rel=0.5)
    assert "epoch_s" not in values
    assert training.blocks["training"]["epoch_steps"] == 3 * 9
    assert training.blocks["evaluation"]["epoch_steps"] == 3 * 7
    assert values.keys() | {"epoch_s", "fit_s"} > training.metrics.keys()
    assert training.metrics["fit_s"].value > training.metrics["epoch_s"].value


BACKENDS = """
from pomology.devices import find


def of(framework):
    return [device.backend for device in find.find("auto", framework)]
"""


@pytest.fixture
def with_a_gpu_of_mlx(monkeypatch):
    """The processes that this one starts have MLX's mock GPU."""
    monkeypatch.setattr(subprocess.Popen, "__init__", subprocess.Popen.__init__)
    mock = Path(rehearsal.__file__).with_name("pretended_mlx.py")
    rehearsal.start_modules_by(sys.executable, "-P", str(mock))


@pytest.mark.usefixtures("with_a_gpu_of_mlx")
def test_a_twin_and_an_isolated_call_get_mlxs_mock_gpu(make, tmp_path, monkeypatch):
    (tmp_path / "linear_mlx.py").write_text(LINEAR, encoding="utf-8")
    rows = [{"batch_size": 8, "sequence": 5}]
    experiment = make(devices="auto", profile="smoke")
    experiment.twin(str(tmp_path / "linear_mlx.py:workload"), rows, samples=80, width=3)
    found = {record.backend: record.status for record in experiment.records}
    assert found["mlx-gpu"] == "ok"
    (tmp_path / "backends.py").write_text(BACKENDS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert isolated.call("MLX", "backends:of", "mlx") == ["cpu", "mlx-gpu"]


def test_an_nvidia_machine_has_no_mlx_in_other_processes(monkeypatch):
    monkeypatch.setattr(subprocess.Popen, "__init__", subprocess.Popen.__init__)
    rehearsal.start_modules_by(sys.executable, "-P", "-c", rehearsal.WITHOUT_MLX)
    with pytest.raises(PomologyError, match=r"No module named 'mlx\.core'"):
        isolated.call("MLX", "importlib:import_module", "mlx.core")


@pytest.mark.machines
def test_the_twins_of_a_notebook_compute_on_mlxs_mock_gpu(tmp_path):
    (path,) = (root() / "notebooks").glob("*/vae.ipynb")
    execution = smoke.Execution(path, {}, tmp_path, "mac-mlx")
    execution.run()
    on_gpu = [record for record in execution.records if record.backend == "mlx-gpu"]
    assert {record.status for record in on_gpu} == {"ok"}, [record.reason for record in on_gpu]
    assert all("proof_s" in record.metrics for record in on_gpu)


def test_a_run_by_hand_measures_the_twin_anew(tmp_path):
    """Rows of an earlier execution would stand beside PyTorch's of other parameters."""
    path = tmp_path / "vae.jsonl"
    lines = [f'{{"framework":"{name}","case":"{name}"}}\n' for name in ("torch", "mlx", "mlx")]
    path.write_text("".join(lines))
    set_aside(path, "mlx")
    assert path.read_text() == lines[0]
    assert (tmp_path / "earlier" / "vae-1.jsonl").read_text() == "".join(lines)
    set_aside(path, "mlx")  # nothing is left to move
    assert path.read_text() == lines[0] and len([*(tmp_path / "earlier").iterdir()]) == 1
    set_aside(path, "")
    assert not path.exists()
    set_aside(path, "")


def test_a_twin_of_another_size_than_pytorchs_model_is_told():
    def case(framework, parameters, flops):
        fields = {"framework": framework, "parameters": parameters, "flops_per_step": flops}
        return records.record("vae", **fields)

    alike = [case("torch", 331_632, 10**9), case("mlx", 331_632, 1_004_000_000)]
    assert [*twin.unlike(alike)] == []
    other = [alike[0], case("mlx", 331_600, 2 * 10**9)]
    parameters, flops = twin.unlike(other)
    assert parameters.endswith("the twin has 331,600 parameters, and PyTorch's model 331,632")
    assert flops.endswith("a step of the twin has 2.00 GFLOP and PyTorch's 1.00 GFLOP")
    assert [*twin.unlike(other[1:])] == []
