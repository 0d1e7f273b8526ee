"""Tables of published values and this machine's, with intervals and notes, and as files.

Expected means and intervals are computed by hand; those of the reference run are committed with it.
"""

import contextlib
import csv

import pytest
from declared import article_table, of
from records import metric, product, record

from pomology.articles import published
from pomology.measure.estimate import Estimate
from pomology.paths import read_csv, root
from pomology.report import answer, article, figures, shares
from pomology.report import table as report_table
from pomology.report.article import LEFT_OUT, SCALED, SMOKE, Declaration
from pomology.report.claims import claims_table
from pomology.report.peaks import best
from pomology.report.table import INTERVALS, YEARS, Row, Table, value_text
from pomology.results import repeats
from pomology.results.cases import FLAGS
from pomology.results.metrics import HIDDEN, Metric
from pomology.results.record import Record
from pomology.results.run import Run

REFERENCE = root() / "outputs" / "reference-cpu"
RUN = Run(REFERENCE)
VERDICTS = root() / "tests" / "fixtures" / "reference_verdicts.csv"
TABLES = {place.parent.name: place for place in REFERENCE.glob("shown/*/*-article.csv")}
del TABLES["costs"], TABLES["roofline"]  # they have tables of their own
SPEEDUP = "Speed relative to the CPU"
DEVICE = "Intel Core i7-9750H CPU (PyTorch 2.13.0, 2026)"
METRICS = {
    "epoch_s": Estimate(4.5, "s", 4.41, 4.59, 400, "estimated"),
    "compute_epoch_s": Estimate(2.25, "s", 2.223, 2.277, 400, "estimated"),
    "step_s": Estimate(0.0095, "s", 0.009, 0.01, 400, "estimated"),
    "flops_per_s": Estimate(52_774_000_000, "FLOP/s"),
    "footprint_peak_bytes": Estimate(412_000_000, "B"),
    "power_w": Estimate(41.6, "W"),
    "temperature_c": Estimate(63.5, "°C"),
    "page_faults": Estimate(12_345, "count"),
    "loss_first": Estimate(545),
}


def vae(**changes) -> Record:
    """Return a case of the variational autoencoder with all values of its table."""
    training = {"epoch_steps": 469, "steady": [[100, 0.95], [300, 2.85]], "warmup": []}
    fields = {"metrics": METRICS, "blocks": {"training": training}}
    fields |= {"chip": "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", "parameters": 652_824}
    fields |= {"data": "stand-in", "data_origin": "digits drawn by hand"}
    return record(**fields | {"flops_per_step": 501_350_400} | changes)


def shown(table) -> list[dict]:
    """Return the measured rows, by heading."""
    rows = [row.cells for row in table.rows if row.kind == "measured"]
    return [{name: cells[name] for name in table.columns} for cells in rows]


def numbers(row: dict) -> dict:
    """Return the non-empty cells of a row, as numbers where possible."""
    found = {name: str(cell) for name, cell in row.items() if str(cell) not in ("", "None")}
    for name, cell in found.items():
        with contextlib.suppress(ValueError):
            found[name] = float(f"{float(cell):.9g}")
    # A notebook that was executed early did not know all peaks of the run.
    return {name: cell for name, cell in found.items() if not name.startswith("share_of_best")}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_table_has_the_committed_numbers(name):
    variations = repeats.run_to_run_by_kind(RUN.records)
    made = article.article_table(of(name), RUN.journals[name].records, (), variations)
    kept = list(map(numbers, read_csv(TABLES[name])))
    pairs = zip(map(numbers, made.data), kept, strict=True)
    assert [{key: row.get(key) for key in wanted} for row, wanted in pairs] == kept


def test_claims_have_the_committed_verdicts():
    kept = {row["claim"]: [row["published"], row["reference-cpu"]] for row in read_csv(VERDICTS)}
    table = claims_table(published.claims(), RUN.records)
    assert {row["id"]: [row["published"], row["here"]] for row in table.data} == kept


def test_a_measured_row_shows_value_interval_and_its_origin():
    table = article_table("vae", [vae(flags=["drift"])])
    (row,) = shown(table)
    assert (row["Device"], row["Batch size"]) == (DEVICE, "128")
    times = (row["Time per epoch"], row["Compute only"])
    assert times == ("4.50 s ± 2.0 %", "2.25 s ± 1.2 %")
    assert (row["Temperature"], row["Memory"], row["Power"]) == ("64 °C", "412 MB", "41.6 W")
    assert row["Notes"] == "estimated from 400 of 469 steps; synthetic data; drift"
    assert YEARS in table.notes and YEARS not in article_table("vae", []).notes
    kept = {INTERVALS["±"], "Data: digits drawn by hand.", f"drift: {FLAGS['drift']}."}
    assert kept <= {*table.notes} and INTERVALS["about "] not in table.notes


def test_a_gpu_shows_reserved_memory_and_its_speed_relative_to_the_cpu():
    values = {"epoch_s": metric(1.5, 1.25, 2.0), "footprint_peak_bytes": metric(1e9, unit="B")}
    values["reserved_peak_bytes"] = metric(3e9, unit="B")
    fields = {"backend": "mps", "device": "gpu", "chip": "Apple M2", "case": "torch-mps"}
    gpu = vae(**fields, data="real", metrics=values)
    values |= {"epoch_s": metric(4.5, 4.0, 5.0)}
    cpu = vae(metrics=values)  # MLX reserves memory on the CPU, too
    on_cpu, on_gpu = shown(article_table("vae", [cpu, gpu]))
    assert on_gpu["Device"] == "Apple M2 GPU (PyTorch 2.13.0, 2026)"
    assert (on_gpu["Memory"], on_gpu["Notes"]) == ("3.00 GB", "measured; real")
    assert on_cpu["Memory"] == "1.00 GB"
    # An interval within a process is none of a ratio of single runs; run-to-run variation is.
    assert (on_cpu[SPEEDUP], on_gpu[SPEEDUP]) == ("", "3.00×")
    variations = {"cpu": 0.2, "gpu": 0.2}  # 1.2 to the power of 1.9 is 1.414
    on_gpu = shown(article_table("vae", [cpu, gpu], variations=variations))[1]
    assert on_gpu[SPEEDUP] == "3.00× (2.12 to 4.24×)"
    smaller = article_table("vae", [vae(config={"batch_size": 64}), gpu])
    assert SPEEDUP not in smaller.columns


def test_a_share_is_of_the_best_rate_of_the_device_in_its_precision():
    peaks = best([product(100e9, low=80e9, high=125e9)])
    values = {"epoch_s": metric(4.5), "flops_per_s": metric(25e9, 20e9, 30e9, unit="FLOP/s")}
    for changes, share in (({}, 0.25), ({"precision": "bf16"}, None), ({"backend": "mps"}, None)):
        case = [vae(metrics=values, **changes)]
        waiting = article.article_table(of("vae"), case)
        assert "Share of best" not in waiting.columns  # a later notebook may find a higher peak
        row = shares.filled(waiting, peaks).data[-1]
        assert row.get("share_of_best") == share
    assert (row["flops_per_s_low"], row["flops_per_s_high"]) == (20e9, 30e9)


M3 = {"name": "Apple M3 Max", "memory_bytes": None, "cores": 40}
M5 = {"name": "Apple M5", "memory_bytes": None, "cores": 10}
# Chip, precision, settings, the machine's GPUs, and the peak of the data sheet in TFLOP/s.
SHEETS = [
    ("NVIDIA GeForce RTX 4090", "bf16", {}, [], 165.2),
    ("NVIDIA GeForce RTX 4090", "fp32", {}, [], None),  # some of it may run in TF32
    ("NVIDIA GeForce RTX 4090", "fp32", {"tf32": "off"}, [], 82.6),
    ("Tesla T4", "fp32", {}, [], 8.1),
    ("Apple M3 Max", "fp32", {}, [M3], 14.2),
    ("Apple M3 Max", "fp32", {}, [], None),  # of which size?
    ("Apple M5", "fp32", {}, [M5], None),  # MLX computes it in TF32
    ("Apple M5", "fp32", {"tf32": "off"}, [M5], 4.0),
    ("Apple M9", "fp32", {}, [], None),
]


@pytest.mark.parametrize(("chip", "precision", "settings", "gpus", "tflops"), SHEETS)
def test_a_share_of_the_data_sheet_needs_its_peak(chip, precision, settings, gpus, tflops):
    values = {"epoch_s": metric(4.5), "flops_per_s": metric(4e12, 3e12, 5e12, unit="FLOP/s")}
    of_gpu = {"backend": "cuda" if "NVIDIA" in chip or "Tesla" in chip else "mps", "chip": chip}
    config = {"batch_size": 128} | settings
    case = vae(metrics=values, precision=precision, config=config, **of_gpu)
    row = article.article_table(of("vae"), [case], gpus).data[-1]
    assert row.get("share_of_sheet") == (tflops and pytest.approx(4 / tflops, rel=0.02))
    on_cpu = vae(metrics=values, chip=chip)
    assert "share_of_sheet" not in article.article_table(of("vae"), [on_cpu], gpus).data[-1]


def test_a_failed_case_shows_its_status_and_no_number():
    bad = vae(status="mismatch", reason="<why>", flags=["busy"])  # with all its metrics
    table = article_table("vae", [bad])
    (row,) = shown(table)
    assert [*row.values()] == [DEVICE, "128", "mismatch", "", "", "", "<why>; busy"]
    assert "epoch_s" not in table.data[-1] and table.data[-1]["status"] == "mismatch"


@pytest.mark.parametrize(("failed", "tables"), [(2, 1), (3, 2)])
def test_many_cases_without_a_value_stand_behind_a_click(failed, tables):
    sizes = range(1, 1 + failed)
    cases = [vae(status="too-slow", config={"batch_size": size}) for size in sizes]
    table = article_table("vae", [*cases, vae(config={"batch_size": 99})])
    # The file and plain text have all of them in their order.
    rows = [row for row in table.data if row["source"] == "measured"]
    assert [row["batch_size"] for row in rows] == [*sizes, 99]
    assert str(table).count("too-slow") == failed
    grids = table.grid().split("<details")
    assert [grid.count("<td>too-slow</td>") for grid in grids] == ([0, 3], [2])[tables == 1]
    assert len(grids) == tables and grids[0].count('<tr class="measured">') in (1, 3)
    assert "<summary>3 cases without a value: 3 too slow</summary>" in grids[-1] or tables == 1


def test_a_long_table_begins_with_this_machine_and_the_published_rows_next_to_it():
    """Rates of published devices lie 1, 2, ... 50 GFLOP/s apart; this machine's is 20.5."""

    def row(name, kind, rate=None, precision="fp32"):
        data = {"flops_per_s": rate and rate * 1e9, "precision": precision}
        return Row({"Device": name}, data, kind)

    rows = [row(f"GPU {rate}", "published", rate) for rate in range(1, 51)]
    rows.append(row("GPU in half", "published", 20.4, "fp16"))
    rows += [row("own", "measured", 20.5), row("own, failed", "measured")]
    table = Table("Rates", article.with_excerpt(rows, "flops_per_s"))
    near = [row.cells["Device"] for row in table.excerpt]
    assert near == [*(f"GPU {rate}" for rate in (24, 23, 22, 21)), "own"] + [
        f"GPU {rate}" for rate in (20, 19, 18, 17)
    ]
    assert not table.is_long
    opened, folded = table.grid().split("<details")
    assert opened.count("<tr class") == 9 and folded.count("<tr class") == 53
    # Without this machine there is nothing to compare, and the whole table is long.
    without = Table("Rates", article.with_excerpt(rows[:-2], "flops_per_s"))
    assert without.is_long and not without.excerpt
    # A table that waits for the shares of peaks keeps its excerpt.
    assert [Row(*list(row)) for row in table.rows] == table.rows


def test_a_published_rate_in_steps_is_shown_and_saved_in_samples():
    """V100 16 GB: 2.53 steps/s at batch size 128."""
    rows = article_table("resnet50", []).rows
    (row,) = [row for row in rows if row.cells["Images"].endswith("(2.53 steps/s)")]
    assert row.data["throughput"] == pytest.approx(128 * 2.5301133768088104)
    assert row.cells["Images"] == "323.9 samples/s (2.53 steps/s)"


def test_a_value_that_was_left_out_is_in_the_notes():
    slow = METRICS | {"epoch_s": METRICS["epoch_s"].replace(value=7.2)}
    repeats_of = [vae(repeat=0), vae(repeat=1), vae(repeat=2, metrics=slow, flags=["drift"])]
    (row,) = shown(article_table("vae", repeats_of))
    assert "2 of 3 repeats; left out: 7.20 s (drift)" in row["Notes"]


def test_a_note_and_a_value_of_one_repeat_are_not_shown_as_those_of_all():
    both = [
        vae(repeat=0, note="adding 1; after a pause 63.1 times as long"),
        vae(repeat=1, note="adding 1; after a pause 40.2 times as long"),
    ]
    (row,) = shown(article_table("vae", both))
    assert "adding 1" in row["Notes"] and "times as long" not in row["Notes"]
    (row,) = shown(article_table("vae", both[:1]))
    assert "63.1 times as long" in row["Notes"]
    alone = {name: value for name, value in METRICS.items() if name != "compute_epoch_s"}
    (row,) = shown(article_table("vae", [both[0], vae(repeat=1, metrics=alone)]))
    assert "Compute only" not in row and row["Time per epoch"]


def test_a_training_that_stopped_after_its_first_step_says_so():
    training = {"epoch_steps": 469, "steady": [], "warmup": [], "stopped": "limit"}
    stopped = vae(metrics={}, blocks={"training": training | {"first_step_s": 14.3}})
    (row,) = shown(article_table("vae", [stopped]))
    assert row["Notes"].startswith("the time limit came after the first step, of 14.3 s")
    said = answer.of_run(of("vae"), [stopped, vae(config={"batch_size": 5120})])
    assert (
        "1 of 2 cases has no value: 1 stopped after its first step (batch size 128)."
        in said.evidence
    )


def test_smoke_and_scaled_are_never_next_to_published():
    smoke = vae(profile="smoke", flags=["drift"])
    table = article_table("vae", [smoke, vae(scaled=True)])
    assert table.rows == article_table("vae", []).rows
    assert {SMOKE, LEFT_OUT} < {*table.notes} and SCALED not in table.notes
    rates = article_table("bert_base", [vae(experiment="bert_base", scaled=True)])
    assert SCALED in rates.notes and LEFT_OUT not in rates.notes


# Values whose geometric mean is 2.2; the upper bound is computed in test_intervals.
THREE, HIGH = (2.0, 2.2, 2.42), 2.787711


def test_repeats_become_their_mean_and_a_failed_one_hides_no_value():
    cases = [vae(status="crashed", metrics={}, flags=["busy"], repeat=9)]
    for number, value in enumerate(THREE):
        time = metric(value, value * 0.99, value * 1.01, how="estimated")
        cases.append(vae(repeat=number, metrics={"epoch_s": time}))
    table = article_table("vae", cases)
    (row,) = shown(table)
    assert row["Time per epoch"] == "2.20 s (1.74 to 2.79 s)"
    repeats_used = "3 of 4 repeats; another one crashed"
    assert row["Notes"].endswith(f"400 of 469 steps; synthetic data; {repeats_used}; busy")
    data = table.data[-1]
    assert (data["repeats"], data["status"]) == (3, "ok")
    assert (data["epoch_s"], data["epoch_s_high"]) == pytest.approx((2.2, HIGH), rel=1e-6)


def test_details_have_a_row_for_each_number_and_a_column_for_each_repeat():
    repeats = [vae(), vae(repeat=1), vae(repeat=2, status="error", reason="why")]
    table = article.details_table(repeats)
    rows = {row.cells["Quantity"]: [*row.cells.values()] for row in table.rows}
    device = ["Intel Core i7-9750H CPU", "PyTorch", "batch size 128"]
    step = "9.50 ms ± 5.3 % in this process, n = 400"
    assert rows["Step"] == [*device, "Step", step, step, ""]
    assert rows["Status"][-1] == "error: why" and rows["Achieved"][4] == "52.8 GFLOP/s"
    assert rows["Page faults"][4] == "12,345"


def test_a_checksum_is_in_the_data_and_not_in_the_tables_for_people():
    case = vae(metrics=METRICS | {"inputs_checksum": metric(896_123_457)})
    assert article_table("vae", [case]).data[-1]["inputs_checksum"] == 896_123_457
    plain = article.details_table([vae()])
    assert [row.cells for row in article.details_table([case]).rows] == [
        row.cells for row in plain.rows
    ]


def test_what_was_counted_is_shown_exactly_and_no_gpu_where_there_is_none():
    """For all values of the reference run, which has no GPU."""
    for each in RUN.records:
        for name, estimate in each.metrics.items():
            metric = Metric(name)
            assert "GPU" not in metric.heading, name
            counted = isinstance(estimate.value, int) and estimate.unit in ("", "count", "samples")
            if counted and metric.unit != "%" and name not in HIDDEN:
                text = value_text(name, estimate)
                assert text.endswith("billion") or text == f"{estimate.value:,.0f}", name


def test_columns_without_a_text_are_left_out():
    table = Table("T", [Row({"a": "2", "c": "", "b": "1"}), Row({"a": "3", "c": "", "b": ""})])
    assert table.columns == ["a", "b"]
    assert str(table) == "T\n\na  b\n2  1\n3\n"


def test_numbers_in_a_file_read_back_exactly(tmp_path):
    value = 0.1 + 0.2
    metrics = {"epoch_s": metric(value, value / 3, 1e299), "step_s": metric(5e-324)}
    config = {"batch_size": 128, "name": 'a "quoted", text\nof two lines'}
    path = tmp_path / "new" / "vae"
    table = article_table("vae", [vae(metrics=metrics, config=config)])
    report_table.save(table, path)
    cells = path.with_suffix(".html").read_text(encoding="utf-8")
    assert cells.startswith('<div class="scroll"><table') and cells in table.html()
    with open(path.with_suffix(".csv"), newline="", encoding="utf-8") as file:
        first, *_, last = lines = list(csv.DictReader(file))
    assert len(lines) == 6 + 1 and first["device"] == "M1 Ultra CPU"
    assert (last["name"], last["batch_size"]) == (config["name"], "128")
    numbers = [float(last[name]) for name in ("epoch_s", "epoch_s_low", "epoch_s_high", "step_s")]
    assert numbers == [value, value / 3, 1e299, 5e-324]


def test_settings_of_cases_have_columns_where_none_are_published():
    about = Declaration("gru", title="A GRU", columns=["step_s"])
    rows = [{"width": 64, "layers": layers} for layers in (1, 2)]
    records = [record("gru", {"step_s": metric(0.1 * row["layers"])}, row) for row in rows]
    table = article.article_table(about, records)
    shown = [(row.cells["Width"], row.cells["Layers"]) for row in table.rows]
    assert shown == [("64", "1"), ("64", "2")]
    titles = [axis.get_title("left") for axis in figures.article_figure(about, records).axes]
    assert titles == ["Width 64, layers 1", "Width 64, layers 2"]


def test_next_to_published_rows_only_settings_that_tell_cases_apart_have_a_column():
    configs = [{"batch_size": 128, "width": 64, "fused": fused} for fused in (True, False)]
    headings = [*of("vae").of_cases(configs).headings]
    assert headings == [*of("vae").headings, "fused"]
