"""The measuring, measured: each part of the instrument against an independent way to do the same, as ratios. How its
clock agrees with others and how two runs differ is measured by the notebook `instrument_check`.

    make bench                            everything, about an hour on two cores
    python tests/bench.py clock           some parts only
    python tests/bench.py --tenth clock   with a tenth of the pairs: whether it works, not what it says

Pairs run in turn, and the median of their ratios is what counts: a busy machine moves both sides. Prints a table and
writes it to outputs/bench.json. `upstream` and `fit` take ten minutes each, `trainings` thirty; they print each round
as it ends, and go on where they were cut. Nothing here is part of `make test`, since a busy machine could fail it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import math
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simulations
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from pomology.data.digits import ArticleMNIST
from pomology.data.images import mnist
from pomology.machine import snapshot
from pomology.machine.sampler import Sampler
from pomology.measure import clock as measure_clock
from pomology.measure import epochs, intervals
from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.results.run import Run

TENTH = "--tenth" in sys.argv


def many(count: int) -> int:
    """So many pairs or runs; a tenth of them, but two at the least, where only that is asked for."""
    return max(2, count // 10) if TENTH else count


def row(name: str, shown: str, bound: str, good: bool | None = None, **raw) -> dict:
    verdict = {True: "within", False: "OUTSIDE", None: "cannot be told" if bound else ""}[good]
    print(f"{name:62} {shown:32} {bound:26} {verdict}", flush=True)
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


def printed(*command: object) -> Iterator[Any]:
    """The lines of JSON that a program of Python prints, each as soon as it is there. Raises CalledProcessError."""
    arguments = [sys.executable, *map(str, command)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # what a notebook's cases say
                yield json.loads(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, arguments)


def lines(text: str, *arguments: object) -> Iterator[Any]:
    """What a program prints, in a process of its own; it has `paired`, and first gets an empty folder."""
    begin = f"import json, sys, time\n{inspect.getsource(paired)}\nout, *arguments = sys.argv[1:]\n"
    with tempfile.TemporaryDirectory() as folder:
        yield from printed("-c", begin + text, folder, *arguments)


def program(text: str, *arguments: object) -> Any:
    """The last line of it."""
    return deque(lines(text, *arguments), maxlen=1).pop()


class Rounds:
    """What a long part has measured so far, kept in outputs/, so that it goes on where it was cut: with the same
    software, and unless only a tenth is asked for."""

    def __init__(self, part: str, total: int, about_s: float):
        software = snapshot.software() | {"tenth": TENTH, "machine": snapshot.chip()}
        name = hashlib.sha256(json.dumps(software, sort_keys=True).encode()).hexdigest()[:12]
        self.path = root() / "outputs" / f"bench-{part}-{name}.jsonl"
        self.path.parent.mkdir(exist_ok=True)
        known = self.path.read_text().splitlines() if self.path.exists() else []
        self.done, self.part, self.total = [json.loads(line) for line in known], part, total
        left = total - len(self.done)
        before = f", {len(self.done)} from before" if self.done else ""
        print(f"{part}: {total} rounds{before}; about {left * about_s / 60:.1f} minutes on two idle cores", flush=True)

    def add(self, measured: Any, shown: str) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(measured) + "\n")
        self.done.append(measured)
        print(f"  {self.part} {len(self.done)} of {self.total}: {shown}", flush=True)

    def end(self) -> list:
        """All of them; the next time begins anew."""
        self.path.unlink(missing_ok=True)
        return self.done


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
        with Sampler() if watched else contextlib.nullcontext():
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
    rows, draws = [], {"interval": many(2_000), "measure": many(1_000)}
    for lag in simulations.LAGS:
        cells: dict[str, dict[str, float]] = {"measure": {}, "StepClock": {}}
        for function in (intervals.interval, intervals.median_interval):
            sizes = (6, 8, 12, 20, 40, 100, 400, 1000)
            cells[function.__name__] = {
                f"{size}": simulations.covered(function, lag, size, draws["interval"]) for size in sizes
            }
        for step_s in (0.001, 0.01, 0.03):
            of_calls = [each.seconds for each in simulations.measured(lag, step_s, draws["measure"])]
            cells["measure"][f"{step_s * 1e3:g} ms"] = simulations.share(of_calls, step_s)
        for step_s in (0.005, 0.02, 0.1):
            parts = simulations.clocked(lag, step_s, draws["measure"])
            for name, blocks, truth in (("", "blocks", step_s), (" ready", "ready_blocks", 0.8 * step_s)):
                steps = [measure_clock.interval(getattr(part, blocks)) for part in parts]
                cells["StepClock"][f"{step_s * 1e3:g} ms{name}"] = simulations.share(steps, truth)
        for name, shares in cells.items():
            error = 2 * math.sqrt(0.95 * 0.05 / draws["interval" if "interval" in name else "measure"])
            few = [size for size in shares if size in ("6", "8", "12")]  # of which only too few is judged
            good = min(shares.values()) >= 0.92 - error
            good &= all(share <= 0.97 + error for size, share in shares.items() if size not in few)
            bound = f"92 to 97 % (± {100 * error:.1f})" + (", below 20 values at least 92 %" if few else "")
            shown = " ".join(f"{100 * share:.1f}" for share in shares.values())
            title = f"coverage: {name}, lag-1 {lag}, {', '.join(shares)}"
            rows.append(row(title, shown, bound, good, cells=shares))
    return rows


# The article's perceptrons, convolutions and LSTM, as their notebooks build them, and a training without the kit.
TRAINING = """
import shutil
import nbformat
import numpy as np
from pomology.devices import find
find.prepare("tensorflow")
import keras
from keras import layers
from pomology.experiment import trainers
from pomology.experiment.experiment import Experiment
from pomology.paths import root
name, pairs, batch_size, samples, epochs = arguments[0], *map(int, arguments[1:5])
for journal in arguments[7:]:
    shutil.copy(journal, out)
cells = nbformat.read(root() / "notebooks" / "m2_max_vs_nvidia" / f"{name}.ipynb", 4).cells
exec(next(cell.source for cell in cells if cell.source.startswith("def build(")))
generator, held_out = np.random.default_rng(1), samples // 5
x, y = generator.random((samples + held_out, 28, 28), dtype=np.float32), generator.integers(0, 10, samples + held_out)
counts = {"samples": samples, "validation_samples": held_out, "batch_size": batch_size, "epochs": epochs}
data = {"validation_data": (x[samples:], y[samples:]), "batch_size": batch_size, "verbose": 0}

def fit(epochs=epochs, more=list):
    keras.utils.set_random_seed(1)
    model = build("cpu")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    start = time.perf_counter()
    model.fit(x[:samples], y[:samples], epochs=epochs, callbacks=more(), **data)
    return time.perf_counter() - start

def clocked():
    case = next(cases)
    with case:
        return fit(more=lambda: [trainers.keras(case, **counts)])

fit(epochs=1)
settings = {"framework": "tensorflow", "devices": "cpu", "profile": arguments[5], "budget_s": float(arguments[6])}
experiment = Experiment(name, article="004", out=out, **settings)
cases = experiment.cases(pair=range(pairs))
"""
KERAS = TRAINING + "print(json.dumps(paired(clocked, fit, pairs)))"
FIT = (
    TRAINING
    + """
class Whole(keras.callbacks.Callback):
    idle_s = 0.0  # between epochs, without computing

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.since_s = epoch, trainers.without_processor_s()

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch and not batch:
            self.add_idle()

    def on_test_end(self, logs=None):
        self.since_s = trainers.without_processor_s()

    def on_epoch_end(self, epoch, logs=None):
        self.add_idle()

    def add_idle(self):
        self.idle_s += max(0.0, trainers.without_processor_s() - self.since_s)

    def on_train_begin(self, logs=None):
        self.began_s = time.perf_counter()

    def on_train_end(self, logs=None):
        self.seconds = time.perf_counter() - self.began_s

def bare():
    global whole
    whole = Whole()
    fit(more=lambda: [whole])

for number in range(pairs):
    for side in (bare, clocked) if number % 2 else (clocked, bare):
        side()
    record = experiment.records[-1]
    total = record.metrics.get("fit_s")
    estimate = [total.value, total.low, total.high, total.how] if total else [None] * 3 + [record.reason or "too slow"]
    print(json.dumps([name, whole.seconds, whole.idle_s, *estimate]), flush=True)
"""
)


def fit() -> list[dict]:
    """Whole trainings in Keras without the kit, less what TensorFlow sleeps between epochs, against what it says that
    they take from some of their steps: of the article's models and epochs, with fewer pictures."""
    kinds = (("mlp", 4, 32, 50_000), ("cnn", 3, 128, 20_000), ("lstm", 3, 128, 20_000))
    rounds = Rounds("fit", sum(pairs for _, pairs, *_ in kinds), 5 if TENTH else 60)
    with reproduced("fit", "instrument_check") as run:
        for name, pairs, batch_size, samples in kinds:
            left = pairs - sum(pair[0] == name for pair in rounds.done)
            size, budget_s = (samples // 10, 0.3) if TENTH else (samples, 2.0)
            settings = name, left, batch_size, size, 5, "quick", budget_s, run / "instrument_check.jsonl"
            for pair in lines(FIT, *settings) if left else ():
                _, whole, idle, value, low, high, how = pair
                shown = how if value is None else f"{how} {value:.2f} s"
                within = "no interval" if low is None else f"{low:.2f} to {high:.2f} s"
                rounds.add(pair, f"{name}, whole {whole:.2f} s, asleep {idle:.2f} s of it, {shown} ({within})")
    # On a fast machine one may fit its budget.
    pairs = [(name, whole - idle, *rest) for name, whole, idle, *rest, how in rounds.end() if how == "estimated"]
    inside = sum(low is not None and low <= whole <= high for _, whole, _, low, high in pairs)
    # Whether anything could be told: an interval as wide, about one whole training, has to hold another one.
    others = [
        abs(other - whole) <= (high - low) / 2
        for number, (name, whole, _, low, high) in enumerate(pairs)
        for other_name, other, *_ in pairs[:number]
        if other_name == name and low is not None
    ]
    ratios = [whole / value for _, whole, value, *_ in pairs]
    shown = f"{inside} of {len(pairs)}; ratios {min(ratios, default=0):.3f} to {max(ratios, default=0):.3f}"
    least = math.ceil(0.8 * len(pairs))  # of ten at 95 % each, fewer are inside once in eighty times
    name, good = "fit: whole trainings inside the interval of their estimate", inside >= least
    row("fit: whole trainings inside such an interval about each other", f"{sum(others)} of {len(others)}", "")
    steady = len(pairs) >= 8 and sum(others) >= 0.8 * len(others)
    return [row(name, shown, f"at least {least}", good if good or steady else None, pairs=pairs)]


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
from pomology.models import simclr, vision

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


@contextlib.contextmanager
def reproduced(name: str, only: str, *more: str) -> Iterator[Path]:
    """The folder of a run of these notebooks, made anew, and removed behind the block."""
    out = root() / "outputs" / f"bench-{name}"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "pomology", "reproduce", f"--profile={'smoke' if TENTH else 'quick'}"]
    command += [f"--only={only}", f"--run={out.name}", "--data=stand-in", *more]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    yield out
    shutil.rmtree(out)


def ceilings() -> list[dict]:
    """Three runs of the ceilings and of cases below them: how far the ceilings are apart, and what exceeds them."""
    from pomology.report import roofline

    only = "ceilings ceilings_mlx blas_torch blas_mlx capabilities model_sizes vae simclr"
    runs = []
    for number in range(3):
        with reproduced(f"ceilings-{number}", "ceilings ceilings_mlx vae" if TENTH else only) as out:
            runs.append([each.replace(profile="quick") for each in Run(out).records])  # a smoke test has no ceilings
    best, rows = [roofline.ceilings(records) for records in runs], []
    for known in ([each.rates for each in best], [each.bandwidths for each in best]):
        for key in known[0]:
            values = [each[key].value for each in known if key in each]
            apart, judged = max(values) / min(values) - 1, key[1] == "fp32"
            title, shown = f"ceilings: {' '.join(key)}, best of three runs over the least", f"{apart:.1%}"
            rows.append(row(title, shown, "3 %" if judged else "", apart <= 0.03 if judged else None, raw=values))
    above = []
    for records, ceilings in zip(runs, best, strict=True):
        rated = roofline.rated(records, without=roofline.CEILINGS)
        shares = ((each, roofline.share(each, ceilings, rate)) for each, rate in rated)
        above += [(each.experiment, each.case, share.value) for each, share in shares if share]
    over = [each for each in above if each[-1] > 1.02]
    most = max((share for *_, share in above), default=0.0)
    shown = f"{len(over)} of {len(above)}, at most {most:.1%}"
    return [*rows, row("ceilings: cases that exceed theirs by over 2 %", shown, "none", not over, cases=over)]


# Kinds of work that programs time; `ROWS` has the first four.
WORK = """
import torch
from torch import nn
from pomology.experiment.experiment import Experiment
torch.manual_seed(1)
layers, inputs = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))), torch.randn(64, 256)
conv, images = nn.Conv2d(32, 64, 3, padding=1), torch.randn(8, 32, 32, 32)
lstm, words = nn.LSTM(64, 128, batch_first=True), torch.randn(16, 32, 64)
a, b, big, small = *torch.randn(2, 512, 512), torch.randn(10_000_000), torch.randn(64, 64)
work = {"layers": lambda: layers(inputs).sum().backward(), "product": lambda: a @ b, "add": lambda: big + big,
        "sum": big.sum, "small product": lambda: small @ small, "lstm": lambda: lstm(words)[0].sum().backward(),
        "convolution": lambda: conv(images).sum().backward()}
"""
# All of them, timed as a case of a notebook is, in one process. As JSON: seconds and flags of each.
PROCESS = f"""
import json, sys
{WORK}
experiment = Experiment("claims", article="003", devices="cpu", budget_s=0.5, out=sys.argv[1])
for case in experiment.cases(what=list(work)):
    with case:
        case.measure("step_s", work[case.what])
print(json.dumps({{each.config["what"]: [each.metrics["step_s"].value, each.flags] for each in experiment.records}}))
"""


def claims() -> list[dict]:
    """How often a sentence about two devices gets a verdict where both are three processes of one thing, and how often
    where one is slower by the smallest ratio that three other rounds said to be detectable.

    A process of either side ran in each round, as `make reproduce REPEATS=3` runs them: nothing is assumed of how such
    times scatter. Several kinds of work, since some have one slow process in ten and others two speeds: a share from
    one kind says little of the rest."""
    from test_verdicts import RATIO, detectable, statuses

    from pomology.articles import claims as judging

    rounds = Rounds("claims", max(6, many(20)), 16)
    while len(rounds.done) < rounds.total:
        with tempfile.TemporaryDirectory() as out:
            pair = [deque(printed("-c", PROCESS, f"{out}/{side}"), maxlen=1).pop() for side in range(2)]
        ratios = (f"{what} {seconds / pair[1][what][0]:.3f}" for what, (seconds, _) in pair[0].items())
        rounds.add(pair, f"one over the other: {', '.join(ratios)}")
    measured, generator, ties, shown = rounds.end(), np.random.default_rng(2), [], []
    for what in measured[0][0]:
        sides = [[one[what] for one in pair] for pair in measured]
        good = [[s for s, _ in pair] for pair in sides if all(DOUBTFUL.isdisjoint(flags) for _, flags in pair)]
        if len(good) < 6:
            return [row("claims: verdicts", f"{what}: {len(good)} quiet rounds", "at least 6")]
        draws = [generator.permutation(good)[:6] for _ in range(many(2_000) // len(measured[0][0]) + 1)]
        drawn = generator.permuted(draws, axis=2).reshape(len(draws), 2, 1, 3, 2)  # draw, set, case, round, side
        (one, other), (slow, fast) = np.moveaxis(drawn, (1, 4), (0, 1))
        said = [detectable(*pair) for pair in zip(one[:, 0], other[:, 0], strict=True)]
        told = statuses(f"{RATIO} > 1", one, other)
        ties.append(np.mean([status != judging.CANNOT_BE_TOLD for status in told]))
        told = statuses(f"{RATIO} > 1", np.reshape(said, (-1, 1, 1)) * slow, fast)
        shown.append(np.mean([status == judging.HOLDS for status in told]))

    def by_kind(shares: list[float]) -> str:
        return f"{np.mean(shares):.1%} ({min(shares):.0%} to {max(shares):.0%} by kind)"

    found, power = "claims: one thing twice gets a verdict", "claims: the smallest detectable ratio is shown again"
    return [
        row(found, by_kind(ties), "at most 5 %", bool(np.mean(ties) <= 0.05), seconds=measured),
        row(power, by_kind(shown), "75 to 85 %", bool(0.75 <= np.mean(shown) <= 0.85)),
    ]


def again() -> list[dict]:
    """A notebook of 75 products, run three times and three times again: how many rows `compare` calls different."""
    from pomology.report import compare

    asked = "blas_torch", "--device=cpu", "--repeats=3"
    with reproduced("again-1", *asked) as first, reproduced("again-2", *asked) as second:
        table = compare.side_by_side([compare.load(first), compare.load(second)])
    verdicts = [line["verdict"] for line in table.data]
    called = sum(verdict in ("faster", "slower") for verdict in verdicts)
    shown = f"{called} of {len(verdicts)} rows: {called / len(verdicts):.1%}"
    return [row("again: REPEATS=3 twice, rows called different", shown, "at most 5 %", called <= 0.05 * len(verdicts))]


# A row each of what short and long cases time, alone, and again behind a line of input, with the same tensors, since
# where these lie makes 1.2 to 1.7 times between processes. As JSON: seconds, and flags.
ROWS = f"""
import json, os, sys
out, budget_s, numbers, cores = sys.argv[1:]
everywhere = os.sched_getaffinity(0)
os.sched_setaffinity(0, sorted(everywhere)[:int(cores)])
{WORK}
"""
ROWS += """
def rows(phase):
    experiment, found = Experiment("busy", article="003", devices="cpu", budget_s=float(budget_s), out=out + phase), {}
    for case in experiment.cases(what=list(work)[:4], number=range(int(numbers))):
        with case:
            if case["number"] % 2:
                case.measure("step_s", work[case.what])
            else:
                for _ in case.steps(range(10**6), ready=False):
                    work[case.what]()
    for record in experiment.records:
        row = {"what": record.config["what"], "s": record.metrics["step_s"].value, "flags": record.flags}
        found[record.case] = row | {"load": record.foreign_load, "threads": record.threads, "took_s": record.seconds}
    print(json.dumps(found), flush=True)

rows("/alone")
sys.stdin.readline()
os.sched_setaffinity(0, everywhere)
rows("/beside")
"""
LOADS = {"a spinner": "while True: pass"}
LOADS["a memory hog"] = "held = bytearray(400_000_000)\nwhile True: held[:200_000_000] = held[200_000_000:]"
DOUBTFUL = {"contended", "busy", "paused", "slowed", "too-noisy", "drift", "swapping"}


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


def rows_of(load: str = "", stops: bool = False, limit: Path | None = None) -> list[dict[str, dict]]:
    """The rows of `ROWS` alone, and then beside a program, while their process stands still for 0.5 of every 1.5 s, or
    in a cgroup that limits it; alone it has one core in that case, as the quota leaves it one thread."""
    with tempfile.TemporaryDirectory() as folder:
        given = (folder, 0.05 if TENTH else 0.4, many(10), 1 if limit else 1000)
        command = [sys.executable, "-c", ROWS, *map(str, given)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            alone = next(line for line in process.stdout if line.startswith("{"))
            if limit:
                (limit / "cgroup.procs").write_text(str(process.pid))
            with beside(load):
                process.stdin.write("\n")
                process.stdin.flush()
                while stops and process.poll() is None:
                    for number, seconds in ((signal.SIGSTOP, 0.5), (signal.SIGCONT, 1.0)):
                        process.send_signal(number)
                        time.sleep(seconds)
                printed = process.communicate()[0]
    return [json.loads(line) for line in (alone, printed.splitlines()[-1])]


def busy() -> list[dict]:
    """Short and long cases alone and, in the same process, under a planted load: rows that are off by over 20 % and
    carry no flag. Off is what lies beyond all that the process timed of the same work alone. What a host does to a row
    without a planted load is counted beside: each row alone against the others of its process."""
    loads: dict[str, Callable] = {name: functools.partial(rows_of, text) for name, text in LOADS.items()}
    loads["stops for a third of the time"] = functools.partial(rows_of, stops=True)
    # made when its turn comes: both quotas are of one cgroup
    loads |= {f"a quota of {n:g} cores": lambda n=n: (place := quota(n)) and rows_of(limit=place) for n in (1.0, 0.5)}

    def doubtful(of: dict) -> bool:
        return not DOUBTFUL.isdisjoint(of["flags"])

    def off(of: dict, alone: dict) -> bool:
        usual = [each["s"] for each in alone.values() if each["what"] == of["what"] and each is not of]
        return not min(usual) / 1.2 < of["s"] < 1.2 * max(usual)

    lines, flagged, by_host = [], [], []
    for name, measured in loads.items():
        if (both := measured()) is None:
            lines.append(row(f"busy: beside {name}", "no cgroup can be made here", ""))
            continue
        alone, rows = both
        flagged += [doubtful(of) for of in alone.values()]
        beyond = [of for of in rows.values() if off(of, alone)]
        silent = [of for of in beyond if not doubtful(of)]
        by_host += [off(of, alone) and not doubtful(of) for of in alone.values()]
        shown = f"{len(beyond)} of {len(rows)} off, {len(silent)} unflagged"
        lines.append(row(f"busy: beside {name}", shown, "none unflagged", not silent, rows=rows, alone=alone))
    if place := quota(1.0):
        place.rmdir()
    share = sum(flagged) / len(flagged)
    return [
        *lines,
        row("busy: rows off alone, without a flag", f"{sum(by_host)} of {len(by_host)}", ""),
        row("busy: rows with a flag, alone", f"{share:.1%} of {len(flagged)}", "at most 2 %", share <= 0.02),
    ]


def spinner() -> list[dict]:
    """A run alone and beside a program that spins on one core: how much longer it takes, and what its rows say."""
    seconds, records = {}, []
    for name, load in (("alone", "import time; time.sleep(1e6)"), ("busy", LOADS["a spinner"])):
        with beside(load):
            start = time.perf_counter()
            with reproduced(name, "vae capabilities mlp", "--device=cpu") as out:
                seconds[name], records = time.perf_counter() - start, Run(out).records
    rows, ratio = [each for each in records if each.foreign_load is not None], seconds["busy"] / seconds["alone"]
    shown = f"{ratio:.2f} ({seconds['alone']:.0f} s alone)"
    flagged = sum("contended" in each.flags for each in rows)
    return [
        row("spinner: vae, capabilities and mlp, time over alone", shown, "at most 2", ratio <= 2),
        row("spinner: rows that say contended", f"{flagged} of {len(rows)}", "all", flagged == len(rows)),
    ]


def keras() -> list[dict]:
    """An epoch of the article's perceptron with the kit's callback, against a bare `fit`."""
    ratios = program(KERAS, "mlp", many(61), 32, 8000, 1, "article", 0.1)
    return [
        ratio_row("keras: an epoch with callback against bare fit (MLP, batch 32)", ratios, 0, 1.02, "at most 1.02")
    ]


def lightning() -> list[dict]:
    """Steps in Lightning's own loop, bare against with the kit's clock."""
    ratios = program(LIGHTNING, many(21))
    title = "lightning: SimCLR's steps a second with the clock against bare"
    return [ratio_row(title, ratios, 0.98, 99, "at least 0.98")]


UPSTREAM_ROUNDS, UPSTREAM_S = 8, 13.0  # and seconds of each notebook in a round
# Whose tensors of 93 MB are new in each step, and differ by 1.2 to 2.4 % between processes.
ALONE = ("transformer_lm", 16)


def in_turns(part: str, count: int, about_s: float, measured: Callable[[int], dict], title: str, most: float) -> list:
    """Rows of ratios from so many processes: of each the median, and between them the geometric mean with its interval.
    A step is within the bound if all of that is."""
    rounds = Rounds(part, count, about_s)
    while len(rounds.done) < rounds.total:
        ratios = measured(len(rounds.done))
        middles = {name: statistics.median(each) for name, each in ratios.items()}
        rounds.add(ratios, ", ".join(f"{name} {middle:.4f}" for name, middle in middles.items()))
    done, rows = rounds.end(), []
    for name in done[0]:
        known = [ratios[name] for ratios in done if name in ratios]
        mean = intervals.repeats([Estimate(statistics.median(ratios)) for ratios in known])
        inside, outside = mean.low >= 1 - most and mean.high <= 1 + most, mean.low > 1 + most or mean.high < 1 - most
        shown = f"{mean.value:.4f} (95 %: {mean.low:.4f} to {mean.high:.4f})"
        good, bound = inside or (False if outside else None), f"within {100 * most:g} %"
        rows.append(row(f"{part}: {title.format(name)}", shown, bound, good, ratios=known))
    return rows


def upstream() -> list[dict]:
    """Steps of the notebooks' own loops, on the clock, in turn with bare steps of the articles' code: in each of eight
    processes the median over some hundred short blocks, since models lie elsewhere in the memory of another process.
    One notebook has more processes, see `ALONE`."""
    (name, more), every, seconds = ALONE, many(UPSTREAM_ROUNDS), 1.0 if TENTH else UPSTREAM_S

    def measured(number: int) -> dict:
        (ratios,) = printed(Path(__file__).with_name("upstream.py"), number, seconds, *[name][: number >= every])
        return ratios

    title, count = "a step of {}, on the clock, against the article's own code", every + many(more)
    about_s = (every * (5 * seconds + 9) + many(more) * (seconds + 6)) / count
    return in_turns("upstream", count, about_s, measured, title, 0.02)


def trainings() -> list[dict]:
    """Steps of ten trainings in PyTorch and in MLX, on the clock, in turn with bare loops over the same models."""

    def measured(number: int) -> dict:
        side, seconds = Path(__file__).with_name("bare_trainings.py"), 0.5 if TENTH else 5.0
        return dict(pair for name in ("torch", "mlx") for pair in printed(side, name, number, seconds))

    title = "a step of {}, on the clock, against a bare loop"
    return in_turns("trainings", many(UPSTREAM_ROUNDS), 60 if TENTH else 220, measured, title, 0.03)


def proof() -> list[dict]:
    """Rows that are right, on a pretended GPU with rounding of its own, and what the proof of a step says of them; and
    rows with one operator wrong by a share."""
    side, rows = Path(__file__).with_name("random_rows.py"), []
    clean, wrong = ((1e-6, 0, 1000), (5e-6, 0, 100), (2e-5, 0, 100)), [(1e-6, x, 100) for x in (1e-4, 1e-3, 0.1)]
    for noise, fault, count in (*clean, *wrong):
        (answers,) = printed(side, many(count), noise, fault)
        shown, judged = f"{len(answers['said'])} of {answers['rows']}", not fault and noise <= 1e-6
        title = f"proof: products wrong by {fault:g}, refused" if fault else f"proof: false alarms, noise {noise:g}"
        rows.append(row(title, shown, "0" if judged else "", not answers["said"] if judged else None, **answers))
    return rows


PARTS = (coverage, clock, loop, estimate, keras, fit, lightning, ceilings, claims, again, busy, spinner, upstream)
PARTS += (trainings, proof)


def main() -> int:
    parts: dict[str, Callable] = {part.__name__: part for part in PARTS}
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
