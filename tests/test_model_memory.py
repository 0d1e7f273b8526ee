"""The notebook that counts what fits where, against numbers worked out by hand, and the machines of the article."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import fakes
import nbformat
import pytest

from pomology.articles import claims, published
from pomology.report import claims as report_claims
from pomology.report import table as report_table
from pomology.results import journal

PLACE = Path(__file__).resolve().parents[1] / "notebooks" / "profiling_apple_silicon" / "model_memory.ipynb"
GIB = 2**30


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The notebook, run here on the CPU: its names, tables and records."""
    out = tmp_path_factory.mktemp("memory") / "run"
    shown: list = []
    names: dict = {"shown": shown}
    for cell in (cell for cell in nbformat.read(PLACE, 4).cells if cell.cell_type == "code"):
        *lines, last = cell.source.split("\n")
        last = f"shown.append({last})" if last.startswith("table.Table(") else last
        exec(compile("\n".join([*lines, last]), cell.id, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            names |= {"out": str(out), "devices": "cpu"}
    return names, shown, journal.read(out / "model_memory.jsonl").records


def rows(table: report_table.Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row.cells, strict=True)) for row in table.rows]


def test_parameters_are_those_of_the_models(ran):
    names, shown, _ = ran
    # What is not trained is the encoder's positions: 1,500 of the model's width.
    assert names["counts"] == {
        "whisper-medium": (763_857_920, 763_857_920 - 1500 * 1024),
        "whisper-large": (1_543_304_960, 1_543_304_960 - 1500 * 1280),
        "gpt2-large": (774_030_080, 774_030_080),
        "gpt2-xl": (1_557_611_200, 1_557_611_200),
    }
    found = {row["Model"]: row for row in rows(shown[0])}
    for value in published.rows("001", "model_memory"):
        if value["metric"] == "theoretical_bytes":
            assert found[value["config"]["model"]]["Card × 16 / 1024"] == f"{value['printed']} “GiB”"
    # 774,030,080 x 16 bytes = 12.384 GB = 11.534 GiB; 12.094 / 11.534 = 1.0486, which is 2^20 / 10^6.
    assert (found["gpt2-large"]["Together"], found["gpt2-large"]["in GB"]) == ("11.534 GiB", "12.38 GB")
    assert found["gpt2-large"]["The article's number is more by"] == "4.9 %"
    assert found["whisper-medium"]["Two moments"] == f"{8 * 762_321_920 / GIB:.3f} GiB"


def test_what_is_kept_is_as_by_hand(ran):
    """Matrices of attention: batch x heads x rows x columns x 4 bytes, in each layer."""
    work = ran[0]["work"]
    gib = {
        ("whisper-medium", "written out"): 23.5,
        ("whisper-medium", "fused"): 10.9,
        ("whisper-large", "written out"): 312.0,
        ("gpt2-large", "written out"): 12.69,
        # CUDA's dropout keeps a byte where others keep a float: 73 of them over 16 x 128 x 1280 numbers, 97 over
        # 16 x 128 x 1600; with floats it was 11.64 and 19.40 GiB.
        ("gpt2-large", "fused"): 11.64 - 73 * 16 * 128 * 1280 * 3 / GIB,
        ("gpt2-xl", "written out"): 21.1,
        ("gpt2-xl", "fused"): 19.4 - 97 * 16 * 128 * 1600 * 3 / GIB,
    }
    for (name, attention), saved in gib.items():
        assert work(name, attention).saved_bytes / GIB == pytest.approx(saved, rel=0.01), (name, attention)
    # Whisper's encoder attends over 1,500 positions, and its decoder over 32 and 1,500; the matrices make the
    # difference, but for a number a row, and for inputs that are written out scaled.
    matrices = 4 * 16 * 24 * (1500 * 1500 + 32 * 32 + 32 * 1500) * 4
    gap = work("whisper-medium", "written out").saved_bytes - work("whisper-medium", "fused").saved_bytes
    assert gap == pytest.approx(matrices, rel=0.05)


def test_checkpointing_keeps_the_input_of_each_layer_and_one_layer(ran):
    work = ran[0]["work"]
    plain, again = work("whisper-large", "written out"), work("whisper-large", "written out", True)
    inputs = 32 * (1500 + 32) * 1280 * 4 * 32  # batch x positions x width x 4 bytes x layers
    layer = 312 * GIB / 32
    assert inputs < again.saved_bytes < inputs + 1.2 * layer
    assert again.state_bytes == plain.state_bytes
    assert again.flops / plain.flops == pytest.approx(4 / 3, rel=0.02)  # the layers' forward pass once more


# Scenario, workload, device, and the first way that fits, with its share of the memory; by hand from the numbers above.
FITS = [
    ("1", "whisper-medium", "NVIDIA GeForce RTX 4090", "as it is", (11.37 + 10.90) / 24),
    ("1", "whisper-medium", "NVIDIA RTX A6000", "as it is", (11.37 + 10.90) / 48),
    ("1", "whisper-medium", "M2 Ultra", "as it is", (11.37 + 23.47) / 192),
    ("1", "whisper-medium", "M2 Max", "as it is", (11.37 + 23.47) / 64),
    ("1", "gpt2-large", "NVIDIA GeForce RTX 4090", "as it is", (11.53 + 11.10) / 24),
    ("1", "gpt2-large", "NVIDIA RTX A6000", "as it is", (11.53 + 11.10) / 48),
    ("1", "gpt2-large", "M2 Ultra", "as it is", (11.53 + 12.69) / 192),
    ("1", "gpt2-large", "M2 Max", "as it is", (11.53 + 12.69) / 64),
    ("1", "gpt2-large", "M2 Pro", "as it is", (11.53 + 12.69) / 32),
    # Offloaded, the weights (2.85 and 5.80 GiB), the largest of them once more (51,865 x 1024 and 50,257 x 1600), and
    # what is kept are still more than the card has.
    ("2", "whisper-medium", "Quadro RTX 4000", "with offload and checkpointing", (2.85 + 0.20 + 1.03) / 8),
    ("2", "whisper-medium", "NVIDIA RTX 2080Ti", "with offload and checkpointing", (2.85 + 0.20 + 1.03) / 11),
    ("2", "gpt2-xl", "NVIDIA GeForce RTX 4090", "with offload and checkpointing", (5.80 + 0.30 + 0.96) / 24),
    # 335 GiB on 64; its scenario is printed as 2 in the table, and as 3 in the text.
    ("3", "whisper-large", "M2 Max", "with checkpointing", (22.98 + 17.30) / 64),
]


def test_table_3_by_arithmetic(ran):
    for row, (scenario, workload, device, way, share) in zip(rows(ran[1][1]), FITS, strict=True):
        assert (row["Scenario"], row["Workload"], row["Device"]) == (scenario, workload, device)
        said, percent = row["Fits"].removesuffix(" %").split(": ")
        assert said == way and float(percent) == pytest.approx(100 * share, abs=1), device
        assert (float(row["of its memory"].removesuffix(" %")) <= 100) == (way == "as it is")


def test_the_same_memory_holds_it_or_not_by_how_attention_is_done(ran):
    """Whisper-medium, batch 4, and 28 GiB: 22.3 GiB with fused attention, 34.8 with MPS's."""
    for backend, words in (("mps", "does not fit: "), ("cuda", "fits: ")):
        said: list[str] = []
        device = SimpleNamespace(backend=backend, free_memory=lambda: 28 * GIB)
        case = {"model": "whisper-medium", "backend": device, "note": said.append, "metric": lambda *_, **__: None}
        ran[0]["count"](fakes.FakeCase(**case))
        assert said[0].startswith(words)


def test_cases_count_for_every_machine_and_say_whether_it_fits_this_one(ran):
    names, _, records = ran
    assert [record.status for record in records] == ["ok"] * 4
    for record in records:
        value = {name: metric.value for name, metric in record.metrics.items()}
        count, trained = names["counts"][record.config["model"]]
        assert (value["parameters"], value["trained_parameters"]) == (count, trained)
        assert value["theoretical_bytes"] == 4 * count + 12 * trained
        # On the CPU, attention with dropout is written out.
        kept = "saved_fused_bytes" if "whisper" in record.case else "saved_written_bytes"
        assert value["needed_bytes"] == value["theoretical_bytes"] + value[kept]
        assert record.note.startswith("fits: ") == (value["needed_bytes"] <= value["free_bytes"])
    for number, status in ((1, claims.SUPPORTED), (25, claims.CONTRADICTED)):
        claim = next(one for one in published.claims("001") if one.id == f"001-C{number}")
        assert claims.test(claim, report_claims.MeasuredLookup(records)).status == status
