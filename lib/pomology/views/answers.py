"""Questions about a run, each with an answer of one line."""

from collections import Counter
from statistics import geometric_mean, median

from pomology.articles.claims import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from pomology.format import IN_PROCESS, quantity, seconds, significant, with_interval
from pomology.report import answer
from pomology.report.answer import Answer
from pomology.report.article import comparable
from pomology.report.claims import needs, open_question
from pomology.report.table import Row, Table, counted, value_text
from pomology.results import cases, repeats
from pomology.results.comparing import FASTER, NO_DIFFERENCE, SINGLE, SLOWER
from pomology.results.metrics import Metric
from pomology.views.diagnosis import NONE
from pomology.views.roofline.table import points
from pomology.views.side_by_side import joined

PLAIN = "fp32"  # the feature with which others are compared
LAUNCHES = {
    "launch_s": "a follow-up launch takes",
    "launch_cold_s": "the first launch of a process takes",
    "launch_paused_s": "a launch after a pause takes",
}
CONTROLLED = 1.02  # times as long as beside itself, from which on plain fp32 is told to be slower
LORA_PARTS = {
    "forward_s": "forward pass",
    "backward_s": "backward pass",
    "update_s": "update",
    "step_s": "whole step",
}
JOULES = ("energy_gpu_j_per_step", "energy_j_per_step")
SIDES = ("published", "here")  # on whose numbers a claim has a verdict
# Words for a number of cases by their lower roof, the `limit` of `roofline.table.points`.
LIMITS = {
    "compute": "the peak FLOP/s limits {}, which reach",
    "memory": "the memory bandwidth limits {}, which reach",
    "cache-resident": "{} fit the cache and have no memory roof; of the peak FLOP/s they reach",
}


def answers(records, best, claims, diagnosed):
    """Return the table of questions and answers; the page of a run has its run-to-run variation.

    records: of one run. best: its `roofs`. claims: their table. diagnosed: `diagnosis.table`.
    """
    texts = {
        "How close does training come to the measured peak?": utilization(records, best),
        "What bounds the trainings?": bounds(diagnosed),
        "MLX or PyTorch?": frameworks(records),
        "Do the claims of the articles hold?": verdicts(claims),
    }
    return Table("", [Row({"Question": name, "Answer": text}) for name, text in texts.items()])


def utilization(records, best):
    """Return the share of the measured peak that the best case of each experiment reaches."""
    shares = {}
    for point in points(records, best).itertuples():
        config = point.case.config
        is_training = not config.get("operation") and config.get("mode") != "inference"
        if point.share and is_training:
            of_kind = shares.setdefault(point.kind, {})
            of_kind[point.name] = max(of_kind.get(point.name, 0), 100 * point.share.value)
    texts = []
    for kind, by_experiment in shares.items():
        percents = by_experiment.values()
        middle = significant(median(percents), 2)
        ends = [choose(by_experiment, key=by_experiment.get) for choose in (min, max)]
        low, high = (f"{significant(by_experiment[name], 2)} % ({name})" for name in ends)
        count = f"median of {len(percents)} experiments, from {low} to {high}"
        subject = f"The best training of each experiment reaches {middle} % of the peak"
        texts.append(f"{subject} of the {kind.upper()} ({count}).")
    return " ".join(texts) or "Not known; the notebook peaks measures the peak."


def peaks(best):
    """Return the highest rates of single operators that a run has measured. best: its `roofs`."""
    by_kind = {}
    for name, measured in (("flops_per_s", best.rates), ("bytes_per_s", best.bandwidths)):
        show = Metric(name).show
        for (kind, group), peak in sorted(measured.items()):
            framework = cases.framework_name(peak.record.framework)
            operation = peak.record.config["operation"]
            source = f"{operation} of {peak.record.experiment}, {framework}"
            by_kind.setdefault(kind, []).append(f"{group} {show(peak.rate.value)} ({source})")
    if not by_kind:
        return "No peak has been measured; smoke tests are too small for one."
    texts = [f"The {kind.upper()} reaches at most {'; '.join(of)}." for kind, of in by_kind.items()]
    texts.append("Each is the rate of an operator's fastest timing block, and has no interval.")
    for (kind, precision), peak in sorted(best.memory_bound.items()):
        operation = peak.record.config["operation"]
        rate = Metric("flops_per_s").show(peak.rate.value)
        text = f"In {precision} the {kind.upper()} has no peak of arithmetic"
        texts.append(
            f"{text}: its fastest operator is a {operation} ({rate}), which memory limits."
        )
    return " ".join(texts)


def checks(records):
    """Return how the checks of the instrument ended, and the run-to-run variation.

    records: of `instrument_check`.
    """
    pooled = repeats.pool(records)
    passed = [case for case in pooled if not case.failure and "too-noisy" not in case.flags]
    others = []
    for case in pooled:
        if case not in passed:
            # One repeat that fails is enough, as in the table.
            status = case.failure or "inconclusive"
            name = case.config.get("check", case.first.case)
            others.append(f"{name} on the {case.kind.upper()} ({status})")
    without = f"; not: {', '.join(others)}" if others else ""
    passed_text = f"{len(passed)} of {len(pooled)} checks passed{without}."
    return f"{passed_text} {repeats.variation_text(pooled)}"


def devices(records):
    """Return which frameworks trained on the GPU and on the CPU of this machine.

    records: of a run.
    """
    trained = {}
    for record in records:
        if record.status == "ok" and record.parameters:
            names = trained.setdefault(cases.kind(record.backend), {})
            names[cases.framework_name(record.framework)] = None
    texts = [
        f"{answer.listed([*trained[kind]])} trained on the {kind.upper()} in this run."
        for kind in ("gpu", "cpu")
        if kind in trained
    ]
    if "gpu" not in trained:
        texts.insert(0, _without_gpu(records))
    return " ".join(texts)


def _without_gpu(records):
    """Return why no training ran on a GPU, as far as a case says it."""
    asked = [record for record in records if record.config.get("accelerator") in ("gpu", "mps")]
    reasons = [record.reason for record in asked if record.status == "unsupported"]
    if reasons and reasons[0]:
        return f"No: a training on a GPU is not supported here ({reasons[0]})."
    return "No training ran on a GPU of this machine."


def features(records):
    """Return which features run faster or slower than fp32 on each kind of device, and which fail.

    A feature is slower if the interval of its ratio is below 1. It is faster if that is above 1 and
    above what plain fp32 took longer beside it than beside itself. records: of `capabilities`.
    """

    def speed(case):
        return case.values["speedup"].value if "speedup" in case.values else 0.0

    by_kind = {}
    pooled = repeats.pool(records)
    for case in sorted(pooled, key=speed, reverse=True):
        feature = case.config.get("feature", PLAIN)
        if feature == PLAIN or "model" in case.config:
            continue
        ends, words = case.status, feature
        if ends == "ok" and "speedup" in case.values:
            ends = _against_plain_fp32(case.values["speedup"], _longer(case, pooled))
            # The interval is in the same brackets.
            shown = _ratio(case.values["speedup"])
            words += f" ({shown.replace(' (', ', ').replace(')', '')})"
        by_kind.setdefault(case.kind, {}).setdefault(ends, []).append(words)
    texts = []
    for kind, by_end in sorted(by_kind.items(), reverse=True):
        untimed = by_end.pop("ok", [])
        compared = {
            end: by_end.pop(end) for end in (FASTER, SLOWER, NO_DIFFERENCE) if end in by_end
        }
        told = []
        if compared:
            if FASTER not in compared:
                told.append("no feature is known to be faster than plain fp32")
            told += [f"{answer.listed(names)} {words}" for words, names in _ends(compared)]
        told += [f"{answer.listed(untimed)} ran without a speed"] if untimed else []
        told += [
            f"{answer.listed(names)} failed ({cases.in_words(status)})"
            for status, names in by_end.items()
        ]
        texts.append(f"On the {kind.upper()} {'; '.join(told)}.")
        texts += _control(pooled, kind)
    return " ".join(texts)


def _against_plain_fp32(ratio, longer):
    """Return whether a feature's speed relative to fp32 is higher, lower or not known to be.

    longer: see `_longer`.
    """
    if ratio.low is None or (ratio.low <= max(1.0, longer) and ratio.high >= 1):
        return NO_DIFFERENCE
    return SLOWER if ratio.high < 1 else FASTER


def _longer(case, pooled):
    """Return how many times as long plain fp32 takes beside a feature as beside itself.

    Of several repeats it is the mean; 1 without the times of both.
    """
    controls = [other for other in pooled if _is_control(other, case.kind)]
    of_control = {each.repeat: each for other in controls for each in other.records}
    ratios = []
    for record in case.records:
        if record.repeat in of_control:
            both = [_plain_step_s(each) for each in (record, of_control[record.repeat])]
            ratios += [both[0] / both[1]] if all(both) else []
    return geometric_mean(ratios) if ratios else 1.0


def _plain_step_s(record):
    """Return the median seconds of the plain steps that alternate with a feature's; 0 without."""
    steps_s = [seconds / count for count, seconds in record.steady("reference")]
    return median(steps_s) if steps_s else 0.0


def _is_control(case, kind):
    """Return whether a case is plain fp32 against itself, on a kind of device."""
    return case.config.get("feature") == PLAIN and "model" not in case.config and case.kind == kind


def _ends(compared):
    """Yield in words how features compare with fp32, and the features of each."""
    words = {FASTER: "{} faster than plain fp32", SLOWER: "{} slower"}
    words[NO_DIFFERENCE] = "{} not known to differ"
    for end, names in compared.items():
        yield words[end].format("is" if len(names) == 1 else "are"), names


def _ratio(ratio):
    """Return a ratio of speeds with its interval; of a slower feature, that of its times."""
    if ratio.high is not None and ratio.high < 1:
        text = with_interval(1 / ratio, lambda one: f"{significant(one, 2)}×", IN_PROCESS)
        return text.replace("×", "× as long", 1)
    return with_interval(ratio, lambda one: f"{significant(one)}×", IN_PROCESS)


def _control(pooled, kind):
    """Return what plain fp32 has relative to itself on a kind of device, in a list; or none."""
    control = next((case for case in pooled if _is_control(case, kind)), None)
    if not control or "speedup" not in control.values:
        return []
    text = f"Plain fp32, timed against itself, has a ratio of {_ratio(control.values['speedup'])}"
    beside = [
        _longer(case, pooled)
        for case in pooled
        if case.kind == kind and case is not control and "model" not in case.config
    ]
    slowest = max(beside, default=1.0)
    if slowest > CONTROLLED:
        low, high = (significant(each, 3) for each in (min(beside), slowest))
        text += f"; beside a feature it takes {low} to {high} times as long, so a smaller gain "
        text += "may come from the order of the steps"
    return [f"{text}."]


def accelerators(records):
    """Return how a GPU's step with Lightning's Trainer compares with the CPU's; "" without both.

    records: of a run.
    """
    fitted = {}
    for case in repeats.pool(records):
        if case.config.get("accelerator") in ("cpu", "gpu"):
            fitted[case.config["accelerator"]] = case
    if [fitted[name].kind for name in sorted(fitted)] != ["cpu", "gpu"]:
        return ""
    variations = repeats.run_to_run_by_kind(records)
    verdict = answer.gpu_against_cpu(fitted["gpu"], fitted["cpu"], "step_s", variations)
    return f"With the same Trainer, and with loading, {verdict}." if verdict else ""


def launches(records):
    """Return how long a launch that follows others takes, and the first one and one after a pause.

    records: of `kernel_launch`. The answer is empty for smoke runs.
    """
    pooled = [case for case in comparable(records) if LAUNCHES.keys() <= case.values.keys()]
    pooled.sort(key=lambda case: (case.kind != "gpu", case.first.framework == "mlx"))
    if not pooled:
        return Answer("")
    by_device = {}
    for case in pooled:
        by_device.setdefault(case.device, []).append(case)
    follow_up, *others = [
        " ".join(
            f"On the {device} {words} {_launch(of_device, name)}."
            for device, of_device in by_device.items()
        )
        for name, words in LAUNCHES.items()
    ]
    kinds = {case.kind for case in pooled}
    if kinds == {"cpu"}:
        unanswered = "How long a GPU takes is not answered here: no case ran on a GPU."
        follow_up = f"{unanswered} On the CPU a launch is a function call. {follow_up}"
    elif "cpu" in kinds:
        others.append("On the CPU a launch is a function call.")
    return Answer(follow_up, others)


def _launch(pooled, name):
    """Return the times of a launch on a device, of each framework, with their numbers."""
    times = {}
    for case in pooled:
        number = case.last.metrics[name].n
        count = f"n = {number:,}"
        count += f" in each of {len(case.used)} repeats" if len(case.used) > 1 else ""
        few = number < cases.LEAST_CALLS
        flags = [flag for flag in case.flags if few or flag != answer.FEW_STEPS]
        shown = with_interval(case.values[name], _milliseconds)
        if name != "launch_s":
            factor = significant(case.values[name].value / case.values["launch_s"].value, 2)
            shown += f", {factor}× a follow-up one,"
        evidence = ", ".join([count, *map(cases.in_words, flags)])
        times.setdefault(evidence, []).append(f"{shown} in {case.framework}")
    return "; ".join(f"{answer.listed(shown)} ({evidence})" for evidence, shown in times.items())


def _milliseconds(value):
    """Return a time in the unit of the published table and of the figure."""
    return f"{significant(1e3 * value)} ms"


def _flags(case):
    """Return the flags of a case in words as ` (busy, few steps)`; "" without any."""
    return f" ({', '.join(map(cases.in_words, case.flags))})" if case.flags else ""


def rates(records):
    """Return how fast matmuls are in other precisions than fp32, and each operation's best rates.

    records: of `blas`. The answer is empty for smoke runs.
    """
    highest = {}
    failed = {}
    for case in comparable(records):
        rate = case.values.get("flops_per_s")
        operation = case.config["operation"]
        if case.status != "ok":
            of_device = failed.setdefault((case.device, case.framework), {})
            ending = (operation, cases.in_words(case.status))
            of_device.setdefault(ending, {})[case.precision] = None
        if rate and "too-fast" not in case.flags:
            of_device = highest.setdefault((case.device, case.framework), {})
            of_operation = of_device.setdefault(operation, {})
            other = of_operation.get(case.precision)
            if other is None or rate.value > other.value:
                of_operation[case.precision] = rate
    ratios, texts = [], []
    # MLX comes last, which may have no optimized BLAS.
    for (device, framework), by_operation in sorted(
        highest.items(), key=lambda item: item[0][1] == cases.framework_name("mlx")
    ):
        parts = []
        ratios += _half_precision(f"On the {device} in {framework}", by_operation)
        for operation, by_precision in by_operation.items():
            rated = [
                f"{quantity(rate.value, 'FLOP/s')} in {name}" for name, rate in by_precision.items()
            ]
            parts.append(f"{operation} {', '.join(rated)}")
        text = f"Highest rates on the {device} in {framework}: {'; '.join(parts)}."
        without = []
        for (operation, status), precisions in failed.get((device, framework), {}).items():
            names = [name for name in precisions if name not in by_operation.get(operation, {})]
            without += [f"{operation} in {answer.listed(names)} ({status})"] if names else []
        texts.append(f"{text} Without a value: {'; '.join(without)}." if without else text)
    return Answer(" ".join(ratios or texts), texts if ratios else ())


def _half_precision(where, by_operation):
    """Return how a matmul's highest rates in other precisions compare with fp32, in a list."""
    by_precision = by_operation.get("matmul", {})
    plain = by_precision.get(PLAIN)
    ratios = [
        f"in {name} {significant(rate.value / plain.value, 2)}× that"
        for name, rate in by_precision.items()
        if plain and name != PLAIN
    ]
    if not ratios:
        return []
    reached = quantity(plain.value, "FLOP/s")
    return [f"{where} matmuls reach {reached} in fp32, and {answer.listed(ratios)}."]


def growth(records):
    """Return whether the memory of a process grows with each step, by device and framework.

    records: of `memory`. "" for smoke runs.
    """
    texts = []
    for case in comparable(records):
        slope = case.values.get("footprint_slope_bytes")
        if slope is None:
            continue
        where = f"On the {case.device} in {case.framework}, with {cases.config_text(case.config)},"
        shown = value_text("footprint_slope_bytes", slope)
        # Each repeat has an interval of its own; two repeats together have only the range of both.
        bounds = [each.bounds for each in case.in_repeats["footprint_slope_bytes"]]
        signs = {(low > 0) - (high < 0) if low is not None else 0 for low, high in bounds}
        unclear = slope.covers == "seen" and signs not in ({1}, {-1})
        if unclear or slope.low is None or slope.low <= 0 <= slope.high:
            verdict = f"no change of the memory is established: {shown} per step"
            verdict += f" in {slope.n:,} steps" if slope.n and len(case.used) == 1 else ""
            verdict += f", {len(case.used)} of {case.repeats} repeats" if case.repeats > 1 else ""
            if unclear and slope.low is not None and not slope.low <= 0 <= slope.high:
                values = [Metric("footprint_slope_bytes").show(end) for end in slope.bounds]
                verdict = f"two repeats changed by {answer.listed(values)} per step, of which at "
                verdict += "least one cannot be told from 0: no change of the memory is established"
        else:
            verb = "grows" if slope.value > 0 else "shrinks"
            if slope.covers == "seen":  # of two repeats, which have no interval
                verb = "grew" if slope.value > 0 else "shrank"
            thousand = quantity(1000 * abs(slope.value), "B")
            verdict = f"the memory {verb} by {shown} per step, {thousand} in 1,000 steps"
        texts.append(f"{where} {verdict}{_flags(case)}.")
    return " ".join(texts)


def sizes_and_speeds(records):
    """Return how models compare in the time and the MACs of an image, and the numbers of each.

    records: of `model_sizes`. The answer is empty for smoke runs.
    """
    by_device = {}
    for case in comparable(records):
        # MACs are of 224 pixels.
        if {"throughput", "forward_macs"} <= case.values.keys():
            by_device.setdefault((case.device, case.framework), []).append(case)
    compared = []
    numbers = []
    for (device, framework), models in by_device.items():
        where = f"on the {device} in {framework}"
        smallest, *larger = sorted(models, key=lambda case: case.values["forward_macs"].value)
        parts = [_beside_smallest(case, smallest) for case in larger]
        if parts:
            name = smallest.config["model"]
            sizes = answer.listed([str(case.config["batch_size"]) for case in (*larger, smallest)])
            alike = len({case.config["batch_size"] for case in models}) == 1
            batches = "" if alike else f" (batch sizes {sizes})"
            text = f"An image in a training step {where} takes, relative to {name}{batches}"
            compared.append(f"{text}: {'; '.join(parts)}.")
        texts = [_size_and_speed(case) for case in models]
        numbers.append(f"A training step {where} processes: {'; '.join(texts)}.")
    return Answer(" ".join(compared or numbers), numbers if compared else ())


def _beside_smallest(case, smallest):
    """Return the time and the MACs of an image of a model, relative to the smallest one."""
    slower = smallest.values["throughput"] / case.values["throughput"]
    macs = case.values["forward_macs"].value / smallest.values["forward_macs"].value
    longer = with_interval(slower, lambda factor: f"{significant(factor, 2)}×", IN_PROCESS)
    return f"with {case.config['model']} {longer} the time, for {significant(macs, 2)}× the MACs"


def _size_and_speed(case):
    """Return a model's parameters, MACs and images per second."""
    millions = significant(case.values["parameters"].value / 1e6)
    macs = significant(case.values["forward_macs"].value / 1e9)
    size = f"{millions} million parameters, {macs} GMAC per image"
    how = ", ".join([f"batch size {case.config['batch_size']}", *map(cases.in_words, case.flags)])
    speed = case.values["throughput"].replace(unit="images/s")
    shown = value_text("throughput", speed, in_process=IN_PROCESS)
    return f"{case.config['model']} ({size}) {shown} ({how})"


def lora_effect(records):
    """Return how the parts of a step with LoRA compare with those without it, or that they do not.

    records: of `gpt2_finetuning`. "" for smoke runs.
    """
    pooled = [case for case in comparable(records) if "lora" in case.config]
    if not pooled:
        return ""
    texts = []
    for case in (case for case in pooled if case.config["lora"]):
        plain = next(iter(_same_with(case, pooled, lora=False)), None)
        parts = [
            f"{words} {_times_as_long(case, plain, name)}"
            for name, words in LORA_PARTS.items()
            if plain and name in case.values and name in plain.values
        ]
        if parts:
            model = f"{case.config['model']} at batch size {case.config['batch_size']}"
            where = f"on the {case.device} in {case.framework}"
            evidence = ", ".join([f"{model} {where}", *map(cases.in_words, case.flags)])
            texts.append(f"Times with LoRA over those without it ({evidence}): {'; '.join(parts)}.")
    return " ".join(texts) or (
        "What LoRA changes is not answered here: no model has times both with it and without it."
    )


def _same_with(case, pooled, **changes):
    """Return the cases that differ from a case in these settings alone, on the same device."""
    return [
        other
        for other in pooled
        if (other.framework, other.device) == (case.framework, case.device)
        and other.config == case.config | changes
    ]


def _times_as_long(case, plain, metric):
    """Return how long a case takes relative to another one, in words. Both have the metric."""
    ratio = repeats.speed_ratio(plain, case, metric)
    ratio = ratio or case.values[metric] / plain.values[metric]
    text = with_interval(ratio, lambda factor: f"{significant(factor, 2)}×", IN_PROCESS)
    unclear = ratio.low is not None and ratio.low <= 1 <= ratio.high
    return f"{text}, without an established difference" if unclear else text


def limits(records, best):
    """Return how near trainings come to the peak, and which roof is lower for the best cases.

    By kind of device and framework. records: of one run. best: its `roofs`.
    """
    table = points(records, best)
    texts = []
    grouped = table[table["limit"] != ""].groupby(["kind", "framework"], sort=False)
    for (kind, framework), rows in grouped:
        parts = []
        for limit, words in LIMITS.items():
            shares = 100 * rows.loc[rows["limit"] == limit, "share_of_roof"].clip(upper=1)
            if len(shares):
                ends = (shares.median(), shares.min(), shares.max())
                middle, low, high = (significant(share, 2) for share in ends)
                reached = f"{middle} % (median, {low} to {high} %)"
                parts.append(f"{words.format(len(shares))} {reached}")
        where = f"on the {kind.upper()} in {cases.framework_name(framework)}"
        texts.append(f"Of {len(rows)} best cases {where}, {'; '.join(parts)}.")
    return Answer(" ".join(texts[:1]), [*texts[1:], utilization(records, best)])


def without_joules(records):
    """Return why cases that ended well have no joules, by device; "" if they have, or of smoke.

    records: of `energy`.
    """
    reasons = {}
    for case in comparable(records):
        if case.status == "ok" and case.values.keys().isdisjoint(JOULES):
            absent = case.last.absent
            known = (str(absent[name]) for name in (*JOULES, "power_w") if name in absent)
            reasons[case.device] = next(known, "the journal has no reason")
    texts = [
        f"The energy of the {device} was not measured: {why}." for device, why in reasons.items()
    ]
    return " ".join(texts)


def offload_cost(records):
    """Return how much longer a step takes with offload than without, or why that is not known.

    records: of `whisper_finetuning`. "" for smoke runs.
    """
    pooled = comparable(records)
    if not pooled:
        return ""
    offloaded = [case for case in pooled if case.config.get("offload", "none") != "none"]
    timed = [case for case in offloaded if "step_s" in case.values]
    unknown = "What offload costs is not answered here"
    if not offloaded:
        return f"{unknown}: it needs an NVIDIA GPU."
    if not timed:
        counts = Counter(case.status for case in offloaded)
        ends = counted(counts)
        return f"{unknown}: no case with offload has a value ({ends})."
    return " ".join(_against_plain(case, pooled) for case in timed)


def _against_plain(case, pooled):
    """Return how a step with offload compares with the same step without it."""
    config = case.config
    step = f"a step of {config['model']} at batch size {config['batch_size']}"
    step += " with recompute" if config.get("recompute") else ""
    alike = _same_with(case, pooled, offload="none")
    took = seconds(case.values["step_s"].value)
    where = f"on the {case.device}"
    plain = next((other for other in alike if "step_s" in other.values), None)
    if plain is None:
        why = cases.in_words(alike[0].status) if alike else "not run"
        without = f"without offload it has no value ({why}), so there is no ratio"
        return f"With offload {step} takes {took} {where}; {without}."
    longer = _times_as_long(case, plain, "step_s")
    times = f"{took} and {seconds(plain.values['step_s'].value)}"
    return f"With offload {step} takes {longer} the time without it {where}: {times}."


def near_limit(records):
    """Return that nothing was timed near the limit of the memory, if so; "" else, or for smoke.

    records: of `whisper_pretraining`, whose scenario 3 is near the limit.
    """
    near = [case for case in comparable(records) if case.config.get("scenario") == 3]
    if not near or any("pass_s" in case.values for case in near):
        return ""
    counts = Counter(case.status for case in near)
    ends = counted(counts)
    return f"What happens near the limit of the memory is not answered here: {ends}."


def bounds(diagnosed):
    """Return how many trainings are bound by what, by kind of device."""
    counts = {}
    for row in diagnosed.data:
        # The flags for which a training is not judged are in the table.
        bound = row["bound_by"].partition(":")[0]
        counts.setdefault(row["kind"], Counter())[bound] += 1
    texts = []
    for kind, of_kind in counts.items():
        total = of_kind.total()
        none, disturbed = (of_kind.pop(name, 0) for name in (NONE, "not judged"))
        parts = [f"bound by {name}: {count}" for name, count in of_kind.most_common()]
        parts += [f"by none of arithmetic, memory traffic and launches: {none}"] if none else []
        parts += [f"disturbed, and not judged: {disturbed}"] if disturbed else []
        texts.append(f"Of {total} trainings on the {kind.upper()}: {'; '.join(parts)}.")
    return " ".join(texts) or "Not known; no training was timed whose work is counted."


def frameworks(
    records, unknown="Not known; the notebook mlx_or_pytorch compares them.", experiment=""
):
    """Return how much faster MLX or another framework is, over the models that both trained alike.

    A model has the geometric mean of its cases, and all models that of theirs. One framework is
    called faster where it is so in most cases, and the other in none. records: of one run, with
    those of `instrument_check`. unknown: the text without such models. experiment: the only one
    whose models are compared.
    """
    rows = {}
    for row in joined(records).data:
        if row["ratio"] and experiment in ("", row["experiment"]):
            rows.setdefault((row["framework"], row["device"]), []).append(row)
    texts = []
    # PyTorch comes first.
    for (framework, kind), alike in sorted(rows.items(), key=lambda item: item[0][0] != "torch"):
        name = cases.framework_name(framework)
        texts.append(_faster_framework(name, f"on the {kind.upper()}", alike))
    cpu = any(kind == "cpu" for _, kind in rows)
    if cpu and not (records[0].chip or "").startswith("Apple"):
        texts.append("MLX has no optimized BLAS on CPUs other than Apple's.")
    return " ".join(texts) or unknown


def _faster_framework(framework, where, rows):
    """Return which one of MLX and a framework is faster, or why that is not told.

    rows: of `joined`, of this framework and a device.
    """
    doubtful = [row for row in rows if row["verdict"].startswith("in doubt")]
    # Disturbed cases are in the mean only if there are no others.
    used = [row for row in rows if row not in doubtful] or rows
    by_model = {}
    for row in used:
        by_model.setdefault(row["model"], []).append(row["ratio"])
    models = [geometric_mean(ratios) for ratios in by_model.values()]
    mean = geometric_mean(models)
    shorter, longer = ("MLX", framework) if mean > 1 else (framework, "MLX")
    factor = significant(max(mean, 1 / mean), 2)
    # The range is that of the faster one's factor, as the sentence says it.
    factors = models if mean > 1 else [1 / model for model in models]
    ends = [significant(end, 2) for end in (min(factors), max(factors))]
    models_text = f"{len(models)} models, {' to '.join(ends)}×"
    if len(models) == 1:
        models_text = rows[0]["settings"] if len(rows) == 1 else rows[0]["model"]
    verdicts = Counter(row["verdict"].partition(":")[0] for row in rows)
    mlx, other = verdicts[SLOWER], verdicts[FASTER]
    parts = [f"MLX faster in {mlx} of {len(rows)} cases, {framework} in {other}"]
    parts += [f"{len(doubtful)} disturbed"] if doubtful else []
    parts += [f"{verdicts[SINGLE]} of unknown variation"] if verdicts[SINGLE] else []
    undecided = len(rows) - mlx - other - len(doubtful) - verdicts[SINGLE]
    parts += [f"{undecided} without an established difference"] if undecided else []
    counts = ", ".join(parts)
    evidence = f"{models_text}; {counts}"
    most = len(rows) / 2
    if len(rows) == 1 and (mlx or other):
        interval = [rows[0]["ratio_low"], rows[0]["ratio_high"]]
        interval = sorted(interval if mean > 1 else [1 / end for end in interval])
        low, high = (significant(end, 2) for end in interval)
        faster = f"{shorter} is {factor}× ({low} to {high}×) faster than {longer} {where}"
        return f"In the one case that both ran, {rows[0]['settings']}, {faster}."
    if (mlx > most and not other and mean > 1) or (other > most and not mlx and mean < 1):
        return f"{shorter} is {factor}× faster than {longer} {where} ({evidence})."
    ratio = f"{longer}'s time is {factor}× {shorter}'s"
    if verdicts[SINGLE] == len(rows):
        why = "instrument_check has not measured what two equal runs differ by"
        return f"{ratio} {where}, without a verdict, since {why} ({evidence})."
    return f"Neither is faster in most cases {where}: {counts}. Over all, {ratio} ({models_text})."


def contradicted(claims):
    """Return the claims that an article's own numbers, or this machine's, contradict.

    They are those that `verdicts` counts. The cell of one whose reading leaves a question has it.
    """
    counts = [sum(row.data[side] == CONTRADICTED for row in claims.rows) for side in SIDES]
    rows = [row for row in claims.rows if CONTRADICTED in (row.data[side] for side in SIDES)]
    title = "Claims that the articles' own numbers contradict ({}), or this machine's ({})"
    return Table(title.format(*counts), rows, claims.notes)


def verdicts(claims):
    """Return how many claims are supported and contradicted, and on what that rests."""
    data = [row.data for row in claims.rows]
    published = Counter(row["published"] for row in data)
    restated = sum(row["published"] == SUPPORTED and row["restates"] == "yes" for row in data)
    own = (
        f"The articles' own numbers support {published[SUPPORTED] - restated} of {len(data)} "
        f"claims and contradict {published[CONTRADICTED]}"
    )
    questions = sum(
        row["published"] == CONTRADICTED and open_question(row["holds"]) != "" for row in data
    )
    own += f" ({questions} of them with an open question)" if questions else ""
    own += f"; {restated} more only compute one printed number from others." if restated else "."
    here = []
    for words, timed in (("by counting", False), ("by timing", True)):
        status = Counter(row["here"] for row in data if row["timed"] == timed)
        decided = status[SUPPORTED] + status[CONTRADICTED]
        counts = f"{status[SUPPORTED]} supported, {status[CONTRADICTED]} contradicted"
        here.append(f"{decided or 'none'} {words}" + (f" ({counts})" if decided else ""))
    undecided = sum(row["here"] == INCONCLUSIVE for row in data)
    here += [f"{undecided} inconclusive"] if undecided else []
    lacking = needs(data)
    lacking = f" Of the others {lacking}." if lacking else ""
    return f"{own} Verdicts on this machine: {', '.join(here)}.{lacking}"
