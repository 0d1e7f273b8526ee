"""The bank of known silent faults, on a pretended M1: without any, and with each planted; and on devices without."""

import json
import re
import subprocess
import sys
from pathlib import Path

import apart
import fakes
import pytest
import records

from pomology.devices import find
from pomology.extras.doctor import doctor, known_faults
from pomology.paths import notebook_paths, root
from pomology.report import declaration
from pomology.report import page as report_page

FRAME = """
import json, math, os, sys
from types import SimpleNamespace
import torch
import faulty, pretended_mps
from pomology.extras.doctor import known_faults

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


def test_each_planted_one_is_present_and_no_other_and_zeros_behind_the_numbers_would_hide_one(answers):
    plants = answers["plants"]
    assert {plant: present(answers[plant]) for plant in plants} == {plant: {what} for plant, what in plants.items()}
    assert set(plants.values()) == {fault.what for fault in BANK} and present(answers["zeros behind"]) == set()


def test_none_concerns_a_processor_and_all_have_a_source_and_a_cure():
    (device,) = find.find("cpu")
    assert known_faults.of(device) == []
    assert all(fault.source and fault.cure for fault in known_faults.FAULTS)


def test_a_fault_that_ends_the_process_costs_no_other_answer(monkeypatch, tmp_path):
    """As Metal's assertions do: what was known before is in the file that the doctor reads."""
    place = tmp_path / "answer.json"

    def ends(*_):
        raise SystemExit(json.loads(place.read_text())["devices"][0]["faults"])  # what is there when a process ends

    looks = {"first": lambda *_: "", "second": ends, "third": lambda *_: "by 20 %"}
    bank = [known_faults.Fault(name, "torch", ("cpu",), "", "s", "c", look) for name, look in looks.items()]
    monkeypatch.setattr(known_faults, "FAULTS", bank)
    monkeypatch.setattr(doctor.FRAMEWORKS["torch"], "backends", lambda: {"cpu": None})
    with pytest.raises(SystemExit) as ended:
        doctor._main("torch", str(place))
    ended_by = [row[1] for row in ended.value.code]
    assert ended_by == [known_faults.CURED, known_faults.ENDED, known_faults.ENDED]
    bank[1] = bank[1]._replace(look=lambda *_: 1 / 0)
    doctor._main("torch", str(place))
    last = [row[1] for row in json.loads(place.read_text())["devices"][0]["faults"]]
    assert last == [known_faults.CURED, "not tried: division by zero", "present here: by 20 %"]


def test_the_doctor_keeps_what_was_written_before_a_process_was_ended(tmp_path):
    program = tmp_path / "framework.py"
    said = {"version": "1", "reason": None, "devices": []}
    for ends in ("time.sleep(600)", "os.kill(os.getpid(), signal.SIGABRT)"):
        write = f"open(sys.argv[2], 'w').write({json.dumps(said)!r})"
        program.write_text(f"import os, signal, sys, time\n{write}\n{ends}\n")
        assert doctor.probe("torch", 2.0, [str(program)]) == said


def test_the_doctor_names_which_are_present_and_what_helps():
    gpu = {"backend": "mps", "kind": "gpu", "reason": None}
    fine, other = ["a", "cured here", "issue 1", "cure 1"], ["b", known_faults.ELSEWHERE, "issue 2", "cure 2"]
    clean = doctor.faults("torch", gpu | {"faults": [fine, other]})
    assert (clean.verdict, clean.remedy) == ("yes", "")
    assert clean.answer == "cured here: a; does not concern this chip: b"
    ill = doctor.faults("torch", gpu | {"faults": [fine, ["b", "present here: by 20 %", "issue 2", "cure 2"]]})
    assert (ill.verdict, ill.remedy) == ("no", "b: cure 2")
    assert ill.answer == "b (issue 2): present here: by 20 %; cured here: a"
    untried = doctor.faults("torch", gpu | {"faults": [["a", "not tried: needs 4 GB", "issue 1", "cure 1"]]})
    assert (untried.verdict, untried.answer) == (doctor.NOT_TOLD, "a (issue 1): not tried: needs 4 GB")


def test_a_row_that_meets_a_planted_fault_is_a_mismatch_without_a_time(tmp_path, forked):
    """The gradient that comes back from the 33,278 words of the language model."""
    (notebook,) = (path for path in notebook_paths(root() / "notebooks") if path.stem == "transformer_lm")
    command = [sys.executable, str(Path(__file__).with_name("faulty.py")), str(notebook), "smoke"]
    command += [str(tmp_path / "rows.json"), "long products"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ((row,),) = (rows.values() for rows in json.loads((tmp_path / "rows.json").read_text()).values())
    assert (row[0], row[2]) == ("mismatch", []) and row[1].startswith("the gradient of"), row


def test_no_page_prints_a_number_of_a_row_that_computed_wrongly(tmp_path, undrawn):
    """Though the journal keeps them: 7.654321, and 12.3 ms of a step."""
    names = ("epoch_s", "fit_s", "flops_per_s", "power_gpu_w", "memory_peak_bytes", "max_abs_error")
    metrics = {name: {"value": 7.654321} for name in names}
    metrics |= {name: {"value": 0.0123456} for name in ("step_s", "forward_s")}
    about = {"backend": "mps", "device": "gpu", "metrics": metrics, "flops_per_step": 10**9, "reason": "mm is wrong"}
    notebooks = ("vae", "mlp", "simclr", "energy", "kernel_launch_torch", "blas_torch", "ceilings")
    articles = {name: declaration.of(name).article for name in notebooks}
    rows = [fakes.record(experiment=n, article=a, status="mismatch", **about) for n, a in articles.items()]
    report_page.build(records.write(tmp_path, rows, {"chip": "Apple M1", "python": "3.11.9"}))
    pages = [path for path in tmp_path.rglob("*") if path.suffix in (".html", ".csv")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages}
    assert {"index.html", "vae-details.html", "kernel_launch_torch-numbers.html"} <= set(texts)
    assert "mm is wrong" in texts["index.html"] and "7.654321" in (tmp_path / "vae.jsonl").read_text()
    printed = {name: re.findall(r"\b7\.65\d*|\b12\.3 ms|\b0\.0123\d*", text) for name, text in texts.items()}
    assert {name: words for name, words in printed.items() if words} == {}
