"""Every notebook and variant, run once with its smoke parameters: as on a Mac, without a network.

A new notebook is found by itself. One of the article "kit" repeats no article: it needs no
published values and no figure.
"""

import json
import os
import pickle
import re
from dataclasses import dataclass
from pathlib import Path

import apart
import conftest
import nbformat
import pytest
import rehearsal
import yaml
from bs4 import BeautifulSoup
from declared import declaration
from notebook_code import code

from pomology.paths import root
from pomology.results import journal, record
from pomology.runner import notebooks

# Before a notebook's first cell and after its last one; no name is left that it might use.
FIRST = """
import sys
sys.path.insert(0, {tests!r})
__import__("rehearsal").begin({own!r})
{mps}
sys.path.remove({tests!r})
del sys
"""
LAST = "import sys; sys.modules['rehearsal'].end({folder!r})"
# What a case may end in besides `ok`, on a device that lacks something.
LACKS = {
    "cuda": {"unsupported", "fallback"},
    "mlx-gpu": {"unsupported", "fallback"},
    "metal": {"unsupported", "fallback", "mismatch"},
}
# What these find missing is their result.
PROBES = {"capabilities", "device_check", "instrument_check", "whisper_finetuning"}


@dataclass
class Execution:
    """What a run has left: the notebook with outputs, its folder `out`, and what was noticed."""

    path: Path
    variant: dict
    folder: Path
    document: nbformat.NotebookNode

    @property
    def out(self) -> Path:
        return self.folder / "run"

    @property
    def about(self) -> dict:
        return self.document.metadata["pomology"]

    @property
    def noticed(self) -> dict:
        return json.loads((self.folder / "end.json").read_text(encoding="utf-8"))

    @property
    def outputs(self) -> list[nbformat.NotebookNode]:
        return [output for cell in self.document.cells for output in cell.get("outputs", ())]

    @property
    def framework(self) -> str:
        """The one that it imports or names, else PyTorch; `none` if it only reads results."""
        if "framework" in self.variant:
            return self.variant["framework"]
        source = "\n".join(code(self.document))
        packages = re.findall(r"^ *(?:import|from) (\w+)", source, re.MULTILINE)
        names = [rehearsal.FRAMEWORKS[name] for name in packages if name in rehearsal.FRAMEWORKS]
        names += re.findall(r"framework=[\"'](\w+)", source)
        return next(iter(names), "none" if self.about.get("after") else "torch")

    @property
    def on_mps(self) -> bool:
        """Whether it computes with PyTorch itself, and not in processes of their own."""
        imports = any("import torch" in source for source in code(self.document))
        return self.framework == "torch" and imports

    def prepare(self) -> None:
        """Add the smoke parameters, and what makes its kernel a Mac's."""
        cells = self.document.cells
        file = root() / "params" / "smoke" / f"{self.path.stem}.yaml"
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        values |= {"out": str(self.out), "data": "stand-in"} | self.variant
        lines = "\n".join(f"{name} = {value!r}" for name, value in values.items())
        tags = [cell.metadata.get("tags", []) for cell in cells]
        place = next(number for number, tag in enumerate(tags) if "parameters" in tag)
        own = {"own": self.framework, "tests": str(root() / "tests"), "mps": ""}
        if self.on_mps:  # notebooks of the kit look at the processor, too
            lightning = any("lightning" in source for source in code(self.document))
            cpu = self.about["article"] == "kit"
            own["mps"] = f"sys.modules['rehearsal'].add_mps({lightning}, {cpu})"
        cells.insert(place + 1, nbformat.v4.new_code_cell(lines))
        cells.insert(0, nbformat.v4.new_code_cell(FIRST.format(**own)))
        cells.append(nbformat.v4.new_code_cell(LAST.format(folder=str(self.folder))))

    def run(self) -> None:
        from nbclient import NotebookClient
        from traitlets.config import Config

        env = {key: value for key, value in os.environ.items() if key not in rehearsal.HIDES}
        # One thread: two that meet after every operator crawl where somebody else has a core.
        env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        env |= {"HF_HOME": str(self.folder / "hub"), "IPYTHONDIR": str(self.folder / "ipython")}
        options = {"timeout": 300, "kernel_name": "python3", "shutdown_kernel": "immediate"}
        options["resources"] = {"metadata": {"path": str(self.path.parent)}}
        with pytest.MonkeyPatch.context() as patch, conftest.sockets_in_a_folder() as sockets:
            patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")  # this environment's kernel
            apart.fork_kernels(patch, apart.LOADED if self.framework == "torch" else apart.PLAIN)
            config = Config(KernelManager=sockets)
            NotebookClient(self.document, config=config, **options).execute(env=env)


def variants() -> dict[str, tuple[Path, dict]]:
    """Each notebook with the parameters of each of its variants that a processor runs, too."""
    return {
        "-".join([each.name, *map(str, one.parameters.values())]): (each.path, one.parameters)
        for each in notebooks.notebooks(skipped={})
        for one in each.variants
        if one.only != "tf32"
    }


@pytest.fixture(scope="module", params=variants().values(), ids=variants())
def execution(request, tmp_path_factory) -> Execution:
    path, variant = request.param
    folder = tmp_path_factory.mktemp(path.stem)
    execution = Execution(path, variant, folder, nbformat.read(path, 4))
    execution.prepare()
    execution.run()
    return execution


def test_it_ran_as_on_a_mac_with_one_framework(execution):
    end, own = execution.noticed, execution.framework
    assert end["start_method"] == "spawn"
    assert end["refused"] == [], "what does not exist on a Mac, or goes wrong there"
    assert end["attempts"] == [], "a second framework in one process"
    assert {"torch", "tensorflow", "mlx", "jax"} & set(end["modules"]) <= {own}
    assert not set(end["modules"]) & set(rehearsal.UNWANTED)
    assert set(end["environment"].values()) == {None}, "a variable hides what goes wrong on a Mac"
    # With the fusion of Metal's plugin, as the article trained, and without.
    fusion = "0" if execution.variant.get("fusion") else "1"
    assert end["remapper"] == ([fusion] if own == "tensorflow" else []), "TURN_OFF_REMAPPER"
    said = [output.text for output in execution.outputs if output.get("name") == "stderr"]
    # PyTorch's own line on a machine with CUDA's compiler and without a GPU.
    assert [text for text in said if "No CUDA runtime is found" not in text] == []


def test_its_steps_would_run_on_mps(execution):
    if not execution.on_mps:
        pytest.skip("computes nothing with PyTorch")
    (mps,) = execution.noticed["played"]
    assert mps["faults"] == [] and len(mps["operators"]) > 5


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
        if kit and each.backend == "mps":  # the pretended one does not work by itself
            allowed |= {"mismatch"}
        assert each.status in allowed, f"{each.case}: {each.status}: {each.reason}"
    expected = {"mps" if execution.on_mps else "cpu"} | ({"cpu"} if kit else set())
    assert expected <= {each.backend for each in contents.records if each.status == "ok"}


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
        rows.append({*cells, *ends})
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


def test_it_draws_and_saves_the_articles_table_and_figure(execution):
    if execution.about["article"] == "kit":
        pytest.skip("repeats no article")
    shown = execution.out / "shown" / execution.path.stem
    (figure,) = shown.glob("*-figure.svg")
    text = figure.read_text(encoding="utf-8")
    # In so short a run there may be nothing.
    assert text.count(' d="') >= 4 or "Nothing was measured that can be drawn" in text
    assert any("image/png" in each.get("data", {}) for each in execution.outputs)
    assert list(shown.glob("*-article.html"))


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
