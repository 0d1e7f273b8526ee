"""For the notebook `summary`: four questions about a run, each with an answer of one line."""

from statistics import geometric_mean, median

from pomology.articles.claims import CONTRADICTED, SUPPORTED
from pomology.extras.frameworks.side_by_side import side_by_side
from pomology.extras.roofline.table import points
from pomology.format import significant
from pomology.report.article import Declaration
from pomology.report.table import Row, Table
from pomology.results import cases

MLX_OR_PYTORCH = Declaration("mlx_or_pytorch", columns=["step_s"], figure="step_s")


def answers(frame, best, found):
    """Return the table of questions and answers.

    frame: of one run. best: its `roofs`. found: the table of claims.
    """
    pooled = cases.pool(frame)
    texts = {
        "How much do two runs of the same training step differ?": variation(pooled),
        "How close does training come to the measured peak?": utilization(frame, best),
        "MLX or PyTorch?": frameworks(frame),
        "Do the claims of the articles hold?": verdicts(found),
    }
    return Table("", [Row({"Question": name, "Answer": text}) for name, text in texts.items()])


def variation(pooled):
    """Return the run-to-run variation by device, as `instrument_check` has measured it."""
    found = cases.run_to_run(pooled)
    texts = []
    for (_, kind), share in found.items():
        percent = significant(100 * share, 1)
        texts.append(
            f"On the {kind.upper()} 90 % of pairs differ by less than about {percent} %: a smaller "
            "difference between two single runs means nothing."
        )
    return " ".join(texts) or "Not measured; the notebook instrument_check measures it."


def utilization(frame, best):
    """Return the share of the measured peak that the best case of each experiment reaches."""
    shares = {}
    for point in points(frame, best).itertuples():
        if point.share and not point.case.config.get("operation"):
            of_kind = shares.setdefault(point.kind, {})
            of_kind[point.name] = max(of_kind.get(point.name, 0), 100 * point.share.value)
    texts = []
    for kind, by_experiment in shares.items():
        percents = by_experiment.values()
        low, middle, high = (significant(f(percents), 2) for f in (min, median, max))
        count = f"median of {len(percents)} experiments, {low} to {high} %"
        texts.append(f"{kind.upper()}: {middle} % of the peak ({count}).")
    return " ".join(texts) or "Not known; the notebook peaks measures the peak."


def frameworks(frame):
    """Return how much faster one framework is, over the workloads that both ran alike."""
    ratios = {}
    for row in side_by_side(frame, MLX_OR_PYTORCH).data:
        if row["ratio"]:
            ratios.setdefault(row["device"], []).append(row["ratio"])
    texts = []
    for kind, found in ratios.items():
        mean = geometric_mean(found)
        name = "MLX" if mean > 1 else "PyTorch"
        ends = sorted(ratio if mean > 1 else 1 / ratio for ratio in found)
        numbers = (max(mean, 1 / mean), ends[0], ends[-1])
        factor, low, high = (significant(each, 2) for each in numbers)
        count = f"{len(found)} training workloads, {low} to {high}×"
        texts.append(f"{name} is {factor}× faster on the {kind.upper()} ({count}).")
        if kind == "cpu" and not frame["chip"].iloc[0].startswith("Apple"):
            texts.append("MLX has no optimized BLAS on CPUs other than Apple's.")
    return " ".join(texts) or "Not known; the notebook mlx_or_pytorch compares them."


def contradicted(found):
    """Return the claims that an article's own numbers, or this machine's, contradict."""
    rows = [row for row in found.rows if CONTRADICTED in (row.data["published"], row.data["here"])]
    return Table("What the articles got wrong", rows, found.notes)


def verdicts(found):
    """Return how many claims are supported, and how many contradicted."""
    texts = []
    for place, source in (("published", "The articles' own"), ("here", "This machine's")):
        status = [row.data[place] for row in found.rows]
        supported, wrong = (status.count(each) for each in (SUPPORTED, CONTRADICTED))
        counts = f"{supported} of {len(status)} claims and contradict {wrong}"
        texts.append(f"{source} numbers support {counts}.")
    return " ".join(texts)
