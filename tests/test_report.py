"""The page of a run: what it shows of half-done, broken and hostile folders, and that it runs and fetches nothing."""

import base64
import itertools
import json
import os
import re
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import fakes
import nbformat
import pytest
from nbformat import v4
from records import write
from test_lab import browser, needs_browser

import pomology
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.share import share
from pomology.measure.estimate import Estimate
from pomology.report import details, notebook_page, showing
from pomology.report import page as report_page
from pomology.report import table as report_table
from pomology.results import journal
from pomology.results import record as results_record

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
ATTACKS = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", '"><svg onload=alert(3)>')
MACHINE = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 16 * 2**30, "os": "macOS", "os_version": "15.5"}
MACHINE |= {"python": "3.11.9", "packages": {"pomology": "0.1.0"}, "git": {"commit": "c0ffee" * 7, "dirty": True}}


def metric(value, low=None, high=None, how="estimated"):
    return Estimate(value, "s", low, high, 9, how)


def record(experiment="vae", **more):
    found = {"experiment": experiment, "backend": "mps", "device": "gpu", "data": "stand-in", "parameters": 652_824}
    found |= {"flops_per_step": 10**9, "metrics": {"epoch_s": metric(7.89, 7.5, 8.25), "step_s": metric(0.0168)}}
    return fakes.record(**found | {"foreign_load": 0.1} | more)


def run(folder: Path, *records: dict, machine: dict | None = MACHINE) -> Path:
    return write(folder, records, machine)


def notebook(path: Path, *cells, **metadata) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    nbformat.write(v4.new_notebook(cells=list(cells), metadata=metadata), path)
    return path


def shown(source: str, **data: str):
    """A code cell with one output: `html` stands for text/html and so on."""
    kinds = {"html": "text/html", "svg": "image/svg+xml", "png": "image/png", "markdown": "text/markdown"}
    data = {kinds.get(name, name): value for name, value in data.items()}
    return v4.new_code_cell(source, outputs=[v4.new_output("display_data", data)])


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text between them."""

    def __init__(self, path: Path):
        super().__init__()
        self.source = path.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
        self.elements, self.text = [], ""
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def drawings(self) -> list[str]:
        """The figures, which stand in the page as pictures."""
        start = notebook_page.PICTURE
        found = [image["src"] for image in self.all("img") if image["alt"] and image["src"].startswith(start)]
        return [unquote(source.removeprefix(start)) for source in found]


def assert_harmless(page: Page) -> None:
    """Nothing runs, and nothing is asked of anybody; links that a reader may follow are fine."""
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "iframe", "object", "embed", "link", "base", "form", "audio", "video", "foreignobject"}
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "srcset"], (tag, attributes)
        assert attributes.get("src", "data:image/").startswith("data:image/"), (tag, attributes)
        assert re.match(r"https://|#|[\w./%-]+$", attributes.get("href", "#")), (tag, attributes)
        assert not re.search(r"url\((?!#)|expression|position", attributes.get("style", "")), (tag, attributes)
    for style in re.findall(r"<style.*?</style>", page.source, re.DOTALL):
        assert "url(" not in style and "@import" not in style
    assert "default-src 'none'" in page.source  # a browser enforces the same


def test_finished_run(tmp_path):
    out = run(tmp_path / "run", record(), record(config={"batch_size": 5120}, status="out-of-memory", reason="16 GB"))
    run(out, record("siamese", metrics={"epoch_s": metric(123.0)}), record("dcgan", started="2026-05-04T05:06:07Z"))
    notebook(out / "vae.ipynb", v4.new_markdown_cell("# VAE"))
    (out / "tables").mkdir()
    (out / "tables" / "vae-article.csv").write_text("x")
    index = report_page.build(out)
    assert index == out / "index.html"
    page = Page(index)
    assert_harmless(page)
    assert "cannot be shown" not in page.text and "cannot be tested" not in page.text
    for text in (
        "Apple M9, 8 cores, 16 GB, macOS 15.5",
        "2026-05-04 03:02 to 2026-05-04 05:06 UTC",
        "3 of 4 cases",
        "1 out-of",
    ):
        assert text in page.text
    assert "commit c0ffeec0ff, with changes" in page.text and "stand-in (dcgan, siamese, vae)" in page.text
    # The article's order, whatever the files are called.
    assert [section["id"] for section in page.all("section")] == ["dcgan", "siamese", "vae"]
    for printed in (row["printed"] for row in published.rows(experiment="vae") if row["metric"] == "epoch_s"):
        assert f">{printed}<" in page.source
    assert "7.9 s ± 4.8 %" in page.text and "123 s" in page.text
    assert "out-of-memory" in page.text and "16 GB" in page.text
    # A claim of one experiment stands under it, one of several under the article, each once.
    assert page.source.count(">003-C1<") == page.source.count(">003-C3<") == 1
    assert page.source.index(">003-C1<") < page.source.index("The article as a whole") < page.source.index(">003-C3<")
    # The chart of all devices at the top, and one of each experiment.
    assert len(page.drawings) == 4
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    used = re.findall(r'(?:href="|url\()#([^")]+)', page.source)
    assert used and set(used) <= set(identifiers)
    assert {"vae.html", "vae.jsonl", "tables/vae-article.csv"} <= {link["href"] for link in page.all("a")}
    assert "dcgan.html" not in page.source


def test_nothing_on_a_page_is_stronger_than_what_was_measured(tmp_path, undrawn):
    """Numbers of the reference run that an audit found: few steps, parts larger than the whole, a ceiling too low."""
    epoch = {"epoch_s": metric(153.46, 46.8, 260.1), "compute_epoch_s": metric(154.2, 36.0, 272.4)}
    blocks = {"training": {"epoch_steps": 58.6, "steady": [[1, 2.473], [1, 2.764]]}}
    few = {name: value.replace(n=2) for name, value in epoch.items()}
    rate = Estimate(154e9, "FLOP/s", 86e9, 700e9, 9)
    error = Estimate(7.11e-15, "", n=1)
    product = {"operation": "matmul", "shape": "1x64x64", "precision": "fp32"}
    best = {"flops_per_s": Estimate(140e9, "FLOP/s", 139e9, 141e9, 20)}
    cases = [
        record("siamese", config={"batch_size": 64}, metrics=epoch | {"flops_per_s": rate, "max_abs_error": error}),
        record("siamese", config={"batch_size": 1024}, metrics=few | {"flops_per_s": rate.replace(n=2)}, blocks=blocks),
        record("ceilings", article="kit", config=product, metrics=best),
    ]
    text = Page(report_page.build(run(tmp_path / "run", *cases))).text
    for words in ("about 150 s: 47 to 260 s", "about 150 s (steps of 2.5 to 2.8 s)", "not told apart (9 steps)"):
        assert words in text
    assert "100 %: within its interval" in text and "7.1e-15" in text
    assert not re.search(r"± (5[1-9]|[6-9]\d|\d{3,}) %", text)


def test_what_is_doubtful_is_said_first(tmp_path, undrawn):
    slow = {"epoch_s": metric(8.0, 7.9, 8.1), "compute_epoch_s": metric(2.0, 1.9, 2.1), "step_s": metric(0.01)}
    check = {"article": "kit", "metrics": {}, "flops_per_step": None}
    cases = [
        record(config={"batch_size": 128}, case="a", metrics=slow, flags=["contended"]),
        record(config={"batch_size": 5120}, case="b"),
        record("instrument_check", config={"check": "clock"}, case="clock", **check),
        record("instrument_check", config={"check": "fence"}, case="fence", status="mismatch", reason="late", **check),
    ]
    page = Page(report_page.build(run(tmp_path / "run", *cases)))
    vae = page.source.split('id="vae"')[1]
    assert (
        "<b>May these rows be trusted?</b> No: loading data took longer than computing (batch size 128). "
        "Roughly: other programs used the processor meanwhile (batch size 128). Yes: the other case." in vae
    )
    rows = re.findall(r"<tr class=\"plain\"><td>(.*?)</td><td>(.*?)</td>", page.source.split('id="trust"')[1])
    told = [("yes", "1 of 2 checks of the kit itself"), ("no", "1 of 2 checks of the kit itself")]
    told += [("yes", "2 of 4 cases"), ("roughly", "1 of 4 cases"), ("no number", "1 of 4 cases")]
    assert rows[:5] == told
    for link in ("models", "trust"):
        assert f'href="#{link}"' in page.source.split('class="ranking"')[0]


def test_the_page_says_with_what_each_case_ran(tmp_path, undrawn):
    one = {"git": {"commit": "c0ffee" * 7, "dirty": True}, "python": "3.11.9", "threads": 8}
    one |= {"packages": {"torch": "2.13.0", "numpy": "1.26.4"}, "environment": {"OMP_NUM_THREADS": "<8>"}}
    other = one | {"git": None, "packages": {"torch": "2.12.0", "numpy": "1.26.4"}, "environment": {}}
    machine = MACHINE | {"software": {"aaa": one, "bbb": other}}
    table = details.software_table(machine, [SimpleNamespace(software=name) for name in ("aaa", "bbb", "aaa")])
    assert [row.cells for row in table.rows] == [
        ("2", "c0ffeec0ff, with changes", "3.11.9", "8", "torch 2.13.0", "OMP_NUM_THREADS=<8>"),
        ("1", "not known", "3.11.9", "8", "torch 2.12.0", "none set"),
    ]
    assert table.notes == ("Packages of all: numpy 1.26.4.",)
    cases = [record(case=f"cpu {number}", software=("aaa", "bbb")[number % 2]) for number in range(3)]
    page = Page(report_page.build(run(tmp_path / "run", *cases, machine=machine)))
    assert "what its cases ran with" in page.text and "OMP_NUM_THREADS=<8>" in page.text
    for malformed in ("x", {"aaa": 1}, {"aaa": {"git": 1, "packages": None, "environment": []}}):
        report_page.build(run(tmp_path / "other", machine=MACHINE | {"software": malformed}))


def test_unfinished_runs(tmp_path, undrawn):
    empty = Page(report_page.build(run(tmp_path / "empty", machine=None)))
    assert "Nothing has been measured yet." in empty.text and "machine.json is missing" in empty.text
    assert_harmless(empty)

    out = run(tmp_path / "half", record("siamese"))
    line = record(case="cpu big").line()
    started = {key: line[key] for key in results_record.Start.__struct_fields__ if key in line}
    journal.Journal(out / "vae.jsonl").start(started)
    with open(out / "vae.jsonl", "a") as file:
        file.write('{"event": "end", "torn')
    failure = v4.new_output("error", ename="ImportError", evalue="no module <b>", traceback=["x"])
    notebook(out / ".partial" / "dcgan.ipynb", v4.new_code_cell("import x", outputs=[failure]))
    notebook(out / ".partial" / "vae-2.ipynb")
    (out / ".partial" / "vae.ipynb").write_text("not JSON")
    page = Page(report_page.build(out))
    assert [section["id"] for section in page.all("section")] == ["dcgan", "siamese", "vae"]
    assert page.text.count("Not finished") == 2 and page.text.count("No finished notebook") == 1
    assert "It stopped at ImportError: no module <b>." in page.text
    assert "cpu big: under way, or cut off" in page.text and "1 crashed" in page.text
    assert "vae.jsonl, line 2: torn" in page.text and ">crashed<" in page.source
    assert_harmless(page)

    with pytest.raises(PomologyError, match="no such folder"):
        report_page.build(tmp_path / "nowhere")


def test_what_only_a_notebook_makes_of_others_records_stays_as_it_saved_it(tmp_path):
    out = run(tmp_path / "run", record("blas_torch"))
    report = showing.Report("costs", article="001", out=str(out), combines=["blas_torch", "energy"])
    report.show([record("costs")])
    report.table()
    saved = {place.name: place.read_bytes() for place in (out / "tables").iterdir()}
    run(out, record("blas_torch", case="more"))
    again = showing.Report.of(report.declaration, report.run)
    assert any(row.kind == "measured" for row in again.saved("table").rows)  # however old
    assert {place.name: place.read_bytes() for place in (out / "tables").iterdir()} == saved


def test_numbers_that_cannot_be_shown_do_not_take_the_page_with_them(tmp_path, monkeypatch, undrawn):
    def article_table(about, *others):
        return {"vae": works}[about.name](about, *others)

    works = showing.article.article_table
    monkeypatch.setattr(showing.article, "article_table", article_table)
    page = Page(report_page.build(run(tmp_path / "run", record("dcgan"), record())))
    assert page.text.count("The numbers of this experiment cannot be shown: KeyError: 'dcgan'.") == 1
    assert "7.9 s ± 4.8 %" in page.text


def test_smoke_numbers_stay_apart_and_of_many_crashes_the_first_are_named(tmp_path):
    out = run(tmp_path / "run", record(profile="smoke"))
    run(out, record(profile="smoke", case="b", status="error", reason="ValueError: odd"))
    run(out, *(record("stranger", case=f"{number}", status="crashed", reason="r" * 2000) for number in range(50)))
    page = Page(report_page.build(out))
    assert "A smoke run" in page.text and "ValueError: odd" in page.text
    assert "16.8 ms" in page.text and "7.9 s" not in page.text and not page.drawings
    assert "And 30 more like these." in page.text and "r" * 1000 not in page.text
    assert page.text.count("r" * 900) == 20


def test_hostile_texts_are_shown_and_do_nothing(tmp_path):
    attack = " ".join(ATTACKS)
    out = run(tmp_path / "run", machine=MACHINE | {"chip": attack, "git": {"commit": 7}, "power_source": attack})
    # A chip's name with dollar signs must not be read as a formula either.
    record_of = {"case": attack, "chip": f"$\\frac{attack}$", "profile": attack, "data": attack, "flags": [attack]}
    run(out, record(**record_of, data_origin=attack), record(**record_of, config={attack: [attack]}, repeat=3))
    run(out, record(case="x", status="error", reason=attack))
    stranger = record("stranger", article=attack, status="crashed", reason=attack, config={attack: attack})
    (out / "a'><img src=x onerror=alert(1)>.jsonl").write_text(json.dumps(stranger.line()))
    (out / "huge.jsonl").write_text(json.dumps({"schema": 99}))
    failure = v4.new_output("error", ename=attack, evalue=attack, traceback=[])
    notebook(out / ".partial" / "siamese.ipynb", v4.new_code_cell("", outputs=[failure]))
    page = Page(report_page.build(out))
    assert_harmless(page)
    assert page.text.count(ATTACKS[0]) > 10 and page.text.count(ATTACKS[1]) > 10
    assert len(page.drawings) == 2  # that of all devices and vae's, with the formula's text in them
    assert "schema 99 is newer" in page.text


def test_notebook(tmp_path, undrawn):
    out = run(tmp_path / "run", record())
    wide = '<div style="overflow-x:auto"><table><tr style="background:rgba(1,2,3,.1)"><td>5</table>'
    printed = v4.new_output("stream", name="stdout", text="2 < 3\n")
    drawing = v4.new_output("execute_result", {"image/svg+xml": "<svg/>"})
    error = v4.new_output("error", ename="E", evalue="v", traceback=["Zero <division>"])
    notebook(
        out / "vae.ipynb",
        v4.new_markdown_cell("# VAE: time & place\n\nSome *words*."),
        v4.new_code_cell("lr: float = 1e-3  # rate", metadata={"tags": ["parameters"]}),
        v4.new_code_cell("lr = 0.5", metadata={"tags": ["injected-parameters"]}),
        v4.new_code_cell("print('a')", outputs=[printed]),
        v4.new_markdown_cell("## The table"),
        shown("table", html=wide),
        v4.new_code_cell("svg", outputs=[drawing]),
        shown("png", png=PIXEL, **{"text/plain": "<Figure>"}),
        shown("markdown", markdown="**bold**"),
        v4.new_code_cell("1 / 0", outputs=[error]),
        language_info={"name": "python"},
    )
    report_page.build(out)
    page = Page(out / "vae.html")
    assert_harmless(page)
    assert page.all("html") == [{"lang": "en"}] and "<title>VAE: time &amp; place</title>" in page.source
    folded = ["open" not in details for details in page.all("details")]
    assert folded == [False, False, True, True, True, True, True, True]
    for text in ("lr: float = 1e-3  # rate", "2 < 3", "Zero <division>", "print('a')"):
        assert text in page.text
    assert page.all("em") and page.all("td") and page.all("strong") and "<Figure>" not in page.text
    assert "rgba(1,2,3,.1)" in page.source.replace(" ", "")
    drawing, picture = page.all("img")
    assert drawing["src"] == "data:image/svg+xml,<svg/>"
    assert picture["src"] == f"data:image/png;base64,{PIXEL}"
    assert drawing["alt"] == picture["alt"] == "Picture under the heading “The table”"
    assert {"href": "index.html"} in page.all("a")


def test_hostile_notebook(tmp_path, undrawn):
    out = run(tmp_path / "run")
    bad = """<script>alert(1)</script><p onclick="alert(1)">kept</p><img src="https://x.example/a.png"><iframe></iframe>
    <a href="javascript:alert(1)">a</a><div style="background:url(//x.example/b);position:fixed;color:red">b</div>
    <div style="background:\\75rl(//x.example/c)">c</div><link rel=stylesheet href=//x.example/d>
    <style>@import 'e'</style>
    <svg onload="alert(1)"></svg><form action="https://x.example"></form><base href="https://x.example">"""
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
    stream = v4.new_output("stream", name="stderr", text=ATTACKS[1])
    error = v4.new_output("error", ename="E", evalue="", traceback=[ATTACKS[1]])
    notebook(
        out / "vae.ipynb",
        v4.new_markdown_cell(f"# {ATTACKS[0]}\n{bad}\n\n![x](https://x.example/y.png) [z](javascript:alert(1))"),
        shown(f"code = '{ATTACKS[0]}'", html=bad),
        shown("", markdown=bad),
        shown("", svg='<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'),
        shown("", png='"><script>alert(1)</script>'),
        shown("", **widget),
        shown("", **{"application/javascript": "alert(1)"}),
        shown("", **widget, **{"text/plain": "instead of a widget"}),
        *(v4.new_code_cell("", outputs=[output]) for output in (stream, error)),
        v4.new_raw_cell(bad, metadata={"raw_mimetype": "text/html"}),
        language_info={"name": "python", "pygments_lexer": '"><script>alert(1)</script>'},
        widgets={"application/vnd.jupyter.widget-state+json": {"state": {"1": {}}, "version_major": 2}},
    )
    report_page.build(out)
    page = Page(out / "vae.html")
    assert_harmless(page)
    assert page.text.count("kept") == 3 and page.text.count(ATTACKS[1]) == 2 and ATTACKS[0] in page.text
    assert "instead of a widget" in page.text and page.text.count("only a script could show") == 2


def test_building_again_renders_only_what_is_new(tmp_path, monkeypatch):
    out = run(tmp_path / "run", record())
    paths = [notebook(out / f"{name}.ipynb", v4.new_markdown_cell(f"# {name}")) for name in ("vae", "siamese")]
    monkeypatch.setattr(report_page.summary, "sentence", lambda _: "")
    before = Page(report_page.build(out)).drawings[-1]
    assert ">7.9 s</text>" in before and ">4.56 s</text>" not in before  # a label of the drawing
    run(out, record(config={"batch_size": 5120}, metrics={"epoch_s": metric(4.56)}))
    kept = paths[0].with_suffix(".html")
    made = kept.stat().st_mtime_ns
    kept.write_text("kept")
    os.utime(kept, ns=(made, made))
    notebook(paths[1], v4.new_markdown_cell("# changed"))
    os.utime(paths[1], (2**31, 2**31))
    after = Page(report_page.build(out)).drawings[-1]
    assert ">7.9 s</text>" in after and ">4.56 s</text>" in after
    assert kept.read_text() == "kept" and "changed" in paths[1].with_suffix(".html").read_text()
    # A notebook that cannot be rendered must not keep the page of the one that it replaced.
    paths[1].write_text("{")
    os.utime(paths[1], (2**30, 2**30))  # and though the clock went back
    page = Page(report_page.build(out))
    assert "The notebook cannot be rendered" in page.text and "siamese.html" not in page.source
    assert not paths[1].with_suffix(".html").exists() and '"vae.html"' in page.source

    def replace(draft, path):
        raise KeyboardInterrupt

    before = (out / "index.html").read_text()
    run(out, record(config={"batch_size": 9}))
    monkeypatch.setattr(os, "replace", replace)  # a page is replaced whole
    with pytest.raises(KeyboardInterrupt):
        report_page.build(out)
    assert (out / "index.html").read_text() == before


def test_no_folder_of_this_machine_is_shown(tmp_path, monkeypatch, undrawn):
    home = tmp_path / "jane"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(pomology.paths, "root", lambda: home / "pomology")
    out = run(home / "pomology" / "outputs" / "run", record())
    (out / "vae.jsonl").write_text(json.dumps({"schema": 99}))
    failure = v4.new_output("error", ename="E", evalue=f"no {home}/data", traceback=[])
    notebook(out / ".partial" / "dcgan.ipynb", v4.new_code_cell("", outputs=[failure]))
    notebook(out / "siamese.ipynb", v4.new_code_cell(f"out = '{out}'\nhome = '{home}'\nother = '{home}t'"))
    index = report_page.build(out).read_text()
    assert "jane" not in index and "no ~/data" in index and "vae.jsonl" in index
    text = Page(out / "siamese.html").text
    assert "out = './outputs/run'" in text and "home = '~'" in text
    assert text.count("jane") == 1 and "janet" in text  # another folder, which only begins so
    monkeypatch.setattr(report_page.Path, "home", lambda: Path("/"))
    assert pomology.paths.redact("/a/b") == "/a/b"


def test_a_shared_page_links_into_its_zip(tmp_path, undrawn):
    out = run(tmp_path / "run", record())
    notebook(out / "vae.ipynb", v4.new_markdown_cell("# VAE"))
    report_page.build(out)
    with zipfile.ZipFile(share.write(out)) as packed:
        names = {name.removeprefix("run/") for name in packed.namelist()}
        pages = {name: packed.read(f"run/{name}").decode() for name in names if name.endswith(".html")}
    assert set(pages) == {"index.html"} and "tables/vae-article.csv" in names
    assert set(re.findall(r'href="([^"#:]+)"', pages["index.html"])) <= names
    assert 'href="vae.html"' in (out / "index.html").read_text() and "vae.html" not in pages["index.html"]


def test_repeated_looks_of_a_drawing_have_names_and_are_the_same():
    marks = "<path style='fill:none;stroke:#123' d='M0 0' />" * 3 + "<path style='fill:red' d='M1 1' />"
    drawn = f"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'>{marks}</svg>"
    named = unquote(notebook_page.address(drawn.replace("'", '"')).removeprefix(notebook_page.PICTURE))
    sheet = "<style>.c0{fill:none;stroke:#123}</style>"
    assert sheet in named and named.count("fill:none") == 1
    assert named.replace(sheet, "").replace("class='c0'", "style='fill:none;stroke:#123'") == drawn
    for kept in (drawn.replace(marks, marks[:60]), drawn.replace("<svg", "<svg class='own'")):
        assert unquote(notebook_page.address(kept).removeprefix(notebook_page.PICTURE)) == kept.replace("'", "&#39;")


# In a browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    """Every kind of section: wide and long tables, figures, claims, what failed, and a notebook of everything."""
    out = tmp_path_factory.mktemp("pages") / "run"
    for name in ("vae", "transformer_lm", "mlp"):
        most = 50 if name == "mlp" else 5
        sizes = [record(name, case=f"{name} {size}", config={"batch_size": size}) for size in range(most)]
        run(out, *sizes, record(name, case="bad", status="out-of-memory", reason="w" * 300))
    long = "a remark of many words that goes on " * 8
    run(out, record("blas_torch", config={"operation": "matmul", "shape": "8x2000x2000"}, status="error", reason=long))
    rows = (report_table.Row((long[:70],) * 12, "measured"),) * 2
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" width="900pt" height="50pt"><path d="M0 0H9"/></svg>'
    stream = v4.new_output("stream", text="w" * 3000 + "\n" + long * 9)
    notebook(
        out / "vae.ipynb",
        v4.new_markdown_cell(f"# VAE\n\n{long}\n\n| a | b |\n|---|---|\n| {long} | `{'x' * 200}` |"),
        v4.new_code_cell("lr: float = 1e-3  # " + long, metadata={"tags": ["parameters"]}),
        shown("table", html=report_table.Table(long, tuple("abcdefghijkl"), rows)._repr_html_()),
        shown("figure", svg=drawing),
        v4.new_code_cell("print()", outputs=[stream]),
        language_info={"name": "python"},
    )
    (out / "tables").mkdir()
    (out / "tables" / "vae-article.csv").write_text("x")
    report_page.build(out)
    return out


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        yield opened
        opened.close()


# What is wider than its box, of what no box of its own lets scroll; and the luminance of a CSS colour, from 0 to 255.
TOO_WIDE = """() => [...document.querySelectorAll('main *')].filter(one =>
    !one.closest('svg, .scroll, .output, pre, .markdown table') && one.getClientRects().length
    && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 99))"""
GREY = """selector => ['color', 'fill', 'backgroundColor'].map(key =>
    getComputedStyle(document.querySelector(selector))[key]
    .match(/[\\d.]+/g)?.slice(0, 3).reduce((sum, one) => sum + one / 3, 0))"""


@needs_browser
@pytest.mark.parametrize(("width", "scheme"), [(375, "light"), (1280, "dark")])
@pytest.mark.parametrize("name", ["index", "vae"])
def test_pages_in_a_browser(whole_run, chromium, name, width, scheme):
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    address = (whole_run / f"{name}.html").as_uri()
    page.goto(address)
    for folded in page.query_selector_all("details:not([open]) summary"):
        folded.click()
    assert page.locator("details").count() > 2 and page.locator("details:not([open])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == width and page.evaluate(TOO_WIDE) == []
    assert told == [] and [one for one in asked if not one.startswith("data:image/")] == [address]

    for href in page.eval_on_selector_all("a[href]", "links => links.map(link => link.getAttribute('href'))"):
        if href.startswith("#"):
            assert page.evaluate("name => !!document.getElementById(decodeURIComponent(name))", href[1:]), href
        elif not href.startswith("https://"):
            assert (whole_run / unquote(href)).is_file(), href
    levels = [int(tag[1]) for tag in page.eval_on_selector_all("h1,h2,h3,h4", "all => all.map(one => one.tagName)")]
    assert levels[0] == 1 and all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert all(picture.get_attribute("alt") for picture in page.locator("img").all())

    text, _, ground = page.evaluate(GREY, "body")
    assert text > ground + 150 if scheme == "dark" else ground > text + 150
    if name == "index":
        wide = page.eval_on_selector_all("img.drawing", "all => all.map(one => one.getBoundingClientRect().width)")
        assert wide and min(wide) >= 600  # so that its words are 8 pixels high, also on a phone
        time = page.locator("#vae tr.measured td[data-main]").first
        shown = time.evaluate("one => getComputedStyle(one, '::after').display")
        assert (shown == "block") == (width == 375) and "7.9 s" in time.get_attribute("data-main")
        assert time.evaluate("one => one.getBoundingClientRect().right") < width
    if scheme == "dark":  # and on paper, which is white, does not scroll and shows what was folded
        page.reload()
        page.set_viewport_size({"width": 794, "height": 1123})
        page.emulate_media(media="print", color_scheme="dark")
        text, _, ground = page.evaluate(GREY, "body")
        assert (text, ground) == (0, 255) and page.evaluate("document.documentElement.scrollWidth") <= 794
        beyond = "all => all.filter(one => one.getBoundingClientRect().right > innerWidth + 1).length"
        assert page.eval_on_selector_all("td, pre, figure svg, figure img", beyond) == 0
        hidden = "all => all.filter(one => !one.checkVisibility()).length"
        assert page.eval_on_selector_all("details:not(.code, .more, .long) td", hidden) == 0
        long = page.locator("details.long:has(tr.published)")
        assert long.locator("tr.published").count() == long.locator("tr.published:visible").count()
        assert page.locator("tr.measured:visible").count() and not page.locator(".long tr.measured:visible").count()
    page.close()
