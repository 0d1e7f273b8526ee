"""Checks whether this machine's times, counters and results are reliable.

A check takes a case and returns a sentence with its finding. It raises Mismatch if numbers of this
kind are unreliable on this machine, and Unsupported if the machine does not report them.
"""

import dataclasses
import functools
import itertools
import math
import re
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.benchmark import Timer

from pomology import format
from pomology.checks import operator_parity
from pomology.devices import find
from pomology.errors import Mismatch, PomologyError, Unsupported
from pomology.machine.energy import Absent, meter
from pomology.machine.sampler import Sampler
from pomology.measure import calls, intervals
from pomology.measure import clock as measure_clock
from pomology.models import isolated, verify
from pomology.results import cases
from pomology.results.repeats import VARIATION, pool, run_to_run_by_kind, variation_text

SEED = 1
TOLERANCE = 1e-4  # largest error of a device, as a share of a tensor's largest value
ROUNDS = 3  # of a comparison of clocks that differ, before both are said to
TWICE = "same thing twice"  # the check of the run-to-run variation
# In older journals its note has the variation of one repeat.
OF_LAST_REPEAT = re.compile(r"Two runs of the same training step differ [^;]*; ")
clock = time.perf_counter  # not pomology's own clock, which is checked here


def keep(case, name, estimate, unit="s", raw=()):
    """Record an estimate and the timings that it summarizes; return it as text."""
    estimate = estimate.replace(unit=unit)
    case.metric(name, estimate)
    if raw:
        case.raw(name, raw)
    return format.with_interval(estimate, functools.partial(format.quantity, unit=unit))


# Device synchronization


def fence(case, budget_s, margin):
    """Time a synchronization of an idle device, and of one with a tiny kernel to finish."""
    tensor = torch.zeros(1, device=case.device)
    synchronize = case.backend.synchronize

    def tiny():
        tensor.add_(1)

    settings = {"budget_s": budget_s / 4, "clock": clock}
    timed = {
        "fence_idle_s": calls.measure(synchronize, **settings),
        "tiny_kernel_s": calls.measure(tiny, synchronize, **settings),
        "tiny kernel, fenced": calls.measure(tiny, synchronize, calls_per_block=1, **settings),
    }
    for name, measurement in timed.items():
        case.raw(name, measurement.blocks)
    idle, kernel, fenced = (measurement.seconds for measurement in timed.values())
    extra = beyond(fenced, kernel)
    alone, loaded = keep(case, "fence_idle_s", idle), keep(case, "fence_behind_kernel_s", extra)
    keep(case, "tiny_kernel_s", kernel)
    block_s = max(measure_clock.BLOCK_S, idle.value / measure_clock.FENCE_SHARE)
    case.metric("fence_share_of_block", extra.value / block_s, "")
    block = format.seconds(block_s)
    if extra.low is not None and extra.low > margin * block_s:
        cost = f"after a kernel a synchronization costs {loaded}"
        raise Mismatch(f"{cost}, too much for timing blocks of {block}: steps look too slow")
    share = f"{100 * extra.value / block_s:.2g} % of a timing block of {block}"
    times = f"a synchronization takes {alone} when idle and {loaded} after a tiny kernel"
    return f"{times}: {share}"


def beyond(longer, shorter):
    """Return the difference of two times; the half-widths of their intervals add in squares."""
    value = max(0.0, longer.value - shorter.value)
    if None in (longer.high, shorter.high):
        return longer.replace(value=value, low=None, high=None, covers=None)
    half = math.hypot(longer.high - longer.value, shorter.high - shorter.value)
    return longer.replace(value=value, low=max(0.0, value - half), high=value + half, covers=None)


# Another clock


def both_clocks(case, function, pairs, budget_s):
    """Return pomology's times of a function, PyTorch's times, and pomology's blocks."""
    blocks = []

    def by_pomology():
        timed = calls.measure(function, case.backend.synchronize, budget_s=budget_s / 8)
        blocks.extend(timed.blocks)
        return timed.seconds.value

    def by_pytorch():
        settings = {"globals": {"function": function}, "num_threads": case.backend.threads}
        return Timer("function()", **settings).blocked_autorange(min_run_time=budget_s / 8).median

    times = {by_pomology: [], by_pytorch: []}
    for number in range(pairs):  # alternating order, so a drift does not favour one of the two
        for way in (by_pomology, by_pytorch) if number % 2 else (by_pytorch, by_pomology):
            times[way].append(way())
    return times[by_pomology], times[by_pytorch], blocks


def training_step(device, batch_size=256):
    """Return a function that runs a training step of a perceptron on a device."""
    torch.manual_seed(SEED)
    hidden = (nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model = nn.Sequential(*hidden, nn.Linear(1024, 10)).to(device.handle)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch_size, 784).to(device.handle)
    targets = torch.randint(10, (batch_size,)).to(device.handle)

    def train():
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return train


def clocks_compared(pomology_s, pytorch_s, margin):
    """Return the interval of the ratios of two clocks, whether it is wide, and whether they differ.

    By chance all pairs differ in one direction once in 2^(pairs - 1) times, and more often on a
    machine that becomes slower within a pair: then a difference has to exceed their range.
    """
    pairs_s = zip(pomology_s, pytorch_s, strict=True)
    ratios = [by_pomology_s / by_pytorch_s for by_pomology_s, by_pytorch_s in pairs_s]
    middle = intervals.median_interval(ratios)  # one disturbed pair does not move it
    is_wide = middle.low is None or middle.high > (1 + 5 * margin) * middle.low
    nearest = max(min(ratios), 1 / max(ratios))
    least = max(1 + margin, max(ratios) / min(ratios)) if is_wide else 1 + margin
    return middle, is_wide, nearest > least


def agreement(case, pairs, budget_s, margin):
    """Compare pomology's times of a matmul and of a training step with PyTorch's timer."""
    functions = {
        "product": ("matmul", case.backend.product("fp32", 512)),
        "training_step": ("training step", training_step(case.backend, 16)),
    }
    texts, wrong, wide = [], [], False
    for metric, (name, function) in functions.items():
        # A wrong clock is wrong each time, a disturbance is not: it would refute the whole run.
        for _ in range(ROUNDS):
            pomology_s, pytorch_s, blocks = both_clocks(case, function, pairs, budget_s)
            middle, is_wide, differ = clocks_compared(pomology_s, pytorch_s, margin)
            if not differ:
                break
        keep(case, f"{metric}_s", intervals.median_interval(pomology_s), raw=blocks)
        case.raw(f"{metric.replace('_', ' ')}, by PyTorch", pytorch_s)
        keep(case, f"{metric}_ratio", middle, "")
        text = f"{name} {middle.value:.3f}"
        if middle.low is not None:
            text += f" ({middle.low:.3f} to {middle.high:.3f})"
        texts.append(text)
        wide |= is_wide
        if differ:
            wrong.append(text)
    ratio = "pomology's time divided by that of torch.utils.benchmark"
    if wrong:
        raise Mismatch(f"{ratio}, {ROUNDS} times: {'; '.join(wrong)}; it should be 1")
    text = f"{ratio}, {pairs} pairs, {case.backend.threads} threads: {', '.join(texts)}"
    if wide:
        return f"{text}; too wide for a verdict: run it again on an idle machine", "too-noisy"
    return text


# Run-to-run variation


def percentile_90(seconds):
    """Return the largest relative difference between two such times in 90 % of pairs.

    Student's t on logarithms: the difference of two times has sqrt(2) times the deviation of one.
    """
    deviation = math.sqrt(2) * statistics.stdev(map(math.log, seconds))
    return math.expm1(intervals.t_quantile(0.9, len(seconds) - 1) * deviation)


def step_s(device, budget_s):
    """Return the median seconds of a training step of a newly built model."""
    with device.context():
        timed = calls.measure(training_step(device), device.synchronize, budget_s=budget_s)
    return timed.seconds.value


def step_s_on(backend, budget_s):
    """Return `step_s` on the device with this name: the entry of a fresh process."""
    return step_s(*find.find(backend), budget_s)


def step_in_fresh_process(backend, budget_s):
    """Return `step_s` as a fresh process measures it."""
    what = f"a training step in a fresh process on {backend}"
    limit_s = 300 + 3 * budget_s
    return isolated.call(what, f"{__name__}:step_s_on", backend, budget_s, limit_s=limit_s)


def twice(case, times, budget_s):
    """Time the same training step in this process and in fresh ones, alternating.

    The differences are recorded, and not in the note, which is of the last repeat.
    """
    within, between, problem = [], [], "not measured"
    for _ in range(times):
        within.append(step_s(case.backend, budget_s))
        try:
            if len(between) == len(within) - 1:
                between.append(step_in_fresh_process(case.backend.backend, budget_s))
        except PomologyError as error:  # for example a device that only one process may use
            problem = f"not measured: {error}"
    differences = {"same_process_difference": within, VARIATION: between}
    for metric, seconds in differences.items():
        if len(seconds) > 1:
            case.metric(metric, percentile_90(seconds), "", n=len(seconds))
    counts = f"{len(within)} timings in one process, {len(between)} in fresh processes"
    return counts if len(between) == times else f"{counts}: {problem}"


def variation(records):
    """Return the run-to-run variation over all repeats so far."""
    return variation_text(pool(records))


def with_variation(shown, records):
    """Return the table of all checks with the run-to-run variation in the notes of its check.

    shown: the table. records: of all repeats so far, of which the variation is.
    """
    shares = run_to_run_by_kind(records)
    rows = []
    for row in shown.rows:
        share = shares.get(cases.kind(row.data["backend"]))
        if row.data.get("check") == TWICE and share is not None:
            text = "90 % of pairs of single runs of a training step, each in a fresh process, "
            text += f"differ by less than {format.rounded_up(100 * share)} %; "
            notes = OF_LAST_REPEAT.sub("", row.cells["Notes"])
            row = row._replace(cells=row.cells | {"Notes": text + notes})
        rows.append(row)
    return dataclasses.replace(shown, rows=rows)


# Unfinished work


def products(case, least_s):
    """Return a function that starts a matmul of `least_s` or more, and one that reads from it."""
    for size in (256, 512, 1024, 2048, 4096, 8192):
        matrix, result = torch.ones(2, size, size, device=case.device)
        launch = functools.partial(torch.mm, matrix, matrix, out=result)
        fetch = result[0, 0].item
        times = []
        for _ in range(3):
            start = clock()
            launch()
            fetch()  # not a synchronization, which is under test
            times.append(clock() - start)
        if min(times) >= least_s:
            break
    return launch, fetch


def events(case):
    """Return two events of the device's own clock where these are reliable, else None."""
    if case.backend.backend == "cuda":
        return [torch.Event(case.device, enable_timing=True) for _ in range(2)]
    return None


def one_loop(case, launch, fetch, count):
    """Return seconds to the loop's end, to the synchronization's, of the read, and by events."""
    case.backend.synchronize()
    marks = events(case)
    start = clock()
    if marks:
        marks[0].record()
    for _ in range(count):
        launch()
    if marks:
        marks[1].record()
    launched = clock()
    case.backend.synchronize()
    fenced = clock()
    fetch()
    fetched = clock()
    fetch()  # again: the cost of a read without a wait
    late_s = max(0.0, (fetched - fenced) - (clock() - fetched))
    device_s = marks[0].elapsed_time(marks[1]) / 1e3 if marks else None
    return launched - start, fenced - start, late_s, device_s


def unfenced(case, budget_s):
    """Time a loop of matmuls to its last call, and to the synchronization after it."""
    launch, fetch = products(case, budget_s / 200)
    loops = [one_loop(case, launch, fetch, 20) for _ in range(6)]
    columns = list(zip(*loops, strict=True))
    launched, fenced, late = map(intervals.median_interval, columns[:3])
    first = keep(case, "loop_unfenced_s", launched, raw=columns[0])
    second = keep(case, "loop_fenced_s", fenced, raw=columns[1])
    share, late_share = launched.value / fenced.value, late.value / (fenced.value + late.value)
    case.metric("unfenced_share", share, "")
    case.metric("late_share", late_share, "")
    if late_share > 0.1:
        came = f"synchronization ended after {second}, the result came {format.seconds(late.value)}"
        raise Mismatch(f"{came} later: it does not wait, so all times of this device are too short")
    if None not in columns[3]:
        ratios = [device_s / fenced_s for _, fenced_s, _, device_s in loops]
        by_events = intervals.median_interval(ratios)
        keep(case, "device_events_ratio", by_events, "")
        if not 0.9 < by_events.value < 1.05:
            share = f"{by_events.value:.2f} of the time to the synchronization"
            raise Mismatch(f"by the device's own events the loop took {share}")
    text = f"20 matmuls take {first} to the last call and {second} to the synchronization"
    if case.backend.kind == "cpu":
        if share < 0.9:
            raise Mismatch(f"{text}: a CPU call returned before its work was done")
        return f"{text}: equal, as expected, because a CPU call returns when its work is done"
    if share > 0.5:
        launching = f"launching took {100 * share:.0f} % of the time"
        raise Mismatch(f"{text}: {launching}, so this shows nothing about the synchronization")
    return f"{text} ({1 / share:,.0f} times as long): unfinished work is noticed"


# Memory counters


def counters(case):
    """Return the peak of each memory counter since the last reset, in bytes."""
    case.backend.synchronize()
    with Sampler(case.backend.kind) as sampler:
        pass
    peaks = {name.split("_")[0]: count for name, count in case.backend.peak_memory().items()}
    footprint = sampler.metrics.get("footprint_peak_bytes")
    if footprint:
        kind = "physical footprint" if sys.platform == "darwin" else "resident memory"
        peaks[f"footprint ({kind})"] = footprint.value
    return peaks


def memory(case, megabytes):
    """Read each counter before, with and after a tensor of known size."""
    size = megabytes * 10**6
    case.backend.reset_peak_memory()
    before = counters(case)
    # ones() writes to the memory: the system counts no page before its first use.
    block = torch.ones(size // 4, device=case.device)
    during = counters(case)
    del block
    case.backend.reset_peak_memory()
    after = counters(case)
    if not before:
        raise Unsupported("this system reports neither PyTorch's memory nor this process's")
    texts = [] if "allocated" in before else ["PyTorch has no counter for this device"]
    for name in before:
        grew, kept = during[name] - before[name], after[name] - before[name]
        short = name.split(" ")[0]
        case.metric(f"{short}_grew_bytes", grew, "B")
        case.metric(f"{short}_kept_bytes", kept, "B")
        amount, expected = format.quantity(max(0, grew), "B"), format.quantity(size, "B")
        stayed = f"{100 * max(0, kept) / size:.0f} % of it remained afterwards"
        texts.append(f"{name} grew by {amount} for a tensor of {expected}, and {stayed}")
        # Allocators round up a little, and may reserve whole heaps. The footprint also counts the
        # process's other memory, and a GPU's tensors on a Mac only.
        slack = max(0.1 * size, 16e6) if short == "footprint" else max(0.02 * size, 4e6)
        most = math.inf if short == "reserved" else size + slack
        counts = short != "footprint" or case.backend.kind == "cpu"
        if counts and not size - slack <= grew <= most:
            raise Mismatch(f"{texts[-1]}: this counter does not follow the tensor")
    return "; ".join(texts)


# The energy meter


def movements(joules, seconds):
    """Return the updates of each counter, as seconds and joules since the previous one.

    joules: reads all counters, by power domain. It watches three times as long where a counter has
    not changed three times.
    """
    start = now = clock()
    changes = {rail: [(start, total)] for rail, total in joules().items()}
    while now - start < seconds * (1 if min(map(len, changes.values())) > 3 else 3):
        now = clock()
        for rail, total in joules().items():
            if total != changes[rail][-1][1]:
                changes[rail].append((now, total))
    # The first interval is incomplete: it began before the first reading.
    pairs = {rail: list(itertools.pairwise(updates))[1:] for rail, updates in changes.items()}
    return {
        rail: [(end_s - start_s, end - start) for (start_s, start), (end_s, end) in updates]
        for rail, updates in pairs.items()
        if updates
    }


def power(joules, rail, least_s, work):
    """Return watts by power domain while `work` is called repeatedly.

    The window begins and ends with an update of this domain's counter, at least `least_s` apart.
    """
    start, edges, before = clock(), [], joules()
    while len(edges) < 2:
        work()
        now_s, now = clock(), joules()
        if now[rail] != before[rail] and (not edges or now_s - edges[0][0] >= least_s):
            edges.append((now_s, now))
        elif now_s - start > 20 * least_s:
            raise Mismatch(f"the counter of {rail} stopped updating")
        before = now
    (start, first), (end, last) = edges
    return {domain: (last[domain] - first[domain]) / (end - start) for domain in first}


def energy(case, budget_s):
    """Time the updates of each energy counter, and compare idle power with power under load."""
    try:
        periods_s, joules, _ = meter(case.backend.kind)
    except Absent as reason:
        raise Unsupported(str(reason)) from None
    rails, watched_s = ", ".join(periods_s), max(2 * budget_s, 3 * max(periods_s.values()))
    moved = movements(joules, watched_s)
    if not moved:
        watched = format.seconds(watched_s)
        raise Mismatch(f"the counters ({rails}) did not change in {watched} or more")
    # The window follows the slowest counter: in the sum a fast one would hide it.
    longest_s = {rail: max(gap_s for gap_s, _ in moved[rail]) for rail in moved}
    slowest = max(longest_s, key=longest_s.get)
    gaps_s, steps_j = zip(*moved[slowest], strict=True)
    keep(case, "meter_period_s", intervals.median_interval(gaps_s), raw=gaps_s)
    case.metric("meter_step_j", min(steps_j), "J", n=len(steps_j))
    window_s = max(budget_s, longest_s[slowest])
    waiting, working, still = watts(case, joules, slowest, window_s, budget_s)
    every = {rail: f"every {format.seconds(gap_s)} or sooner" for rail, gap_s in longest_s.items()}
    texts = [f"{rail} updates {every.get(rail, 'not at rest')}" for rail in periods_s]
    texts = [f"power domains: {', '.join(texts)}", f"{slowest} by {min(steps_j):.2g} J or more"]
    texts += [f"{rail} did not change under load" for rail in still]
    texts.append(f"idle {waiting}, under load {working}: power rises with load")
    return "; ".join(texts)


def watts(case, joules, slowest, window_s, budget_s):
    """Record idle power and power under load, three windows of each; return unchanged domains."""
    launch, _ = products(case, budget_s / 200)

    def busy():
        launch()
        case.backend.synchronize()

    idle, loaded = [], []
    for _ in range(3):
        idle.append(power(joules, slowest, window_s, lambda: time.sleep(1e-3)))
        loaded.append(power(joules, slowest, window_s, busy))
    totals = [[sum(powers.values()) for powers in windows] for windows in (idle, loaded)]
    waiting = keep(case, "power_waiting_w", intervals.interval(totals[0]), "W")
    working = keep(case, "power_working_w", intervals.interval(totals[1]), "W")
    if not all(more > less for less, more in zip(*totals, strict=True)):
        raise Mismatch(f"power under load ({working}) is not above idle power ({waiting})")
    # An idle GPU's counter may stay unchanged; under load none may.
    still = [rail for rail in loaded[0] if not any(powers[rail] for powers in loaded)]
    return waiting, working, still


# The same results


class Small(nn.Module):
    """A small network with the layer types of the articles' networks."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.batch_norm = nn.BatchNorm2d(8)
        self.recurrent = nn.LSTM(16, 16, batch_first=True)
        self.layer_norm = nn.LayerNorm(16)
        self.head = nn.Linear(8 * 16 + 16, 10)

    def forward(self, images, words):
        features = F.avg_pool2d(F.relu(self.batch_norm(self.convolution(images))), 2).flatten(1)
        states, _ = self.recurrent(words)
        return self.head(torch.cat([features, self.layer_norm(states[:, -1])], dim=1))


def random_batch(count):
    """Return random images, sequences of vectors, and targets."""
    return torch.randn(count, 3, 8, 8), torch.randn(count, 12, 16), torch.randint(10, (count,))


def passes(device):
    """Return outputs and all gradients of a step on a device, as arrays by name."""
    torch.manual_seed(SEED)
    # Drawn on the CPU, because each device has its own random generator.
    model, (images, words, targets) = Small(), random_batch(16)
    model = model.to(device)
    images, words = (inputs.to(device).requires_grad_() for inputs in (images, words))
    outputs = model(images, words)
    F.cross_entropy(outputs, targets.to(device)).backward()
    values = {"outputs": outputs.detach(), "gradient of images": images.grad}
    values["gradient of words"] = words.grad
    for name, parameter in model.named_parameters():
        values[f"gradient of {name}"] = parameter.grad
    return {name: tensor.cpu().numpy() for name, tensor in values.items()}


def reference():
    """Return `passes` on the CPU with one thread and without oneDNN."""
    threads, mkldnn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False
    try:
        return passes(torch.get_default_device())
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = mkldnn


def convolution(matrix, identity):
    """Multiply two matrices as a 1 × 1 convolution."""
    return F.conv2d(matrix.view(1, 64, 8, 8), identity.view(64, 64, 1, 1))


WAYS = {"product": torch.mm, "convolution": convolution}  # the names of metrics


def kept_bits(case, multiply):
    """Return how many mantissa bits survive a multiplication by the identity matrix."""
    identity, kept = torch.eye(64, device=case.device), 0
    for bits in range(1, 24):
        values = torch.full((64, 64), 1 + 2.0**-bits, device=case.device)
        if torch.equal(multiply(values, identity).view(64, 64), values):
            kept = bits
    return kept


def one_step(model, count):
    """Run a forward and backward pass on a random batch."""
    images, words, targets = random_batch(count)
    F.cross_entropy(model(images, words), targets).backward()


def parity(case):
    """Compare a step with the reference CPU's, on a GPU by operator, and count the bits of fp32."""
    if case.backend.kind == "gpu":
        operator_parity.verify(case, Small().to(case.device), one_step, batch_size=16)
    values = passes(case.device)
    verify.check(case, values, reference(), TOLERANCE, "against the reference CPU", relative=True)
    bits = {name: kept_bits(case, multiply) for name, multiply in WAYS.items()}
    for name, count in bits.items():
        case.metric(f"{name}_bits", count, "bits")
    if min(bits.values()) < 23:
        words = {"product": "matmul"}
        few = ", ".join(f"{words.get(name, name)} keeps {count}" for name, count in bits.items())
        raise Mismatch(f"{few} of fp32's 23 mantissa bits: fp32 is less precise on this device")
    agree = f"{len(values)} outputs and gradients agree with the reference CPU's"
    within = f"within {TOLERANCE:g} of each tensor's largest value"
    return f"{agree} {within}; matmul and convolution keep the 23 mantissa bits of fp32"


# Versions


def version(text):
    """Return `2.13.0+cpu` as (2, 13, 0); a missing version is older than all others."""
    return tuple(int(number) for number in re.findall(r"\d+", (text or "").split("+")[0])[:3])


def requirements(machine, environment):
    """Yield a subject, its requirement, this machine's state, and the verdict."""
    packages = machine["packages"]
    pytorch, zeus = packages.get("torch"), packages.get("zeus-apple-silicon")
    tensorflow, metal = packages.get("tensorflow"), packages.get("tensorflow-metal")
    numpy, arrow = packages.get("numpy"), packages.get("pyarrow")
    rosetta = " under Rosetta" if machine["translated"] else ""
    native = machine["architecture"] == "arm64" and not machine["translated"]
    fallback = environment.get("PYTORCH_ENABLE_MPS_FALLBACK", "0")
    duplicate = environment.get("KMP_DUPLICATE_LIB_OK")
    macs = (
        ("PyTorch on MPS, also in bf16", "macOS 14", machine["os_version"], (14,)),
        ("peak memory on MPS", "PyTorch 2.13", pytorch, (2, 13)),
        ("torch.utils.benchmark waits for MPS", "PyTorch 2.9", pytorch, (2, 9)),
        ("energy without root", "zeus-apple-silicon 1.1", zeus, (1, 1)),
    )
    rows = [
        (what, needs, state or "not installed", version(state) >= least, True)
        for what, needs, state, least in macs
    ]
    kind = f"{machine['architecture']}{rosetta}"
    rows.append(("MPS, Metal, MLX", "a native arm64 Python", kind, native, True))
    plugin = metal is None or (2, 16) <= version(tensorflow) < (2, 20)
    pair = f"{tensorflow} with {metal or 'none'}"
    rows.append(("TensorFlow with tensorflow-metal", "2.16 to 2.19", pair, plugin, True))
    off = fallback in ("", "0")
    rows.append(("MPS without a CPU fallback", "no fallback", f"fallback {fallback}", off, True))
    both = version(numpy) >= (2,) or version(arrow) < (26,)
    pair = f"NumPy {numpy}, PyArrow {arrow}"
    rows.append(("NumPy and PyArrow", "PyArrow below 26, or NumPy 2", pair, both, False))
    alone, set_to = duplicate is None, duplicate or "not set"
    rows.append(("a single OpenMP runtime", "KMP_DUPLICATE_LIB_OK not set", set_to, alone, False))
    for what, needs, state, met, only_macs in rows:
        if only_macs and machine["os"] != "macOS":
            yield what, needs, state, "not a Mac"
        else:
            yield what, needs, state, "met" if met else "not met"
