"""The energy notebook with a meter that a test commands: what it puts into a record, and what it leaves out."""

from __future__ import annotations

import time
from pathlib import Path

import nbformat
import pytest

from pomology import format
from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.experiment.experiment import Experiment
from pomology.machine import energy, snapshot
from pomology.report import article
from pomology.report import claims as report_claims
from pomology.results.record import Record

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "profiling_apple_silicon" / "energy.ipynb"
CELLS = [cell.source for cell in nbformat.read(PATH, 4).cells if cell.cell_type == "code"]
REST_W, WORK_W = 5.0, 40.0


class Meter:
    """So many watts from now on."""

    name, rails, missing = "fake", ("gpu",), {}

    def __init__(self):
        self.power_w, self.energy, self.last = REST_W, 0.0, time.perf_counter()

    def energy_j(self, power_w: float | None = None) -> float:
        now = time.perf_counter()
        self.energy, self.last = self.energy + self.power_w * (now - self.last), now
        self.power_w = power_w or self.power_w
        return self.energy


def run(tmp_path, monkeypatch, meter: Meter | None) -> Record:
    """The notebook's one case; its record."""
    monkeypatch.setattr(snapshot, "conditions", lambda: {"power_source": "ac", "flags": []})
    monkeypatch.setattr(energy, "meters", lambda *_: ([meter], {}) if meter else ([], {"fake": "there is none"}))
    experiment = Experiment("energy", article="001", devices="cpu", budget_s=1.5, out=str(tmp_path))
    scope = {"batch_sizes": [1], "energy_models": ["small transformer"], "limit_s": 1.0, "steps": 20_000}
    scope |= {"rest_s": 1.2, "lr": 1e-3, "seed": 1, "experiment": experiment}
    for mark in ("import torch", "class Transformer", "def work", "def train"):
        (source,) = [source for source in CELLS if mark in source]
        definitions = source.split("experiment = ")[0].split("\nfor ")[0]
        exec(compile(definitions, "energy.ipynb", "exec"), scope)
    for case in experiment.cases(model=["small transformer"], batch_size=[1]):
        if meter:
            steps = case.steps
            case.steps = lambda batches, steps=steps: meter.energy_j(WORK_W) and steps(batches)
        with case:
            scope["train"](case)
    (record,) = experiment.records
    return record


def test_joules_of_a_step_and_the_power_at_rest(tmp_path, monkeypatch):
    record = run(tmp_path, monkeypatch, Meter())
    assert (record.status, record.scaled, record.parameters) == ("ok", True, 3_704_808)
    value = {name: metric.value for name, metric in record.metrics.items()}
    assert value["power_rest_w"] == pytest.approx(REST_W, rel=0.01)
    assert value["power_w"] == pytest.approx(WORK_W, rel=0.05)
    # The power at rest is not subtracted.
    assert value["energy_j_per_step"] == pytest.approx(value["power_w"] * value["step_s"])
    assert value["energy_j_per_tflop"] == pytest.approx(value["energy_j_per_step"] / record.flops_per_step * 1e12)
    (cells,) = [row.cells for row in article.article_table("energy", [record]).rows if row.kind == "measured"]
    assert any(cell.startswith(format.significant(value["energy_j_per_step"])) for cell in cells)
    # Joules of another model are no verdict on the article's.
    claims = report_claims.claims_table(published.claims("001", "energy"), [record])
    assert {row["here"] for row in claims.data} == {articles_claims.CANNOT_BE_TOLD}


def test_without_a_meter_nothing_is_said_about_energy(tmp_path, monkeypatch):
    record = run(tmp_path, monkeypatch, None)
    assert record.status == "ok" and record.metrics["step_s"].value > 0 and record.absent
    assert not [name for name in record.metrics if "power" in name or "energy" in name]
