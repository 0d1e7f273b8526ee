"""Damaged files of runs, notebooks and parameters: one line each, whatever reads them.

Nothing that reads a run ends in a traceback, or with another status than 0, 1 or 2.
"""

import json
import os
import shutil
import warnings
import zipfile

import pytest
import records
from checkouts import notebook_text
from damage import documents, files, try_all
from hypothesis import strategies as some
from notebook_code import write_notebook

import pomology
from pomology.__main__ import main
from pomology.errors import PomologyError
from pomology.extras import collection, compare
from pomology.extras.collection import check
from pomology.report.display import Report
from pomology.report.table import Row, Table
from pomology.runner import notebooks, plan

EXAMPLES = pytest.mark.parametrize("examples", [4, pytest.param(16, marks=pytest.mark.long)])
COMMIT = "c0ffee" * 6 + "c0ff"
GPU = {"name": "NVIDIA A100", "memory_bytes": 2**36, "cores": None}
SOFTWARE = {"python": "3.11.9", "packages": {"torch": "2.14.1"}, "environment": {"OMP_X": "1"}}
SOFTWARE |= {"git": {"commit": COMMIT, "dirty": False}, "threads": 4}
MACHINE = {"chip": "AMD EPYC 7B13", "cpu": {"family": 25, "model": 1, "stepping": 1}}
MACHINE |= {"cpu_cores": 8, "cpu_threads": 16, "memory_bytes": 2**34, "gpus": [GPU, GPU]}
MACHINE |= {"os": "Linux", "os_version": "6.1", "profile": "quick", "left_out": {"blas": "why"}}
MACHINE |= {"architecture": "x86_64", "power_mode": None, "code": {"vae": "0a"}, **SOFTWARE}
MACHINE |= {"library": {"vae": "0b"}}
MACHINE |= {"software": {"a1": SOFTWARE}}
BLOCKS = {"epoch_steps": 40.0, "first_step_s": 0.2, "warmup": [[1, 0.1]], "steady": [[4, 0.4]] * 6}
BLOCKS |= {"ready": [[4, 0.4]], "last_step_s": None, "stopped": "budget"}
METRICS = {"epoch_s": records.metric(4.0, 3.9, 4.1), "step_s": records.metric(0.1, 0.09, 0.11)}
METRICS |= records.rate(1e9, 0.9e9, 1.1e9)
DETAILS = {"software": "a1", "blocks": {"training": BLOCKS}, "trace": [[0.5, 2**20, None]]}
DETAILS |= {"canary": {"before_s": 0.5, "after_s": 0.5}, "asides": {"save": [0.1]}, "note": "so"}
DETAILS |= {"memory_trace": {"columns": ["step"], "rows": [[1]]}, "absent": {"power_w": "none"}}


def lines(**more) -> list[dict]:
    """The cases of a run: a training, a check of the instrument, and a peak."""
    checked = {"config": {"check": "same thing twice"}, "article": "kit"}
    made = [
        records.record(metrics=METRICS, **DETAILS | more),
        records.record(
            "instrument_check", {"between_process_difference": METRICS["step_s"]}, **checked
        ),
        records.product(1e9, **more),
    ]
    return [one.line() | {"event": "end"} for one in made]


LINES = lines()
CONTENTS = {"name": "vae", "title": "VAE", "article": "003", "answer": "so", "opens_report": False}
SHARES = {"heading": "Times", "notes": ["a note"], "rows": [[{"Device": "a"}, {"device": "a"}]]}
SHARES |= {"rates": [[0, "cpu", "fp32", 1e9, 0.9e9, 1.1e9]], "file": "01-article"}
CONTENTS |= {"items": [SHARES, {"file": "02-more", "caption": "b", "folded": True, "notes": []}]}


def write(folder, data=None, machine=None) -> None:
    """A run of LINES; the journal of vae and machine.json may be others."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "machine.json").write_bytes(machine or json.dumps(MACHINE).encode())
    for line in LINES:
        place = folder / f"{line['experiment']}.jsonl"
        place.write_text(json.dumps(line) + "\n")
    if data is not None:
        (folder / "vae.jsonl").write_bytes(data)


@pytest.fixture
def say(capsys):
    """Run a command; return its status and what it printed. An error is one line."""

    def run(*arguments: str) -> tuple[int, str]:
        status = main(list(map(str, arguments)))
        said = capsys.readouterr()
        assert status in (0, 1, 2)
        assert said.err.count("\n") == (status == 2), said.err
        assert "process was killed" not in said.out
        return status, said.out + said.err

    return run


@pytest.fixture
def use(tmp_path, monkeypatch, say):
    """Read a run, in a folder or zip, by everything that reads runs, next to a sound one."""
    for module in (compare, collection):
        monkeypatch.setattr(module, "root", lambda: tmp_path)
    monkeypatch.setattr(compare, "in_checkout", lambda: False)
    write(tmp_path / "sound")
    faster = [line | {"chip": "Apple M9"} for line in lines(repeat=1)]
    (tmp_path / "sound" / "vae.jsonl").write_text(json.dumps(faster[0]))

    def read(run) -> str:
        texts = [say("compare", tmp_path / "sound", run)[1]]
        if run.is_dir():
            texts.append(say("report", run, "--with", tmp_path / "sound")[1])
            say("share", run)
            (run.parent / f"{run.name}.zip").unlink(missing_ok=True)
        else:
            texts.append(say("report", tmp_path / "sound", "--with", run)[1])
            check.check(run).lines()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                pomology.load(run)
            except PomologyError as error:
                assert "\n" not in str(error)
        return "".join(texts)

    return read


@EXAMPLES
def test_damaged_journals(tmp_path, use, examples):
    """Eight lines of each are damaged; those of the other journals are sound."""
    cases = [line | {"case": f"{number}"} for number in range(8) for line in LINES]

    def try_one(lines: tuple[bytes, ...]) -> None:
        write(tmp_path / "mine", b"\n".join(lines))
        assert "compare.html" in use(tmp_path / "mine")  # the rest goes on

    try_all(some.tuples(*map(files, cases)), try_one, examples)


@EXAMPLES
def test_damaged_machines(tmp_path, use, examples):
    def try_one(data: bytes) -> None:
        write(tmp_path / "mine", machine=data)
        assert "compare.html" in use(tmp_path / "mine")

    try_all(files(MACHINE).filter(bool), try_one, examples)


@EXAMPLES
def test_damaged_contents_of_what_was_shown(tmp_path, say, examples):
    def try_one(data: bytes) -> None:
        write(tmp_path / "mine")
        for name in ("vae", "peaks"):
            shown = Report(name, article="003", out=tmp_path / "mine")
            shown.save(Table("Times", [Row({"Device": f"of {name}"}, {"device": "a"})]), "article")
        (tmp_path / "mine" / "shown" / "vae" / "about.json").write_bytes(data)
        assert say("report", tmp_path / "mine")[0] == 0
        assert "of peaks" in (tmp_path / "mine" / "index.html").read_text()

    try_all(files(CONTENTS), try_one, examples)


@some.composite
def zips(draw) -> dict[str, bytes] | bytes:
    """The files of a zip, of which one is damaged or has another name; or the bytes of one."""
    sound = {f"{line['experiment']}.jsonl": json.dumps(line).encode() for line in LINES}
    sound["machine.json"] = json.dumps(MACHINE).encode()
    name = draw(some.sampled_from(sorted(sound)))
    if draw(some.booleans()):
        sound[name] = draw(files(json.loads(sound[name])))
    else:
        letters = some.characters(codec="utf-8", exclude_characters="\0")
        other = draw(some.text(letters, max_size=9))
        sound[other or "a/"] = sound.pop(name)
    return sound


@EXAMPLES
def test_damaged_zips(tmp_path, use, examples):
    place = tmp_path / "mine.zip"

    def try_one(drawn: tuple[dict[str, bytes], int]) -> None:
        members, cut = drawn
        with zipfile.ZipFile(place, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        if cut:
            data = bytearray(place.read_bytes())
            data[-cut % len(data)] ^= 0xFF
            place.write_bytes(data)
        use(place)

    try_all(some.tuples(zips(), some.just(0) | some.integers(1, 2000)), try_one, examples)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for module in (notebooks, plan):
        monkeypatch.setattr(module, "root", lambda: tmp_path)
    write_notebook(tmp_path, "zeta", notebook_text("zeta", 5), "lr: 0.2\n")
    write_notebook(tmp_path, "alpha", notebook_text("alpha", 5), "lr: 0.2\n")
    return tmp_path


def planned() -> None:
    """Plan a run of all notebooks, which only an error of one line ends."""
    try:
        jobs = plan.jobs("smoke", {"devices": "auto", "out": "x"})
    except PomologyError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        assert "alpha" in [job.name for job in jobs]


VALUES = {"profile": "smoke", "sizes": [1, 2], "lr": 0.2, "budget_s": 0.5, "devices": "cpu"}


@pytest.mark.parametrize("examples", [60, pytest.param(600, marks=pytest.mark.long)])
def test_damaged_parameters(checkout, examples):
    def try_one(data: bytes) -> None:
        (checkout / "params" / "smoke" / "zeta.yaml").write_bytes(data)
        planned()

    yaml = some.text(alphabet="ab: -[]{}&*!|>#\n\t'\"0", max_size=20).map(str.encode)
    try_all(files(VALUES) | yaml, try_one, examples)


@pytest.mark.parametrize("examples", [30, pytest.param(300, marks=pytest.mark.long)])
def test_damaged_notebooks(checkout, examples):
    (place,) = checkout.glob("notebooks/**/zeta.ipynb")
    sound = json.loads(place.read_text())

    def try_one(data: bytes) -> None:
        place.write_bytes(data)
        planned()

    try_all(
        files(sound) | documents(sound).map(lambda one: json.dumps(one).encode()), try_one, examples
    )


def loop(place) -> None:
    place.symlink_to(place)


@pytest.mark.parametrize("make", [os.mkfifo, loop], ids=["pipe", "link to itself"])
def test_what_is_no_file_is_named_and_nobody_waits_for_it(tmp_path, use, say, make):
    write(tmp_path / "mine")
    (tmp_path / "mine" / "shown" / "vae").mkdir(parents=True)
    for name in ("blas.jsonl", "vae.ipynb", "shown/vae/about.json", "index.html.part"):
        make(tmp_path / "mine" / name)
    use(tmp_path / "mine")
    page = (tmp_path / "mine" / "index.html").read_text()
    for words in ("blas.jsonl is not read: no journal", "vae.ipynb cannot be rendered: "):
        assert page.count(words) == 1
    assert page.count("shown/vae/about.json cannot be read") == 1
    make(tmp_path / "mine" / "vae.html")  # which is made again from the records
    status, said = say("share", tmp_path / "mine", "--notebooks")
    assert status == 2 and "git does not have the commit of this run" in said
    (tmp_path / "mine" / "machine.json").unlink()
    make(tmp_path / "mine" / "machine.json")
    assert "machine.json cannot be read, so the machine is unknown" in use(tmp_path / "mine")
    make(tmp_path / "other.zip")
    (line,) = check.check(tmp_path / "other.zip").lines()
    assert line.startswith("other.zip: refused: cannot be read: ") and str(tmp_path) not in line
    assert say("check-zip", tmp_path / "other.zip")[0] == 2


def test_a_folder_in_place_of_the_page_is_one_line(tmp_path, use, say):
    write(tmp_path / "mine")
    (tmp_path / "mine" / "index.html").mkdir()
    status, said = say("report", tmp_path / "mine")
    assert status == 2 and "index.html: cannot be written: it is a folder; remove it" in said


@pytest.mark.long
def test_a_collection_with_no_files_is_built(tmp_path, monkeypatch, say):
    monkeypatch.setattr(collection, "require_checkout", lambda _: None)
    loop(tmp_path / "a.zip")
    os.mkfifo(tmp_path / "b.zip")
    (tmp_path / "c.zip").mkdir()
    status, said = say("collect", "--folder", tmp_path)
    assert status == 1 and said.count(": refused: cannot be read: ") == 3
    monkeypatch.setattr(collection, "root", lambda: tmp_path)
    (tmp_path / "collection").mkdir()
    loop(tmp_path / "collection" / "d.zip")
    (tmp_path / "e.zip").write_bytes(b"junk")
    status, said = say("check-zip", tmp_path / "e.zip")
    assert status == 1 and said.startswith("e.zip: refused: cannot be read: ")
