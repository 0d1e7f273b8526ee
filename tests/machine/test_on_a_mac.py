"""A whole case in a process with a mocked Mac; see `macs.become` for the mock's limits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from macs import install_commands, names_in, secrets_in

from pomology.results import record as results_record

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent

CASE = """
import sys, time
import IPython, matplotlib.pyplot, pandas, psutil, torch, torch.utils.data
import macs

macs.become()
import small_model
from pomology.experiment.experiment import Experiment
from pomology.machine import calibration

calibration.calibrate = lambda: 0.02  # other tests running at the same time must cause no flag


def train(case):
    small_model.fit(case, 200, at=lambda number: time.sleep(0.006))


experiment = Experiment("vae", article="003", devices="cpu", budget_s=30, out=sys.argv[1])
small_model.run(experiment, train, batch_size=[8])
print(experiment.table())
"""


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """CASE on the M4 Max: the folder, the record, the commands run, and the printed text."""
    folder = tmp_path_factory.mktemp("mac")
    log = install_commands("m4-max", folder / "bin")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/lib:{TESTS}", "OMP_NUM_THREADS": "1"}
    environment["PATH"] = str(folder / "bin")
    command = [sys.executable, "-c", CASE, str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    lines = (folder / "run" / "vae.jsonl").read_text(encoding="utf-8").splitlines()
    return folder / "run", json.loads(lines[-1]), log.read_text().splitlines(), done.stdout


def test_a_whole_case_runs_as_on_a_mac(rehearsed):
    folder, line, _, printed = rehearsed
    record = results_record.checked(line)
    assert (record.status, record.reason) == ("ok", None)
    assert (record.chip, record.backend, record.device) == ("Apple M4 Max", "cpu", "cpu")
    state = (record.power_source, record.power_mode, record.thermal_level)
    assert state == ("ac", "high", 1)
    assert record.rails == ["cpu", "gpu", "dram"]
    # Nothing else is missing: a source that needs something that macOS lacks would be here with its
    # error.
    assert record.absent == {"clock_hz": "macOS tells the clock to administrators only"}
    metrics = {name: metric.value for name, metric in record.metrics.items()}
    assert metrics["temperature_c"] == 61.5 and metrics["memory_load"] == 0.25
    assert 0 < metrics["cpu_load"] <= metrics["cpu_load_peak"] <= 1
    assert metrics["power_w"] == pytest.approx(15, rel=0.01)
    assert metrics["footprint_peak_bytes"] == 3 * 10**9
    # psutil's counters include all page-ins of a Mac; this one's vm_stat reports no swapping.
    assert (metrics["swapped_bytes"], metrics["swap_bytes"]) == (0, 0)
    assert metrics["compressed_bytes"] == 70_000 * 16384
    assert "swapping" in record.flags
    assert metrics["page_faults"] > 0
    assert "Apple M4" in printed and "swapping: memory was short" in printed
    # There is no git among the commands.
    snapshot = json.loads((folder / "machine.json").read_text())
    assert [name for name, value in snapshot.items() if value is None] == ["git"]


def test_nothing_private_is_in_any_file(rehearsed):
    run_folder, _, _, printed = rehearsed
    files = [path for path in run_folder.rglob("*") if path.is_file()]
    assert {"machine.json", "vae.jsonl"} <= {path.name for path in files}
    texts = {path.name: path.read_text(encoding="utf-8") for path in files}
    for name, text in (texts | {"the terminal": printed}).items():
        # A figure may have the number of a process by chance.
        secrets = [each for each in secrets_in(text) if "json" in name or not each.isdecimal()]
        assert secrets == [], name
        assert names_in(text, ROOT, run_folder) == [], name


def test_commands_need_no_special_rights_and_print_no_serial_number(rehearsed):
    asked = rehearsed[2]
    sysctls = {line.split()[-1] for line in asked if line.startswith("sysctl")}
    assert sysctls and not re.search(r"uuid|hostname|serial|bootsession", " ".join(sysctls))
    rest = {line.strip() for line in asked if not line.startswith("sysctl")}
    displays = "system_profiler SPDisplaysDataType -json"
    assert rest == {"vm_stat", "pmset -g", "pmset -g batt", displays}
    assert asked.count("vm_stat ") == 2  # the edges of the block
