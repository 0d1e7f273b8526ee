"""`pomology versus` where a name is a run: its cases next to published times of a device."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, NamedTuple

from pomology.articles import devices as names
from pomology.articles import published
from pomology.command_line import name_and_kind
from pomology.errors import PomologyError
from pomology.extras import compare
from pomology.extras.prediction import times, workloads
from pomology.extras.prediction.workloads import Target
from pomology.extras.versus import answer, pairs, predicted, variants
from pomology.extras.versus.pairs import Summary
from pomology.format import one_line, seconds, significant
from pomology.report.table import Row, Table
from pomology.results import cases
from pomology.results.repeats import Repeats, pool
from pomology.results.run import Run, locate

if TYPE_CHECKING:
    import pandas

# Settings of a step. What a source prints besides, such as its number of steps, makes its speed no
# other one.
SIZES = ("batch_size", "sequence", "image_size")
# Experiments whose steps are those of a predicted workload; one has three of them.
OF_WORKLOADS = {row["workload"] for row in workloads.rows()} | {"mlp_cnn_lstm"}
OTHER_SETTINGS = "other settings may differ"
UNITS = {"samples_per_s": "samples/s", "tokens_per_s": "tokens/s", "steps_per_s": "steps/s"}
NOTES = (
    "Times of the same workload, settings, precision and kind of time, as in the ranking of a "
    "report; of those where other settings may differ only batch size and size of input are equal. "
    "Model code, software and loading of data may differ: these are no pairs of the same program.",
)
PREDICTED_NOTES = (
    "Times of the run are measured. Those of the other device are predicted from its data sheet, "
    "not measured; in brackets the 90 % interval of the prediction. docs/prediction.md has the "
    "errors.",
)


class Beside(NamedTuple):
    """A case of a run next to a speed of a device.

    step: workload, what was timed, and settings. own, other: how often a second it was done, or
    samples per second. counts: whether the first line counts it.
    """

    workload: str
    step: str
    own: float
    other: float
    own_text: str
    other_text: str
    problems: tuple[str, ...]
    source: str
    counts: bool = True

    @property
    def ratio(self) -> float:
        """How many times as fast the run is."""
        return self.own / self.other


class Evidence(NamedTuple):
    """What is known of a run and a device.

    run: as the user may type it. same: of the same settings. similar: of the same sizes. mean: of
    `same`, by workload; None without any.
    """

    run: str
    device: str
    same: list[Beside]
    similar: list[Beside]
    mean: Summary | None

    @property
    def summary(self) -> Summary | None:
        """How many times as fast the run is, of what the first line counts."""
        return self.mean or _summary([each.ratio for each in self.similar])


class Predicted(NamedTuple):
    """A measured step of a run next to the predicted one of a device; ratios as in `Beside`."""

    title: str
    target: Target
    measured: float
    time: Any

    @property
    def ratio(self) -> float:
        return self.time.value / self.measured

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.time.bounds
        return low / self.measured, high / self.measured


def lines(texts: Sequence[str], are_runs: Sequence[bool]) -> list[str]:
    """Return the output of the command. are_runs: whether each text is the name of a run."""
    if all(are_runs):
        return _of_runs(texts)
    if len(texts) > 2:
        raise PomologyError(
            "versus: expected one run and one device, or runs only, or devices only"
        )
    run_text, device_text = texts if are_runs[0] else reversed(texts)
    named, kind = name_and_kind(run_text)
    run = Run(locate(named))
    run.print_problems()
    kind = kind or _kind(run)
    if not any(cases.kind(record.backend) == kind for record in run.records):
        raise PomologyError(f"{one_line(run.name)} ({kind.upper()}): no case has ended in it")
    evidence, note = _with_device(run, kind, device_text)
    every = [*evidence.same, *evidence.similar]
    steps = [] if every else predicted_steps(run, kind, evidence.device)
    text = textwrap.wrap(headline(evidence, steps), answer.WIDTH)
    if every:
        text += ["", *answer.text_of(table(evidence))]
    if steps:
        text += ["", *answer.text_of(predictions(evidence, steps))]
    return text + textwrap.wrap(note, answer.WIDTH)


def _of_runs(texts: Sequence[str]) -> list[str]:
    """Return the comparison of runs, as `pomology compare` has it."""
    named = [name_and_kind(text) for text in texts]
    different = dict.fromkeys((locate(name), kind) for name, kind in named)
    if len(different) < 2:
        raise PomologyError("versus: name at least two different runs")
    kinds = [kind for _, kind in different]
    return compare.lines([path for path, _ in different], kinds if any(kinds) else ())


def _kind(run: Run) -> str:
    """Return the kind of the device that a run is asked for: its GPU, if it has one."""
    kinds = {cases.kind(record.backend) for record in run.records}
    return "gpu" if "gpu" in kinds else "cpu"


def _with_device(run: Run, kind: str, text: str) -> tuple[Evidence, str]:
    """Return what is known of a run and the device that a text means, and how it was chosen.

    Of several sizes the one with most work in common is taken, else one with a prediction.
    """
    # Pandas and the views take a second to load, and two devices do without.
    from pomology.views.speeds import speeds

    speed_rows = speeds([run])
    sizes = variants.variants(text)
    every = [_evidence(run, kind, device, speed_rows) for device in sizes]

    def shared(evidence: Evidence) -> tuple[int, int, int, bool]:
        counted = sum(each.counts for each in evidence.same)
        has_sheet = evidence.device in names.sheets()
        return counted, len(evidence.same), len(evidence.similar), has_sheet

    best = max(every, key=shared)
    return best, variants.note(text, best.device, sizes, bool(best.same or best.similar))


def _evidence(run: Run, kind: str, device: str, speed_rows: pandas.DataFrame) -> Evidence:
    kinds = {cases.kind(record.backend) for record in run.records}
    same, keys, mean = _same(speed_rows, kind, device)
    similar = [each for key, each in _similar(run, kind, device) if key not in keys]
    name = one_line(run.name, 60)
    # A run with a CPU and a GPU is named with the one that is meant.
    name = f"{name}:{kind}" if len(kinds) > 1 else name
    return Evidence(name, device, same, similar, mean)


def _same(
    speed_rows: pandas.DataFrame, kind: str, device: str
) -> tuple[list[Beside], set[tuple], Summary | None]:
    """Return the cases with a published time of the same settings, by the rules of the ranking.

    Return their keys, as those of `_similar`, and the means of their workloads, too. speed_rows: of
    `speeds`.
    """
    from pomology.views import ranking, speeds

    is_own = speed_rows["kind"].eq(speeds.MEASURED) & speed_rows["role"].eq(kind)
    of_device = speed_rows["device"].eq(device) & speed_rows["kind"].eq(speeds.PUBLISHED)
    both = speed_rows[is_own].merge(speed_rows[of_device], on=speeds.WORK, suffixes=("", "_of"))
    same = []
    keys = set()
    for row in both.itertuples():
        of_work = speed_rows["workload"].eq(row.workload) & speed_rows["terms"].eq(row.terms)
        compared = ranking.compared(speed_rows[of_work], device)
        sound = compared["sound"][compared["device"].eq(row.device)].all()
        terms = json.loads(row.terms)
        metric = terms.pop("metric")
        keys.add((row.experiment_of, terms["precision"], *_sizes(terms)))
        timed = (pairs.TIMES | pairs.RATES).get(metric, metric)
        framework = cases.framework_name(row.framework)
        software = filter(None, [cases.framework_name(row.framework_of), row.year_of])
        same.append(
            Beside(
                workload=row.workload,
                step=f"{ranking.title(row.workload)}, {timed}, {cases.config_text(terms)}",
                own=row.value,
                other=row.value_of,
                own_text=f"{_speed_text(metric, row.value)} ({framework})",
                other_text=f"{_speed_text(metric, row.value_of)} ({', '.join(software)})",
                problems=_problems(row.faults | row.faults_of),
                source=_source(row.source_of),
                counts=bool(sound),
            )
        )
    if not same:
        return same, keys, None
    rows = ranking.compared(speed_rows, device)
    rows = rows[rows["device"].isin(both["device"]) & rows["role"].eq(kind) & rows["used"]]
    return same, keys, _summary(rows["ratio"].tolist())


def _problems(faults: frozenset[str]) -> tuple[str, ...]:
    """Return faults of a published time in words, and the flags of a case."""
    words = [published.FAULTS[fault] for fault in sorted(faults) if fault in published.FAULTS]
    flags = ", ".join(sorted(faults - published.FAULTS.keys()))
    return (*words, *([f"flags: {flags}"] if flags else []))


def _source(source: str) -> str:
    """Return the name of a source in a table, as that of a pair: `article 003`."""
    articles = {article.id for article in published.articles()}
    return f"article {source}" if source in articles else source


def _speed_text(metric: str, value: float) -> str:
    """Return how often a second work was done as it was timed: a time, or a rate."""
    if metric in pairs.RATES:
        return f"{significant(value)} {UNITS[metric]}"
    return seconds(1 / value)


def _similar(run: Run, kind: str, device: str) -> Iterator[tuple[tuple, Beside]]:
    """Yield the cases with a published speed of the same sizes; both in samples per second."""
    rows: dict[tuple, dict[str, Any]] = {}
    for row in published.elsewhere():
        if names.canonical(row["device"], row["role"]) != device or not row["samples"]:
            continue
        key = (row["experiment"], row["precision"], *_sizes(row["config"]))
        before = rows.get(key)
        # The newest of several, and of one year the fastest.
        if before is None or _order(row) > _order(before):
            rows[key] = row
    for case in _usual(run, kind):
        speed = case.values.get("samples_per_s")
        key = (case.first.experiment, case.precision, *_sizes(case.config))
        row = rows.get(key)
        if not speed or not row or not case.config.get("batch_size"):
            continue
        experiment = case.first.experiment
        settings = {name: case.config[name] for name in SIZES if name in case.config}
        settings_text = cases.config_text(settings | {"precision": case.precision})
        other = row["samples"] * published.rate(row)
        yield (
            key,
            Beside(
                workload=experiment,
                step=f"{published.WORKLOADS.get(experiment, experiment)}, {settings_text}",
                own=speed.value,
                other=other,
                own_text=f"{significant(speed.value)} samples/s ({case.framework})",
                other_text=f"{significant(other)} samples/s ({row['framework']}, {row['year']})",
                problems=(OTHER_SETTINGS, *_problems(frozenset({*row["faults"], *case.flags}))),
                source=row["source"],
                counts=False,
            ),
        )


def _usual(run: Run, kind: str) -> Iterator[Repeats]:
    """Yield the cases of a run's devices of a kind, without smaller models and second ways."""
    for case in pool(run.records, run.name):
        first = case.first
        other = first.scaled or first.profile == "smoke" or "other-way" in case.flags
        if case.kind == kind and not other:
            yield case


def _sizes(config: dict[str, Any]) -> tuple:
    return tuple(config.get(name) for name in SIZES)


def _order(row: dict[str, Any]) -> tuple[bool, str, float]:
    serious = not published.SERIOUS.isdisjoint(row["faults"])
    return not serious, row["year"], row["samples"] * published.rate(row)


def predicted_steps(run: Run, kind: str, device: str) -> list[Predicted]:
    """Return the run's steps whose time is predicted for a device, none without a data sheet."""
    if device not in names.sheets():
        return []
    from pomology.views.ranking import OWN

    fastest: dict[Target, float] = {}
    for case in _usual(run, kind):
        time = case.values.get("step_s")
        target = _target(case)
        if time and target and case.precision == predicted.PRECISION and OWN.isdisjoint(case.flags):
            fastest[target] = min(time.value, fastest.get(target, time.value))
    titles = {row["workload"]: row["title"] for row in workloads.rows()}
    return [
        Predicted(titles[target.workload], target, time, predicted.time(device, target))
        for target, time in fastest.items()
    ]


def _target(case: Repeats) -> Target | None:
    """Return the step of a case as a prediction names it; None if it is another one."""
    workload = times.workload_of(case)
    config = case.config
    batch_size = config.get("batch_size")
    is_one = case.first.experiment in OF_WORKLOADS and isinstance(batch_size, int)
    if not is_one or workload not in {row["workload"] for row in workloads.rows()}:
        return None
    sizes = workloads.sizes(workload)
    if sizes == [""]:
        return Target(workload, batch_size, "")
    widths = [config.get(name) for name in ("embedding_size", "layers", "hidden_size")]
    stated = [config.get(name) for name in ("sequence", "image_size", "model")]
    texts = [str(each) for each in stated] + ["x".join(map(str, widths))]
    return next((Target(workload, batch_size, text) for text in texts if text in sizes), None)


def _summary(ratios: Sequence[float]) -> Summary | None:
    if not ratios:
        return None
    return Summary(geometric_mean(ratios), min(ratios), max(ratios), [])


def _faster_first(evidence: Evidence, summary: Summary) -> tuple[str, str, Summary]:
    """Return the names with the faster one first, and how many times as fast that one is."""
    if summary.mean >= 1:
        return evidence.run, evidence.device, summary
    inverse = Summary(1 / summary.mean, 1 / summary.high, 1 / summary.low, [])
    return evidence.device, evidence.run, inverse


def headline(evidence: Evidence, steps: Sequence[Predicted] = ()) -> str:
    """Return the answer in one line. steps: predicted, where nothing is in common."""
    if evidence.summary:
        # The mean is of workloads, of which those with a sound time count.
        counted = [each for each in evidence.same if each.counts] or evidence.same
        counted = counted or evidence.similar
        titles = [published.WORKLOADS.get(each.workload, each.workload) for each in counted]
        words = _answer(evidence, evidence.summary, list(dict.fromkeys(titles)))
        doubts = dict.fromkeys(problem for each in counted for problem in each.problems)
        in_doubt = evidence.same and not any(each.counts for each in evidence.same)
        doubt = f"in doubt ({', '.join(doubts)}): " if in_doubt else ""
        return f"{doubt}{words}; no interval, other programs"
    nothing = f"{evidence.run} has no case that was published of {evidence.device}"
    if evidence.device not in names.sheets():
        return f"{nothing}, which has no data sheet, so nothing is predicted"
    if not steps:
        return f"{nothing}, and none of a workload that is predicted"
    summary = _summary([step.ratio for step in steps])
    titles = list(dict.fromkeys(step.title for step in steps))
    return f"{nothing}; predicted, not measured: {_answer(evidence, summary, titles)}"


def _answer(evidence: Evidence, summary: Summary, titles: Sequence[str]) -> str:
    """Return which of both is faster, at how many workloads, and the range."""
    first, second, summary = _faster_first(evidence, summary)
    count = "1 workload" if len(titles) == 1 else f"{len(titles)} workloads"
    named = ", ".join(titles[: pairs.MOST_TITLES])
    more = len(titles) - pairs.MOST_TITLES
    named += f" and {more} more" if more > 0 else ""
    ends = f"{significant(summary.low)}× to {significant(summary.high)}×"
    # Where the order differs the range is said before.
    ranged = f", {ends}" if summary.low != summary.high and summary.low > 1 else ""
    return f"{answer.faster(first, second, summary)}: {count}, {named}{ranged}"


def table(evidence: Evidence) -> Table:
    """Return a row for each case, with both speeds, those that count first."""
    first, second, _ = _faster_first(evidence, evidence.summary)
    rows = []
    every = [*evidence.same, *evidence.similar]
    for each in sorted(every, key=lambda each: (not each.counts, each.workload, -each.ratio)):
        texts = {evidence.run: each.own_text, evidence.device: each.other_text}
        ratio = each.ratio if first == evidence.run else 1 / each.ratio
        cells = {
            "Step": each.step,
            first: texts[first],
            second: texts[second],
            "Ratio": f"{significant(ratio)}×",
            "Known problems": "; ".join(each.problems),
            "Source": each.source,
        }
        rows.append(Row(cells, kind="measured"))
    return Table(f"Next to published times: {answer.direction(first, second)}", rows, NOTES)


def predictions(evidence: Evidence, steps: Sequence[Predicted]) -> Table:
    """Return a row for each step of a run, with its measured time and the predicted one."""
    first, second, _ = _faster_first(evidence, _summary([step.ratio for step in steps]))
    rows = []
    for step in sorted(steps, key=lambda step: step.ratio):
        texts = {evidence.run: seconds(step.measured), evidence.device: seconds(step.time.value)}
        ratio, low, high = step.ratio, *step.bounds
        if first == evidence.device:
            ratio, low, high = 1 / ratio, 1 / high, 1 / low
        cells = {
            "Workload": f"{step.title} ({step.target})",
            first: texts[first],
            second: texts[second],
            "Ratio": f"{significant(ratio)}× ({significant(low)} to {significant(high)})",
        }
        rows.append(Row(cells))
    heading = f"Steps of {evidence.run}, and those predicted of {evidence.device}"
    return Table(f"{heading}: {answer.direction(first, second)}", rows, PREDICTED_NOTES)
