"""First launches: what is timed, with a device that tests command; and for real on the CPU."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from fakes import Clock

from pomology.errors import PomologyError
from pomology.models import first_launches


class Device:
    """Starting takes 10 s, compiling 2 s, a first launch 0.5 s and a later one 0.1 s."""

    def __init__(self, backend: str):
        self.backend = backend
        self.clock = Clock()
        self.events: list[str] = []

    @contextlib.contextmanager
    def context(self):
        self.events.append("scope")
        yield

    def precisions(self):
        self.clock.pass_s(10)
        self.events.append("started")

    def synchronize(self):
        self.clock.pass_s(0.01)

    def kernel(self, name: str, compile_s: float = 0.0):
        def launch():
            first = name not in self.events
            self.clock.pass_s(compile_s + 0.5 if first else 0.1)
            self.events.append(name)

        return launch

    def metal_kernel(self):
        if self.backend == "mps":
            self.clock.pass_s(2)  # compiles here
            return self.kernel("a kernel")
        return self.kernel("a kernel", compile_s=2) if self.backend == "mlx-gpu" else None


@pytest.mark.parametrize(
    ("backend", "compile_s"),
    [
        ("mps", 2.01),  # compiled before, so apart
        ("cuda", None),  # nothing to compile
        ("mlx-gpu", 2.51),  # one's own kernel is compiled and launched in one
    ],
)
def test_a_cold_launch_is_the_first_and_nothing_else(monkeypatch, backend, compile_s):
    device = Device(backend)
    monkeypatch.setattr(first_launches, "addition", lambda device: device.kernel("an addition"))
    monkeypatch.setattr(first_launches, "metal_kernel", Device.metal_kernel)
    found = first_launches.first(device, device.clock)
    assert found["launch_cold_s"] == pytest.approx(0.51)
    assert found.get("compile_s") == (compile_s and pytest.approx(compile_s))
    assert device.events[:2] == ["scope", "started"]  # before any launch


def test_cold_launches_are_made_in_processes_of_their_own():
    (found,) = first_launches.cold("mlx", "cpu", 1)
    assert set(found) == {"launch_cold_s"} and 0 < found["launch_cold_s"] < 60
    what = "the process of a first launch on nonsense ended with status 1"
    with pytest.raises(PomologyError, match=rf"^{what}: \S") as error:
        first_launches.cold("mlx", "nonsense", 1)
    assert "\n" not in str(error.value)


def test_the_smallest_kernel_of_an_apple_gpu_has_one_thread(monkeypatch):
    """PyTorch starts a thread per element of the first tensor; MLX is given a grid of one."""
    mps = SimpleNamespace(framework="torch", backend="mps", handle="cpu")
    started = []
    shader = SimpleNamespace(pomology_one=lambda number: started.append(number.numel()))
    monkeypatch.setattr(torch.mps, "compile_shader", lambda source: shader)
    launch, said = first_launches.smallest_kernel(mps)
    launch()
    assert (started, said) == ([1], "a Metal kernel of one thread")
    import_of_mlx = pytest.importorskip("mlx.core")
    given = []
    kernel = lambda **named: given.append((named["grid"], named["threadgroup"]))  # noqa: E731
    monkeypatch.setattr(import_of_mlx.fast, "metal_kernel", lambda **_: kernel)
    monkeypatch.setattr(first_launches.sys, "platform", "darwin")
    mlx = SimpleNamespace(framework="mlx", backend="mlx-gpu", handle=import_of_mlx.cpu)
    mlx.dispatch = lambda function: function
    launch, said = first_launches.smallest_kernel(mlx)
    launch()
    assert (given, said) == ([((1, 1, 1), (1, 1, 1))], "a Metal kernel of one thread")
