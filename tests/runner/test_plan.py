"""The plan of a run: notebooks and their parameters, jobs and their order, folder, and MINUTES."""

import importlib.metadata
import json
import math
import re
import sys
from datetime import datetime, timedelta
from types import SimpleNamespace

import fakes
import papermill  # noqa: F401 - before a test mocks another system
import pytest
from notebook_code import notebook_text, write_notebook

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


PLACE = "params/quick/thing.yaml"
PARAMETERS = """\
profile: str = "quick"  # smoke, quick or article
out: str = ""  # the run's folder
batch_sizes: list[int] = [
    64,  # one
    1024,
]  # images per step (> 0)
shapes: list[list[int]] = [[20, 200]]  # rows and columns (> 0)
models: list[dict] = [{"layers": 2}]  # each by its settings
fused: bool = False  # one kernel
budget_s: float = 10.0  # seconds (> 0)
samples: int = 0  # 0 is all
"""
GOOD = json.loads(notebook_text("# A title", PARAMETERS))


def odd(**changes) -> bytes:
    return json.dumps(GOOD | changes).encode()


def about(**metadata) -> bytes:
    return odd(metadata={"pomology": metadata})


ODD = {  # name of a file -> its contents (None: a link to nowhere), and words of the reason
    "Untitled.ipynb": (odd(cells=[]), "not a notebook: it has no cells"),
    "latin.ipynb": ('{"cells": ["é"]}'.encode("latin-1"), "not a notebook: "),
    "list.ipynb": (odd(cells=["x"]), "metadata: "),
    "gone.ipynb": (None, "cannot be read: No such file"),
    "vae-Copy1.ipynb": (about(), "no experiment, since it has no file in params/"),
    "vae 2.ipynb": (about(run=False), "a name with spaces cannot be selected"),
    "keys.ipynb": (about(orders=1), "metadata: Object contains unknown field `orders`"),
    "times.ipynb": (about(seconds={"smoke": "5"}), "metadata: Expected `float`, got `str`"),
    "only.ipynb": (about(variants=[{"only": "tf23"}]), "metadata: only is 'tf23'; expected one"),
}


@pytest.mark.parametrize(("name", "data", "words"), [(name, *ODD[name]) for name in ODD], ids=ODD)
def test_an_odd_notebook_is_a_line_and_stops_no_other(
    monkeypatch, tmp_path, capsys, name, data, words
):
    monkeypatch.setattr(notebooks, "root", lambda: tmp_path)
    write_notebook(tmp_path, "vae", json.dumps(GOOD))
    place = tmp_path / "notebooks" / name
    place.with_name("._vae.ipynb").write_bytes(b"\0\5\x16\7")
    place.symlink_to("nowhere") if data is None else place.write_bytes(data)
    assert [each.name for each in notebooks.select()] == ["vae"]
    said = capsys.readouterr().out
    assert (
        said.startswith(f"skipping {name}: {words}") and said.count("\n") == 1 and len(said) < 320
    )
    assert [each.name for each in notebooks.select("va?")] == ["vae"]
    assert capsys.readouterr().out == ""
    for refused in (notebooks.notebooks, lambda: notebooks.select(place.stem.replace(" ", "?"))):
        with pytest.raises(PomologyError, match=f"^{re.escape(f'{name}: {words}')}"):
            refused()


@pytest.fixture
def values(monkeypatch, tmp_path):
    """Return a function that reads the parameters of a notebook from a YAML file."""

    def read(text: str) -> dict:
        (tmp_path / "thing.ipynb").write_text(notebook_text("# A thing", PARAMETERS))
        (tmp_path / PLACE).parent.mkdir(parents=True)
        (tmp_path / PLACE).write_text(text)
        thing = notebooks.Notebook(tmp_path / "thing.ipynb", "A thing", [], after=["*"])
        return thing.values("quick", {})

    monkeypatch.setattr(notebooks, "root", lambda: tmp_path)
    return read


def test_a_right_file_is_taken_as_it_is(values):
    right = "batch_sizes: [128, 5_120]\nmodels: [{layers: 1}]\nfused: true\nbudget_s: 1\n"
    taken = {"batch_sizes": [128, 5120], "models": [{"layers": 1}], "fused": True, "budget_s": 1}
    assert values(f"# a comment\nprofile: quick\n{right}") == {"profile": "quick"} | taken


WRONG = {  # YAML -> words that the error must contain
    "batch_size: 64": "Object contains unknown field `batch_size`",
    "samples: true": "Expected `int`, got `bool` - at `$.samples`",
    "shapes: [[20, 0]]": "Expected `int` >= 1 - at `$.shapes[0][1]`",
    "batch_sizes: [64, 128": "while parsing",
    "just words": "Expected `object`, got `str`",
    "# nothing but a comment": "expected profile: quick",
    "profile: !!python/object/apply:os.system [exit]": "python/object/apply:os.system",
}


@pytest.mark.parametrize(("text", "words"), WRONG.items(), ids=lambda value: str(value)[:40])
def test_a_wrong_file_is_refused_in_one_line(values, text, words):
    with pytest.raises(PomologyError) as error:
        values(text)
    message = str(error.value)
    assert message.startswith(f"{PLACE}: ") and words in message and "\n" not in message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("vae_mlx.py:vae", ""),
        ("vea_mlx.py:vae", "there is no vea_mlx.py next to it, which its twin names"),
        ("vae_mlx.py:vea", "vae_mlx.py defines no vea, which its twin names"),
    ],
)
def test_a_twin_that_is_not_there_is_named_before_anything_runs(tmp_path, source, words):
    (tmp_path / "vae_mlx.py").write_text("vae = Workload()\n")
    text = notebook_text("# A title", f'experiment.twin("{source}", rows)')
    (tmp_path / "vae.ipynb").write_text(text)
    assert [*notebooks.missing_twins(tmp_path / "vae.ipynb")] == list(filter(None, [words]))
