"""Every notebook and variant, run once with its smoke parameters: as on a Mac, without a network.

`make test-all` runs the largest; `make test-machines` runs all of them again on a Mac with MLX's
GPU, and those of PyTorch on an NVIDIA machine. A new notebook is found by itself. One of the
article "kit" repeats no article: it needs no published values and no figure.
"""

import json
import pickle
import re
from pathlib import Path

import msgspec
import pytest
import reached
import rehearsal
import smoke
from bs4 import BeautifulSoup
from declared import declaration
from notebook_code import code

from pomology.paths import root
from pomology.report.article import article_table
from pomology.results import journal, record

# What a case may end in besides `ok`, on a device that lacks something.
LACKS = {
    "cuda": {"unsupported", "fallback"},
    "mlx-gpu": {"unsupported", "fallback"},
    "metal": {"unsupported", "fallback", "mismatch"},
}
# What these find missing is their result.
PROBES = {"capabilities", "device_check", "instrument_check", "whisper_finetuning"}
# Ten seconds of a core each, or more.
LARGE = {"bert_base", "capabilities", "gpt2_small", "mlp_cnn_lstm-True", "simclr"}
LARGE |= {"whisper_pretraining", "instrument_check", "resnet50", "mlp_cnn_lstm-False"}
LARGE |= {"rasbt_vgg16", "whisper_finetuning", "model_memory", "prediction", "device_check"}
LARGE |= {"memory-mlx", "gpt2_finetuning", "transformer_lm", "siamese", "gpt2_pretraining-torch"}


def parameters() -> list:
    """The runs of `make test`, and those of the longer targets, by the names of their tests."""
    runs = []
    for name, *run in smoke.runs():
        marks = pytest.mark.long if name in LARGE else ()
        runs.append(pytest.param(("", "mac", *run), id=name, marks=marks))
    for machine in smoke.LONG:
        for name, *run in smoke.runs(machine):
            id = f"{machine}-{name}"
            runs.append(pytest.param((id, machine, *run), id=id, marks=pytest.mark.machines))
    return runs


@pytest.fixture(scope="module", params=parameters())
def execution(request, tmp_path_factory) -> smoke.Execution:
    name, machine, path, values = request.param
    folder = tmp_path_factory.mktemp(path.stem)
    execution = smoke.Execution(path, values, folder, machine)
    if name:
        measured = reached.Reached(tmp_path_factory)
        measured.measure(execution)
    execution.run()
    if name:
        measured.note(name)
    return execution


def test_it_ran_as_on_a_mac_with_one_framework(execution):
    end, own = execution.noticed, execution.framework
    if execution.machine != "nvidia":
        assert end["start_method"] == "spawn"
    assert end["refused"] == [], "what does not exist on a Mac, or goes wrong there"
    assert end["attempts"] == [], "a second framework in one process"
    assert {"torch", "tensorflow", "mlx", "jax"} & set(end["modules"]) <= {own}
    assert not set(end["modules"]) & set(rehearsal.UNWANTED)
    assert set(end["environment"].values()) == {None}, "a variable hides what goes wrong on a Mac"
    # With the fusion of Metal's plugin, as the article trained, and without.
    fusion = "0" if execution.parameters.get("fusion") else "1"
    assert end["remapper"] == ([fusion] if own == "tensorflow" else []), "TURN_OFF_REMAPPER"
    said = [output.text for output in execution.outputs if output.get("name") == "stderr"]
    # PyTorch's own line on a machine with CUDA's compiler and without a GPU.
    assert [text for text in said if "No CUDA runtime is found" not in text] == []


def test_its_steps_would_run_on_the_gpu(execution):
    if not execution.gpu:
        pytest.skip("computes nothing with PyTorch")
    (gpu,) = execution.noticed["played"]
    assert gpu["faults"] == [] and len(gpu["operators"]) > 5


def test_its_journal_conforms_and_every_case_is_ok(execution):
    if execution.about.get("after"):
        pytest.skip("lays other notebooks' numbers together, and has no cases of its own")
    (path,) = execution.out.glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    starts = [line["case"] for line in lines if line["event"] == "start"]
    assert path.stem == execution.path.stem and all(record.checked(line) for line in lines)
    contents = journal.read(path)
    assert contents.problems == []
    assert starts == [each.case for each in contents.records]
    assert len(set(starts)) == len(starts) > 0
    kit = execution.about["article"] == "kit"
    for each in contents.records:
        assert (each.profile, each.repeat) == ("smoke", 0) and each.data in ("stand-in", "none")
        allowed = {"ok"} | LACKS.get(each.backend, set())
        allowed |= {"unsupported"} if path.stem in PROBES else set()
        if not kit and each.framework == "mlx":  # a twin, which is slow on a CPU
            allowed |= {"too-slow"}
        if each.config.get("model") == "whisper-medium":  # a smaller one follows
            allowed |= {"too-slow"}
        if kit and each.backend in ("mps", "cuda"):  # the pretended one does not work by itself
            allowed |= {"mismatch"}
        assert each.status in allowed, f"{each.case}: {each.status}: {each.reason}"
    expected = {execution.gpu or "cpu"} | ({"cpu"} if kit else set())
    if execution.parameters.get("devices") == "gpu":  # of MLX, which has no TF32 here
        expected = set() if execution.parameters.get("tf32") else {"mlx-gpu"}
    assert expected <= {each.backend for each in contents.records if each.status == "ok"}


def test_a_training_on_a_gpu_is_verified_before_and_after_its_timing(execution):
    if execution.about.get("after"):
        pytest.skip("has no cases of its own")
    for each in execution.records:
        assert "not verified after the timing" not in each.note, f"{each.case}: {each.note}"
        loops = [raw for raw in each.blocks.values() if "epoch_steps" in raw]
        trained = each.parameters is not None and (loops or "step_s" in each.metrics)
        if each.status == "ok" and each.backend != "cpu" and trained:
            proved = "proof_s" in each.metrics
            assert proved or ("unproved" in each.flags and "not verified" in each.note), each.case


def test_it_shows_every_published_value_in_its_row(execution):
    about = declaration(execution.path)
    if about.beside or not about.printed:
        pytest.skip("has no table of an article")
    html = "".join(each.data.get("text/html", "") for each in execution.outputs if "data" in each)
    rows = []
    for row in BeautifulSoup(html, "html.parser").find_all("tr"):
        cells = [cell.get_text().replace("\N{NO-BREAK SPACE}", " ") for cell in row("td")]
        # Behind a device are software and year.
        ends = {end(" (")[0] for cell in cells for end in (cell.partition, cell.rpartition)}
        # A unit that stands in another place of the article is behind the printed number.
        rows.append({*cells, *ends, *(cell.rpartition(" ")[0] for cell in cells)})
    settings = [value["config"] for value in about.printed]
    keys = {key for config in settings for key in config}
    several = {key for key in keys if len({str(config.get(key)) for config in settings}) > 1}
    lines: dict[tuple, set[str]] = {}
    for value in about.printed:
        told_apart = {str(value["config"][key]) for key in several & set(value["config"])}
        cells = {value["device"], value["printed"]} | told_apart
        lines.setdefault(value["line"], set()).update(cells)
    for cells in sorted(lines.values(), key=len, reverse=True):
        found = [row for row in rows if cells - {""} <= row]
        assert found, cells
        rows.remove(found[0])  # a row that is printed twice stands there twice


def test_energy_shows_joules_where_the_machine_has_a_meter(execution):
    if execution.path.stem != "energy" or execution.machine == "nvidia":  # moves every 0.1 s
        pytest.skip("is not about energy, or too short for its meter")
    (case,) = journal.read(execution.out / "energy.jsonl").records
    values = {name: metric.value for name, metric in case.metrics.items()}
    # Each of three power domains draws IDLE_W at rest, and more during the steps.
    assert 2.9 * rehearsal.IDLE_W < values["power_rest_w"] < values["power_w"]
    assert values["energy_j_per_step"] == pytest.approx(3 * values["energy_gpu_j_per_step"])
    expected_j = values["power_w"] * values["step_s"]
    assert values["energy_j_per_step"] == pytest.approx(expected_j, rel=0.5)
    measured = msgspec.structs.replace(case, profile="quick")  # the table leaves smoke out
    row = article_table(declaration(execution.path), [measured]).rows[-1].cells
    for column in ("Step (J)", "Step, all domains (J)", "Power", "Power rest"):
        assert re.match(r"\d+\.\d+( W)? (± |\()", row[column]), row


def test_it_draws_and_saves_the_articles_table_and_figure(execution):
    if execution.about["article"] == "kit":
        pytest.skip("repeats no article")
    shown = execution.out / "shown" / execution.path.stem
    # In so short a run there may be nothing to draw.
    figures = [*shown.glob("[0-9][0-9]-figure.svg")]
    for figure in figures:
        assert figure.read_text(encoding="utf-8").count(' d="') >= 4
    pictures = sum("image/png" in each.get("data", {}) for each in execution.outputs)
    assert pictures >= len(figures)
    assert list(shown.glob("*-article.html"))


def test_its_figures_have_plain_text(execution):
    drawings = [*(execution.out / "shown").rglob("*.svg")]
    if not drawings:
        pytest.skip("draws nothing")
    for place in drawings:
        texts = BeautifulSoup(place.read_text(encoding="utf-8"), "html.parser").find_all("text")
        assert texts and not [text for text in texts if re.search(r"\$|\\", text.get_text())]


def test_what_its_loaders_use_works_in_a_spawned_worker(execution):
    """This process knows the modules, and not the notebook, as a worker does that spawn starts."""
    if "DataLoader" not in "\n".join(code(execution.document)[1:]):
        pytest.skip("has no DataLoader")
    loaders = pickle.loads((execution.folder / "loaders.pickle").read_bytes())
    assert loaders, "no loader was made"
    for dataset, collate, _ in loaders:
        collate([dataset[0], dataset[len(dataset) - 1]])


def test_its_files_name_neither_person_nor_folder(execution):
    private = [str(root()), f"{Path.home()}/", str(execution.folder)]
    files = [place for place in execution.out.rglob("*") if place.is_file()]
    assert not [place for place in files if place.suffix == ".part"], "a file is half written"
    texts = {place.name: place.read_text(encoding="utf-8") for place in files}
    texts |= {"an output": json.dumps(execution.outputs)}
    assert {name for name, text in texts.items() for one in private if one in text} == set()
