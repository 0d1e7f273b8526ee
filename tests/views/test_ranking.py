"""How fast every device trains, against ratios worked out from the tables by hand."""

import inspect

import pytest
from records import elsewhere_row, metric, record, run_of, set_elsewhere

from pomology.errors import PomologyError
from pomology.views import ranking, speeds

HERE = "Apple M9 CPU"


def epoch(seconds, experiment="dcgan", batch_size=64, **more):
    metrics = {"epoch_s": metric(seconds, 0.9 * seconds, 1.1 * seconds, "s")}
    metrics |= more.pop("metrics", {})
    return record(experiment, metrics, config={"batch_size": batch_size}, **more)


def beside(records, device, against):
    """The rows of a device by workload, with another at 1."""
    known = ranking.compared(speeds.speeds([run_of(*records)]), against)
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
    # Repeats count once.
    runs = [epoch(2 * theirs * factor, repeat=n) for n, factor in enumerate((0.9, 1.0, 1.1))]
    known = speeds.speeds([run_of(*runs)])
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
        epoch(9.0, "of_somebody"),
    ],
)
def test_what_is_not_the_same_work_is_not_compared(other):
    assert "measured" not in set(speeds.speeds([run_of(other)]).kind)
    assert ranking.ranking_table([run_of(other)]).notes == (ranking.NOTHING,)


THEIRS = 285.473  # seconds of an epoch of DCGAN on an RTX 2070 Super


def headline(*records):
    return ranking.headline([run_of(*records)], "RTX 2070 Super")


def test_the_headline_has_its_evidence():
    single = "2.0× slower than the RTX 2070 Super (DCGAN; single runs; software of 2026 against "
    assert single in headline(epoch(2 * THEIRS))
    times = [2.0 * THEIRS, 2.2 * THEIRS, 1.8 * THEIRS]
    said = headline(*(epoch(time, repeat=number) for number, time in enumerate(times)))
    # By hand: Student's t with two degrees of freedom of the three logarithms.
    assert (
        "2.0× slower than the RTX 2070 Super (DCGAN; 95 % between 3 repeats: 1.6 to 2.6×; " in said
    )
    assert said.endswith(").")
    around = [0.8 * THEIRS, 1.3 * THEIRS, 1.0 * THEIRS]
    said = headline(*(epoch(time, repeat=number) for number, time in enumerate(around)))
    assert said.endswith("), a difference that the repeats do not show.")


def test_an_own_time_that_was_disturbed_is_in_brackets_as_a_published_one_is():
    disturbed = epoch(2 * THEIRS, flags=["contended"])
    assert not beside([disturbed], HERE, "RTX 2070 Super").sound["dcgan"]
    assert beside([epoch(2 * THEIRS, flags=["few-steps"])], HERE, "RTX 2070 Super").sound["dcgan"]
    said = headline(disturbed)
    assert "[2.0× slower than the RTX 2070 Super (DCGAN), use with care]" in said
    assert said.endswith("1 of 1 measured runs of cases were disturbed (contended).")


def test_the_reference_can_be_chosen_and_runs_of_others_stand_under_their_names():
    own = [epoch(900.0), epoch(90.0, "siamese"), epoch(30.0, "vae", 5120)]
    shown = ranking.ranking_table([run_of(*own)], "M1 Ultra CPU")
    assert [row["device"] for row in shown.data if row["speed"] == 1] == ["M1 Ultra CPU"]
    speed = [row["speed"] for row in shown.data]
    assert speed == sorted(speed, reverse=True)
    with pytest.raises(PomologyError, match=r"^against: M7: unknown device; "):
        ranking.ranking_table([run_of(*own)], "M7")
    both = [run_of(epoch(900.0)), run_of(epoch(450.0), run="theirs.zip")]
    shown = ranking.ranking_table(both, HERE)
    kinds = {row.cells["Device"]: row.kind for row in shown.rows}
    assert kinds[HERE] == "measured" and kinds[f"{HERE} (theirs.zip)"] == "other"
    (axis,) = ranking.ranking_figure(both, "RTX 2070 Super").axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert {HERE, "RTX 2070 Super"} < set(labels) and len(labels) == len({*labels})


@pytest.mark.parametrize(
    ("typed", "device", "note"),
    [
        ("rtx 4090", "RTX 4090", ""),
        ("Tesla T4", "T4", ""),
        ("NVIDIA GeForce RTX 2070 SUPER", "RTX 2070 Super", ""),
        ("M3 Max", "M3 Max GPU", "the one with most models; say 'M3 Max GPU (40 cores)'"),
        ("m1 ultra", "M1 Ultra GPU", "the one with most models; say 'M1 Ultra GPU (48 cores)'"),
        ("M1 Ultra CPU", "M1 Ultra CPU", ""),
        ("m9 cpu", HERE, ""),
        ("", "RTX 2070 Super", ""),  # chosen by shared models
    ],
)
def test_the_reference_is_a_name_as_people_type_it(typed, device, note):
    own = [run_of(epoch(900.0), epoch(90.0, "siamese"), epoch(30.0, "vae", 5120))]
    chosen = ranking.reference(own, typed)
    assert chosen.name == device and note in chosen.note and bool(note) == bool(chosen.note)
    assert ranking.ranked(own, typed)[0] == device


def test_the_reference_has_this_machines_size_if_its_row_has_one():
    gpus = [{"name": "Apple M1", "memory_bytes": None, "cores": 7}]
    assert ranking.reference([run_of(epoch(900.0))], "M1").name == "M1 GPU"
    assert ranking.reference([run_of(epoch(900.0))], "M1", gpus).name == "M1 GPU (7 cores)"


def test_a_reference_that_shares_no_work_with_this_machine_is_named():
    said = "No case of this run has a published time of the RTX 4090 with the same settings."
    assert ranking.headline([run_of(epoch(900.0))], "rtx 4090") == said


@pytest.fixture
def elsewhere_has(monkeypatch):
    """Sets what others have published; the articles' tables stay."""
    monkeypatch.setattr(speeds, "_published", inspect.unwrap(speeds._published))
    return lambda *rows: set_elsewhere(monkeypatch, *rows)


def test_two_sources_are_compared_on_equal_terms_only(elsewhere_has):
    elsewhere_has(
        elsewhere_row("A", 100),
        elsewhere_row("B", 200),
        elsewhere_row("B", 150),
        elsewhere_row("B", 190, source="t"),  # of three machines of one source 190 is no middle
        elsewhere_row("C", 300, {"batch_size": 32}),
        elsewhere_row("D", 400, precision="bf16"),
        elsewhere_row("E", 500, metric="step_s"),
        elsewhere_row("F", 600, faults="start-up"),
        elsewhere_row("G", 150, faults="one-run"),
    )
    known = ranking.compared(speeds.speeds([run_of()]), "A").set_index("device")
    assert known.ratio.to_dict() == pytest.approx({"A": 1, "B": 1.9, "F": 6, "G": 1.5})
    assert known.sound.to_dict() == {"A": True, "B": True, "F": False, "G": True}
