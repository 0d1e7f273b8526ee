"""How fast every device trains, against ratios worked out from the tables by hand."""

import json

import pandas
import pytest
from records import metric, record

from pomology.articles import elsewhere, published
from pomology.errors import PomologyError
from pomology.extras.ranking import ranking, speeds
from pomology.results import frame

HERE = "Apple M9 CPU"


def epoch(seconds, experiment="dcgan", batch_size=64, **more):
    metrics = {"epoch_s": metric(seconds, 0.9 * seconds, 1.1 * seconds, "s")} | more.pop(
        "metrics", {}
    )
    return record(experiment, metrics, config={"batch_size": batch_size}, **more)


def of(*records, run="mine"):
    return frame.of_records(records).assign(run=run)


def beside(records, device, against):
    """The rows of a device by workload, with another at 1."""
    known = ranking.compared(speeds.speeds(of(*records)), against)
    return known[known.device.eq(device)].set_index("workload")


def test_ratios_are_those_of_the_articles_tables():
    # DCGAN: 1942.078 / 285.473 and 1684.591 / 252.657 s; Siamese network: 353.208 / 39.839 and
    # 197.937 / 20.538.
    rows = beside([], "RTX 2070 Super", "M1 Ultra CPU")
    assert rows.ratio["dcgan"] == pytest.approx((6.8030 * 6.6675) ** 0.5, rel=1e-4)
    assert rows.ratio["siamese"] == pytest.approx((8.8659 * 9.6376) ** 0.5, rel=1e-4)
    # The autoencoder waits for its digits: shown, and in no mean.
    assert not rows.sound["vae"] and rows.sound.sum() == len(rows) - 1 == 3
    others = rows.ratio[["dcgan", "siamese", "transformer_lm"]]
    assert rows["mean"].iloc[0] == pytest.approx(others.prod() ** (1 / 3))
    # SimCLR: 405 and 29.4 s, but the A6000 multiplied in TF32, which a Mac has not.
    row = beside([], "RTX A6000", "M1 Pro GPU").loc["simclr"]
    assert row.ratio == pytest.approx(405 / 29.4) and not row.sound


def test_this_machine_stands_where_it_did_the_same():
    theirs = 285.473
    row = beside([epoch(2 * theirs)], HERE, "RTX 2070 Super").loc["dcgan"]
    assert row.sound and row.ratio == pytest.approx(0.5)
    # The geometric mean of a half and a quarter.
    both = [epoch(2 * theirs), epoch(4 * 252.657, batch_size=1024)]
    assert beside(both, HERE, "RTX 2070 Super").ratio["dcgan"] == pytest.approx(8**-0.5)
    two = [*both, epoch(1e4, backend="mps")]
    assert list(beside(two, HERE, "Apple M9 GPU").index) == ["dcgan"]
    # Repeats count once.
    factors = (0.9, 1.0, 1.1)
    runs = [epoch(2 * theirs * factor, repeat=number) for number, factor in enumerate(factors)]
    known = speeds.speeds(of(*runs))
    (own,) = known[known.kind.eq("measured")].value
    assert own == pytest.approx(1 / (2 * theirs * 0.99 ** (1 / 3)))


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
def test_what_is_not_the_same_work_is_not_compared(other):
    assert "measured" not in set(speeds.speeds(of(other)).kind)
    assert ranking.sentences(of(other)) == []
    assert ranking.ranking_table(of(other)).notes == (ranking.NOTHING,)


def test_a_ratio_is_said_as_people_do():
    said = [ranking.times_as(ratio) for ratio in (2.4, 1.004, 0.999, 0.12)]
    assert said == ["2.4× as fast", "as fast", "as fast", "8.3× as long"]
    rows = pandas.DataFrame({"ratio": [0.2, 0.05], "sound": [True, True], "mean": [0.1, 0.1]})
    assert ranking.words(rows) == "10× as long (2 models: 5.0 to 20)"
    assert (
        ranking.words(rows.assign(sound=False)) == "(10× as long (2 models: 5.0 to 20), doubtful)"
    )
    (text,) = ranking.sentences(of(epoch(2 * 285.473)))
    assert text.startswith(
        f"The {HERE} trains the same model 2.0× as long as the RTX 2070 Super (one model)"
    )


@pytest.mark.parametrize(
    "more", [{"metrics": {"compute_epoch_s": metric(1.0, unit="s")}}, {"flags": ["swapping"]}]
)
def test_a_time_with_a_serious_fault_is_in_no_mean(more):
    known = [epoch(4.0, **more), epoch(20.538, "siamese", 1024)]
    rows = beside(known, HERE, "RTX 2070 Super")
    assert not rows.sound["dcgan"] and rows["mean"].iloc[0] == pytest.approx(rows.ratio["siamese"])
    assert "(DCGAN 71× as fast)" in str(ranking.ranking_table(of(*known), "RTX 2070 Super").rows)


def test_the_reference_is_a_published_gpu_with_most_in_common_and_can_be_chosen():
    own = [epoch(900.0), epoch(90.0, "siamese"), epoch(30.0, "vae", 5120)]
    assert ranking.reference(speeds.speeds(of(*own))) in ("RTX 2070 Super", "M1 Ultra GPU")
    shown = ranking.ranking_table(of(*own), "M1 Ultra CPU")
    assert "M1 Ultra CPU" in shown.title and {row["against"] for row in shown.data} == {
        "M1 Ultra CPU"
    }
    assert [row["device"] for row in shown.data if row["speed"] == 1] == ["M1 Ultra CPU"]
    speed = [row["speed"] for row in shown.data]
    assert speed == sorted(speed, reverse=True)
    with pytest.raises(PomologyError, match="no device 'M9'"):
        ranking.ranking_table(of(*own), "M9")


def test_runs_of_other_people_are_ranked_under_their_names():
    both = pandas.concat([of(epoch(900.0)), of(epoch(450.0), run="theirs.zip")])
    shown = ranking.ranking_table(both, HERE)
    kinds = {row.cells[0]: row.kind for row in shown.rows}
    assert kinds[HERE] == "measured" and kinds[f"{HERE} (theirs.zip)"] == "other"
    (theirs,) = [row for row in shown.data if "theirs" in row["device"]]
    assert theirs["speed"] == pytest.approx(2)
    assert len(ranking.sentences(both)) == 1


def line(device, value, **more):
    text = (
        "source=s row=1 workload=w role=rival framework=jax year=2024 precision=fp32 bound= "
        "metric=samples_per_s unit=samples/s printed= faults= place=p checked=text"
    )
    common = dict(pair.split("=") for pair in text.split())
    config = json.dumps({"batch_size": 64})
    return common | {"device": device, "value": str(value), "config": config} | more


@pytest.fixture
def elsewhere_has(monkeypatch):
    """Sets what others have published; the articles' tables stay."""
    cached = (elsewhere.workloads, elsewhere.rows, speeds._published)
    real = published.read

    def has(*lines):
        for one in cached:
            one.cache_clear()
        monkeypatch.setattr(
            published, "read", lambda name: lines if name == "elsewhere.csv" else real(name)
        )

    yield has
    monkeypatch.undo()
    for one in cached:
        one.cache_clear()


def test_two_sources_are_compared_on_equal_terms_only(elsewhere_has):
    elsewhere_has(
        line("A", 100),
        line("B", 200),
        line("B", 150),
        line("B", 190, source="t"),  # of three machines of one source 190 is no middle
        line("C", 300, config='{"batch_size": 32}'),
        line("D", 400, precision="bf16"),
        line("E", 500, metric="step_s"),
        line("F", 600, faults="start-up"),
        line("G", 150, faults="one-run"),
        line("H", 900, config='{"batch_size": "the largest that fits"}'),
    )
    known = ranking.compared(speeds.speeds(of()), "A").set_index("device")
    assert known.ratio.to_dict() == pytest.approx({"A": 1, "B": 1.9, "F": 6, "G": 1.5})
    assert known.sound.to_dict() == {"A": True, "B": True, "F": False, "G": True}


def test_the_figure_has_a_line_for_each_device():
    known = of(epoch(900.0), epoch(90.0, "siamese"))
    (axis,) = ranking.ranking_figure(known, "RTX 2070 Super").axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert {HERE, "RTX 2070 Super"} < set(labels)
    assert len(labels) == len({*labels}) <= ranking.MOST_ROWS


def test_a_case_of_today_is_found_at_the_settings_of_a_source(elsewhere_has):
    settings = {"batch_size": 64, "sequence": 128, "steps": 100, "data": "random"}
    published = {"workload": "bert_base", "metric": "fit_s", "unit": "s"}
    elsewhere_has(line("V100", 41, config=json.dumps(settings), **published))
    time = {"fit_s": metric(20.0, unit="s")}
    own = record("bert_base", time, settings | {"precision": "fp32"}, backend="cuda")
    assert beside([own], "Apple M9 CUDA", "V100").ratio["bert_base"] == 41 / 20
