"""Parts of an epoch of SimCLR: the cost of its data without training, and a table of all."""

import itertools

from pomology.format import IN_PROCESS, counted, seconds, significant, with_interval
from pomology.measure import calls, clock, epochs
from pomology.report.article import comparable
from pomology.report.table import Row, Table
from pomology.results import cases, repeats

LEAST_STEPS = 10  # with fewer, a part of an epoch is not distinguished from 0
PARTS = {
    "training": "Training",
    "waiting": "Data-loading stall",
    "evaluation": "Evaluation",
    "reading": "Reading alone",
    "augmentation": "Augmentation alone",
    "loader": "Loader alone",
}
NOTES = (
    "Training: on batches that are on the device already. Data-loading stall: the additional time "
    "of the steps with the loader.",
    "Not measured: the time budget ended before that part of the epoch.",
    "Not distinguishable: the interval includes 0, or there are fewer than 10 steps.",
    "Alone: measured without training. Reading and augmentation run in one process, the loader "
    "in its workers.",
)


def time_data(case, images, loader, budget_s):
    """Measure the time of an epoch's reading, augmenting and loading without training.

    images: the `augmentation.PNGImages` as random views. loader: that of the training. The time of
    the views includes the reading.
    """
    order = itertools.cycle(range(len(images)))
    count = len(loader) * case["batch_size"]
    short_s = budget_s / 10
    reading = calls.measure(lambda: images.image(next(order)), budget_s=short_s)
    views = calls.measure(lambda: images[next(order)], budget_s=short_s)
    alone = clock.StepClock(budget_s=budget_s / 2)
    for _ in alone.steps(loader):
        pass
    part = alone.parts["training"]
    case.raw("reading", reading.blocks)
    case.raw("views", views.blocks)
    case.raw("loader alone", part.blocks, first_step_s=part.first_step_s)
    record(case, "reading_epoch_s", reading.seconds * count)
    record(case, "views_epoch_s", views.seconds * count)
    record(case, "loader_epoch_s", epochs.epoch_metrics(alone)["epoch_s"])
    case.metric("loader_start_s", part.first_step_s, "s")


def record(case, name, seconds):
    """Record seconds per epoch as estimated."""
    case.metric(name, seconds.replace(how="estimated"))


def record_split(case):
    """Record an epoch's training with the loader and on pre-loaded batches, and its evaluation."""
    parts = epochs.part_metrics(case.clock)
    steps = case.clock.parts["training"]
    if len(parts) < 3:
        return
    # A slow device has no time left for pre-loaded batches.
    if steps.ready_blocks:
        alone = epochs.without_range(epochs.interval(steps.ready_blocks))
        record(case, "training_epoch_s", alone * steps.epoch_steps)
    record(case, "loop_epoch_s", parts.pop("training"))
    record(case, "evaluation_epoch_s", sum(parts.values()))


def resolved(part):
    """Format a part of an epoch with its interval, or as `not distinguishable (2 steps)`.

    It is distinguishable if its interval is above 0 and it has 10 steps or more.
    """
    steps = part.n or 0
    if part.bounds[0] <= 0 or steps < LEAST_STEPS:
        return f"not distinguishable ({counted(steps, 'step')})"
    return with_interval(part, seconds)


def loading(records):
    """Return the share of loading in an epoch by device, or why it has no value.

    records: of `simclr`. "" for smoke runs.
    """
    by_device = {}
    # A case of whole epochs is timed as one.
    timed = (
        record
        for record in records
        if record.framework == "torch" and "epochs" not in record.config
    )
    for case in comparable(timed):
        by_device.setdefault(case.device, []).append(case)
    texts = []
    for device, of_device in by_device.items():
        # Cases that ended well come first, and of these the ones with a share.
        case = min(of_device, key=lambda case: (case.status != "ok", not _shares(case)))
        where = f"on the {device} at batch size {case.config['batch_size']}"
        why = _unknown(case)
        if why:
            texts.append(f"The share of data loading has no value {where}: {why}.")
            continue
        mean = repeats.mean_of_repeats(_shares(case))
        share = with_interval(mean, lambda percent: f"{significant(percent, 2)} %", IN_PROCESS)
        workers = f"{case.config['workers']} workers"
        texts.append(f"The data-loading stall is {share} of an epoch {where} with {workers}.")
    return " ".join(texts)


def _waiting(times):
    """Return how long an epoch waits for its data: what its loop takes beyond its training."""
    return times["loop_epoch_s"] + -1 * times["training_epoch_s"]


def _shares(case):
    """Return the percentage of an epoch that its training waits for data, of each repeat."""
    shares = []
    for values in case.used.values():
        if {"loop_epoch_s", "training_epoch_s", "epoch_s"} <= values.keys():
            percent = _waiting(values) * (100 / values["epoch_s"].value)
            shares.append(percent.replace(unit="%"))
    return shares


def _unknown(case):
    """Return why the share of loading has no value; "" if it has one."""
    if case.status != "ok":
        reason = case.last.reason
        status = cases.in_words(case.status)
        return f"{status} ({reason})" if reason else status
    shares = _shares(case)
    if not shares:
        return "the time budget ended before all parts of an epoch were timed"
    steps = min(share.n or 0 for share in shares)
    known = [*shares, repeats.mean_of_repeats(shares)]
    if steps < LEAST_STEPS or any(share.bounds[0] <= 0 for share in known):
        return f"it is not distinguishable from 0 ({counted(steps, 'step')})"
    return ""


def table(records):
    """Make a table of the parts of an epoch, one row per case and repeat."""
    rows = []
    several = len({record.repeat for record in records}) > 1
    for record in records:
        times = dict(record.metrics)
        if {"loop_epoch_s", "training_epoch_s"} <= times.keys():
            times["waiting_epoch_s"] = _waiting(times)
        if "views_epoch_s" in times:
            times["augmentation_epoch_s"] = times["views_epoch_s"] + -1 * times["reading_epoch_s"]
        parts = {name: times.get(f"{name}_epoch_s") for name in PARTS}
        missing = "not measured" if record.status == "ok" else record.status
        cells = {
            "Device": record.backend,
            "Batch size": str(record.config["batch_size"]),
            "Workers": str(record.config["workers"]),
            "Repeat": str(record.repeat + 1) if several else "",
        }
        for name, part in parts.items():
            cells[PARTS[name]] = resolved(part) if part else missing
        data = {f"{name}_s": part and part.value for name, part in parts.items()}
        rows.append(Row(cells, data))
    return Table("Parts of an epoch", rows, NOTES)
