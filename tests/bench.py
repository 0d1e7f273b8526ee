"""The measuring, measured: each part of the instrument against an independent way to do the same, as ratios.

    make bench                    everything, about half an hour on two cores
    python tests/bench.py clock   some parts only

Pairs run in turn, in one process, and the median of their ratios is what counts: a busy machine moves both sides.
Prints a table and writes it to outputs/bench.json. Nothing here is part of `make test`, since a busy machine could
fail it.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from pomology.data.images import ArticleMNIST, mnist
from pomology.machine.sampler import Telemetry
from pomology.measure import calls, epochs, intervals
from pomology.measure import clock as measure_clock
from pomology.paths import root


def row(name: str, found: str, bound: str, good: bool | None = None, **raw) -> dict:
    verdict = {True: "within", False: "OUTSIDE", None: ""}[good]
    print(f"{name:62} {found:32} {bound:26} {verdict}", flush=True)
    return {"name": name, "found": found, "bound": bound, "within": good, **raw}


def paired(first: Callable[[], float], second: Callable[[], float], pairs: int) -> list[float]:
    """Ratios first / second of pairs, the order within a pair changing from one to the next."""
    ratios = []
    for number in range(pairs):
        if number % 2:
            below = second()
            ratios.append(first() / below)
        else:
            above = first()
            ratios.append(above / second())
    return ratios


def shown(ratios: list[float]) -> str:
    middle = intervals.median_interval(ratios)
    return f"{middle.value:.4f} (95 %: {middle.low:.3f} to {middle.high:.3f})"


class VAE(nn.Module):
    """The model of the article's fourth experiment, whose steps are the shortest of all."""

    def __init__(self):
        super().__init__()
        self.hidden, self.mean, self.log_variance = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.widen, self.draw = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, images):
        hidden = F.relu(self.hidden(images.view(-1, 784)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.draw(F.relu(self.widen(code)))), mean, log_variance


class Training:
    """A training loop over the article's item-by-item MNIST at batch 128."""

    def __init__(self, samples: int = 12_800):
        torch.manual_seed(1)
        self.model = VAE()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(ArticleMNIST(mnist("stand-in", size=samples)), 128, shuffle=True)

    def epoch(self, batches) -> None:
        for images, _ in batches:
            self.optimizer.zero_grad()
            drawn, mean, log_variance = self.model(images)
            loss = F.binary_cross_entropy(drawn, images.view(-1, 784), reduction="sum")
            loss = loss - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
            loss.backward()
            loss.item()
            self.optimizer.step()

    def bare(self) -> float:
        start = time.perf_counter()
        self.epoch(self.loader)
        return time.perf_counter() - start

    def clocked(self) -> float:
        clock = measure_clock.StepClock(whole=True)
        start = time.perf_counter()
        self.epoch(clock.steps(self.loader))
        return time.perf_counter() - start

    def watched(self) -> float:
        with Telemetry():
            return self.bare()

    def instrumented(self) -> float:
        """As a case of a notebook: telemetry and the clock."""
        with Telemetry():
            return self.clocked()


def clock() -> list[dict]:
    """What the clock adds to a step that does nothing."""

    def loop(batches) -> float:
        start = time.perf_counter()
        for _ in batches:
            pass
        return time.perf_counter() - start

    count = 200_000
    costs = []
    for _ in range(15):
        bare = loop(range(count))
        costs.append((loop(measure_clock.StepClock(whole=True).steps(range(count))) - bare) / count * 1e6)
    best = min(costs)
    return [row("clock: cost of a step beside fences (least of 15)", f"{best:.3f} µs", "at most 1 µs", best <= 1)]


def loop() -> list[dict]:
    """The same epoch of training, bare and with clock and telemetry."""
    training = Training()
    training.bare()
    rows = []
    # So many pairs, since the median of 31 still wanders by one per cent, which is the bound itself.
    for name, function, pairs in (
        ("loop: clock and telemetry against bare (VAE, batch 128)", training.instrumented, 91),
        ("loop: clock alone against bare", training.clocked, 91),
        ("telemetry: on against off", training.watched, 91),
        ("loop: bare against bare, for comparison", training.bare, 31),
    ):
        ratios = paired(function, training.bare, pairs)
        middle = intervals.median_interval(ratios)
        good = middle.value <= 1.01 if "comparison" not in name else None
        rows.append(row(name, shown(ratios), "at most 1.01" if good is not None else "", good, ratios=ratios))
    with Telemetry(interval_s=0.5) as telemetry:
        for _ in range(20):
            training.bare()
    share = 100 * telemetry.thread_s / telemetry.seconds
    rows.append(row("telemetry: its thread's share of a core", f"{share:.3f} %", "at most 0.5 %", share <= 0.5))
    return rows


def kernels() -> list[dict]:
    """`timing.measure` against `torch.utils.benchmark` at the same thread count."""
    from torch.utils.benchmark import Timer

    def square(size):
        a, b = torch.randn(2, size, size)
        return lambda: a @ b

    image, filters = torch.randn(8, 16, 64, 64), torch.randn(32, 16, 3, 3)
    long = torch.randn(4_000_000)
    rows_ = torch.randn(512, 1024)
    short = torch.randn(400_000)
    operations = {
        "add 400,000": lambda: short + short,
        "matmul 128": square(128),
        "matmul 256": square(256),
        "softmax 512 × 1024": lambda: rows_.softmax(1),
        "layer norm 512 × 1024": lambda: F.layer_norm(rows_, (1024,)),
        "matmul 512": square(512),
        "convolution 16 to 32, 64 × 64": lambda: F.conv2d(image, filters, padding=1),
        "sum of 4 million": long.sum,
        "matmul 1536": square(1536),
        "matmul 5120": square(5120),
    }
    found = []
    for name, function in operations.items():

        def ours(function=function):
            return calls.measure(function, budget_s=0.6).seconds.value

        def theirs(function=function):
            timer = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
            return timer.blocked_autorange(min_run_time=0.5).median

        once = theirs()
        ratios = paired(ours, theirs, 16 if once < 0.1 else 8)
        middle = statistics.median(ratios)
        bound = 0.02 if once > 1e-3 else 0.05
        good = abs(middle - 1) <= bound if once > 50e-6 else None
        text = f"within {bound:.0%}" if good is not None else "under 50 µs: not judged"
        title = f"kernel: {name}, {once * 1e6:,.0f} µs, against torch's Timer"
        found.append(row(title, shown(ratios), text, good, ratios=ratios))
    return found


def estimate() -> list[dict]:
    """An epoch estimated from a hundred steps in bursts, against the whole of the next epoch."""
    training = Training(60_000)
    training.bare()
    errors = []
    for _ in range(10):
        clock_ = measure_clock.StepClock(budget_s=1.2, to_device=lambda batch: batch)
        training.epoch(clock_.steps(training.loader))
        part = clock_.parts["training"]
        assert not part.complete
        estimated = epochs.epoch_metrics(clock_)["epoch_s"].value
        errors.append(estimated / training.bare() - 1)
    sizes = [abs(error) for error in errors]
    steps = sum(block.steps for block in part.blocks)
    text = f"median {statistics.median(sizes):.1%}, worst {max(sizes):.1%}"
    good = statistics.median(sizes) <= 0.03 and max(sizes) <= 0.15
    title = f"estimate: {steps} of 469 steps in bursts against whole epochs"
    return [row(title, text, "median 3 %, worst 15 %", good, errors=errors)]


PROCESS = """
import torch, sys
from pomology.measure import clock as timing
torch.manual_seed(0)
a, b = torch.randn(2, 512, 512)
print(timing.measure(lambda: a @ b, budget_s=0.5).seconds.value)
"""


def repeats() -> list[dict]:
    """How often five processes and five others of the same thing are called different."""
    times = []
    for _ in range(20):
        done = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True, check=True)
        times.append(float(done.stdout))
    logs = np.log(times)
    generator = np.random.default_rng(1)
    draws, called = 600, 0
    for _ in range(draws):
        order = generator.permutation(len(times))[:10]
        verdict = intervals.compare(np.exp(logs[order[:5]]), np.exp(logs[order[5:]])).verdict
        called += verdict in ("faster", "slower")
    share = called / draws
    title = f"repeats: same thing called different (between processes ± {logs.std(ddof=1):.1%})"
    return [row(title, f"{share:.1%} of {draws} draws", "at most 7.5 %", share <= 0.075, seconds=times)]


def notebook() -> list[dict]:
    """What a notebook takes beyond its cases, the start of a kernel and the import of the framework."""
    import papermill
    from traitlets.config import Config

    from pomology.results import journal as results_journal
    from pomology.runner.notebooks import notebooks
    from pomology.runner.parameters import read_yaml

    vae = next(found for found in notebooks() if found.name == "vae")
    path = root() / "params" / "smoke" / "vae.yaml"
    values = read_yaml(path, path.name) | {"data": "stand-in"}
    fixed, kernels_ = [], []
    with tempfile.TemporaryDirectory() as folder:
        source = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
        source |= {"source": "import torch", "id": "a"}
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        empty = Path(folder, "empty.ipynb")
        empty.write_text(json.dumps({"cells": [source], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))
        for number in range(5):
            out = Path(folder, str(number))
            for notebook_, given, times in ((empty, {}, kernels_), (vae.path, values | {"out": str(out)}, fixed)):
                start = time.perf_counter()
                config = Config({"KernelManager": {"transport_encryption": "auto"}})  # as in a run
                done = Path(folder, "done.ipynb")
                papermill.execute_notebook(notebook_, done, given, progress_bar=False, config=config)
                times.append(time.perf_counter() - start)
            fixed[-1] -= sum(record.seconds for record in results_journal.read(out / "vae.jsonl").records)
    extra = [beyond - kernel for beyond, kernel in zip(fixed, kernels_, strict=True)]
    text = f"{statistics.median(extra):.1f} s (kernel and torch: {statistics.median(kernels_):.1f} s)"
    return [row("notebook: beyond its cases, kernel start and import", text, "", None, seconds=extra, kernel=kernels_)]


KERAS = """
import json, statistics, sys, time
import numpy as np
from pomology.experiment import trainers as callbacks
from pomology.devices import find as device
device.prepare("tensorflow")
from pomology.experiment.experiment import Experiment
experiment = Experiment("mlp", article="004", framework="tensorflow", devices="cpu", profile="article", out=sys.argv[1])
import keras
from keras import layers
generator = np.random.default_rng(1)
x, y = generator.random((9600, 28, 28), dtype=np.float32), generator.integers(0, 10, 9600)
layers = [layers.Input((28, 28)), layers.Flatten(), layers.Dense(512, "relu"), layers.Dropout(0.2)]
model = keras.Sequential([*layers, keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
counts = {"samples": 8000, "validation_samples": 1600, "batch_size": 32}

def fit(more):
    start = time.perf_counter()
    model.fit(x[:8000], y[:8000], 32, 1, verbose=0, validation_data=(x[8000:], y[8000:]), callbacks=more())
    return time.perf_counter() - start

fit(list)
ratios = []
for number, case in enumerate(experiment.cases(pair=range(int(sys.argv[2])))):
    with case:
        clocked = lambda: fit(lambda: [callbacks.keras(case, **counts)])
        if number % 2:
            below = fit(list)
            ratios.append(clocked() / below)
        else:
            above = clocked()
            ratios.append(above / fit(list))
print(json.dumps(ratios))
"""


def keras() -> list[dict]:
    """An epoch of Keras with the kit's callback against the bare `fit`, on the shortest steps there are."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", KERAS, folder, "61"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    ratios = json.loads(done.stdout.splitlines()[-1])
    good = intervals.median_interval(ratios).value <= 1.02
    return [row("keras: an epoch with callback against bare fit (MLP, batch 32)", shown(ratios), "at most 1.02", good)]


LIGHTNING = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.nn import functional as F
from torch.utils.data import DataLoader
from pomology.experiment import trainers as callbacks
from pomology.workloads import cost as models
from pomology.workloads import simclr
from pomology.data.images import cifar10
from pomology.experiment.experiment import Experiment

class SimCLR(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = models.simclr_resnet18()
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
out = sys.argv[1]
# Its clock runs the whole epoch of 6 steps; the ready batches behind it are taken out of its time.
experiment = Experiment("simclr", article="000", devices="cpu", profile="article", budget_s=0.001, out=out)

def fit(batches, more):
    options = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "num_sanity_val_steps": 0}
    model, trainer = SimCLR(), Trainer(callbacks=more, default_root_dir=out, **options, **off)
    start = time.perf_counter()
    trainer.fit(model, batches)
    return time.perf_counter() - start

def clocked(case):
    callback = callbacks.lightning(case)
    seconds = fit(callback.steps(loader), [callback])
    return seconds - sum(block.seconds for block in case.clock.parts["training"].ready_blocks)

fit(loader, [])
ratios = []
for number, case in enumerate(experiment.cases(pair=range(int(sys.argv[2])))):
    with case:
        if number % 2:
            bare = fit(loader, [])
            ratios.append(bare / clocked(case))
        else:
            mine = clocked(case)
            ratios.append(fit(loader, []) / mine)
print(json.dumps(ratios))
"""


def lightning() -> list[dict]:
    """SimCLR's steps a second in Lightning on the kit's clock against bare Lightning with the same loader."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", LIGHTNING, folder, "21"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    ratios = json.loads(done.stdout.splitlines()[-1])
    good = intervals.median_interval(ratios).value >= 0.98
    name = "lightning: SimCLR's steps a second with the clock against bare"
    return [row(name, shown(ratios), "at least 0.98", good, ratios=ratios)]


PRODUCTS = """
import json, sys, time
import nbformat
from pomology.workloads import products as blas
from pomology import root
framework, folder = sys.argv[1:]
path = root() / "notebooks" / "profiling_apple_silicon" / f"blas_{framework}.ipynb"
cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
# As the notebook: its parameters, its set-up and its way to build a product; then its cases, a loop around each.
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

limit_s, found = 0.5, {}
chosen = [row for kind in ("fp32", "fp16") for row in products if row["precision"] == kind]
for case in experiment.cases(chosen):
    if len(found) == 30:
        break
    with case:
        product = blas.Product.of(case.config)
        blas.foresee(case, product, build, limit_s)
        multiply = build(case, product)
        blas.check(case, product, seed, *numbers(multiply()))
        independent(multiply)
        ratios = []
        for number in range(6):
            theirs = independent(multiply) if number % 2 else None
            blas.measure(case, product, multiply, 0.2)
            theirs = theirs or independent(multiply)
            ratios.append(case._metrics["kernel_s"].value / theirs)
        found[case.name] = [theirs, ratios]
print(json.dumps(found))
"""


def products() -> list[dict]:
    """Thirty matrix products as their notebooks time them, against torch's Timer and a plain loop of MLX."""
    rows = []
    for framework, other in (("torch", "torch's Timer"), ("mlx", "a plain loop")):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", PRODUCTS, framework, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        ratios = [statistics.median(ratios) for _, ratios in found.values()]
        away = [abs(ratio - 1) for ratio in ratios]
        text = f"{shown(ratios)}; median |error| {statistics.median(away):.1%}"
        good = statistics.median(away) <= 0.05
        rows.append(
            row(f"products: {len(found)} with {framework} against {other}", text, "median 5 %", good, raw=found)
        )
    return rows


def again() -> list[dict]:
    """A notebook of 75 products, run three times and three times again: how many rows `compare` calls different."""
    from pomology.report import compare

    runs = []
    for number in (1, 2):
        out = root() / "outputs" / f"bench-again-{number}"
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, "-m", "pomology", "reproduce", "--profile=quick", "--only=blas_torch"]
        command += ["--device=cpu", f"--run={out.name}", "--repeats=3", "--data=stand-in"]
        subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append(out)
    verdicts = [line["verdict"] for line in compare.side_by_side([compare.load(run) for run in runs]).data]
    for out in runs:
        shutil.rmtree(out)
    called = sum(verdict in ("faster", "slower") for verdict in verdicts)
    text = f"{called} of {len(verdicts)} rows: {called / len(verdicts):.1%}"
    return [row("again: REPEATS=3 twice, rows called different", text, "at most 5 %", called <= 0.05 * len(verdicts))]


THOUSAND = """
import json, resource, sys, time
from pathlib import Path
from pomology.report import compare
places = compare.find([sys.argv[1]])
start = time.perf_counter()
runs = [compare.load(place) for place in places]
loaded = time.perf_counter()
table = compare.side_by_side(runs)
compared = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
verdicts = sum(line["verdict"] != "cannot be told" for line in table.data)
found = {"load_s": loaded - start, "compare_s": compared - loaded, "rows": len(table.data), "verdicts": verdicts}
print(json.dumps(found | {"bytes": peak * (1 if sys.platform == "darwin" else 1024)}))
"""


def thousand_runs(folder: Path, runs: int, repeats: int, chooser: random.Random) -> int:
    """Write runs of 150 endings in 20 journals each, with starts and raw blocks as a real run's; returns the bytes."""
    metric = {"unit": "s", "n": 100, "how": "measured"}
    config = {"framework": "torch", "framework_version": "2.13.0", "backend": "cpu", "precision": "fp32"}
    start = {"schema": 1, "article": "003", **config, "device": "cpu", "chip": "Synthetic 1", "profile": "quick"}
    start |= {"data": "stand-in", "data_origin": "stand-in for MNIST: not asked for", "scaled": False, "threads": 2}
    start |= {"power_source": None, "started": "2026-05-04T03:02:01Z"}
    end = {"parameters": 652_824, "flops_per_step": 10**9, "foreign_load": 0.1, "flags": [], "status": "ok"}
    end |= {"reason": None, "seconds": 4.8}
    others = ("cpu_busy", "footprint_peak_bytes", "page_faults", "page_ins", "swap_bytes", "loss_first", "loss_last")
    also = {name: {"value": 1.5, "low": None, "high": None, **metric} for name in others}
    about = {"chip": "Synthetic 1", "cpu_cores": 2, "memory_bytes": 2**34, "os": "Linux", "python": "3.11.9"}
    total = 0
    for number in range(runs):
        out = folder / f"run-{number:04}"
        out.mkdir(parents=True)
        (out / "machine.json").write_text(json.dumps(about))
        for journal in range(20):
            lines = []
            for case in range(8 if journal < 10 else 7):
                case, again = divmod(case, repeats)
                named = {"experiment": f"experiment_{journal}", "case": f"batch_size={case}", "repeat": again}
                named["config"] = {"batch_size": case}
                times = {}
                for name in ("step_s", "epoch_s"):
                    value = chooser.lognormvariate(0, 0.1)
                    times[name] = {"value": value, "low": 0.97 * value, "high": 1.03 * value, **metric}
                blocks = [[16, round(chooser.random(), 9)] for _ in range(chooser.randrange(20, 180))]
                lines.append({"event": "start", **start, **named})
                last = {"metrics": times | also, "blocks": {"training": {"steady": blocks}}}
                lines.append({"event": "end", **start, **named, **end, **last})
            text = "".join(json.dumps(line) + "\n" for line in lines)
            total += len(text)
            (out / f"experiment_{journal}.jsonl").write_text(text)
    return total


def thousand() -> list[dict]:
    """The journals of 1,000 runs of 150 cases each, read and compared: all of single runs, and all of three repeats."""
    rows = []
    for repeats_, name in ((1, "150 cases"), (3, "50 cases, three repeats")):
        with tempfile.TemporaryDirectory() as folder:
            size = thousand_runs(Path(folder), 1_000, repeats_, random.Random(1))
            best = None
            for _ in range(3):
                done = subprocess.run(
                    [sys.executable, "-c", THOUSAND, folder], capture_output=True, text=True, check=True
                )
                found = json.loads(done.stdout)
                best = min(best or found, found, key=lambda one: one["load_s"] + one["compare_s"])
        seconds = best["load_s"] + best["compare_s"]
        text = f"{seconds:.2f} s ({best['load_s']:.2f} to load), {best['bytes'] / 1e6:.0f} MB"
        good = seconds <= 3 and best["bytes"] <= 500e6
        title = f"thousand: runs of {name}, {size / 1e6:,.0f} MB, {best['rows']:,} rows"
        rows.append(row(title, text, "at most 3 s, 500 MB", good, **best))
    return rows


PHASES = """
import json, sys, time
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

def mine(case):
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
experiment = Experiment("bench", article="001", devices="cpu", budget_s=1000, out=sys.argv[1])
ratios = []
for number, case in enumerate(experiment.cases(pair=range(41))):
    with case:
        if number % 2:
            below = bare()
            ratios.append(mine(case) / below)
        else:
            above = mine(case)
            ratios.append(above / bare())
print(json.dumps(ratios))
"""


def phases() -> list[dict]:
    """Forward and backward passes timed apart in a case, against a bare loop around both."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", PHASES, folder], capture_output=True, text=True, check=True)
    ratios = json.loads(done.stdout.splitlines()[-1])
    good = abs(intervals.median_interval(ratios).value - 1) <= 0.03
    name = "phases: forward and backward of a transformer against a bare loop"
    return [row(name, shown(ratios), "within 3 %", good, ratios=ratios)]


PARTS = {
    part.__name__: part
    for part in (clock, loop, kernels, estimate, repeats, notebook, keras, lightning, products, phases, again, thousand)
}


def main() -> int:
    chosen = sys.argv[1:] or list(PARTS)
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        print(f"bench: no part is named {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    rows = [line for name in chosen for line in PARTS[name]()]
    path = root() / "outputs" / "bench.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")
    outside = [line["name"] for line in rows if line["within"] is False]
    print(f"\n{len(outside)} of {len(rows)} outside their bounds; written to outputs/bench.json")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
