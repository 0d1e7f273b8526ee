"""Devices and frameworks beside each other, as ratios."""

import json
import statistics
from collections.abc import Iterator

from pomology.articles import published
from pomology.format import seconds, significant, with_interval
from pomology.measure.estimate import Estimate
from pomology.report import declaration, roofline
from pomology.report.declaration import Declaration
from pomology.report.table import Table, ends, grouped
from pomology.results import cases, metrics
from pomology.results.cases import FRAMEWORKS, combined, good_of, groups, kind
from pomology.results.record import Record

# How a published ratio is shown.
RATIOS = {"speedup": "{:g}×", "slowdown": "{:g}× slower", "faster_percent": "{:g} % faster"}

PAIR = ("torch", "mlx")

PROOF = (
    "The same: equal inputs, and both results within the tolerance of the same reference, which neither framework "
    "computed"
)


def _times(ratio: Estimate | None) -> str:
    """`1.58× (1.48 to 1.68)`."""
    return with_interval(ratio, metrics.show("speedup")) if ratio else ""


def ratio_table(experiment: str | Declaration, records: list[Record]) -> Table:
    """How many times faster one device is than another: first what the article prints, then for each setting that ran
    here CPU time / GPU time with its interval, or why there is none; and the average, least and most of these."""
    about = declaration.of(experiment)
    lines, ratios = [], []
    for value in published.rows(experiment=about.experiment):
        if value["metric"] in RATIOS:
            device, config, ratio = value["device"], value["config"], value["value"]
            shown = value["note"] if ratio is None else RATIOS[value["metric"]].format(ratio)
            cells = (device, str(config.get("versus", "")), *about.cells(config), shown, value["printed"])
            lines.append((cells, {"source": "published", "device": device, **config, "ratio": ratio}, "published"))

    def add(settings: list[str], shown: str, note: str, numbers: dict) -> None:
        lines.append((("GPU here", "CPU here", *settings, shown, note), {"source": "measured"} | numbers, "measured"))

    ours = [record for record in records if record.profile != "smoke"]  # scaled alike on both devices
    settings = grouped(ours, lambda record: json.dumps(record.config))
    for here in settings:
        ratio, reason = _ratio(here, about.time)
        numbers = {"value": ratio.value, "low": ratio.low, "high": ratio.high} if ratio else {"reason": reason}
        config = here[0].config
        add(about.cells(config), _times(ratio) or reason, "", {"device": "gpu", "versus": "cpu", **config, **numbers})
        ratios += [ratio.value] if ratio else []
    note = f"of {len(ratios)} of {len(settings)}" if 0 < len(ratios) < len(settings) else ""
    for word, reduce in (("average", statistics.fmean), ("minimum", min), ("maximum", max)) if settings else ():
        best = reduce(ratios) if ratios else None
        shown = f"{significant(best)}×" if ratios else "no pair of times to compare"
        add([word, *[""] * (len(about.headings) - 1)], shown, note, {"device": word, "ratio": best})
    columns = ("Device", "Against", *about.headings.values(), "Times faster", "As printed")
    meaning = [
        lines and "How many times as fast the first device is; of this machine the CPU's time over the GPU's.",
        ratios and "± is the 95 % interval of both times within their runs, put together; see the table of times.",
    ]
    notes = [len(ours) < len(records) and "This was a smoke test: its times are compared with nothing."]
    return Table.of("How many times faster", columns, lines, notes, meaning)


def _ratio(records: list[Record], metric: str) -> tuple[Estimate | None, str]:
    """CPU time over GPU time of one setting, or the reason why there is none."""
    times = []
    for device in ("cpu", "gpu"):
        here = [record for record in records if kind(record) == device]
        if not here:
            return None, f"no {device.upper()} was timed here"
        if len(groups(here)) > 1:
            return None, f"{len(groups(here))} cases on the {device.upper()} match"
        if not (time := combined(here, metric)):
            return None, f"{device.upper()}: {here[-1].status}"
        times.append(time)
    return times[0] / times[1], ""


def side_by_side(experiment: str | Declaration, records: list[Record]) -> Table:
    """The same cases in PyTorch and MLX, on the same kind of device: the ratio of their times where `_sameness` proves
    that they are the same, else the reason why there is none."""
    about = declaration.of(experiment)
    lines = []
    for device, config, repeats, remark, same in _pairs(records):
        times = {name: combined(here, about.time) for name, here in repeats.items()}
        errors = {name: combined(here, "max_abs_error") for name, here in repeats.items()}
        ratio = times["torch"] / times["mlx"] if same and all(times.values()) else None
        row = {"device": device, **config, "same": same, "ratio": ratio and ratio.value, "remark": remark}
        for metric, values in ((about.time, times), ("max_abs_error", errors)):
            row |= {f"{name}_{metric}": value and value.value for name, value in values.items()}
        ended = {name: here[-1].status if here else "" for name, here in repeats.items()}
        timed = (with_interval(time, seconds) if time else ended[name] for name, time in times.items())
        wrong = (f"{error.value:.1e}" if error else "" for error in errors.values())
        cells = (device, *about.cells(config), *timed, _times(ratio), *wrong, remark)
        lines.append((cells, row | ends("ratio", ratio)))
    several = any(record.repeat for record in records)
    notes = []
    for name in sorted({*PAIR} - {record.framework for record in records}):
        wanted = next((each for each in about.sources if each.endswith(f"_{name}")), name)
        notes.append(f"{FRAMEWORKS[name]} has no numbers in this run: run {wanted} into the same folder first.")
    notes += [any(record.profile == "smoke" for record in records) and "This was a smoke test, with tiny shapes."]
    rows = [row for _, row in lines if row["ratio"]]
    faster, slower = sum(row.get("ratio_low", 0) > 1 for row in rows), sum(row.get("ratio_high", 1) < 1 for row in rows)
    meaning = [
        rows
        and f"Of {len(rows)} cases that both computed alike MLX was faster in {faster}, PyTorch in {slower}, "
        f"{len(rows) - faster - slower} are not told apart.",
        lines and f"Ratio: PyTorch's time over MLX's, so above 1 MLX is faster. {about.parity_note or PROOF}.",
        lines
        and "In brackets, and behind ±: 95 % intervals "
        f"{'between repeats' if several else 'within this run; another may differ by more'}.",
    ]
    columns = ("Device", *about.headings.values(), "PyTorch", "MLX", "Ratio", "Error, PyTorch", "Error, MLX", "Remarks")
    return Table.of("PyTorch and MLX, side by side", columns, lines, notes, meaning)


def _pairs(records: list[Record]) -> Iterator[tuple[str, dict, dict[str, list[Record]], str, bool]]:
    """Of every case its device, its settings, its repeats by framework, and as of `_sameness`; without TF32, which only
    one of the two has."""
    own = [record for record in records if cases.precision(record) != "tf32"]
    for case in grouped(own, lambda record: (kind(record), json.dumps(record.config, sort_keys=True))):
        repeats = {name: [record for record in case if record.framework == name] for name in PAIR}
        yield kind(case[0]).upper(), case[0].config, repeats, *_sameness(repeats)


def parts(experiment: str | Declaration, records: list[Record], best: roofline.Ceilings, keras: list[Record]) -> Table:
    """Of the same cases the ratios of the forward pass and of the rest of the step, the share of the machine's ceiling
    that each framework reaches, and how much longer a step takes in TensorFlow.

    keras: of the notebooks that have the name of a workload. A ratio is there where both sides are known to be the
    same, and where what is left of a step without its forward pass is larger than both intervals.
    """
    about, lines = declaration.of(experiment), []
    for device, config, repeats, _, same in _pairs(records):
        settings = config.get("workload"), {"batch_size": config.get("batch_size")}, device
        repeats["tensorflow"] = [r for r in keras if (r.experiment, r.config, kind(r).upper()) == settings]
        steps = {name: combined(here, "step_s") for name, here in repeats.items()}
        forward = [combined(repeats[name], "forward_s") for name in PAIR]
        rest = [steps[name] and first and steps[name] - first for name, first in zip(PAIR, forward, strict=True)]
        good = [good_of(repeats[name]) for name in PAIR]
        shares = [roofline.share(each[0], best, roofline.rate_of(each)) if each else None for each in good]
        ratios = {}
        for what, above, below in (
            ("forward", *forward),
            ("rest", *(part if part and (part.low or 0) > 0 else None for part in rest)),
            ("tensorflow_torch", steps["tensorflow"], steps["torch"]),
            ("tensorflow_mlx", steps["tensorflow"], steps["mlx"]),
        ):
            ratios[what] = above / below if above and below and (same or what.startswith("tensorflow")) else None
        shown = [*map(_times, ratios.values())]
        cells = (device, *about.cells(config), *shown[:2], *map(roofline.percent, shares), *shown[2:])
        numbers = {f"ratio_{name}": ratio and ratio.value for name, ratio in ratios.items()}
        numbers |= {f"share_{name}": share and share.value for name, share in zip(PAIR, shares, strict=True)}
        lines.append((cells, {"device": device, **config, **numbers}))
    meaning = [
        "Forward, and backward with update: PyTorch's time over MLX's, so above 1 MLX is faster. The forward pass is "
        "timed by itself, in PyTorch without gradients; the rest of a step has a ratio where it exceeds the intervals.",
        "Shares: of the best rate measured on this device, in any framework of this run.",
        "TensorFlow: its step's time over that of the other two. It is not the same step: Keras cuts each batch out of "
        "arrays and counts the accuracy; its outputs and gradients were compared with PyTorch's.",
    ]
    lacking = "TensorFlow has no numbers in this run: its notebooks are mlp, cnn and lstm."
    notes = [not best and roofline.NO_CEILINGS, not keras and lacking]
    columns = ("Device", *about.headings.values(), "Forward", "Backward, update", "PyTorch's share", "MLX's share")
    columns += ("TensorFlow / PyTorch", "TensorFlow / MLX")
    return Table.of("Parts of the steps, ceilings and TensorFlow", columns, lines, notes, meaning)


def beside_pytorch(records: list[Record], others: list[Record]) -> Table:
    """Steps of ResNet-18 in MLX with PyTorch's of the same run: the same model, batch size and kind of device.

    records: of `model_sizes_mlx`. others: of `model_sizes`, which has 224 pixels only.
    """
    lines = []
    for repeats in groups(records):
        config, device, error = repeats[0].config, kind(repeats[0]), combined(repeats, "max_abs_error")
        same = {"model": config["model"], "batch_size": config["batch_size"]} if config["image_size"] == 224 else None
        pytorch = [other for other in others if other.config == same and kind(other) == device]
        times = [combined(each, "step_s") for each in (pytorch, repeats)]
        ratio = times[0] / times[1] if all(times) else None
        ended = [each[-1].status if each else "not run" for each in (pytorch, repeats)]
        timed = [with_interval(time, seconds) if time else end for time, end in zip(times, ended, strict=True)]
        shown = (_times(ratio), f"{error.value:.1e}" if error else "")
        cells = (device.upper(), str(config["image_size"]), str(config["batch_size"]), *timed, *shown)
        lines.append((cells, {"device": device, **config, "ratio": ratio and ratio.value}))
    columns = ("Device", "Pixels", "Batch size", "PyTorch", "MLX", "PyTorch over MLX", "Largest difference")
    note = "Above 1 MLX is faster. ± and brackets: 95 % intervals within this run; another may differ by more."
    return Table.of("ResNet-18: PyTorch and MLX, side by side", columns, lines, [note])


def _sameness(repeats: dict[str, list[Record]]) -> tuple[str, bool]:
    """Whether two frameworks computed the same, or what speaks against it: the same inputs (`inputs_checksum`), and no
    mismatch. That their models are the same is a test of the kit's."""
    for name, records in repeats.items():
        if not records:
            return f"not run with {FRAMEWORKS[name]}", False
    if not all(map(good_of, repeats.values())):
        return "no pair of times", False
    good = [record for records in repeats.values() for record in good_of(records)]
    if not all("inputs_checksum" in record.metrics for record in good):
        return "inputs are not known", False
    if len({record.metrics["inputs_checksum"].value for record in good}) > 1:
        return "other inputs: not the same", False
    return ", ".join(["the same", *sorted({flag for record in good for flag in record.flags})]), True
