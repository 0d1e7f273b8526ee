"""The plan of a run: its jobs and their order, its folder, and MINUTES in simulated time."""

import importlib.metadata
import math
import re
import sys
from datetime import datetime, timedelta
from types import SimpleNamespace

import fakes
import papermill  # noqa: F401 - before a test mocks another system
import pytest

from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.runner import notebooks, plan

KERAS = ["mlp_cnn_lstm-no-fusion"]
MLX = [f"{name}-mlx-tf32" for name in ("peaks", "blas", "model_sizes", "gpt2_pretraining")]


@pytest.mark.parametrize(
    ("platform", "chip", "package", "devices", "others"),
    [
        ("darwin", "Apple M2 Max", "mlx", "auto", KERAS),
        ("darwin", "Apple M5 Pro", "mlx", "auto", KERAS + MLX),
        ("darwin", "Apple M5 Pro", "mlx", "cpu", []),
        ("linux", "AMD EPYC 7B13", "mlx-cpu", "auto", []),
        ("linux", "AMD EPYC 7B13", "mlx-cuda-12", "auto", MLX),
    ],
)
def test_a_setting_of_a_process_is_run_in_both_ways(
    monkeypatch, tmp_path, platform, chip, package, devices, others
):
    """Metal's fusion under Keras, and MLX's default fp32; the article's own way comes last."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(snapshot, "chip", lambda: chip)
    packages = [SimpleNamespace(name=package)]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: packages)
    jobs = plan.jobs("quick", {"devices": devices, "out": "x"}, repeats=2)
    ways = [job for job in jobs if re.search("no-fusion|tf32", job.name)]
    assert sorted(job.name for job in ways if not job.repeat) == sorted(others)
    for job in ways:
        keras = job.notebook.name == "mlp_cnn_lstm"
        assert job.parameters["devices"] == "gpu"
        assert job.parameters["fusion" if keras else "tf32"] is not keras
        plain = re.sub("-no-fusion|-mlx-tf32", "", job.name)
        (own,) = [one for one in jobs if one.name == plain]
        assert jobs.index(job) < jobs.index(own) and own.parameters["devices"] == devices
    assert len({job.output(tmp_path) for job in jobs}) == len(jobs)


def test_a_first_table_then_the_peaks_and_last_the_notebooks_that_show_others():
    names = [job.name for job in plan.jobs("quick", {"out": "x"})]
    names = [name for name in names if "-" not in name]
    assert names[:3] == ["vae", "instrument_check", "peaks"]
    assert names.index("dcgan") < names.index("roofline") < names.index("summary")
    assert names[-1] == "summary"


@pytest.mark.parametrize("speed", [0.3, 1, 3])
@pytest.mark.parametrize("minutes", [3, 10])
def test_minutes_run_what_fits_by_priority(monkeypatch, minutes, speed):
    """The machine takes `speed` times the stated seconds."""
    clock, ran, left_out = fakes.Clock(), [], {}
    jobs = plan.jobs("quick", {"out": "x"})
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for job, *_ in plan.schedule(jobs, minutes, left_out):
        clock.pass_s(speed * job.seconds)
        ran.append(job.name)
    clock.pass_s(speed * plan.PAGE_S)
    assert clock.now < 60 * minutes * 1.25
    assert ran[0] == "vae" and ran[-1] == "summary"
    priority = {job.name: job.notebook.priority for job in jobs}
    priorities = [priority[name] for name in ran if priority[name] < math.inf]
    assert priorities == sorted(priorities)
    assert {*ran, *left_out} == {job.name for job in jobs}
    if minutes == 3:
        assert left_out["sustained_load"].startswith("takes about ")


def test_each_article_has_a_notebook_among_the_first():
    known = notebooks.notebooks(skipped={})
    first = [notebook.article for notebook in known if notebook.priority < math.inf]
    assert sorted(first) == sorted({notebook.article for notebook in known} - {"kit"})


def test_a_run_without_a_name_is_today_s_or_an_unfinished_one(monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "root", lambda: tmp_path)
    today, before = (f"{datetime.now() - timedelta(days):%Y%m%d}-quick" for days in (0, 2))
    assert plan.run_folder("", "quick").name == today
    going = tmp_path / "outputs" / before / plan.GOING
    going.parent.mkdir(parents=True)
    going.touch()
    assert plan.run_folder("", "quick").name == before
    (tmp_path / "outputs" / today).mkdir()
    assert plan.run_folder("", "quick").name == today


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "a" * 81, "a\nb"])
def test_an_unsafe_name_of_a_run_is_refused(name):
    with pytest.raises(PomologyError, match=r"^RUN="):
        plan.run_folder(name, "quick")
