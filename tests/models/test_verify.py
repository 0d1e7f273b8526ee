"""The verification of a step, by a mock MPS with planted faults, and by one that only rounds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pomology.models import verify

TESTS = Path(__file__).parents[1]


def printed(script: Path, *arguments: str):
    """What a script of the tests prints in its last line, in a process with one thread."""
    paths = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def cases():
    return printed(Path(__file__).with_name("planted.py"))


def test_a_planted_fault_ends_as_a_mismatch_before_anything_is_timed(cases):
    right = {*verify.TOLERANCE, "rounding"}
    planted = {name: case for name, case in cases.items() if name not in right}
    assert len(planted) == 14
    for name, (status, reason, metrics, *_) in planted.items():
        assert status == "mismatch" and "step_s" not in metrics, (name, status, reason)
    assert "the update of" in planted["update"][1]
    assert "is not finite" in planted["matmul, a NaN"][1]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "rounding"])
def test_a_right_device_passes_and_what_was_verified_is_said(cases, precision):
    status, reason, metrics, note, flags = cases[precision]
    assert status == "ok", reason
    assert {"step_s", "proof_s"} <= set(metrics) and "unproved" not in flags
    assert note.startswith("verified against the CPU before it was timed")


class Sides:
    """Two devices of which the CPU takes 20 ms for a sample."""

    def __init__(self, clock, wrong_above=99, turned=()):
        self.clock, self.wrong_above, self.turned, self.sizes = clock, wrong_above, turned, []

    def gradients(self, size, seed, on_cpu=False, change=0.0):
        if on_cpu:
            self.clock[0] += 0.02 * size
        else:
            self.sizes.append(size)
        wrong = not on_cpu and (size > self.wrong_above or seed in self.turned)
        return {"the gradient of x": np.ones(4) + 0.1 * wrong + change}

    def restore(self):
        self.sizes.append("restored")


@pytest.fixture
def run(monkeypatch):
    """Verify a case of 64 samples with given sides; returns its notes."""

    def run(sides, budget_s=1.0, batch_size=64):
        notes = []
        backend = SimpleNamespace(kind="gpu", backend="mps", tf32=False)
        backend.reset_peak_memory = lambda: None
        case = SimpleNamespace(backend=backend, config={}, precision="fp32")
        case.experiment = SimpleNamespace(budget_s=budget_s)
        case.note, case.metric = lambda *note: notes.append(note), lambda *_: None
        monkeypatch.setattr(verify, "both_devices", lambda *_: sides)
        monkeypatch.setattr(verify.time, "perf_counter", lambda: sides.clock[0])
        verify.step(case, None, None, batch_size=batch_size)
        return notes

    return run


def test_a_batch_that_takes_the_cpu_too_long_is_verified_with_fewer_samples(run):
    sides = Sides([0.0])
    notes = run(sides)
    assert sides.sizes == [2, 50, "restored"]  # a second is enough for 50
    assert notes[-1] == ("verified with 50 of the 64 samples of a step", "unproved")
    assert len(run(Sides([0.0]), budget_s=2.0)) == 1


def test_rounding_turns_a_gradient_with_one_set_of_inputs_and_a_fault_with_all(run):
    run(Sides([0.0], turned=(0, 1)))
    with pytest.raises(verify.Mismatch, match=r"^the gradient of x .* in a step of 2 on the mps"):
        run(Sides([0.0], turned=(0, 1, 2)))
    with pytest.raises(verify.Mismatch, match="in a step of 50 on the mps"):
        run(Sides([0.0], wrong_above=2))


def test_a_cpu_is_not_compared_with_itself():
    assert verify.step(SimpleNamespace(backend=SimpleNamespace(kind="cpu")), None, None) is None
