"""Every notebook there is: its form, its numbers on paper, and a whole run as on a Mac, without a network.

What is parametrised by notebook finds new ones by itself.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
import yaml

from pomology import data, parameters, published, results

ROOT = Path(__file__).resolve().parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*/*.ipynb"))
# A package that belongs to a framework -> the framework. No process may hold two.
FRAMEWORKS = {
    **dict.fromkeys(("torch", "lightning", "pytorch_lightning", "transformers", "peft"), "torch"),
    **dict.fromkeys(("tensorflow", "keras"), "tensorflow"),
    "mlx": "mlx",
}

every_notebook = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


def code(document: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in document.cells if cell.cell_type == "code"]


def trees(document: nbformat.NotebookNode) -> list[ast.AST]:
    return [node for source in code(document) for node in ast.walk(ast.parse(source))]


def packages(document: nbformat.NotebookNode) -> set[str]:
    found = set()
    for node in trees(document):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.split(".")[0])
    return found


# Form -----------------------------------------------------------------------------------------------------------------


def test_there_are_notebooks_and_their_names_differ():
    names = [path.stem for path in PATHS]
    assert len(names) >= 4 and len(set(names)) == len(names)


@every_notebook
def test_form_of_the_file(path):
    """As JupyterLab saves it, so that opening and saving changes nothing; and nothing in it that a run leaves."""
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    nbformat.validate(nbformat.from_dict(document))
    metadata = document["metadata"]
    assert set(metadata) == {"kernelspec", "language_info", "pomology"}
    assert metadata["kernelspec"] == {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }
    version = metadata["language_info"].pop("version")
    assert version.startswith("3.11.")
    assert metadata["language_info"] == {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    }
    for cell in document["cells"]:
        assert set(cell["metadata"]) <= {"tags"}, cell["id"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, cell["id"]
    ids = [cell["id"] for cell in document["cells"]]
    assert len(set(ids)) == len(ids)
    assert path.read_text(encoding="utf-8").endswith("}\n")


@every_notebook
def test_first_cell_names_the_article(path):
    document = nbformat.read(path, 4)
    about = document.metadata["pomology"]
    (article,) = [article for article in published.articles() if article.id == about["article"]]
    assert path.parent.name == article.slug
    first = document.cells[0]
    assert first.cell_type == "markdown"
    titles = re.findall(r"^# .+", first.source, re.MULTILINE)
    assert len(titles) == 1 and first.source.startswith(titles[0])
    assert article.title in first.source and article.author in first.source
    rest = [cell.source for cell in document.cells[1:] if cell.cell_type == "markdown"]
    assert not [text for text in rest if re.search(r"^# ", text, re.MULTILINE)], "one title is enough"


@every_notebook
def test_parameters(path):
    document = nbformat.read(path, 4)
    tagged = [cell for cell in document.cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    declared = parameters.declared(path)
    assert {"profile", "devices", "data", "budget_s", "seed", "repeat", "out"} <= set(declared)
    # Whoever just opens the notebook gets the default profile.
    assert declared["profile"].default == "quick" and declared["out"].default == ""
    assert set(document.metadata["pomology"]["seconds"]) == set(parameters.PROFILES)


@every_notebook
def test_cells(path):
    document = nbformat.read(path, 4)
    for cell in document.cells:
        if cell.cell_type == "code":
            assert cell.source.count("\n") < 45, f"{cell.id} does not fit on a screen"
        else:
            assert not re.search(r"<\w+[^>]*>", cell.source), f"{cell.id}: HTML in Markdown breaks in the page"
    whole = "\n".join(code(document))
    for call in ("experiment.table()", "experiment.figure()", "experiment.claims()", "experiment.machine()"):
        assert whole.count(call) == 1, call
    assert len(re.findall(r"in experiment\.cases\(", whole)) == 1
    (experiment,) = [
        node for node in trees(document) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Experiment"
    ]
    assert experiment.args[0].value == path.stem, "an experiment is named as its notebook"
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in experiment.keywords}
    assert named["article"] == repr(document.metadata["pomology"]["article"])
    for name in ("devices", "profile", "budget_s", "out", "repeat"):
        assert named[name] == name, f"{name} must come from the parameters"


@every_notebook
def test_one_framework_and_nothing_that_only_one_device_has(path):
    document = nbformat.read(path, 4)
    found = packages(document)
    assert len({FRAMEWORKS[package] for package in found & set(FRAMEWORKS)}) <= 1
    assert not found & {"sklearn", "torchvision", "tqdm", "ipywidgets"}
    for node in trees(document):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            assert not re.match(r"torch\.(cuda|mps|accelerator)\b", text), f"{text}: the device module does that"
            assert node.attr != "cuda" or text.startswith("torch.backends."), text
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                # On MPS what is read next may not have arrived.
                assert keyword.arg != "non_blocking", ast.unparse(node)
                assert keyword.arg != "device" or not isinstance(keyword.value, ast.Constant), ast.unparse(node)
            named = ast.unparse(node.func).endswith((".to", "torch.device"))
            texts = [item.value for item in node.args if isinstance(item, ast.Constant)]
            assert not (named and any(isinstance(text, str) for text in texts)), f"{ast.unparse(node)}: a fixed device"
    assert "float64" not in "\n".join(code(document)) and ".double()" not in "\n".join(code(document))


@every_notebook
def test_nothing_that_a_data_worker_needs_is_defined_in_a_cell(path):
    """A worker that was started by spawn imports modules; it never sees cells."""
    document = nbformat.read(path, 4)
    defined = {node.name for node in trees(document) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in trees(document):
        if isinstance(node, ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            bases = " ".join(map(ast.unparse, node.bases))
            assert not methods & {"__getitem__", "__getitems__", "__iter__"}, f"class {node.name}"
            assert not re.search(r"Dataset|Sampler", bases), f"class {node.name}"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("DataLoader"):
            for keyword in node.keywords:
                if keyword.arg in ("collate_fn", "worker_init_fn", "sampler", "batch_sampler"):
                    names = {item.id for item in ast.walk(keyword.value) if isinstance(item, ast.Name)}
                    assert not names & defined and not isinstance(keyword.value, ast.Lambda), ast.unparse(node)


@every_notebook
def test_a_counted_model_has_its_parameters_asserted(path):
    document = nbformat.read(path, 4)
    if "observe" in "\n".join(code(document)):
        asserted = [ast.unparse(node.test) for node in trees(document) if isinstance(node, ast.Assert)]
        assert any(re.search(r"\.parameters ==", test) for test in asserted)


# Numbers on paper -----------------------------------------------------------------------------------------------------


@dataclass
class Facts:
    """Of each row of the article, in order: parameters, GFLOP of a training step, steps of each part of an epoch.

    `samples` is what the notebook calls its data -> how many there are.
    """

    parameters: list[int]
    gflop: list[float]
    steps: list[list[int]]
    samples: dict[str, int] = field(default_factory=dict)


FACTS = {
    "dcgan": Facts([3_576_704 + 2_765_568] * 2, [158.86, 2541.8], [[2627], [165]], {"photographs": 168_103}),
    "siamese": Facts([11_432_897] * 2, [25.29, 404.7], [[938], [59]], {"pairs": 60_000}),
    "transformer_lm": Facts(
        [13_828_478, 36_321_278, 39_331_278, 45_488_422, 53_606_518],
        [30.09, 82.78, 956.7, 1217.7, 1563.6],
        [[2984, 622]] * 2 + [[299, 622]] * 3,
    ),
    "vae": Facts([652_824] * 2, [0.420, 16.79], [[469], [12]], {"train_set": 60_000}),
}


class Sized:
    """As many samples as the article has; none is ever asked for."""

    def __init__(self, length: int):
        self.length = length

    def __len__(self) -> int:
        return self.length


class PaperCase:
    """A case whose loops over batches are counted and not run."""

    class Over(Exception):
        pass

    def __init__(self, config: dict):
        import torch

        self.config, self.device = config, torch.device("cpu")
        self.__dict__.update(config)
        self.lengths: list[int] = []

    def requires(self, workload):
        self.workload = workload

    def observe(self, model):
        self.counted = sum(parameter.numel() for parameter in model.parameters())
        return model

    def steps(self, batches, part="training"):
        self.lengths.append(len(batches))
        return iter(())

    def aside(self, name, per_epoch):
        raise PaperCase.Over


def is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return not isinstance(node.targets[0], ast.Attribute) and ast.unparse(node.targets[0]) != "experiment"
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))


def definitions(name: str) -> dict:
    """A notebook's names after its imports, functions and classes, with the article's parameters; no data, no runs."""
    (path,) = [path for path in PATHS if path.stem == name]
    document = nbformat.read(path, 4)
    given = yaml.safe_load((ROOT / "params" / "article" / f"{name}.yaml").read_text(encoding="utf-8"))
    scope: dict = {key: parameter.default for key, parameter in parameters.declared(path).items()} | given
    scope |= {key: Sized(length) for key, length in FACTS[name].samples.items()}
    words = data.WIKITEXT2_TOKENS
    scope["corpus"] = SimpleNamespace(
        **{part: np.zeros(count, np.int64) for part, count in words.items()}, vocabulary=data.WIKITEXT2_VOCABULARY
    )
    for source in code(document):
        tree = ast.parse(source)
        kinds = [type(node) for node in tree.body]
        if not {ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef} & set(kinds):
            continue  # looks at data or results
        tree.body = [node for node in tree.body if is_definition(node)]
        exec(compile(tree, f"{name}.ipynb", "exec"), scope)
    return scope


@pytest.fixture(scope="module", params=sorted(FACTS))
def paper(request):
    return request.param, FACTS[request.param], definitions(request.param)


def test_parameters_and_operations_are_the_articles(paper):
    _, facts, scope = paper
    rows = scope["rows"] if "rows" in scope else scope["batch_sizes"]
    works = [scope["work"](row) for row in rows]
    assert [work.parameters for work in works] == facts.parameters
    assert [work.flops / 1e9 for work in works] == pytest.approx(facts.gflop, rel=0.005)


def test_dcgan_is_two_networks():
    import torch

    with torch.device("meta"):
        networks = definitions("dcgan")["build"]()
    counts = {name: sum(item.numel() for item in part.parameters()) for name, part in networks.items()}
    assert counts == {"generator": 3_576_704, "discriminator": 2_765_568}


def test_steps_of_an_epoch_are_the_articles(paper):
    """From the notebook's own loaders, at the article's number of samples."""
    name, facts, scope = paper
    rows = scope["rows"] if "rows" in scope else [{"batch_size": size} for size in scope["batch_sizes"]]
    found = []
    for row, count in zip(rows, facts.parameters, strict=True):
        case = PaperCase(row)
        try:
            scope["train"](case)
        except PaperCase.Over:
            assert name == "dcgan"  # it saves its networks at the end
        assert case.counted == case.workload.parameters == count
        found.append(case.lengths)
    assert found == facts.steps


def test_samples_are_as_many_as_the_data_module_gives():
    counts = {"photographs": data.LSUN_CLASSROOM_IMAGES, "pairs": data._MNIST.counts["train"]}
    counts["train_set"] = counts["pairs"]
    for facts in FACTS.values():
        assert facts.samples.items() <= counts.items()


# A whole run, as on a Mac and without a network -----------------------------------------------------------------------

FIRST = """
import multiprocessing, socket
multiprocessing.set_start_method("spawn", force=True)

def _refuse(*arguments, **named):
    raise OSError(f"these tests have no network: {arguments[1:]}")

_connect = socket.socket.connect
def _local_only(self, address):
    local = self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost")
    return _connect(self, address) if local else _refuse(self, address)

socket.socket.connect = socket.socket.connect_ex = _local_only
"""
# What a loader would hand to a worker.
LOADERS = """
import torch.utils.data as _torch_data
_loaded, _init = [], _torch_data.DataLoader.__init__

def _note(self, *arguments, **named):
    _init(self, *arguments, **named)
    _loaded.append((self.dataset, self.collate_fn, self.worker_init_fn))

_torch_data.DataLoader.__init__ = _note
"""
LAST = """
import json, os, pickle, sys
from pathlib import Path
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
    _network = True
except OSError as error:
    _network = "no network" not in str(error)
Path({folder!r}, "loaders.pickle").write_bytes(pickle.dumps(globals().get("_loaded", [])))
Path({folder!r}, "end.json").write_text(json.dumps({{
    "modules": sorted(name for name in sys.modules if "." not in name),
    "start_method": multiprocessing.get_start_method(),
    "network": _network,
    "kmp": os.environ.get("KMP_DUPLICATE_LIB_OK"),
}}))
"""
# Spawn's conditions: another process, which knows the modules and not the notebook.
WORKER = """
import pickle, sys
for dataset, collate, prepare in pickle.load(open(sys.argv[1], "rb")):
    collate([dataset[0], dataset[len(dataset) - 1]])
print("loaded")
"""


@dataclass
class Execution:
    path: Path
    out: Path
    folder: Path
    given: dict
    document: nbformat.NotebookNode

    @property
    def outputs(self) -> list[tuple[str, nbformat.NotebookNode]]:
        cells = [cell for cell in self.document.cells if cell.cell_type == "code"]
        return [(cell.get("id", "?"), output) for cell in cells for output in cell.outputs]


@pytest.fixture(scope="module", params=PATHS, ids=[path.stem for path in PATHS])
def execution(request, tmp_path_factory) -> Execution:
    """One notebook, executed with its smoke parameters in a fresh kernel."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    path, folder = request.param, tmp_path_factory.mktemp(request.param.stem)
    out = folder / "run"
    given = yaml.safe_load((ROOT / "params" / "smoke" / f"{path.stem}.yaml").read_text(encoding="utf-8"))
    given |= {"out": str(out), "data": "stand-in"}
    document = nbformat.read(path, 4)
    has_loaders = "DataLoader" in "\n".join(code(document))
    tagged = [number for number, cell in enumerate(document.cells) if "parameters" in cell.metadata.get("tags", [])]
    lines = "\n".join(f"{name} = {value!r}" for name, value in given.items())
    document.cells.insert(tagged[0] + 1, nbformat.v4.new_code_cell(lines))
    document.cells.insert(0, nbformat.v4.new_code_cell(FIRST + LOADERS * has_loaders))
    document.cells.append(nbformat.v4.new_code_cell(LAST.format(folder=str(folder))))
    env = {key: value for key, value in os.environ.items() if key != "KMP_DUPLICATE_LIB_OK"}
    # One thread: two that meet after every operator crawl where somebody else has one of two cores.
    env |= {"OMP_NUM_THREADS": "1"}
    env |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "IPYTHONDIR": str(folder / "ipython")}
    config = Config()
    config.KernelManager.transport_encryption = "auto"  # else every start of a kernel comes with a warning
    client = NotebookClient(
        document, timeout=300, kernel_name="python3", config=config, resources={"metadata": {"path": str(path.parent)}}
    )
    before = os.environ.get("JUPYTER_PREFER_ENV_PATH")
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel
    try:
        client.execute(env=env)
    finally:
        del os.environ["JUPYTER_PREFER_ENV_PATH"]
        if before is not None:
            os.environ["JUPYTER_PREFER_ENV_PATH"] = before
    return Execution(path, out, folder, given, document)


def test_it_ran_as_on_a_mac_with_one_framework(execution):
    end = json.loads((execution.folder / "end.json").read_text())
    assert end["start_method"] == "spawn" and end["network"] is False
    loaded = {"torch", "tensorflow", "mlx", "jax"} & set(end["modules"])
    assert len(loaded) <= 1
    # Each brings an OpenMP of its own, and two in one process may hang it on a Mac.
    assert not {"sklearn", "torchvision"} & set(end["modules"])
    assert end["kmp"] is None


def test_it_says_nothing_on_stderr(execution):
    said = [(cell, output.text) for cell, output in execution.outputs if output.get("name") == "stderr"]
    assert said == []


def test_its_journal_conforms_and_every_case_is_ok(execution):
    (journal,) = execution.out.glob("*.jsonl")
    assert journal.stem == execution.path.stem
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    starts = [line["case"] for line in lines if line["event"] == "start"]
    records = [line for line in lines if line["event"] == "end"]
    assert starts == [record["case"] for record in records] and len(set(starts)) == len(starts) > 0
    assert results.read(journal).problems == []
    for record in records:
        assert results.problem(record) is None
        assert record["profile"] == "smoke" and record["repeat"] == 0
        assert record["data"] in ("stand-in", "none")
        on_gpu = record["backend"] != "cpu"
        assert record["status"] == "ok" or (on_gpu and record["status"] in ("unsupported", "fallback")), record[
            "reason"
        ]
    assert "cpu" in {record["backend"] for record in records}
    # Every row of the parameters on every device.
    rows = next((value for name, value in execution.given.items() if name in ("batch_sizes", "models")), [None])
    assert len(records) == len(rows) * len({record["backend"] for record in records})


class Cells(HTMLParser):
    """The rows of all tables, as lists of texts."""

    def __init__(self, text: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def test_it_shows_every_published_value_in_its_row(execution):
    shown = "".join(output.data.get("text/html", "") for _, output in execution.outputs if "data" in output)
    rows = [set(row) for row in Cells(shown).rows]
    values = published.values(experiment=execution.path.stem).to_dict("records")
    keys = {key for value in values for key in value["config"]}
    told_apart = {key for key in keys if len({str(value["config"].get(key)) for value in values}) > 1}
    expected: dict[tuple, set[str]] = {}
    for value in values:
        cells = expected.setdefault((value["item"], value["row"]), {value["device"]})
        cells |= {value["printed"], *(str(value["config"][key]) for key in told_apart & set(value["config"]))}
    assert expected
    for cells in expected.values():
        assert any(cells <= row for row in rows), cells
        rows.remove(next(row for row in rows if cells <= row))  # a row that is printed twice stands there twice


def test_it_draws_and_leaves_files(execution):
    pictures = [
        output.data["image/svg+xml"] for _, output in execution.outputs if "image/svg+xml" in output.get("data", {})
    ]
    assert pictures and all(picture.lstrip().startswith("<svg") for picture in pictures)
    # One of them is the figure that is saved; IPython writes the same XML in other words.
    (figure,) = (execution.out / "figures").glob(f"{execution.path.stem}-*.svg")
    ids = re.findall(r'id="([^"]+)"', figure.read_text(encoding="utf-8"))
    assert len(ids) > 10 and ids in [re.findall(r'id="([^"]+)"', picture) for picture in pictures]
    assert list((execution.out / "tables").glob(f"{execution.path.stem}-*.csv"))
    assert json.loads((execution.out / "machine.json").read_text(encoding="utf-8"))["profile"] == "smoke"
    assert not list(execution.out.rglob("*.part"))


def test_what_its_loaders_use_works_in_a_spawned_worker(execution):
    place = execution.folder / "loaders.pickle"
    if "DataLoader" in "\n".join(code(execution.document)[1:]):
        assert place.stat().st_size > 100, "no loader was made"
    done = subprocess.run([sys.executable, "-c", WORKER, str(place)], capture_output=True, text=True, check=False)
    assert done.stdout == "loaded\n", done.stderr[-500:]


def test_its_files_name_neither_person_nor_folder(execution):
    private = [str(ROOT), str(Path.home()) + "/", str(execution.folder)]
    for place in execution.out.rglob("*"):
        if place.is_file():
            text = place.read_text(encoding="utf-8")
            assert not [name for name in private if name in text], place.name
    for cell, output in execution.outputs:
        text = json.dumps(output)
        assert not [name for name in private if name in text], cell
