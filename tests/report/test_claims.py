"""Claims on this machine's cases: verdicts, the numbers they show, and why there is none."""

from __future__ import annotations

import fakes
import pytest

from pomology.articles import published
from pomology.articles.claims import NOT_TESTABLE
from pomology.articles.published import Claim, Condition
from pomology.measure.estimate import Estimate
from pomology.report.claims import claims_table
from pomology.results.frame import of_records
from pomology.results.record import Record

FASTER = ("epoch_s(cpu, batch_size=128) / epoch_s(gpu, batch_size=128)", "> 1")


def on(backend: str, epoch_s: float, batch_size: int = 128, **changes) -> Record:
    fields = {
        "experiment": "vae",
        "backend": backend,
        "device": "cpu" if backend == "cpu" else "gpu",
        "config": {"batch_size": batch_size},
        "case": f"torch-{backend} batch_size={batch_size}",
        "metrics": {"epoch_s": Estimate(epoch_s, "s", n=400)},
    }
    return fakes.record(**fields | changes)


def thrice(record: Record, spread: float = 0.02) -> list[Record]:
    """Three repeats, whose values are those of the record and so much more and less."""
    repeats = []
    for repeat, factor in enumerate((1, 1 + spread, 1 / (1 + spread))):
        metrics = {
            name: each.replace(value=each.value * factor) for name, each in record.metrics.items()
        }
        repeats.append(record.replace(repeat=repeat, metrics=metrics))
    return repeats


def verdict(condition: tuple[str, str] | None, *records: Record, about: str = "") -> str:
    """What the table says of a claim on this machine."""
    conditions = (Condition("CPU / GPU", *condition, {}),) if condition else ()
    claim = Claim(
        *("003-X", "003", ("vae",), "The GPU is faster.", "", "", "yes", "a CPU and a GPU"),
        *(about, "", conditions),
    )
    table = claims_table([claim], of_records(records))
    (row,) = table.rows
    if condition == FASTER:  # the article's own: 3.746 s over 8.760 s
        assert row.cells[2] == "contradicted: CPU / GPU = 0.428; claimed > 1"
    assert row.cells[3].startswith(table.data[0]["here"])
    return row.cells[3]


@pytest.mark.parametrize(
    ("cpu_s", "gpu_s", "words"),
    [
        (4.0, 2.0, "supported: CPU / GPU = 2.00 (1.89 to 2.11); claimed > 1"),
        (2.0, 4.0, "contradicted: CPU / GPU = 0.500 (0.473 to 0.529); claimed > 1"),
        (4.0, 3.9, "inconclusive (too close to tell): CPU / GPU = 1.03 (0.970 to 1.08); claimed"),
    ],
)
def test_a_verdict_shows_the_ratio_with_its_interval(cpu_s, gpu_s, words):
    """The CPU's repeats vary by 2 % up and down, the GPU's do not.

    The half-width of the logarithm is Student's t for two degrees of freedom, 4.303, times ln 1.02,
    times the root of 1 / 3 + 0.19 / 2: a factor of 1.057.
    """
    records = [*thrice(on("cpu", cpu_s)), *thrice(on("mps", gpu_s), spread=0)]
    assert verdict(FASTER, *records).startswith(words)
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
        assert verdict(FASTER, *records).startswith(f"inconclusive ({why}): CPU / GPU = ")
    # Three others are enough, and being on battery is no doubt.
    more = [record.replace(repeat=3) for record in (cpu[0], gpu[0])]
    assert verdict(FASTER, *contended, *gpu, *more).startswith("supported")


def test_a_sentence_about_another_chip_is_not_testable_here():
    records = [*thrice(on("cpu", 4.0)), *thrice(on("mps", 2.0))]
    text = verdict(FASTER, *records, about="M1 Pro")
    assert text.startswith("not testable here: the sentence is about M1 Pro; here CPU / GPU = 2.00")
    own = [record.replace(chip="Apple M1 Pro") for record in records]
    assert verdict(FASTER, *own, about="M1 Pro").startswith("supported")


@pytest.mark.parametrize(
    ("experiment", "data", "begin"),
    [
        ("dcgan", "stand-in", "inconclusive (stand-in data)"),
        ("dcgan", "real", "supported"),
        ("vae", "stand-in", "supported"),
    ],
)
def test_synthetic_data_give_no_verdict_where_data_are_decoded(experiment, data, begin):
    condition = (f"epoch_s(cpu, experiment='{experiment}', batch_size=128)", "> 1")
    records = thrice(on("cpu", 4.0, experiment=experiment, data=data))
    assert verdict(condition, *records).startswith(begin)


def test_what_a_claim_lacks_is_said():
    cpu = on("cpu", 4.0)
    lacking = "not testable here: needs a CPU and a GPU"
    assert verdict(FASTER, cpu) == verdict(None, cpu) == lacking
    failed = {"metrics": {}, "status": "crashed"}
    power = ("power_w(cpu, batch_size=128)", "> 1")
    for condition, records, why in (
        (FASTER, [cpu, on("mps", 2.0, batch_size=64)], ""),  # another batch
        (FASTER, [cpu, on("mps", 2.0, **failed)], "; crashed"),
        (FASTER, [cpu, on("mps", 2.0, scaled=True)], "; scaled"),
        (FASTER, [cpu, on("mps", 2.0, flags=["other-way"])], ""),
        (power, [cpu], "; power_w was not measured"),
        (("epoch_s(cpu)", "> 1"), [cpu, on("cpu", 2.0, batch_size=5120)], "; 2 cases match"),
    ):
        assert verdict(condition, *records) == lacking + why


def test_how_a_case_ended_answers_a_claim_whatever_was_observed():
    condition = ("status(mps, batch_size=64)", "!= ok")
    failed = on("mps", 2.0, batch_size=64, status="out-of-memory", device=None, metrics={})
    assert verdict(condition, failed).startswith("supported")
    assert verdict(condition, on("mps", 2.0, batch_size=64)).startswith("contradicted")
    assert verdict(condition, on("cuda", 2.0, batch_size=64)).startswith(NOT_TESTABLE)
    both = [failed, on("mps", 2.0, batch_size=64, repeat=1)]
    assert verdict(condition, *both).endswith("; ok, out-of-memory")


# Article 001 on a pretended M2 Ultra --------------------------------------------------------------

MPS, MLX = ("torch", "mps"), ("mlx", "mlx-gpu")


def measured(experiment: str, device: tuple, config: dict, **metrics: float) -> list[Record]:
    framework, backend = device
    estimates = {name: Estimate(value, n=400) for name, value in metrics.items()}
    fields = {"framework": framework, "chip": "Apple M2 Ultra", "metrics": estimates}
    fields |= {"config": config, "case": f"{backend} {config}", "experiment": experiment}
    fields["precision"] = config.get("precision", "fp32")
    return thrice(on(backend, 1.0, **fields), spread=1e-3)


def passes(mps_s: float, mlx_s: float) -> list[Record]:
    records = []
    for size in (8, 4, 2):
        records += measured("gpt2_pretraining", MPS, {"batch_size": size}, pass_s=mps_s)
        records += measured("gpt2_pretraining", MLX, {"batch_size": size}, pass_s=mlx_s)
    small = measured("gpt2_pretraining", MPS, {"batch_size": 2, "model": "micro"}, pass_s=1.0)
    return records + [record.replace(scaled=True) for record in small]


def launches(cold_s: float, device: tuple = MPS) -> list[Record]:
    return measured("kernel_launch", device, {}, launch_cold_s=cold_s, launch_s=1.5e-4)


def products(mps: float, mlx: float) -> list[Record]:
    """Vector-Jacobian products, so many times faster with fp16."""
    records = []
    for device, faster in ((MPS, mps), (MLX, mlx)):
        for size in (128, 512, 2048):
            for wrt in ("left", "right"):
                shape = {"operation": "vjp", "shape": f"8x1024x{size}", "wrt": wrt}
                for precision, kernel_s in (("fp32", faster), ("fp16", 1.0)):
                    config = shape | {"precision": precision}
                    records += measured("blas", device, config, kernel_s=size * kernel_s)
    return records


def memory(mps: float, mlx: float) -> list[Record]:
    """Bytes by which the resident memory grows a step."""
    records = []
    for device, slope in ((MPS, mps), (MLX, mlx)):
        values = {"resident_slope_bytes": slope, "footprint_start_bytes": 1e10}
        records += measured("memory", device, {"load": "easy"}, **values)
    return records


@pytest.mark.parametrize(
    ("name", "bears_out", "does_not"),
    [
        ("001-C2", passes(3.2, 2.7), passes(2.5, 2.7)),
        ("001-C6", launches(8e-4), launches(8e-4) + launches(1e-4, MLX)),
        ("001-C10", products(2.0, 1.9), products(2.0, 1.2)),
        ("001-C17", memory(5e6, -1e3), memory(-5e6, 1e3)),
    ],
)
def test_a_claim_of_an_article_has_both_verdicts_and_none_from_a_part(name, bears_out, does_not):
    (claim,) = [each for each in published.claims("001") if each.id == name]

    def here(records: list[Record]) -> str:
        return claims_table([claim], of_records(records)).data[0]["here"]

    assert (here(bears_out), here(does_not)) == ("supported", "contradicted")
    assert here([]) == NOT_TESTABLE
    if name != "001-C6":  # which one device answers
        assert here(bears_out[:3]) == NOT_TESTABLE


def test_several_devices_of_an_article_are_named():
    (claim,) = [each for each in published.claims("001") if each.id == "001-C6"]
    (row,) = claims_table([claim], of_records([])).rows
    assert row.cells[2].startswith("supported: device M2 Ultra: cold / following = 5.31; claimed")
    assert row.cells[2].endswith("; and 3 more")
