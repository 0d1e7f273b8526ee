"""Price and energy of training speed, as published by Feng et al. 2025 and as measured in a run."""

import pandas

from pomology.articles import devices, published
from pomology.format import significant
from pomology.measure.estimate import Estimate
from pomology.report.figures import Line, points_figure
from pomology.report.table import SOFTWARE, Row, Table
from pomology.results import cases
from pomology.results.repeats import pool

SIMILAR = 1.5  # the largest ratio of two prices that count as similar
YEAR_S = 365.25 * 86400
KWH_J = 3.6e6
# Columns of `offers`.
TEXTS = ["device", "maker", "role", "framework", "work"]
NUMBERS = [
    "price_usd",
    "memory_bytes",
    "peak_flops_per_s",
    "batch_size",
    "pass_s",
    "flops_per_s",
]
WORK = {"device": "Device", "framework": "Framework", "work": "Workload"}
PRICES = {
    "price_usd": ("Price", 1, " USD"),
    "memory_bytes": ("Memory", 2**30, " GiB"),
    "peak_flops_per_s": ("Peak FLOP/s", 1e12, " TFLOP/s"),
    "pass_s": ("Time of a pass", 1, " s"),
    "flops_per_s": ("Achieved FLOP/s", 1e12, " TFLOP/s"),
    "share_of_peak": ("Achieved / peak", 0.01, " %"),
    "peak_flops_per_s_per_usd": ("Peak FLOP/s per 1,000 USD", 1e9, " TFLOP/s"),
    "memory_bytes_per_usd": ("Memory per 1,000 USD", 2**30 / 1000, " GiB"),
    "flops_per_s_per_usd": ("Achieved FLOP/s per 1,000 USD", 1e9, " TFLOP/s"),
    "usd_seconds_per_sequence": ("Price of 1 sequence/s", 1, " USD"),
    "usd_per_million": ("Price of use per million sequences", 1, " USD"),
}
PAIRS = {
    "price": ("Price, 1/2", 1, "×"),
    "peak": ("Peak FLOP/s, 2/1", 1, "×"),
    "memory_per_usd": ("Memory per USD, 1/2", 1, "×"),
    "speed": ("Achieved FLOP/s, 2/1", 1, "×"),
    "speed_per_usd": ("Achieved FLOP/s per USD, 2/1", 1, "×"),
}
ENERGY = {
    "energy_j_per_step": ("Energy per step", 1, " J"),
    "j_per_tflop": ("Energy per TFLOP", 1, " J"),
    "electricity_usd": ("Price of electricity, 1,000 steps", 0.01, " US cents"),
    "use_usd": ("Price of use, 1,000 steps", 0.01, " US cents"),
    "together_usd": ("Electricity and use, 1,000 steps", 0.01, " US cents"),
}


def offers(records, best, memory_bytes, price_usd):
    """Return the devices of table 1 and this machine, with their passes of GPT-2-large, in SI.

    Args:
        records: the results of one run.
        best: the peaks of the run, from `peaks.best`.
        memory_bytes: memory of this machine, used for its CPU and its Apple GPU.
        price_usd: price of this machine; 0 is unknown.
    """
    offered = _published_offers()
    of_pretraining = [
        record
        for record in records
        if record.experiment == "gpt2_pretraining" and record.profile != "smoke"
    ]
    for case in pool(of_pretraining):
        rate = case.values.get("flops_per_s")
        if not rate:
            continue
        first = case.first
        time = case.values.get("pass_s")
        peak = best.get((case.kind, "fp32"))
        work = case.config["model"]
        offered.loc[len(offered)] = {
            "device": case.device,
            "maker": "here",
            "role": case.kind,
            "framework": case.framework,
            "work": f"{work} (scaled)" if first.scaled else work,
            "price_usd": price_usd or None,
            "memory_bytes": None if first.backend == "cuda" else memory_bytes,
            "peak_flops_per_s": peak and peak.rate.value,
            "batch_size": case.config["batch_size"],
            "pass_s": time.value if time and not first.scaled else None,
            "flops_per_s": rate.value,
        }
    return offered[TEXTS + NUMBERS].astype(dict.fromkeys(NUMBERS, float))


def _published_offers():
    """Return the devices of the article's table 1, with the passes of its tables 4 and 5."""
    rows = pandas.DataFrame(published.rows("001")).dropna(subset="si")
    first = rows[rows["item"].eq("Table 1")]
    table = first.pivot_table(index=["device", "role"], columns="metric", values="si", sort=False)
    table = table.rename(columns={"launch_price_usd": "price_usd"}).reset_index()
    table["memory_bytes"] *= 2**30 / 1e9  # table 1 prints GB, but memory comes in GiB
    table["maker"] = table.role.map({"gpu": "Apple"}).fillna("NVIDIA")
    # Tables 4 and 5 print other names than table 1.
    in_table_1 = {devices.canonical(name): name for name in table.device}
    passes = rows[rows.metric.eq("pass_s")]
    names = [in_table_1.get(devices.canonical(name), name) for name in passes.device]
    passes = passes.assign(device=names)
    config = pandas.DataFrame(passes.config.tolist(), index=passes.index)
    frameworks = passes.framework.map(_framework)
    passes = passes.assign(work=config.model, framework=frameworks, batch_size=config.batch_size)
    passes = passes.assign(pass_s=passes.si, flops_per_s=passes.flops.astype(float) / passes.si)
    # Columns that table 1 has, too, would get suffixes.
    passes = passes.drop(columns=["role", *table.columns[2:]], errors="ignore")
    return table.merge(passes, "left", "device")


def _framework(printed):
    """Return the official name of a framework as published rows have it, `pytorch` or `mlx`."""
    return cases.framework_name(printed.replace("pytorch", "torch"))


def prices_table(offered, years_of_use):
    """Return the table of prices per FLOP/s, memory and sequence; `offered` is from `offers`.

    Without its price this machine is not in it.
    """
    offered = offered[offered.price_usd.notna()]
    use = offered.price_usd * offered.pass_s / offered.batch_size
    offered = offered.assign(
        share_of_peak=offered.flops_per_s / offered.peak_flops_per_s,
        peak_flops_per_s_per_usd=offered.peak_flops_per_s / offered.price_usd,
        memory_bytes_per_usd=offered.memory_bytes / offered.price_usd,
        flops_per_s_per_usd=offered.flops_per_s / offered.price_usd,
        usd_seconds_per_sequence=use,
        usd_per_million=use * 1e6 / (years_of_use * YEAR_S),
    )
    offered["work"] += offered.batch_size.map(", batch {:.0f}".format)
    meaning = (
        "Price of 1 sequence/s: that of the device over its sequences of 1,024 tokens per second.",
        f"Price of use: the share of the price that a million such sequences take, if the device "
        f"trains without a pause for {years_of_use:g} years. Electricity and a card's computer are "
        "not included.",
        "Prices are launch prices, and this machine's is the parameter price_usd. Peak: single "
        "precision in table 1; for this machine the fastest fp32 rate of the run. Workload: "
        "(scaled) is a smaller model or batch than the article's. A pass is one whole training "
        "step.",
    )
    return _table("Price of training speed", offered, WORK, PRICES, *meaning, SOFTWARE)


def pairs_table(offered):
    """Return pairs of similar price: Apple with NVIDIA devices, and this machine with both."""
    offered = offered[offered.price_usd.notna()]
    here = offered[offered.maker.eq("here")]
    pairs = pandas.concat([offered.drop(here.index), _counting(here)]).merge(
        offered.drop(here.index), "cross", suffixes=("", "_of")
    )
    against = pairs.maker_of.eq("NVIDIA") & pairs.maker.ne("NVIDIA") | pairs.maker.eq("here")
    pairs["price"] = pairs.price_usd / pairs.price_usd_of
    pairs = pairs[against & pairs.price.between(1 / SIMILAR, SIMILAR)]
    speed = pairs.flops_per_s_of / pairs.flops_per_s
    pairs = pairs.assign(
        peak=pairs.peak_flops_per_s_of / pairs.peak_flops_per_s,
        memory_per_usd=pairs.memory_bytes / pairs.memory_bytes_of / pairs.price,
        speed=speed,
        speed_per_usd=speed * pairs.price,
        one=pairs.device + _in_brackets(pairs.framework, pairs.work).where(speed.notna(), ""),
        other=pairs.device_of
        + _in_brackets(pairs.framework_of, pairs.work_of).where(speed.notna(), ""),
    ).drop_duplicates(["one", "other"])
    texts = {"one": "Device 1", "other": "Device 2, of similar price"}
    meaning = (
        f"Similar: prices at most {SIMILAR:g} times apart.",
        "1/2: the number of device 1 over that of device 2; 2/1: the other way round.",
    )
    return _table("Pairs of similar price", pairs, texts, PAIRS, *meaning)


def _in_brackets(framework, work):
    """Return ` (PyTorch, gpt2-large)` for each row of two columns."""
    return " (" + framework + ", " + work + ")"


def _counting(here):
    """Return the rows with which this machine counts.

    They are those of the article's model, or else the fastest of the smaller ones.
    """
    whole = here[here.pass_s.notna()]
    return here.nlargest(1, "flops_per_s") if whole.empty else whole


def answer(offered):
    """Return what training speed costs on this machine and the article's devices, in sentences."""
    offered = offered.assign(per_usd=offered.flops_per_s / offered.price_usd)
    is_here = offered.maker.eq("here")
    here, printed = _counting(offered[is_here]), offered[~is_here]
    ends = printed.per_usd.idxmin(), printed.per_usd.idxmax()
    theirs = [_text_per_usd(printed.loc[end]) for end in ends]
    article = f"The article's devices reach {' to '.join(theirs)}, at launch prices."
    if here.empty:
        return f"No pass of gpt2_pretraining was measured on this machine. {article}"
    if here.price_usd.isna().all():
        return f"No price was given for this machine: set price_usd. {article}"
    own = _text_per_usd(here.loc[here.per_usd.idxmax()])
    return f"In training this machine reaches {own}. {article}"


def _text_per_usd(row):
    """Return what a device achieves per 1,000 USD, with its name and workload."""
    rate = f"{significant(row.per_usd / 1e9)} TFLOP/s per 1,000 USD"
    return f"{rate} ({row.device}, {row.framework}: {row.work}, batch {row.batch_size:.0f})"


def energy_table(records, price_usd, usd_per_kwh, years_of_use):
    """Return joules per step, published and measured, with the price of electricity and use."""
    rows = pandas.DataFrame(published.rows("001", "energy")).dropna(subset="si")
    rows = rows[rows.metric.eq("energy_gpu_j_per_step")]
    config = pandas.DataFrame(rows.config.tolist(), index=rows.index)
    work = config.model + config.batch_size.map(", batch {}".format)
    frameworks = rows.framework.map(_framework)
    printed = rows.assign(work=work, framework=frameworks, energy_j_per_step=rows.si, maker="")
    measured = []
    for case in pool(record for record in records if record.profile != "smoke"):
        joules, step = case.values.get("energy_j_per_step"), case.values.get("step_s")
        if joules and joules.value > 0:
            row = {
                "device": case.device,
                "maker": "here",
                "framework": case.framework,
                "work": f"{case.first.experiment}: {cases.config_text(case.config)}",
                "energy_j_per_step": joules.value,
                "flops": case.first.flops_per_step,
                "step_s": step and step.value,
            }
            measured.append(row)
    columns = ["device", "maker", "framework", "work", "energy_j_per_step", "flops", "step_s"]
    steps = pandas.concat([printed, pandas.DataFrame(measured)]).reindex(columns=columns)
    steps = steps.astype({"flops": float, "step_s": float})
    electricity = 1000 * steps.energy_j_per_step / KWH_J * usd_per_kwh
    use = 1000 * steps.step_s * (price_usd or float("nan")) / (years_of_use * YEAR_S)
    steps = steps.assign(
        j_per_tflop=steps.energy_j_per_step / steps.flops * 1e12,
        electricity_usd=electricity,
        use_usd=use,
        together_usd=electricity + use,
    )
    note = f"Electricity: {usd_per_kwh:g} USD per kilowatt-hour. Table 5 counts the GPU alone."
    if price_usd:
        note += f" Price of use: the device's price, spread over {years_of_use:g} years."
    return _table("Price of energy", steps, WORK, ENERGY, note)


def figure(offered):
    """Return a figure of FLOP/s per USD for each device with a price."""
    panels = {"Peak FLOP/s in fp32": {}, "Achieved in training GPT-2-large, table 4": {}}
    for row in offered[offered.price_usd.notna()].itertuples():
        kind = ("measured" if row.maker == "here" else "published", row.role)
        work = "" if row.work == "gpt2-large" else f"{row.work}, "  # the title has it
        achieved = f"{row.device}, {row.framework}: {work}batch {row.batch_size:.0f}"
        names = (row.device, achieved)
        for lines, name, rate in zip(
            panels.values(), names, (row.peak_flops_per_s, row.flops_per_s), strict=True
        ):
            if rate > 0:
                value = rate / row.price_usd
                text = significant(value / 1e9)  # its unit would take half of the width
                lines.setdefault(name, Line(name, kind, text, [Estimate(value)]))
    panels = {title: list(lines.values()) for title, lines in panels.items()}
    return points_figure(panels, "TFLOP/s per 1,000 USD (higher is better)", 1e9)


def _table(title, frame, texts, numbers, *notes):
    """Return a frame as a table.

    Args:
        texts: headings of the first columns, by name.
        numbers: heading, unit and name of the unit of the other columns, by name.
    """
    rows = []
    for row in frame.to_dict("records"):
        cells = {heading: row[name] for name, heading in texts.items()}
        for name, (heading, unit, words) in numbers.items():
            # A price is shown as it is printed.
            show = "{:,.0f}".format if name == "price_usd" else significant
            cells[heading] = "" if pandas.isna(row[name]) else f"{show(row[name] / unit)}{words}"
        kind = "measured" if row["maker"] == "here" else "published"
        cells = {name: "" if pandas.isna(cell) else cell for name, cell in cells.items()}
        rows.append(Row(cells, {name: row[name] for name in (*texts, *numbers)}, kind))
    return Table(title, rows, notes)
