"""The notebook `peaks`: its counts by hand, and operators that are wrong."""

import fakes
import pytest
import torch
from records import metric

from pomology.devices.torch import TorchDevice
from pomology.experiment.case import Case
from pomology.experiment.experiment import Experiment
from pomology.measure import calls
from pomology.measure.clock import Block

pytestmark = pytest.mark.usefixtures("quiet_machine")
NOT_RUN = ("experiment = Experiment(", "experiment.table", "experiment.show")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Runs the notebook's cases with PyTorch on the processor; gives their records."""
    # It looks through all objects of the process, which takes a second among a test suite's.
    monkeypatch.setattr(TorchDevice, "release", lambda self: None)

    def run(sizes=(64,)):
        about = {"article": "kit", "devices": "cpu", "budget_s": 0.01, "out": str(tmp_path)}
        experiment = Experiment("peaks", **about)
        study, parameters, *sources = fakes.cells("peaks")
        scope = {"experiment": experiment}
        exec(f"{study}\n{parameters}", scope)
        scope |= {"precisions": ["fp32", "fp16"], "sizes": sizes, "megabytes": 16}
        scope |= {"budget_s": 0.01, "least_calls": 2, "least_s": 0.0, "limit_s": 20.0}
        for source in sources:
            if not any(words in source for words in NOT_RUN):
                exec(compile(source, "peaks.ipynb", "exec"), scope)
        return experiment.records

    return run


def test_the_bytes_and_operations_of_the_peaks_by_hand(measured, monkeypatch):
    timed = calls.Measurement(1.0, metric(0.5, 0.4, 0.8, "s"), (), "budget")
    monkeypatch.setattr(calls, "measure", lambda *_, **__: timed)
    records = {(r.config["operation"], r.precision): r for r in measured()}
    assert len(records) == 7 and {one.status for one in records.values()} == {"ok"}
    for name, arrays in {"triad": 3, "copy": 2, "dot": 2, "sum": 1}.items():
        moved = records[name, "fp32"].metrics["bytes_per_s"]
        assert moved.value == pytest.approx(arrays * 16e6 / 0.5)
    assert (moved.low, moved.high) == pytest.approx((16e6 / 0.8, 16e6 / 0.4))
    reached = records["matmul", "fp16"].metrics["flops_per_s"]
    assert reached.value == pytest.approx(2 * 64**3 / 0.5) and reached.unit == "FLOP/s"
    # 26 × 26 places of 8 × 256 images
    convolved = records["convolution", "fp32"].metrics["flops_per_s"].value
    assert convolved == pytest.approx(2 * (9 * 256) * (8 * 256 * 26 * 26) / 0.5)


def test_what_computes_something_else_or_nothing_is_no_peak(measured, monkeypatch):
    product, add, convolve = TorchDevice.product, torch.add, torch.conv2d
    wrong = {
        (TorchDevice, "product"): lambda self, precision, size: product(self, "fp32", size),
        (torch, "add"): lambda b, c, alpha, out: add(b, c, out=out),  # leaves the factor out
        (torch, "dot"): lambda b, c: (b[::2] * c[::2]).sum(),  # of half of both
        (torch, "conv2d"): lambda inputs, weights: convolve(inputs[:, ::2], weights[:, ::2]),
    }
    for (owner, name), function in wrong.items():
        monkeypatch.setattr(owner, name, function)
    status = {(r.config["operation"], r.precision): r.status for r in measured()}
    good = (("matmul", "fp32"), ("copy", "fp32"), ("sum", "fp32"))
    bad = (("matmul", "fp16"), ("triad", "fp32"), ("dot", "fp32"), ("convolution", "fp32"))
    assert status == dict.fromkeys(good, "ok") | dict.fromkeys(bad, "mismatch")


def test_sizes_go_on_while_the_rate_rises(measured, monkeypatch):
    sizes = (2048, 4096, 8192, 16384, 32768)
    reached = {torch.float32: (6, 5, 9, 9, 9), torch.float16: (2, 4, 7, 7.1, 9)}  # GFLOP/s
    kinds = {"fp32": torch.float32, "fp16": torch.float16}

    def measure(function, *_, **options):
        assert options["least_calls"] == 2 and options["least_s"] == 0
        result, seconds = function(), 10.0
        if getattr(result, "shape", None) == (2, 2):
            size = int(4 * result[0, 0].item())
            seconds = 2 * size**3 / (1e9 * reached[result.dtype][sizes.index(size)])
        middle = metric(seconds, 0.99 * seconds, 1.01 * seconds)
        return calls.Measurement(seconds, middle, (Block(1, seconds),) * 20, "budget")

    # With what is looked at: the kind of numbers, and the mean of a row.
    def small(self, precision, size):
        return lambda: torch.full((2, 2), size / 4, dtype=kinds[precision])

    monkeypatch.setattr(TorchDevice, "product", small)
    monkeypatch.setattr(Case, "require_time", lambda *_: None)
    monkeypatch.setattr(calls, "measure", measure)
    tried = [r for r in measured(sizes) if r.config["operation"] == "matmul"]
    wanted = {"fp32": sizes[:2], "fp16": sizes[:4]}  # rises by less than 2 % from 8192 to 16384
    shapes = [(kind, f"1x{size}x{size}") for kind, some in wanted.items() for size in some]
    assert [(r.precision, r.config["shape"]) for r in tried] == shapes
