"""Time a few blocks of a model, in a process of their own: `python -m` this module.

`measured.py` starts it, writes a `Request` to its stdin, and reads the journal that it leaves. Each
truncated model is a case. They are timed in turn, round after round, so that a machine that becomes
slower meanwhile slows all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from pomology.errors import NoSuchDevice
from pomology.extras.fit import truncated
from pomology.extras.fit.plan import Plan
from pomology.extras.fit.truncated import Blocks

NAME = "fit"  # of the journal
UNTIMED = 2  # steps whose memory is watched before any is timed; the first creates the states
MOST_STEPS = 1000  # of a case
LIMIT_S = 600.0  # of a case's steps
STEP_S = 3.0  # of the longest model at the rate of a matmul, where a shorter one would do
ROUNDS_S = 240.0  # no further round begins after this time
POLL_S = 0.001
# Of glibc's mallopt(3): the numbers of two options, and the most that the first reaches by itself.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MOST_KEPT = 32 * 2**20


class Request(msgspec.Struct):
    """What is measured.

    name: of the model. config: of transformers. plan: see `Plan`. flops, bytes: of a step in MLX,
    which counts none, as `truncated.Linear`. out: the run's folder. repeat: number of the first
    round. rounds: at most. budget_s: seconds of a case's steady steps. whole: whether the whole
    model is measured in each round, too, for a comparison.
    """

    name: str
    config: dict[str, Any]
    plan: dict[str, Any]
    out: str
    repeat: int = 0
    flops: list[float] = []
    bytes: list[float] = []
    rounds: int = 3
    budget_s: float = 3.0
    whole: bool = False


def settings(name: str, plan: Plan, blocks: Blocks, depth: int) -> dict[str, Any]:
    """Return the settings of a case, from which `planned` restores the plan.

    depth: blocks of the whole model.
    """
    default = Plan()
    rows = {
        "model": name,
        "blocks": blocks.total,
        "of_blocks": depth,
        "method": plan.method,
        "batch_size": plan.batch,
        "sequence": plan.sequence,
        "precision": plan.precision,
    }
    if plan.method != "full":
        rows |= {"rank": plan.rank, "trained_blocks": blocks.trained}
    fields = ("targets", "layers", "dropout", "optimizer", "checkpointing", "amp", "accumulation")
    changed = {field: getattr(plan, field) for field in fields}
    return rows | {
        field: value for field, value in changed.items() if value != getattr(default, field)
    }


def planned(config: dict[str, Any], framework: str) -> Plan:
    """Return the plan of a case's settings."""
    fields = {name: value for name, value in config.items() if name in Plan._fields}
    return Plan(**fields | {"batch": config["batch_size"], "framework": framework})


def blocks(config: dict[str, Any]) -> Blocks:
    """Return the blocks of a case's model, from its settings."""
    trained = config.get("trained_blocks", config["blocks"])
    return Blocks(trained, config["blocks"] - trained)


def in_torch(request: Request, plan: Plan, device: Any) -> Callable[[Blocks], Any]:
    """Return a function that makes the workload of so many blocks in PyTorch."""
    from pomology.extras.fit import training

    kind = device.handle.type
    return lambda blocks: training.workload(request.config, plan, blocks, kind)


def in_mlx(request: Request, plan: Plan, _device: Any) -> Callable[[Blocks], Any]:
    """Return a function that makes the workload of so many blocks in MLX."""
    from pomology.extras.fit import training_mlx

    flops, needed = truncated.Linear(*request.flops), truncated.Linear(*request.bytes)

    def workload(blocks: Blocks) -> Any:
        numbers = flops.at(blocks), needed.at(blocks)
        return training_mlx.workload(request.config, plan, blocks, *numbers)

    return workload


def affordable(
    sets: Sequence[list[Blocks]], device: Any, plan: Plan, workload: Callable[[Blocks], Any]
) -> list[Blocks]:
    """Return the longest models that fit memory and whose step is short, else the shortest."""
    from pomology.experiment.case import peak_matmul_rate

    rate = peak_matmul_rate(device, plan.precision)
    size = plan.batch * plan.accumulation
    for models in sets[:-1]:
        longest = workload(max(models, key=lambda blocks: blocks.total))
        cost = cost_of(longest, size, device)
        if cost.bytes < device.free_memory() / 2 and cost.flops / rate <= STEP_S:
            return models
    return sets[-1]


def cost_of(workload: Any, size: int, device: Any) -> Any:
    """Return the cost of a step of so many samples, counted or, in MLX, declared."""
    if device.framework == "mlx":
        from pomology.models import workload_mlx

        return workload_mlx.declared_cost(workload, size)
    return workload.cost(size, device.backend)


def warm(workload: Any, size: int) -> None:
    """Make a step on the CPU, so that no case has the memory that a process takes once."""
    network = workload.build()
    workload.step(network, workload.optimizer(network), *workload.batch(size))


def train(case: Any, workload: Any, plan: Plan) -> None:
    """Train a truncated model: watch the memory of some steps, and time others."""
    with returned_at_once():
        before = settled_bytes()
        step = prepared(case, workload, plan)
        case.metric("step_peak_bytes", peak_bytes(case.backend, before, step))
    for _ in case.steps(range(MOST_STEPS), ready=False, per_epoch=0):
        case.loss(step())  # recorded, though random words teach nothing


def prepared(case: Any, workload: Any, plan: Plan) -> Callable[[], float]:
    """Return a function that makes a step of a verified model, and returns its loss."""
    size = plan.batch * plan.accumulation
    case.count(workload, size)
    network, optimizer = case.prepare(workload, size)
    if case.backend.framework == "mlx":
        from pomology.extras.fit import training_mlx

        return training_mlx.compiled(case, workload, network, optimizer, size)
    inputs = case.backend.to_device(workload.batch(size))
    return lambda: workload.step(network, optimizer, *inputs).item()


def peak_bytes(device: Any, before: int, step: Callable[[], float]) -> int:
    """Return the most bytes during a few steps: of the framework's tensors, or of the process.

    before: bytes of the process before there was a model.
    """
    device.reset_peak_memory()
    with polled() as most:
        for _ in range(UNTIMED):
            step()
        device.synchronize()
    counted = device.peak_memory().get("allocated_peak_bytes")
    return counted or most[0] - before


def settled_bytes() -> int:
    """Return the bytes of this process when it has given back what is free."""
    from pomology.machine import memory

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim:
        trim(0)
    return memory.footprint()


@contextlib.contextmanager
def returned_at_once() -> Iterator[None]:
    """Let glibc give back freed memory at once, so that the process has what is allocated.

    Otherwise it keeps what was freed, more and more up to a limit that it has for the timing.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        yield
        return
    set_option(M_MMAP_THRESHOLD, 2**16)
    set_option(M_TRIM_THRESHOLD, 2**16)
    try:
        yield
    finally:
        set_option(M_MMAP_THRESHOLD, MOST_KEPT)
        set_option(M_TRIM_THRESHOLD, 2 * MOST_KEPT)


@contextlib.contextmanager
def polled() -> Iterator[list[int]]:
    """Watch the bytes of this process; the list's only number is the most so far."""
    from pomology.machine import memory

    most = [0]
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_S):
            most[0] = max(most[0], memory.footprint())

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def rounds(experiment: Any, request: Request) -> Iterator[int]:
    """Yield the numbers of the rounds, and set them as repeats of the experiment."""
    begun_s = time.monotonic()
    for number in range(request.repeat, request.repeat + request.rounds):
        if number > request.repeat and time.monotonic() - begun_s > ROUNDS_S:
            return
        experiment.repeat = number
        yield number


def main() -> int:
    """Measure the request on stdin; return the exit status."""
    request = msgspec.json.decode(sys.stdin.read(), type=Request)
    plan = Plan(**request.plan)
    mlx = plan.framework == "mlx"
    if mlx:
        # mlx-lm imports transformers, which imports PyTorch where there is one.
        sys.modules["torch"] = None
    from pomology.experiment.experiment import Experiment

    try:
        experiment = Experiment(
            NAME,
            article="today",
            framework=plan.framework,
            profile="quick",
            budget_s=request.budget_s,
            out=request.out,
            expects_learning=False,
        )
    except NoSuchDevice as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    experiment.limit_s = LIMIT_S
    device = experiment.devices[-1]
    # Each model is made, and its step counted, once for all rounds.
    workload = functools.cache((in_mlx if mlx else in_torch)(request, plan, device))
    every = truncated.whole(request.config, plan)
    sets = list(truncated.choices(every, truncated.period(request.config)))
    models = affordable(sets, device, plan, workload)
    models += [every] * (request.whole and every not in models)
    if device.backend == "cpu" and not mlx:
        warm(workload(models[0]), plan.batch * plan.accumulation)
    for _ in rounds(experiment, request):
        for blocks in models:
            config = settings(request.name, plan, blocks, every.total)
            for case in experiment.cases([config], on=[device]):
                with case:
                    case.scaled = blocks != every
                    train(case, workload(blocks), plan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
