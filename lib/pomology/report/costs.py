"""What speed costs: the prices and energies that article 001 prints, and what this machine has measured, together.

Times are of table 4 (a pass of GPT-2-large), energies of table 5 (a step of Whisper-medium); operations are counted on
paper. What this machine cost only its owner knows. Reads records as they are in a journal; times nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from pomology.articles import published
from pomology.articles.published import experiment_of
from pomology.format import quantity, seconds, significant
from pomology.measure.estimate import Estimate
from pomology.report import roofline
from pomology.report.table import Row, Table
from pomology.results import cases
from pomology.results.cases import chip_name, combined, comparable, groups, settings

ARTICLE = "001"
SIMILAR = 1.5  # prices are called similar if one is at most so many times the other
YEAR_S = 365.25 * 86400
KWH_J = 3.6e6
# The device's name in table 1, by that of tables 4 and 5 where they differ.
NAMES = {"A6000": "NVIDIA RTX A6000", "RTX 4090": "NVIDIA GeForce RTX 4090", "M2 MAX": "M2 Max"}
LENGTH = 1024  # tokens of a sequence in table 4, as its times imply


@dataclass(frozen=True)
class Offer:
    """A device at its price, and a workload on it, where there is one. SI units and USD; None is not told.

    maker: `Apple`, `NVIDIA` or `here`. pass_s: of `batch_size` sequences, and None where a smaller model ran.
    """

    device: str
    maker: str
    price_usd: float | None
    memory_bytes: float | None
    peak_flops_per_s: float | None
    work: str = ""
    batch_size: int | None = None
    pass_s: float | None = None
    flops_per_s: float | None = None


def priced(records: Iterable[dict], memory_bytes: int | None, price_usd: float) -> list[dict]:
    """The cases of table 4 on this machine, as records of `costs`: with its price, memory and best rate.

    records: of all notebooks that this one lays together. memory_bytes: the machine's, which is not that of an NVIDIA
    card. price_usd: 0 is not told. The best rate is the fastest product in fp32 that the run has measured.
    """
    records = list(records)
    best, found = roofline.ceilings(records), []
    for record in records:
        if experiment_of(record.experiment) != "gpt2_pretraining":
            continue
        facts = {"memory_bytes": (None if record.backend == "cuda" else memory_bytes, "B")}
        ceiling = best.rates.get((cases.kind(record), "fp32"))
        facts["peak_flops_per_s"] = (ceiling and ceiling.value, "FLOP/s")
        facts["launch_price_usd"] = (price_usd or None, "USD")
        metrics = {name: Estimate(value, unit) for name, (value, unit) in facts.items() if value}
        found.append(record.replace(experiment="costs", metrics=record.metrics | metrics))
    return found


def offers(records: list[dict]) -> list[Offer]:
    """Every device of table 1, with its rows of table 4 where it has some, then this machine's priced records."""
    everything = [row for row in published.values(ARTICLE).to_dict("records") if row["si"] is not None]
    passes: dict[str, list[dict]] = {}
    for row in everything:
        if row["metric"] == "pass_s":
            passes.setdefault(NAMES.get(row["device"], row["device"]), []).append(row)
    facts: dict[str, dict] = {}
    for row in everything:
        if row["item"] == "Table 1":
            facts.setdefault(row["device"], {"role": row["role"]})[row["metric"]] = row["si"]
    found = []
    for name, fact in facts.items():
        about = (name, "Apple" if fact["role"] == "gpu" else "NVIDIA", fact["launch_price_usd"])
        # Memory comes in powers of two, whatever the table calls it.
        about += (fact["memory_bytes"] / 1e9 * 2**30, fact["peak_flops_per_s"])
        found += [Offer(*about)] if name not in passes else []
        for row in passes.get(name, ()):
            size = row["config"]["batch_size"]
            rate = row["flops"] / row["si"]
            found.append(Offer(*about, f"{row['config']['model']}, {row['backend']}", size, row["si"], rate))
    for repeats in groups(comparable(records, "flops_per_s")):
        first = repeats[0]
        names = ("launch_price_usd", "memory_bytes", "peak_flops_per_s", "pass_s", "flops_per_s")
        price, memory, peak, time, rate = (combined(repeats, name) for name in names)
        if rate is None:
            continue
        values = [one and one.value for one in (price, memory, peak)]
        work = f"{first.config.get('model', '')}, {first.backend}{' (scaled)' if first.scaled else ''}"
        own = None if first.scaled or time is None else time.value
        size = first.config.get("batch_size")
        found.append(Offer(chip_name(first), "here", *values, work, size, own, rate.value))
    return found


def table(records: list[dict], years_of_use: float) -> Table:
    """What a device, and its speed in table 4, cost; records: those of `priced`."""
    columns = ("Device", "Price", "Peak for 1,000 USD", "Memory for 1,000 USD", "Workload", "Batch size", "Pass")
    columns += ("Achieved", "of the peak", "for 1,000 USD", "USD for a sequence a second", "Using it for a million")
    rows, data = [], []
    for one in offers(records):
        price, peak, rate = one.price_usd, one.peak_flops_per_s, one.flops_per_s
        each = one.pass_s / one.batch_size if one.pass_s and one.batch_size else None
        numbers = {
            "peak_flops_per_s_per_usd": _over(peak, price),
            "memory_bytes_per_usd": _over(one.memory_bytes, price),
            "share_of_peak": _over(rate, peak),
            "flops_per_s_per_usd": _over(rate, price),
            "usd_seconds_per_sequence": price and each and price * each,
        }
        numbers["usd_per_million"] = _scaled(numbers["usd_seconds_per_sequence"], 1e6 / (years_of_use * YEAR_S))
        cells = [one.device, f"{price:,.0f} USD" if price else "not told"]
        cells += [_shown(numbers["peak_flops_per_s_per_usd"], 1e9, " TFLOP/s")]
        cells += [_shown(numbers["memory_bytes_per_usd"], 2**30 / 1000, " GB"), one.work, str(one.batch_size or "")]
        cells += [seconds(one.pass_s) if one.pass_s else "", _shown(rate, 1e12, " TFLOP/s")]
        cells += [_shown(numbers["share_of_peak"], 0.01, " %"), _shown(numbers["flops_per_s_per_usd"], 1e9, " TFLOP/s")]
        cells += [_shown(numbers["usd_seconds_per_sequence"], 1, ""), _shown(numbers["usd_per_million"], 1, " USD")]
        rows.append(Row(tuple(cells), "measured" if one.maker == "here" else "published"))
        data.append({"device": one.device, "maker": one.maker, "work": one.work, "price_usd": price, **numbers})
    notes = [
        f"Using it: the price spread over {years_of_use:g} years of training without a pause, for a million sequences "
        f"of {LENGTH:,} tokens; electricity and the computer around a card are not in it."
    ]
    notes.append(
        "Prices are those at launch, in table 1; this machine's is what was told. Peak: single precision in table 1, "
        "here the fastest product in fp32 that this run has measured."
    )
    if any(one.maker == "here" for one in offers(records)):
        notes.append("The intervals of what this machine achieved are in the table above, the article's own.")
    return Table("What speed costs", columns, tuple(rows), tuple(notes), tuple(data))


def pairs(records: list[dict]) -> Table:
    """Apple against NVIDIA, and this machine against both, where their prices are similar; records: of `priced`."""
    priced_ones = [one for one in offers(records) if one.price_usd]
    # Of this machine the article's own model, or else the best of the smaller ones.
    ours = [one for one in priced_ones if one.maker == "here"]
    kept = [one for one in ours if one.pass_s] or sorted(ours, key=lambda one: one.flops_per_s)[-1:]
    priced_ones = [one for one in priced_ones if one not in ours or one in kept]
    found: dict[tuple[str, str], dict] = {}
    for one, other in itertools.permutations(priced_ones, 2):
        dear = one.price_usd / other.price_usd
        against = (one.maker, other.maker) in (("Apple", "NVIDIA"), ("here", "Apple"), ("here", "NVIDIA"))
        if not against or not 1 / SIMILAR <= dear <= SIMILAR:
            continue
        # Times of other batch sizes are times of other workloads; operations a second compare.
        speed = _over(other.flops_per_s, one.flops_per_s)
        names = [f"{side.device} ({side.work})" if speed else side.device for side in (one, other)]
        found[tuple(names)] = {
            "price": dear,
            "peak": _over(other.peak_flops_per_s, one.peak_flops_per_s),
            "memory_per_usd": _over(_over(one.memory_bytes, one.price_usd), _over(other.memory_bytes, other.price_usd)),
            "speed": speed,
            "speed_per_usd": speed and speed * dear,
        }
    rows = [Row((*names, *(_shown(value, 1, "×") for value in numbers.values()))) for names, numbers in found.items()]
    data = [{"one": names[0], "other": names[1], **numbers} for names, numbers in found.items()]
    columns = ("One", "Other of similar price", "Price, one over other", "Peak, other over one")
    columns += ("Memory for a dollar, one over other", "Achieved, other over one")
    columns += ("Achieved for a dollar, other over one",)
    note = f"Similar: at most {SIMILAR:g} times apart. Achieved: operations a second in table 4, or here."
    return Table("Pairs of similar price", columns, tuple(rows), (note,), tuple(data))


def energy(records: list[dict], price_usd: float, usd_per_kwh: float, years_of_use: float) -> Table:
    """Joules of a step as table 5 prints them and as this run has measured them, and what a thousand steps cost."""
    columns = (
        "Device",
        "Workload",
        "A step",
        "For a TFLOP",
        "Electricity of 1,000 steps",
        "Using the device",
        "Together",
    )
    rows, data = [], []

    def add(kind: str, device: str, work: str, joules: float, flops: float | None, step_s: float | None) -> None:
        electricity = 1000 * joules / KWH_J * usd_per_kwh
        use = 1000 * step_s * price_usd / (years_of_use * YEAR_S) if step_s and price_usd else None
        together = None if use is None else use + electricity
        each = _scaled(_over(joules, flops), 1e12)
        costs = (electricity, use, together)
        cells = (device, work, f"{significant(joules)} J", _shown(each, 1, " J"), *(_cents(cost) for cost in costs))
        rows.append(Row(cells, kind))
        row = {"source": kind, "device": device, "work": work, "energy_j_per_step": joules, "j_per_tflop": each}
        data.append(row | {"electricity_usd": electricity, "use_usd": use, "together_usd": together})

    for row in published.values(ARTICLE, "energy").to_dict("records"):
        if row["metric"] == "energy_j_per_step" and row["si"] is not None:
            work = f"{row['config']['model']}, batch {row['config']['batch_size']}"
            add("published", row["device"], work, row["si"], row["flops"], None)
    for repeats in groups([record for record in records if record.profile != "smoke"]):
        joules, step = combined(repeats, "energy_j_per_step"), combined(repeats, "step_s")
        if joules is not None and joules.value > 0:
            first = repeats[0]
            work = f"{first.experiment}: {settings(first)}"
            counted = first.flops_per_step
            add("measured", chip_name(first), work, joules.value, counted, step and step.value)
    notes = [f"Electricity at {usd_per_kwh:g} USD for a kilowatt-hour; using the device as in the table of prices."]
    notes.append(
        "Table 5 is the GPU alone. The time of its steps is not printed, so nobody can say what their use costs."
    )
    if not any(row.kind == "measured" for row in rows):
        notes.append("This run has measured no energy: no meter may be read here, or no notebook with steps has run.")
    elif not price_usd:
        notes.append("What this machine cost is not told (`price_usd`), so its use has no price.")
    return Table("What energy costs", columns, tuple(rows), tuple(notes), tuple(data))


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _shown(value: float | None, unit: float, words: str) -> str:
    return "" if value is None else f"{significant(value / unit)}{words}"


def _cents(usd: float | None) -> str:
    return "" if usd is None else f"{quantity(100 * usd, 'ct')}" if usd < 1 else f"{significant(usd)} USD"
