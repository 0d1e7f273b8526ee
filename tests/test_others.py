"""Other people's runs on this run's page: whose each row and mark is, and what they must not touch."""

from __future__ import annotations

import re
import zipfile

import pytest
from test_report import ATTACKS, MACHINE, Page, assert_harmless, metric, record, run

from pomology.__main__ import main
from pomology.articles import published
from pomology.report import compare, declaration, page, ranking, showing
from pomology.report.figures.style import COLOURS
from pomology.results.run import Run

SAME = {"processor": {"stepping": "8"}}
CANARY = {"before_s": 0.0005, "after_s": 0.0005}


def packed(place, *records, machine=None):
    """A shared zip of these cases."""
    folder = run(
        place.parent / f"{place.stem} folder", *records, machine=machine or MACHINE | SAME | {"chip": "Apple M10"}
    )
    with zipfile.ZipFile(place, "w") as file:
        for member in folder.iterdir():
            file.write(member, f"run/{member.name}")
    return place


def built(own, *beside):
    """The page with its section of the VAE alone, and the other parts that every page has."""
    return page.build(own, [declaration.of("vae")], beside)


@pytest.fixture
def own(tmp_path):
    return run(tmp_path / "own", record(chip="Apple M9", canary=CANARY), machine=MACHINE | SAME)


def test_rows_and_marks_of_others_are_named_and_the_run_s_own_numbers_stay(tmp_path, own, monkeypatch):
    before = Page(built(own))
    twice = record(
        chip="Apple M10", metrics={"epoch_s": metric(3.21, 3.2, 3.22), "step_s": metric(0.007)}, canary=CANARY
    )
    files = {file: file.read_bytes() for file in own.rglob("*.*") if file.name != "index.html"}
    theirs = packed(tmp_path / "Jo's run.zip", twice, record("siamese", chip="Apple M10"))
    after = Page(built(own, theirs))
    assert files == {file: file.read_bytes() for file in files}, "only the page is another one"
    # The ranking, which is above the articles, has a row of theirs, too.
    rows, alone = (
        re.findall(r'<tr class="(\w+)"><td[^>]*>([^<]*)</td>(.*?)</tr>', page.source.split('id="vae"')[1])
        for page in (after, before)
    )
    (row,) = [row for row in rows if row[0] == "other"]
    assert row[1].startswith("Apple M10 (Jo&#x27;s run) GPU (PyTorch") and "3.21 s" in row[2]
    assert [row for row in rows if row[0] != "other"] == alone, "rows and verdicts of the run itself"
    assert re.search(r"<dl.*?</dl>", before.source, re.DOTALL)[0] in after.source
    assert (
        "Jo's run: Apple M10, 8 cores" in after.text and "not shown, since this run lacks them: siamese." in after.text
    )
    assert "It is not shown to be the machine of this page (chip Apple M9 and Apple M10)." in after.text
    (drawn,) = [one for one in after.drawings if "(Jo's run)" in one.replace("&#39;", "'")]
    assert COLOURS["other people's machines"].lower() in drawn.lower() and "other people's machines" in drawn.replace(
        "&#39;", "'"
    )
    assert not any("Jo" in one for one in before.drawings)
    monkeypatch.delattr(showing, "draw")  # a figure of the same numbers stands
    assert Page(built(own, theirs)).drawings == after.drawings


def test_a_second_run_of_this_machine_is_called_one(tmp_path, own):
    again = run(tmp_path / "again", record(chip="Apple M9", canary=CANARY), machine=MACHINE | SAME)
    page_of = Run(own)
    page_of.others = compare.beside([again], page_of)
    assert compare.beside_notes(page_of)[1].endswith("1 cases. It is the machine of this page, in another run.")


def test_two_runs_of_one_name_are_told_apart(tmp_path, own):
    places = [run(tmp_path / folder / "b", record(chip="Apple M10")) for folder in ("x", "y")]
    found = compare.beside(places, Run(own))
    assert [other.records[0].chip for other in found] == ["Apple M10 (b)", "Apple M10 (b, 2)"]


def test_a_figure_without_marks_of_others_says_so(tmp_path):
    own, theirs = (run(tmp_path / name, record()) for name in ("own", "b"))
    for beside, said in (((), 0), ((theirs,), 1)):
        abouts = [declaration.of(name) for name in ("vae", "roofline")]
        captions = re.findall("<figcaption>(.*)</figcaption>", page.build(own, abouts, beside).read_text("utf-8"))
        assert [page.OF_THIS_MACHINE in caption for caption in captions].count(True) == said
        assert page.OF_THIS_MACHINE not in next(caption for caption in captions if "Seconds per epoch" in caption)


def test_claims_are_judged_without_others(tmp_path, undrawn):
    """This machine has a GPU only; with another's processor a claim on both could be judged, wrongly."""
    about = next(claim for claim in published.claims() if claim.experiments == ("vae",))
    own = run(tmp_path / "own", record())
    theirs = run(tmp_path / "b", record(backend="cpu", device="cpu", chip="Xeon"))
    verdicts = []
    for beside in ((), (theirs,)):
        source = built(own, *beside).read_text(encoding="utf-8")
        verdicts.append(re.findall(rf"<tr[^>]*><td[^>]*>{about.id}</td>.*?</tr>", source))
    assert verdicts[0] and verdicts[0] == verdicts[1]


def test_what_strangers_send_is_shown_and_does_nothing(tmp_path, own):
    attack = " ".join(ATTACKS) + "\x1b[31m\u202e\x07"
    about = {"chip": attack, "reason": attack, "note": attack, "data_origin": attack, "flags": [attack]}
    huge = record(metrics={"epoch_s": metric(1e299), "step_s": metric(1e-299)}, case="huge", **about)
    many = [record(config={"batch_size": number}, case=f"c{number}", **about) for number in range(50)]
    theirs = packed(tmp_path / 'b" onload=x.zip', huge, record(**about), *many, machine={"chip": attack, "os": attack})
    shown = Page(built(own, theirs))
    assert_harmless(shown)
    assert "alert(1)" in shown.text and "more rows are not shown" in shown.text
    assert not {"\x1b", "\x07", "\u202e"} & {*shown.source}
    assert shown.source.count('<tr class="other">') == 40 + 1, "and one in the ranking"
    assert len(shown.source) < 500_000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone away.zip", "WITH: gone: no such run"),
        ("'gone away.zip'", "WITH: gone away.zip: no such run"),
        ("'open", "WITH='open: No closing quotation"),
        ("own", "WITH=own: is the run whose page this is"),
        ("text.zip", "text.zip: not the zip of a run"),
        ("empty", "WITH=empty: no case has ended in it"),
        (" ".join(["b"] * 2 + [f"b{n}" for n in range(8)]), "WITH: 9 runs; a page shows at most 8"),
    ],
)
def test_what_is_no_run_is_one_line_before_anything_is_built(tmp_path, own, monkeypatch, capsys, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.zip").write_text("text")
    run(tmp_path / "empty")
    for number in ("", *range(8)):
        run(tmp_path / f"b{number}", record())
    assert main(["report", "own", "--with", name]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (own / "index.html").exists()


def test_names_with_spaces(tmp_path, own, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    place, asked = packed(tmp_path / "my run.zip", record(chip="Apple M10")), []
    monkeypatch.setattr(
        page, "build", lambda out, beside: asked.append((out.name, [each.resolve() for each in beside]))
    )
    for given in (["--with", "my run.zip"], ["--with='my run.zip'"], ["--with", "'my run.zip'"]):
        assert main(["report", "own", *given]) == 0, capsys.readouterr().err
    assert asked == [("own", [place])] * 3


def test_the_ranking_has_others_and_its_sentences_do_not():
    """Another's machine is a row, and can be held against; this machine is still held against the published ones."""
    records = [
        record(metrics={"epoch_s": metric(4.0)}),
        record("siamese", metrics={"epoch_s": metric(50.0)}, config={"batch_size": 64}),
    ]
    theirs = [one.replace(chip="Apple M10 (b)") for one in records]
    alone, beside = ranking.Ranking(records), ranking.Ranking(records, [theirs])
    assert alone.sentences() == beside.sentences() and alone.usual == beside.usual and alone.here == beside.here != []
    (other,) = beside.references["Other people's machines"]
    rows = {place.source: place for place in beside.places(beside.usual) if place.source != "published"}
    assert rows["other"].device == other and rows["other"].mean == rows["measured"].mean
    mine = [place for place in beside.places(beside.usual) if place.source != "other"]
    assert mine == alone.places(alone.usual)


def test_a_page_that_cannot_be_made_again_stays(tmp_path, capsys):
    m9 = run(tmp_path / "m9", record(profile="smoke"), machine=MACHINE)
    assert main(["report", str(m9)]) == 0
    page = (m9 / "index.html").read_text()
    assert "Made of the journals alone" in page and '<section id="summary">' in page
    (m9 / "index.html").write_text(lost := page.replace('id="summary"', 'id="of-mine"'))
    capsys.readouterr()
    assert main(["report", str(m9)]) == 2 and (m9 / "index.html").read_text() == lost
    assert capsys.readouterr().err == "pomology: index.html stays as it is: of-mine cannot be made without a notebook\n"
