"""Records as a notebook's journal holds them, made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pomology.measure.estimate import Estimate
from pomology.results import record as results_record
from pomology.results.journal import Journal
from pomology.results.record import Record


def metric(value: float, low: float | None = None, high: float | None = None, unit: str = "") -> Estimate:
    return Estimate(value, unit, low, high, 20)


def rate(value: float, low: float | None = None, high: float | None = None) -> dict:
    return {"flops_per_s": metric(value, low, high, "FLOP/s")}


def record(experiment: str = "vae", metrics: dict | None = None, config: dict | None = None, **more: Any) -> Record:
    config = {"batch_size": 128} if config is None else config
    backend, framework = more.get("backend", "cpu"), more.get("framework", "torch")
    line = {"schema": 1, "event": "end", "experiment": experiment, "article": "003", "config": config}
    line |= {"case": f"{framework}-{backend} {json.dumps(config)}", "framework": framework, "backend": backend}
    line |= {"framework_version": "1", "device": "cpu" if backend == "cpu" else "gpu", "chip": "Apple M9"}
    line |= {"precision": "fp32", "profile": "quick", "data": "none", "scaled": False, "parameters": 1}
    line |= {"flops_per_step": None, "bytes_per_step": None, "repeat": 0, "threads": 8, "foreign_load": 0.0}
    line |= {"power_source": "ac", "flags": [], "status": "ok", "reason": None, "started": "2026-05-04T03:02:01Z"}
    return results_record.checked(line | {"seconds": 4.0, "metrics": metrics or {}} | more)


def product(value: float, precision: str = "fp32", shape: str = "1x64x64", low=None, high=None, **more: Any) -> Record:
    experiment = more.pop("experiment", "ceilings")
    config = {"operation": more.pop("operation", "matmul"), "shape": shape, "precision": precision}
    more = {"article": "kit", "framework": "mlx" if experiment.endswith("mlx") else "torch"} | more
    return record(experiment, rate(value, low, high), config | more.pop("about", {}), precision=precision, **more)


def stream(value: float, operation: str = "triad", experiment: str = "ceilings", **more: Any) -> Record:
    config = {"operation": operation, "shape": "512 MB", "precision": "fp32"}
    metrics = {"bytes_per_s": metric(value, 0.9 * value, 1.1 * value, "B/s")}
    more = {"article": "kit", "framework": "mlx" if experiment.endswith("mlx") else "torch"} | more
    return record(experiment, metrics, config, **more)


def write(folder: Path, records: Iterable[Record]) -> Path:
    """A run's folder with the journals of these records."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in records:
        Journal(folder / f"{one.experiment}.jsonl").end(one)
    return folder
