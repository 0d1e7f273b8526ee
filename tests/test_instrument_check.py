"""The kit's check of itself: its functions, taken from the notebook, against devices, clocks and meters with faults.

Each check runs as a case of the notebook's own, so that what a test reads is what a record would say.
"""

from __future__ import annotations

import ast
import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import fakes
import nbformat
import numpy as np
import pytest
import torch
from fakes import Clock, SimulatedDevice
from pytest import approx

from pomology import format
from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.errors import PomologyError
from pomology.experiment import experiment
from pomology.machine import snapshot as machine_snapshot
from pomology.machine.energy import Absent
from pomology.machine.energy import Meter as Opened
from pomology.report import article, details
from pomology.report import page as report_page
from pomology.results.record import Record
from pomology.runner import parameters

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "this_machine" / "instrument_check.ipynb"
KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def assigned(node: ast.stmt) -> str:
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


def definitions() -> dict:
    """What the notebook defines, with its default parameters; nothing is run."""
    scope = {name: parameter.default for name, parameter in parameters.declared(PATH).items()}
    for cell in nbformat.read(PATH, 4).cells:
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            tree = ast.parse(cell.source)
            tree.body = [node for node in tree.body if isinstance(node, KEPT) or assigned(node) in ("clock", "WAYS")]
            exec(compile(tree, PATH.name, "exec"), scope)
    return scope


class FakeDevice(devices_torch.TorchDevice):
    """A device that takes its fence from elsewhere, and computes on the processor."""

    name = "Apple M0"

    def __init__(self, backend: str, synchronize=lambda: None):
        super().__init__("cpu")
        self.backend, self.kind, self.synchronize = backend, "cpu" if backend == "cpu" else "gpu", synchronize
        self.reset_peak_memory, self.peak_memory = lambda: None, dict


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Run one of the notebook's functions as a case on devices; returns the record of the first."""
    monkeypatch.setattr(machine_snapshot, "conditions", lambda *_, **__: {"power_source": None, "flags": []})
    verdicts = []

    def run(name: str, *devices: devices_torch.TorchDevice, every_device: bool = True, **replaced) -> Record:
        monkeypatch.setattr(find, "find", lambda *_, **__: list(devices))
        scope = definitions() | {"budget_s": 1.0} | replaced
        scope["experiment"] = experiment.Experiment("instrument_check", article="kit", out=str(tmp_path))
        scope["shown"] = SimpleNamespace(update=verdicts.append)
        # The functions look their names up in the scope that they were made in.
        scope["run"].__globals__.update(scope)
        scope["run"](name, scope["run"].__globals__[name], every_device)
        # The table at the top of the notebook has the check's verdict as soon as it ends.
        assert {row["check"] for row in verdicts[-1].data} >= {name}
        return next(one for one in scope["experiment"].records if one.config["check"] == name)

    return run


def clock(times) -> tuple:
    return "clock_moves", FakeDevice("cpu"), {"clock": iter(times).__next__}


def fence(fence_s: float, behind_s: float = 0.0) -> tuple:
    """A fence that costs so much, and more behind work; torch is a tensor whose addition is a simulated kernel."""
    device = SimulatedDevice(Clock(), launch_s=1e-6, fence_s=fence_s)

    def synchronize():
        extra_s = behind_s * device.busy
        device.synchronize()
        device.clock.pass_s(extra_s)

    tensor = SimpleNamespace(add_=lambda _: device.launch(1e-5))
    replaced = {"clock": device.reading, "torch": SimpleNamespace(zeros=lambda *_, **__: tensor)}
    return "fence_cost", FakeDevice("mps", synchronize), replaced


def loop(backend: str, waits: bool = True, at_once: bool = False, share: float | None = None) -> tuple:
    """A loop of products on a device whose fence waits or not, and whose own events tell a share of the time."""
    device = SimulatedDevice(Clock(), launch_s=0.0 if at_once else 1e-5, fence_s=1e-5)

    def fetch():
        device.clock.now = max(device.clock.now, device.done_at) + 1e-5

    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda other: share * 20 * 0.005 * 1e3)  # in ms
    replaced = {"clock": device.reading, "events": lambda case: [event, event] if share else None}
    launch = (lambda: device.clock.pass_s(0.005)) if at_once else lambda: device.launch(0.005)
    replaced["products"] = lambda case, least_s: (launch, fetch)
    synchronize = device.synchronize if waits else lambda: device.clock.pass_s(1e-6)
    return "unfenced", FakeDevice(backend, synchronize), replaced


class Memory(FakeDevice):
    """Counters to which a tensor counts as these shares of its size; `stays` of it is still there when it is gone."""

    def __init__(self, backend: str, stays: float, **shares: float):
        super().__init__(backend)
        self.shares, self.held, self.stays = {"allocated": 1, "reserved": 1, "footprint": 1} | shares, 0, stays
        names = () if backend == "cpu" else ("allocated", "reserved")
        self.peak_memory = lambda: {f"{name}_peak_bytes": self.count(name) for name in names}

    def count(self, name: str) -> int:
        return int(50e6 + self.shares[name] * self.held)


def memory(backend: str, stays: float = 0, **shares: float) -> tuple:
    counted = Memory(backend, stays, **shares)

    class Tensor:
        def __init__(self, count, device):
            counted.held = 4 * count

        def __del__(self):
            counted.held *= counted.stays

    peak = SimpleNamespace()
    peak.metrics = lambda: {"footprint_peak_bytes": SimpleNamespace(value=counted.count("footprint"))}
    names = {"torch": SimpleNamespace(ones=Tensor), "Sampler": lambda kind: nullcontext(peak)}
    names["machine_memory"] = SimpleNamespace(footprint=lambda: ("physical footprint", None))
    return "memory", counted, names


class Meter:
    """Two counters in a time that passes with every reading of the clock: of the CPU, which moves every `period_s`, and
    of the GPU, which tells a quarter of the power when it is read, and hides the other in the sum of both."""

    def __init__(self, idle_w: float, busy_w: float, period_s: float, stops_s: float):
        self.now, self.used, self.shown, self.shown_at = 0.0, 0.0, 0.0, 0.0
        self.idle_w, self.busy_w, self.period_s, self.stops_s = idle_w, busy_w, period_s, stops_s
        self.rails = {"cpu": 0.1, "gpu": 0.01}

    def pass_s(self, seconds: float, busy: bool = False) -> None:
        watts = self.busy_w if busy else self.idle_w
        while seconds > 1e-12:
            part = min(seconds, self.shown_at + self.period_s - self.now)
            self.now, self.used, seconds = self.now + part, self.used + watts * part, seconds - part
            if self.now >= self.shown_at + self.period_s - 1e-12:
                self.shown, self.shown_at = self.used if self.now < self.stops_s else self.shown, self.now

    def clock(self) -> float:
        self.pass_s(1e-3)
        return self.now

    def joules(self) -> dict[str, float]:
        return {"cpu": 0.75 * self.shown, "gpu": 0.25 * (self.used if self.period_s < 100 else 0.0)}


def energy(idle_w: float = 5.0, busy_w: float = 20.0, period_s: float = 0.1, stops_s: float = 1e9) -> tuple:
    meter = Meter(idle_w, busy_w, period_s, stops_s)
    products = (lambda: meter.pass_s(0.05, busy=True), lambda: None)
    opened = Opened(meter.rails, meter.joules, {})
    replaced = {"meter": lambda kind: opened, "clock": meter.clock, "products": lambda *_: products}
    return "energy", FakeDevice("mps"), replaced | {"time": SimpleNamespace(sleep=meter.pass_s)}


def heat(power_source, low_power_mode, thermal_level) -> tuple:
    state = {"power_source": power_source, "low_power_mode": low_power_mode, "thermal_level": thermal_level}
    return "power_and_heat", FakeDevice("cpu"), {"conditions": lambda: state | {"load": 1.5}}


def rounded(bits: int):
    """A product whose factors keep so many bits behind the point, as TF32 (10) and bf16 (7) do."""

    def multiply(a, b):
        mask = -(1 << (23 - bits))
        cut = [(matrix.view(torch.int32) & mask).view(torch.float32) for matrix in (a, b)]
        return cut[0] @ cut[1]

    return multiply


def parity(wrong: str = "", **ways: int) -> tuple:
    """A device of which one output or gradient is wrong, or whose products keep so many bits."""
    replaced = {"WAYS": {name: rounded(bits) for name, bits in ways.items()}} if ways else {}
    right, calls = definitions()["passes"], []

    def first_wrong(target):
        found = right(target)
        if not calls:
            found[wrong] = found[wrong].copy()
            found[wrong].flat[0] += 2e-3 * abs(found[wrong]).max()
        calls.append(target)
        return found

    return "parity", FakeDevice("mps"), replaced | ({"passes": first_wrong} if wrong else {})


def precisions(**absent: str) -> tuple:
    device = FakeDevice("mps")
    device.precisions = lambda: {"fp32": None, "fp16": None, "fp64": None} | absent
    return "precisions", device, {}


def no_meter() -> tuple:
    def absent(kind):
        raise Absent("only root may read it")

    return "energy", FakeDevice("cpu"), {"meter": absent}


CHECKS = {  # what it is put to -> status, words of the note or the reason, numbers
    "a good clock": (
        *(lambda: clock(number * 1e-7 for number in range(50_000)), "ok", "never went back in 49,999 readings"),
        {"clock_step_s": approx(1e-7, rel=1e-3)},
    ),
    "a frozen clock": (lambda: clock(0.0 for _ in range(50_000)), "mismatch", "stands still"),
    "a clock that goes back": (lambda: clock(n - 2 * (n == 40_000) for n in range(50_000)), "mismatch", "backwards"),
    "a coarse clock": (lambda: clock(n // 10_000 * 0.0156 for n in range(50_000)), "mismatch", "15.6 ms: too coarse"),
    "a cheap fence": (
        *(lambda: fence(2e-4), "ok", f"of blocks of {format.seconds(0.025)}"),
        {"fence_idle_s": approx(2e-4), "tiny_kernel_s": approx(1e-5, rel=0.02)},
    ),
    # The kit judges by fences with nothing to wait for, so this one would spoil short steps unnoticed.
    "a fence dear behind work": (lambda: fence(1e-6, behind_s=1e-3), "mismatch", "a fence costs 1.00 ms"),
    "unfenced work": (
        *(lambda: loop("mps"), "ok", "unfenced work is caught"),
        {"loop_unfenced_s": approx(20e-5), "loop_fenced_s": approx(0.1, rel=0.01), "late_share": 0},
    ),
    "a fence that does not wait": (lambda: loop("cuda", waits=False), "mismatch", "it does not wait"),
    "a GPU that works at once": (lambda: loop("mps", at_once=True), "mismatch", "shows nothing"),
    "a processor": (lambda: loop("cpu", at_once=True), "ok", "the same, as it should be"),
    "a processor that comes back early": (lambda: loop("cpu"), "mismatch", "which none should"),
    "own events": (lambda: loop("cuda", share=0.99), "ok", "", {"device_events_ratio": approx(0.99, rel=0.01)}),
    "own events that tell less": (lambda: loop("cuda", share=0.5), "mismatch", "own events"),
    # Metal's allocator takes heaps of a gigabyte; on a Mac the GPU's memory is the process's.
    "a Mac's memory": (
        *(lambda: memory("mps", reserved=4), "ok", "allocated grew by 256 MB for 256 MB, and 0 % of it stayed behind"),
        {"reserved_grew_bytes": 1_024_000_000},
    ),
    "a GPU's own memory": (
        *(lambda: memory("cuda", 0.5, footprint=0.01), "ok", "footprint (physical footprint) grew by 2.56 MB"),
        {"allocated_kept_bytes": 128_000_000},
    ),
    "allocated too little": (lambda: memory("mps", allocated=0.5), "mismatch", "allocated"),
    "no footprint": (lambda: memory("cpu", footprint=0), "mismatch", "footprint"),
    "a meter": (
        *(energy, "ok", "rails: cpu moves every 0.100 s or sooner, gpu moves every 1.00 ms or sooner; cpu by 0.37 J"),
        {"meter_period_s": approx(0.1, rel=0.02), "meter_step_j": approx(0.375, rel=0.02)}
        | {"power_waiting_w": approx(5, rel=0.01), "power_working_w": approx(19.4, rel=0.01)},  # the clock takes time
    ),
    "a meter that moves seldom": (
        *(lambda: energy(period_s=2.1), "ok", "rails: cpu moves every 2.10 s or sooner, gpu moves every 1.00 ms"),
        {"power_waiting_w": approx(5, rel=0.03), "power_working_w": approx(19.4, rel=0.03)},
    ),
    "a meter that stops": (lambda: energy(stops_s=4), "mismatch", "the counter of the cpu moved, and then no more"),
    "no meter": (no_meter, "unsupported", "only root may read it"),
    "a meter blind to work": (lambda: energy(5.1, 5.0), "mismatch", "no more power for work"),
    "a meter that stands still": (lambda: energy(period_s=1e6), "mismatch", "did not move in 6.00 s"),
    "battery": (
        *(lambda: heat("battery", False, 0), "ok"),
        "power source: battery, low-power mode: off, thermal level: 0",
    ),
    "a system that reports nothing": (lambda: heat(None, None, None), "unsupported", "no power source, no low-power"),
    "the same results": (parity, "ok", "14 outputs and gradients agree", {"product_bits": 23}),
    "TF32 called fp32": (
        *(lambda: parity(product=10, convolution=23), "mismatch"),
        "a product keeps 10 bits, a convolution keeps 23 bits",
    ),
    "a wrong gradient": (lambda: parity("gradient of convolution.weight"), "mismatch", "gradient of convolution"),
    "no fp64": (lambda: precisions(fp64="Cannot convert"), "ok", "fp64: Cannot convert"),
    "no fp32": (lambda: precisions(fp32="Cannot convert"), "mismatch", "fp32: Cannot convert"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_passes_what_is_right_and_names_what_is_wrong(check, name):
    make, status, words, *numbers = CHECKS[name]
    function, device, replaced = make()
    record = check(function, device, **replaced)
    assert record.status == status, record.reason
    assert words in (record.note if status == "ok" else record.reason)
    for metric, expected in (numbers[0] if numbers else {}).items():
        assert record.metrics[metric].value == expected


@pytest.mark.parametrize(
    ("ratios", "status", "flags", "trusted"),
    [
        ([1.01, 0.99, 1.0, 5.0, 0.99, 1.01, 1.0, 1.0], "ok", [], "yes"),  # one disturbed pair
        ([0.5, 2.0] * 4, "ok", ["too-noisy"], "cannot be told"),
        ([1.05] * 8, "mismatch", [], "no"),
    ],
)
def test_clocks_that_differ_are_told_from_noise(check, ratios, status, flags, trusted):
    record = check("agreement", FakeDevice("cpu"), ratio=lambda *_: ([ratio * 1e-3 for ratio in ratios], [1e-3] * 8))
    assert (record.status, record.flags) == (status, flags)
    assert ("too wide to tell" in (record.note or "")) == bool(flags)
    assert details.checks_table([record]).rows[0].cells[2] == trusted


def test_pairs_take_turns_and_have_the_same_threads():
    order, threads = [], set()

    def make(statement, globals, num_threads):
        order.append("theirs")
        threads.add(num_threads)
        return SimpleNamespace(blocked_autorange=lambda min_run_time: SimpleNamespace(median=2.0))

    def measure(function, synchronize, budget_s):
        order.append("ours")
        return SimpleNamespace(seconds=SimpleNamespace(value=1.0), blocks=())

    ratio = definitions()["ratio"]
    ratio.__globals__.update(pairs=4, Timer=make, calls=SimpleNamespace(measure=measure))
    case = SimpleNamespace(backend=SimpleNamespace(synchronize=None, threads=3))
    assert ratio(case, None, []) == [(1.0,) * 4, (2.0,) * 4]
    assert order == ["theirs", "ours", "ours", "theirs"] * 2
    assert threads == {3}, "PyTorch's timer takes one thread unless it is told"


def test_no_rectifier_of_the_network_is_near_its_corner():
    """Else a rounding error could switch it on, and a right device would fail."""
    scope, seen = definitions(), []
    relu = {"relu": lambda x: (seen.append(x), torch.relu(x))[1]}
    scope["Small"].forward.__globals__["F"] = SimpleNamespace(**vars(torch.nn.functional) | relu)
    scope["passes"](torch.device("cpu"))
    assert seen[0].abs().min() > 1e-5


PACKAGES = {"torch": "2.13.0", "numpy": "1.26.4", "pyarrow": "25.0.1", "tensorflow": "2.16.2"}
PACKAGES |= {"tensorflow-metal": "1.2.0", "zeus-apple-silicon": "1.1.0"}


@pytest.mark.parametrize(
    ("facts", "shut"),
    [
        ({}, set()),
        ({"os_version": "13.2"}, {"PyTorch on MPS, also in bf16"}),
        ({"architecture": "x86_64", "translated": True}, {"MPS, Metal, MLX"}),
        (
            {"packages": {"torch": "2.12.1+cpu", "tensorflow": "2.20.0", "zeus-apple-silicon": None}},
            {"peaks of memory on MPS", "TensorFlow with tensorflow-metal", "energy without root"},
        ),
        ({"packages": {"pyarrow": "26.0.1"}}, {"NumPy and PyArrow"}),
        ({"packages": {"pyarrow": "26.0.1", "numpy": "2.0.2"}}, set()),
        ({"environment": {"KMP_DUPLICATE_LIB_OK": "TRUE"}}, {"one OpenMP"}),
        ({"environment": {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}}, {"MPS refuses what it lacks"}),
    ],
)
def test_a_gate_that_is_shut_is_named(facts, shut):
    environment, packages = facts.pop("environment", {}), PACKAGES | facts.pop("packages", {})
    mac = {"os": "macOS", "os_version": "15.5", "architecture": "arm64", "translated": False}
    rows = definitions()["gates"](mac | facts | {"packages": packages}, environment)
    assert all(isinstance(text, str) for row in rows for text in row[:3])
    assert {what for what, _, _, met, _ in rows if not met} == shut
    verdict = definitions()["verdict"]
    for system, closed in (("Linux", "not a Mac"), ("macOS", "not met")):
        verdict.__globals__["experiment"] = SimpleNamespace(run=SimpleNamespace(machine={"os": system}))
        assert [verdict(False, True), verdict(False, False), verdict(True, False)] == [closed, "not met", "met"]


def test_a_check_that_breaks_has_a_record_and_what_devices_share_is_checked_once(check):
    both, asked = (FakeDevice("cpu"), FakeDevice("mps")), []

    def look(case):
        asked.append((case.config["check"], case.backend.backend))
        case.metric("looks", 1, "")
        return "seen"

    record = check("broken", *both, broken=lambda case: 1 / 0)
    assert record.status == "error" and "ZeroDivisionError" in record.reason
    check("each", *both, each=look)
    check("once", *both, once=look, every_device=False)
    assert asked == [("each", "cpu"), ("each", "mps"), ("once", "cpu")]


def record(check: str, backend: str = "cpu", status: str = "ok", **changes) -> Record:
    about = {"experiment": "instrument_check", "article": "kit", "case": f"torch-{backend} check={check}"}
    about |= {"config": {"check": check}, "backend": backend, "note": "a fence <takes> 12 ms", "status": status}
    about |= {"reason": None if status == "ok" else "because"}
    metric = {"value": 0.0123, "unit": "s", "low": 0.012, "high": 0.0126, "n": 20}
    return fakes.record(**about | {"metrics": {"fence_idle_s": metric}} | changes)


RECORDS = [
    record("fence"),
    record("fence", "mps", "mismatch"),
    record("energy meter", status="unsupported"),
    record("against another clock", flags=["too-noisy", "busy"]),
    record("memory counters", status="error", reason="ValueError: no"),
]


def test_the_tables_of_checks_and_numbers_say_it_in_plain_words():
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
    repeats = [record("fence"), record("fence", status="mismatch", repeat=1), record("fence", repeat=2)]
    (row,) = details.checks_table(repeats).rows  # the worst is shown
    assert row.cells[2:] == ("no (1 of 3 repeats)", "because")
    (row,) = details.numbers_table(RECORDS[:1]).rows
    assert row.cells == ("check fence, cpu", "fence idle", "12.3 ms", "12.0 ms to 12.6 ms", "20")


def test_a_page_shows_the_checks_their_sum_and_how_much_two_runs_of_the_same_thing_differ(tmp_path, undrawn):
    unknown = "How much two runs of the same thing differ here was not measured (notebook instrument_check does)."
    known = "differ here within a process by 1.2 % and between two by 4.6 % (cpu); 90 % of pairs differ by less."
    note = "A ± within one process may be smaller than this: two runs of the same thing differ here by 4.6 %."
    share = {"value": 0.0123, "unit": "", "low": None, "high": None, "n": 6}
    metrics = {"same_process_difference": share, "between_process_difference": share | {"value": 0.0456}}
    epoch = {"value": 4.5, "unit": "s", "low": 4.4, "high": 4.6, "n": 20}  # ± 2.2 %

    def journal(*records: Record) -> None:
        for one in records:
            with open(tmp_path / f"{one.experiment}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(one.line()) + "\n")

    def pages() -> list[str]:
        report_page.build(tmp_path)
        texts = ((tmp_path / name).read_text(encoding="utf-8") for name in ("index.html", "vae.html"))
        return [text.replace("\xa0", " ") for text in texts]

    (tmp_path / "machine.json").write_text(json.dumps({"chip": "Apple M2 Ultra", "python": "3.11.9"}))
    cells = [nbformat.v4.new_markdown_cell("# VAE")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "vae.ipynb")
    journal(*RECORDS, fakes.record(experiment="vae", config={"batch_size": 128}, metrics={"epoch_s": epoch}))
    index, vae = pages()
    assert unknown in index and unknown in vae and note not in index
    for word, count, names in (
        ("yes", 1, ""),
        ("no", 1, "fence (mps)"),
        ("not known: error", 1, "memory counters (cpu)"),
        ("cannot be told", 1, "against another clock (cpu)"),
        ("not to be had", 1, "energy meter (cpu)"),
    ):
        row = index.replace("\xa0", " ").partition(f"<td>{word}</td><td>{count} of 5 checks of the kit itself</td>")[2]
        assert row and names in row[:200]
    assert "a fence &lt;takes&gt; 12 ms" in index and "<takes>" not in index
    journal(record("same thing twice", metrics=metrics))
    index, vae = pages()
    assert all(known in page and unknown not in page for page in (index, vae)) and note in index
    wide = article.article_table("vae", [fakes.record(experiment="vae", metrics={"epoch_s": epoch | {"high": 6.0}})])
    assert details.with_difference(wide, [record("same thing twice", metrics=metrics)]) is wide


def test_the_same_thing_timed_twice_says_by_how_much_two_of_a_kind_differ(check):
    # Of logarithms that scatter by 1 and by 5 % nine pairs in ten differ by less, on 2,000 machines.
    by_how_much, normal = definitions()["by_how_much"], np.random.default_rng(1).normal
    for scatter in (0.01, 0.05):
        looks, pairs = np.exp(normal(0, scatter, (2000, 6))), normal(0, scatter, (2000, 2))
        less = [abs(x - y) < math.log1p(by_how_much(look)) for look, (x, y) in zip(looks, pairs, strict=True)]
        assert np.mean(less) == approx(0.9, abs=0.02)

    times = {"cpu": iter([1.0, 1.01] * 3), "fresh": iter([1.0, 1.1] * 3)}
    asked = []

    def step_s(kind):
        asked.append(kind)
        return next(times[kind])

    step = SimpleNamespace(step_s=lambda *_: step_s("cpu"), step_in_fresh_process=lambda *_: step_s("fresh"))
    record = check("twice", FakeDevice("cpu"), launches=step)
    assert asked == ["cpu", "fresh"] * 6  # in turn
    same, between = (record.metrics[f"{name}_difference"] for name in ("same_process", "between_process"))
    # Six values ± d: standard deviation d sqrt(6/5), of a difference sqrt(2) of that; t of 0.9 with 5 degrees is 2.015.
    assert same.value == approx(math.expm1(2.015 * math.sqrt(2.4) * math.log(1.01) / 2), rel=1e-3) and same.n == 6
    assert between.value == approx(math.expm1(2.015 * math.sqrt(2.4) * math.log(1.1) / 2), rel=1e-3)
    assert "within a process by up to 1.6 %" in record.note and "between two by up to 16 %" in record.note


def test_a_device_that_one_process_holds_alone_has_no_difference_between_two(check):
    def fails(*_):
        raise PomologyError("it ended with status 1: busy")

    step = SimpleNamespace(step_s=lambda *_: 1.0, step_in_fresh_process=fails)
    record = check("twice", FakeDevice("cpu"), launches=step)
    assert record.status == "ok" and "between two not measured: it ended with status 1: busy" in record.note
    assert "same_process_difference" in record.metrics and "between_process_difference" not in record.metrics
