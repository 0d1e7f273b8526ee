"""The published numbers compared with the articles' tables, which this file has as typed in."""

import csv
import re

import pandas
import pytest

from pomology.articles import published
from pomology.views import community_results


def values(article=None, experiment=None) -> pandas.DataFrame:
    return pandas.DataFrame(published.rows(article, experiment), dtype=object)


CPU, GPU, RIVAL = "M1 Ultra CPU", "M1 Ultra GPU", "2070 Super CUDA"
BUG = "Runtime error (Bug)"
DEVICES = {"cpu": (CPU, "cpu"), "gpu": (GPU, "mps"), "rival": (RIVAL, "cuda")}

# Tables of Heba (2022) as printed: role; parameters; time, temperature, memory, power.
TABLES = {
    "dcgan": """batch_size, image_size
cpu; 64, 64; 1942.078 s; 47ºC; <0.3GB; ~35W
cpu; 1024, 64; 1684.591 s; 45ºC; <1.3GB; ~35W
gpu; 64, 64; Runtime error (Bug); 43ºC; --; --
gpu; 1024, 64; Runtime error (Bug); 42ºC; --; --
rival; 64, 64; 285.473 s; 48ºC; 1.3GB; ~84W
rival; 1024, 64; 252.657 s; 54ºC; 4.45GB; ~69W""",
    "siamese": """batch_size
cpu; 64; 353.208 s; 47ºC; <0.4GB; ~35W
cpu; 1024; 197.937 s; 51ºC; <0.5GB; ~38W
gpu; 64; 112.131 s; 47ºC; 1.42GB; ~38W
gpu; 1024; 15.547 s; 47ºC; 3.21GB; ~38W
rival; 64; 39.839 s; 55ºC; 1.3GB; ~182W
rival; 1024; 20.538 s; 51ºC; 2.4GB; ~189W""",
    "transformer_lm": """batch_size, embedding_size, layers, hidden_size
cpu; 20, 200, 2, 200; 282.73 s; 53ºC; <0.3GB; ~43W
cpu; 20, 500, 2, 500; 405.90 s; 49ºC; <0.5GB; ~44W
cpu; 200, 500, 4, 500; 362.12 s; 52ºC; 1.6GB; ~50W
cpu; 200, 500, 6, 1024; 513.85 s; 51ºC; 2.4GB; ~44W
cpu; 200, 500, 10, 1024; 745.80 s; 51ºC; 2.4GB; ~50W
gpu; 20, 200, 2, 200; 505.52 s; 48ºC; <2.4GB; ~40W
gpu; 20, 500, 2, 500; 502.79 s; 48ºC; 4.8GB; ~40W
gpu; 200, 500, 4, 500; 104.67 s; 51ºC; 13.2GB; ~80W
gpu; 200, 500, 6, 1024; 137.19 s; 50ºC; 14.4GB; ~90W
gpu; 200, 500, 6, 1024; 137.19 s; 50ºC; 14.4GB; ~90W
gpu; 200, 500, 10, 1024; 216.04 s; 45ºC; 16GB; ~70W
rival; 20, 200, 2, 200; 47.39 s; 48ºC; 1.27GB; ~164W
rival; 20, 500, 2, 500; 73.36 s; 58ºC; 1.48GB; ~196W
rival; 200, 500, 4, 500; 59.98 s; 54ºC; 6.2GB; ~189W
rival; 200, 500, 6, 1024; 72.54 s; 59ºC; 6.8GB; ~205W
rival; 200, 500, 10, 1024; DNF (Out of Memory); --; --; --""",
    "vae": """batch_size
cpu; 128; 3.746 s; 41ºC; <0.1GB; ~28W
cpu; 5120; 1.933 s; 40ºC; <0.1GB; ~12W
gpu; 128; 8.760 s; 42ºC; 0.6GB; ~30W
gpu; 5120; 1.998 s; 41ºC; 0.34GB; ~28W
rival; 128; 6.555 s; 36ºC; 1.2GB; ~51W
rival; 5120; 6.074 s; 52ºC; 1.3GB; ~52W""",
}
METRICS = {"epoch_s": ("s", 1), "temperature_c": ("°C", 1)}
METRICS |= {"footprint_peak_bytes": ("GB", 1e9), "power_w": ("W", 1)}
STATUS = {BUG: "error", "DNF (Out of Memory)": "out-of-memory", "--": "not-reported"}


@pytest.mark.parametrize("experiment", TABLES)
def test_article_003_tables_are_complete_and_as_printed(experiment):
    frame = values("003", experiment)
    keys, *lines = TABLES[experiment].splitlines()
    assert len(frame) == 4 * len(lines)
    for number, line in enumerate(lines, 1):
        role, config, *cells = line.split("; ")
        config = dict(zip(keys.split(", "), map(int, config.split(", ")), strict=True))
        about = {"role": role, "device": DEVICES[role][0], "backend": DEVICES[role][1]}
        about["config"] = config
        rows = frame[frame["row"] == number].to_dict("records")
        for row, cell, (metric, (unit, factor)) in zip(rows, cells, METRICS.items(), strict=True):
            assert about.items() <= row.items()
            told = (row["metric"], row["unit"], row["printed"], row["status"])
            assert told == (metric, unit, cell, STATUS.get(cell, "ok"))
            value = None if cell in STATUS else float(cell.strip("<~ºCGBWs "))
            assert row["value"] == value and row["bound"] == (cell[0] if cell[0] in "<~" else "")
            assert row["si"] == (None if value is None else pytest.approx(value * factor))


def test_rows_are_well_formed():
    frame = values()
    assert set(frame["status"]) == {"ok", "error", "out-of-memory", "not-reported"}
    assert set(frame["role"]) == {"", "cpu", "gpu", "rival"}
    assert set(frame["bound"]) == {"", "<", "~", ">"}
    assert set(frame["backend"]) == {"", "cpu", "mps", "cuda", "metal", "mlx-gpu"}
    words = frame["unit"].isin(["version", "text"])
    assert (frame["value"].notna() == ((frame["status"] == "ok") & ~words)).all()
    assert (frame["value"].isna() == frame["si"].isna()).all()
    for column in ("si", "flops"):  # None, not NaN
        assert all(value is None for value in frame.loc[frame[column].isna(), column])
    assert frame["printed"][frame["status"] != "not-reported"].ne("").all()
    upstream = frame[frame["source"] != "article"]
    assert len(upstream) == 105 + 9 and set(upstream["article"]) == {"000"}
    assert upstream["source"].str.contains("rasbt/machine-learning-notes@8c8e867|lightly").all()
    # A metric's name implies its unit, so a unit without a conversion would be silently wrong.
    promised = frame["metric"].str.contains("_s$|_bytes$|_w$|_c$|_j_per_step$")
    assert set(frame.loc[promised & frame["value"].notna(), "unit"]) <= published.UNITS.keys()


M1_PRO = {"device": "M1 Pro GPU", "experiment": "simclr"}
RTX_4090 = {"device": "NVIDIA GeForce RTX 4090"}
BENEFIT = "Benefit of GPU vs CPU on M2 Max"


@pytest.mark.parametrize(
    ("article", "metric", "where", "value", "unit", "si"),
    [
        ("000", "epoch_s", M1_PRO, 6.75, "min", 405.0),
        ("001", "pass_s", {"device": "M2 Pro", "backend": "mps"}, 10.704, "s", 10.704),
        ("001", "launch_cold_s", {"device": "2080Ti"}, 0.0845, "ms", 8.45e-5),
        ("001", "energy_gpu_j_per_step", {"device": "M2 MAX"}, 129.30, "J", 129.30),
        ("001", "memory_bytes", {"device": "M2 Ultra", "item": "Table 1"}, 192, "GB", 192e9),
        ("001", "peak_flops_per_s", RTX_4090, 83, "TFLOPS", 83e12),
        ("001", "parameters", {"experiment": "model_memory", "row": 1}, 769, "M", 769e6),
        ("001", "theoretical_bytes", {"row": 4}, 24.344, "GiB", 24.344 * 1024**3),
        ("004", "speedup", {"row": 3, "item": BENEFIT}, 6.77, "x", 6.77),
    ],
)
def test_values_of_the_other_articles_and_their_si_units(article, metric, where, value, unit, si):
    frame = values(article)
    for column, wanted in (where | {"metric": metric}).items():
        frame = frame[[value == wanted for value in frame[column]]]
    assert list(frame["value"]) == [value] and list(frame["unit"]) == [unit]
    assert list(frame["si"]) == [pytest.approx(si)]


@pytest.mark.parametrize(
    ("metric", "where", "low", "high"),
    [
        ("epoch_s", {"printed": "0.49 min", "experiment": "simclr"}, 0.485 * 60, 0.495 * 60),
        ("pass_s", {"device": "M2 Ultra", "backend": "mlx-gpu"}, 2.7095, 2.7105),  # 2.710
        ("power_w", {"printed": "~12W"}, 12 * 0.9, 12 * 1.1),
        ("footprint_peak_bytes", {"printed": "<1.3GB"}, 0, 1.3e9),
        ("gpu_cores", {"device": "M2 Max (30 GPU cores)"}, 30, 30),  # are counted
    ],
)
def test_bounds_are_half_a_unit_of_the_last_printed_digit_away(metric, where, low, high):
    (row,) = (
        row for row in published.rows() if where.items() <= row.items() and row["metric"] == metric
    )
    assert (row["low"], row["high"]) == (pytest.approx(low), pytest.approx(high))


def test_the_times_of_other_sources_can_be_compared():
    rows = published.elsewhere()
    assert len(rows) > 3000 and {row["source"] for row in rows} == set(published.SOURCES)
    assert {fault for row in rows for fault in row["faults"]} <= published.FAULTS.keys()
    assert {row["precision"] for row in rows} <= {*community_results.PRECISIONS}
    for row in rows:
        if row["metric"] in ("samples_per_s", "step_s"):
            batch = row["config"].get("batch_size") if row["metric"] == "step_s" else 1
            assert row["samples"] == (batch if isinstance(batch, int) else 0)
    assert all(row["si"] > 0 and published.rate(row) > 0 for row in rows)
    # Random tensors on the device have one name for all sources.
    made_up = {"synthetic", "ImageNet, syntetic", "random, on the GPU"}
    assert made_up.isdisjoint(row["config"].get("data") for row in rows)
    assert {row["workload"] for row in rows} <= published.WORKLOADS.keys()


def test_the_data_dictionary_describes_each_file_and_column():
    text = (published.DATA / "README.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`([\w.]+)`", text))
    for place in published.DATA.glob("**/*.csv"):
        with open(place, newline="", encoding="utf-8") as file:
            columns = set(next(csv.reader(file)))
        assert columns <= described, f"{place.name}: {columns - described}"
    files = {place.name for place in published.DATA.iterdir()} - {"README.md", "elsewhere"}
    assert files <= {*described, "published.csv"}


def test_each_file_of_another_source_has_its_line_in_the_sources():
    known = [line["id"] for line in published.read("sources.csv")]
    files = [place.stem for place in (published.DATA / "elsewhere").glob("[!.]*.csv")]
    assert set(files) <= set(known) and len(known) == len(set(known))
