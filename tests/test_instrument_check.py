"""The kit's check of itself: its functions, taken from the notebook, against devices, clocks and meters with faults.

Each check runs as a case of the notebook's own, so that what a test reads is what a record would say.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import test_tables
import torch
from fakes import Clock, SimulatedDevice, ThreadedDevice

from pomology import format
from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.experiment import experiment
from pomology.machine import snapshot as machine_snapshot
from pomology.report import compare, details
from pomology.report import page as report_page
from pomology.results.record import Record
from pomology.runner import parameters

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "this_machine" / "instrument_check.ipynb"
KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def assigns(node: ast.stmt, *names: str) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names


def definitions() -> dict:
    """What the notebook defines, with its default parameters; nothing is run."""
    scope = {name: parameter.default for name, parameter in parameters.declared(PATH).items()}
    for cell in nbformat.read(PATH, 4).cells:
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            tree = ast.parse(cell.source)
            tree.body = [node for node in tree.body if isinstance(node, KEPT) or assigns(node, "clock", "WAYS")]
            exec(compile(tree, PATH.name, "exec"), scope)
    return scope


class FakeDevice(devices_torch.TorchDevice):
    """A device that takes its fence from elsewhere, and computes on the processor."""

    def __init__(self, backend: str, synchronize=lambda: None):
        super().__init__("cpu")
        self.backend, self.kind, self.synchronize = backend, "cpu" if backend == "cpu" else "gpu", synchronize

    name = "Apple M0"

    def reset_peak_memory(self) -> None:
        """There is none to reset."""

    def peak_memory(self) -> dict:
        return {}


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Run one of the notebook's functions as a case on a device; returns its record."""
    monkeypatch.setattr(machine_snapshot, "conditions", lambda *_, **__: {"power_source": None, "flags": []})

    def run(name: str, backend: devices_torch.TorchDevice, **replaced) -> dict:
        monkeypatch.setattr(find, "find", lambda *_, **__: [backend])
        scope = definitions() | {"budget_s": 1.0} | replaced
        scope["experiment"] = experiment.Experiment("instrument_check", article="kit", out=str(tmp_path))
        # The functions look their names up in the scope that they were made in.
        scope["run"].__globals__.update(scope)
        scope["run"](name, scope["run"].__globals__[name])
        (record,) = [one for one in scope["experiment"].records if one.config["check"] == name]
        return record

    return run


# The clock ------------------------------------------------------------------------------------------------------------


def clock_of(times):
    return iter(times).__next__


def test_a_good_clock_passes(check):
    record = check("clock_moves", FakeDevice("cpu"), clock=clock_of(number * 1e-7 for number in range(50_000)))
    assert record.status == "ok" and "never went back in 49,999 readings" in record.note
    assert record.metrics["clock_step_s"].value == pytest.approx(1e-7, rel=1e-3)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((0.0 for _ in range(50_000)), "stands still"),
        ((number - 2 * (number == 40_000) for number in range(50_000)), "goes backwards"),
        ((number // 10_000 * 0.0156 for number in range(50_000)), "steps of 15.6 ms: too coarse"),
    ],
    ids=["frozen", "backwards", "coarse"],
)
def test_a_bad_clock_is_called_one(check, times, words):
    record = check("clock_moves", FakeDevice("cpu"), clock=clock_of(times))
    assert record.status == "mismatch" and words in record.reason


# Fences ---------------------------------------------------------------------------------------------------------------


class Launched:
    """Stands for torch: a tensor whose addition is a kernel of a simulated device."""

    def __init__(self, simulated: SimulatedDevice, seconds: float):
        self.simulated, self.seconds = simulated, seconds

    def zeros(self, *_, **__):
        return self

    def add_(self, _):
        self.simulated.launch(self.seconds)


@pytest.mark.parametrize(("fence_s", "block_s"), [(2e-4, 0.025), (2e-3, 0.2)])
def test_what_a_fence_costs_is_found(check, fence_s, block_s):
    simulated = SimulatedDevice(Clock(), launch_s=1e-6, fence_s=fence_s)
    record = check(
        "fence_cost", FakeDevice("mps", simulated.synchronize), clock=simulated.reading, torch=Launched(simulated, 1e-5)
    )
    assert record.status == "ok"
    found = {name: metric.value for name, metric in record.metrics.items()}
    assert found["fence_idle_s"] == pytest.approx(fence_s)
    assert found["tiny_kernel_s"] == pytest.approx(1e-5, rel=0.02)
    assert found["fence_behind_kernel_s"] == pytest.approx(fence_s, rel=0.02)
    assert f"of blocks of {format.seconds(block_s)}" in record.note


def test_a_fence_that_is_dear_behind_work_only_is_a_failure(check):
    """The kit judges by fences with nothing to wait for, so this one would spoil short steps unnoticed."""
    simulated = SimulatedDevice(Clock(), launch_s=1e-6, fence_s=1e-6)

    def synchronize():
        extra_s = 1e-3 * simulated.busy
        simulated.synchronize()
        simulated.clock.pass_s(extra_s)

    record = check(
        "fence_cost", FakeDevice("mps", synchronize), clock=simulated.reading, torch=Launched(simulated, 1e-5)
    )
    assert record.status == "mismatch" and "a fence costs 1.00 ms" in record.reason


# Another clock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratios", "status", "flags"),
    [
        ([1.01, 0.99] * 4, "ok", []),
        ([1.01, 0.99, 1.0, 5.0, 0.99, 1.01, 1.0, 1.0], "ok", []),  # one disturbed pair
        ([0.5, 2.0] * 4, "ok", ["too-noisy"]),
        ([1.05] * 8, "mismatch", []),
    ],
)
def test_clocks_that_differ_are_told_from_noise(check, ratios, status, flags):
    def ratio(case, function):
        return [number * 1e-3 for number in ratios], [1e-3] * len(ratios)

    record = check("agreement", FakeDevice("cpu"), ratio=ratio)
    assert (record.status, record.flags) == (status, flags)
    assert ("too wide to tell" in (record.note or "")) == bool(flags)
    trusted = {"mismatch": "no", "ok": "cannot be told" if flags else "yes"}[status]
    assert details.checks_table([record]).rows[0].cells[2] == trusted


def test_pairs_take_turns_and_have_the_same_threads(check, monkeypatch):
    order = []
    timer = SimpleNamespace(blocked_autorange=lambda min_run_time: SimpleNamespace(median=2.0))
    threads = set()

    def make(statement, globals, num_threads):
        order.append("theirs")
        threads.add(num_threads)
        return timer

    def measure(function, synchronize, budget_s):
        order.append("ours")
        return SimpleNamespace(seconds=SimpleNamespace(value=1.0))

    scope = definitions()
    scope["ratio"].__globals__.update(pairs=4, Timer=make, calls=SimpleNamespace(measure=measure))
    case = SimpleNamespace(backend=SimpleNamespace(synchronize=None, threads=3))
    assert scope["ratio"](case, None) == [(1.0,) * 4, (2.0,) * 4]
    assert order == ["theirs", "ours", "ours", "theirs"] * 2
    assert threads == {3}, "PyTorch's timer takes one thread unless it is told"


# Work that nobody waited for ------------------------------------------------------------------------------------------


def products_of(launch, wait):
    return lambda case, least_s: (launch, wait)


def simulated_loop(simulated, **replaced):
    def wait():
        simulated.clock.now = max(simulated.clock.now, simulated.done_at) + 1e-5

    return {
        "products": products_of(lambda: simulated.launch(0.005), wait),
        "clock": simulated.reading,
        **replaced,
    }


def test_unfenced_work_of_an_asynchronous_device_is_caught(check):
    simulated = SimulatedDevice(Clock(), launch_s=1e-5, fence_s=2e-4)
    record = check("unfenced", FakeDevice("mps", simulated.synchronize), **simulated_loop(simulated))
    assert record.status == "ok" and "unfenced work is caught" in record.note
    found = {name: metric.value for name, metric in record.metrics.items()}
    assert found["loop_unfenced_s"] == pytest.approx(20e-5)
    assert found["loop_fenced_s"] == pytest.approx(0.1, rel=0.01)
    assert found["late_share"] == 0


@pytest.mark.parametrize("backend", ["mps", "cuda"])
def test_a_fence_that_does_not_wait_is_a_failure(check, backend):
    simulated = SimulatedDevice(Clock(), launch_s=1e-5)
    loop = simulated_loop(simulated, events=lambda case: None)
    record = check("unfenced", FakeDevice(backend, lambda: simulated.clock.pass_s(1e-6)), **loop)
    assert record.status == "mismatch" and "it does not wait" in record.reason


@pytest.mark.parametrize(
    ("backend", "status", "words"),
    [("mps", "mismatch", "shows nothing"), ("cpu", "ok", "the same, as it should be")],
)
def test_work_that_is_done_before_the_call_returns(check, backend, status, words):
    simulated = SimulatedDevice(Clock())
    loop = simulated_loop(simulated) | {"products": products_of(lambda: simulated.clock.pass_s(0.005), lambda: None)}
    record = check("unfenced", FakeDevice(backend, simulated.synchronize), **loop)
    assert record.status == status and words in (record.reason if status == "mismatch" else record.note)


def test_a_processor_that_comes_back_early_is_a_failure(check):
    simulated = SimulatedDevice(Clock())
    record = check("unfenced", FakeDevice("cpu", simulated.synchronize), **simulated_loop(simulated))
    assert record.status == "mismatch" and "which none should" in record.reason


def test_in_real_time_against_a_thread(check):
    with ThreadedDevice() as threaded:
        loop = {"products": products_of(lambda: threaded.launch(0.005), threaded.synchronize)}
        record = check("unfenced", FakeDevice("mps", threaded.synchronize), **loop)
    assert record.status == "ok"
    # It is a sum of sleeps, none of which ends early.
    assert record.metrics["loop_fenced_s"].value >= 20 * 0.005


@pytest.mark.parametrize(("share", "status"), [(0.99, "ok"), (0.5, "mismatch"), (1.2, "mismatch")])
def test_the_devices_own_events_are_asked_on_cuda(check, share, status):
    simulated = SimulatedDevice(Clock(), launch_s=1e-5, fence_s=1e-5)
    recorded = []

    class Event:
        def record(self):
            recorded.append(simulated.clock.now)

        def elapsed_time(self, other):
            return share * 20 * 0.005 * 1e3  # milliseconds

    loop = simulated_loop(simulated, events=lambda case: [Event(), Event()])
    record = check("unfenced", FakeDevice("cuda", simulated.synchronize), **loop)
    assert record.status == status and len(recorded) == 10
    assert record.metrics["device_events_ratio"].value == pytest.approx(share, rel=0.01)


# Memory ---------------------------------------------------------------------------------------------------------------


class Memory(FakeDevice):
    """Counters to which a tensor counts as these shares of its size; `stays` of it is still there when it is gone."""

    def __init__(self, backend: str, allocated: float = 1, reserved: float = 1, footprint: float = 1, stays: float = 0):
        super().__init__(backend)
        self.shares = {"allocated": allocated, "reserved": reserved, "footprint": footprint}
        self.held, self.stays = 0, stays

    def count(self, name: str) -> int:
        return int(50e6 + self.shares[name] * self.held)

    def peak_memory(self) -> dict:
        if self.backend == "cpu":
            return {}
        return {f"{name}_peak_bytes": self.count(name) for name in ("allocated", "reserved")}

    def fakes(self) -> dict:
        memory = self

        class Tensor:
            def __init__(self, count, device):
                memory.held = 4 * count

            def __del__(self):
                memory.held *= memory.stays

        class Watch:
            footprint_source = "physical footprint"

            def __init__(self, device):
                """Watches nothing."""

            def __enter__(self):
                return self

            def __exit__(self, *_):
                """Nothing to end."""

            def metrics(self):
                return {"footprint_peak_bytes": SimpleNamespace(value=memory.count("footprint"))}

        return {"torch": SimpleNamespace(ones=Tensor), "Telemetry": Watch}


def test_counters_that_count_a_known_tensor_pass(check):
    # Metal's allocator takes heaps of a gigabyte; on a Mac the GPU's memory is the process's.
    memory = Memory("mps", reserved=4)
    record = check("memory", memory, **memory.fakes())
    assert record.status == "ok", record.reason
    assert "allocated grew by 256 MB for 256 MB, and 0 % of it stayed behind" in record.note
    assert "footprint (physical footprint) grew by 256 MB" in record.note
    assert record.metrics["reserved_grew_bytes"].value == 1_024_000_000


def test_a_gpu_of_its_own_is_not_in_the_footprint(check):
    memory = Memory("cuda", footprint=0.01, stays=0.5)
    record = check("memory", memory, **memory.fakes())
    assert record.status == "ok"
    assert "footprint (physical footprint) grew by 2.56 MB" in record.note
    assert record.metrics["allocated_kept_bytes"].value == 128_000_000


@pytest.mark.parametrize(
    ("backend", "wrong", "counter"),
    [
        ("mps", {"allocated": 0.5}, "allocated"),
        ("cuda", {"reserved": 0}, "reserved"),
        ("cpu", {"footprint": 0}, "footprint"),
    ],
)
def test_a_counter_that_counts_something_else_is_a_failure(check, backend, wrong, counter):
    memory = Memory(backend, **wrong)
    record = check("memory", memory, **memory.fakes())
    assert record.status == "mismatch" and record.reason.startswith(counter)


# Energy ---------------------------------------------------------------------------------------------------------------


class Meter:
    """A counter that moves every `period_s`, in a time that passes with every reading of the clock."""

    rails = ("cpu", "gpu")

    def __init__(self, idle_w: float = 5.0, busy_w: float = 20.0, period_s: float = 0.1):
        self.now, self.joules, self.shown, self.shown_at = 0.0, 0.0, 0.0, 0.0
        self.idle_w, self.busy_w, self.period_s = idle_w, busy_w, period_s

    def pass_s(self, seconds: float, busy: bool = False) -> None:
        watts = self.busy_w if busy else self.idle_w
        while seconds > 1e-12:
            part = min(seconds, self.shown_at + self.period_s - self.now)
            self.now, self.joules, seconds = self.now + part, self.joules + watts * part, seconds - part
            if self.now >= self.shown_at + self.period_s - 1e-12:
                self.shown, self.shown_at = self.joules, self.now

    def clock(self) -> float:
        self.pass_s(1e-3)
        return self.now

    def energy_j(self) -> float:
        return self.shown

    def fakes(self) -> dict:
        return {
            "meters": lambda kind: ([self], {}),
            "clock": self.clock,
            "time": SimpleNamespace(sleep=self.pass_s),
            "products": products_of(lambda: self.pass_s(0.05, busy=True), lambda: None),
        }


def test_a_meter_is_described_and_its_joules_rise_with_work(check):
    record = check("energy", FakeDevice("mps"), **Meter().fakes())
    assert record.status == "ok" and "rails: cpu, gpu" in record.note
    found = {name: metric.value for name, metric in record.metrics.items()}
    assert found["meter_period_s"] == pytest.approx(0.1, rel=0.02)
    assert found["meter_step_j"] == pytest.approx(0.5, rel=0.02)
    assert found["power_waiting_w"] == pytest.approx(5, rel=0.15)  # one period at each end of the window
    assert found["power_working_w"] == pytest.approx(20, rel=0.15)


@pytest.mark.parametrize(
    ("meter", "words"),
    [
        ({"busy_w": 5.0, "idle_w": 5.1}, "no more power for work"),
        ({"period_s": 1e6}, "did not move in 2.00 s"),
    ],
)
def test_a_meter_that_does_not_see_work_or_stands_still_is_a_failure(check, meter, words):
    record = check("energy", FakeDevice("mps"), **Meter(**meter).fakes())
    assert record.status == "mismatch" and words in record.reason


def test_no_meter_is_said_with_its_reason(check):
    why = "this system lets only root read the RAPL energy counters"
    record = check("energy", FakeDevice("cpu"), meters=lambda kind: ([], {"rapl": why}))
    assert (record.status, record.reason) == ("unsupported", why)
    assert details.checks_table([record]).rows[0].cells[2:] == ("not to be had", why)


# Power and heat -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("power_source", "low_power_mode", "thermal_level", "note"),
    [
        ("battery", False, 0, "power source: battery, low-power mode: off, thermal level: 0"),
        (None, True, None, "low-power mode: on, power source: not told, thermal level: not told"),
        (None, None, None, None),
    ],
)
def test_power_and_heat_are_said_as_far_as_the_system_tells(check, power_source, low_power_mode, thermal_level, note):
    state = {"power_source": power_source, "low_power_mode": low_power_mode, "thermal_level": thermal_level}
    record = check("power_and_heat", FakeDevice("cpu"), conditions=lambda watch_s: state | {"load": 1.5})
    if note is None:
        assert record.status == "unsupported" and "no power source" in record.reason
    else:
        assert record.note == note


# The same results -----------------------------------------------------------------------------------------------------


def rounded(bits: int):
    """A product whose factors keep so many bits behind the point, as TF32 (10) and bf16 (7) do."""

    def multiply(a, b):
        mask = -(1 << (23 - bits))
        cut = [(matrix.view(torch.int32) & mask).view(torch.float32) for matrix in (a, b)]
        return cut[0] @ cut[1]

    return multiply


@pytest.mark.parametrize("bits", [7, 10, 23])
def test_bits_that_a_product_keeps_are_counted(bits):
    case = SimpleNamespace(device=torch.device("cpu"))
    assert definitions()["kept_bits"](case, rounded(bits)) == bits


def test_tf32_that_is_called_fp32_is_a_failure(check):
    record = check("parity", FakeDevice("cuda"), WAYS={"product": rounded(10), "convolution": rounded(23)})
    assert record.status == "mismatch"
    assert "a product keeps 10 bits, a convolution keeps 23 bits" in record.reason


def test_a_device_that_computes_the_same_passes(check):
    record = check("parity", FakeDevice("mps"))
    assert record.status == "ok" and "14 outputs and gradients agree" in record.note
    assert record.metrics["max_abs_error"].value < 1e-5


@pytest.mark.parametrize("name", ["outputs", "gradient of words", "gradient of convolution.weight"])
def test_a_device_with_one_wrong_gradient_is_a_failure(check, name):
    right = definitions()["passes"]
    wrong = SimpleNamespace(calls=0)

    def first_wrong(target):
        wrong.calls += 1
        found = right(target)
        if wrong.calls == 1:
            found[name] = found[name].copy()
            found[name].flat[0] += 2e-3 * abs(found[name]).max()
        return found

    record = check("parity", FakeDevice("mps"), passes=first_wrong)
    assert record.status == "mismatch" and name in record.reason
    assert wrong.calls == 2


def test_the_reference_leaves_threads_and_kernels_as_they_were():
    scope = definitions()
    torch.backends.mkldnn.enabled = True
    before = torch.get_num_threads(), True
    seen = []
    scope["reference"].__globals__["passes"] = lambda target: seen.append(
        (torch.get_num_threads(), torch.backends.mkldnn.enabled)
    )
    scope["reference"]()
    assert seen == [(1, False)] and (torch.get_num_threads(), torch.backends.mkldnn.enabled) == before


def test_no_rectifier_of_the_network_is_near_its_corner():
    """Else a rounding error could switch it on, and a right device would fail."""
    scope = definitions()
    seen = []
    scope["Small"].forward.__globals__["F"] = SimpleNamespace(
        **{**vars(torch.nn.functional), "relu": lambda x: (seen.append(x), torch.relu(x))[1]}
    )
    scope["passes"](torch.device("cpu"))
    assert seen[0].abs().min() > 1e-5


# Precisions and versions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "status"), [("fp64", "ok"), ("fp32", "mismatch")])
def test_a_precision_that_a_device_lacks_is_said_with_its_message(check, precision, status):
    backend = FakeDevice("mps")
    backend.precisions = lambda: {"fp32": None, "fp16": None, "fp64": None} | {precision: "Cannot convert"}
    record = check("precisions", backend)
    assert record.status == status and f"{precision}: Cannot convert" in (record.note or record.reason)


PACKAGES = {
    "torch": "2.13.0",
    "numpy": "1.26.4",
    "pyarrow": "25.0.1",
    "tensorflow": "2.16.2",
    "tensorflow-metal": "1.2.0",
    "zeus-apple-silicon": "1.1.0",
}


def gates(environment=None, packages=None, **facts) -> dict[str, bool]:
    mac = {"os": "macOS", "os_version": "15.5", "architecture": "arm64", "translated": False}
    snapshot = mac | facts | {"packages": PACKAGES | (packages or {})}
    rows = definitions()["gates"](snapshot, environment or {})
    assert all(isinstance(text, str) for row in rows for text in row[:3])
    return {what: bool(met) for what, _, _, met, _ in rows}


def test_the_gates_of_a_good_mac_are_all_met():
    assert all(gates().values())


HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"


@pytest.mark.parametrize(
    ("facts", "shut"),
    [
        ({"os_version": "13.2"}, {"PyTorch on MPS", "bf16 on MPS", "topk of more than 16 on MPS"}),
        ({"architecture": "x86_64", "translated": True}, {"MPS, Metal, MLX"}),
        ({"packages": {"torch": "2.12.1+cpu"}}, {"peaks of memory on MPS"}),
        ({"packages": {"pyarrow": "26.0.1"}}, {"NumPy and PyArrow"}),
        ({"packages": {"pyarrow": "26.0.1", "numpy": "2.0.2"}}, set()),
        ({"packages": {"tensorflow": "2.20.0"}}, {"TensorFlow with tensorflow-metal"}),
        ({"packages": {"zeus-apple-silicon": None}}, {"energy without root"}),
        ({"environment": {"KMP_DUPLICATE_LIB_OK": "TRUE"}}, {"one OpenMP"}),
        ({"environment": {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}}, {"MPS refuses what it lacks"}),
        ({"environment": {HIGH: "0.8"}}, set()),  # the kit sets the other
        ({"environment": {HIGH: "0.8", LOW: "1.0"}}, {"memory limits of MPS"}),
    ],
)
def test_a_gate_that_is_shut_is_named(facts, shut):
    assert {what for what, met in gates(**facts).items() if not met} == shut


def test_a_mac_s_gates_are_not_judged_elsewhere():
    scope = definitions()
    verdict = scope["verdict"]
    verdict.__globals__["experiment"] = SimpleNamespace(snapshot={"os": "Linux"})
    assert [verdict(False, True), verdict(False, False), verdict(True, False)] == ["not a Mac", "not met", "met"]
    verdict.__globals__["experiment"] = SimpleNamespace(snapshot={"os": "macOS"})
    assert [verdict(False, True), verdict(True, True)] == ["not met", "met"]


# The whole ------------------------------------------------------------------------------------------------------------


def test_a_check_that_breaks_has_a_record_and_stops_nothing(check):
    def broken(case):
        return 1 / 0

    record = check("broken", FakeDevice("cpu"), broken=broken)
    assert record.status == "error" and "ZeroDivisionError" in record.reason
    assert check("precisions", FakeDevice("cpu")).status == "ok"


def test_what_devices_share_is_checked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_snapshot, "conditions", lambda *_, **__: {"power_source": None, "flags": []})
    both = [FakeDevice("cpu"), FakeDevice("mps")]
    monkeypatch.setattr(find, "find", lambda *_, **__: both)
    scope = definitions()
    scope["experiment"] = experiment.Experiment("instrument_check", article="kit", out=str(tmp_path))
    scope["run"].__globals__.update(scope)
    asked = []

    def look(case):
        asked.append((case.config["check"], case.backend.backend))
        case.metric("looks", 1, "")
        return "seen"

    scope["run"]("each", look)
    scope["run"]("once", look, every_device=False)
    assert asked == [("each", "cpu"), ("each", "mps"), ("once", "cpu")]


# Its tables, and its place on the page --------------------------------------------------------------------------------


def record(check: str, backend: str = "cpu", status: str = "ok", **changes) -> dict:
    about = {"experiment": "instrument_check", "article": "kit", "case": f"torch-{backend} check={check}"}
    about |= {"config": {"check": check}, "backend": backend, "device": None, "flops_per_step": None, "blocks": {}}
    about |= {"status": status, "reason": None if status == "ok" else "because", "note": "a fence <takes> 12 ms"}
    metric = {"value": 0.0123, "unit": "s", "low": 0.012, "high": 0.0126, "n": 20, "how": "measured"}
    return test_tables.record(**about | {"metrics": {"fence_idle_s": metric}} | changes)


RECORDS = [
    record("fence"),
    record("fence", "mps", "mismatch"),
    record("energy meter", status="unsupported"),
    record("against another clock", flags=["too-noisy", "busy"]),
    record("memory counters", status="error", reason="ValueError: no"),
]


def test_the_table_of_checks_says_it_in_plain_words():
    table = details.checks_table(RECORDS)
    assert [row.cells for row in table.rows] == [
        ("Fence", "cpu", "yes", "a fence <takes> 12 ms"),
        ("Fence", "mps", "no", "because"),
        ("Energy meter", "cpu", "not to be had", "because"),
        ("Against another clock", "cpu", "cannot be told", "a fence <takes> 12 ms (too-noisy, busy)"),
        ("Memory counters", "cpu", "not known: error", "ValueError: no"),
    ]
    assert any(note.startswith("too-noisy: ") for note in table.notes)
    assert table.data[0]["fence_idle_s"] == 0.0123


def test_of_repeats_the_worst_is_shown():
    repeats = [record("fence"), record("fence", status="mismatch", repeat=1), record("fence", repeat=2)]
    (row,) = details.checks_table(repeats).rows
    assert row.cells[2:] == ("no (1 of 3 repeats)", "because")


def test_the_table_of_numbers_has_units_and_intervals():
    (row,) = details.numbers_table(RECORDS[:1]).rows
    assert row.cells == ("check fence, cpu", "fence idle", "12.3 ms", "12.0 ms to 12.6 ms", "20")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(256e6, "B", "256 MB"), (-300, "B", "-300 B"), (12.34, "W", "12.3 W"), (23, "bits", "23 bits"), (0.0, "", "0")],
)
def test_quantities_are_as_people_read_them(value, unit, text):
    assert format.quantity(value, unit) == text


def written(folder: Path, records: list[Record]) -> Path:
    folder.mkdir()
    (folder / "machine.json").write_text(json.dumps({"chip": "Apple M2 Ultra", "python": "3.11.9"}), encoding="utf-8")
    lines = "".join(json.dumps(record.line()) + "\n" for record in records)
    (folder / "instrument_check.jsonl").write_text(lines, encoding="utf-8")
    return folder


def test_the_page_shows_the_checks_and_their_sum(tmp_path):
    page = report_page.build(written(tmp_path / "run", RECORDS)).read_text(encoding="utf-8")
    assert "1 of 5 checks of the kit itself passed" in page
    assert "not passed: fence (mps), memory counters (cpu)" in page
    assert "cannot be told: against another clock (cpu)" in page and "not to be had here: energy meter (cpu)" in page
    assert "a fence &lt;takes&gt; 12 ms" in page and "<takes>" not in page


def test_a_comparison_of_runs_leaves_the_checks_out(tmp_path):
    runs = [written(tmp_path / name, RECORDS) for name in ("a", "b")]
    assert compare.side_by_side([compare.load(run) for run in runs]).rows == ()
