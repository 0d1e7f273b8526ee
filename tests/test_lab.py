"""`make lab` as a newcomer meets it: a real browser opens what the command opens, in a copy of the checkout.

Without network. The browser is one that the system has, none is downloaded; what needs it is skipped where none is.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
import pytest
import yaml
from jupyter_server.services.contents.largefilemanager import LargeFileManager
from traitlets.config.loader import PyFileConfigLoader

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.results import folders
from pomology.results import journal as results_journal
from pomology.runner import notebooks

ROOT = Path(__file__).resolve().parents[1]
# What is installed here is not to be made again, nor from the copy.
MAKE = ("make", "-o", "ready")
NOTEBOOK = "notebooks/m1_ultra_vs_rtx_2070/vae.ipynb"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = ("Google Chrome.app/Contents/MacOS/Google Chrome", "Chromium.app/Contents/MacOS/Chromium")


def browser() -> str | None:
    places = [shutil.which(name) for name in BROWSERS]
    places += [str(path) for name in APPLICATIONS if (path := Path("/Applications") / name).exists()]
    return next(filter(None, places), None)


there = shutil.which("make") and shutil.which("git") and (ROOT / ".git").exists()
needs_browser = pytest.mark.skipif(browser() is None, reason=f"none of {', '.join(BROWSERS)} here, nor one on a Mac")
needs_make_and_git = pytest.mark.skipif(not there, reason="needs make and a git checkout")


# The copy, the server, and what is left of it -------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=jo", "-c", "user.email=jo@example.org")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """This checkout as a fresh clone of it would be, with what is not committed yet."""
    folder = tmp_path_factory.mktemp("lab") / "checkout"
    for name in filter(None, git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "a clone")
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def fresh() -> dict[str, str]:
    """The environment of a fresh shell, even if these tests run under make or in a notebook."""
    mine = ("MAKE", "MFLAGS", "JUPYTER", "JPY_", "IPYTHON", "XDG_")
    return {name: value for name, value in os.environ.items() if not name.startswith(mine)}


# What a user may have set for other work: a server open to everybody, and a kernel that does not even start.
CONFIGURATION = 'c.ServerApp.ip = "0.0.0.0"\nc.IdentityProvider.token = ""\nc.ServerApp.open_browser = False\n'
CONFIGURED = ("jupyter_config.py", "jupyter_server_config.py", "jupyter_lab_config.py")
THEME = ".jupyter/lab/user-settings/@jupyterlab/apputils-extension/themes.jupyterlab-settings"
KERNEL = {"argv": ["false", "{connection_file}"], "display_name": "Somebody's Python", "language": "python"}


def furnish(home: Path) -> None:
    files = {f".jupyter/{name}": CONFIGURATION for name in CONFIGURED} | {THEME: '{"theme": "JupyterLab Dark"}'}
    kernels = (".local/share/jupyter/kernels/python3", "Library/Jupyter/kernels/python3")
    for name, text in (files | {f"{folder}/kernel.json": json.dumps(KERNEL) for folder in kernels}).items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)


@dataclass
class Lab:
    """A server that is up: the processes that it has started, what it opens in the browser, and what it has printed."""

    root: psutil.Process
    url: str
    printed: Path

    def __post_init__(self):
        self.address, self.token = self.url.split("/lab")[0], self.url.split("token=")[1]

    def listens(self) -> set[str]:
        """The addresses on which it and its kernels listen."""
        addresses = set()
        for process in [self.root, *self.root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # the program that shows the page in a browser ends early
                opened = process.net_connections("inet")
                addresses |= {each.laddr.ip for each in opened if each.status == psutil.CONN_LISTEN}
        return addresses


def stop(root: subprocess.Popen) -> list[psutil.Process]:
    """End the server as a closed terminal does. Whatever is there a while later is killed, and returned."""
    try:
        all_of_it = [psutil.Process(root.pid), *psutil.Process(root.pid).children(recursive=True)]
        for process in reversed(all_of_it):
            if "jupyterlab" in " ".join(process.cmdline()):
                process.send_signal(signal.SIGTERM)
    except psutil.NoSuchProcess:
        return []
    root.poll()
    _, left = psutil.wait_procs(all_of_it, timeout=15, callback=lambda _: root.poll())
    for process in left:
        process.kill()
    root.wait()
    return left


@pytest.fixture(scope="module")
def lab(checkout):
    """`make lab`, in the copy, for a user who has other things set, with a program that notes what it shall open."""
    home, opened, printed = (checkout.parent / name for name in ("home", "opened", "printed"))
    furnish(home)
    program = checkout.parent / "browser"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" > "{opened}.part" && mv "{opened}.part" "{opened}"\n')
    program.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = fresh() | {"HOME": str(home), "BROWSER": f"{program} %s", "JUPYTER_PORT": str(port)}
    env |= {"PYTHONPATH": str(checkout / "lib"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with open(printed, "wb") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        server = subprocess.Popen([*MAKE, "lab"], cwd=checkout, env=env, start_new_session=True, **streams)
    try:
        deadline = time.monotonic() + 60
        while not opened.exists():
            assert server.poll() is None and time.monotonic() < deadline, printed.read_text()
            time.sleep(0.1)
        page = Path(opened.read_text().removeprefix("file://")).read_text()
        url = re.search(r'href="(http://[^"]+)"', page)[1]
        yield Lab(psutil.Process(server.pid), url, printed)
    finally:
        left = stop(server)
    assert not left, f"still there after the server was told to stop: {left}"


def ask(url: str) -> tuple[int, str]:
    """The status and the text of an answer; it follows nobody elsewhere."""
    parts = urllib.parse.urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=20)) as connection:
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Location") or answer.read().decode()


# In the browser -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(lab):
    """What the command opens, in a browser; with all that it asked for, and all that went wrong in it."""
    from playwright.sync_api import sync_playwright

    quiet = "disable-gpu disable-quic no-first-run disable-background-networking disable-component-update disable-sync"
    arguments = [f"--{name}" for name in quiet.split()]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium runs as root in no other way
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=arguments)
        try:
            page = chromium.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(60_000)
            page.asked, page.errors = [], []
            page.on("request", lambda request: page.asked.append(request.url))
            page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: page.errors.append(str(error)))
            page.goto(lab.url)
            page.wait_for_selector("#jp-main-statusbar")
            yield page
        finally:
            chromium.close()


LINKS = ".jp-MarkdownViewer h3 a:not(.jp-InternalAnchorLink)"
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
IDLE = "() => /\\| Idle/.test(document.querySelector('#jp-main-statusbar').textContent)"
RAN = f"""() => [...document.querySelectorAll('{PANEL} .jp-CodeCell .jp-InputArea-prompt')]
    .every(prompt => /\\[\\d+\\]/.test(prompt.textContent))"""


def contents(page, expected: list[str]) -> list[str]:
    """What the table of contents lists, as soon as it has as many lines as expected."""
    page.wait_for_function("n => document.querySelectorAll('.jp-tocItem-content').length == n", arg=len(expected))
    return page.locator(".jp-tocItem-content").all_inner_texts()


def write(page, number: int, source: str) -> None:
    """Type another source into a code cell."""
    page.locator(f"{PANEL} .jp-CodeCell").nth(number).locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(source)


def save(page) -> None:
    page.keyboard.press("ControlOrMeta+s")
    page.wait_for_selector(".lm-DockPanel-tabBar .lm-mod-current:not(.jp-mod-dirty)")


def smoke(source: str, notebook: str) -> str:
    """A parameters cell with the values of the smoke profile in it."""
    values = yaml.safe_load((ROOT / "params" / "smoke" / f"{Path(notebook).stem}.yaml").read_text())
    for name, value in (values | {"data": "stand-in"}).items():
        source, changed = re.subn(rf"(?m)^({name}: [^=]+ = ).*?(  #|$)", rf"\g<1>{value!r}\2", source)
        assert changed == 1, name
    return source


@needs_make_and_git
def test_it_listens_on_loopback_only_and_asks_for_the_token(lab):
    assert lab.address.startswith("http://127.0.0.1:") and lab.listens() == {"127.0.0.1"}
    assert len(lab.token) >= 32
    assert ask(f"{lab.address}/api/contents?token=guessed")[0] == 403
    status, place = ask(f"{lab.address}/lab")
    assert status == 302 and place.startswith("/login")
    assert ask(f"{lab.address}/api/contents?token={lab.token}")[0] == 200
    assert lab.address in lab.printed.read_text(), "no way in for whom no browser opens"


@needs_browser
@needs_make_and_git
def test_it_opens_with_the_notebooks_and_their_table_of_contents(page):
    titles = [notebook.title for notebook in notebooks.notebooks()]
    page.wait_for_selector(LINKS)
    assert sorted(page.locator(LINKS).all_inner_texts()) == sorted(titles)
    sections = ["Notebooks", "This machine", *(article.title for article in published.articles())]
    assert contents(page, sections) == sections
    pictures = page.locator(".jp-MarkdownViewer img")
    assert pictures.count() > 25
    page.wait_for_function("() => [...document.querySelectorAll('.jp-MarkdownViewer img')].every(one => one.complete)")
    assert min(pictures.evaluate_all("all => all.map(one => one.naturalWidth)")) > 300
    assert not page.locator(".jp-Dialog, .Toastify__toast").count(), "something is in the way"
    assert page.locator("body").get_attribute("data-jp-theme-light") == "false", "the user's own settings do not hold"


@needs_browser
@needs_make_and_git
def test_a_notebook_runs_and_leaves_git_clean_but_for_outputs(lab, page, checkout):
    document = nbformat.read(checkout / NOTEBOOK, 4)
    title = document.cells[0].source.split("\n")[0].removeprefix("# ")
    page.click(f".jp-MarkdownViewer a:text-is('{title}')")
    page.wait_for_selector(f"{PANEL} .jp-Notebook-cell")
    page.wait_for_function(IDLE)
    texts = "\n".join(cell.source for cell in document.cells if cell.cell_type == "markdown")
    expected = re.findall(r"(?m)^#{1,2} (.+)", texts)
    assert contents(page, expected) == expected

    own = next(cell.source for cell in document.cells if cell.cell_type == "code")
    changed = smoke(own, NOTEBOOK)
    write(page, 0, changed)
    page.click(".lm-MenuBar-itemLabel:text-is('Run')")
    page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
    page.wait_for_function(RAN)
    outputs = page.locator(f"{PANEL} .jp-OutputArea-output")
    kinds = outputs.evaluate_all("all => all.map(one => one.dataset.mimeType)")
    assert not [kind for kind in kinds if kind.endswith(("stderr", "error"))], outputs.all_text_contents()
    table = page.locator(f"{PANEL} .jp-Cell:has-text('experiment.table()') table")
    text = table.text_content().replace("\N{NO-BREAK SPACE}", " ")
    assert "M1 Ultra GPU" in text and "Time per epoch" in text
    figure = page.locator(f"{PANEL} .jp-Cell:has-text('experiment.figure()') .jp-OutputArea-output img")
    assert figure.evaluate("image => image.complete && image.naturalWidth > 300")

    assert lab.listens() == {"127.0.0.1"}, "its kernels too"
    save(page)
    assert git(checkout, "status", "--porcelain").splitlines() == [f" M {NOTEBOOK}"]
    lines = re.findall(r"(?m)^\+ .*", git(checkout, "diff", "--unified=0"))
    assert [json.loads(line[1:].strip().rstrip(",")).rstrip("\n") for line in lines] == [
        new for old, new in zip(own.split("\n"), changed.split("\n"), strict=True) if old != new
    ], "more has changed than the parameters that were typed"
    write(page, 0, own)
    save(page)
    assert git(checkout, "status", "--porcelain") == ""

    (journal,) = (checkout / "outputs").glob("lab-*/vae.jsonl")
    assert [record.status for record in results_journal.read(journal).records] == ["ok"]
    # As it was seen, it can be opened again, and its tables and figures are trusted.
    status, answer = ask(f"{lab.address}/api/contents/outputs/lab/vae.ipynb?token={lab.token}")
    shown = json.loads(answer)["content"]["cells"]
    assert status == 200
    assert [cell["source"] for cell in shown] == [cell.source for cell in document.cells]
    code = [cell for cell in shown if cell["cell_type"] == "code"]
    assert all(cell["metadata"]["trusted"] for cell in code)
    assert any("image/svg+xml" in output.get("data", {}) for cell in code for output in cell["outputs"])

    assert [url for url in page.asked if not url.startswith((f"{lab.address}/", "data:", "blob:"))] == []
    assert page.errors == []

    home, kept = checkout.parent / "home", (".ipython/", ".cache/", ".config/matplotlib/", ".local/share/jupyter/")
    names = {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}
    own = {THEME, *(f".jupyter/{name}" for name in CONFIGURED)}
    assert {name for name in names if not name.startswith((*kept, "Library/"))} == own, "the user's folders get nothing"


# Without a browser ----------------------------------------------------------------------------------------------------


@needs_browser
@needs_make_and_git
def test_a_notebook_of_somebody_else_loads_nothing_from_elsewhere(lab, page, checkout):
    """Pictures and frames in its text and in its outputs: on another port, which is another host to a browser."""
    asked = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    pixel = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = f"http://127.0.0.1:{server.server_port}"
        html = (
            f'<img src="{there}/b.png"><p style="background: url({there}/c.png)">its output</p><iframe src="{there}/d">'
        )
        cells = [
            nbformat.v4.new_markdown_cell(f"![]({there}/a.png) ![own](data:image/gif;base64,{pixel})"),
            nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("display_data", {"text/html": html})]),
        ]
        (checkout / "outputs").mkdir(exist_ok=True)
        nbformat.write(nbformat.v4.new_notebook(cells=cells), checkout / "outputs" / "friend.ipynb")
        page.goto(f"{lab.address}/lab/tree/outputs/friend.ipynb?token={lab.token}")
        page.wait_for_function(f"() => document.querySelector('{PANEL} img[alt=own]')?.naturalWidth == 1")
        page.wait_for_selector(f"{PANEL} :text('its output')")
        server.shutdown()
    assert page.locator(f"{PANEL} img").count() == 3 and not asked


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """Jupyter's own way to save a file, set up as `make lab` sets it, for a checkout in a folder of this test."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "notebooks" / "mine").mkdir(parents=True)
    shutil.copy(ROOT / "lab" / "jupyter_lab_config.py", tmp_path / "lab")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    config = PyFileConfigLoader("jupyter_lab_config.py", str(tmp_path / "lab")).load_config()
    return LargeFileManager(config=config, root_dir=config.ServerApp.root_dir)


def ran(source: str = "1 + 1") -> dict:
    """A notebook as JupyterLab sends it after a run."""
    output = nbformat.v4.new_output("execute_result", {"text/html": "<table></table>"}, execution_count=3)
    left = {"trusted": True, "collapsed": True, "execution": {"shell.execute_reply": "now"}, "tags": ["parameters"]}
    code = nbformat.v4.new_code_cell(source, id="one", outputs=[output], execution_count=3, metadata=left)
    text = nbformat.v4.new_markdown_cell("# Mine", id="two", metadata={"editable": True})
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
    metadata |= {"language_info": {"name": "python", "version": "3.11.99"}, "pomology": {"article": "003"}}
    return nbformat.v4.new_notebook(cells=[code, text], metadata=metadata)


def keep(manager, path: str, document: dict) -> dict:
    manager.save({"type": "notebook", "format": "json", "content": document}, path)
    return json.loads((Path(manager.root_dir) / path).read_text(encoding="utf-8"))


def test_a_saved_notebook_has_nothing_of_its_run_in_it(manager, tmp_path):
    kept = keep(manager, "notebooks/mine/mine.ipynb", ran())
    code, text = kept["cells"]
    plain = {"cell_type": "code", "id": "one", "source": ["1 + 1"], "metadata": {"tags": ["parameters"]}}
    assert code == plain | {"outputs": [], "execution_count": None}
    assert (text["source"], text["metadata"]) == (["# Mine"], {})
    assert kept["metadata"]["pomology"] == {"article": "003"}
    # What it showed is not lost, and Jupyter shows it again as it was.
    shown = manager.get("outputs/lab/mine.ipynb")["content"]["cells"][0]
    assert shown["outputs"][0]["data"] == {"text/html": "<table></table>"} and shown["execution_count"] == 3
    assert shown["metadata"]["trusted"]
    # Saved again after its outputs were cleared, or in a session without any.
    before = (tmp_path / "outputs" / "lab" / "mine.ipynb").read_text()
    keep(manager, "notebooks/mine/mine.ipynb", nbformat.from_dict(kept))
    assert (tmp_path / "outputs" / "lab" / "mine.ipynb").read_text() == before


def test_another_release_of_python_is_no_change_and_what_is_not_trusted_stays_so(manager):
    first = ran()
    first["metadata"]["language_info"]["version"] = "3.11.7"
    first["cells"][0]["metadata"]["trusted"] = False
    keep(manager, "notebooks/mine/mine.ipynb", first)
    assert not manager.get("outputs/lab/mine.ipynb")["content"]["cells"][0]["metadata"]["trusted"]
    kept = keep(manager, "notebooks/mine/mine.ipynb", ran("2 + 2"))
    assert kept["metadata"]["language_info"]["version"] == "3.11.7" and kept["cells"][0]["source"] == ["2 + 2"]


def test_notebooks_elsewhere_and_other_files_are_saved_as_they_are(manager, tmp_path):
    assert keep(manager, "notebooks.ipynb", ran())["cells"][0]["outputs"]
    manager.save({"type": "file", "format": "text", "content": "text"}, "notebooks/mine/notes.md")
    assert (tmp_path / "notebooks" / "mine" / "notes.md").read_text() == "text"
    assert not (tmp_path / "outputs" / "lab").exists()


@needs_make_and_git
def test_without_its_configuration_nothing_starts(checkout, tmp_path):
    """Jupyter would go on without: on whatever address, and with outputs in git."""
    broken = tmp_path / "jupyter_lab_config.py"
    broken.write_text("c.ServerApp.ip = nobody\n")
    options = {"cwd": checkout, "env": fresh() | {"TMPDIR": str(tmp_path)}, "capture_output": True, "text": True}
    recipe = subprocess.run([*MAKE, "-n", "lab"], **options, check=True).stdout
    start = recipe[recipe.index("JUPYTER_NO_CONFIG") :].replace("lab/jupyter_lab_config.py", str(broken)).strip()
    done = subprocess.run(["sh", "-c", f"exec env {start} --no-browser --allow-root"], **options, timeout=120)
    assert done.returncode != 0 and "NameError: name 'nobody'" in done.stderr


@pytest.fixture
def prepare(monkeypatch, tmp_path):
    """What writes the first page, here into a folder of this test, in which there are no runs."""
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "lab" / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LAB", tmp_path / "outputs" / "lab")
    monkeypatch.setattr(module, "root", lambda: tmp_path)
    return module


def part(page: str, name: str) -> str:
    """What the first page says of a notebook."""
    (one,) = [text for text in page.split("\n### ") if f"/{name}.ipynb)" in text.partition("\n")[0]]
    return one


def test_the_first_page_has_each_notebook_with_what_it_finds_out_and_a_stated_time(prepare):
    page = prepare.contents()
    for notebook in notebooks.notebooks():
        text = part(page, notebook.name)
        link = urllib.parse.unquote(re.search(r"\]\((.*?)\)", text)[1])
        assert (prepare.LAB / link).resolve() == notebook.path.resolve()
        assert len(prepare.answers(notebook.first)) > 40 and prepare.plain(prepare.answers(notebook.first)) in text
        assert "on two CPU cores; not run on this machine yet" in text
        assert ('<img src="data:image/svg+xml,' in text) == ("of the run that comes with the kit" in text)
    assert "M1 Ultra GPU" in urllib.parse.unquote(part(page, "vae"))


def test_the_first_page_has_the_time_and_picture_of_this_machine_s_last_run(prepare, tmp_path):
    for number, (name, took_s) in enumerate({"old": 50.0, "new<b>": 83.2, "other": 7.0}.items()):
        out = tmp_path / "outputs" / name
        snapshot = folders.note_machine(out, "quick")
        if name == "other":
            (out / "machine.json").write_text(json.dumps(snapshot | {"chip": "Another"}))
        (out / "figures").mkdir()
        (out / "figures" / "vae-epoch.svg").write_text(f"<svg>{number}</svg>")
        ended = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# VAE")])
        ended["metadata"]["papermill"] = {"duration": took_s}
        nbformat.write(ended, out / "vae.ipynb")
        os.utime(out / "machine.json", (number, number))
    text = part(prepare.contents(), "vae")
    assert "**1:23 min** on this machine, in run new&lt;b&gt;" in text and "of your run new&lt;b&gt;" in text
    assert re.findall(r'src="data:image/svg\+xml,(.*?)"', urllib.parse.unquote(text)) == ["<svg>1</svg>"]


def test_texts_on_the_first_page_do_nothing(prepare):
    place = prepare.LAB / "x.ipynb"
    bad = notebooks.Notebook("vae", place, "<script>a</script> ](x) *b*", "003", {}, first="# T\n\n![x](https://x.y)")
    title, _, answer, *_ = prepare.entry(bad, [], {}).splitlines()
    assert title == r"### [&lt;script&gt;a&lt;/script&gt; \](x) \*b\*](x.ipynb)"
    assert answer == r"!\[x\](https://x.y)"


def test_the_first_page_says_what_is_wrong_with_the_notebooks(prepare, monkeypatch):
    def broken():
        raise PomologyError("vae.ipynb: stands in two folders")

    monkeypatch.setattr(notebooks, "notebooks", broken)
    assert "**vae.ipynb: stands in two folders**" in prepare.contents()
