"""Claims on this machine's cases: verdicts, their numbers, and the reasons for no verdict."""

import re
from types import SimpleNamespace

import pytest
import records
from msgspec.structs import replace

from pomology.articles import published
from pomology.articles.claims import NOT_TESTABLE
from pomology.measure.estimate import Estimate
from pomology.report.claims import claims_table, needs
from pomology.report.table import Table, in_one_line
from pomology.results.record import Record

LACKING = f"{NOT_TESTABLE}: needs a CPU and a GPU"
FASTER = ("epoch_s(cpu, batch_size=128) / epoch_s(gpu, batch_size=128)", "> 1")


def on(backend: str, epoch_s: float, batch_size: int = 128, **changes) -> Record:
    fields = {"backend": backend, "config": {"batch_size": batch_size}}
    fields["metrics"] = {"epoch_s": Estimate(epoch_s, "s", n=400)}
    return records.record(**fields | changes)


def thrice(record: Record, spread: float = 0.02) -> list[Record]:
    """Return three repeats: the record, and its values times and over 1 + `spread`."""
    repeats = []
    for repeat, factor in enumerate((1, 1 + spread, 1 / (1 + spread))):
        metrics = {name: each * factor for name, each in record.metrics.items()}
        repeats.append(replace(record, repeat=repeat, metrics=metrics))
    return repeats


def claim_table(condition: tuple[str, str] | None, *records: Record, about: str = "") -> Table:
    """Return the table of a claim with a condition on this machine."""
    (faster,) = [each for each in published.claims("003") if each.id == "003-C1"]
    texts = vars(faster) | {"needs": "a CPU and a GPU", "about": about, "conditions": []}
    if condition:
        value, claimed = condition
        shown = {"name": "CPU / GPU", "for_each": {}}
        texts["conditions"] = [SimpleNamespace(value=value, claimed=claimed, **shown)]
    return claims_table([SimpleNamespace(**texts)], records)


def verdict(condition: tuple[str, str] | None, *records: Record, about: str = "") -> str:
    """Return the table's text for a claim on this machine."""
    table = claim_table(condition, *records, about=about)
    *_, own, here = map(in_one_line, table.rows[0].cells.values())
    if condition == FASTER:  # the article's own: 3.746 s over 8.760 s
        assert own == "contradicted: CPU / GPU = 0.428; claimed > 1"
    assert here.startswith(table.data[0]["here"])
    return here


def html_of(condition: tuple[str, str] | None, *records: Record, about: str = "") -> str:
    """Return the HTML of the last cell of `verdict`'s table."""
    rendered = claim_table(condition, *records, about=about).grid()
    return re.findall(r"<td[^>]*>(.*?)</td>", rendered)[-1]


@pytest.mark.parametrize(
    ("cpu_s", "gpu_s", "words"),
    [
        (4.0, 2.0, "supported: CPU / GPU = 2.00 (1.89 to 2.11); claimed > 1"),
        (2.0, 4.0, "contradicted: CPU / GPU = 0.500 (0.473 to 0.529); claimed > 1"),
        (
            4.0,
            3.9,
            "inconclusive: CPU / GPU = 1.03 (0.970 to 1.08); claimed > 1; too close to tell",
        ),
    ],
)
def test_a_verdict_shows_the_ratio_with_its_interval(cpu_s, gpu_s, words):
    """The CPU's repeats vary by 2 % up and down, the GPU's do not.

    The half-width of the logarithm is Student's t for two degrees of freedom, 4.303, times ln 1.02,
    times the root of 1 / 3 + 0.19 / 2: a factor of 1.057.
    """
    records = [*thrice(on("cpu", cpu_s)), *thrice(on("mps", gpu_s), spread=0)]
    assert verdict(FASTER, *records) == words


def test_without_enough_repeats_there_is_no_verdict_and_its_reason():
    cpu, gpu = thrice(on("cpu", 4.0)), thrice(on("mps", 2.0))
    contended = [replace(cpu[0], flags=["contended", "on-battery"]), *cpu[1:]]
    later = [replace(record, repeat=record.repeat + 1) for record in gpu]
    for cases, why in (
        ([cpu[0], gpu[0]], "too few repeats"),
        ([*contended, *gpu], "contended"),
        ([*cpu, *later], "fewer than 3 repeats in common"),
    ):
        words = verdict(FASTER, *cases)
        assert words.startswith("inconclusive: CPU / GPU = ")
        assert words.endswith(f"; claimed > 1; {why}")
    # Three other repeats are enough, and `on-battery` does not prevent a verdict.
    more = [replace(record, repeat=3) for record in (cpu[0], gpu[0])]
    assert verdict(FASTER, *contended, *gpu, *more).startswith("supported")


def test_synthetic_data_give_no_verdict_where_data_are_decoded():
    def found(experiment: str, data: str) -> str:
        condition = (f"epoch_s(cpu, experiment='{experiment}', batch_size=128)", "> 1")
        return verdict(condition, *thrice(on("cpu", 4.0, experiment=experiment, data=data)))

    undecided = found("dcgan", "stand-in")
    assert undecided.startswith("inconclusive: ") and undecided.endswith("; synthetic data")
    assert found("dcgan", "real").startswith("supported")
    assert found("vae", "stand-in").startswith("supported")


def test_a_claim_names_the_missing_numbers():
    cpu, gpu = thrice(on("cpu", 4.0)), thrice(on("mps", 2.0))
    failed = {"metrics": {}, "status": "crashed"}
    for changes in (failed, {"profile": "smoke"}, {"scaled": True}, {"flags": ["other-way"]}):
        assert verdict(FASTER, *cpu, *(replace(record, **changes) for record in gpu)) == LACKING
    assert verdict(FASTER, *cpu, *thrice(on("mps", 2.0, batch_size=64))) == LACKING
    # A claim about another chip is not testable, either; this one's number is a finding.
    lacks = "needs a CPU and a GPU"
    finding = "on the Apple M9: CPU / GPU = 2.00 (2.00 to 2.00), claimed > 1"
    assert verdict(FASTER, *cpu, *gpu, about="M1 Pro") == f"{NOT_TESTABLE}: {finding}; {lacks}"
    single = verdict(FASTER, cpu[0], gpu[0], about="M1 Pro")
    assert single.endswith(f"CPU / GPU = 2.00, claimed > 1 (too few repeats); {lacks}")
    own = [replace(record, chip="Apple M1 Pro") for record in (*cpu, *gpu)]
    assert verdict(FASTER, *own, about="M1 Pro").startswith("supported")


def test_the_deciding_comparison_is_shown():
    def own(name: str) -> str:
        (claim,) = [each for each in published.claims(name[:3]) if each.id == name]
        cell = claims_table([claim], []).rows[0].cells["On the article's numbers"]
        return in_one_line(cell)

    assert own("001-C6").startswith("supported: M2 Ultra: cold / following = 5.31; claimed")
    assert own("003-C3").startswith("contradicted: batch size 128: VAE: NVIDIA GPU / CPU = 1.75;")
    # The article's 30-40 % against its table 4: 3.239 s with MPS over 2.71 s with MLX.
    assert own("001-C4") == (
        "contradicted: batch size 8: MPS / MLX = 1.20; claimed 1.3 to 1.4; "
        "open question: where 30-40 % comes from is not stated"
    )
    assert "claimed not ok" in own("000-C9") and "claimed ≥ 1.5" in own("003-C1")


def test_the_word_of_a_verdict_has_a_line_of_its_own_and_what_is_missing_the_last():
    assert html_of(FASTER, on("cpu", 4.0), on("mps", 2.0)) == (
        "<b>inconclusive</b><br>CPU / GPU = 2.00<br>claimed &gt; 1<br>too few repeats"
    )
    assert html_of(None) == f"<b>{NOT_TESTABLE}</b><br>needs a CPU and a GPU"
    hostile = html_of(FASTER, on("cpu", 4.0), on("mps", 2.0, chip="<img src=x>"), about="M1 Pro")
    assert hostile.endswith("<br>needs a CPU and a GPU")
    assert "&lt;img src=x&gt;" in hostile and "<img" not in hostile


def on_runs(name: str, *runs: list[Record]) -> str:
    """Return the table's text for a claim of the articles on runs together."""
    (claim,) = [one for one in published.claims() if one.id == name]
    table = claims_table([claim], *runs)
    return in_one_line([*table.rows[0].cells.values()][-1])


def trained(backend: str, epoch_s: float, chip: str, **changes) -> list[Record]:
    """Return three repeats of the VAE's trainings at both batch sizes."""
    sizes = (128, 5120)
    return [each for size in sizes for each in thrice(on(backend, epoch_s, size, chip=chip))]


def test_another_runs_nvidia_gpu_is_the_rival():
    mac, card = trained("mps", 2.0, "Apple M2 Max"), trained("cuda", 3.0, "NVIDIA GeForce RTX 4090")
    for runs in ([mac, card], [card, mac]):  # the claim is about the Mac, whichever comes first
        text = on_runs("003-C2", *runs)
        assert text.startswith("supported: batch size 128: NVIDIA GPU / GPU = 1.50 (")
    assert on_runs("003-C2", mac).startswith(NOT_TESTABLE)
    # Another Mac is no rival, and its MPS is not this one's.
    other = trained("mps", 3.0, "Apple M1")
    assert on_runs("003-C2", mac, other).startswith(NOT_TESTABLE)
    assert on_runs("003-C2", mac, card, other).startswith("supported")


def test_an_nvidia_machine_keeps_its_own_numbers_beside_another_one():
    of = {"experiment": "kernel_launch", "config": {}}
    metrics = {"launch_cold_s": Estimate(2e-5, "s", n=9), "launch_s": Estimate(5e-6, "s", n=9)}
    runs = [
        thrice(on("cuda", 0, chip=chip, metrics=metrics, **of))
        for chip in ("NVIDIA GeForce RTX 4090", "NVIDIA RTX A6000")
    ]
    assert on_runs("001-C6", *runs).startswith("supported: cold / following = 4.00")


def test_the_cpu_of_another_run_is_not_this_machines():
    mac = trained("mps", 2.0, "Apple M1 Ultra")
    pc = trained("cpu", 1.0, "AMD EPYC") + trained("cuda", 5.0, "NVIDIA GeForce RTX 2070 SUPER")
    assert on_runs("003-C1", mac, pc).startswith(NOT_TESTABLE)
    mac += trained("cpu", 1.0, "Apple M1 Ultra")
    assert on_runs("003-C1", mac, pc).startswith("supported")


def energy(backend: str, joules: float, chip: str) -> list[Record]:
    metrics = {"energy_gpu_j_per_step": Estimate(joules, "J", n=40)}
    config = {"model": "whisper-medium", "batch_size": 4}
    return thrice(on(backend, 0, experiment="energy", config=config, metrics=metrics, chip=chip))


def test_devices_that_a_claim_names_are_found_in_all_runs():
    """001-C5: an Apple GPU needs as much energy as an RTX 4090, and far less than an A6000."""
    mac = energy("mps", 100.0, "Apple M2 Ultra")
    card = energy("cuda", 105.0, "NVIDIA GeForce RTX 4090")
    old_card = energy("cuda", 200.0, "NVIDIA RTX A6000")
    assert on_runs("001-C5", mac, card, old_card).startswith("supported")
    text = on_runs("001-C5", mac, card)
    assert text.startswith(NOT_TESTABLE) and text.endswith("; no number: A6000 / GPU")


def test_a_mean_over_missing_numbers_is_missing():
    """One shape of six has no number, and the others have one in each repeat."""
    config = {"operation": "matmul", "shape": "8x1024x128", "wrt": "left", "precision": "fp32"}
    metrics = {"kernel_s": Estimate(1e-3, "s", n=100)}
    of = {"experiment": "blas", "config": config, "metrics": metrics, "precision": "fp32"}
    records = thrice(on("cuda", 0, chip="NVIDIA GeForce RTX 4090", **of))
    assert on_runs("001-C9", records).startswith(NOT_TESTABLE)


def lacking(condition, *records, about="", experiments=("vae",)):
    (faster,) = [each for each in published.claims("003") if each.id == "003-C1"]
    texts = vars(faster) | {"about": about, "conditions": [], "experiments": [*experiments]}
    if condition:
        shown = {"name": "ratio", "for_each": {}, "value": condition, "claimed": "> 1"}
        texts["conditions"] = [SimpleNamespace(**shown)]
    (row,) = claims_table([SimpleNamespace(**texts)], records).data
    return row["lacks"]


def test_a_claim_without_a_verdict_says_what_it_needs():
    ratio = "epoch_s(cpu) / epoch_s(gpu)"
    rival = "epoch_s(gpu) / epoch_s(rival)"
    linux = {"chip": "AMD EPYC"}
    slow, fast = on("cpu", 4.0, **linux), on("cuda", 2.0, chip="NVIDIA A6000")
    mac = on("mps", 2.0)  # an Apple M9
    assert lacking(ratio, *thrice(on("cpu", 4.0)), *thrice(mac)) == ""
    assert lacking(ratio, on("cpu", 4.0), mac) == "repeats"
    assert lacking(ratio, slow) == "a GPU"
    assert lacking(ratio, slow, about="Apple") == "a Mac's GPU"
    assert lacking(rival, slow, about="M1 Pro") == "a Mac's GPU and an NVIDIA GPU"
    assert lacking(rival, mac, about="M1 Pro") == "an M1 Pro and an NVIDIA GPU"
    assert lacking(rival, slow, fast, about="Apple") == "a Mac's GPU"
    assert lacking("epoch_s(cuda)", slow, fast, about="P100") == "a P100"
    assert lacking("epoch_s(mps) / epoch_s(mlx)", mac) == "MLX's results on the GPU"
    assert lacking("epoch_s(gpu, batch_size=7)", mac) == "further cases"
    assert lacking("", mac, about="Apple") == "other evidence"
    assert lacking("cores(gpu)", mac, experiments=["hardware"]) == "figures of data sheets"


def test_needs_are_counted_by_kind():
    kinds = ["a GPU", "repeats", "", "repeats"]
    assert needs([{"lacks": kind} for kind in kinds]) == "2 need repeats, 1 needs a GPU"
    many = needs([{"lacks": kind} for kind in "aabbccddef"])
    assert many.endswith("2 need d, 2 need something else")
