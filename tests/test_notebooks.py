"""Every notebook there is: its form, its numbers on paper, and a whole run as on a Mac, without a network.

What is parametrised by notebook finds new ones by itself. A notebook of the article "kit" repeats no article, but
measures the kit: it needs no published values, no claims and no figure, and is tested like the others in all else.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apart
import conftest
import nbformat
import numpy as np
import pretended_mps
import pytest
import rehearsal
import yaml
from bs4 import BeautifulSoup
from declared import declaration

from pomology.articles import published
from pomology.data import images, photographs
from pomology.data import text as data_text
from pomology.results import journal as results_journal
from pomology.results import record as results_record
from pomology.results.record import PROFILES
from pomology.runner import notebooks, parameters

ROOT = Path(__file__).resolve().parents[1]
PATHS = notebooks.notebook_paths(ROOT / "notebooks")

CELL_LINES = 25  # at most: a cell shows one idea
LONGER_CELLS = {"costs": 26, "mlx_or_pytorch": 41}

every_notebook = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


def code(document: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in document.cells if cell.cell_type == "code"]


def trees(document: nbformat.NotebookNode) -> list[ast.AST]:
    return [node for source in code(document) for node in ast.walk(ast.parse(source))]


def framework(document: nbformat.NotebookNode, variant: dict) -> str:
    """The one that a notebook imports or names, else PyTorch: some ask for a device and import nothing themselves.

    variant: its parameters, which may name one. `none` for those that only read what others have measured.
    """
    if "framework" in variant:
        return variant["framework"]
    source = "\n".join(code(document))
    packages = re.findall(r"^ *(?:import|from) (\w+)", source, re.MULTILINE)
    known = [
        rehearsal.FRAMEWORKS[package] for package in packages if package in rehearsal.FRAMEWORKS
    ]
    known += re.findall(r"framework=[\"'](\w+)", source)
    return next(iter(known), "none" if document.metadata["pomology"].get("after") else "torch")


def on_mps(document: nbformat.NotebookNode, variant: dict) -> bool:
    """Whether it computes with PyTorch itself, and not in processes of their own."""
    return framework(document, variant) == "torch" and any(
        "import torch" in source for source in code(document)
    )


# Form -----------------------------------------------------------------------------------------------------------------


@every_notebook
def test_form_of_the_file(path):
    """As JupyterLab saves it, so that opening and saving changes nothing; and nothing in it that a run leaves."""
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    nbformat.validate(nbformat.from_dict(document))
    metadata = document["metadata"]
    assert set(metadata) == {"kernelspec", "language_info", "pomology"}
    about = metadata["pomology"]
    for timed in about.get("variants", [about]):
        assert set(timed["seconds"]) == set(PROFILES)
    assert metadata["kernelspec"]["name"] == "python3" and re.match(
        r"3\.1[1-3]\.", metadata["language_info"]["version"]
    )
    for cell in document["cells"]:
        left = (
            set(cell["metadata"]) <= {"tags"}
            and not cell.get("outputs")
            and cell.get("execution_count") is None
        )
        assert left, cell["id"]
    assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
    text = path.read_text(encoding="utf-8")
    assert text == nbformat.writes(nbformat.from_dict(json.loads(text))) + "\n", (
        "JupyterLab writes it in another form"
    )


@every_notebook
def test_title_cells_and_calls(path):
    document = nbformat.read(path, 4)
    about = document.metadata["pomology"]
    texts = "\n".join(cell.source for cell in document.cells if cell.cell_type == "markdown")
    titles = re.findall(r"^# .+", texts, re.MULTILINE)
    assert len(titles) == 1 and texts.startswith(titles[0]), "one title, first"
    known = {one.id: one for one in published.articles()}.get(about["article"])
    if known is not None:
        assert path.parent.name == known.slug
        assert known.title in document.cells[0].source and known.author in document.cells[0].source
    for cell in document.cells:
        if cell.cell_type == "code":
            lines = cell.source.count("\n") + 1
            assert lines <= LONGER_CELLS.get(path.stem, CELL_LINES), f"{cell.id} is long"
        else:
            assert not re.search(r"<\w+[^>]*>", cell.source), (
                f"{cell.id}: HTML in Markdown breaks in the page"
            )
    whole = "\n".join(code(document))
    # What combines other notebooks' numbers has no cases of its own.
    shown, cases = ("report", False) if about.get("after") else ("experiment", True)
    calls = ["machine"] + ["table", "figure"] * (known is not None)
    # What shows the whole kit together is about no experiment of the article by itself, and so about no claim.
    calls += ["claims"] * bool(known is not None and declaration(path).claims)
    names = {"table": "article"}  # of what an extra or a module beside the notebook has made
    for call in calls:
        found = re.findall(rf'{shown}\.(?:{call}\(|show\(.*"{names.get(call, call)}")', whole)
        assert len(found) == 1, f"{call} is shown {len(found)} times"
    assert (
        bool(re.findall(r"(?:in|yield from) experiment\.(?:cases|first_that_fits)\(", whole))
        == cases
    )
    made = [node for node in trees(document) if isinstance(node, ast.Call)]
    (experiment,) = [node for node in made if ast.unparse(node.func) == shown.capitalize()]
    assert experiment.args[0].value == path.stem, "an experiment is named as its notebook"
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in experiment.keywords}
    assert named["article"] == repr(about["article"])
    for name in {"devices", "profile", "budget_s", "out", "repeat"} & set(
        parameters.declared(path)
    ):
        assert named[name] == name, f"{name} must come from the parameters"
    if "watch_model" in whole:  # the parameters of a counted model are asserted
        asserted = [
            ast.unparse(node.test) for node in trees(document) if isinstance(node, ast.Assert)
        ]
        assert any(re.search(r"\.parameters ==", test) for test in asserted)


# Numbers on paper -----------------------------------------------------------------------------------------------------


@dataclass
class Facts:
    """Of each row of the article, in order: parameters, and steps of each part of an epoch; of operations see
    test_published_flops.py.

    `samples` is what the notebook calls its data -> how many there are.
    """

    parameters: list[int]
    steps: list[list[int]]
    samples: dict[str, int] = field(default_factory=dict)


FACTS = {
    "dcgan": Facts([3_576_704 + 2_765_568] * 2, [[2627], [165]], {"photographs": 168_103}),
    "siamese": Facts([11_432_897] * 2, [[938], [59]], {"pairs": 60_000}),
    "transformer_lm": Facts(
        [13_828_478, 36_321_278, 39_331_278, 45_488_422, 53_606_518],
        [[2984, 622]] * 2 + [[299, 622]] * 3,
    ),
    "vae": Facts([652_824] * 2, [[469], [12]], {"train_set": 60_000}),
}


class PaperCase:
    """A case whose loops over batches are counted and not run."""

    class Over(Exception):
        pass

    def __init__(self, config: dict):
        import torch

        self.config, self.device, self.backend = (
            config,
            torch.device("cpu"),
            SimpleNamespace(kind="cpu"),
        )
        self.__dict__.update(config)
        self.lengths: list[int] = []

    def __getitem__(self, name):
        return self.config[name]

    def require_memory(self, workload):
        self.workload = workload

    def watch_model(self, model):
        self.counted = sum(parameter.numel() for parameter in model.parameters())
        return model

    def steps(self, batches, part="training"):
        self.lengths.append(len(batches))
        return iter(())

    def occasional(self, name, per_epoch):
        raise PaperCase.Over


def is_definition(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        return not isinstance(targets[0], ast.Attribute) and "experiment" not in names
    if isinstance(node, ast.If):  # what a notebook defines for one framework
        return ast.unparse(node.test).startswith("framework == ")
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))


def definitions(name: str, profile: str = "article", **more: Any) -> dict:
    """A notebook's names after its imports, functions and classes, with a profile's parameters; no data, no runs."""
    (path,) = [path for path in PATHS if path.stem == name]
    document = nbformat.read(path, 4)
    given = yaml.safe_load((ROOT / "params" / profile / f"{name}.yaml").read_text(encoding="utf-8"))
    scope: dict = {
        key: parameter.default for key, parameter in parameters.declared(path).items()
    } | given
    scope |= {
        key: range(length) for key, length in (FACTS[name].samples if name in FACTS else {}).items()
    }
    words = data_text.WIKITEXT2.tokens
    scope["corpus"] = SimpleNamespace(
        **{part: np.zeros(count, np.int64) for part, count in words.items()},
        vocabulary=data_text.WIKITEXT2.vocabulary,
    )
    scope |= more
    for source in code(document):
        tree = ast.parse(source)
        kinds = [type(node) for node in tree.body]
        if not {ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.If} & set(kinds):
            continue  # looks at data or results
        tree.body = [node for node in tree.body if is_definition(node)]
        exec(compile(tree, f"{name}.ipynb", "exec"), scope)
    return scope


@pytest.mark.parametrize("name", FACTS)
def test_parameters_and_steps_of_an_epoch_are_the_articles(name):
    """Steps from the notebook's own loaders, at the article's number of samples."""
    facts, scope = FACTS[name], definitions(name)
    if name == "dcgan":  # two networks
        networks = scope["build"]()
        counts = {
            name: sum(item.numel() for item in part.parameters()) for name, part in networks.items()
        }
        assert counts == {"generator": 3_576_704, "discriminator": 2_765_568}
    rows = (
        scope["rows"]
        if "rows" in scope
        else [{"batch_size": size} for size in scope["batch_sizes"]]
    )
    for row, count, steps in zip(rows, facts.parameters, facts.steps, strict=True):
        case = PaperCase(row)
        # DCGAN saves its networks at the end.
        with pytest.raises(PaperCase.Over) if name == "dcgan" else contextlib.nullcontext():
            scope["train"](case)
        assert case.counted == case.workload.parameters == count
        assert case.lengths == steps


def test_samples_are_as_many_as_the_data_module_gives():
    mnist = len(images.mnist("stand-in"))
    counts = {"photographs": photographs.LSUN_CLASSROOM_IMAGES, "pairs": mnist, "train_set": mnist}
    assert all(facts.samples.items() <= counts.items() for facts in FACTS.values())


# A whole run, as on a Mac and without a network -----------------------------------------------------------------------

TESTS = Path(__file__).resolve().parent
# Nothing is left behind that the notebook might use without an import of its own.
FIRST = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
__import__("rehearsal").begin({{own!r}})
{{more}}
sys.path.remove({str(TESTS)!r})
del sys
"""
# PyTorch's notebooks run on the pretended MPS, which computes on the CPU and sees what a Mac would refuse; those of the
# kit, which look at something else on a processor, have that beside it.
MPS = "sys.modules['rehearsal'].add_mps(lightning={lightning}, cpu={cpu})"
# What would hide two OpenMPs in one process, and computing on the CPU what MPS lacks.
UNSET = ("KMP_DUPLICATE_LIB_OK", "PYTORCH_ENABLE_MPS_FALLBACK")
LAST = "import sys; sys.modules['rehearsal'].end({folder!r})"
# Spawn's conditions: another process, which knows the modules and not the notebook.
WORKER = """
import pickle, sys
for dataset, collate, prepare in pickle.load(open(sys.argv[1], "rb")):
    collate([dataset[0], dataset[len(dataset) - 1]])
print("loaded")
"""


def variants() -> list[tuple[Path, dict]]:
    """Each notebook with the parameters of each of its variants that a processor runs, too."""
    return [
        (notebook.path, variant.parameters)
        for notebook in notebooks.notebooks(ROOT / "notebooks")
        for variant in notebook.variants
        if variant.only != "tf32"
    ]


def name_of(execution: tuple[Path, dict]) -> str:
    path, variant = execution
    return "-".join([path.stem, *map(str, variant.values())])


@dataclass
class Execution:
    path: Path
    variant: dict
    out: Path
    folder: Path
    given: dict
    document: nbformat.NotebookNode

    @property
    def outputs(self) -> list[tuple[str, nbformat.NotebookNode]]:
        cells = [cell for cell in self.document.cells if cell.cell_type == "code"]
        return [(cell.get("id", "?"), output) for cell in cells for output in cell.outputs]


@pytest.fixture(scope="module", params=variants(), ids=map(name_of, variants()))
def execution(request, tmp_path_factory) -> Execution:
    """One notebook, executed with its smoke parameters in a fresh kernel."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    path, variant = request.param
    folder = tmp_path_factory.mktemp(path.stem)
    out = folder / "run"
    given = yaml.safe_load(
        (ROOT / "params" / "smoke" / f"{path.stem}.yaml").read_text(encoding="utf-8")
    )
    given |= {"out": str(out), "data": "stand-in"} | variant
    document = nbformat.read(path, 4)
    tagged = [
        number
        for number, cell in enumerate(document.cells)
        if "parameters" in cell.metadata.get("tags", [])
    ]
    lines = "\n".join(f"{name} = {value!r}" for name, value in given.items())
    document.cells.insert(tagged[0] + 1, nbformat.v4.new_code_cell(lines))
    own, lightning = (
        framework(document, variant),
        any("lightning" in source for source in code(document)),
    )
    of_the_kit = document.metadata["pomology"]["article"] == "kit"
    more = MPS.format(lightning=lightning, cpu=of_the_kit) if on_mps(document, variant) else ""
    document.cells.insert(0, nbformat.v4.new_code_cell(FIRST.format(own=own, more=more)))
    document.cells.append(nbformat.v4.new_code_cell(LAST.format(folder=str(folder))))
    env = {key: value for key, value in os.environ.items() if key not in UNSET}
    # One thread: two that meet after every operator crawl where somebody else has one of two cores.
    env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    env |= {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hub"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    options = {
        "timeout": 300,
        "kernel_name": "python3",
        "resources": {"metadata": {"path": str(path.parent)}},
    }
    options["shutdown_kernel"] = "immediate"  # what it has to say is in files
    with pytest.MonkeyPatch.context() as patch, conftest.sockets_in_a_folder() as sockets:
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")  # this environment's kernel
        apart.fork_kernels(patch, apart.LOADED if own == "torch" else apart.PLAIN)
        NotebookClient(document, config=Config(KernelManager=sockets), **options).execute(env=env)
    return Execution(path, variant, out, folder, given, document)


def test_a_kernels_sockets_have_names_that_macos_takes():
    """At most 103 characters; a Mac's folder for temporary files has some 49 of them."""
    with conftest.sockets_in_a_folder() as settings:
        own = len(settings["ip"]) - len(tempfile.gettempdir())
    assert len("/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T/") + own + len("-5") <= 103


def test_its_steps_would_run_on_mps(execution):
    if not on_mps(execution.document, execution.variant):
        pytest.skip("computes nothing with PyTorch")
    (use,) = (
        pretended_mps.Use(**use)
        for use in json.loads((execution.folder / "end.json").read_text())["uses"]
    )
    assert (use.faults, use.missing()) == ([], [])
    # Something was really computed there, and looked up.
    assert len(use.operators) > 5 and pretended_mps.KERNEL in use.support.values()


def test_it_ran_as_on_a_mac_with_one_framework(execution):
    end = json.loads((execution.folder / "end.json").read_text())
    assert end["start_method"] == "spawn" and end["network"] is False
    assert end["refused"] == [], "what does not exist on a Mac, or goes wrong there"
    assert end["attempts"] == [], "a second framework in one process"
    own = framework(execution.document, execution.variant)
    assert {"torch", "tensorflow", "mlx", "jax"} & set(end["modules"]) <= {own}
    assert not set(end["modules"]) & set(rehearsal.UNWANTED)
    assert set(end["environment"].values()) == {None}, (
        "a variable that hides what goes wrong on a Mac was set"
    )
    # With the fusion of Metal's plugin, as the article trained, and without.
    fusion = "0" if execution.variant.get("fusion") else "1"
    assert end["remapper"] == ([fusion] if own == "tensorflow" else []), (
        "TURN_OFF_REMAPPER when TensorFlow was loaded"
    )
    said = [
        (cell, output.text) for cell, output in execution.outputs if output.get("name") == "stderr"
    ]
    # PyTorch's own line on a machine with CUDA's compiler and without a GPU.
    assert [line for line in said if "No CUDA runtime is found" not in line[1]] == []


@pytest.fixture
def repeating(execution) -> None:
    """A notebook that repeats an article."""
    if execution.document.metadata["pomology"]["article"] == "kit":
        pytest.skip("measures the kit, and repeats no article")


def test_its_journal_conforms_and_every_case_is_ok(execution):
    if execution.document.metadata["pomology"].get("after"):
        assert not list(execution.out.glob("*.jsonl"))
        pytest.skip("lays other notebooks' numbers together, and has no cases of its own")
    (journal,) = execution.out.glob("*.jsonl")
    assert journal.stem == execution.path.stem
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    starts = [line["case"] for line in lines if line["event"] == "start"]
    assert all(results_record.checked(line) for line in lines)
    contents = results_journal.read(journal)
    records = contents.records
    assert starts == [record.case for record in records] and len(set(starts)) == len(starts) > 0
    assert contents.problems == []
    about = execution.document.metadata["pomology"]
    for record in records:
        assert record.profile == "smoke" and record.repeat == 0
        assert record.data in ("stand-in", "none")
        # What a probe finds missing is its result; a real GPU may lack something; Metal's parity check may say no; and
        # the kit's own checks find out, rightly, that the pretended MPS does not work by itself.
        allowed = {"ok"} | ({"unsupported"} if about.get("may_be_unsupported") is True else set())
        allowed |= {
            "cuda": {"unsupported", "fallback"},
            "mlx-gpu": {"unsupported", "fallback"},
        }.get(record.backend, set())
        allowed |= {"unsupported", "fallback", "mismatch"} if record.backend == "metal" else set()
        allowed |= {"mismatch"} if (record.backend, about["article"]) == ("mps", "kit") else set()
        assert record.status in allowed, f"{record.case}: {record.status}: {record.reason}"
        measured = {
            name
            for name, metric in record.metrics.items()
            if (metric.unit, metric.how) == ("s", "measured")
        }
        assert {name for name in measured - ONCE if not has_raw_times(record, name)} == set()
    expected = {"mps"} if on_mps(execution.document, execution.variant) else {"cpu"}
    expected |= {"cpu"} if about["article"] == "kit" else set()
    assert expected <= {record.backend for record in records if record.status == "ok"}
    assert execution.path.stem != "device_check" or any(
        "accelerator=mps" in record.case for record in records
    )


OF_A_LOOP = {
    "first_step_s",
    "step_s",
    "epoch_s",
    "forward_s",
    "backward_s",
    "update_s",
    "pass_s",
    "fit_s",
}
# Numbers that are made of the raw times of another name.
MADE_OF = {
    "clock_step_s": "clock_reading_s",
    "clock_gap_s": "clock_reading_s",
    "loader_start_s": "loader alone",
}
MADE_OF |= {"fence_behind_kernel_s": "tiny kernel, fenced", "kernel_stream_s": "kernel_s"}
MADE_OF |= {"step_first_s": "step_s", "step_last_s": "step_s"}
ONCE = {"proof_s", "between_epochs_s"}  # are not repeated


def has_raw_times(record, name):
    """Whether the record holds the times that this number is made of; a first step stands beside the others."""
    blocks = record.blocks or {}
    if name == "first_step_s" and (
        record.asides or any("first_call_s" in about for about in blocks.values())
    ):
        return True
    return MADE_OF.get(name, name) in blocks or (
        name in OF_A_LOOP and any("epoch_steps" in about for about in blocks.values())
    )


def test_it_shows_every_published_value_in_its_row(execution, repeating):
    about = declaration(execution.path)
    if not about.beside:
        pytest.skip("is about no experiment of an article by itself")
    shown = "".join(
        output.data.get("text/html", "") for _, output in execution.outputs if "data" in output
    )
    rows = BeautifulSoup(shown, "html.parser").find_all("tr")
    rows = [
        {cell.get_text().replace("\N{NO-BREAK SPACE}", " ") for cell in row.find_all(["td", "th"])}
        for row in rows
    ]
    values = about.beside
    if about.article == published.TODAY:
        pytest.skip("has a row for each device, of many measurements; see test_today.py")
    keys = {key for value in values for key in value["config"]}
    told_apart = {
        key for key in keys if len({str(value["config"].get(key)) for value in values}) > 1
    }
    expected: dict[tuple, set[str]] = {}
    for value in values:
        cells = expected.setdefault(value["line"], {value["device"]})
        cells |= {
            value["printed"],
            *(str(value["config"][key]) for key in told_apart & set(value["config"])),
        }
    assert expected
    # Behind a device are software and year.
    rows = [
        row | {end(" (")[0] for cell in row for end in (cell.partition, cell.rpartition)}
        for row in rows
    ]
    for cells in expected.values():
        assert any(cells <= row for row in rows), cells
        rows.remove(
            next(row for row in rows if cells <= row)
        )  # a row that is printed twice stands there twice


def paths(svg: str) -> list[str]:
    return [" ".join(path.split()) for path in re.findall(r' d="([^"]+)"', svg)]


def test_it_draws_and_saves_the_articles_table_and_figure(execution, repeating):
    pictures = [
        output.data["image/svg+xml"]
        for _, output in execution.outputs
        if "image/svg+xml" in output.get("data", {})
    ]
    assert pictures and all(picture.lstrip().startswith("<svg") for picture in pictures)
    # One of them is the figure that is saved; IPython writes the same XML in other words.
    shown = execution.out / "shown" / execution.path.stem
    (figure,) = shown.glob("*-figure.svg")
    text = figure.read_text(encoding="utf-8")
    strokes = paths(text)
    assert (
        len(strokes) >= 4 or "Nothing was measured that can be drawn" in text
    )  # in so short a run
    assert strokes in [paths(picture) for picture in pictures]
    assert list(shown.glob("*-article.html"))


def test_what_its_loaders_use_works_in_a_spawned_worker(execution, monkeypatch, tmp_path):
    place = execution.folder / "loaders.pickle"
    if "DataLoader" not in "\n".join(code(execution.document)[1:]):
        pytest.skip("has no DataLoader")
    assert place.stat().st_size > 100, "no loader was made"
    apart.start_with_torch(monkeypatch, tmp_path, apart.LOADED)
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(place)], capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().split("\n")[-1]
    assert done.stdout == "loaded\n", (
        f"a worker, which macOS starts by spawn, cannot load its data: {last}"
    )


def test_its_files_name_neither_person_nor_folder(execution):
    private = [str(ROOT), str(Path.home()) + "/", str(execution.folder)]
    for place in execution.out.rglob("*"):
        assert place.suffix != ".part", "a file that is half written"
        if place.is_file():
            text = place.read_text(encoding="utf-8")
            assert not [name for name in private if name in text], place.name
    for cell, output in execution.outputs:
        text = json.dumps(output)
        assert not [name for name in private if name in text], cell
