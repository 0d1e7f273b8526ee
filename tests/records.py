"""Records as a notebook's journal holds them, made by hand."""

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from journal_lines import ENDED

from pomology.articles import published
from pomology.measure.estimate import Estimate
from pomology.results.journal import Journal
from pomology.results.record import Record, checked


def metric(value: float, low=None, high=None, unit: str = "s", how: str = "measured") -> Estimate:
    return Estimate(value, unit, low, high, 20, how)


def rate(value: float, low=None, high=None) -> dict:
    return {"flops_per_s": metric(value, low, high, "FLOP/s")}


def record(
    experiment: str = "vae", metrics: dict | None = None, config: dict | None = None, **more: Any
) -> Record:
    """A case that ended well, with these fields of its journal's line in place of the usual."""
    config = {"batch_size": 128} if config is None else config
    backend, framework = more.get("backend", "cpu"), more.get("framework", "torch")
    fields = ENDED | {"experiment": experiment, "config": config, "parameters": 1}
    fields |= {"case": f"{framework}-{backend} {config}", "flops_per_step": None, "flags": []}
    fields |= {"device": "cpu" if backend == "cpu" else "gpu", "chip": "Apple M9", "threads": 8}
    fields |= {"data": "none", "started": "2026-05-04T03:02:01Z", "seconds": 4.0}
    values = {name: each.metric() for name, each in (metrics or {}).items()}
    return checked(fields | {"metrics": values} | more)


def product(
    value: float, precision: str = "fp32", shape: str = "1x64x64", low=None, high=None, **more: Any
) -> Record:
    experiment = more.pop("experiment", "peaks")
    config = {"operation": more.pop("operation", "matmul"), "shape": shape, "precision": precision}
    config |= more.pop("about", {})
    more = {"article": "kit", "framework": "torch", "precision": precision} | more
    return record(experiment, rate(value, low, high), config, **more)


def stream(value: float, operation: str = "triad", **more: Any) -> Record:
    config = {"operation": operation, "shape": "512 MB", "precision": "fp32"}
    metrics = {"bytes_per_s": metric(value, 0.9 * value, 1.1 * value, "B/s")}
    return record("peaks", metrics, config, article="kit", **more)


def matvec(megabytes: float, bytes_per_s: float, **more: Any) -> Record:
    """A matrix of so many MB times a vector: half an operation for each byte."""
    metrics = rate(bytes_per_s / 2, 0.49 * bytes_per_s, 0.51 * bytes_per_s)
    metrics |= {"bytes_per_s": metric(bytes_per_s, 0.98 * bytes_per_s, 1.02 * bytes_per_s, "B/s")}
    metrics |= {"kernel_s": metric(megabytes * 1e6 / bytes_per_s)}
    about = {"operation": "matvec", "shape": f"{megabytes}x1", "precision": "fp32"}
    return record("blas", metrics, about, **more)


def cached(value: float, operation: str, megabytes: float) -> Record:
    """A pass over memory in a journal that knows the size of the cache."""
    known = stream(value, operation)
    known.metrics["cache_bytes"] = metric(megabytes * 1e6, unit="B")
    return known


def write(folder: Path, records: Iterable[Record], machine: dict | None = None) -> Path:
    """A run's folder with the journals of these records, and what is noted of its machine."""
    folder.mkdir(parents=True, exist_ok=True)
    if machine is not None:
        (folder / "machine.json").write_text(json.dumps(machine))
    for one in records:
        Journal(folder / f"{one.experiment}.jsonl").end(one)
    return folder


def run_of(*records: Record, run: str = "mine") -> SimpleNamespace:
    """What the views take of a run: its name and its records."""
    return SimpleNamespace(name=run, records=list(records))


def elsewhere_row(device: str, value: object, config: dict | None = None, **more: str) -> dict:
    """What somebody has published, in the form of a row of `elsewhere/`."""
    text = "source=apxml-2025 row=1 workload=w role=rival framework=pytorch year=2022 bound= "
    text += (
        "precision=fp32 metric=samples_per_s unit=samples/s printed= faults= place=p checked=text "
        "samples=1"
    )
    common = dict(pair.split("=") for pair in text.split())
    config = {"batch_size": 64} if config is None else config
    return common | {"device": device, "value": str(value), "config": json.dumps(config)} | more


def set_elsewhere(patch: pytest.MonkeyPatch, *rows: dict) -> None:
    """Let these be what others have published; the articles' tables stay."""
    patch.setattr(published, "other_sources", lambda: rows)
    patch.setattr(published, "elsewhere", inspect.unwrap(published.elsewhere))  # remembers none
