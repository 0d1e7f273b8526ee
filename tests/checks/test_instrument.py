"""The instrument check against planted faults; each check runs as a case of the notebook."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import records
import torch
from declared import of
from fakes import Clock, SimulatedDevice
from notebook_code import definitions

from pomology.checks import instrument
from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.errors import PomologyError
from pomology.experiment import experiment
from pomology.machine.energy import Meter as Opened
from pomology.report import article

BUDGET = {"budget_s": 1.0}
MARGIN = {"margin": 0.02}


class FakeDevice(devices_torch.TorchDevice):
    """A device with a given fence, which computes on the CPU."""

    name = "Apple M0"

    def __init__(self, backend: str, synchronize=lambda: None):
        super().__init__("cpu")
        self.backend = backend
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.synchronize = synchronize
        self.reset_peak_memory = lambda: None
        self.peak_memory = dict
        self.free_memory = lambda: 2**20


@pytest.fixture
def check(tmp_path, monkeypatch, quiet_machine):
    """Run one check as a case on a device; returns its record."""

    def run(function, device: FakeDevice, settings: dict, **replaced):
        for name, value in replaced.items():
            monkeypatch.setattr(instrument, name, value)
        monkeypatch.setattr(find, "find", lambda *_, **__: [device])
        own = experiment.Experiment("instrument_check", article="kit", out=str(tmp_path))
        for case in own.cases([{"check": "this"}]):
            with case:
                answer = function(case, **settings)
                case.note(*([answer] if isinstance(answer, str) else answer))
        (record,) = own.records
        return record

    return run


# What a test makes: a check, a device, settings of the check, and what is replaced in the module.


def clock(step) -> tuple:
    replaced = {"clock": map(step, range(50_000)).__next__}
    moves = definitions("instrument_check", requirements=())["clock_moves"]
    return moves, FakeDevice("cpu"), {}, replaced


def fence(fence_s: float, behind_s: float = 0.0) -> tuple:
    """A fence that costs so much, and more after work, on a device with a kernel of 10 µs."""
    device = SimulatedDevice(Clock(), launch_s=1e-6, fence_s=fence_s)

    def synchronize():
        extra_s = behind_s * device.busy
        device.synchronize()
        device.clock.pass_s(extra_s)

    tensor = SimpleNamespace(add_=lambda _: device.launch(1e-5))
    replaced = {"clock": device.clock, "torch": SimpleNamespace(zeros=lambda *_, **__: tensor)}
    return instrument.fence, FakeDevice("mps", synchronize), BUDGET | MARGIN, replaced


def loop(backend: str, waits: bool = True, at_once: bool = False) -> tuple:
    """A loop of products of 5 ms on a device whose fence waits or not."""
    device = SimulatedDevice(Clock(), launch_s=0.0 if at_once else 1e-5, fence_s=1e-5)

    def fetch():
        device.clock.now = max(device.clock.now, device.done_at) + 1e-5

    def launch():
        (device.clock.pass_s if at_once else device.launch)(0.005)

    synchronize = device.synchronize if waits else lambda: device.clock.pass_s(1e-6)
    products = (launch, fetch)
    replaced = {"clock": device.clock, "events": lambda _: None, "products": lambda *_: products}
    return instrument.unfenced, FakeDevice(backend, synchronize), BUDGET, replaced


def memory(backend: str, **shares: float) -> tuple:
    """Counters to which a tensor counts as these shares of its size."""
    shares = {"allocated": 1, "reserved": 1, "footprint": 1} | shares
    held = [0]

    def count(name: str) -> int:
        return int(50e6 + shares[name] * held[0])

    class Tensor:
        def __init__(self, numbers, device):
            held[0] = 4 * numbers

        def __del__(self):
            held[0] = 0

    device = FakeDevice(backend)
    names = () if backend == "cpu" else ("allocated", "reserved")
    device.peak_memory = lambda: {f"{name}_peak_bytes": count(name) for name in names}

    def sampler(kind):
        peak = SimpleNamespace(value=count("footprint"))
        return nullcontext(SimpleNamespace(metrics={"footprint_peak_bytes": peak}))

    replaced = {"torch": SimpleNamespace(ones=Tensor), "Sampler": sampler}
    return instrument.memory, device, {"megabytes": 256}, replaced


def energy(idle_w=5.0, busy_w=20.0, period_s=0.1, stops_s=1e9) -> tuple:
    """A meter that moves every so many seconds, in a time that passes with each clock reading."""
    clock, used_j, shown = Clock(), [0.0], [0.0]

    def pass_s(seconds: float, watts: float = idle_w) -> None:
        before = clock.now
        clock.pass_s(seconds)
        used_j[0] += watts * seconds
        if before // period_s != clock.now // period_s and clock.now < stops_s:
            shown[0] = used_j[0]

    def reading() -> float:
        pass_s(1e-3)
        return clock.now

    opened = Opened({"cpu": 0.1}, lambda: {"cpu": shown[0]})
    products = (lambda: pass_s(0.05, busy_w), lambda: None)
    replaced = {"meter": lambda kind: opened, "clock": reading, "products": lambda *_: products}
    replaced["time"] = SimpleNamespace(sleep=pass_s)
    return instrument.energy, FakeDevice("mps"), BUDGET, replaced


def in_tf32(a, b):
    """A product whose factors keep the 10 bits after the point that TF32 has."""
    cut = [(matrix.view(torch.int32) & -(1 << 13)).view(torch.float32) for matrix in (a, b)]
    return cut[0] @ cut[1]


def parity(wrong: str = "", **ways) -> tuple:
    """A device of which one gradient is wrong, or whose products lose bits."""
    right, devices = instrument.passes, []

    def first_wrong(target):
        arrays = right(target)
        if wrong and not devices:
            arrays[wrong] = arrays[wrong] + 2e-3 * abs(arrays[wrong]).max()
        devices.append(target)
        return arrays

    replaced = {"WAYS": instrument.WAYS | ways, "passes": first_wrong}
    return instrument.parity, FakeDevice("mps"), {}, replaced


def agreement(*rounds: list[float]) -> tuple:
    """Two clocks of such ratios; all later rounds are as the last one."""
    left = [*rounds]

    def both_clocks(*_):
        ratios = left.pop(0) if len(left) > 1 else left[0]
        return [ratio * 1e-3 for ratio in ratios], [1e-3] * len(ratios), [1e-3] * len(ratios)

    settings = BUDGET | MARGIN | {"pairs": len(rounds[0])}
    return instrument.agreement, FakeDevice("cpu"), settings, {"both_clocks": both_clocks}


def test_the_difference_that_90_percent_of_pairs_do_not_exceed(check):
    """Logarithms 0, 0.1, 0.2: deviation 0.1; Student's t of two degrees of freedom is 2.91999."""
    fresh = iter(math.exp(0.1 * number) for number in range(3))
    replaced = {"step_s": lambda *_: 1.0, "step_in_fresh_process": lambda *_: next(fresh)}
    settings = BUDGET | {"times": 3}
    record = check(instrument.twice, FakeDevice("cpu"), settings, **replaced)
    values = {name: estimate.value for name, estimate in record.metrics.items()}
    assert values["between_process_difference"] == pytest.approx(
        math.exp(2.91999 * math.sqrt(2) * 0.1) - 1, rel=1e-5
    )
    assert values["same_process_difference"] == 0
    assert record.note == "3 timings in one process, 3 in fresh processes"
    assert " less than 52 % on the CPU: " in instrument.variation([record])


def test_the_row_of_the_run_to_run_variation_has_its_number_of_all_repeats():
    """The geometric mean of 10, 20 and 40 % is 20 %. In an older journal the note has one's own."""
    old = "Two runs of the same training step differ by about 40 % in one process (5 timings)"
    checked = [
        records.record(
            "instrument_check",
            {instrument.VARIATION: records.metric(share, unit="")} if share else {},
            {"check": instrument.TWICE if share else "clock"},
            repeat=repeat,
            note=old if share == 0.4 else "3 timings",
            backend=backend,
        )
        for backend in ("cpu", "mps")
        for repeat, share in enumerate((0.1, 0.2, 0.4, 0))
    ]
    shown = article.article_table(of("instrument_check"), checked)
    rows = instrument.with_variation(shown, checked).rows
    assert {row.data["backend"] for row in rows} == {"cpu", "mps"}
    for row in rows:
        number = "90 % of pairs of single runs of a training step, each in a fresh process, differ "
        number += "by less than 20 %; 3 of 3 repeats"
        twice = row.cells["Check"] == instrument.TWICE
        assert row.cells["Notes"] == (number if twice else "3 timings")


def test_a_device_for_one_process_has_no_run_to_run_variation(check):
    def busy(*_):
        raise PomologyError("the device is in use")

    replaced = {"step_s": lambda *_: 1.0, "step_in_fresh_process": busy}
    record = check(instrument.twice, FakeDevice("cpu"), BUDGET | {"times": 2}, **replaced)
    assert "between_process_difference" not in record.metrics
    assert record.note.endswith("0 in fresh processes: not measured: the device is in use")


GOES_BACK = [number - 2 * (number == 40_000) for number in range(50_000)]
# What is checked, the status, and words of the note or the reason.
CHECKS = [
    (lambda: clock(lambda number: number * 1e-7), "ok", "never went back"),
    (lambda: clock(lambda number: 0.0), "mismatch", "does not move"),
    (lambda: clock(GOES_BACK.__getitem__), "mismatch", "backwards"),
    (lambda: clock(lambda number: number // 10_000 * 0.0156), "mismatch", "too coarse"),
    (lambda: fence(2e-4), "ok", "a synchronization takes 0.200 ms"),
    # Blocks are as long as a fence with nothing to wait for allows: this one spoils short steps.
    (lambda: fence(1e-6, behind_s=1e-3), "mismatch", "a synchronization costs 1.00 ms"),
    (lambda: loop("mps"), "ok", "unfinished work is noticed"),
    (lambda: loop("cuda", waits=False), "mismatch", "it does not wait"),
    (lambda: loop("mps", at_once=True), "mismatch", "shows nothing"),
    (lambda: loop("cpu", at_once=True), "ok", "equal, as expected"),
    (lambda: loop("cpu"), "mismatch", "before its work was done"),
    # Metal's allocator takes heaps of a gigabyte.
    (lambda: memory("mps", reserved=4), "ok", "allocated grew by 256 MB"),
    (lambda: memory("mps", allocated=0.5), "mismatch", "allocated"),
    (lambda: memory("cpu", footprint=0), "mismatch", "footprint"),
    (lambda: energy(), "ok", "idle 5.0"),
    (lambda: energy(stops_s=4), "mismatch", "stopped updating"),
    (lambda: energy(5.1, 5.0), "mismatch", "is not above idle power"),
    (lambda: energy(period_s=1e6), "mismatch", "did not change in"),
    # One disturbed pair is no difference.
    (lambda: agreement([1.01, 0.99, 1.0, 5.0, 0.99, 1.01, 1.0, 1.0]), "ok", "matmul 1.0"),
    (lambda: agreement([0.5, 2.0] * 4), "ok", "too wide for a verdict"),
    (lambda: agreement([0.825, 0.87, 0.92, 0.94, 0.93, 0.958]), "ok", "too wide for a verdict"),
    (lambda: agreement([1.9, 2.2, 2.0, 2.1, 2.0, 1.95]), "mismatch", "it should be 1"),
    (lambda: agreement([1.05] * 8), "mismatch", "it should be 1"),
    # A disturbance passes, a wrong clock does not.
    (lambda: agreement([0.9] * 8, [0.9] * 8, [1.0] * 8), "ok", "training step 1.000"),
    (lambda: agreement([1.0] * 8, [0.9] * 8), "mismatch", "3 times: training step 0.900"),
    (lambda: parity(), "ok", "14 outputs and gradients agree"),
    (lambda: parity(product=in_tf32), "mismatch", "matmul keeps 10"),
    (lambda: parity("gradient of words"), "mismatch", "gradient of words"),
]


@pytest.mark.parametrize(("make", "status", "words"), CHECKS)
def test_a_check_passes_what_is_right_and_names_what_is_wrong(check, make, status, words):
    function, device, settings, replaced = make()
    record = check(function, device, settings, **replaced)
    assert record.status == status, record.reason
    assert words in (record.note if status == "ok" else record.reason)
