"""What speed costs: the prices and energies that article 001 prints, and what this machine has measured, together.

Times are of table 4 (a pass of GPT-2-large), energies of table 5 (a step of Whisper-medium); operations are counted on
paper. What this machine cost only its owner knows. Reads the records of a run; times nothing.
"""

import itertools
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from pomology.articles import published
from pomology.format import quantity, seconds, significant
from pomology.measure.estimate import Estimate
from pomology.report import roofline
from pomology.report.table import SOFTWARE, Table, grouped
from pomology.results import cases
from pomology.results.cases import chip_name, combined, comparable, groups, settings
from pomology.results.record import Metrics, Record

ARTICLE = "001"
SIMILAR = 1.5  # prices are called similar if one is at most so many times the other
YEAR_S = 365.25 * 86400
KWH_J = 3.6e6
# The device's name in table 1, by that of tables 4 and 5 where they differ.
NAMES = {"A6000": "NVIDIA RTX A6000", "RTX 4090": "NVIDIA GeForce RTX 4090", "M2 MAX": "M2 Max"}
LENGTH = 1024  # tokens of a sequence in table 4, as its times imply


class Offer(NamedTuple):
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


def priced(records: Iterable[Record], memory_bytes: int | None, price_usd: float) -> list[Record]:
    """The cases of table 4 on this machine, as records of `costs`: with its price, memory and best rate.

    records: of all notebooks that this one combines. memory_bytes: the machine's, which is not that of an NVIDIA card.
    price_usd: 0 is not told. The best rate in fp32 is what the run has measured.
    """
    records = list(records)
    best, known = roofline.ceilings(records), []
    for record in records:
        if published.experiment_of(record.experiment) == "gpt2_pretraining":
            ceiling = best.rates.get((cases.kind(record), "fp32"))
            facts = [("memory_bytes", None if record.backend == "cuda" else memory_bytes, "B")]
            facts += [("peak_flops_per_s", ceiling and ceiling.value, "FLOP/s"), ("launch_price_usd", price_usd, "USD")]
            metrics = {name: Estimate.count(value, unit) for name, value, unit in facts if value}
            known.append(record.replace(experiment="costs", metrics=Metrics(record.metrics | metrics)))
    return known


def offers(records: list[Record]) -> list[Offer]:
    """Every device of table 1, with its rows of table 4 where it has some, then this machine's priced records."""
    rows = [row for row in published.rows(ARTICLE) if row["si"] is not None]
    known = []
    for of in grouped((row for row in rows if row["item"] == "Table 1"), itemgetter("device")):
        name, fact = of[0]["device"], {row["metric"]: row["si"] for row in of}
        # Memory comes in powers of two, whatever the table calls it.
        memory, peak = fact["memory_bytes"] / 1e9 * 2**30, fact["peak_flops_per_s"]
        bare = Offer(name, "Apple" if of[0]["role"] == "gpu" else "NVIDIA", fact["launch_price_usd"], memory, peak)
        passes = [r for r in rows if r["metric"] == "pass_s" and NAMES.get(r["device"], r["device"]) == name]
        known += [] if passes else [bare]
        for row in passes:
            work, size = f"{row['config']['model']}, {row['backend']}", row["config"]["batch_size"]
            known.append(Offer(*bare[:5], work, size, row["si"], row["flops"] / row["si"]))
    for repeats in groups(comparable(records, "flops_per_s")):
        first = repeats[0]
        names = ("launch_price_usd", "memory_bytes", "peak_flops_per_s", "pass_s", "flops_per_s")
        *about, time, rate = (getattr(combined(repeats, name), "value", None) for name in names)
        if rate is not None:
            work = f"{first.config.get('model', '')}, {first.backend}{' (scaled)' if first.scaled else ''}"
            size, time = first.config.get("batch_size"), None if first.scaled else time
            known.append(Offer(chip_name(first), "here", *about, work, size, time, rate))
    return known


def table(records: list[Record], years_of_use: float) -> Table:
    """What a device, and its speed in table 4, cost; records: those of `priced`."""
    lines = []
    for device, maker, price, memory, peak, work, size, time, rate in offers(records):
        each = _over(time, size)
        use = price and each and price * each
        numbers = {
            "peak_flops_per_s_per_usd": _over(peak, price),
            "memory_bytes_per_usd": _over(memory, price),
            "share_of_peak": _over(rate, peak),
            "flops_per_s_per_usd": _over(rate, price),
            "usd_seconds_per_sequence": use,
            "usd_per_million": use and use * (1e6 / (years_of_use * YEAR_S)),
        }
        per_peak, per_memory, share, per_rate, use, million = numbers.values()
        cells = (device, f"{price:,.0f} USD" if price else "not told", _shown(per_peak, 1e9, " TFLOP/s"))
        cells += (_shown(per_memory, 2**30 / 1000, " GB"), work, str(size or ""), seconds(time) if time else "")
        cells += (_shown(rate, 1e12, " TFLOP/s"), _shown(share, 0.01, " %"), _shown(per_rate, 1e9, " TFLOP/s"))
        cells += (_shown(use), _shown(million, 1, " USD"))
        about = {"device": device, "maker": maker, "work": work, "price_usd": price}
        lines.append((cells, about | numbers, "measured" if maker == "here" else "published"))
    columns = ("Device", "Price", "Peak per 1,000 USD", "Memory per 1,000 USD", "Workload", "Batch size", "Pass")
    columns += ("Achieved", "Share of the peak", "Achieved per 1,000 USD", "USD per sequence/s")
    columns += ("Use for a million sequences",)
    meaning = [
        f"Use: the price spread over {years_of_use:g} years of training without a pause, for a million sequences "
        f"of {LENGTH:,} tokens; electricity and the computer around a card are not in it.",
        "Prices are those at launch, in table 1; this machine's is what was told. Peak: single precision in table 1, "
        "here the best rate in fp32 that this run has measured.",
    ]
    intervals = "The intervals of what this machine achieved are in the table above, the article's own."
    notes = (SOFTWARE, intervals) if any(kind == "measured" for *_, kind in lines) else ()
    return Table.of("What speed costs", columns, lines, notes, meaning)


def pairs(records: list[Record]) -> Table:
    """Apple against NVIDIA, and this machine against both, where their prices are similar; records: of `priced`."""
    known = [offer for offer in offers(records) if offer.price_usd]
    # Of this machine the article's own model, or else the best of the smaller ones.
    ours = [offer for offer in known if offer.maker == "here"]
    kept = [offer for offer in ours if offer.pass_s] or sorted(ours, key=lambda offer: offer.flops_per_s)[-1:]
    rows: dict[tuple[str, ...], tuple] = {}
    for first, other in itertools.permutations([offer for offer in known if offer not in ours or offer in kept], 2):
        dear = first.price_usd / other.price_usd
        against = (first.maker, other.maker) in (("Apple", "NVIDIA"), ("here", "Apple"), ("here", "NVIDIA"))
        if not against or not 1 / SIMILAR <= dear <= SIMILAR:
            continue
        # Times of other batch sizes are times of other workloads; operations a second compare.
        speed = _over(other.flops_per_s, first.flops_per_s)
        names = tuple(f"{side.device} ({side.work})" if speed else side.device for side in (first, other))
        per_usd = [_over(side.memory_bytes, side.price_usd) for side in (first, other)]
        peak, memory = _over(other.peak_flops_per_s, first.peak_flops_per_s), _over(*per_usd)
        numbers = {"price": dear, "peak": peak, "memory_per_usd": memory, "speed": speed}
        numbers["speed_per_usd"] = speed and speed * dear
        cells = (*names, *(_shown(value, 1, "×") for value in numbers.values()))
        rows[names] = cells, {"one": names[0], "other": names[1]} | numbers
    columns = ("One", "Other of similar price", "Price ratio, one / other", "Peak ratio, other / one")
    columns += ("Memory per dollar, one / other", "Achieved, other / one", "Achieved per dollar, other / one")
    note = f"Similar: at most {SIMILAR:g} times apart. Achieved: operations a second in table 4, or here."
    return Table.of("Pairs of similar price", columns, rows.values(), (note,))


def energy(records: list[Record], price_usd: float, usd_per_kwh: float, years_of_use: float) -> Table:
    """Joules per step as table 5 prints them and as this run has measured them, and what a thousand steps cost."""
    steps = []
    for row in published.rows(ARTICLE, "energy"):
        if row["metric"] == "energy_gpu_j_per_step" and row["si"] is not None:
            work = f"{row['config']['model']}, batch {row['config']['batch_size']}"
            steps.append(("published", row["device"], work, row["si"], row["flops"], None))
    for repeats in groups(record for record in records if record.profile != "smoke"):
        first, joules, step = repeats[0], combined(repeats, "energy_j_per_step"), combined(repeats, "step_s")
        if joules and joules.value > 0:
            about = (chip_name(first), f"{first.experiment}: {settings(first)}", joules.value, first.flops_per_step)
            steps.append(("measured", *about, step and step.value))
    lines = []
    for kind, device, work, joules, flops, step_s in steps:
        electricity = 1000 * joules / KWH_J * usd_per_kwh
        use = 1000 * step_s * price_usd / (years_of_use * YEAR_S) if step_s and price_usd else None
        together = None if use is None else use + electricity
        each = flops and joules / flops * 1e12
        shown = (f"{significant(joules)} J", _shown(each, 1, " J"), *map(_cents, (electricity, use, together)))
        row = {"source": kind, "device": device, "work": work, "energy_j_per_step": joules, "j_per_tflop": each}
        row |= {"electricity_usd": electricity, "use_usd": use, "together_usd": together}
        lines.append(((device, work, *shown), row, kind))
    notes = [
        f"Electricity at {usd_per_kwh:g} USD per kilowatt-hour; use of the device as in the table of prices.",
        "Table 5 is the GPU alone. The article does not print the time per step, so the use has no price.",
    ]
    if not any(kind == "measured" for *_, kind in lines):
        notes.append("This run has measured no energy: no meter may be read here, or no notebook with steps has run.")
    elif not price_usd:
        notes.append("What this machine cost is not told (`price_usd`), so its use has no price.")
    columns = ("Device", "Workload", "Energy per step", "Energy per TFLOP", "Electricity of 1,000 steps")
    return Table.of("What energy costs", (*columns, "Use of the device", "Together"), lines, notes)


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def _shown(value: float | None, unit: float = 1, words: str = "") -> str:
    return "" if value is None else f"{significant(value / unit)}{words}"


def _cents(usd: float | None) -> str:
    return "" if usd is None else quantity(100 * usd, "ct") if usd < 1 else f"{significant(usd)} USD"
