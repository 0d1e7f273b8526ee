"""`make test` runs the tests in several processes, the slowest first; and what they share."""

import contextlib
import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest_plugins = ["processes"]

# Of this file, what it has of each notebook is a piece of work by itself.
BY_NOTEBOOK = "test_smoke.py"
# The slowest pieces, in this order; what is not here is quick. `pytest --durations=0` says what
# takes how long.
FIRST = ["test_batch.py", "test_twins.py", "[capabilities]", "[whisper_pretraining]", "[resnet50]"]
FIRST += ["[simclr]", "[instrument_check]", "[model_memory]", "[mlp_cnn_lstm", "[gpt2_small]"]
FIRST += ["test_fit.py", "test_fit_measured.py", "test_verify_deep.py", "test_typed.py"]
FIRST += ["test_on_a_phone.py", "test_prediction.py", "test_site.py", "test_workloads.py"]
FIRST += ["[bert_base]", "test_on_a_mac.py", "test_fleet.py", "test_keras.py", "test_verify.py"]
FIRST += ["test_today.py", "test_published_flops.py", "test_counts.py"]
FIRST += ["test_experiment.py", "test_removal.py", "test_device_check.py", f"{BY_NOTEBOOK}["]
# Takes over what the other pieces have measured.
LAST = "test_reached.py"

# For the worker processes, which start after this: glibc keeps freed memory, since to return it and
# to take it again costs a quarter of all CPU time of the tests.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
for variable, value in KEEP_MEMORY.items():
    os.environ.setdefault(variable, value)

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads that meet after every operator crawl where another process has their core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# As `find.prepare` sets it: a test that imports MLX by itself would refuse all later ones.
os.environ.setdefault("MLX_ENABLE_TF32", "0")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: a process for each core, two to four, and 4 GiB for each."""
    known = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    count = min(4, cores, psutil.virtual_memory().total // 2**32)
    return count if count > 1 else 0


def piece(nodeid: str) -> str:
    """What one process runs as a whole: a file, or what a file has of one notebook."""
    path, _, test = nodeid.partition("::")
    file = path.rpartition("/")[2]
    return f"{file}[{test.partition('[')[2]}" if file == BY_NOTEBOOK else file


def place(nodeid: str) -> int:
    """In the order of `FIRST`; `LAST` after all others."""
    name = piece(nodeid)
    if name == LAST:
        return len(FIRST) + 1
    return next((number for number, part in enumerate(FIRST) if part in name), len(FIRST))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The slowest first, so that in the end no process waits for another."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist=loadfile`: pieces in the order in which they are collected."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Pieces(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return piece(nodeid)

    config.option.loadscopereorder = False
    return Pieces(config, log)


@pytest.fixture(scope="module", autouse=True)
def quick_collection() -> Iterator[None]:
    """Every case collects garbage before it starts; the many objects of the imports are none."""
    gc.freeze()
    yield
    gc.unfreeze()


OWN_PLACE = tempfile.TemporaryDirectory(prefix="pomology-tests-")


@pytest.fixture(autouse=True)
def left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No case is marked because of the other tests."""
    monkeypatch.setattr("pomology.machine.calibration.calibrate", lambda: 0.0005)
    monkeypatch.setattr("pomology.machine.calibration.calibrate_gpu", lambda device: 0.005)
    monkeypatch.setattr("pomology.machine.other_programs.contended", lambda *_: False)
    monkeypatch.setattr("pomology.machine.other_programs.bursting", lambda *_: False)
    monkeypatch.setattr("pomology.machine.other_runs.PLACE", Path(OWN_PLACE.name))


@contextlib.contextmanager
def sockets_in_a_folder() -> Iterator[dict[str, str]]:
    """Settings of a KernelManager that speaks to its kernel through sockets in a folder.

    Ports are looked for before the kernel takes them, and of two processes that do so at a time,
    one may find them taken. The folder's name is short: a Mac allows 103 characters, of which its
    folder for temporary files has some 49.
    """
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        yield {"transport": "ipc", "ip": f"{folder}/k"}


@pytest.fixture
def sockets() -> Iterator[dict[str, str]]:
    with sockets_in_a_folder() as settings:
        yield settings


@pytest.fixture(autouse=True)
def own_lock(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Cases of two tests are no runs that disturb each other."""
    place = tmp_path_factory.mktemp("lock")
    monkeypatch.setattr("pomology.machine.other_runs.PLACE", place)


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing else runs; to find out about the real one takes seconds."""
    state = {"power_source": "ac", "power_mode": "automatic"}
    monkeypatch.setattr("pomology.machine.snapshot.conditions", lambda: state | {"flags": []})
    for name in ("snapshot", "software"):
        monkeypatch.setattr(f"pomology.machine.snapshot.{name}", lambda: {"python": "3.11.9"})
