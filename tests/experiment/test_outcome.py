"""Statuses of exceptions, and drift."""

import builtins

import numpy as np
import pytest
import torch

from pomology.errors import Unsupported
from pomology.experiment.outcome import drift, of_exception
from pomology.machine.energy import Absent
from pomology.paths import read_csv, root

RAISED = read_csv(root() / "tests" / "fixtures" / "messages.csv")
INTERNAL = type("InternalError", (type("OpError", (Exception,), {}),), {})  # as in TensorFlow
KINDS = {"Unsupported": Unsupported, "NoNumbers": type("NoNumbers", (Unsupported,), {})}
KINDS |= {"OutOfMemoryError": torch.OutOfMemoryError, "InternalError": INTERNAL, "Absent": Absent}


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: raised["message"])
def test_exceptions_have_their_statuses_and_say_what_is_needed(monkeypatch, raised):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 0))
    message = raised["message"].replace(r"\n", "\n")
    status, reason = of_exception((KINDS | vars(builtins))[raised["exception"]](message))
    said, _, needed = reason.partition("; needs ")
    assert status == raised["status"] and "\n" not in reason
    assert raised["needs"] in needed and bool(needed) is bool(raised["needs"])
    assert not needed or said in message
    built = f"; PyTorch {torch.__version__} has sm_75, sm_90; this GPU is sm_60"
    assert reason.endswith(built) is ("a build for this GPU" in needed)


@pytest.mark.parametrize("allocate", [torch.empty, np.empty])
def test_the_cpu_s_error_for_too_much_memory_is_out_of_memory(allocate):
    with pytest.raises((RuntimeError, MemoryError)) as error:
        allocate(10**15)
    assert of_exception(error.value)[0] == "out-of-memory"


def test_drift_is_the_change_between_thirds_above_their_noise():
    assert drift([1.0] * 17) is drift([0.0] * 18) is None
    assert drift([1.0] * 12 + [2.0] * 6) == pytest.approx(1.0)
    assert drift([2.0] * 7 + [1.0] * 14) == pytest.approx(-0.5)
    assert drift([2.0] * 6 + [9.0] * 6 + [2.0] * 6) == pytest.approx(3.5)  # and came back
    generator = np.random.default_rng(3)
    noise = generator.normal(1.0, 0.1, (400, 60))
    assert np.mean([abs(drift(times)) > 0.1 for times in noise]) <= 0.01
    slower = noise * np.where(np.arange(60) < 30, 1.0, 1.2)
    assert np.mean([abs(drift(times)) > 0.1 for times in slower]) >= 0.95
