"""The site: all is in it, no link is dead, and a browser shows it on a screen and on a phone."""

import html
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from pomology.paths import root

SITE = runpy.run_path(str(root() / "setup" / "site.py"))
LINK = re.compile(r'\b(href|src)="([^"]*)"')
ELSEWHERE = re.compile(r"(?:https?|data|mailto|javascript):")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
LOOKED_AT = (
    *("index.html", "collection/index.html", "collection/devices/m3-max-gpu-40-cores.html"),
    *("report/index.html", "report/vae.html", "how-to/compare-two-machines.html", "fit.html"),
)
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of a site that is built from a copy of what it is made of."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in ("docs", "collection", "setup", "lib", "notebooks"):
        ignored = shutil.ignore_patterns("__pycache__", ".checked", "devices.html", "index.html")
        shutil.copytree(root() / name, checkout / name, ignore=ignored)
    shutil.copytree(root() / SITE["REFERENCE"], checkout / SITE["REFERENCE"])
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml", "pyproject.toml"):
        shutil.copy(root() / name, checkout)
    shutil.copytree(root() / ".git", checkout / ".git")  # the commits of shared runs
    environment = os.environ | {"PYTHONPATH": str(checkout / "lib")}
    command = [sys.executable, "-P", "setup/site.py"]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "site/index.html"
    return checkout / "site"


@cache
def ids(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    return set(re.findall(r'\b(?:id|name)="([^"]+)"', text))


def dead(path: Path, site: Path):
    """Yield the links of a page that lead nowhere, and what it loads from other hosts."""
    for kind, text in LINK.findall(path.read_text(encoding="utf-8", errors="replace")):
        link = html.unescape(text)
        if ELSEWHERE.match(link):
            if kind == "src" and link.startswith("http"):
                yield link
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / unquote(name.partition("?")[0]) if name else path
        if not target.is_file() or not target.resolve().is_relative_to(site):
            yield link
            continue
        # Material's own anchors, of the menu and of the search, are made by its script.
        own = anchor.startswith("__") or target.suffix != ".html"
        if anchor and not own and unquote(anchor) not in ids(target):
            yield link


def test_no_link_is_dead_and_nothing_comes_from_elsewhere(site):
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(pages) > 200
    broken = {str(path.relative_to(site)): list(dead(path, site)) for path in pages}
    assert not {name: links for name, links in broken.items() if links}


def test_it_has_docs_notebooks_report_devices_and_zips(site):
    names = {path.stem for path in (root() / SITE["REFERENCE"]).glob("*.ipynb")}
    others = {"index", "SOURCES"}
    assert names | others == {path.stem for path in (site / "report").glob("*.html")}
    docs = {path.stem for path in (root() / "docs").glob("*.md")}
    assert docs <= {path.stem for path in site.glob("*.html")}
    how_to = {path.name for path in (root() / "docs" / "how-to").glob("*.md")}
    assert {path.with_suffix(".md").name for path in (site / "how-to").glob("*.html")} == how_to
    zips = {path.name for path in (root() / "collection").glob("*.zip")}
    assert zips == {path.name for path in (site / "collection").glob("*.zip")}
    assert (site / "collection" / "devices" / "t4.html").is_file()


def test_every_page_of_docs_is_in_the_navigation(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    for path in (root() / "docs").glob("*.md"):
        assert f'href="{path.stem}.html"' in text, path.name


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: " + " or ".join(BROWSERS))
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(site, width, scheme):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        size = {"width": width, "height": 900}
        page = browser.new_context(viewport=size, color_scheme=scheme).new_page()
        errors: list[str] = []
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("request", lambda sent: errors.append(sent.url) if "http" in sent.url[:4] else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        for name in LOOKED_AT:
            page.goto((site / name).as_uri())
            wider = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wider <= 0 and not errors, (name, wider, errors)
        page.goto((site / "collection" / "index.html").as_uri())
        page.fill("#search", "m3 max")
        shown = page.locator("#devices li:visible").all_inner_texts()
        assert len(shown) == 3 and all("M3 Max" in text for text in shown)
        page.click("text=M3 Max GPU (40 cores)")
        assert "BERT-base" in page.inner_text("main")
        browser.close()


def test_the_search_has_device_pages_and_no_log(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = [entry["location"] for entry in index["docs"]]
    assert (site / "log").is_dir() and not [place for place in places if place.startswith("log/")]
    assert any(place.startswith("how-to/") for place in places)
    titles = {entry["title"]: entry["location"] for entry in index["docs"]}
    assert titles["M4 Max GPU (40 cores)"] == "collection/devices/m4-max-gpu-40-cores.html"
    assert titles["Training speed of devices"] == "collection/index.html"
    assert all((site / place.partition("#")[0]).exists() for place in places)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: " + " or ".join(BROWSERS))
def test_a_search_for_a_chip_leads_to_its_page(site):
    """In a browser with a server, since a search from a file is not allowed."""
    playwright = pytest.importorskip("playwright.sync_api")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        page.click("input.md-search__input")
        page.type("input.md-search__input", "M4 Max", delay=20)
        page.wait_for_selector(".md-search-result__item")
        links = page.locator(".md-search-result__link").evaluate_all("all => all.map(e => e.href)")
        browser.close()
    server.shutdown()
    assert all("/collection/devices/m4-max-" in link for link in links[:2]), links[:5]


@pytest.mark.parametrize(
    ("target", "origin", "there"),
    [
        ("docs/fit.md#memory", "README.md", "fit.md#memory"),
        ("../notebooks/m1_ultra_vs_rtx_2070/vae.ipynb", "docs/fit.md", "report/vae.html"),
        ("../README.md", "docs/fit.md", "index.md"),
        ("../lib/pomology/__init__.py", "docs/fit.md", None),
        ("https://example.org/a.md", "docs/fit.md", "https://example.org/a.md"),
        ("#memory", "docs/fit.md", "#memory"),
        ("outputs/reference-cpu/", "README.md", "report/index.html"),
        ("collection/", "README.md", "collection/index.html"),
    ],
)
def test_links_lead_to_their_place_in_the_site(target, origin, there):
    origin = Path(origin)
    assert SITE["moved"](target, origin, SITE["in_site"](origin)) == there
