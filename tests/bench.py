"""The measuring, measured: each part of the instrument against an independent way to do the same, as ratios.

    make bench                            everything, about an hour on two cores
    python tests/bench.py clock           some parts only
    python tests/bench.py --tenth clock   with a tenth of the pairs: whether it works, not what it says

Pairs run in turn, in one process, and the median of their ratios is what counts: a busy machine moves both sides.
Prints a table and writes it to outputs/bench.json. Nothing here is part of `make test`, since a busy machine could
fail it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import math
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import simulations
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from pomology.data.images import ArticleMNIST, mnist
from pomology.machine.sampler import Telemetry
from pomology.measure import calls, epochs, intervals
from pomology.measure import clock as measure_clock
from pomology.paths import root
from pomology.results.run import Run

TENTH = "--tenth" in sys.argv


def many(count: int) -> int:
    """So many pairs or runs; a tenth of them, but two at the least, where only that is asked for."""
    return max(2, count // 10) if TENTH else count


def row(name: str, shown: str, bound: str, good: bool | None = None, **raw) -> dict:
    print(f"{name:62} {shown:32} {bound:26} {({True: 'within', False: 'OUTSIDE', None: ''})[good]}", flush=True)
    return {"name": name, "found": shown, "bound": bound, "within": good, **raw}


def ratio_row(name: str, ratios: list[float], low: float, high: float, bound: str) -> dict:
    """A row of the median of ratios, which is to be between low and high."""
    middle = intervals.median_interval(ratios)
    shown = f"{middle.value:.4f} (95 %: {middle.low:.3f} to {middle.high:.3f})"
    return row(name, shown, bound, low <= middle.value <= high if bound else None, ratios=ratios)


def paired(first, second, pairs: int) -> list[float]:
    """Ratios first / second of pairs, the order within a pair changing from one to the next."""
    ratios = []
    for number in range(pairs):
        order = (second, first) if number % 2 else (first, second)
        seconds = {side: side() for side in order}
        ratios.append(seconds[first] / seconds[second])
    return ratios


def program(text: str, *arguments: object) -> Any:
    """What a program prints, as JSON, in a process of its own; it has `paired`, and first gets an empty folder."""
    begin = f"import json, sys, time\n{inspect.getsource(paired)}\nout, *arguments = sys.argv[1:]\n"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", begin + text, folder, *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def timed(function: Callable[..., Any], *arguments: Any, **named: Any) -> float:
    start = time.perf_counter()
    function(*arguments, **named)
    return time.perf_counter() - start


class Training:
    """The article's VAE, whose steps are the shortest of all, over its item-by-item MNIST at batch 128."""

    def __init__(self, samples: int = 12_800):
        torch.manual_seed(1)
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 40))
        self.decode = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784), nn.Sigmoid())
        self.optimizer = torch.optim.Adam([*self.encode.parameters(), *self.decode.parameters()], lr=1e-3)
        self.loader = DataLoader(ArticleMNIST(mnist("stand-in", size=samples)), 128, shuffle=True)

    def epoch(self, batches) -> None:
        for images, _ in batches:
            self.optimizer.zero_grad()
            mean, log_variance = self.encode(images).chunk(2, 1)
            drawn = self.decode(mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance))
            loss = F.binary_cross_entropy(drawn, images.view(-1, 784), reduction="sum")
            loss = loss - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
            loss.backward()
            loss.item()
            self.optimizer.step()

    def seconds(self, clocked: bool = False, watched: bool = False) -> float:
        """Of an epoch, bare or as a case of a notebook runs it: on the clock, and with telemetry."""
        with Telemetry() if watched else contextlib.nullcontext():
            batches = measure_clock.StepClock(whole=True).steps(self.loader) if clocked else self.loader
            return timed(self.epoch, batches)


def clock() -> list[dict]:
    """What the clock adds to a step that does nothing."""
    walk, count, costs = functools.partial(deque, maxlen=0), 200_000, []
    for _ in range(many(15)):
        bare = timed(walk, range(count))
        costs.append((timed(walk, measure_clock.StepClock(whole=True).steps(range(count))) - bare) / count * 1e6)
    best = min(costs)
    return [row("clock: cost of a step beside fences (least of 15)", f"{best:.3f} µs", "at most 1 µs", best <= 1)]


def loop() -> list[dict]:
    """The same epoch of training, bare and with clock and telemetry."""
    training = Training()
    training.seconds()
    # So many pairs, since the median of 31 still wanders by one per cent, which is the bound itself.
    rows, most = [], "at most 1.01"
    for name, pairs, bound, *on in (
        ("loop: clock and telemetry against bare (VAE, batch 128)", 91, most, True, True),
        ("loop: clock alone against bare", 91, most, True, False),
        ("telemetry: on against off", 91, most, False, True),
        ("loop: bare against bare, for comparison", 31, "", False, False),
    ):
        ratios = paired(functools.partial(training.seconds, *on), training.seconds, many(pairs))
        rows.append(ratio_row(name, ratios, 0, 1.01, bound))
    with Telemetry(interval_s=0.5) as telemetry:
        for _ in range(many(20)):
            training.seconds()
    share = 100 * telemetry.thread_s / telemetry.seconds
    return [*rows, row("telemetry: its thread's share of a core", f"{share:.3f} %", "at most 0.5 %", share <= 0.5)]


def kernels() -> list[dict]:
    """`calls.measure` against `torch.utils.benchmark` at the same thread count."""
    from torch.utils.benchmark import Timer

    squares = {size: torch.randn(2, size, size) for size in (128, 256, 512, 1536, 5120)}
    image, filters = torch.randn(8, 16, 64, 64), torch.randn(32, 16, 3, 3)
    wide, short, long = torch.randn(512, 1024), torch.randn(400_000), torch.randn(4_000_000)
    operations = {f"matmul {size}": functools.partial(torch.mm, *both) for size, both in squares.items()}
    operations |= {"add 400,000": lambda: short + short, "sum of 4 million": long.sum}
    operations |= {"softmax 512 × 1024": lambda: wide.softmax(1)}
    operations |= {"layer norm 512 × 1024": lambda: F.layer_norm(wide, (1024,))}
    operations |= {"convolution 16 to 32, 64 × 64": lambda: F.conv2d(image, filters, padding=1)}
    rows = []
    for name, function in operations.items():
        timer = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
        once = timer.blocked_autorange(min_run_time=0.5).median
        ratios = paired(
            lambda run=function: calls.measure(run, budget_s=0.6).seconds.value,
            lambda timer=timer: timer.blocked_autorange(min_run_time=0.5).median,
            many(16 if once < 0.1 else 8),
        )
        within = 0.02 if once > 1e-3 else 0.05
        bound = f"within {within:.0%}" if once > 50e-6 else ""  # shorter ones are not judged
        title = f"kernel: {name}, {once * 1e6:,.0f} µs, against torch's Timer"
        rows.append(ratio_row(title, ratios, 1 - within, 1 + within, bound))
    return rows


def estimate() -> list[dict]:
    """An epoch estimated from a hundred steps in bursts, against the whole of the next epoch."""
    training, errors = Training(60_000), []
    training.seconds()
    for _ in range(many(10)):
        clock = measure_clock.StepClock(budget_s=1.2, to_device=lambda batch: batch)
        training.epoch(clock.steps(training.loader))
        assert not clock.parts["training"].complete
        errors.append(epochs.epoch_metrics(clock)["epoch_s"].value / training.seconds() - 1)
    middle, worst = statistics.median(map(abs, errors)), max(map(abs, errors))
    steps = sum(block.steps for block in clock.parts["training"].blocks)
    title, good = f"estimate: {steps} of 469 steps in bursts against whole epochs", middle <= 0.03 and worst <= 0.15
    shown = f"median {middle:.1%}, worst {worst:.1%}"
    return [row(title, shown, "median 3 %, worst 15 %", good, errors=errors)]


def coverage() -> list[dict]:
    """How often intervals hold what they are of, where neighbours correlate: simulated, so on any machine the same."""
    sizes, rows = (6, 8, 12, 20, 40, 100, 400, 1000), []

    def judged(name: str, lag: float, cells: dict[str, float], draws: int, least: int = 0) -> None:
        """A row; of the first `least` cells only too few is judged. ± 2 standard errors of so many draws."""
        error, texts = 2 * math.sqrt(0.95 * 0.05 / draws), [f"{100 * cell:.1f}" for cell in cells.values()]
        high = [cell <= 0.97 + error for cell in list(cells.values())[least:]]
        good = all(high) and min(cells.values()) >= 0.92 - error
        title = f"coverage: {name}, lag-1 {lag}, {', '.join(cells)}"
        bound = f"92 to 97 % (± {100 * error:.1f})" + (", below 20 values at least 92 %" if least else "")
        rows.append(row(title, " ".join(texts), bound, good, cells=cells))

    for function, lag in itertools.product((intervals.interval, intervals.median_interval), simulations.LAGS):
        cells = {f"{size}": simulations.covered(function, lag, size, many(2_000)) for size in sizes}
        judged(function.__name__, lag, cells, many(2_000), least=3)
    for lag in simulations.LAGS:
        cells, draws = {}, many(1_000)
        for step_s in (0.001, 0.01, 0.03):
            found = simulations.measured(lag, step_s, draws)
            cells[f"{step_s * 1e3:g} ms"] = simulations.share([each.seconds for each in found], step_s)
        judged("measure", lag, cells, draws)
        cells = {}
        for step_s in (0.005, 0.02, 0.1):
            parts = simulations.clocked(lag, step_s, draws)
            for name, blocks, truth in (("", "blocks", step_s), (" ready", "ready_blocks", 0.8 * step_s)):
                found = [measure_clock.interval(getattr(part, blocks)) for part in parts]
                cells[f"{step_s * 1e3:g} ms{name}"] = simulations.share(found, truth)
        judged("StepClock", lag, cells, draws)
    return rows


def errors() -> list[dict]:
    """Two sets of repeats of one machine: how often they are called different, and what a difference needs; simulated
    from the spread between processes, within one and between sets that was measured on a quiet machine."""
    rows, draws = [], many(2_000)
    for repeats_ in (3, 5, 10):
        wrong, power, ratio = simulations.verdicts(repeats_, draws)
        error = 2 * math.sqrt(0.05 * 0.95 / draws)
        bound = f"at most 5 % (± {100 * error:.1f})"
        rows.append(
            row(f"errors: {repeats_} repeats twice, called different", f"{wrong:.1%}", bound, wrong <= 0.05 + error)
        )
        title = f"errors: {repeats_} repeats, power at the detectable ratio {ratio:.3f}"
        rows.append(row(title, f"{power:.1%}", "75 to 85 %", 0.75 <= power <= 0.85))
    return rows


PROCESS = """
import torch
from pomology.measure import calls
torch.manual_seed(0)
a, b = torch.randn(2, 512, 512)
print(calls.measure(lambda: a @ b, budget_s=0.5).seconds.value)
"""


def repeats() -> list[dict]:
    """How often five processes and five others of the same thing are called different."""
    times, draws, generator = np.array([program(PROCESS) for _ in range(20)]), 600, np.random.default_rng(1)
    orders = [generator.permutation(len(times))[:10] for _ in range(draws)]
    verdicts = [intervals.compare(times[order[:5]], times[order[5:]]).verdict for order in orders]
    share = sum(verdict in ("faster", "slower") for verdict in verdicts) / draws
    title = f"repeats: same thing called different (between processes ± {np.log(times).std(ddof=1):.1%})"
    return [row(title, f"{share:.1%} of {draws} draws", "at most 7.5 %", share <= 0.075, seconds=times.tolist())]


def claims() -> list[dict]:
    """How often a sentence about a CPU and a GPU gets a verdict where both are three processes of one thing, and where
    the GPU's are slower by the smallest ratio that three repeats are said to detect."""
    from records import metric, record

    from pomology.articles import claims as articles_claims
    from pomology.articles.published import Claim
    from pomology.report.claims import MeasuredLookup

    times, draws, generator = np.array([program(PROCESS) for _ in range(20)]), many(2_000), np.random.default_rng(2)
    claim = Claim("x", "003", ("vae",), "It is slower.", "", "epoch_s(gpu) / epoch_s(cpu) > 1", "", "yes", "repeats")

    def drawn(factor: float = 1.0) -> list[articles_claims.Decision]:
        made = []
        for _ in range(draws):
            chosen = times[generator.permutation(len(times))[:6]] * np.repeat((1.0, factor), 3)
            rounds = zip(("cpu",) * 3 + ("mps",) * 3, [*range(3)] * 2, chosen, strict=True)
            sides = [record(metrics={"epoch_s": metric(float(x))}, backend=b, repeat=n) for b, n, x in rounds]
            made.append(articles_claims.test(claim, MeasuredLookup(sides)))
        return made

    ties = drawn()
    sides = [(decision.numbers[0].left, articles_claims.Side(articles_claims.estimate(1))) for decision in ties]
    typical = float(np.median([articles_claims.difference(*pair).judged().smallest_detectable for pair in sides]))
    wrong, shown = (np.mean([one.holds is not None for one in made]) for made in (ties, drawn(typical)))
    title = f"claims: one thing twice gets a verdict (between processes ± {np.log(times).std(ddof=1):.1%})"
    power = f"claims: {typical:.2f} times as slow, the smallest detectable ratio, is shown"
    return [
        row(title, f"{wrong:.1%} of {draws} draws", "at most 5 %", wrong <= 0.05, seconds=times.tolist()),
        row(power, f"{shown:.1%} of {draws} draws", "75 to 85 %", 0.75 <= shown <= 0.85),
    ]


def notebook() -> list[dict]:
    """What a notebook takes beyond its cases, the start of a kernel and the import of the framework."""
    import nbformat
    import papermill
    from traitlets.config import Config

    from pomology.results import journal as results_journal
    from pomology.runner.notebooks import notebooks
    from pomology.runner.parameters import read_yaml

    vae = next(known.path for known in notebooks() if known.name == "vae")
    path = root() / "params" / "smoke" / "vae.yaml"
    values = read_yaml(path, path.name) | {"data": "stand-in"}
    config = Config({"KernelManager": {"transport_encryption": "auto"}})  # as in a run
    own, kernels = [], []
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "empty.ipynb")
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        cells = [nbformat.v4.new_code_cell("import torch")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), empty)
        for number in range(many(5)):
            out, run = Path(folder, str(number)), papermill.execute_notebook
            for path, given, times in ((empty, {}, kernels), (vae, values | {"out": str(out)}, own)):
                times.append(timed(run, path, f"{out}.ipynb", given, progress_bar=False, config=config))
            own[-1] -= sum(record.seconds for record in results_journal.read(out / "vae.jsonl").records)
    extra = [beyond - kernel for beyond, kernel in zip(own, kernels, strict=True)]
    shown = f"{statistics.median(extra):.1f} s (kernel and torch: {statistics.median(kernels):.1f} s)"
    return [row("notebook: beyond its cases, kernel start and import", shown, "", seconds=extra, kernel=kernels)]


KERAS = """
import numpy as np
from pomology.devices import find
find.prepare("tensorflow")
from pomology.experiment import trainers
from pomology.experiment.experiment import Experiment
experiment = Experiment("mlp", article="004", framework="tensorflow", devices="cpu", profile="article", out=out)
import keras
from keras import layers
generator = np.random.default_rng(1)
x, y = generator.random((9600, 28, 28), dtype=np.float32), generator.integers(0, 10, 9600)
hidden = [layers.Flatten(), layers.Dense(512, "relu"), layers.Dropout(0.2), layers.Dense(64, "relu")]
model = keras.Sequential([layers.Input((28, 28)), *hidden, layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)

def fit(more=list):
    start = time.perf_counter()
    model.fit(x[:8000], y[:8000], 32, 1, verbose=0, validation_data=(x[8000:], y[8000:]), callbacks=more())
    return time.perf_counter() - start

def clocked():
    case = next(cases)
    with case:
        return fit(lambda: [trainers.keras(case, samples=8000, validation_samples=1600, batch_size=32)])

fit()
cases = experiment.cases(pair=range(int(arguments[0])))
print(json.dumps(paired(clocked, fit, int(arguments[0]))))
"""


FIT = """
import nbformat
import numpy as np
from pomology.devices import find
find.prepare("tensorflow")
import keras
from keras import layers
from pomology.experiment import trainers
from pomology.experiment.experiment import Experiment
from pomology.paths import root
name, pairs, batch_size, samples, budget_s = arguments[0], *map(int, arguments[1:4]), float(arguments[4])
cells = nbformat.read(root() / "notebooks" / "m2_max_vs_nvidia" / f"{name}.ipynb", 4).cells
exec(next(cell.source for cell in cells if cell.source.startswith("def build(")))
generator, held_out = np.random.default_rng(1), samples // 5
x, y = generator.random((samples + held_out, 28, 28), dtype=np.float32), generator.integers(0, 10, samples + held_out)
counts = {"samples": samples, "validation_samples": held_out, "batch_size": batch_size, "epochs": 5}
data = {"validation_data": (x[samples:], y[samples:]), "batch_size": batch_size, "verbose": 0}

def fit(epochs=5, more=list):
    keras.utils.set_random_seed(1)
    model = build("cpu")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    start = time.perf_counter()
    model.fit(x[:samples], y[:samples], epochs=epochs, callbacks=more(), **data)
    return time.perf_counter() - start

def estimated():
    case = next(cases)
    with case:
        fit(more=lambda: [trainers.keras(case, **counts)])
    total = experiment.records[-1].metrics["fit_s"]
    return [total.value, total.low, total.high, total.how]

fit(epochs=1)
experiment = Experiment(name, article="004", framework="tensorflow", devices="cpu", budget_s=budget_s, out=out)
cases, found = experiment.cases(pair=range(pairs)), []
for number in range(pairs):
    order = (fit, estimated) if number % 2 else (estimated, fit)
    both = {side: side() for side in order}
    found.append([both[fit], *both[estimated]])
print(json.dumps(found))
"""


def fit() -> list[dict]:
    """Whole trainings in Keras without the kit, against what it says that they take from some of their steps."""
    found = []
    for name, pairs, batch_size in (("mlp", 4, 32), ("cnn", 3, 512), ("lstm", 3, 512)):
        some = (1, batch_size, 10_000, 0.8) if TENTH else (pairs, batch_size, 50_000, 4.0)
        found += program(FIT, name, *some)
    inside = sum(low is not None and low <= whole <= high for whole, _, low, high, _ in found)
    ratios = [whole / value for whole, value, *_ in found]
    shown = f"{inside} of {len(found)}; ratios {min(ratios):.3f} to {max(ratios):.3f}"
    least = math.ceil(0.8 * len(found))  # of ten at 95 % each, fewer are inside once in eighty times
    name = "fit: whole trainings inside the interval of their estimate"
    return [row(name, shown, f"at least {least}", inside >= least, pairs=found)]


LIGHTNING = """
import warnings
warnings.simplefilter("ignore")
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.nn import functional as F
from torch.utils.data import DataLoader
from pomology.data.images import cifar10
from pomology.experiment import trainers
from pomology.experiment.experiment import Experiment
from pomology.workloads import simclr, vision

class SimCLR(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = vision.simclr_resnet18()
    def training_step(self, batch, number):
        one, other = (F.normalize(self.model(images), dim=1) for images in batch[0])
        loss = F.cross_entropy(one @ other.T / 0.5, torch.arange(len(one), device=one.device))
        self.log("train_loss_ssl", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)

off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
views = simclr.PNGPictures(cifar10("stand-in", size=24), simclr.two_views)
loader = DataLoader(views, 4, shuffle=True, drop_last=True)
# Its clock runs the whole epoch of 6 steps; the ready batches behind it are taken out of its time.
experiment = Experiment("simclr", article="000", devices="cpu", profile="article", budget_s=0.001, out=out)

def fit(batches=loader, more=()):
    options = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "num_sanity_val_steps": 0}
    model, trainer = SimCLR(), Trainer(callbacks=list(more), default_root_dir=out, **options, **off)
    start = time.perf_counter()
    trainer.fit(model, batches)
    return time.perf_counter() - start

def clocked():
    case = next(cases)
    with case:
        callback = trainers.lightning(case)
        seconds = fit(callback.steps(loader), [callback])
        return seconds - sum(block.seconds for block in case.clock.parts["training"].ready_blocks)

fit()
cases = experiment.cases(pair=range(int(arguments[0])))
print(json.dumps(paired(fit, clocked, int(arguments[0]))))
"""


PRODUCTS = """
import nbformat
from pomology.paths import root
from pomology.workloads import products as blas
framework, most = arguments
path = root() / "notebooks" / "profiling_apple_silicon" / f"blas_{framework}.ipynb"
cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
# As the notebook: its parameters, its set-up and its way to build a product; then its cases, a loop around each.
folder = out
exec(cells[0])
devices, out = "cpu", folder
for source in cells[1:4]:
    exec(source)
(cpu,) = experiment.devices

def independent(function):
    if framework == "torch":
        from torch.utils.benchmark import Timer
        timer = Timer("function()", globals={"function": function}, num_threads=cpu.threads)
        return timer.blocked_autorange(min_run_time=0.2).median
    start, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < 0.2:
        mx.eval(function())
        count += 1
    return (time.perf_counter() - start) / count

def own(case, product, multiply):
    blas.measure(case, product, multiply, 0.2)
    return case._metrics["kernel_s"].value

ratios = {}
chosen = [row for kind in ("fp32", "fp16") for row in products if row["precision"] == kind]
for case in experiment.cases(chosen):
    if len(ratios) == int(most):
        break
    with case:
        product = blas.Product.of(case.config)
        blas.require_time(case, product, build, 0.5)
        multiply = build(case, product)
        blas.check(case, product, seed, *numbers(multiply()))
        independent(multiply)
        ratios[case.name] = paired(lambda: own(case, product, multiply), lambda: independent(multiply), 6)
print(json.dumps(ratios))
"""


def products() -> list[dict]:
    """Thirty matrix products as their notebooks time them, against torch's Timer and a plain loop of MLX."""
    rows = []
    for framework, other in (("torch", "torch's Timer"), ("mlx", "a plain loop")):
        raw = program(PRODUCTS, framework, many(30))
        middles = [statistics.median(ratios) for ratios in raw.values()]
        away = statistics.median(abs(ratio - 1) for ratio in middles)
        shown = f"{statistics.median(middles):.4f}; median |error| {away:.1%}"
        name = f"products: {len(raw)} with {framework} against {other}"
        rows.append(row(name, shown, "median 5 %", away <= 0.05, raw=raw))
    return rows


def reproduced(name: str, only: str, *more: str) -> Path:
    """The folder of a run of these notebooks, made anew."""
    out = root() / "outputs" / f"bench-{name}"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "pomology", "reproduce", f"--profile={'smoke' if TENTH else 'quick'}"]
    command += [f"--only={only}", f"--run={out.name}", "--data=stand-in", *more]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return out


def ceilings() -> list[dict]:
    """Three runs of the ceilings and of cases below them: how far the ceilings are apart, and what exceeds them."""
    from pomology.report import roofline
    from pomology.results.run import Run

    only = "ceilings ceilings_mlx blas_torch blas_mlx capabilities model_sizes vae simclr"
    runs = []
    for number in range(3):
        out = reproduced(f"ceilings-{number}", "ceilings ceilings_mlx vae" if TENTH else only)
        runs.append([record.replace(profile="quick") for record in Run(out).records])  # a smoke test has no ceilings
        shutil.rmtree(out)
    best, rows = [roofline.ceilings(records) for records in runs], []
    for known in ([each.rates for each in best], [each.bandwidths for each in best]):
        for key in known[0]:
            values = [each[key].value for each in known if key in each]
            apart, title = (
                max(values) / min(values) - 1,
                f"ceilings: {' '.join(key)}, best of three runs over the least",
            )
            good = apart <= 0.03 if key[1] == "fp32" else None
            rows.append(
                row(title, f"{apart:.1%} of {len(values)}", "3 %" if good is not None else "", good, raw=values)
            )
    above = []
    for records, ceilings in zip(runs, best, strict=True):
        rated = roofline.rated(records, without=roofline.CEILINGS)
        shares = ((record, roofline.share(record, ceilings, rate)) for record, rate in rated)
        above += [(record.experiment, record.case, share.value) for record, share in shares if share]
    over = [each for each in above if each[-1] > 1.02]
    most = max((share for *_, share in above), default=0.0)
    shown = f"{len(over)} of {len(above)}, at most {most:.1%}"
    return [*rows, row("ceilings: cases that exceed theirs by over 2 %", shown, "none", not over, cases=over)]


def again() -> list[dict]:
    """A notebook of 75 products, run three times and three times again: how many rows `compare` calls different."""
    from pomology.report import compare

    runs = [reproduced(f"again-{number}", "blas_torch", "--device=cpu", "--repeats=3") for number in (1, 2)]
    verdicts = [line["verdict"] for line in compare.side_by_side([compare.load(run) for run in runs]).data]
    for out in runs:
        shutil.rmtree(out)
    called = sum(verdict in ("faster", "slower") for verdict in verdicts)
    shown = f"{called} of {len(verdicts)} rows: {called / len(verdicts):.1%}"
    return [row("again: REPEATS=3 twice, rows called different", shown, "at most 5 %", called <= 0.05 * len(verdicts))]


THOUSAND = """
import resource
from pomology.report import compare
places = compare.find(arguments)
start = time.perf_counter()
runs = [compare.load(place) for place in places]
loaded = time.perf_counter()
table = compare.side_by_side(runs)
compared = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"load_s": loaded - start, "compare_s": compared - loaded, "rows": len(table.data), "bytes": peak}))
"""


def thousand_runs(folder: Path, runs: int, repeats: int, chooser: random.Random) -> int:
    """Write runs of 150 endings in 20 journals each, with starts and raw blocks as a real run's; returns the bytes."""
    metric = {"unit": "s", "n": 100, "how": "measured"}
    start = {"schema": 1, "article": "003", "framework": "torch", "framework_version": "2.13.0", "backend": "cpu"}
    start |= {"precision": "fp32", "device": "cpu", "chip": "Synthetic 1", "profile": "quick", "threads": 2}
    start |= {"data": "stand-in", "data_origin": "stand-in for MNIST: not asked for", "scaled": False}
    start |= {"power_source": None, "started": "2026-05-04T03:02:01Z"}
    end = {"parameters": 652_824, "flops_per_step": 10**9, "foreign_load": 0.1, "flags": [], "status": "ok"}
    end |= {"reason": None, "seconds": 4.8}
    others = ("cpu_busy", "footprint_peak_bytes", "page_faults", "page_ins", "swap_bytes", "loss_first", "loss_last")
    also = {name: {"value": 1.5, "low": None, "high": None, **metric} for name in others}
    about = {"chip": "Synthetic 1", "cpu_cores": 2, "memory_bytes": 2**34, "os": "Linux", "python": "3.11.9"}
    total = 0
    for out in (folder / f"run-{number:04}" for number in range(runs)):
        out.mkdir(parents=True)
        (out / "machine.json").write_text(json.dumps(about))
        for journal in range(20):
            text = ""
            for case, again in (divmod(number, repeats) for number in range(8 if journal < 10 else 7)):
                named = {"experiment": f"experiment_{journal}", "case": f"batch_size={case}", "repeat": again}
                named = start | named | {"config": {"batch_size": case}}
                values = {name: chooser.lognormvariate(0, 0.1) for name in ("step_s", "epoch_s")}
                times = {n: {"value": x, "low": 0.97 * x, "high": 1.03 * x, **metric} for n, x in values.items()}
                blocks = [[16, round(chooser.random(), 9)] for _ in range(chooser.randrange(20, 180))]
                last = {"metrics": times | also, "blocks": {"training": {"steady": blocks}}}
                lines = ({"event": "start", **named}, {"event": "end", **named, **end, **last})
                text += "".join(json.dumps(line) + "\n" for line in lines)
            total += len(text)
            (out / f"experiment_{journal}.jsonl").write_text(text)
    return total


def thousand() -> list[dict]:
    """The journals of 1,000 runs of 150 cases each, read and compared: all of single runs, and all of three repeats."""
    rows = []
    for repeats_, name in ((1, "150 cases"), (3, "50 cases, three repeats")):
        with tempfile.TemporaryDirectory() as folder:
            size = thousand_runs(Path(folder), many(1_000), repeats_, random.Random(1))
            tries = [program(THOUSAND, folder) for _ in range(3)]
        best = min(tries, key=lambda one: one["load_s"] + one["compare_s"])
        seconds = best["load_s"] + best["compare_s"]
        shown = f"{seconds:.2f} s ({best['load_s']:.2f} to load), {best['bytes'] / 1e6:.0f} MB"
        good = seconds <= 3 and best["bytes"] <= 500e6
        title = f"thousand: runs of {name}, {size / 1e6:,.0f} MB, {best['rows']:,} rows"
        rows.append(row(title, shown, "at most 3 s, 500 MB", good, **best))
    return rows


PHASES = """
import torch
from pomology.experiment.experiment import Experiment
torch.manual_seed(1)
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens, count = torch.randn(4, 128, 256), 20

def bare():
    spent = 0.0
    for _ in range(count):
        start = time.perf_counter()
        loss = model(tokens).square().mean()
        loss.backward()
        spent += time.perf_counter() - start
        optimizer.step()
        optimizer.zero_grad()
    return spent / count

def phased():
    case = next(cases)
    with case:
        for _ in case.steps(range(count), ready=False):
            with case.phase("forward"):
                loss = model(tokens).square().mean()
            with case.phase("backward"):
                loss.backward()
            with case.phase("update"):
                optimizer.step()
                optimizer.zero_grad()
        blocks = case.clock.parts["training"].blocks
        passes = sum(block.phases["forward"] + block.phases["backward"] for block in blocks)
        return passes / sum(block.steps for block in blocks)

bare()
cases = Experiment("bench", article="001", devices="cpu", budget_s=1000, out=out).cases(pair=range(int(arguments[0])))
print(json.dumps(paired(phased, bare, int(arguments[0]))))
"""


# A row each of what short and long cases time, as JSON: seconds by metric, and flags.
ROWS = """
import torch
from pomology.experiment.experiment import Experiment
torch.manual_seed(1)
layers = [torch.nn.Linear(256, 256) for _ in range(8)]
model, inputs = torch.nn.Sequential(*layers), torch.randn(64, 256)
a, b, big = torch.randn(512, 512), torch.randn(512, 512), torch.randn(10_000_000)
work = {"layers": lambda: model(inputs).sum().backward(), "product": lambda: a @ b, "add": lambda: big + big}
work["sum"] = big.sum
experiment, found = Experiment("busy", article="003", devices="cpu", budget_s=float(arguments[0]), out=out), {}
for case in experiment.cases(what=list(work), number=range(int(arguments[1]))):
    with case:
        if case.number % 2:
            case.measure("step_s", work[case.what])
        else:
            for _ in case.steps(range(10**6), ready=False):
                work[case.what]()
for record in experiment.records:
    row = {"what": record.config["what"], "s": record.metrics["step_s"].value, "flags": record.flags}
    found[record.case] = row | {"load": record.foreign_load, "threads": record.threads, "took_s": record.seconds}
print(json.dumps(found))
"""
LOADS = {"a spinner": "while True: pass"}
LOADS["a memory hog"] = "held = bytearray(400_000_000)\nwhile True: held[:200_000_000] = held[200_000_000:]"
DOUBTFUL = {"contended", "busy", "paused", "slowed", "cut-short", "too-noisy", "drift", "swapping"}


@contextlib.contextmanager
def beside(text: str):
    """A program of Python that runs for as long as the block does; none if empty."""
    with subprocess.Popen([sys.executable, "-c", text]) as other:
        try:
            time.sleep(0.5)
            yield
        finally:
            other.kill()


def quota(cores: float) -> Path | None:
    """A new cgroup with so many cores; None where none can be made."""
    for parent, name in ((Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us"), (Path("/sys/fs/cgroup"), "cpu.max")):
        with contextlib.suppress(OSError):
            folder = parent / "pomology-bench"
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(str(int(100_000 * cores)))
            return folder
    return None


def rows_of(load: str = "", stops: bool = False, cgroup: Path | None = None) -> dict[str, dict]:
    """The rows of `ROWS` beside a program, of a process that stands still for 0.5 of every 1.5 s, or in a cgroup."""
    enter = f"open('{cgroup}/cgroup.procs', 'w').write(str(__import__('os').getpid()))\n" if cgroup else ""
    text = f"{enter}import json, sys, time\nout, *arguments = sys.argv[1:]\n{ROWS}"
    with tempfile.TemporaryDirectory() as folder, beside(load):
        command = [sys.executable, "-c", text, folder, str(0.05 if TENTH else 0.4), str(many(10))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            while stops and process.poll() is None:
                for number, seconds in ((signal.SIGSTOP, 0.5), (signal.SIGCONT, 1.0)):
                    process.send_signal(number)
                    time.sleep(seconds)
            printed = process.communicate()[0]
    return json.loads(printed.splitlines()[-1])


def busy() -> list[dict]:
    """Short and long cases alone and beside planted loads: rows that are off by over 20 % and carry no flag."""
    alone = [rows_of() for _ in range(3)]
    usual = {name: statistics.median(run[name]["s"] for run in alone) for name in alone[0]}
    flagged = [bool(DOUBTFUL & {*row["flags"]}) for run in alone for row in run.values()]
    share = sum(flagged) / len(flagged)
    lines = [row("busy: rows with a flag, alone", f"{share:.1%} of {len(flagged)}", "at most 2 %", share <= 0.02)]
    loads = {name: functools.partial(rows_of, text) for name, text in LOADS.items()}
    loads["stops for a third of the time"] = functools.partial(rows_of, stops=True)
    for cores in (1.0, 0.5):
        loads[f"a quota of {cores:g} cores"] = lambda cores=cores: (place := quota(cores)) and rows_of(cgroup=place)
    for name, measured in loads.items():
        if (rows := measured()) is None:
            lines.append(row(f"busy: beside {name}", "no cgroup can be made here", ""))
            continue
        off = {case: one for case, one in rows.items() if not 1 / 1.2 < one["s"] / usual[case] < 1.2}
        silent = {case: one for case, one in off.items() if not DOUBTFUL & {*one["flags"]}}
        shown = f"{len(off)} of {len(rows)} off, {len(silent)} unflagged"
        lines.append(row(f"busy: beside {name}", shown, "none unflagged", not silent, rows=rows, usual=usual))
    if place := quota(1.0):
        place.rmdir()
    return lines


def run_of(name: str) -> tuple[float, list]:
    """Seconds of a run of three notebooks, and its records."""
    out = root() / "outputs" / f"bench-{name}"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "pomology", "reproduce", f"--profile={'smoke' if TENTH else 'quick'}"]
    command += ["--only=vae capabilities mlp", "--device=cpu", f"--run={out.name}", "--data=stand-in"]
    seconds = timed(subprocess.run, command, stdout=subprocess.DEVNULL, check=False)
    records = Run(out).records
    shutil.rmtree(out)
    return seconds, records


def spinner() -> list[dict]:
    """A run alone and beside a program that spins on one core: how much longer it takes, and what its rows say."""
    alone_s, _ = run_of("alone")
    with beside(LOADS["a spinner"]):
        busy_s, records = run_of("busy")
    rows = [record for record in records if record.foreign_load is not None]
    said, shown = sum("contended" in record.flags for record in rows), f"{busy_s / alone_s:.2f} ({alone_s:.0f} s alone)"
    lines = [row("spinner: vae, capabilities and mlp, time over alone", shown, "at most 2", busy_s <= 2 * alone_s)]
    return [*lines, row("spinner: rows that say contended", f"{said} of {len(rows)}", "all", said == len(rows))]


STEPS = """
import os
if arguments:
    os.environ[arguments[0]] = arguments[1]
import torch
layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3)]
model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10))
inputs, times = torch.randn(8, 3, 32, 32), []
while sum(times) < 2:
    start = time.perf_counter()
    model(inputs).sum().backward()
    times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2])
"""
WAYS = (("GOMP_SPINCOUNT", 1000), ("GOMP_SPINCOUNT", 20000), ("OMP_WAIT_POLICY", "PASSIVE"), ("OMP_NUM_THREADS", 1))


def spinning() -> list[dict]:
    """A small step with other ways for OpenMP's threads to wait, over the default's time, alone and beside a spinner:
    what a variable costs an idle machine, and gains on a busy one. `GOMP_SPINCOUNT=20000 make reproduce` tries it."""
    lines = []
    for place, load in (("alone", ""), ("beside a spinner", LOADS["a spinner"])):
        for way in WAYS:
            with beside(load):
                ratios = paired(lambda way=way: program(STEPS, *way), lambda: program(STEPS), many(8))
            lines.append(ratio_row(f"spinning: {way[0]}={way[1]}, {place}", ratios, 0, 99, ""))
    return lines


# The kit's callbacks, clock and phases in a framework, against the same without them: (title, program, pairs, bounds).
IN_FRAMEWORKS = {
    "keras": ("keras: an epoch with callback against bare fit (MLP, batch 32)", KERAS, 61, 0, 1.02, "at most 1.02"),
    "lightning": (
        *("lightning: SimCLR's steps a second with the clock against bare", LIGHTNING, 21),
        *(0.98, 99, "at least 0.98"),
    ),
    "phases": (
        *("phases: forward and backward of a transformer against a bare loop", PHASES, 41),
        *(0.97, 1.03, "within 3 %"),
    ),
}


def in_framework(title: str, text: str, pairs: int, low: float, high: float, bound: str) -> list[dict]:
    return [ratio_row(title, program(text, many(pairs)), low, high, bound)]


class InTurn:
    """A case of a notebook, and a loader of one batch for it: each of its steps follows one of upstream's own."""

    device, backend = torch.device("cpu"), SimpleNamespace(kind="cpu")  # which nothing is proved of
    require_memory = loss = note = lambda self, *_: None
    occasional = staticmethod(lambda *_, **__: contextlib.nullcontext())

    def __init__(self, batch: tuple, other: Callable[[], None], count: int, **config: int):
        self.batch, self.other, self.count, self.config, self.ratios = batch, other, count, config, []
        self.__dict__ |= config

    def watch_model(self, model: nn.Module) -> nn.Module:
        return model

    def steps(self, batches: Any, part: str = "training") -> Any:
        return measure_clock.StepClock(whole=True).steps(self) if part == "training" else iter(())

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        for _ in range(self.count):
            seconds, start = timed(self.other), time.perf_counter()
            yield self.batch
            self.ratios.append((time.perf_counter() - start) / seconds)


def upstream() -> list[dict]:
    """Steps of the notebooks' own loops, on the clock, in turn with bare steps of the articles' code."""
    import test_notebooks
    import upstream as bare

    torch.manual_seed(1)
    images, digits, photos = torch.rand(128, 1, 28, 28), 255 * torch.rand(2, 64, 1, 28, 28), torch.rand(64, 3, 64, 64)
    targets, views, words = torch.arange(64) % 2.0, torch.randn(2, 32, 3, 32, 32), 33_278
    tokens, following = torch.randint(words, (35, 20)), torch.randint(words, (700,))
    model = {"batch_size": 20, "embedding_size": 200, "layers": 2, "hidden_size": 200}
    cases = {
        "vae": InTurn((images, None), bare.vae(images), many(600), batch_size=128),
        "siamese": InTurn((*digits, targets), bare.siamese(*digits, targets), max(12, many(60)), batch_size=64),
        "dcgan": InTurn((photos, None), bare.dcgan(photos), max(12, many(40)), batch_size=64),
        "transformer_lm": InTurn(
            (tokens, following), bare.transformer_lm(tokens, following, words), max(12, many(60)), **model
        ),
        "simclr": InTurn((views, None, None), bare.simclr(*views), max(12, many(30)), batch_size=32),
    }
    rows = []
    for name, case in cases.items():
        scope = test_notebooks.definitions(name, DataLoader=None)
        scope["train"].__globals__["DataLoader"] = lambda *_, case=case, **__: case
        if name == "simclr":  # Lightning has the loop, there and here
            module = scope["SimCLR"](SimpleNamespace(augmentation="loader"), None, None)
            module.log = lambda *_: None
            (optimizer,), _ = module.configure_optimizers()
            for number, batch in enumerate(case.steps(case)):
                optimizer.zero_grad()
                module.training_step(batch, number).backward()
                optimizer.step()
        else:
            scope["train"](case)
        title = f"upstream: a step of {name}, on the clock, against the article's own code"
        rows.append(ratio_row(title, case.ratios[3:] or case.ratios, 0.98, 1.02, "within 2 %"))
    return rows


PROOF = """
import os, random
from types import SimpleNamespace
count, noise, fault, folder = int(arguments[0]), float(arguments[1]), float(arguments[2]), arguments[3]
sys.path.insert(0, folder)
import torch
from torch import nn
from torch.nn import functional as F
import pretended_mps
from pomology.errors import Mismatch
from pomology.workloads import proof

torch.set_num_threads(1)
pretended_mps.support = lambda name: "kernel"
rehearsal, own, aten = pretended_mps.Rehearsal(), torch.Generator().manual_seed(1), torch.ops.aten
PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.convolution, aten.convolution_backward)

class Noisy(dict):
    # Every operator but copies and views has rounding of its own, as of its result's last digit where that is half.
    faulty = None

    def get(self, function, otherwise):
        right, base = dict.get(self, function, otherwise), function.overloadpacket
        if function in pretended_mps.COPIES or function.is_view or base in (aten.clone, aten._unsafe_view):
            return right
        def call(*given, **named):
            result = right(*given, **named)
            for item in result if isinstance(result, tuple) else [result]:
                if isinstance(item, torch.Tensor) and item.is_floating_point() and item.numel():
                    size = max(noise, torch.finfo(item.dtype).eps / 4)
                    scale = item.abs() + (item.square().mean().sqrt() if base in PRODUCTS else 0)
                    item.add_(size * scale * torch.randn(item.shape, generator=own).to(item.dtype))
                    if self.faulty is base:
                        item.mul_(1 + fault)
            return result
        return call

pretended_mps.BY_HAND = Noisy(pretended_mps.BY_HAND)

class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)
    def forward(self, x):
        return x + self.layers(x)

class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]

def row(chosen):
    n, w, batch = chosen.randint(5, 60), 8 * chosen.randint(1, 6), chosen.randint(2, 40)
    size, words, kind = 2 * chosen.randint(4, 12), chosen.randint(20, 4000), chosen.randrange(7)
    norm = nn.BatchNorm2d(w)
    image = lambda count: torch.rand(count, 3, size, size)
    tokens = lambda count: torch.randint(words, (count, n))
    if kind == 0:  # a residual network
        inside = nn.Conv2d(w, w, 3, padding=1, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True)
        model = nn.Sequential(nn.Conv2d(3, w, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2), Residual(*inside),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w, 10))
        return model, image, lambda y: F.cross_entropy(y.float(), torch.randint(10, (len(y),)))
    if kind == 1:  # DCGAN
        model = nn.Sequential(nn.ConvTranspose2d(n, w, 4, bias=False), norm, nn.ReLU(True),
            nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Tanh(), nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
            nn.Linear(8 * 16, 1))
        draw = lambda count: torch.randn(count, n, 1, 1)
        return model, draw, lambda y: F.binary_cross_entropy_with_logits(y.float(), torch.rand(len(y), 1))
    if kind == 2:  # VAE
        model = nn.Sequential(nn.Linear(n, w), nn.ReLU(), nn.Linear(w, n), nn.Sigmoid())
        loss = lambda y: F.mse_loss(y.float(), torch.rand(len(y), n), reduction="sum") - (1 - y.float().exp()).mean()
        return model, lambda count: torch.rand(count, n), loss
    if kind == 3:  # Siamese
        model = nn.Sequential(nn.Conv2d(3, w, 3, 2, groups=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(w))
        model(torch.rand(1, 3, size, size))
        return model, image, lambda y: F.pairwise_distance(y.float(), y.float().flip(0) + 0.1).clamp(min=0.1).mean()
    head = nn.Linear(w, words)
    middle = [nn.TransformerEncoderLayer(w, 2, 4 * w, 0.2, batch_first=True)] if kind == 4 else [
        Recurrent(w, w, batch_first=True)] if kind == 5 else [Residual(nn.LayerNorm(w), nn.Linear(w, 4 * w),
        nn.GELU("tanh"), nn.Linear(4 * w, w), nn.Dropout(0.1)), nn.LayerNorm(w)]
    model = nn.Sequential(nn.Embedding(words, w), *middle, head)
    if kind == 6:  # as GPT-2's
        head.weight = model[0].weight
    loss = lambda y: F.cross_entropy(y.float().flatten(0, 1), torch.randint(words, (len(y) * n,)))
    return model, tokens, loss

found = {"rows": 0, "said": [], "left": {}, "half": 0}
for number in range(count):
    chosen, notes = random.Random(number), []
    torch.manual_seed(number)
    precision = chosen.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16))
    cast, case = precision is not torch.float32, SimpleNamespace(device=rehearsal.handle, config={}, batch_size=9)
    case.batch_size, case.note = chosen.randint(2, 40), lambda *said: notes.append(said[0])
    case.metric = lambda *_: None
    case.backend = SimpleNamespace(kind="gpu", backend="mps", tf32=False, free_memory=lambda: 2**24)
    case.backend.reset_peak_memory = lambda: None
    proof.POISON_BYTES, case.backend.free_memory = 2**16, lambda: 2**30
    Noisy.faulty = None
    with rehearsal.entered():
        model, draw, loss = row(chosen)
        model.to(rehearsal.handle)

        def step(model, size):
            with torch.autocast(rehearsal.handle.type, dtype=precision if cast else torch.bfloat16, enabled=cast):
                loss(model(draw(size))).backward()

        Noisy.faulty = chosen.choice(PRODUCTS[:2] if fault else (None,))
        try:
            proof.prove(case, model, step)
        except Mismatch as error:
            found["said"].append(f"{number}, {precision}: {error}")
    found["rows"] += 1
    found["half"] += cast
    for note in notes:
        found["left"][note] = found["left"].get(note, 0) + 1
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


def proof() -> list[dict]:
    """Rows that are right, on a pretended GPU with rounding of its own, and what the proof of a step says of them; and
    rows with one operator wrong by a share."""

    def proved(count: int, noise: float, fault: float = 0.0) -> dict:
        return program(PROOF, many(count), noise, fault, Path(__file__).parent)

    rows = []
    for noise, count in ((1e-6, 1000), (5e-6, 100), (2e-5, 100)):
        found = proved(count, noise)
        shown, good = f"{len(found['said'])} of {found['rows']}", len(found["said"]) == 0 if noise <= 1e-6 else None
        rows.append(row(f"proof: false alarms, noise {noise:g}", shown, "0" if noise <= 1e-6 else "", good, **found))
    for fault in (1e-4, 1e-3, 0.1):
        found = proved(100, 1e-6, fault)
        shown = f"{len(found['said'])} of {found['rows']}"
        rows.append(row(f"proof: products wrong by {fault:g}, said of", shown, "", None, **found))
    return rows


PARTS = (coverage, errors, clock, loop, kernels, estimate, fit, repeats, claims, notebook, products, ceilings, again)
PARTS += (thousand, busy, spinner, spinning, upstream, proof)


def main() -> int:
    parts: dict[str, Callable] = {part.__name__: part for part in PARTS}
    parts |= {name: functools.partial(in_framework, *about) for name, about in IN_FRAMEWORKS.items()}
    chosen = [name for name in sys.argv[1:] if name != "--tenth"] or list(parts)
    if unknown := [name for name in chosen if name not in parts]:
        print(f"bench: no part is named {unknown[0]!r}; there are {', '.join(parts)}", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    rows = [line for name in chosen for line in parts[name]()]
    path = root() / "outputs" / "bench.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")
    outside = [line["name"] for line in rows if line["within"] is False]
    print(f"\n{len(outside)} of {len(rows)} outside their bounds; written to outputs/bench.json")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
