"""How fast every device trains, against ratios worked out by hand from the articles' and made-up tables."""

from __future__ import annotations

import csv
import json
import math
import re
from types import SimpleNamespace

import pytest
from pomology.report.showing import Report
from records import metric, record, write

from pomology.articles import elsewhere, published
from pomology.errors import PomologyError
from pomology.report import declaration, page, speeds
from pomology.report.figures.ranking import on_an_axis, ranking_figure
from pomology.report.ranking import NOTHING, Ranking, compared, times_as
from pomology.results.run import Run


def epoch(seconds: float, experiment: str = "dcgan", batch_size: int = 64, **more):
    metrics = {"epoch_s": metric(seconds, 0.9 * seconds, 1.1 * seconds, "s")} | more.pop("metrics", {})
    return record(experiment, metrics, config={"batch_size": batch_size}, **more)


def place(records, device: str, against: str):
    return next(place for place in Ranking(records).places(against) if place.device == device)


HERE = "Apple M9 CPU"


def test_ratios_are_those_of_the_articles_tables():
    # DCGAN: 1942.078 / 285.473 and 1684.591 / 252.657 s; Siamese network: 353.208 / 39.839 and 197.937 / 20.538.
    beside = place([], "RTX 2070 Super", "M1 Ultra CPU")
    assert beside.ratios["dcgan"][0].value == pytest.approx((6.8030 * 6.6675) ** 0.5, rel=1e-4)
    assert beside.ratios["siamese"][0].value == pytest.approx((8.8659 * 9.6376) ** 0.5, rel=1e-4)
    # The autoencoder waits for its digits: shown, and in no mean.
    assert not beside.ratios["vae"][1] and beside.sound == len(beside.ratios) - 1 == 3
    others = [beside.ratios[name][0].value for name in ("dcgan", "siamese", "transformer_lm")]
    assert beside.mean == pytest.approx((others[0] * others[1] * others[2]) ** (1 / 3))
    # SimCLR: 405 and 29.4 s, but the A6000 multiplied in TF32, which a Mac has not.
    ratio, sound = place([], "RTX A6000", "M1 Pro GPU").ratios["simclr"]
    assert ratio.value == pytest.approx(405 / 29.4) and not sound


def test_this_machine_stands_where_it_did_the_same():
    theirs = 285.473
    beside = place([epoch(2 * theirs)], HERE, "RTX 2070 Super")
    ratio, sound = beside.ratios["dcgan"]
    assert sound and (ratio.value, ratio.low, ratio.high) == pytest.approx((0.5, 0.5 / 1.1, 0.5 / 0.9))
    assert beside.words() == "2.0× as long (one model)" and beside.software() == "PyTorch 2026"
    both = [epoch(2 * theirs), epoch(4 * 252.657, batch_size=1024)]  # the geometric mean of a half and a quarter
    assert place(both, HERE, "RTX 2070 Super").ratios["dcgan"][0].value == pytest.approx(8**-0.5)
    two = [*both, epoch(20.0, "siamese"), epoch(1e4, "dcgan", backend="mps")]
    known = Ranking(two)
    assert known.here == [HERE, "Apple M9 GPU"] and place(two, HERE, "Apple M9 GPU").ratios.keys() == {"dcgan"}
    # Repeats count once, and their interval is that between them.
    runs = [epoch(2 * theirs * times, repeat=number) for number, times in enumerate((0.9, 1.0, 1.1))]
    (own,) = [speed for speed in speeds.speeds(runs) if speed.source == speeds.MEASURED]
    assert own.runs == 3 and own.rate.covers == "repeats"
    assert "3 runs of each; none carries a flag" in Ranking(runs).sentences()[-1]


@pytest.mark.parametrize(
    "other",
    [
        epoch(9.0, batch_size=65),
        epoch(9.0, profile="smoke"),
        epoch(9.0, scaled=True),
        epoch(9.0, status="error", reason="broke"),
        epoch(9.0, precision="bf16"),
        epoch(9.0, flags=["other-way"]),
        epoch(0.0),
        record("dcgan", {"step_s": metric(1.0, unit="s")}, config={"batch_size": 64}),
        epoch(9.0, "of_somebody"),
    ],
)
def test_what_is_not_the_same_work_is_not_compared(other, tmp_path):
    assert Ranking([other]).here == [] and Ranking([other]).by_model().rows == ()
    if other.profile == "smoke":
        text = page.build(write(tmp_path / "run", [other])).read_text()
        assert NOTHING.split("(")[0] in text and 'class="ranking"' not in text


def test_a_ratio_is_said_as_people_do():
    said = [times_as(ratio) for ratio in (2.4, 1.004, 0.999, 0.12)]
    assert said == ["2.4× as fast", "as fast", "as fast", "8.3× as long"]
    assert compared([0.2, 0.05], "model", " times") == "10 times as long (2 models: 5.0 to 20)"
    assert compared([0.5, 8.0], "case") == "2.0× as fast (2 cases: 2.0× as long to 8.0× as fast)"


def test_a_time_with_a_serious_fault_is_hollow_and_in_no_mean():
    slow = {"compute_epoch_s": metric(1.0, unit="s")}
    for record_, words in (
        (epoch(4.0, metrics=slow), "loading data took longer than computing"),
        (epoch(4.0, flags=["swapping"]), "memory was short: the machine swapped"),
    ):
        known = Ranking([record_])
        (row,) = known.by_model().rows
        assert row.cells[2].startswith(f"no: {words}; PyTorch, one run")
        assert row.cells[1].startswith("(RTX 2070 Super 71× as long), (M1 Ultra CPU 490× as long)")
        assert place([record_], HERE, "RTX 2070 Super").words() == "(71× as fast (one model), doubtful)"
        assert known.sentences()[:-1] == [] and f"in no mean: DCGAN ({words})" in known.sentences()[-1]


def test_the_sentences_tell_the_ratios_and_on_how_few_steps_they_rest():
    few = {"flags": ["few-steps"], "metrics": {"compute_epoch_s": metric(1.0, unit="s")}}  # two thirds are computing
    times = [epoch(1.5, blocks={"training": {"steady": [[1, 0.5]] * 3}}, **few), epoch(1e4, batch_size=1024)]
    said, sure = Ranking(times[:1]).sentences()
    assert said.startswith(f"The {HERE} trains 190 times as fast as the RTX 2070 Super (one model)")
    assert "1 model at 1 setting that" in sure and "1 of the 1 are estimated from 3 steps a run" in sure
    only_first = times[0].replace(repeat=1, blocks={"training": {"steady": []}})
    assert "1 of the 1 are estimated from 3 steps a run" in Ranking([times[0], only_first]).sentences()[1]
    assert f"The {HERE} takes 40 times as long as the RTX 2070 Super" in Ranking(times[1:]).sentences()[0]
    assert "1 of the 2 are estimated from 3 steps a run" in Ranking(times).sentences()[1]


def line(device: str, value: float, **more) -> dict:
    about = {"source": "s", "row": "1", "workload": "w", "device": device, "role": "rival", "framework": "jax"}
    about |= {"year": "2024", "precision": "fp32", "config": '{"batch_size": 64}', "metric": "samples_per_s"}
    about |= {"value": str(value), "unit": "samples/s", "bound": "", "printed": "", "faults": "", "place": "p"}
    return about | {"checked": "text"} | more


@pytest.fixture
def elsewhere_has(monkeypatch):
    """Sets what others have published; the articles' tables stay."""
    cached, real = (elsewhere.workloads, elsewhere._rows, speeds._published), published.read

    def has(*lines: dict) -> None:
        for one in cached:
            one.cache_clear()
        titles = tuple({"id": name, "title": name} for name in {one["workload"] for one in lines})
        made = {"elsewhere.csv": lines, "workloads.csv": titles}
        monkeypatch.setattr(published, "read", lambda name: made.get(name) or real(name))

    yield has
    monkeypatch.undo()
    for one in cached:
        one.cache_clear()


def test_two_sources_are_compared_on_equal_terms_only(elsewhere_has):
    unlike = ({"precision": "amp"}, {"config": '{"batch_size": 32}'}, {"metric": "steps_per_s"}, {"workload": "v"})
    elsewhere_has(line("A", 100), line("B", 150, source="t"), *(line("C", 9, **one) for one in unlike))
    (a, b) = Ranking([]).places("A")[::-1]
    assert (a.device, b.device, b.mean) == ("A", "B", 1.5) and b.software() == "jax 2024" and b.role == "rival"
    # TF32 of both is the same work; of one alone it is not, nor is waiting for data of both.
    for faults, of_both, of_one in (("tf32", 1, 0), ("loader-bound", 0, 0), ("one-run few-steps", 1, 1)):
        elsewhere_has(line("A", 100, faults=faults), line("B", 150, faults=faults))
        assert Ranking([]).places("A")[0].sound == of_both
        elsewhere_has(line("A", 100), line("B", 150, faults=faults))
        assert Ranking([]).places("A")[0].sound == of_one
    # A batch size in words is another one on each device.
    largest = '{"batch_size": "largest that fits"}'
    elsewhere_has(line("A", 100, config=largest), line("B", 150, config=largest))
    assert Ranking([]).places("A")[0].sound == 0
    # Of two times of a device the sound one, then the faster one.
    elsewhere_has(line("A", 100), line("B", 900, faults="unclear"), line("B", 150), line("B", 120, source="t"))
    assert Ranking([]).places("A")[0].mean == 1.5
    # A time in minutes, and what a machine reports as its throughput.
    elsewhere_has(line("A", 2, metric="fit_s", unit="min", workload="vae"), line("A", 50, workload="vae"))
    mine = record("vae", {"fit_s": metric(60.0, unit="s"), "throughput": metric(25.0, unit="/s")}, {"batch_size": 64})
    assert place([mine], HERE, "A").ratios["vae"][0].value == pytest.approx((2 * 0.5) ** 0.5)


RATES, TIMES = {"samples_per_s", "tokens_per_s", "steps_per_s"}, {"step_s", "epoch_s", "fit_s", "pass_s"}
TIMES |= {"forward_s", "backward_s"}


def test_what_others_have_published_can_be_compared():
    rows, sources, workloads = elsewhere.rows(), elsewhere.sources(), elsewhere.workloads()
    raw = published.read("elsewhere.csv")
    assert len(rows) == len(raw) >= 5 and len({row["device"] for row in rows}) >= 5
    assert {row["source"] for row in rows} == sources.keys() and {row["workload"] for row in rows} == workloads.keys()
    assert len({(row["source"], row["row"]) for row in raw}) == len(raw)
    assert len({json.dumps({**row, "row": ""}) for row in raw}) == len(raw)  # no two are equal
    for source in sources.values():
        assert source["url"].startswith("https://") and source["author"] and source["licence"]
        assert re.match("20", source["date"])
    for row, read in zip(raw, rows, strict=True):
        assert row["checked"] and row["place"] and row["role"] in published.ROLES
        assert row["precision"] in elsewhere.PRECISIONS and {*row["faults"].split()} <= elsewhere.FAULTS.keys()
        assert re.fullmatch(r"20[12]\d", row["year"]) and 0 < read["si"] < math.inf
        assert row["metric"] in (RATES if row["unit"].endswith("/s") else TIMES)
        assert row["unit"].endswith("/s") or read["si_unit"] == "s"
        assert (row["role"] == "gpu") == bool(re.search(r"^M\d.* GPU", row["device"])), row["device"]
        size = read["config"].get("batch_size")
        assert f"batch {size}" in row["printed"] or "batch" not in row["printed"]
    # What one device is called is no other's name; the articles' devices are called as the sources' are.
    names = elsewhere.devices()
    assert not names.keys() & set(names.values()) and not names.keys() & {row["device"] for row in rows}


def test_the_reference_is_a_published_gpu_with_most_in_common_and_can_be_chosen(tmp_path):
    records = [epoch(500.0), epoch(50.0, "siamese"), epoch(50.0, "siamese", backend="mps")]
    known = Ranking(records)
    assert known.usual == "M1 Ultra GPU" and known.references["This machine"] == [HERE, "Apple M9 GPU"]
    report = Report.of(declaration.of("summary"), Run(write(tmp_path / "run", records)))
    table = report.ranking("RTX 2070 Super")
    assert table.columns[1] == "Trains, against the RTX 2070 Super"
    with open(tmp_path / "run" / "tables" / "summary-ranking.csv", encoding="utf-8") as file:
        speed = {row["device"]: float(row["speed"]) for row in csv.DictReader(file)}
    assert speed["RTX 2070 Super"] == 1 and list(speed.values()) == sorted(speed.values(), reverse=True)
    with pytest.raises(PomologyError, match=r"no device 'RTX 1' is in the ranking: .*M1 Ultra GPU"):
        report.ranking("RTX 1")
    empty = Report.of(declaration.of("summary"), Run(write(tmp_path / "empty", [])))
    assert NOTHING in empty.ranking().notes and "Nothing was measured" in empty.ranking_figure().data


def test_a_reader_finds_his_device_by_maker_and_kind():
    found = Ranking([]).references
    for kind, name in (
        ("NVIDIA, of servers", "T4"),
        ("NVIDIA, of workstations", "RTX A6000"),
        ("Apple GPUs", "M4 GPU"),
    ):
        assert any(one.startswith(name) for one in found[kind])
    assert {"Radeon VII", "MI210"} <= {*found["AMD and Intel GPUs"]} and "RTX 2070 Super" in found[
        "NVIDIA GeForce and Titan"
    ]
    assert [name for name in found["NVIDIA, of servers"] if name in ("A40", "A100", "A10")] == ["A10", "A40", "A100"]
    assert sum(map(len, found.values())) == len({name for names in found.values() for name in names}) > 100


def test_mlx_and_pytorch_are_compared_where_they_did_as_many_operations():
    def step(framework, seconds, flops=7, **more):
        metrics = {"step_s": metric(seconds, unit="s")}
        return record(f"vae_{framework}", metrics, framework=framework, flops_per_step=flops, **more)

    records = [step("torch", 1.0), step("mlx", 2.0)]
    (said,) = Ranking(records).frameworks()
    assert said == f"On the {HERE}, MLX takes 2.0 times as long as PyTorch (one case)."
    larger = [step(name, seconds, 9, config={"batch_size": 9}) for name, seconds in (("torch", 4.0), ("mlx", 0.5))]
    said = "trains 2.0 times as fast as PyTorch (2 cases: 2.0 times as long to 8.0 times as fast)"
    assert said in Ranking(records + larger).frameworks()[0]
    for other in ({"flops": 8}, {"profile": "smoke"}, {"precision": "bf16"}, {"chip": "Apple M8"}):
        assert Ranking([records[0], step("mlx", 2.0, **other)]).frameworks() == []


def test_marks_stand_where_the_ratios_are():
    places = Ranking([epoch(500.0)]).places("RTX 2070 Super")
    axis = on_an_axis(places)
    at = {place.device: dict(zip(place.ratios, marks, strict=True)) for place, marks, _ in axis.rows}
    # On a logarithmic axis equal ratios are equal distances: 285.473 to 500 s, and 285.473 to 1942.078.
    here, apple = (at[name]["dcgan"][0] - axis.origin for name in (HERE, "M1 Ultra CPU"))
    shares = Ranking([]).places("RTX 2070 Super")
    ratio = next(place for place in shares if place.device == "M1 Ultra CPU").ratios["dcgan"][0].value
    assert here / apple == pytest.approx(math.log(285.473 / 500) / math.log(ratio), rel=0.02)
    assert at["M1 Ultra CPU"]["vae"][1] == "△" and at["M1 Ultra CPU"]["dcgan"][1] == "▲" and at[HERE]["dcgan"][1] == "◆"
    assert all(0 <= place <= 100 for marks in at.values() for place, _ in marks.values())
    drawn = ranking_figure(places, "RTX 2070 Super").axes[0]
    ticks = [label.get_text() for label in drawn.get_yticklabels()]
    assert ticks == [place.device for place in places] and drawn.texts[0].get_text().startswith(places[0].words())


def test_the_page_begins_with_the_ranking_against_any_device(tmp_path, undrawn):
    text = page.build(write(tmp_path / "run", [epoch(500.0), epoch(50.0, "siamese")])).read_text()
    top = text[: text.index("<h2")]
    assert top.index(f'<p class="answer">The {HERE} ') < top.index('class="ranking"')
    links, targets = re.findall(r'href="#(against-\d+)"', text), re.findall(r'id="(against-\d+)"', text)
    assert links == targets and 0 < len(links) < len(Ranking([]).speeds)
    assert "<script" not in text and text.index("Model by model") < text.index("What may be trusted")


def test_the_page_stays_small_with_1200_rows_of_60_devices(elsewhere_has):
    lines = [
        line(f"Device {n % 60} GPU", 100 + n, workload=f"w{n % 23}", row=str(n), config=f'{{"batch_size": {n % 2}}}')
        for n in range(1240)
    ]
    elsewhere_has(*lines)
    known = page._ranked(SimpleNamespace(records=[epoch(500.0)], others=[], machine={}))
    empty = dict.fromkeys(("software", "left"), page.Table("", (), ()))
    made = page.filled("run.html.j2", title="", ranked=known, trust=[], facts=[], **empty)
    assert (
        len(known["against"]) == 3 and sum(map(len, Ranking([]).references.values())) > 75
    )  # who did its work, or all
    assert len(made) < 450_000
