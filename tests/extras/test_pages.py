"""Pages of notebooks in a shared zip: all results, and nothing of what a user or a run wrote."""

import ast
import base64
import copy
import getpass
import html
import io
import itertools
import json
import re
import shutil
import socket
import subprocess
import unicodedata
import zipfile
from urllib.parse import quote, unquote

import pytest
import records
from PIL import Image, PngImagePlugin

from pomology.__main__ import main
from pomology.extras.share import pages, results, share
from pomology.paths import root
from pomology.results.run import Run
from pomology.runner import notebooks

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

NAME, FOLDER = "vae", "notebooks/m1_ultra_vs_rtx_2070"
PARAMETERS = {"profile": "quick", "devices": "auto", "data": "auto", "repeat": 0, "seed": 7}
HOME = "/Volumes/Zoë Qüx"
KINDS = {
    "home": HOME,
    "home, decomposed": unicodedata.normalize("NFD", HOME),
    "home, in JSON": json.dumps(HOME)[1:-1],
    "home, in an address": quote(HOME),
    "home in ASCII": "/home/jane/mnist-of-zeb",
    "user": "zebedee",
    "host": "zebedees-mac.fritz.box",
    "Hugging Face": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "Anthropic": "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz",
    "Google": "AIzaSyD-1234567890abcdefghijklmnopqrstu",
    "Google's OAuth": "ya29.a0AfH6SMBxQwErTyUiOp",
    "npm": "npm_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "Databricks": "dapi0123456789abcdef0123456789abcdef",
    "GitHub": "ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "GitHub, fine-grained": "github_pat_11ABCDEFG0abcdefghijkl_ABCDEFGHIJKL",
    "Slack": "xoxb-123456789012-AbCdEfGhIjKl",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "AWS, secret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "Bearer": "Bearer zq8",
    "key": "api_key=zq8",
    "password": "password=zq8",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ6ZWIifQ.c2lnbmF0dXJl",
    "PEM": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "Jupyter": "?token=0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "IPv4": "9.9.43.114",
    "IPv6": "2a02:8109:9440:6a4:1cfe:9be2:7f3a:1d2c",
    "IPv6, short": "fe80::1cfe:9be2%en0",
    "MAC": "3c:22:fb:9a:01:7e",
    "UUID": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "serial number": "C02ZQ8ZBMD6T",
    "mail": "zoe@example.org",
    "telephone": "+49 932 6779 4229",
    "card": "4323 9158 6212 8474",
    "address": "12 Sycamore Gardens",
}
PLANTS = tuple(KINDS.values())
TEXT = " ".join(PLANTS)


def source():
    """Return the notebook as JSON."""
    return json.loads((root() / FOLDER / f"{NAME}.ipynb").read_text(encoding="utf-8"))


def executed(**parameters):
    """Return the notebook as a run leaves it, without outputs."""
    document = source()
    used = PARAMETERS | {"out": f"{HOME}/pomology/outputs/mine"} | parameters
    document["metadata"]["papermill"] = {"parameters": used}
    lines = [f"{name} = {json.dumps(value)}" for name, value in used.items()]
    after = next(
        number
        for number, cell in enumerate(document["cells"])
        if "parameters" in cell["metadata"].get("tags", ())
    )
    document["cells"].insert(after + 1, code("\n".join(["# Parameters", *lines]), INJECTED))
    return document


INJECTED = "injected-parameters"


def code(text, *tags):
    cell = {"cell_type": "code", "execution_count": 1, "id": "x", "metadata": {"tags": [*tags]}}
    return cell | {"outputs": [], "source": text}


def results_cell(document):
    """Return the cell that shows the table."""
    return next(cell for cell in document["cells"] if "".join(cell["source"]) == TABLE)


TABLE = "experiment.table()"


def shown(**data):
    """Return a context: data of these types among the outputs, of a cell with results and above."""

    def plant(document):
        for text in PLANTS:
            filled = {kind.replace("_", "/", 1): form.format(text) for kind, form in data.items()}
            output = {"output_type": "display_data", "metadata": {"x": text}, "data": filled}
            results_cell(document)["outputs"].append(output)
            document["cells"].insert(1, code("", "answer-on-top") | {"outputs": [output]})

    return plant


def stream(name):
    def plant(document):
        output = {"output_type": "stream", "name": name, "text": [f"{text}\n" for text in PLANTS]}
        results_cell(document)["outputs"].append(output)

    return plant


def error(document):
    output = {"output_type": "error", "ename": TEXT, "evalue": TEXT, "traceback": [*PLANTS]}
    results_cell(document)["outputs"].append(output)


def picture(document):
    texts, place = PngImagePlugin.PngInfo(), io.BytesIO()
    for number, text in enumerate(PLANTS):
        texts.add_itxt(f"t{number}", text)
    Image.new("L", (1, 1)).save(place, "png", pnginfo=texts)
    data = {"image/png": base64.b64encode(place.getvalue()).decode()}
    output = {"output_type": "display_data", "metadata": {}, "data": data}
    results_cell(document)["outputs"].append(output)


def markdown(document):
    cell = {"cell_type": "markdown", "id": "m", "metadata": {}, "source": TEXT}
    document["cells"].append(cell)
    document["cells"][0]["source"] = [*document["cells"][0]["source"], f"\n{TEXT}"]


def attachment(document):
    data = {"a.txt": {"text/plain": TEXT}, TEXT: {"image/png": ""}}
    document["cells"][0] |= {"attachments": data, "source": "![a](attachment:a.txt)"}


def raw(document):
    document["cells"].append({"cell_type": "raw", "id": "r", "metadata": {}, "source": TEXT})


def cell_metadata(document):
    for cell in document["cells"]:
        cell["metadata"] |= {"name": TEXT, "slideshow": [*PLANTS], "collapsed": TEXT}
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", ()), *PLANTS]
        cell["id"] = TEXT


def notebook_metadata(document):
    state = {"state": {text: {"model_name": text} for text in PLANTS}}
    more = {"authors": [*PLANTS], "widgets": {"application/vnd.jupyter.widget-state+json": state}}
    document["metadata"] |= more | {"kernelspec": {"name": TEXT, "display_name": TEXT}}
    document["metadata"]["papermill"] |= {"input_path": TEXT, "environment_variables": {TEXT: TEXT}}


def injected(document):
    cell = next(cell for cell in document["cells"] if INJECTED in cell["metadata"].get("tags", ()))
    cell["source"] += "".join(f"\nx = {text!r}" for text in PLANTS)
    document["cells"].append(code(TEXT, INJECTED))


def parameters(document):
    used = document["metadata"]["papermill"]["parameters"]
    used |= dict.fromkeys(["data", "devices", "data_folder", "out", "unknown", TEXT], TEXT)
    used |= {"profile": "quick", "seed": "zebedee", "samples": 4323915862128474}
    used |= {"batch_sizes": [4323, 9158, 6212, 8474], "lr": [TEXT]}


def edited_code(document):
    results_cell(document)["source"] = f"{TABLE}  # {TEXT}"


def added_code(document):
    document["cells"].append(code(f"print({TEXT!r})"))


CONTEXTS = {
    "stdout": stream("stdout"),
    "stderr": stream("stderr"),
    "traceback": error,
    "HTML": shown(text_html="<b title='{0}'>{0}</b>", text_plain="{}"),
    "a table's cell": shown(text_html="<div class='pomology-table'><td>{}</td></div>"),
    "JavaScript": shown(application_javascript="var a = '{}';"),
    "widget": shown(**{"application_vnd.jupyter.widget-view+json": "{}"}),
    "JSON": shown(application_json="{}"),
    "unknown type": shown(**{"application_x-zebedee": "{}"}),
    "LaTeX": shown(text_latex="${}$"),
    "answer": shown(text_markdown="**On this machine.** {}"),
    "drawing": shown(
        **{"image_svg+xml": "<svg><image href='http://x/{0}'/><text>{0}</text></svg>"}
    ),
    "picture's metadata": picture,
    "Markdown": markdown,
    "attachment": attachment,
    "raw cell": raw,
    "cell's metadata": cell_metadata,
    "notebook's metadata": notebook_metadata,
    "injected cell": injected,
    "parameters": parameters,
    "edited code": edited_code,
    "added code": added_code,
}
# Of a figure: none that loads, runs, or has data about who made it.
ELEMENTS = {"svg", "defs", "style", "g", "use", "path", "text", "clipPath", "rect", "pattern"}
PICTURES = 1  # of the page of a clean run: times; no epoch of it was timed in parts
REFUSED = {"edited code", "added code"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Return a repository with one notebook, and its commit."""
    folder = tmp_path_factory.mktemp("repository")
    for place in (f"{FOLDER}/{NAME}.ipynb", f"params/quick/{NAME}.yaml"):
        (folder / place).parent.mkdir(parents=True)
        shutil.copy(root() / place, folder / place)

    def git(*arguments):
        options = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        command = ["git", "-C", folder, *options, *arguments]
        return subprocess.check_output(command, text=True).strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "m")
    return folder, git("rev-parse", "HEAD")


@pytest.fixture
def packed(repository, monkeypatch, tmp_path):
    """packed(document, more): share a run with an executed notebook; texts of the zip by name."""
    folder, commit = repository
    monkeypatch.setattr(pages, "root", lambda: folder)
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("LAB_TOKEN", KINDS["Anthropic"])
    monkeypatch.setattr(getpass, "getuser", lambda: "zebedee")
    monkeypatch.setattr(socket, "gethostname", lambda: KINDS["host"])
    numbers = itertools.count()

    def pack(document, *more, machine=None):
        out = tmp_path / f"mine{next(numbers)}"
        facts = {"chip": "Apple M9", "python": "3.11.9", "git": {"commit": commit}}
        metrics = {"epoch_s": records.metric(7.9, 7.5, 8.3, "s")}
        cases = [
            records.record(metrics=metrics, config={"batch_size": size}, repeat=repeat)
            for size, repeat in itertools.product((128, 5120), (0, 1, 2))
        ]
        records.write(out, [*cases, *more], facts | (machine or {}))
        (out / f"{NAME}.ipynb").write_text(json.dumps(document), encoding="utf-8")
        status = main(["share", "--notebooks", str(out)])
        place = out.with_name(f"{out.name}.zip")
        if not place.exists():
            return status, {}
        with zipfile.ZipFile(place) as archive:
            return status, {name: archive.read(name).decode() for name in archive.namelist()}

    return pack


def found(files):
    """Return the kinds of plants in a page, also in other forms."""
    text = "\n".join([*files, *files.values()])
    text += unquote(text)  # figures are addresses
    plain = unicodedata.normalize("NFC", re.sub(r"<[^>]*>", "", text))
    return [kind for kind, plant in KINDS.items() if plant in text or plant in plain]


def test_plants_would_be_found():
    assert found({"a.html": html.escape(TEXT)}) != [] and found({TEXT: ""}) == [*KINDS]


def page_of(files):
    return html.unescape(files[f"{NAME}.html"])


def tables(page):
    opened = re.findall('<p class="title">(.*?)</p>', page)
    folded = re.findall('<details class="more"><summary>(.*?): [0-9]+ rows?</summary>', page)
    return [*opened, *folded]


def test_the_page_of_a_clean_run_has_all_its_results(packed, capsys):
    status, files = packed(executed(batch_sizes=[128, 96], budget_s=12.5))
    assert status == 0 and len(capsys.readouterr().out.splitlines()) == 2
    page = page_of(files)
    assert tables(page)[0] == "This machine" and "Results in" not in page
    assert {"Claims", "All measured values"} <= {*tables(page)}
    answer = re.search(r"On this machine\.</strong>(.*?)</p>", page)[1]
    assert "7.9" in answer and "3 repeats" in answer
    assert page.index(answer) < page.index("Parameters</h2>")
    drawn = re.findall('src="data:image/svg.xml,(.*?)"', page)
    assert len(drawn) == page.count("<img") == PICTURES
    for drawing in map(unquote, drawn):
        assert {*re.findall(r"<(\w+)", drawing)} <= ELEMENTS and "Matplotlib" not in drawing
    # As git has it, of a known form, of another form, and never.
    assert "seed = 7" in page and "budget_s = 12.5" in page and "profile = 'quick'" in page
    assert "batch_sizes = unknown" in page and "out =" not in page and HOME not in page
    assert "class VAE(nn.Module)" in re.sub("<[^>]*>", "", page)


@pytest.mark.parametrize("context", CONTEXTS)
def test_no_plant_leaves_from_any_context(packed, capsys, context):
    document = executed()
    CONTEXTS[context](document)
    written = unicodedata.normalize("NFC", json.dumps(document, ensure_ascii=False))
    if context != "picture's metadata":  # which is encoded
        assert sum(json.dumps(text)[1:-1] in written for text in PLANTS) >= len(PLANTS) - 2
    status, files = packed(document)
    assert status == 0 and found(files) == []
    said = capsys.readouterr().out
    if context in REFUSED:
        assert said.startswith("vae.ipynb: its code is not that of the run's commit; left out")
        assert {*files} == {"machine.json", "vae.jsonl"}
    else:
        assert {"Claims", "All measured values"} <= {*tables(page_of(files))}
        assert page_of(files).count("<img") == PICTURES


def test_what_a_user_typed_into_the_checkouts_notebook_stays(packed, repository):
    place = repository[0] / FOLDER / f"{NAME}.ipynb"
    before = place.read_text(encoding="utf-8")
    document = source()
    document["cells"][0]["source"] = TEXT
    place.write_text(json.dumps(document), encoding="utf-8")
    try:
        status, files = packed(executed())
    finally:
        place.write_text(before, encoding="utf-8")
    assert status == 0 and found(files) == [] and "Variational" in page_of(files)


def test_no_plant_of_a_record_or_of_the_machine_reaches_a_page(packed):
    more = [
        records.record(
            metrics={"epoch_s": records.metric(7.9, 7.5, 8.3, "s")},
            config={"batch_size": 128, "model": text, text: 1},
            note=text,
            data_origin=text,
            chip=text,
            absent={"power_w": text},
            repeat=number,
        )
        for number, text in enumerate(PLANTS, start=3)
    ]
    machine = {"chip": TEXT, "os": TEXT, "packages": {"torch": TEXT}, "left_out": {"vae": TEXT}}
    status, files = packed(executed(), *more, machine=machine)
    assert status == 0 and found(files) == []
    assert "unknown" in page_of(files) and "Claims" in tables(page_of(files))


def test_parameters_of_a_known_form_are_shown(packed):
    page = page_of(packed(executed(devices="mps", data="real", lr=0.01, samples=512))[1])
    for text in ("devices = 'mps'", "data = 'real'", "lr = 0.01", "samples = 512"):
        assert text in page
    for wrong in ({"lr": "fast"}, {"seed": 4323915862128474}, {"data": HOME}, {"samples": [1]}):
        page = page_of(packed(executed(**wrong))[1])
        assert f"{next(iter(wrong))} = unknown" in page


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"cells": 1}', '{"cells": [{}]}', "\ud800"])
def test_a_damaged_notebook_is_left_out_with_a_line(repository, monkeypatch, tmp_path, text):
    folder, commit = repository
    monkeypatch.setattr(pages, "root", lambda: folder)
    run = Run(records.write(tmp_path / "run", [], {"git": {"commit": commit}}))
    (run.path / "a.ipynb").write_bytes(text.encode(errors="surrogatepass"))
    left_out = []
    assert pages.pages(run, {}, share.known_parameter, left_out) == {}
    assert len(left_out) == 1 and left_out[0].startswith("a.ipynb: ")


def test_pages_need_the_commit_of_the_run(packed, capsys):
    for commit in ("0" * 40, "HEAD", None, f"--output={HOME}"):
        status, files = packed(executed(), machine={"git": {"commit": commit}})
        assert status == 2 and files == {}
        assert capsys.readouterr().err.startswith("pomology: NOTEBOOKS=1: git does not have")


OF_ALL = ("vae", "roofline", "capabilities")


def marked(notebook):
    """A few notebooks stand for all of them in `make test-all`: each takes 5 to 15 s."""
    mark = pytest.mark.long if notebook.name in OF_ALL else pytest.mark.machines
    return pytest.param(notebook, marks=mark, id=notebook.name)


@pytest.mark.parametrize("notebook", [*map(marked, notebooks.notebooks())])
def test_the_results_of_every_notebook_are_made_from_shared_records(notebook, tmp_path):
    ignored = shutil.ignore_patterns("*.ipynb", "shown", "*.parquet")
    run = shutil.copytree(root() / "outputs" / "reference-cpu", tmp_path / "run", ignore=ignored)
    out = tmp_path / "shared" / "run"
    with zipfile.ZipFile(share.write(run)) as archive:
        archive.extractall(out)
    cells = notebooks.read_notebook(notebook.path)["cells"]
    declared = notebooks.inspect(notebook.path)
    values = {name: ast.literal_eval(each.default) for name, each in declared.items()}
    values |= notebook.variants[0].parameters
    values = {name: value for name, value in values.items() if name not in pages.NEVER}
    outputs, failed = results.outputs(copy.deepcopy(cells), values, out)
    assert failed == []
    showing = {
        number
        for number, cell in enumerate(cells)
        for statement in results.statements(number, cell)
        if statement.shows
    }
    assert outputs.keys() == showing and all(outputs.values())
