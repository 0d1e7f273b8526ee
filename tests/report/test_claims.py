"""Claims on this machine's cases: verdicts, the numbers they show, and why there is none."""

from __future__ import annotations

import fakes
import pytest

from pomology.articles import published
from pomology.articles.published import Claim
from pomology.measure.estimate import Estimate
from pomology.report.claims import claims_table
from pomology.results.frame import of_records
from pomology.results.record import Record

FASTER = "epoch_s(cpu, batch_size=128) / epoch_s(gpu, batch_size=128) > 1"


def on(backend: str, epoch_s: float, batch_size: int = 128, **changes) -> Record:
    fields = {
        "experiment": "vae",
        "backend": backend,
        "device": "cpu" if backend == "cpu" else "gpu",
    }
    fields |= {
        "config": {"batch_size": batch_size},
        "case": f"torch-{backend} batch_size={batch_size}",
    }
    return fakes.record(
        **fields | {"metrics": {"epoch_s": Estimate(epoch_s, "s", n=400)}} | changes
    )


def thrice(record: Record, spread: float = 0.02) -> list[Record]:
    """Three repeats, whose times are the one of the record and so much more and less."""
    repeats = []
    for repeat, factor in enumerate((1, 1 + spread, 1 / (1 + spread))):
        metrics = {
            name: each.replace(value=each.value * factor) for name, each in record.metrics.items()
        }
        repeats.append(record.replace(repeat=repeat, metrics=metrics))
    return repeats


def verdict(formula: str, *records: Record, about: str = "") -> str:
    """What the table says of a claim on this machine."""
    claim = Claim(
        "003-X",
        "003",
        ("vae",),
        "The GPU is faster.",
        "",
        formula,
        "",
        "yes",
        "a CPU and a GPU",
        about,
    )
    table = claims_table([claim], of_records(records))
    (row,) = table.rows
    if formula == FASTER:  # the article's own: 3.746 s over 8.760 s
        assert row.cells[2] == "contradicted: CPU / GPU = 0.428; claimed > 1"
    status = row.cells[3].split(":")[0].split(" (")[0].replace("not testable here", "inconclusive")
    assert table.data[0]["here"] == status
    return row.cells[3]


@pytest.mark.parametrize(
    ("cpu_s", "gpu_s", "words"),
    [
        (4.0, 2.0, "supported: CPU / GPU = 2.00 (1.89 to 2.11); claimed > 1"),
        (2.0, 4.0, "contradicted: CPU / GPU = 0.500 (0.473 to 0.529); claimed > 1"),
        (
            4.0,
            3.9,
            "inconclusive (too close to tell): CPU / GPU = 1.03 (0.970 to 1.08); claimed > 1",
        ),
    ],
)
def test_a_verdict_shows_the_ratio_with_its_interval(cpu_s, gpu_s, words):
    """The CPU's repeats vary by 2 % up and down, the GPU's do not: the half-width of the logarithm is Student's t for
    two degrees of freedom, 4.303, times ln 1.02, times the root of 1 / 3 + 0.19 / 2: a factor of 1.057."""
    records = [*thrice(on("cpu", cpu_s)), *thrice(on("mps", gpu_s), spread=0)]
    assert verdict(FASTER, *records) == words
    smoke = [record.replace(profile="smoke") for record in records]
    assert verdict(FASTER, *smoke).startswith("not testable here: needs")


def test_without_enough_repeats_there_is_no_verdict_and_its_reason():
    cpu, gpu = thrice(on("cpu", 4.0)), thrice(on("mps", 2.0))
    contended = [cpu[0].replace(flags=["contended", "on-battery"]), *cpu[1:]]
    later = [record.replace(repeat=record.repeat + 1) for record in gpu]
    for records, why in (
        ([cpu[0], gpu[0]], "one run"),
        ([*contended, *gpu], "contended"),
        ([*cpu, *later], "fewer than 3 repeats in common"),
    ):
        assert verdict(FASTER, *records) == f"inconclusive ({why}): CPU / GPU = 2.00; claimed > 1"
    # Three others are enough, and being on battery is no doubt.
    more = [record.replace(repeat=3) for record in (cpu[0], gpu[0])]
    assert verdict(FASTER, *contended, *gpu, *more).startswith("supported")


def test_a_sentence_about_another_chip_is_not_testable_here():
    records = [*thrice(on("cpu", 4.0)), *thrice(on("mps", 2.0))]
    text = verdict(FASTER, *records, about="M1 Pro")
    assert text.startswith(
        "not testable here: the sentence is about the M1 Pro; here CPU / GPU = 2.00"
    )
    own = [record.replace(chip="Apple M1 Pro") for record in records]
    assert verdict(FASTER, *own, about="M1 Pro").startswith("supported")
    assert verdict(FASTER, *own, about="M1").startswith("not testable")


def test_synthetic_data_give_no_verdict_where_data_are_decoded():
    formula = "epoch_s(cpu, experiment='{}', batch_size=128) > 1"
    for experiment, data, begin in (
        ("dcgan", "stand-in", "inconclusive (stand-in data)"),
        ("dcgan", "real", "supported"),
        ("vae", "stand-in", "supported"),
    ):
        records = thrice(on("cpu", 4.0, experiment=experiment, data=data))
        assert verdict(formula.format(experiment), *records).startswith(begin)


def test_what_a_claim_lacks_is_said():
    cpu = on("cpu", 4.0)
    lacking = "not testable here: needs a CPU and a GPU"
    assert verdict(FASTER, cpu) == verdict("", cpu) == lacking
    failed = {"metrics": {}, "status": "crashed"}
    for formula, records, why in (
        (FASTER, [cpu, on("mps", 2.0, batch_size=64)], ""),  # another batch
        (FASTER, [cpu, on("mps", 2.0, **failed)], "; crashed"),
        (FASTER, [cpu, on("mps", 2.0, scaled=True)], "; scaled"),
        (FASTER, [cpu, on("mps", 2.0, flags=["other-way"])], ""),
        ("power_w(cpu, batch_size=128) > 1", [cpu], "; power was not measured"),
        ("epoch_s(cpu) > 1", [cpu, on("cpu", 2.0, batch_size=5120)], "; 2 cases of vae match"),
    ):
        assert verdict(formula, *records) == lacking + why


def test_how_a_case_ended_answers_a_claim_whatever_was_observed():
    formula = 'status(gpu, backend="mps", batch_size=64) != "ok"'
    failed = on("mps", 2.0, batch_size=64, status="out-of-memory", device=None, metrics={})
    assert verdict(formula, failed).startswith("supported")
    assert verdict(formula, failed.replace(status="fallback", device="cpu")).startswith("supported")
    assert verdict(formula, on("mps", 2.0, batch_size=64)).startswith("contradicted")
    assert verdict(formula, on("cuda", 2.0, batch_size=64)).startswith("not testable")


def test_several_devices_of_an_article_are_named():
    (claim,) = [each for each in published.claims("001") if each.id == "001-C6"]
    (row,) = claims_table([claim], of_records([])).rows
    assert row.cells[2].startswith(
        "supported: M2 Ultra: 5.31; claimed > 1; M2 Max: 7.13; claimed > 1"
    )
