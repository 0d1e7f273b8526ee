"""The measuring, measured: what the clock costs a training loop, and how long runs take to load.

    make bench                               everything, about 10 minutes on two idle cores
    python tests/bench.py clock              some parts only
    python tests/bench.py --short upstream   few pairs: whether it works

Two sides take turns, and the median of their ratios is what counts: a busy machine moves both.
The parts print a table and write it to outputs/bench.json. `make test` runs none of this, since a
busy machine could fail it.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import upstream as articles
from torch.utils.data import DataLoader, TensorDataset

import pomology
from pomology.measure import intervals
from pomology.measure.clock import StepClock
from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.results import cases, frame
from pomology.results.run import MACHINE, Run

SHORT = "--short" in sys.argv
REFERENCE = root() / "outputs" / "reference-cpu"


def count_of(pairs: int) -> int:
    return max(3, pairs // 10) if SHORT else pairs


def row(name: str, value: str, bound: str, within: bool | None, **raw: Any) -> dict:
    """Print a line of the table and return it. within: None where the numbers cannot tell."""
    verdict = {True: "within", False: "OUTSIDE", None: "cannot be told"}[within]
    print(f"{name:62} {value:36} {bound:14} {verdict}", flush=True)
    return {"name": name, "found": value, "bound": bound, "within": within, **raw}


def timed(function: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def clocked(batches: Iterable) -> Iterable:
    return StepClock(whole=True).steps(batches)


def clock() -> list[dict]:
    """Time what the clock adds to a step that does nothing."""
    steps = range(200_000)
    walk = deque(maxlen=0).extend
    costs = []
    for _ in range(count_of(15)):
        bare_s = timed(walk, steps)
        costs.append((timed(walk, clocked(steps)) - bare_s) / len(steps) * 1e6)
    best = min(costs)
    name = "clock: cost of a step (least of several)"
    return [row(name, f"{best:.3f} µs", "at most 1 µs", best <= 1)]


def loop() -> list[dict]:
    """Time epochs of the shortest steps, the VAE's, on the clock and bare in turn."""
    images = torch.rand(128, 1, 28, 28)
    step = articles.vae(images)
    samples = 1_280 if SHORT else 12_800
    loader = DataLoader(TensorDataset(torch.rand(samples, 784)), 128, shuffle=True)

    def epoch(batches: Iterable) -> None:
        for _ in batches:
            step()

    epoch(loader)
    ratios = []
    # The median of 31 pairs still wanders by one per cent, which is the bound itself.
    for pair in range(count_of(91)):
        seconds = {}
        for on_the_clock in (True, False) if pair % 2 else (False, True):
            seconds[on_the_clock] = timed(epoch, clocked(loader) if on_the_clock else loader)
        ratios.append(seconds[True] / seconds[False])
    median = intervals.median_interval(ratios)
    value = f"{median.value:.4f} (95 %: {median.low:.3f} to {median.high:.3f})"
    name = "loop: an epoch on the clock against bare (VAE, batch 128)"
    return [row(name, value, "at most 1.01", median.value <= 1.01, ratios=ratios)]


def upstream() -> list[dict]:
    """Time steps of the notebooks' loops on the clock, in turn with the articles' own.

    In each of several processes the median over some hundred short blocks counts, since models lie
    elsewhere in the memory of another process.
    """
    processes: list[dict[str, list[float]]] = []
    for number in range(3 if SHORT else 8):
        command = [sys.executable, articles.__file__, str(number), "1" if SHORT else "13"]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        processes.append(json.loads(printed.splitlines()[-1]))
        print(f"  upstream: process {number + 1}", flush=True)
    rows = []
    for notebook in articles.NOTEBOOKS:
        ratios = [process[notebook] for process in processes]
        mean = cases.mean_of_repeats([Estimate(statistics.median(each)) for each in ratios])
        within = None
        if mean.low >= 0.98 and mean.high <= 1.02:
            within = True
        elif mean.low > 1.02 or mean.high < 0.98:
            within = False
        name = f"upstream: a step of {notebook} against the article's own code"
        value = f"{mean.value:.4f} (95 %: {mean.low:.4f} to {mean.high:.4f})"
        rows.append(row(name, value, "within 2 %", within, ratios=ratios))
    return rows


def load() -> list[dict]:
    """Time `pomology.load` of 1,000 runs, from their journals and from their tables."""
    rows = []
    count = 100 if SHORT else 1000
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "0"
        first.mkdir()
        for name in ("vae.jsonl.gz", MACHINE):
            shutil.copy(REFERENCE / name, first)
        for kind, most_s in (("journals", 30), ("tables", 10)):
            if kind == "tables":
                frame.write(Run(first))
            runs = [
                shutil.copytree(first, Path(folder) / f"{kind}-{number}") for number in range(count)
            ]
            seconds = timed(pomology.load, *runs)
            name = f"load: {count:,} runs of one notebook, from {kind}"
            rows.append(row(name, f"{seconds:.1f} s", f"at most {most_s} s", seconds <= most_s))
    return rows


PARTS = {"clock": clock, "loop": loop, "upstream": upstream, "load": load}


def main() -> int:
    names = [name for name in sys.argv[1:] if name != "--short"] or list(PARTS)
    for name in names:
        if name not in PARTS:
            print(
                f"bench: no part is named {name!r}; there are {', '.join(PARTS)}", file=sys.stderr
            )
            return 2
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    rows = [line for name in names for line in PARTS[name]()]
    path = root() / "outputs" / "bench.json"
    path.write_text(
        json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    outside = [line["name"] for line in rows if line["within"] is False]
    print(f"\n{len(outside)} of {len(rows)} outside their bounds; written to outputs/bench.json")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
