"""The bank of known silent faults, on a pretended M1: without any, and with each planted; and on devices without."""

import json
import re
import subprocess
import sys

import apart
import declared
import fakes
import pytest
import records

from pomology.devices import find
from pomology.extras.verify_operators import known_faults
from pomology.paths import notebook_paths, root
from pomology.report import page as report_page
from pomology.report.display import Report
from pomology.results.run import Run

FRAME = """
import json, math, os, sys
from types import SimpleNamespace
import torch
import faulty, pretended_mps
from pomology.extras.verify_operators import known_faults

rehearsal = pretended_mps.Rehearsal()
device = pretended_mps._pretended_mps(rehearsal)


def verdicts(chip="Apple M1 Pro", **instead):
    type(device).name = chip
    with rehearsal.entered():
        bank = [fault._replace(**instead) for fault in known_faults.of(device)]
        return {fault.what: known_faults.look(fault, device) for fault in bank}

answers = {"none": verdicts()}
answers |= {chip: verdicts(f"Apple {chip}", look=lambda *_: "") for chip in ("M3", "M4 Max")}
for name in faulty.PLANTS:
    with faulty.planted(name):
        answers[name] = verdicts()
known_faults.math = SimpleNamespace(nan=0.0, isnan=math.isnan)
with faulty.planted("past the end"):
    answers["zeros behind"] = verdicts()
answers["plants"] = {plant: what for plant, (what, _) in faulty.PLANTS.items()}
print(json.dumps(answers))
sys.stdout.flush()
os._exit(0)
"""
BANK = [fault for fault in known_faults.FAULTS if "mps" in fault.backends]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return apart.answers(tmp_path_factory.mktemp("faults"), FRAME)


def present(verdicts: dict) -> set:
    return {what for what, verdict in verdicts.items() if verdict.startswith(known_faults.PRESENT)}


def test_a_mac_without_any_is_cured_of_those_that_concern_it(answers):
    names = [fault.what for fault in BANK]
    assert answers["none"] == answers["M3"] == dict.fromkeys(names, known_faults.CURED)
    assert answers["M4 Max"] == answers["none"] | dict.fromkeys(names[:2], known_faults.ELSEWHERE)


def test_each_planted_one_is_present_and_no_other_and_zeros_behind_the_numbers_would_hide_one(
    answers,
):
    plants = answers["plants"]
    assert {plant: present(answers[plant]) for plant in plants} == {
        plant: {what} for plant, what in plants.items()
    }
    assert (
        set(plants.values()) == {fault.what for fault in BANK}
        and present(answers["zeros behind"]) == set()
    )


def test_none_concerns_a_processor_and_all_have_a_source_and_a_cure():
    (device,) = find.find("cpu")
    assert known_faults.of(device) == []
    assert all(fault.source and fault.cure for fault in known_faults.FAULTS)


def test_a_look_that_ends_in_an_error_is_not_tried():
    (device,) = find.find("cpu")
    fault = known_faults.Fault("a", "torch", ("cpu",), "", "s", "c", lambda *_: 1 / 0)
    assert known_faults.look(fault, device) == "not tried: division by zero"


def test_a_row_that_meets_a_planted_fault_is_a_mismatch_without_a_time(tmp_path, forked):
    """The gradient that comes back from the 33,278 words of the language model."""
    (notebook,) = (
        path for path in notebook_paths(root() / "notebooks") if path.stem == "transformer_lm"
    )
    command = [sys.executable, str(root() / "tests" / "faulty.py"), str(notebook), "smoke"]
    command += [str(tmp_path / "rows.json"), "long products"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ((row,),) = (
        rows.values() for rows in json.loads((tmp_path / "rows.json").read_text()).values()
    )
    assert (row[0], row[2]) == ("mismatch", []) and row[1].startswith("the gradient of"), row


def test_no_page_prints_a_number_of_a_row_that_computed_wrongly(tmp_path):
    """Though the journal keeps them: 7.654321, and 12.3 ms of a step."""
    names = ("epoch_s", "fit_s", "flops_per_s", "power_gpu_w", "memory_peak_bytes", "max_abs_error")
    metrics = {name: {"value": 7.654321} for name in names}
    metrics |= {name: {"value": 0.0123456} for name in ("step_s", "forward_s")}
    about = {
        "backend": "mps",
        "device": "gpu",
        "metrics": metrics,
        "flops_per_step": 10**9,
        "reason": "mm is wrong",
    }
    notebooks = ("vae", "mlp", "simclr", "energy", "kernel_launch", "blas", "peaks")
    articles = {name: declared.of(name).article for name in notebooks}
    rows = [
        fakes.record(experiment=n, article=a, status="mismatch", **about)
        for n, a in articles.items()
    ]
    out = records.write(tmp_path, rows, {"chip": "Apple M1", "python": "3.11.9"})
    for name in notebooks:
        report = Report.of(declared.of(name), Run(out))
        for shown in (report.table, report.details):
            shown()
    report_page.build(out)
    pages = [path for path in tmp_path.rglob("*") if path.suffix in (".html", ".csv")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages}
    assert (
        "mm is wrong" in texts["index.html"] and "7.654321" in (tmp_path / "vae.jsonl").read_text()
    )
    printed = {
        name: re.findall(r"\b7\.65\d*|\b12\.3 ms|\b0\.0123\d*", text)
        for name, text in texts.items()
    }
    assert {name: words for name, words in printed.items() if words} == {}
