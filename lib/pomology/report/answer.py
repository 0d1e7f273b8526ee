"""The answer to an experiment's question: a few sentences made from the run itself.

Its main case is the one that most devices have a value of. Devices are compared by the rule of
`results.comparing`, and the article's claims have the verdicts of their table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple

from pomology.articles.claims import CONTRADICTED, SUPPORTED, devices_of
from pomology.format import IN_PROCESS, comparison, counted, one_line, sentence_case, significant
from pomology.report.article import (
    TRAININGS,
    Declaration,
    comparable,
    distinct,
    ended_after_first_step,
    extrapolated,
)
from pomology.report.claims import claims_table, needs
from pomology.report.table import value_text
from pomology.results import cases, metrics
from pomology.results.comparing import FASTER, SINGLE, SLOWER, Compared, judge, of_cases
from pomology.results.record import Record
from pomology.results.repeats import Repeats, run_to_run_by_kind

SMOKE = "This was a smoke run, whose shapes are tiny: it has no answer."
# Metrics that a question is about, where a figure shows FLOP/s.
ASKED_FOR = ("fit_s", "epoch_s", "pass_s", "kernel_s", "throughput", "step_s")
# Metrics by which a GPU and a CPU are compared; others, such as memory, are no matter of speed.
OF_SPEED = (*ASKED_FOR, "flops_per_s")
OF_GPUS = ("energy_gpu_j_per_step",)
GPUS = {"gpu", "mps", "mlx-gpu", "cuda", "rival"}  # names of GPUs in the conditions of claims
PART = "samples"  # the setting of cases that have a part of the data
NAMED = 2  # claims that are quoted
OTHERS = 5  # other settings whose values are named
LEAST_SETTINGS = 3  # of which the shortest and the longest are named
ALIASES = {"accelerator"}  # settings that name a device, and change nothing on it
COMPUTE_ONLY = "compute only"
COMPUTED = "with computing alone"  # instead of a time of the whole training
TOLD = 2  # values of other settings that are part of the answer; more are below it
FEW_STEPS = "few-steps"  # the flag
WITH_REASON = ("mismatch", "error", "not-learning")  # statuses whose reason the answer has
REASON = 120  # characters of it
FAILED = 4  # cases of a status whose settings are named
SPELLED = {"lora": "LoRA", "amp": "AMP", "persistent": "persistent workers"}
PEAKS_OF_MEMORY = ("allocated_peak_bytes", "footprint_peak_bytes", "peak_memory_bytes")
PASSES = {"forward_s": "forward", "backward_s": "backward"}
# The setting to which speed-ups are relative; its own ratio tells the spread, not a speed-up.
PLAIN = {"feature": "fp32"}


class Answer(NamedTuple):
    """The answer to a question, and the sentences that it rests on.

    text: what was asked for. evidence: published values, other settings, failures, claims.
    """

    text: str
    evidence: Sequence[str] = ()

    def __str__(self) -> str:
        return " ".join([self.text, *self.evidence])


def of_run(declaration: Declaration, records: Sequence[Record], values: bool = True) -> Answer:
    """Return the answer of a run.

    records: of the whole run. values: whether to name the values of this machine's cases.
    """
    own = [record for record in records if record.experiment == declaration.name]
    if own and all(record.profile == "smoke" for record in own):
        return Answer(SMOKE)
    metric = _asked_for(declaration)
    measured = comparable(own, metric)
    timed = [case for case in measured if metric in case.values]
    if not timed:  # smaller variants, which the sentence names as such
        measured = comparable(own)
        timed = [case for case in measured if metric in case.values]
    asked = []
    evidence = []
    unanswered = _unanswered(declaration, metric, timed, measured)
    if timed:
        main = _main(declaration, metric, timed)
        smaller = bool(declaration.printed) and all(case.first.scaled for case in timed)
        if values:
            asked += ["None of the published settings was timed here; a smaller one was."] * smaller
            asked += [_values(declaration, metric, main, smaller), *_disturbed(main)]
        variations = run_to_run_by_kind(records)
        if metric in OF_SPEED:
            asked += _compared(declaration, main, variations)
        # The articles trained in other frameworks than MLX, except where they compare it.
        lead = min(main, key=lambda case: (case.kind != "gpu", case.first.framework == "mlx"))
        others = _other_settings(declaration, metric, lead, timed, variations) if values else []
        if 0 < len(others) <= TOLD and len(main) == 1:  # else it is not clear of which device
            asked.append(f"{sentence_case('; '.join(others))}.")
            others = []
        evidence += _published(declaration, metric, lead, named=values)
        if values:
            evidence += _in_list(others, lead, timed) or _ends_of_settings(
                declaration, metric, lead, timed
            )
            evidence += filter(None, [_parts(declaration, metric, lead)])
            evidence += _other_frameworks(declaration, metric, main, timed)
            evidence += _smaller(own, metric, measured)
        if metric in OF_SPEED and not unanswered and {case.kind for case in measured} == {"cpu"}:
            evidence.append("No case ran on a GPU.")
    elif metric in OF_GPUS:
        evidence += _published_of_gpus(declaration, metric)
    asked += unanswered
    asked += _published_comparison(declaration, metric) if timed and unanswered else []
    heading = metrics.Metric(metric).heading
    if timed or not (unanswered and metric in OF_GPUS):
        evidence += _endings(measured, metric, "" if timed else heading)
    evidence += _claims(declaration, records)
    text, *rest = [" ".join(asked), *evidence] if asked else evidence or [""]
    return Answer(text, rest)


def _unanswered(
    declaration: Declaration, metric: str, timed: Sequence[Repeats], measured: Sequence[Repeats]
) -> list[str]:
    """Return which part of the question has no answer, since a kind of device is missing.

    An experiment whose article claims how a GPU and a CPU compare asks for both.
    """
    ran = {case.kind for case in measured}
    if metric in OF_GPUS and ran == {"cpu"}:
        return ["The question is about a GPU and is not answered here: no case ran on a GPU."]
    kinds = {case.kind for case in timed}
    named = [devices_of(claim) for claim in _claims_of_article(declaration)]
    comparing = any("cpu" in names and names & GPUS for names in named)
    if metric not in OF_SPEED or not comparing or len(kinds) != 1:
        return []
    other = "GPU" if kinds == {"cpu"} else "CPU"
    why = f"no case on a {other} has a value" if len(ran) > 1 else f"no case ran on a {other}"
    return [f"How a {other} compares is not answered here: {why}."]


def _asked_for(declaration: Declaration) -> str:
    """Return the metric that answers the question: a time or throughput rather than FLOP/s."""
    if declaration.metric != "flops_per_s":
        return declaration.metric
    columns = declaration.metric_columns.values()
    return next((name for name in ASKED_FOR if name in columns), declaration.metric)


def _main(declaration: Declaration, metric: str, timed: Sequence[Repeats]) -> list[Repeats]:
    """Return the cases of the whole model that most devices and frameworks have a value of.

    Of equal ones those with a published row come first, of a speed-up the highest, then the first.
    Without a whole model it is the smaller variant with most work, which is the nearest one.
    """
    relative = metrics.Metric(metric).unit == "×"
    groups = defaultdict(list)
    for case in timed:
        groups[str(case.config), case.precision].append(case)
    printed = [row["config"] for row in declaration.printed if row["si"] is not None]

    def rank(group: list[Repeats]) -> tuple[bool, bool, float, int, bool, float]:
        config = group[0].config
        plain = PLAIN.items() <= config.items()
        published = any(row.items() <= config.items() for row in printed if row)
        ratio = max(case.values[metric].value for case in group) if relative else 0.0
        whole = not any(case.first.scaled for case in group)
        work = 0 if whole else max(case.first.flops_per_step or 0 for case in group)
        return not plain, whole, work, len(group), published, ratio

    return max(groups.values(), key=rank)  # the first of equal ones


def _values(declaration: Declaration, metric: str, main: Sequence[Repeats], smaller: bool) -> str:
    """Return the values of the main case: `Time per epoch at batch size 128: 4.02 s on …`.

    smaller: whether a sentence before says that it is smaller than published.
    """
    texts = []
    for case in sorted(main, key=lambda case: case.kind, reverse=True):  # GPUs first
        value = case.values[metric]
        shown = value_text(metric, value, _in_minutes(declaration, metric), IN_PROCESS)
        # The time of a smaller case compares with no other's.
        by_rate = declaration.metric == "flops_per_s" or case.first.scaled
        rate = case.values.get("flops_per_s") if by_rate else None
        if rate and metric != "flops_per_s":
            shown = f"{shown}, which is {value_text('flops_per_s', rate)},"
        scaled = "smaller than published" if case.first.scaled and not smaller else ""
        data = "synthetic data" if case.first.data == "stand-in" else ""
        computing = COMPUTE_ONLY if _is_compute_only(case, metric) else ""
        evidence = [computing, scaled, *_basis(case, metric), data]
        where = f"on the {case.device} in {case.framework}"
        texts.append(f"{shown} {where} ({', '.join(filter(None, evidence))})")
    settings = _in_words(_shown_settings(declaration, main[0].config))
    condition = declaration.condition(metric)
    heading = metrics.Metric(metric).heading + (f" ({condition})" if condition else "")
    return f"{' '.join(filter(None, (heading, settings)))}: {'; '.join(texts)}."


def _basis(case: Repeats, metric: str) -> list[str]:
    """Return what a value rests on: repeats and steps of a case, and its flags in words."""
    number = _number(case, metric)
    # A number of steps says more than that they are few.
    flags = [flag for flag in case.flags if flag != FEW_STEPS or "step" not in number]
    return [number, *map(cases.in_words, flags)]


def _disturbed(main: Sequence[Repeats]) -> list[str]:
    """Return what to do about values of repeats that other programs or heat disturbed, if any."""
    flags = dict.fromkeys(flag for case in main for flag in case.flags if flag in cases.DISTURBED)
    if not flags:
        return []
    words = ", ".join(map(cases.in_words, flags))
    return [f"It was disturbed ({words}): repeat it before you rely on this number."]


def _parts(declaration: Declaration, metric: str, case: Repeats) -> str:
    """Return a case's passes, and its peak memory if its table has a column of it."""
    parts = [
        f"{words} {value_text(name, case.values[name])}"
        for name, words in PASSES.items()
        if name in case.values and name != metric
    ]
    parts += filter(None, [_memory(declaration, case)])
    where = f"on the {case.device} in {case.framework}"
    return f"The same case {where}: {', '.join(parts)}." if parts else ""


def _is_compute_only(case: Repeats, metric: str) -> bool:
    """Return whether a training's time is without loading, as that of an MLX twin is."""
    return metric in TRAININGS and COMPUTE_ONLY in (case.last.note or "")


def _memory(declaration: Declaration, case: Repeats) -> str:
    """Return a case's peak memory if its table has a column of it, else ""."""
    columns = declaration.metric_columns.values()
    names = [name for name in PEAKS_OF_MEMORY if name in columns and name in case.values]
    if not names:
        return ""
    heading = metrics.Metric(names[0]).heading.lower()
    return f"{heading} {value_text(names[0], case.values[names[0]])}"


def _other_settings(
    declaration: Declaration,
    metric: str,
    main: Repeats,
    timed: Sequence[Repeats],
    variations: Mapping[str, float],
) -> list[str]:
    """Return the values of what differs from the main case in one setting, on the same device.

    Each names its settings: `at batch size 5120: 5.01 s`. A few trainings are compared with the
    main case. A setting with more values than fit into a sentence is left to figure and table, and
    so are those of a curve. A speed-up has none, since its notebook names all. variations: between
    runs, by kind of device.
    """
    if metrics.Metric(metric).unit == "×" or declaration.over:
        return []
    by_setting: dict[str, list[Repeats]] = defaultdict(list)
    for case in _on_the_same_device(main, timed):
        alike = case.config.keys() == main.config.keys()
        changed = [key for key in case.config if case.config[key] != main.config.get(key)]
        if alike and len(changed) == 1 and changed[0] not in ALIASES:
            by_setting[changed[0]].append(case)
    texts: list[str] = []
    few = metric in TRAININGS and sum(map(len, by_setting.values())) <= TOLD
    for setting, others in sorted(by_setting.items(), key=lambda item: len(item[1])):
        if len(texts) + len(others) > OTHERS:
            break
        for case in others:
            shown = value_text(metric, case.values[metric], _in_minutes(declaration, metric))
            changed = {setting: case.config[setting]}
            # Of several settings a reader could not know which ones stayed.
            named = changed if len(by_setting) == 1 else _shown_settings(declaration, case.config)
            words = [f"{len(case.used)} of {case.repeats} repeats"] * _left_out(case)
            evidence = ", ".join([*words, *map(cases.in_words, case.flags)])
            text = f"{_in_words(named)}: {shown}{f' ({evidence})' if evidence else ''}"
            texts.append(f"{text}, {_as_long(main, case, metric, variations)}" if few else text)
    return texts


def _as_long(main: Repeats, case: Repeats, metric: str, variations: Mapping[str, float]) -> str:
    """Return how long a case takes relative to the main one, by the rule of comparison."""
    times = of_cases(main, case, metric, (variations.get(main.kind), variations.get(case.kind)))
    judge([times])
    ratio = f"{significant(times.ratio, 2)}× as long"
    if times.verdict == SINGLE:
        return f"{ratio}, without a verdict, since instrument_check has not run"
    if not times.differs:
        return f"{ratio}, without an established difference"
    return f"{ratio} ({significant(times.low, 2)} to {significant(times.high, 2)}×)"


def _in_list(others: Sequence[str], main: Repeats, timed: Sequence[Repeats]) -> list[str]:
    """Return other settings' values as a sentence. others: their texts."""
    several = len({case.framework for case in timed}) > 1
    where = f" in {main.framework}" if several else ""
    return [f"Other settings{where}: {'; '.join(others)}."] if others else []


def _left_out(case: Repeats) -> bool:
    """Return whether a repeat of a case is in no mean, since it was disturbed."""
    return len(case.used) < case.repeats


def _on_the_same_device(main: Repeats, timed: Sequence[Repeats]) -> list[Repeats]:
    """Return the cases of a case's device and framework, smaller than published if it is."""
    return [
        case
        for case in timed
        if (case.kind, case.framework) == (main.kind, main.framework)
        and case.first.scaled == main.first.scaled
    ]


def _ends_of_settings(
    declaration: Declaration, metric: str, main: Repeats, timed: Sequence[Repeats]
) -> list[str]:
    """Return the shortest and the longest training of the device, where more settings differ.

    Other metrics, such as a call's time, are of different work in each setting.
    """
    if metric not in TRAININGS:
        return []
    alike = _on_the_same_device(main, timed)
    if len(alike) < LEAST_SETTINGS:
        return []
    alike.sort(key=lambda case: case.values[metric].value)
    heading = _in_minutes(declaration, metric)
    shortest, longest = (
        f"{value_text(metric, case.values[metric], heading)} "
        f"{_in_words(_shown_settings(declaration, case.config))}"
        for case in (alike[0], alike[-1])
    )
    several = len({case.framework for case in timed}) > 1
    whose = f"{main.framework}'s" if several else "its"
    ends = f"the shortest takes {shortest}; the longest, {longest}"
    return [f"Of {whose} {len(alike)} settings {ends}."]


def _smaller(own: Sequence[Record], metric: str, measured: Sequence[Repeats]) -> list[str]:
    """Return that cases smaller than published ran, too, whose times no sentence has, in a list."""
    told = {case.first.case for case in measured}
    every = comparable(own)
    smaller = [case for case in every if metric in case.values and case.first.case not in told]
    if not smaller:
        return []
    settings = _settings_of(smaller, every)
    count = counted(len(smaller), "case")
    verb = "is" if len(smaller) == 1 else "are"
    return [f"{count} smaller than published{settings} {verb} in “All measured values” only."]


def _other_frameworks(
    declaration: Declaration, metric: str, main: Sequence[Repeats], timed: Sequence[Repeats]
) -> list[str]:
    """Return a value of each framework that has none of the main case, that of the most work."""
    named = {(case.kind, case.framework) for case in main}
    largest: dict[tuple[str, str], Repeats] = {}
    for case in sorted(timed, key=lambda case: case.first.flops_per_step or 0, reverse=True):
        if (case.kind, case.framework) not in named:
            largest.setdefault((case.kind, case.framework), case)
    texts = []
    for case in largest.values():
        heading = _in_minutes(declaration, metric)
        shown = value_text(metric, case.values[metric], heading, IN_PROCESS)
        settings = _in_words(_shown_settings(declaration, case.config))
        computing = COMPUTE_ONLY if _is_compute_only(case, metric) else ""
        evidence = ", ".join(filter(None, (computing, *_basis(case, metric))))
        texts.append(f"{shown} on the {case.device} in {case.framework} {settings} ({evidence})")
    return [f"With other settings: {'; '.join(texts)}."] if texts else []


def _in_minutes(declaration: Declaration, metric: str) -> str:
    """Return the heading of the metric's column if its unit is minutes, else ""."""
    headings = [heading for heading, name in declaration.metric_columns.items() if name == metric]
    return next((heading for heading in headings if heading.startswith("Minutes")), "")


def _in_words(settings: Mapping) -> str:
    """Return settings as `with model mlp, without LoRA, at batch size 32`."""
    words: dict[str, list[str]] = {"with": [], "without": [], "at": [], "after": []}
    for name, value in settings.items():
        if isinstance(value, bool) or value in ("none", "no", "yes"):
            has = value in (True, "yes")
            words["with" if has else "without"].append(_spelled(name))
        elif name == "minutes":
            words["after"].append(f"{value:g} min")
        else:
            word = "at" if isinstance(value, (int, float)) else "with"
            words[word].append(cases.config_text({name: value}))
    return ", ".join(f"{word} {listed(named)}" for word, named in words.items() if named)


def listed(words: Sequence[str]) -> str:
    """Return words as `one, two and three`."""
    *first, last = words
    return " and ".join(filter(None, (", ".join(first), last)))


def _shown_settings(declaration: Declaration, config: Mapping) -> dict:
    """Return the settings of a case that its table has columns for, or all."""
    shown = {key: config[key] for key in declaration.headings if key in config}
    part = {PART: config[PART]} if shown and PART in config else {}
    return shown | part or dict(config)


def _number(case: Repeats, metric: str) -> str:
    """Return on what a value rests: repeats, and steps of a training that was extrapolated."""
    value = case.values[metric]
    if len(case.used) == 1 and _left_out(case):
        repeats = f"one of {case.repeats} repeats"
    elif len(case.used) > 1:
        repeats = f"{len(case.used)}{f' of {case.repeats}' * _left_out(case)} repeats"
    else:
        repeats = "one run"
    if metric in TRAININGS and value.how == "estimated":
        return f"{extrapolated(case, metric)}, {repeats}"
    if len(case.used) > 1 or _left_out(case):
        return repeats
    if metric in TRAININGS:
        steps = sum(count for count, _ in case.last.steady())
        return f"{value.how} from {counted(steps, 'step')}, one run" if steps else "one run"
    return f"n = {value.n:,}, one run" if value.n and value.n > 1 else "one run"


def _compared(
    declaration: Declaration, main: Sequence[Repeats], variations: Mapping[str, float]
) -> list[str]:
    """Return how the GPU compares with the CPU in the same framework, by the rule."""
    sentences = []
    by_framework = defaultdict(dict)
    for case in main:
        by_framework[case.framework].setdefault(case.kind, case)
    for framework, by_kind in by_framework.items():
        if by_kind.keys() != {"cpu", "gpu"}:
            continue
        verdict = gpu_against_cpu(by_kind["gpu"], by_kind["cpu"], declaration.time, variations)
        if verdict:
            sentences.append(f"In {framework} {verdict}.")
    return sentences


def gpu_against_cpu(
    gpu: Repeats, cpu: Repeats, metric: str, variations: Mapping[str, float]
) -> str:
    """Return in words how the times of a GPU's and a CPU's case compare; "" without both.

    variations: between runs, by kind of device.
    """
    if not (metric in cpu.in_repeats and metric in gpu.in_repeats):
        return ""
    times = of_cases(gpu, cpu, metric, (variations.get("gpu"), variations.get("cpu")))
    judge([times])
    return _verdict(times)


def _verdict(times: Compared) -> str:
    """Return a comparison of a GPU, the base, with the CPU in words."""
    if not times.differs:
        ratio = f"CPU / GPU = {significant(times.ratio, 2)}"
        return f"no difference between GPU and CPU is established ({ratio}; {times.verdict})"
    factor = times.ratio if times.verdict == SLOWER else 1 / times.ratio
    faster = "the GPU is {}× faster than the CPU"
    if times.verdict == FASTER:
        faster = "the CPU is {}× faster than the GPU"
    ends = [times.low, times.high] if times.verdict == SLOWER else [1 / times.high, 1 / times.low]
    low, high = (significant(end, 2) for end in ends)
    return f"{faster.format(significant(factor, 2))} ({low} to {high}×)"


def _published(
    declaration: Declaration, metric: str, case: Repeats, named: bool = True
) -> list[str]:
    """Return the range of the published values of the same settings.

    named: whether a sentence before it has named the metric.
    """
    if case.first.scaled:
        return []
    rows = [
        row
        for row in declaration.printed
        if row["metric"] == metric
        and row["si"]
        # A setting that no case has is the same for all of them, such as the size of an image.
        and all(case.config.get(name, value) == value for name, value in row["config"].items())
        and row["device"]
    ]
    if not rows:
        return []
    which = "" if named else metrics.Metric(metric).heading.lower()
    # A notebook has the same value of a setting in all cases, which need not name it.
    settings = _in_words(_shown_settings(declaration, case.config)) if case.config else ""
    where = " ".join(filter(None, ["Published", which, settings]))
    return [f"{where}: {_ends(declaration, metric, rows)}."]


def _ends(declaration: Declaration, metric: str, rows: Sequence[dict]) -> str:
    """Return the lowest and the highest of published values with their devices."""
    ordered = sorted(rows, key=lambda row: row["si"])
    show = metrics.Metric(metric).show
    heading = _in_minutes(declaration, metric)
    ends = [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered
    texts = [f"{show(row['si'], heading)} on {cases.published_device(row)}" for row in ends]
    return " to ".join(texts)


def _published_of_gpus(declaration: Declaration, metric: str) -> list[str]:
    """Return the range of published values where this machine has none, in a list.

    Only if all are of the same settings.
    """
    rows = [row for row in declaration.printed if row["metric"] == metric and row["si"]]
    settings = {str(row["config"]) for row in rows}
    if len(settings) != 1:
        return []
    words = _in_words(_shown_settings(declaration, rows[0]["config"]))
    return [f"Published {words}: {_ends(declaration, metric, rows)}."]


def _published_comparison(declaration: Declaration, metric: str) -> list[str]:
    """Return how the GPU and the CPU of a chip compare in the published rows, in a list.

    Of several settings it tells those at which the GPU does worst and best.
    """
    times: dict[tuple[str, ...], dict[str, dict]] = defaultdict(dict)
    for row in declaration.printed:
        chip, _, kind = row["device"].rpartition(" ")
        if row["metric"] == metric and row["si"] and kind in ("CPU", "GPU"):
            times[chip, row["framework"], str(row["config"])][kind] = row
    ratios = [
        (both["CPU"]["si"] / both["GPU"]["si"], chip, both["GPU"]["config"])
        for (chip, *_), both in times.items()
        if len(both) == 2
    ]
    if not ratios or metric not in TRAININGS:
        return []
    ratios.sort(key=lambda each: each[0])
    ends = [ratios[0], ratios[-1]] if len(ratios) > 1 else ratios
    texts = []
    for ratio, chip, config in ends:
        settings = _in_words(_shown_settings(declaration, config)) if len(ratios) > 1 else ""
        text = f"the {chip} GPU is {comparison(ratio, f'{chip} CPU')} {settings}"
        texts.append(text.strip())
    return [f"Published: {'; '.join(texts)}."]


def _endings(measured: Sequence[Repeats], metric: str, lacking: str) -> list[str]:
    """Return how many cases have no value of a metric here, by status.

    lacking: heading of the metric that no case has, "" if some have it.
    """
    if not measured:
        return ["Nothing was measured on this machine yet."]
    ends: dict[str, list[Repeats]] = defaultdict(list)
    for case in measured:
        without = case.status == "ok" and not lacking and metric not in case.values
        why = _why_without(case, metric) if without else cases.in_words(case.status)
        ends[why].append(case)
    total, ended = len(measured), len(ends.pop("ok", ()))
    counts = ", ".join(
        f"{len(named)} {why}{_settings_of(named, measured)}"
        for why, named in sorted(ends.items(), key=lambda item: -len(item[1]))
    )
    if not ended:
        return [f"No case has a value on this machine: {counts}."]
    if not lacking:
        verb = "has" if total - ended == 1 else "have"
        # A case that computes only has a value, but not the one that was asked for.
        missing = metrics.Metric(metric).heading.lower() if COMPUTED in ends else "value"
        text = f"{total - ended} of {total} cases {verb} no {missing}: {counts}."
        return [text] if counts else []
    text = f"{ended} of {total} cases ended well{f', {counts}' if counts else ''}"
    return [f"{lacking} has no value on this machine: {text}."]


def _why_without(case: Repeats, metric: str) -> str:
    """Return why a case that went well has no value of a metric."""
    if f"compute_{metric}" in case.values:
        return COMPUTED
    if ended_after_first_step(case):
        return "stopped after its first step"
    return f"ended without {metrics.Metric(metric).heading.lower()}"


def _settings_of(cases_of: Sequence[Repeats], measured: Sequence[Repeats]) -> str:
    """Return the settings of few cases by which they differ from others."""
    if len(cases_of) > FAILED:
        return ""
    names = distinct([case.config for case in measured])
    # The same settings may have a value on another device, or in another framework.
    devices = len({case.kind for case in measured}) > 1
    frameworks = len({case.framework for case in measured}) > 1
    named = {}
    for case in cases_of:
        settings = [_setting(name, case.config[name]) for name in names if name in case.config]
        words = [", ".join(settings)]
        words += [f"on the {case.kind.upper()}"] if devices else []
        words += [f"in {case.framework}"] if frameworks else []
        reason = one_line(case.last.reason or "", REASON) if case.status in WITH_REASON else ""
        named[": ".join(filter(None, [" ".join(filter(None, words)), reason]))] = None
    return f" ({'; '.join(filter(None, named))})" if any(named) else ""


def _setting(name: str, value: object) -> str:
    """Return a setting in words: `batch size 32`, `without LoRA`."""
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {_spelled(name)}"
    return cases.config_text({name: value})


def _spelled(name: str) -> str:
    """Return the name of a setting in words."""
    return SPELLED.get(name, name.replace("_", " "))


def _claims_of_article(declaration: Declaration) -> list[SimpleNamespace]:
    """Return the claims of an experiment's article; none without an article."""
    return declaration.claims if declaration.article.isdecimal() else []


def _claims(declaration: Declaration, records: Sequence[Record]) -> list[str]:
    """Return how many of the article's claims are decided on this machine, and quote some."""
    claims = _claims_of_article(declaration)
    if not claims:
        return []
    rows = claims_table(claims, records).data
    decided = [row for row in rows if row["here"] in (SUPPORTED, CONTRADICTED)]
    if len(rows) == 1 and not decided:
        return [f"The article's claim is not decided on this machine: it needs {rows[0]['lacks']}."]
    if len(rows) == 1:
        (row,) = rows
        claim = row["claim"].rstrip(".")
        return [f"The article's claim is {row['here']} on this machine: “{claim}”."]
    subject = f"the article's {len(rows)} claims"
    lacking = needs(rows)
    if not decided:
        return [f"Of {subject} none is decided on this machine: {lacking}."]
    verb = "is" if len(decided) == 1 else "are"
    quoted = "; ".join(f"{row['here']}: “{row['claim'].rstrip('.')}”" for row in decided[:NAMED])
    more = f"; and {len(decided) - NAMED} more" if len(decided) > NAMED else ""
    count = f"{len(decided)} {verb} decided on this machine ({quoted}{more})"
    return [f"Of {subject} {count}{f'; {lacking}' if lacking else ''}."]
