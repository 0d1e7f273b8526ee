"""Tables 2 and 3 of Feng et al. 2025 recomputed: the memory of training four large models."""

from pomology.articles import published
from pomology.data.speech import TOKENS
from pomology.format import quantity
from pomology.models import cost
from pomology.report import answer
from pomology.report.article import comparable
from pomology.report.figures import GREY, Bar, parts_figure
from pomology.report.table import Row, Table

GIB = 2**30


def theoretical_table():
    """Return table 2 recomputed, from its rounded parameters and from counted ones."""
    from pomology.models import large_models

    columns = (
        "Model",
        "Parameters (model card)",
        "Parameters (counted)",
        "Trained",
        "Article: card × 16 / 1024",
        "Weights",
        "Gradients",
        "Two moments",
        "Sum",
        "In GB",
        "Article over sum",
    )
    printed = {
        (row["config"]["model"], row["metric"]): row["value"]
        for row in published.rows("001", "model_memory")
    }
    rows = []
    for name in large_models.BATCH_SIZES:
        count, trained = large_models.parameters(name)
        card, gib = printed[name, "parameters"], printed[name, "theoretical_bytes"]
        together = 4 * (count + 3 * trained)
        cells = [name, f"{card:g} M", f"{count:,}", f"{trained:,}", f"{card * 16 / 1024:.3f}"]
        cells += [f"{4 * size / GIB:.3f} GiB" for size in (count, trained, 2 * trained)]
        cells += [f"{together / GIB:.3f} GiB", f"{together / 1e9:.2f} GB"]
        cells.append(f"+{100 * (gib * GIB / together - 1):.1f} %")
        rows.append(Row(dict(zip(columns, cells, strict=True))))
    return Table("Table 2: origin of its numbers", rows)


# Whether a model fits -> how a sentence on these models begins, on one and on several.
BEGINNINGS = {
    cost.TIGHT: f"Tight, with more than {100 * cost.ROOM:.0f} % of it,",
    cost.TOO_LARGE: "Too large",
}


def fitting(records):
    """Return which models fit the free memory of each device by count, are tight, or too large.

    records: of `model_memory`. Free memory is that of the last repeat. "" for smoke runs.
    """
    by_device = {}
    for case in comparable(records):
        if {"needed_bytes", "free_bytes"} <= case.values.keys():
            by_device.setdefault(case.device, []).append(case)
    texts = []
    for device, of_device in by_device.items():
        by_verdict = {verdict: [] for verdict in cost.VERDICTS}
        for case in of_device:
            needed, free = (case.last.metrics[f"{name}_bytes"].value for name in ("needed", "free"))
            sizes = f"needs {quantity(needed, 'B')}, {quantity(free, 'B')} free"
            words = f"{case.config['model']} at batch size {case.config['batch_size']} ({sizes})"
            by_verdict[cost.fit_of(needed / free)].append(words)
        fit = by_verdict[cost.FITS]
        models = "model" if len(of_device) == 1 else "models"
        verb = "fit" if len(fit) > 1 else "fits"
        count = f"{len(fit) or 'none'} of {len(of_device)} {models} {verb}"
        text = f"By count {count} the free memory of the {device}"
        text += f": {answer.listed(fit)}." if fit else "."
        for verdict, beginning in BEGINNINGS.items():
            named = by_verdict[verdict]
            if named:
                text += f" {beginning} {'is' if len(named) == 1 else 'are'} {answer.listed(named)}."
        texts.append(text)
    return " ".join(texts)


def figure(_, records):
    """Return a figure of the memory of a step of each model, with a line at the free memory.

    records: of `model_memory`. A panel has the models of a device, whose free memory is that of the
    last repeat.
    """
    panels, free_gb = {}, {}
    for case in comparable(records):
        if not {"needed_bytes", "free_bytes", "theoretical_bytes"} <= case.values.keys():
            continue
        needed, free, states = (
            case.last.metrics[f"{name}_bytes"].value for name in ("needed", "free", "theoretical")
        )
        parts = {"weights, gradients, moments": states, "activations": needed - states}
        label = f"{case.config['model']}, batch size {case.config['batch_size']}"
        words = f"{quantity(needed, 'B')}: {cost.fit_of(needed / free)}"
        bar = Bar(label, ("measured", case.kind), parts, words)
        title = f"{case.device}: {quantity(free, 'B')} free"
        panels.setdefault(title, []).append(bar)
        free_gb[title] = free / 1e9
    drawn = parts_figure(panels, "GB of a step; %: share of the step; line: free memory", 1e9)
    if drawn:
        for axis, free in zip(drawn.axes, free_gb.values(), strict=True):
            axis.axvline(free, color=GREY, linewidth=1, linestyle="dashed")
            axis.set_xlim(right=max(axis.get_xlim()[1], 1.05 * free))
    return drawn


def _ways(name, nvidia):
    """Yield the options to train, the plain one first, with the minimum memory of the device."""
    from pomology.models import large_models, offload

    attention = "fused" if nvidia else "unfused"
    for checkpointing in (False, True):
        counted = large_models.work(name, attention, checkpointing)
        yield "with checkpointing" if checkpointing else "unchanged", counted.bytes
        if nvidia:
            way = "with offload and checkpointing" if checkpointing else "with offload"
            yield way, offload.placed(counted, lambda: large_models.build(name)).bytes


def workload_table():
    """Return table 3 with the memory that each workload needs and its device has."""
    from pomology.models import large_models

    columns = (
        "Scenario",
        "Workload",
        "Batch size",
        "Device",
        "Memory",
        "Theoretical",
        "Activations",
        "Sum",
        "Share of memory",
        "Fits",
    )
    rows = published.rows("001")
    memory = {row["device"]: int(row["value"]) for row in rows if row["metric"] == "memory_bytes"}
    lines = []
    for row in rows:
        if row["item"] != "Table 3":
            continue
        name, nvidia = row["config"]["model"], row["role"] == "rival"
        has = memory[row["device"]]
        plain = large_models.work(name, "fused" if nvidia else "unfused")
        shares = [(way, size / (has * GIB)) for way, size in _ways(name, nvidia)]
        fits = [
            f"{way}: {100 * share:.0f} %{', tight' if cost.fit_of(share) == cost.TIGHT else ''}"
            for way, share in shares
            if cost.fit_of(share) != cost.TOO_LARGE
        ]
        cells = [str(row["config"]["scenario"]), name, str(large_models.BATCH_SIZES[name])]
        cells += [row["device"], f"{has} GiB"]
        sizes = plain.state_bytes, plain.saved_bytes, plain.bytes
        cells += [f"{size / GIB:.1f} GiB" for size in sizes]
        cells += [f"{100 * shares[0][1]:.0f} %", fits[0] if fits else "with no option"]
        lines.append(Row(dict(zip(columns, cells, strict=True)), kind="published"))
    title = "Table 3: memory of its workloads and of its devices"
    texts = f"GPT-2 with texts of {large_models.TEXT_TOKENS} tokens"
    labels = f"Whisper with labels of {TOKENS} tokens"
    tight = f"Tight: more than {100 * cost.ROOM:.0f} % of the memory."
    return Table(title, lines, [f"{texts}, {labels}; shorter ones need less.", tight])
