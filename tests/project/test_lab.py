"""`make lab`: JupyterLab asks for a token, opens the notebooks, and saves them without outputs."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import nbformat
import pytest

from pomology.paths import root
from pomology.runner import notebooks

NOTEBOOK = "notebooks/m1_ultra_vs_rtx_2070/vae.ipynb"
TOKEN = "t" * 40


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Run the recipe of `make lab` in a copy of the checkout; yield the copy and its address."""
    folder = tmp_path_factory.mktemp("lab") / "checkout"
    for name in ("lab", "lib", "notebooks", "params"):
        shutil.copytree(root() / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    env = {key: text for key, text in os.environ.items() if not key.startswith(("JUPYTER", "JPY_"))}
    env |= {"HOME": str(folder.parent), "PYTHONPATH": str(folder / "lib"), "JUPYTER_TOKEN": TOKEN}
    env |= {"JUPYTER_NO_CONFIG": "1", "TRAITLETS_APPLICATION_RAISE_CONFIG_FILE_ERROR": "1"}
    subprocess.run([sys.executable, "lab/prepare.py"], cwd=folder, env=env, check=True)
    command = [sys.executable, "-m", "jupyterlab", "--config=lab/jupyter_lab_config.py"]
    command += ["--no-browser", f"--port={port}"]
    server = subprocess.Popen(command, cwd=folder, env=env)
    try:
        end_s = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert server.poll() is None and time.monotonic() < end_s
            time.sleep(0.1)
        yield folder, f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def ask(url: str, **options) -> dict:
    with urllib.request.urlopen(urllib.request.Request(url, **options), timeout=20) as answer:
        return json.load(answer)


def test_it_requires_the_token(lab):
    _, address = lab
    for query in ("", "?token=guessed"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask(f"{address}/api/contents{query}")
    assert ask(f"{address}/api/contents?token={TOKEN}")["type"] == "directory"


def test_a_notebook_opens_and_is_saved_without_outputs(lab):
    folder, address = lab
    place = f"{address}/api/contents/{NOTEBOOK}?token={TOKEN}"
    document = ask(place)["content"]
    before = json.loads((folder / NOTEBOOK).read_text(encoding="utf-8"))
    cell = next(cell for cell in document["cells"] if cell["cell_type"] == "code")
    cell["outputs"] = [nbformat.v4.new_output("stream", text="said")]
    body = json.dumps({"type": "notebook", "format": "json", "content": document}).encode()
    ask(place, data=body, method="PUT")
    after = json.loads((folder / NOTEBOOK).read_text(encoding="utf-8"))
    assert after["cells"] == before["cells"]
    assert "said" in (folder / "outputs" / "lab" / "vae.ipynb").read_text(encoding="utf-8")


def test_the_first_page_links_every_notebook(lab):
    page = lab[0] / "outputs" / "lab" / "notebooks.md"
    lines = re.findall(r"^### .*\]\((.*)\)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    links = [urllib.parse.unquote(link) for link in lines]
    first, second, *others = [Path(link).stem for link in links]
    expected = {each.name for each in notebooks.notebooks(skipped={})}
    assert [first, second] == ["explore", "versus"] and {*others} == expected
    assert all((page.parent / link).is_file() for link in links)
