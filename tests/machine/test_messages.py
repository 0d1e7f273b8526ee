"""Messages of frameworks, one by one: the status of a case, and what is needed.

`fixtures/messages.csv` has a line per message: the framework and its version, the exception's
class, and where the text comes from: a file of an installed package, a file or an issue of a public
repository, `public reports` of people who had it, or `not verified`.
"""

import builtins
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pomology.errors import Unsupported
from pomology.experiment.outcome import of_exception
from pomology.machine import messages
from pomology.machine.energy import Absent
from pomology.paths import read_csv, root

OTHER_GPU = "CUDA error: no kernel image is available for execution on the device"
NEEDS = "needs a build for this GPU; PyTorch's builds for CUDA 12.6 (cu126) have sm_50 to sm_90"

RAISED = read_csv(root() / "tests" / "fixtures" / "messages.csv")


# Programs whose version a report does not tell, and messages of no framework.
UNTRACED = ("not verified", "public reports")
OTHERS = {"any", "pomology", "glibc", "dyld", "macOS", "tensorflow"}


def kind(name, *bases):
    """Return an exception class of a framework that this test does not import."""
    return type(name, bases or (Exception,), {})


# TensorFlow's errors have one base, Triton's another; those of torch.compile are RuntimeErrors.
FAILED = kind("OpError")
TRITON = kind("TritonError")
BACKEND = kind("BackendCompilerFailed", RuntimeError)
KINDS = {"Unsupported": Unsupported, "NoNumbers": kind("NoNumbers", Unsupported), "Absent": Absent}
KINDS |= {"OutOfMemoryError": torch.OutOfMemoryError, "AcceleratorError": torch.AcceleratorError}
KINDS |= {name: kind(name, TRITON) for name in ("PTXASError", "OutOfResources")}
KINDS |= {name: kind(name, RuntimeError) for name in ("CppCompileError", "TorchRuntimeError")}
KINDS |= {"BackendCompilerFailed": BACKEND, "InductorError": kind("InductorError", BACKEND)}
KINDS |= {
    name: kind(name, FAILED)
    for name in (
        "InternalError",
        "InvalidArgumentError",
        "NotFoundError",
        "UnimplementedError",
        "UnknownError",
    )
}


def text(raised):
    """Return a message of the table with its lines."""
    return raised["message"].replace(r"\n", "\n")


def raise_again(raised):
    """Return the exception of a line of the table."""
    return (KINDS | vars(builtins))[raised["exception"]](text(raised))


@pytest.mark.parametrize(
    "raised", RAISED, ids=lambda raised: f"{raised['exception']}-{raised['message']}"
)
def test_exceptions_have_their_statuses_and_say_what_is_needed(monkeypatch, raised):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 0))
    status, reason = of_exception(raise_again(raised))
    said, _, needed = reason.partition("; needs ")
    assert status == raised["status"] and "\n" not in reason
    assert raised["needs"] in needed and bool(needed) is bool(raised["needs"])
    assert not needed or said in text(raised)
    built = f"; PyTorch {torch.__version__} has sm_75, sm_90; this GPU is sm_60"
    assert reason.endswith(built) is ("a build for this GPU" in needed)


def test_each_pattern_of_the_table_decides_over_a_message():
    known = [
        ({each.__name__ for each in type(raise_again(raised)).__mro__}, text(raised))
        for raised in RAISED
        if raised["status"] != "error"
    ]
    for entry in messages.MESSAGES:
        carriers = {*entry.exceptions.split()}
        for pattern in entry.says:
            alone = entry._replace(says=(pattern,))
            assert any(kinds & carriers and alone.matches(said) for kinds, said in known), pattern


def installed(raised):
    """Return the file of an installed package that a line names as its source, or None."""
    source = raised["source"].partition(";")[0]
    package = find_spec(source.partition("/")[0]) if "/" in source else None
    if package is None or package.submodule_search_locations is None or " " in source:
        return None
    return Path(package.submodule_search_locations[0]).parent / source


@pytest.mark.parametrize(
    "raised",
    [raised for raised in RAISED if installed(raised)],
    ids=lambda raised: raised["message"],
)
def test_the_text_of_a_message_is_in_the_file_that_is_named_as_its_source(raised):
    path = installed(raised)
    if not path.exists():
        pytest.skip(f"this build has no {path.name}")
    if path.stat().st_size > 50e6:
        pytest.skip(f"{path.name} is too large to be read in each test run")
    contents = path.read_bytes()
    said = text(raised).encode()
    runs = [said[begin : begin + 14] for begin in range(len(said) - 13)]
    assert any(run in contents for run in runs), f"no 14 letters of it are in {path}"


def test_each_message_says_where_it_comes_from():
    assert all(raised["source"] for raised in RAISED)
    verified = [raised for raised in RAISED if raised["source"] not in UNTRACED]
    assert all(raised["version"] or raised["framework"] in OTHERS for raised in verified)


def test_a_build_for_other_gpus_names_both(monkeypatch):
    cuda = SimpleNamespace(is_available=lambda: True, get_arch_list=lambda: ["sm_80", "sm_90"])
    cuda.get_device_capability = lambda: (12, 0)
    torch = SimpleNamespace(__version__="2.14.1+cu130", cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    both = "; PyTorch 2.14.1+cu130 has sm_80, sm_90; this GPU is sm_120"
    assert messages.fault(OTHER_GPU) == f"{OTHER_GPU}; {NEEDS}{both}"
    assert messages.explain(OTHER_GPU, {"RuntimeError"}) == (
        "unsupported",
        f"{OTHER_GPU}; {NEEDS}{both}",
    )
    monkeypatch.delitem(sys.modules, "torch")
    assert messages.fault(OTHER_GPU) == f"{OTHER_GPU}; {NEEDS}"


def test_a_bug_is_no_fault_and_has_no_status():
    assert messages.fault("list index out of range") is None
    assert messages.explain("list index out of range", {"IndexError"}) is None


def test_a_line_that_only_begins_a_sentence_is_told_with_the_next_one():
    raised = BACKEND("backend='inductor' raised:\nLoweringException: no such layout\n  target: x")
    status, reason = of_exception(raised)
    assert status == "unsupported"
    assert reason == "backend='inductor' raised: LoweringException: no such layout"
    assert of_exception(RuntimeError("it failed:")) == ("error", "RuntimeError: it failed:")
