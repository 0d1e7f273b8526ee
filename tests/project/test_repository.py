"""Public files: the committed runs, the pages that link them, and no personal data."""

import gzip
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pandas
import pytest
from macs import names_in

import pomology
from pomology import paths
from pomology.articles import claims
from pomology.errors import PomologyError
from pomology.extras.compare import comparison
from pomology.format import seconds, significant
from pomology.paths import root
from pomology.results import comparing
from pomology.results.record import STATUSES
from pomology.results.run import Run
from pomology.runner import notebooks

RUNS = sorted(place for place in root().glob("outputs/reference-*") if place.is_dir())
README = (root() / "README.md").read_text(encoding="utf-8")
# Not docs/log: its entries name files that have gone since.
PAGES = [root() / "README.md", root() / "CONTRIBUTING.md", *sorted((root() / "docs").glob("*.md"))]
PAGES += sorted((root() / "docs" / "how-to").glob("*.md"))
EXAMPLES = [("VAE", "vae", 128), ("Siamese", "siamese", 64), ("Transformer", "transformer_lm", 20)]
# Split so that this file does not match itself.
FORBIDDEN = {
    r"\.\./" + "shared": "a folder outside of the repository",
    # Tests use these invented names.
    r"/(?:home|Users|work|root|opt(?!/homebrew))/(?!(?:jo|john|jane|you)\b)\w": "a person's path",
    r"https?://[^/\s\"'<>)]*(?:pypi|pythonhosted|registry|mirror)": "a registry",
    r"https?://[^/\s\"'<>)]*(?:artifactory|nexus|devpi)": "a registry",
    # The option with an address.
    r"\b(?:index-" + r"url|find-" + r"links)\W{1,4}(?:\w+:/|/|\w+\.\w)": "a registry",
}


@pytest.mark.skipif(not (root() / ".git").exists(), reason="no checkout with git")
def test_no_file_names_a_machine_or_a_registry_and_no_two_differ_only_by_case():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root(), capture_output=True, check=True).stdout.decode()
    names = [name for name in listed.split("\0") if name and (root() / name).is_file()]
    for name in names:
        text = (root() / name).read_bytes().decode("utf-8", errors="replace")
        found = [why for pattern, why in FORBIDDEN.items() if re.search(pattern, text)]
        assert not found, f"{name}: {found}"
    places = {*names, *(str(parent) for name in names for parent in Path(name).parents)}
    assert len({place.casefold() for place in places}) == len(places)  # a Mac ignores case


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    files = set(re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|csv|md))`", text))
    files -= set(re.findall(r"^`([\w./-]+)`", text, re.MULTILINE))  # which it tells to write
    places = [root(), root() / "lib" / "pomology", page.parent]
    assert not {file for file in files if not any((place / file).exists() for place in places)}


def test_the_readme_leads_to_a_run_without_a_gpu_and_shows_its_numbers():
    assert RUNS and all(f"outputs/{folder.name}/" in README for folder in RUNS)
    lines = [line.split(" | ") for line in README.splitlines() if line.startswith("| ")]
    rows_of_page = {line[0].removeprefix("| "): line[1:] for line in lines}
    for model, name, batch in EXAMPLES:
        (path,) = (root() / "outputs" / "reference-cpu").glob(f"shown/{name}/*-article.csv")
        rows = pandas.read_csv(path)
        rows = rows[rows.batch_size.eq(batch) & rows.epoch_s.notna()].drop_duplicates("device")
        assert " | ".join(rows_of_page["model"]) == " | ".join(rows.device) + " |"
        *published, here = rows_of_page[f"{model}, batch {batch}"]
        assert published == [*map(seconds, rows.epoch_s[:-1])]
        measured = rows.iloc[-1]
        bounds = f"{significant(measured.epoch_s_low)} to {significant(measured.epoch_s_high)}"
        time, how = seconds(measured.epoch_s), measured.epoch_s_how
        ranges = (f"{time} ({bounds}), {how}", f"{time} ({bounds} seen), {how}")
        assert here.startswith(ranges)


def test_the_readme_counts_the_published_results():
    rows = pomology.published()
    numbers = rows["value"].notna().sum()
    assert f"has {len(rows):,} published rows, {numbers:,} of them with a number" in README


def test_words_of_the_report_that_a_page_quotes_are_in_the_report():
    page = (root() / "docs" / "apple-silicon.md").read_text(encoding="utf-8")
    quoted = re.findall(r'(?<![=\w])"([^"]+)"', page)
    report = (root() / "outputs/reference-cpu/index.html").read_text(encoding="utf-8")
    assert quoted and not [text for text in quoted if text not in report]


def test_make_docs_names_the_line_that_a_new_notebook_needs(monkeypatch):
    lines = paths.read_csv(root() / "docs" / "experiments.csv")
    without = [line for line in lines if line["notebook"] != "vae"]
    script = runpy.run_path(str(root() / "setup" / "docs.py"))
    monkeypatch.setattr(paths, "read_csv", lambda _: without)
    message = "docs/experiments.csv has no line for vae.ipynb: add vae,MODEL,DATA"
    with pytest.raises(PomologyError, match=message):
        list(script["experiments"]())


def test_generated_tables_are_current_and_statuses_and_verdicts_are_explained():
    for path, text in runpy.run_path(str(root() / "setup" / "docs.py"))["pages"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run make docs"
    page = (root() / "docs" / "reading-a-report.md").read_text(encoding="utf-8")
    names = re.findall("`(.*?)`", " ".join(re.findall(r"^\| (`.*?)\|", page, re.MULTILINE)))
    statuses, verdicts = names[names.index("ok") :], names[names.index("supported") :][:12]
    assert statuses[: len(STATUSES)] == list(STATUSES)
    sources = (claims.__file__, comparison.__file__, comparing.__file__)
    source = "".join(Path(path).read_text() for path in sources)
    assert all(f'"{name}' in source for name in verdicts) and "must not be compared" in verdicts


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
class TestReference:
    def test_it_is_complete_and_of_clean_code(self, folder):
        run = Run(folder)
        assert not run.problems
        assert not [problem for each in run.journals.values() for problem in each.problems]
        assert {record.profile for record in run.records} == {"quick"}
        assert {record.scaled for record in run.records} == {True, False}
        statuses = {record.status for record in run.records}
        assert statuses <= {"ok", "too-big", "too-slow", "unsupported"}
        executed = {place.stem for place in folder.glob("*.ipynb")}
        expected = {
            notebook.name
            for notebook in notebooks.notebooks(skipped={})
            if f"reference-cpu/{notebook.name}.ipynb" in notebook.path.read_text()
        }
        assert executed == expected
        assert run.machine["git"]["dirty"] is False
        assert re.fullmatch("[0-9a-f]{40}", run.machine["git"]["commit"])

    def test_its_notebooks_name_no_person(self, folder):
        for place in folder.glob("*.ipynb"):
            text = place.read_text(encoding="utf-8")
            named = {*names_in(text)} - {"/root", *paths.USUAL_NAMES}
            assert not named, place.name


def test_a_published_run_has_every_file_to_which_its_report_leads(tmp_path):
    run, target = tmp_path / "run", tmp_path / "reference"
    files = ("machine.json", "vae.ipynb", "vae.html", "vae.jsonl", "shown/vae/01-article.csv")
    for name in (*files, "shown/vae/01-article.html", "results.parquet", ".lock", ".partial/x"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    links = ("vae.html", "shown/vae/01-article.csv", "vae.jsonl")
    page = "".join(f'<a href="{name}">{Path(name).name}</a>' for name in links)
    (run / "index.html").write_text(page)
    target.mkdir()
    (target / "of_an_earlier_run.ipynb").touch()
    (target / "SOURCES.md").write_text("MNIST")
    runpy.run_path(str(root() / "setup" / "reference.py"))["publish"](run, target)
    published = (target / "index.html").read_text()
    assert '<a href="vae.jsonl.gz">vae.jsonl.gz</a>' in published
    assert all((target / link).is_file() for link in re.findall('href="([^"]+)"', published))
    names = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert names == {*files, "index.html", "vae.jsonl.gz", "SOURCES.md"} - {"vae.jsonl"}
    assert gzip.decompress((target / "vae.jsonl.gz").read_bytes()) == b"vae.jsonl"


def test_results_of_a_published_run_follow_its_journals_and_the_code_of_today(tmp_path):
    refreshed = runpy.run_path(str(root() / "setup" / "reference.py"))["refreshed"]
    reference = root() / "outputs" / "reference-cpu"
    shutil.copy(reference / "machine.json", tmp_path)
    shutil.copy(reference / "vae.jsonl.gz", tmp_path)
    executed = notebooks.read_notebook(reference / "vae.ipynb")
    path = root() / "notebooks" / "m1_ultra_vs_rtx_2070" / "vae.ipynb"
    cells = {cell["id"]: cell for cell in refreshed(executed, path, tmp_path)["cells"]}
    (answered,) = [cell for cell in cells.values() if "experiment.answer(" in str(cell["source"])]
    (output,) = answered["outputs"]
    assert output["data"]["text/markdown"].startswith("**On this machine.** Time per epoch at ")
    kept = [cell for cell in executed["cells"] if "Experiment(" in str(cell["source"])]
    assert kept and all(cells[cell["id"]]["outputs"] == cell["outputs"] for cell in kept)
    model = next(cell for cell in executed["cells"] if "class VAE" in str(cell["source"]))
    model["source"] = "".join(model["source"]) + "# another model\n"
    with pytest.raises(PomologyError, match=f"cell {model['id']} has changed; measure anew"):
        refreshed(executed, path, tmp_path)
