"""Order of an experiment's cases, and skipping of finished ones."""

import importlib.metadata
import json
from pathlib import Path

import pytest
import torch
from small_model import fit, run

from pomology.devices.torch import TorchDevice as Device
from pomology.errors import PomologyError, TooBig
from pomology.machine import snapshot
from pomology.results import journal


def test_rows_and_axes_make_the_cases(make):
    experiment = make()
    precisions = ["fp16", "bf16"]
    assert [case.precision for case in experiment.cases(precision=precisions)] == precisions
    names = [case.name for case in experiment.cases(batch_size=(64, 128), layers=iter([1, 2]))]
    pairs = [(size, layers) for size in (64, 128) for layers in (1, 2)]
    assert names == [f"torch-cpu batch_size={size} layers={layers}" for size, layers in pairs]
    rows = [{"a": 2}, {"check": 1}]
    assert [case.config for case in experiment.cases(iter(rows))] == rows
    assert [case.name for case in experiment.cases()] == ["torch-cpu"]
    (case,) = experiment.cases([{"batch_size": 8}])
    assert (case["batch_size"], case.device) == (8, torch.device("cpu"))
    with pytest.raises(KeyError):
        case["hidden_size"]


def test_finished_cases_are_skipped_with_a_message(make, capsys):
    for case in make().cases(batch_size=[8, 16, 32]):
        if case["batch_size"] == 32:
            break
        with case:
            fit(case)
            if case["batch_size"] == 16:
                raise ValueError("a bug")
    capsys.readouterr()
    again = make()
    assert [case["batch_size"] for case in again.cases(batch_size=[8, 16, 32])] == [16, 32]
    skipped = "torch-cpu batch_size=8: skipped, since the journal already has it"
    assert capsys.readouterr().out.startswith(skipped)
    assert [case["batch_size"] for case in make(repeat=1).cases(batch_size=[8, 16])] == [8, 16]
    for case in again.cases(batch_size=[8, 16, 32]):
        with case:
            fit(case)
    for records in (again.records, again.report.run.records):
        assert [record.status for record in records] == ["ok"] * 3
    assert list(make().cases(batch_size=[8, 16, 32])) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"profile": "Quick"}, "vae: profile is 'Quick'; it must be one of smoke, quick, article"),
        ({"budget_s": 0}, "vae: budget_s is 0; it must be positive and finite"),
        (
            {"article": "03"},
            "vae: article '03': expected one of 000, 001, 002, 003, 004, today, kit",
        ),
        ({"framework": "theano"}, "framework: unknown 'theano'; must be one of torch"),
        ({"devices": "tpu"}, "devices: unknown 'tpu'; must be one of auto, cpu, gpu, cuda, mps"),
    ],
)
def test_a_wrong_setting_is_an_error_of_one_line(make, tmp_path, settings, words):
    with pytest.raises(PomologyError) as error:
        make(**settings)
    assert str(error.value).startswith(words) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_the_machine_is_recorded_once(make, tmp_path, monkeypatch):
    make()
    noted = json.loads((tmp_path / "machine.json").read_text(encoding="utf-8"))
    assert {"chip", "memory_bytes", "os", "packages", "git"} <= noted.keys()
    assert (noted["profile"], noted["power_source"]) == ("quick", "ac")
    monkeypatch.setattr(snapshot, "snapshot", lambda: pytest.fail("a second snapshot"))
    assert make(name="dcgan").report.run.machine == noted


def test_a_mac_without_a_gpu_has_the_reason_in_each_case(make, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    for devices, reasons in (("auto", 1), ("cpu", 0)):
        (case,) = make(devices=devices).cases()
        assert str(case._notes).count("PyTorch times no GPU here: no Metal GPU") == reasons


def other_device(experiment):
    device = Device("cpu")
    device.backend = "mock"
    experiment.devices.append(device)
    return device


def test_devices_alternate_and_memory_of_the_other_ones_is_freed(make):
    experiment = make()
    other = other_device(experiment)
    freed = []
    for device in experiment.devices:
        device.release = lambda device=device: freed.append(device.backend)
    cases = experiment.cases(batch_size=[8, 16])
    order = [(case["batch_size"], case.backend.backend, freed[-1]) for case in cases]
    pairs = [("cpu", "mock"), ("mock", "cpu")]
    assert order == [(size, *pair) for size in (8, 16) for pair in pairs] and len(freed) == 4

    def lost():
        raise RuntimeError("CUDA error: unspecified launch failure")

    other.release = lost
    (case,) = experiment.cases(batch_size=[32], on=experiment.devices[:1])
    with case:
        fit(case, 20)
    record = experiment.records[-1]
    assert record.status == "ok" and "of mock could not be freed: CUDA error" in record.note


def test_devices_that_keep_compiled_code_run_one_case_per_kernel(make, monkeypatch, capsys):
    monkeypatch.setenv(journal.ONE_CASE_ON, "mock")

    def kernel(refused=()):
        """Run the notebook once; return the batch size and backend of each tried case."""
        experiment = make()
        other_device(experiment)
        tried = []
        for case in experiment.cases(batch_size=[8, 16, 32]):
            tried.append((case["batch_size"], case.backend.backend))
            with case:
                if case["batch_size"] in refused:
                    raise TooBig("9 GB")
                case.metric("step_s", 1.0, "s")
        return tried

    # The CPU's cases share a kernel, and an untried case leaves nothing in it.
    assert kernel(refused=[8]) == [(8, "cpu"), (8, "mock"), (16, "cpu"), (16, "mock")]
    assert "batch_size=32: runs in a separate kernel" in capsys.readouterr().out
    assert kernel() == [(32, "cpu"), (32, "mock")]
    assert kernel() == []
    monkeypatch.delenv(journal.ONE_CASE_ON)  # as in JupyterLab
    experiment = make(repeat=1)
    other_device(experiment)
    assert len(list(experiment.cases(batch_size=[8, 16, 32]))) == 6


ROWS = [{"model": "medium"}, {"model": "small"}, {"model": "tiny"}]


@pytest.mark.parametrize(
    ("endings", "tried"),
    [
        ([MemoryError(), None], ["medium", "small"]),
        ([TooBig("9 GB")] * 3, ["medium", "small", "tiny"]),
        ([ValueError("a bug")], ["medium"]),  # a smaller model would not help
    ],
)
def test_no_smaller_variant_is_tried_after_the_first_that_fits(make, endings, tried):
    experiment = make()
    remaining = iter(endings)
    for case in experiment.first_that_fits(ROWS):
        with case:
            ending = next(remaining)
            if ending is not None:
                raise ending
            case.metric("step_s", 1.0, "s")
    assert [record.config["model"] for record in experiment.records] == tried
    again = [case["model"] for case in make().first_that_fits(ROWS)]
    assert again == (["medium"] if tried == ["medium"] else [])  # an error is tried again


def test_every_record_names_its_software_and_the_run_describes_it(make, monkeypatch):
    monkeypatch.undo()  # the real software
    monkeypatch.setenv("PYTORCH_KERNEL_CACHE_PATH", f"{Path.home()}/cache")
    monkeypatch.setenv("POMOLOGY_SECRET", "x")
    for number, policy in enumerate(["PASSIVE", "ACTIVE"]):
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        experiment = make(profile="smoke")
        run(experiment, number=[number])
    names = [record.software for record in experiment.records]
    known = json.loads((experiment.out / "machine.json").read_text())["software"]
    assert list(known) == names and known[names[0]]["threads"] == torch.get_num_threads()
    environments = [known[name]["environment"] for name in names]
    assert [each["OMP_WAIT_POLICY"] for each in environments] == ["PASSIVE", "ACTIVE"]
    assert environments[0]["PYTORCH_KERNEL_CACHE_PATH"].startswith("set ")
    assert "POMOLOGY_SECRET" not in environments[0]
    # This is the package's version; PyTorch's own may be longer, such as 2.13.0+cu130.
    assert known[names[0]]["packages"]["torch"] == importlib.metadata.version("torch")
