"""The report of a run: it joins what was shown; it makes, runs and fetches nothing."""

import json
import os
import shutil
from pathlib import Path

import nbformat
import pytest
import records
from bs4 import BeautifulSoup
from nbformat import v4
from records import write

import pomology.paths
from pomology.errors import PomologyError
from pomology.measure.estimate import Estimate
from pomology.paths import read_csv
from pomology.report import article, figures
from pomology.report import page as report_page
from pomology.report.display import Report
from pomology.report.table import Row, Table

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
MACHINE = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "python": "3.11.9"}
MACHINE |= {"os": "macOS", "git": {"commit": "c0ffee" * 7, "dirty": True}}


def record(experiment="vae", **changes):
    metrics = {"epoch_s": Estimate(7.89, "s", 7.5, 8.25, 9), "step_s": Estimate(0.0168, "s", n=9)}
    return records.record(experiment, **{"backend": "mps", "metrics": metrics} | changes)


def table(*rows: tuple[str, ...]) -> Table:
    lines = [Row({"Device": name, "Value": value}, {"device": name}) for name, value in rows]
    return Table("Times", lines, ["A note of all."])


def figure():
    drawn = figures.figure_of(4, 2)
    drawn.subplots().plot([1, 2], label="a <line>")
    return drawn


def notebook(path: Path, *cells) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    nbformat.write(v4.new_notebook(cells=list(cells)), path)


def output(kind: str, text: str):
    return v4.new_code_cell("shown", outputs=[v4.new_output("display_data", {kind: text})])


def read(path: Path) -> BeautifulSoup:
    """What a browser would see: elements with their attributes, and the text between them."""
    text = path.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    return BeautifulSoup(text, "html.parser")


def assert_asks_nobody(page: BeautifulSoup) -> None:
    assert not page(["script", "iframe", "object", "embed", "link", "base", "form"])
    for element in page(True):
        assert not [name for name in element.attrs if name.startswith("on")]
        assert element.get("src", "data:image/").startswith("data:image/")
    assert "default-src 'none'" in str(page)  # a browser enforces the same


def test_the_page_has_what_was_shown_in_its_order(tmp_path):
    out = write(tmp_path / "run", [record(), record("siamese"), record("dcgan")], MACHINE)
    for name in ("vae", "siamese", "dcgan"):
        display = Report(name, article="003", title=f"The {name}", out=out)
        display.show(table((name, "7.9 s")), "article")
        display.show(figure(), "figure", caption=f"Figure of {name}")
        display.show(table(("all numbers", "1 s")), "details", folded=True)
    opening = Report("summary", article="kit", title="All", opens_report=True, out=out)
    opening.show(table(("first of all", "2 s")), "ranking")
    page = read(report_page.build(out))
    assert_asks_nobody(page)
    names = [section["id"] for section in page("section")]
    assert names == ["summary", "dcgan", "siamese", "vae"]  # what opens the report, then the rest
    assert page.text.index("first of all") < page.text.index("c0ffeec0ff, with changes")
    vae = str(page).split('id="vae"')[1]
    places = [vae.index(text) for text in ("<details", "Figure of vae", "</summary>", ">vae<")]
    assert places == sorted(places) and vae.count("data:image/svg") == 1
    assert vae.index(">vae<") < vae.index("all numbers")
    assert {"shown/vae/01-article.csv", "vae.jsonl"} <= {link["href"] for link in page("a")}
    assert "Apple M9, 8 cores" in page.text and page.text.count("A note of all.") == 1


def test_a_folded_part_has_its_question_answer_and_figure(tmp_path):
    out = write(tmp_path / "run", [record()], MACHINE)
    title = f"# VAE\n\n**Question.** How *long* is [an epoch](x.md)? {ATTACK}\n\n**Finding.** Long."
    notebook(out / "vae.ipynb", v4.new_markdown_cell(title))
    display = Report("vae", article="003", out=out)
    display.answer("It takes 7.9 s.")
    display.show(figure(), "figure")
    page = read(report_page.build(out))
    assert_asks_nobody(page)
    (summary,) = page.select("#vae > details > summary")
    assert summary.select_one(".question").text.startswith("How long is an epoch? ")
    assert "Finding" not in summary.text and "It takes 7.9 s." in summary.text
    assert len(summary("img")) == len(page("img")) == 1
    for broken in ("", "{}", "[1]", '{"cells": []}', '{"cells": [{"source": 5}]}'):
        (out / "vae.ipynb").write_text(broken)
        assert report_page.question(out / "vae.ipynb") == ""


def test_all_shares_of_a_page_are_of_the_peaks_of_the_whole_run(tmp_path):
    """`peaks` comes early and `blas` late: a later peak counts for all tables."""
    out = tmp_path / "run"
    training = records.record("vae", records.rate(50e9, 40e9, 60e9))
    write(out, [records.product(100e9, experiment="peaks"), training], MACHINE)
    for name in ("vae", "peaks"):
        Report(name, columns=["flops_per_s"], figure="flops_per_s", out=out).table()
    shown = out / "shown"
    assert "Share of best" not in (shown / "vae" / "01-article.html").read_text()
    # A memory-bound operator is no peak, however fast it is.
    write(out, [records.product(900e9, experiment="blas", operation="matvec")])
    for rate, expected in ((100e9, [50, 100]), (200e9, [25, 50])):
        write(out, [records.product(rate, experiment="blas", shape=str(rate))])
        report_page.build(out)
        shares = []
        for name in ("vae", "peaks"):
            *_, row = read_csv(shown / name / "01-article.csv")
            shares.append(round(100 * float(row["share_of_best"])))
            assert f"<td>{shares[-1]}" in (shown / name / "01-article.html").read_text()
        assert shares == expected
        assert "fastest matmul or convolution" in read(out / "index.html").text


def test_each_execution_replaces_what_the_one_before_has_shown(tmp_path):
    out = write(tmp_path / "run", [record()], MACHINE)
    first = Report("vae", article="003", out=out)
    first.show(table(("first try", "1 s")), "article")
    first.show(figure(), "figure")
    second = Report("vae", article="003", out=out)
    second.show(table(("second try", "2 s")), "article")
    second.show(table(("new", "3 s")), "article")  # a cell that was run again
    files = sorted(place.name for place in (out / "shown" / "vae").iterdir())
    assert files == ["01-article.csv", "01-article.html", "about.json"]
    text = read(report_page.build(out)).text
    assert "new" in text and "try" not in text


def test_journals_without_notebooks_are_plain_tables(tmp_path):
    lost = record(case="big", status="out-of-memory", reason="16 GB", metrics={})
    out = write(tmp_path / "run", [record(flags=["contended"]), lost], MACHINE)
    page = read(report_page.build(out))
    ended = "2 cases: 1 measured, 1 out of memory; of the measured 1 contended"
    for text in ("7.89 s", "out-of-memory", "16 GB", ended):
        assert text in page.text


def test_statuses_add_up_to_the_cases_and_flags_are_of_the_measured_ones():
    ended = [record(case=str(number), status="too-slow", flags=["busy"]) for number in range(2)]
    ended += [record(case=name, flags=["few-steps", "busy"]) for name in "ab"]
    ended += [record(case="c", flags=["few-steps"]), record(case="d")]
    ended.append(record(case="big", status="out-of-memory"))
    text = "4 measured, 2 too slow, 1 out of memory; of the measured 3 few steps, 2 busy"
    assert report_page.endings(ended) == f"7 cases: {text} (one may have several flags)"
    text = f"8 runs of 7 cases: {text.replace('4', '5', 1)} (one may have several flags)"
    assert report_page.endings([*ended, record(case="d", repeat=1)]) == text
    assert report_page.endings(ended[:1]) == "1 case: 0 measured, 1 too slow"


def test_the_page_states_the_run_to_run_variation(tmp_path):
    check = {"config": {"check": "same thing twice"}, "note": "two runs differ by up to 9 %"}
    check["metrics"] = {"between_process_difference": Estimate(0.0853, "")}
    for number, changes in enumerate(({}, {"profile": "smoke"}, {"status": "mismatch"})):
        case = record("instrument_check", **check | changes)
        page = read(report_page.build(write(tmp_path / str(number), [case], MACHINE)))
        (heading,) = page("dt", string="Run-to-run variation")
        words = heading.find_next("dd").text
        assert ("differ by less than 8.6 % on the GPU: smaller" in words) == (not changes)
        assert words.startswith("Not measured: ") == bool(changes)


def test_the_page_says_by_how_much_the_last_case_on_a_device_was_slowed(tmp_path):
    """By its own times: 0.131 s on the GPU, which took 0.1 s before; the CPU is fast again."""
    slow = {"before_s": 0.2, "after_s": 0.2, "device_before_s": 0.131, "device_after_s": 0.131}
    usual = {"before_s": 0.1, "after_s": 0.1, "device_before_s": 0.1, "device_after_s": 0.1}
    cpu = {"before_s": 0.1, "after_s": 0.1}
    cases = [
        record(case="a", started="2026-05-04T04:00:00Z", backend="mps", canary=usual),
        record(case="b", started="2026-05-04T05:00:00Z", backend="mps", canary=slow | cpu),
        record(case="c", started="2026-05-04T05:30:00Z", backend="cpu", canary=slow),
        record(case="d", started="2026-05-04T06:00:00Z", backend="cpu", canary=cpu),
    ]
    text = read(report_page.build(write(tmp_path / "run", cases, MACHINE))).text
    seen = "the calibration matmul on the GPU took 31 % longer than the run's fastest"
    assert f"Apple M9 GPU in PyTorch, last case: {seen}." in text and text.count("last case: ") == 1


def test_an_unfinished_run_says_what_is_missing(tmp_path):
    empty = read(report_page.build(write(tmp_path / "empty", [], None)))
    assert "No result yet." in empty.text
    assert "machine.json is missing" in empty.text

    left_out = {"left_out": {"dcgan": "no time"}}
    out = write(tmp_path / "half", [record("siamese")], MACHINE | left_out)
    notebook(out / ".partial" / "vae-mlx-1.ipynb", v4.new_code_cell("import x"))
    page = read(report_page.build(out))
    assert "vae-mlx-1 is running, or was stopped" in page.text
    assert "dcgan was skipped: no time. Continue with: make reproduce RUN=half" in page.text
    with pytest.raises(PomologyError, match="nowhere: "):
        report_page.build(tmp_path / "nowhere")


def test_a_table_of_an_older_version_is_shown_without_the_style_in_its_file(tmp_path):
    out = write(tmp_path / "run", [record()], MACHINE)
    shown = table(("here", "7.9 s"))
    Report("vae", article="003", out=out).show(shown, "article")
    new = report_page.build(out).read_text(encoding="utf-8")
    old = f'<!DOCTYPE html><meta charset="utf-8">{shown.html(styled=True)}'
    (out / "shown" / "vae" / "01-article.html").write_text(old, encoding="utf-8")
    assert report_page.build(out).read_text(encoding="utf-8") == new


def test_other_peoples_runs_stand_after_this_one(tmp_path):
    out = write(tmp_path / "run", [record()], MACHINE)
    Report("vae", article="003", out=out).show(table(("here", "7.9 s")), "article")
    slow = {"epoch_s": Estimate(99.0, "s")}
    other = write(tmp_path / "friend", [record(metrics=slow)], MACHINE | {"chip": "M1"})
    page = read(report_page.build(out, [other]))
    assert page.text.index("7.9 s") < page.text.index("99.0 s")


def test_hostile_texts_are_shown_and_do_nothing(tmp_path):
    fields = {"case": ATTACK, "chip": f"$\\frac{ATTACK}$", "flags": [ATTACK], "reason": ATTACK}
    stranger = record("stranger", article=ATTACK, config={ATTACK: ATTACK})
    cases = [record(status="error", **fields), stranger]
    out = write(tmp_path / "run", cases, MACHINE | {"chip": ATTACK, "left_out": {ATTACK: ATTACK}})
    report = Report("vae", article="003", title=ATTACK, out=out)
    report.show(Table(ATTACK, [Row({ATTACK: ATTACK, "b": "&lt;"})], [ATTACK]), "article")
    page = read(report_page.build(out))
    assert_asks_nobody(page)
    assert page.text.count("alert(1)") > 5 and page("td", string="&lt;")


def test_a_rendered_notebook_is_one_file_that_asks_nobody(tmp_path, monkeypatch):
    home = tmp_path / "jane"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(pomology.paths, "root", lambda: home / "pomology")
    out = write(home / "pomology" / "outputs" / "run", [record()], MACHINE)
    parameters = v4.new_code_cell("lr: float = 1e-3", metadata={"tags": ["study"]})
    code = v4.new_code_cell(f"out = '{out}'")
    html = output("text/html", "<table><td>5</table>")
    svg = output("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg'><text>a</text></svg>")
    words = v4.new_markdown_cell("Here. ![A figure](../../outputs/reference/x.svg)")
    notebook(out / "vae.ipynb", parameters, code, html, svg, words)
    report_page.build(out)
    page = read(out / "vae.html")
    assert_asks_nobody(page)
    assert ["open" in about.attrs for about in page("details")] == [True, False, False, False]
    (image,) = page("img")
    assert image["src"].startswith("data:image/svg+xml,")
    assert "out = './outputs/run'" in page.text and "jane" not in str(page)
    # Only what is open is called so.
    assert "is timed is open" not in page.text
    model = v4.new_code_cell("class VAE(nn.Module):\n    pass")
    notebook(out / "vae.ipynb", parameters, code, model)
    report_page.build(out)
    said = " ".join(read(out / "vae.html").text.split())
    assert "The code of what is timed is open. Click" in said
    # A notebook that cannot be rendered is a line, and does not keep the page of an older one.
    (out / "vae.ipynb").write_text(json.dumps({"cells": 1}))
    index = read(report_page.build(out))
    assert "vae.ipynb cannot be rendered" in index.text
    assert not (out / "vae.html").exists()


def test_the_page_of_a_notebook_has_a_figure_as_drawing_where_it_was_saved(tmp_path):
    out = write(tmp_path / "run", [record()], MACHINE)
    report = Report("vae", out=out)
    data, metadata = report.save(figure(), "figure")._repr_png_()
    assert metadata["drawing"] == "01-figure" and metadata["alt"]
    picture = v4.new_output("display_data", {"image/png": data}, metadata={"image/png": metadata})
    for drawing, begins in (("01-figure", "image/svg+xml,<svg"), ("../vae", "image/png;base64,")):
        picture.metadata["image/png"]["drawing"] = drawing
        text = nbformat.writes(v4.new_notebook(cells=[v4.new_code_cell("f", outputs=[picture])]))
        page = report_page.rendered(text, "vae", out / "shown" / "vae")
        (image,) = BeautifulSoup(page, "html.parser")("img")
        assert image["src"].startswith(f"data:{begins}") and image["alt"] == metadata["alt"]
    saved = out / "shown" / "vae" / "01-figure.svg"
    saved.unlink()  # as in a published run
    page = report_page.rendered(text.replace("../vae", "01-figure"), "vae", saved.parent)
    assert "data:image/png" in page and "svg" not in page


def test_code_has_spans_for_what_is_coloured_only(tmp_path):
    text = nbformat.writes(v4.new_notebook(cells=[v4.new_code_cell("x = f(1)  # one <b>")]))
    page = report_page.rendered(text, "vae", tmp_path)
    assert 'x = f(<span class="mi">1</span>)  <span class="c1"># one &lt;b&gt;</span>' in page


def test_a_folded_step_is_named_by_what_it_defines_and_the_model_is_open():
    step = "def train_step(model):\n    pass\n\n\nrate = 1"
    assert report_page.code_label(step) == "code: train_step, rate"
    assert report_page.code_label("experiment.table()") == "code: the table"
    loop = "for case in to_run():\n    with case:\n        pass"
    assert report_page.code_label(loop) == "code: runs the cases"
    assert report_page.code_label("import torch") == "code: imports"
    assert report_page.code_label("digits = mnist(data)\nprint(digits)") == "code: digits"
    assert report_page.code_label("x.y = 1") == "code"
    opened = [step, "class VAE(nn.Module):\n    pass", "class P(LightningModule):\n    pass"]
    opened.append("def train(case):\n    pass")  # the loop that the clock times
    closed = ["def chosen(case):\n    pass", "import torch", "x = step(1)"]
    assert all(map(report_page.is_experiment, opened))
    assert not any(map(report_page.is_experiment, closed))


def test_source_of_the_kit_is_folded_unless_it_is_timed(tmp_path):
    from nbformat import v4, writes

    texts = ["def flops(width):\n    return width", "def step(model):\n    return model()"]
    outputs = [
        v4.new_output("display_data", data={"text/markdown": f"````python\n{text}\n````"})
        for text in texts
    ]
    cell = v4.new_code_cell("show(first, second)", outputs=outputs)
    page = report_page.rendered(writes(v4.new_notebook(cells=[cell])), "vae", tmp_path)
    folded, opened = page.split('<details class="code"')[1:]
    assert folded.startswith(">") and "source of the kit: flops" in folded
    assert opened.startswith(" open") and "source of the kit: step" in opened
    assert "show(" not in page


def test_lines_of_cases_are_one_print_which_is_folded_if_it_is_long(tmp_path):
    from nbformat import v4, writes

    lines = [v4.new_output("display_data", data={"text/plain": f"case {n}"}) for n in range(9)]
    other = v4.new_output("display_data", data={"text/html": "<p>table</p>", "text/plain": "t"})
    printed = v4.new_output("stream", text="counts\n")
    cells = [v4.new_code_cell("run()", outputs=[*lines, other, printed]), v4.new_markdown_cell("x")]
    page = report_page.rendered(writes(v4.new_notebook(cells=cells)), "vae", tmp_path)
    assert page.count('<pre class="output">') == 2 and "printed: 9 lines" in page
    assert "case 0\ncase 1" in page and "<p>table</p>" in page


def test_what_is_zero_in_all_cases_is_one_line_of_the_details():
    values = {"swap_bytes": Estimate(0, "B", n=1), "page_ins": Estimate(0, "count", n=1)}
    first = record(metrics=values | {"epoch_s": Estimate(1.0, "s")})
    second = record(metrics=values | {"page_ins": Estimate(3, "count")}, repeat=1)
    details = article.details_table([first, second])
    quantities = [row.cells["Quantity"] for row in details.rows]
    assert "Swap" not in quantities and "Page ins" in quantities
    assert details.notes[-1] == "Zero in all cases: Swap."


BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
BROWSERS += ["/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"]
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)  # none is downloaded
TOO_WIDE = """() => [...document.querySelectorAll('main *')].filter(one =>
    !one.closest('svg, .scroll, .output, pre') && one.getClientRects().length
    && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 99))"""


@pytest.mark.skipif(not BROWSER, reason="none of these browsers is here")
@pytest.mark.parametrize(("width", "scheme"), [(375, "light"), (1280, "dark")])
def test_the_page_fits_a_phone_and_asks_nobody(tmp_path, width, scheme):
    from playwright.sync_api import sync_playwright

    out = write(tmp_path / "run", [record()], MACHINE)
    display = Report("vae", article="003", out=out)
    wide = Table("A wide one", [Row(dict.fromkeys("abcdefghijkl", "some words of a cell"))] * 3)
    display.show(wide, "article")
    display.show(figure(), "figure", caption="A figure")
    address = report_page.build(out).as_uri()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(TOO_WIDE) == []
        assert [one for one in asked if not one.startswith("data:image/")] == [address]
        chromium.close()


@pytest.mark.parametrize(
    "damage",
    ["", "{", "{}", "[]", '{"name": "vae", "items": 3}', "\xff"],
    ids=["empty", "cut", "without fields", "list", "another type", "latin-1"],
)
def test_a_damaged_file_is_named_and_the_rest_of_the_page_is_made(tmp_path, damage):
    out = write(tmp_path / "run", [record(), record("dcgan")], MACHINE)
    for name in ("vae", "dcgan"):
        Report(name, article="003", out=out).show(table((name, "7.9 s")), "article")
    (out / "shown" / "vae" / "about.json").write_bytes(damage.encode("latin-1"))
    page = read(report_page.build(out)).text
    assert "shown/vae/about.json cannot be read: " in page
    assert page.count("7.9 s") == 1 and "vae" in page  # its records are still listed


def test_an_empty_file_and_a_link_to_itself_are_named(tmp_path, capsys):
    out = write(tmp_path / "run", [record()], MACHINE)
    Report("vae", article="003", out=out).show(table(("first", "1 s")), "article")
    (out / "shown" / "vae" / "01-article.html").write_bytes(b"")
    assert "lacks files that its about.json names: 01-article" in read(report_page.build(out)).text
    contents = out / "shown" / "vae" / "about.json"
    contents.unlink()
    contents.symlink_to(contents)
    assert "shown/vae/about.json cannot be read: " in read(report_page.build(out)).text
    (out / "blas.jsonl.gz").write_bytes(b"junk")
    report_page.build(out)
    assert "note: " not in capsys.readouterr().out  # after each notebook of a run
    report_page.build(out, told=True)
    said = capsys.readouterr().out
    for name in ("blas.jsonl.gz: ", "shown/vae/about.json "):
        assert said.count(f"note: run: {name}cannot be read: ") == 1


@pytest.mark.parametrize("place", ["shown", "shown/vae"])
@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_folder_in_the_place_of_one_is_named(tmp_path, place, make):
    out = write(tmp_path / "run", [record()], MACHINE)
    (out / place).parent.mkdir(exist_ok=True)
    make(out / place)
    page = read(report_page.build(out)).text
    assert page.count(f"{place} cannot be read: it is no folder.") == 1 and "vae" in page


def test_a_missing_file_and_a_damaged_machine_are_named(tmp_path):
    out = write(tmp_path / "run", [record()], MACHINE)
    display = Report("vae", article="003", out=out)
    display.show(table(("first", "1 s")), "article")
    display.show(table(("second", "2 s")), "details")
    (out / "shown" / "vae" / "01-article.html").unlink()
    for field, value in (("left_out", []), ("software", []), ("gpus", [1, 2]), ("chip", 3)):
        (out / "machine.json").write_text(json.dumps(MACHINE | {field: value}))
        page = read(report_page.build(out)).text
        assert "machine.json cannot be read, so the machine is unknown." in page
        lacks = "shown/vae/ lacks files that its about.json names: 01-article."
        assert page.count(lacks) == 1 and "second" in page
