"""Tables of results from journals, Parquet files and zips, and of published rows."""

import csv
import gzip
import math
import re
import shutil
from pathlib import Path

import pandas
import records
from pandas.testing import assert_frame_equal

import pomology
from pomology.articles import published
from pomology.paths import root
from pomology.results import frame as results_frame
from pomology.results.record import RENAMED
from pomology.results.run import Run

REFERENCE = root() / "outputs" / "reference-cpu"
# A run of an earlier version, and its values as that version had them.
OLDER = Path(__file__).parents[1] / "fixtures" / "older-run.zip"
VALUES = Path(__file__).parents[1] / "data" / "reference-values.csv.gz"


def numbers(row: dict) -> tuple:
    """Return value, bounds and count of a row as floats or None."""
    texts = (row[key] for key in ("value", "low", "high", "n"))
    return tuple(None if text in ("", None) or pandas.isna(text) else float(text) for text in texts)


def renamed(experiment: str, case: str) -> tuple[str, str]:
    """Return the current names of an experiment and case, since some notebooks were merged."""
    name, settings = RENAMED.get(experiment, (experiment, {}))
    if settings:
        device, *words = case.split(" ")
        texts = settings | dict(word.split("=") for word in words)
        case = " ".join([device, *(f"{key}={value}" for key, value in texts.items())])
    return name, case


def test_an_older_run_has_its_earlier_values():
    with gzip.open(VALUES, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    keys = ("experiment", "case", "repeat", "metric", "status", "flags", "how")
    for row in rows:
        row["experiment"], row["case"] = renamed(row["experiment"], row["case"])
    wanted = {tuple(row[key] for key in keys): numbers(row) for row in rows}
    table = pomology.load(OLDER).astype({"how": object}).fillna({"metric": "", "how": ""})
    too_slow = table["status"].eq("too-slow")  # they were `too-big` then
    assert too_slow.sum() == 196 and table["reason"][too_slow].str.contains("would take").all()
    assert not table["reason"][table["status"].eq("too-big")].str.contains("would take").any()
    table.loc[too_slow, "status"] = "too-big"
    found = {tuple(str(row[key]) for key in keys): numbers(row) for row in table.to_dict("records")}
    assert len(wanted) == len(table) == 8207 and found == wanted


def test_a_run_is_written_as_parquet_and_read_from_its_journals(tmp_path):
    folder = shutil.copytree(
        REFERENCE, tmp_path / "a", ignore=shutil.ignore_patterns("*.html", "*.ipynb", "shown")
    )
    plain = pomology.load(folder)
    results_frame.write(Run(folder))
    place = folder / "results.parquet"
    assert place.stat().st_size < 10**6
    columns = list(results_frame.COLUMNS)
    assert_frame_equal(pandas.read_parquet(place), plain[columns])
    place.write_bytes(b"not read")
    named = pomology.load(folder.rename(tmp_path / "b"))
    assert set(named["run"]) == {"b"}
    assert_frame_equal(named.drop(columns="run"), plain.drop(columns="run"))


def test_a_case_without_numbers_has_a_row_and_a_setting_its_column(tmp_path):
    settings = {"batch_size": 8, "data": "random", "wrt": 1}
    failed = records.record(config=settings, status="too-big", reason="too big")
    settings = {"batch_size": 16, "lora": True, "wrt": "left"}
    timed = records.record(metrics={"step_s": records.metric(0.5)}, config=settings)
    machine = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "python": "3.12.1"}
    table = pomology.load(records.write(tmp_path, [failed, timed], machine))
    assert list(table["status"]) == ["too-big", "ok"] and list(table["batch_size"]) == [8, 16]
    assert table["metric"].isna().tolist() == [True, False] and math.isnan(table["value"][0])
    assert table["setting_data"][0] == "random" and table["data"].notna().all() and table["lora"][1]
    assert list(table["wrt"]) == [1, "left"]  # each of its own type
    assert set(table["machine"]) == {"Apple M9, 8 cores, 16 GB"}


def test_published_rows_have_the_same_columns_and_the_printed_values():
    table = pomology.published()
    columns = list(results_frame.COLUMNS)
    assert list(table.columns[: len(columns)]) == columns
    assert len(table) == len(published.rows()) + len(published.elsewhere())
    vae = pomology.published("003", "vae").query("metric == 'epoch_s' and batch_size == 128")
    values = dict(zip(vae["device"], vae["value"], strict=True))
    assert values == {"M1 Ultra CPU": 3.746, "M1 Ultra GPU": 8.76, "2070 Super CUDA": 6.555}
    assert set(vae["how"]) == {"published"} and set(vae["year"]) == {2022}
    assert not set(pomology.published("003")["experiment"]) & {"resnet50"}
    assert len(pomology.published(experiment="resnet50")) == len(published.elsewhere("resnet50"))
    # To be cited: who printed it, where, and under which licence.
    lambdas = table[table["source"].eq("lambda-2023")]
    assert set(lambdas["author"]) == {"Lambda Labs"}
    assert lambdas["url"].str.startswith("https://").all() and (lambdas["licence"] != "").all()
    logs = table[table["source"].str.startswith("rasbt/machine")]
    assert set(logs["author"]) == {"Igor Susmelj"}  # who quotes them


def test_the_examples_in_the_docs_work():
    text = (root() / "docs" / "reading-a-report.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import pomology.*?)```", text, re.DOTALL)
    imports, _, load, *questions = code.splitlines()
    names: dict = {}
    exec(f"{imports}\n{load}", names)
    vae, rates, statuses, printed = (eval(line, names) for line in questions)
    # PyTorch has an epoch of both batch sizes; MLX's steps end before an epoch on this CPU.
    assert vae["metric"].value_counts().to_dict() == {"epoch_s": 6, "step_s": 3}
    known = names["table"]
    of_vae = known[known["experiment"].eq("vae") & known["metric"].eq("flops_per_s")]
    assert rates.loc["vae", "AMD EPYC CPU"] == of_vae["value"].max()
    assert statuses.loc["vae", "ok"] == 9 and statuses.sum() == 1116
    assert len(printed) == 6
