"""The published numbers against the articles' tables (typed in here), the claims against hand-computed ratios."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas
import pytest

from pomology.articles import claims, published
from pomology.articles.claims import CONTRADICTED, INCONCLUSIVE, SUPPORTED, Term
from pomology.articles.published import Claim
from pomology.errors import PomologyError
from pomology.measure.estimate import Estimate


def values(article: str | None = None, experiment: str | None = None) -> pandas.DataFrame:
    return pandas.DataFrame(published.rows(article, experiment), dtype=object)


CPU, GPU, RIVAL = "M1 Ultra CPU", "M1 Ultra GPU", "2070 Super CUDA"
BUG = "Runtime error (Bug)"
DEVICES = {"cpu": (CPU, "cpu"), "gpu": (GPU, "mps"), "rival": (RIVAL, "cuda")}

# Article 003, as printed: role; the columns that tell rows apart; time, temperature, memory, power.
TABLES = {
    "dcgan": """batch_size, image_size
cpu; 64, 64; 1942.078 s; 47ºC; <0.3GB; ~35W
cpu; 1024, 64; 1684.591 s; 45ºC; <1.3GB; ~35W
gpu; 64, 64; Runtime error (Bug); 43ºC; --; --
gpu; 1024, 64; Runtime error (Bug); 42ºC; --; --
rival; 64, 64; 285.473 s; 48ºC; 1.3GB; ~84W
rival; 1024, 64; 252.657 s; 54ºC; 4.45GB; ~69W""",
    "siamese": """batch_size
cpu; 64; 353.208 s; 47ºC; <0.4GB; ~35W
cpu; 1024; 197.937 s; 51ºC; <0.5GB; ~38W
gpu; 64; 112.131 s; 47ºC; 1.42GB; ~38W
gpu; 1024; 15.547 s; 47ºC; 3.21GB; ~38W
rival; 64; 39.839 s; 55ºC; 1.3GB; ~182W
rival; 1024; 20.538 s; 51ºC; 2.4GB; ~189W""",
    "transformer_lm": """batch_size, embedding_size, layers, hidden_size
cpu; 20, 200, 2, 200; 282.73 s; 53ºC; <0.3GB; ~43W
cpu; 20, 500, 2, 500; 405.90 s; 49ºC; <0.5GB; ~44W
cpu; 200, 500, 4, 500; 362.12 s; 52ºC; 1.6GB; ~50W
cpu; 200, 500, 6, 1024; 513.85 s; 51ºC; 2.4GB; ~44W
cpu; 200, 500, 10, 1024; 745.80 s; 51ºC; 2.4GB; ~50W
gpu; 20, 200, 2, 200; 505.52 s; 48ºC; <2.4GB; ~40W
gpu; 20, 500, 2, 500; 502.79 s; 48ºC; 4.8GB; ~40W
gpu; 200, 500, 4, 500; 104.67 s; 51ºC; 13.2GB; ~80W
gpu; 200, 500, 6, 1024; 137.19 s; 50ºC; 14.4GB; ~90W
gpu; 200, 500, 6, 1024; 137.19 s; 50ºC; 14.4GB; ~90W
gpu; 200, 500, 10, 1024; 216.04 s; 45ºC; 16GB; ~70W
rival; 20, 200, 2, 200; 47.39 s; 48ºC; 1.27GB; ~164W
rival; 20, 500, 2, 500; 73.36 s; 58ºC; 1.48GB; ~196W
rival; 200, 500, 4, 500; 59.98 s; 54ºC; 6.2GB; ~189W
rival; 200, 500, 6, 1024; 72.54 s; 59ºC; 6.8GB; ~205W
rival; 200, 500, 10, 1024; DNF (Out of Memory); --; --; --""",
    "vae": """batch_size
cpu; 128; 3.746 s; 41ºC; <0.1GB; ~28W
cpu; 5120; 1.933 s; 40ºC; <0.1GB; ~12W
gpu; 128; 8.760 s; 42ºC; 0.6GB; ~30W
gpu; 5120; 1.998 s; 41ºC; 0.34GB; ~28W
rival; 128; 6.555 s; 36ºC; 1.2GB; ~51W
rival; 5120; 6.074 s; 52ºC; 1.3GB; ~52W""",
}
METRICS = {
    "epoch_s": ("s", 1),
    "temperature_c": ("°C", 1),
    "footprint_peak_bytes": ("GB", 1e9),
    "power_w": ("W", 1),
}
STATUS = {BUG: "error", "DNF (Out of Memory)": "out-of-memory", "--": "not-reported"}


@pytest.mark.parametrize("experiment", TABLES)
def test_article_003_tables_are_complete_and_as_printed(experiment):
    frame = values("003", experiment)
    keys, *lines = TABLES[experiment].splitlines()
    assert len(frame) == 4 * len(lines)
    for number, line in enumerate(lines, 1):
        role, config, *cells = line.split("; ")
        config = dict(zip(keys.split(", "), map(int, config.split(", ")), strict=True))
        rows = frame[frame["row"] == number].to_dict("records")
        for row, cell, (metric, (unit, factor)) in zip(rows, cells, METRICS.items(), strict=True):
            assert (row["role"], row["device"], row["backend"], row["config"]) == (
                role,
                *DEVICES[role],
                config,
            )
            told = (row["metric"], row["unit"], row["printed"], row["status"])
            assert told == (metric, unit, cell, STATUS.get(cell, "ok"))
            value = None if cell in STATUS else float(cell.strip("<~ºCGBWs "))
            assert row["value"] == value and row["bound"] == (cell[0] if cell[0] in "<~" else "")
            assert row["si"] == (None if value is None else pytest.approx(value * factor))


def test_rows_are_well_formed():
    frame = values()
    assert set(frame["status"]) == {"ok", "error", "out-of-memory", "not-reported"}
    assert set(frame["role"]) == {"", "cpu", "gpu", "rival"} and set(frame["bound"]) == {
        "",
        "<",
        "~",
        ">",
    }
    assert set(frame["backend"]) == {"", "cpu", "mps", "cuda", "metal", "mlx-gpu"}
    words = frame["unit"].isin(["version", "text"])
    assert (frame["value"].notna() == ((frame["status"] == "ok") & ~words)).all()
    assert (frame["value"].isna() == frame["si"].isna()).all()
    for column in ("si", "flops"):  # None, not NaN
        assert all(value is None for value in frame.loc[frame[column].isna(), column])
    assert frame["printed"][frame["status"] != "not-reported"].ne("").all()
    upstream = frame[frame["source"] != "article"]
    assert len(upstream) == 105 + 9 and set(upstream["article"]) == {"000"}
    assert upstream["source"].str.contains("rasbt/machine-learning-notes@8c8e867|lightly").all()
    # A unit that the kit's metric names promise and that nobody converts would be silently wrong.
    known = {"s", "W", "°C", "J", *published.UNIT_FACTORS}
    promised = (
        frame["metric"].str.contains("_s$|_bytes$|_w$|_c$|_j_per_step$") & frame["value"].notna()
    )
    assert set(frame.loc[promised, "unit"]) <= known


@pytest.mark.parametrize(
    ("article", "where", "value", "unit", "si"),
    [
        (
            "000",
            {"metric": "epoch_s", "device": "M1 Pro GPU", "experiment": "simclr"},
            6.75,
            "min",
            405.0,
        ),
        (
            "000",
            {"metric": "epoch_s", "device": "M1 Ultra GPU", "experiment": "rasbt_vgg16"},
            13.41,
            "min",
            804.6,
        ),
        ("001", {"metric": "pass_s", "device": "M2 Pro", "backend": "mps"}, 10.704, "s", 10.704),
        ("001", {"metric": "launch_cold_s", "device": "2080Ti"}, 0.0845, "ms", 8.45e-5),
        ("001", {"metric": "energy_gpu_j_per_step", "device": "M2 MAX"}, 129.30, "J", 129.30),
        (
            "001",
            {"metric": "memory_bytes", "device": "M2 Ultra", "item": "Table 1"},
            192,
            "GB",
            192e9,
        ),
        (
            "001",
            {"metric": "peak_flops_per_s", "device": "NVIDIA GeForce RTX 4090"},
            83,
            "TFLOPS",
            83e12,
        ),
        ("001", {"metric": "parameters", "experiment": "model_memory", "row": 1}, 769, "M", 769e6),
        ("001", {"metric": "theoretical_bytes", "row": 4}, 24.344, "GiB", 24.344 * 1024**3),
        (
            "004",
            {"experiment": "mlp_cnn_lstm", "row": 3, "item": "Benefit of GPU vs CPU on M2 Max"},
            6.77,
            "x",
            6.77,
        ),
    ],
)
def test_values_of_the_other_articles_and_their_si_units(article, where, value, unit, si):
    frame = values(article)
    for column, wanted in where.items():
        frame = frame[[value == wanted for value in frame[column]]]
    assert list(frame["value"]) == [value] and list(frame["unit"]) == [unit]
    assert list(frame["si"]) == [pytest.approx(si)]


def claim(name: str) -> Claim:
    return next(c for c in published.claims() if c.id == name)


def recompute(name: str):
    return claims.test(claim(name), claims.PublishedLookup(name[:3]))


def test_every_verdict_on_the_published_numbers_is_the_stated_one():
    words = {
        SUPPORTED: {"yes", "strained"},
        CONTRADICTED: {"no"},
        INCONCLUSIVE: {"not-recomputable", "untestable"},
    }
    for c in published.claims():
        assert c.needs and c.claim.endswith(".") and c.experiments and c.id.startswith(c.article)
        assert (
            not c.formula or c.holds_in_published.split(":")[0] in words[recompute(c.id).status]
        ), c.id
    assert [c.id for c in published.claims() if not c.formula] == ["000-C8", "003-C7", "004-C13"]
    # Sentences of which the numbers that are there tell nothing.
    assert [c.id for c in published.claims() if c.holds_in_published.startswith("untestable")] == [
        "001-C21",
        "001-C23",
        "003-C9",
    ]
    vae = ["003-C1", "003-C2", "003-C3", "003-C6", "003-C7", "003-C9"]
    assert [c.id for c in published.claims("003") if "vae" in c.experiments] == vae


# What the articles' numbers give, computed by hand from the articles: the sides that have terms, in order.
RECOMPUTED = {
    "000-C1": [8.785],
    "000-C2": [13.776],
    "000-C4": [118.6 * 60, 13.5 * 60],
    "000-C5": [97.7 * 60, 98 * 60],
    "000-C7": [8.785, 1.803, 2.623, 8.148],
    "001-C1": [16.7782, 16.7771, 16.7774, 16.7774],
    "001-C2": [1.195, 1.247, 1.231],
    "001-C3": [1.0225],
    "001-C5": [1.058, 1.849, 1.191, 1.643],
    "001-C6": [5.310, 7.133, 2.218, 3.516, 6.250, 15.943, 38.043],
    "001-C7": [0.1750e-3, 0.5850e-3, 0.0064e-3, 0.1273e-3],
    "001-C21": [4650 * 2.771, 6599 * 2.710, 6599 * 3.239],
    "001-C22": [0.978, 1.1689],
    "001-C23": [192e9 / 6599, 48e9 / 4650, 32e9 / 1999, 24e9 / 1599],
    "001-C24": [114.86, 212.39, 108.58, 129.30],
    "003-C1": [2.339, 1.750, 1.034, 3.142],
    "003-C2": [0.748, 3.040],
    "003-C4": [12.731, 3.150, 3.452, 0.807],
    "003-C6": [
        *(112.131 * 38, 39.839 * 182, 15.547 * 38, 20.538 * 189),  # siamese
        *(8.760 * 30, 6.555 * 51, 1.998 * 28, 6.074 * 52),  # vae
        *(
            505.52 * 40,
            47.39 * 164,
            502.79 * 40,
            73.36 * 196,
            104.67 * 80,
            59.98 * 189,
        ),  # language models
        *(137.19 * 90, 72.54 * 205, 216.04 * 70),
        *(1942.078 * 35, 285.473 * 84, 1684.591 * 35, 252.657 * 69),  # dcgan, CPU
    ],
    "003-C9": [40, 53],
    "004-C10": [10.7e12],
    "004-C11": [13.6e12 * 30 / 38, 10.7e12],
    "004-C12": [1.24, 1.43, 1.77],
}


@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputed_numbers(name):
    numbers = recompute(name).comparisons
    sides = [made.left for made in numbers] + [
        right for made in numbers for _, right in made.bounds
    ]
    values = [side.value for side in sides if isinstance(side, Estimate)]
    for made in numbers:
        if len(made.bounds) == 2:  # around a target
            ends = [
                right.value if isinstance(right, Estimate) else right for _, right in made.bounds
            ]
            values.append(sum(ends) / 2)
    for expected in RECOMPUTED[name]:
        near = pytest.approx(expected, rel=1e-9, abs=0 if expected < 1e-3 else 6e-4)
        assert any(value == near for value in values)


@pytest.mark.parametrize(
    ("metric", "where", "low", "high"),
    [
        (
            "epoch_s",
            {"device": "Nvidia A6000", "experiment": "simclr"},
            0.485 * 60,
            0.495 * 60,
        ),  # 0.49 min
        ("fit_s", {"device": "Nvidia A6000", "experiment": "simclr"}, 97.65 * 60, 97.75 * 60),
        (
            "pass_s",
            {"device": "M2 Ultra", "backend": "mlx-gpu"},
            2.7095,
            2.7105,
        ),  # 2.710: the zero is printed
        ("power_w", {"printed": "~12W"}, 12 * 0.9, 12 * 1.1),
        ("temperature_c", {"printed": "53ºC"}, 52.5, 53.5),
        ("footprint_peak_bytes", {"printed": "<1.3GB"}, 0, 1.3e9),
        ("gpu_cores", {"device": "M2 Max (30 GPU cores)"}, 30, 30),  # are counted
        ("launch_price_usd", {"device": "M2 Ultra"}, 6599, 6599),
    ],
)
def test_what_is_printed_lies_within_half_a_unit_of_its_last_digit(metric, where, low, high):
    (row,) = (
        row for row in published.rows() if where.items() <= row.items() and row["metric"] == metric
    )
    assert (row["low"], row["high"]) == (pytest.approx(low), pytest.approx(high))


class Given:
    """A lookup that asks a function, and keeps what it was asked for."""

    def __init__(self, number: Callable[..., Any]):
        self.number, self.asked = number, []

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        return ()

    def has(self, chip: str) -> bool:
        return True

    def __call__(self, *term) -> Term:
        self.asked.append(term)
        number = self.number(*term)
        if isinstance(number, tuple):
            value, low, high = number
            number = Estimate(value, low=low, high=high)
        elif isinstance(number, int | float):
            number = Estimate.count(number)
        return Term(number)


def made(formula: str) -> Claim:
    return Claim("x", "003", ("vae",), "A claim.", "", formula, "", "", "two devices")


def on(formula: str, **numbers: Any) -> claims.Decision:
    """The verdict where each role has one value for everything: a count, a number with its bounds, or a status."""
    return claims.test(
        made(formula), Given(lambda experiment, metric, role, config: numbers.get(role))
    )


def test_the_lookup_is_asked_for_what_the_term_says():
    lookup = Given(lambda *_: 1.0)
    formula = "epoch_s('M2 Max', size=3, backend='mps') / power_w(gpu, experiment='dcgan', lora=True) + parameters() > 0"
    assert claims.test(made(formula), lookup).status == SUPPORTED
    assert lookup.asked == [
        ("vae", "epoch_s", "M2 Max", {"size": 3, "backend": "mps"}),
        ("dcgan", "power_w", "gpu", {"lora": True}),
        ("vae", "parameters", None, {}),
    ]


@pytest.mark.parametrize(
    ("gpu", "cpu", "formula", "status"),
    [
        ((9, 8, 10), (4, 3, 5), "epoch_s(gpu) / epoch_s(cpu) > 1", SUPPORTED),
        (
            (9, 8, 10),
            (7, 5, 9),
            "epoch_s(gpu) / epoch_s(cpu) > 1",
            INCONCLUSIVE,
        ),  # 9/7 > 1, but 8/9 < 1
        ((4, 3, 5), (9, 8, 10), "epoch_s(gpu) / epoch_s(cpu) > 1", CONTRADICTED),
        ((9, 8, 10), (4, 3, 5), "between(3.5, epoch_s(cpu), 6)", INCONCLUSIVE),
        ((9, 8, 10), (4, 3, 5), "max(epoch_s(gpu), epoch_s(cpu)) >= 8", SUPPORTED),
        ((9, 8, 10), (4, 3, 5), "min(epoch_s(d) for d in (gpu, cpu)) < 4.5", INCONCLUSIVE),
        ((9, 8, 10), (4, 3, 5), "near(epoch_s(cpu), 4, within=0.25)", SUPPORTED),
        ((9, 8, 10), (4, 3, 5), "near(epoch_s(cpu), 4, within=0.24)", INCONCLUSIVE),
        (
            (9, 8, 10),
            (1, -1, 1),
            "epoch_s(gpu) / epoch_s(cpu) > -99",
            INCONCLUSIVE,
        ),  # may be divided by zero
        (9, 9, "(epoch_s(gpu) <= epoch_s(cpu)) & (epoch_s(gpu) >= epoch_s(cpu))", SUPPORTED),
        (math.nan, 4, "epoch_s(gpu) > epoch_s(cpu)", INCONCLUSIVE),
        # What has no interval may be anything.
        ((9, None, None), (4, 3, 5), "epoch_s(gpu) > epoch_s(cpu)", INCONCLUSIVE),
        ("ok", "error", "(status(gpu) == 'ok') & (status(cpu) != 'ok')", SUPPORTED),
        ("crashed", None, "status(gpu) == 'ok'", CONTRADICTED),
        (None, None, "status(gpu) != 'ok'", INCONCLUSIVE),
    ],
)
def test_interval_arithmetic_decides_only_what_cannot_flip(gpu, cpu, formula, status):
    assert on(formula, gpu=gpu, cpu=cpu).status == status


def test_generators():
    formula = "all(epoch_s(d, batch_size=b) < x for d in (cpu, gpu) for b, x in ((1, 5), (2, 6)))"
    decision = on(formula, cpu=3, gpu=5)
    asked = [
        (c.terms[0].traits["role"], c.terms[0].traits["batch_size"]) for c in decision.comparisons
    ]
    assert asked == [("cpu", 1), ("cpu", 2), ("gpu", 1), ("gpu", 2)]
    assert [(c.bounds[0][1], c.nominal, decision.fails(c)) for c in decision.comparisons] == [
        (5, True, False),
        (6, True, False),
        (5, False, True),
        (6, True, False),
    ]
    assert decision.status == CONTRADICTED
    # Where no other devices are known, the roles stand for them.
    assert on("all(epoch_s(d) < 6 for d in devices)", gpu=5).status == SUPPORTED
    assert on("all(epoch_s(r) < 6 for r in rivals)", gpu=5).status == INCONCLUSIVE


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("1 >", "invalid syntax"),
        ("epoch_s(gpu)", "compares no numbers"),
        ("open('x') == 1", "keywords|status"),  # a metric of that name, of the device x
        (
            "3 < epoch_s(gpu) < 9",
            "between",
        ),  # both chains and `and` would ask for the truth of a decision
        ("epoch_s(3) > 1", r"epoch_s\(\) takes one of cpu, gpu, rival or the name of a device"),
        ("status(gpu) > 'ok'", "a status compares by =="),
        ("epoch_s(gpu) == 1", "a number by < or >"),
    ],
)
def test_a_malformed_formula_is_refused_with_the_claim_s_name(formula, why):
    with pytest.raises(PomologyError, match=rf"^claim x: its formula .*({why})") as refused:
        claims.test(
            made(formula),
            Given(lambda _, metric, *__: "ok" if metric in ("status", "open") else 2.0),
        )
    assert "\n" not in str(refused.value)


# Measured by the kit, and printed by no article.
MEASURED = {
    "backward_s",
    "fit_s",
    "footprint_start_bytes",
    "forward_s",
    "kernel_s",
    "page_faults_slope",
    "processor",
}
MEASURED |= {"rate_left", "resident_slope_bytes", "saved_fused_bytes", "status", "step_s"}
NOT_PRINTED = {
    None,
    "M1 GPU",
    "P100",
    "T4",
    "V100",
}  # devices of article 004, whose times are only in figures


@pytest.mark.parametrize("claim", [c for c in published.claims() if c.formula], ids=lambda c: c.id)
def test_every_formula_can_be_evaluated_and_asks_for_what_there_is(claim):
    lookup = Given(lambda _, metric, *__: "ok" if metric == "status" else 1.0)
    assert None not in [made.nominal for made in claims.test(claim, lookup).comparisons]
    rows = published.rows()
    for experiment, metric, role, _ in lookup.asked:
        assert experiment in claim.experiments and metric in MEASURED | {
            row["metric"] for row in rows
        }
        assert role in (*published.ROLES, *NOT_PRINTED, *(row["device"] for row in rows))
