"""The articles' claims, tested with what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.articles.claims import FIELDS, REPEATS, Comparison, Decision, Term
from pomology.format import quantity, quantity_per_s, significant
from pomology.measure.estimate import Estimate, estimate
from pomology.report.table import Table
from pomology.results import metrics
from pomology.results.cases import DOUBTS, config_text
from pomology.results.pool import Case, pool
from pomology.results.record import UNTRIED

if TYPE_CHECKING:
    import pandas

# What an NVIDIA or Apple GPU's name has besides the model.
MAKERS = ("nvidia", "geforce", "quadro", "rtx", "apple")
NOT_SHOWN = (
    "interrupted",
    "timeout",
    *UNTRIED,
)  # ends that do not show what a case would have done
LOADED = ("epoch_s", "fit_s")
ROLES = {"cpu": "CPU", "gpu": "GPU", "rival": "NVIDIA GPU"}
NOTE = f"A verdict needs {REPEATS} repeats of every number, free of flags that cast doubt on it: REPEATS={REPEATS}."
MOST = 4  # comparisons that a cell shows
NOT_TESTABLE = "not testable here"


class MeasuredLookup:
    """A lookup for `articles.claims.judged` over this machine's cases: roles `cpu` and `gpu`, SI units, repeats.

    What an article says of NVIDIA GPUs as such (`rival` with the backend `cuda`), or of a GPU by name, is tested where
    there is one.
    """

    def __init__(self, frame: pandas.DataFrame):
        self.cases: dict[str, list[Case]] = {}
        for case in pool(frame):
            if "other-way" not in case.flags:
                self.cases.setdefault(case.first["experiment"], []).append(case)
        cases = [case for group in self.cases.values() for case in group]
        self.repeats = sorted({repeat for case in cases for repeat in case.flags_of})
        self.chips = {case.first["chip"] or "" for case in cases}
        self.gpus = {
            _model(case.first["chip"])
            for case in cases
            if case.kind == "gpu" and case.first["chip"]
        }

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        here = [
            case
            for case in self.cases.get(experiment, ())
            if _is_comparable(case, scaled_too=False)
        ]
        return tuple(
            dict.fromkeys(case.first["backend"] for case in here if role == case.kind == "gpu")
        )

    def has(self, about: str) -> bool:
        """Return whether this machine has the chip, or any chip of the maker, that a sentence is about."""
        return not about or any(
            chip.startswith(about) or _model(chip) == _model(about) for chip in self.chips
        )

    def __call__(self, experiment: str, metric: str, role: str | None, config: dict) -> Term:
        if role in self.devices(experiment, "gpu") and "backend" not in config:
            config = {**config, "backend": role}
            role = "gpu"
        named = role is not None and role not in published.ROLES
        if (role == "rival" and config.get("backend") == "cuda") or (
            named and _model(role) in self.gpus
        ):
            role = "gpu"
        if role not in ("cpu", "gpu", None):
            return Term(None)
        found = [case for case in self.cases.get(experiment, ()) if _is_meant(case, role, config)]
        if role is None:
            return self._count(found, metric)
        here = [case for case in found if _is_comparable(case, metric.endswith("flops_per_s"))]
        if not here:
            smaller = any(case.first["profile"] != "smoke" for case in found)
            return Term(None, ("scaled",) if smaller else ())
        if len(here) > 1:
            return Term(None, (f"{len(here)} cases of {experiment} match",))
        return self._measured(here[0], experiment, metric)

    def _count(self, found: list[Case], metric: str) -> Term:
        """Return what was counted, which is right however small the shapes are."""
        counts = {
            (value.value, value.unit) for case in found for value in case.each.get(metric, ())
        }
        if len(counts) == 1:
            return Term(Estimate.count(*counts.pop()))
        return self._measured(found[0], "", metric) if len(found) == 1 else Term(None)

    def _measured(self, case: Case, experiment: str, metric: str) -> Term:
        """Return what all repeats of a case say, and with which of them a verdict can be given."""
        if metric == "status":
            ends = {status for status, _ in case.endings}
            if case.good_repeats:
                ends.add("ok")
            if len(ends) == 1 and not ends & set(NOT_SHOWN):
                return Term(ends.pop())
            return Term(None, (", ".join(sorted(ends)),))
        if metric not in case.each:
            words = dict.fromkeys(status for status, _ in case.endings)
            return Term(
                None,
                (", ".join(words) or f"{metrics.metric(metric).heading.lower()} was not measured",),
            )
        clean = [repeat for repeat in case.good if not DOUBTS.intersection(case.flags_of[repeat])]
        clean = [repeat for repeat in clean if metric in case.good[repeat]]
        doubts = []
        if metric in LOADED and experiment in published.DECODED and case.last["data"] == "stand-in":
            doubts.append("stand-in data")
        if len(clean) < REPEATS:
            count = len(case.each[metric])
            if count < REPEATS:
                doubts.append(f"{count} runs" if count > 1 else "one run")
            doubts += [flag for flag in case.flags if flag in DOUBTS]
        each = [math.nan] * len(self.repeats)
        if not doubts:
            for place, repeat in enumerate(self.repeats):
                if repeat in clean:
                    each[place] = case.good[repeat][metric].value
        return Term(case.mean(metric, list(case.good) if doubts else clean), tuple(doubts), each)


def _model(device: str) -> str:
    """Return what tells GPUs apart in their names: `A6000` and `NVIDIA RTX A6000` are one."""
    return "".join(word for word in device.casefold().split() if word not in MAKERS)


def _is_comparable(case: Case, scaled_too: bool) -> bool:
    return case.first["profile"] != "smoke" and (scaled_too or not case.first["scaled"])


def _is_meant(case: Case, role: str | None, config: dict) -> bool:
    """Return whether a case is on the device, and has the settings, that a term names."""
    # By the device that was asked for: what ran out of memory at once was observed nowhere.
    if role is not None and case.kind != role:
        return False
    return all(
        (case.first[name] if name in FIELDS else case.config.get(name)) == wanted
        for name, wanted in config.items()
    )


def claims_table(claims: Sequence[published.Claim], frame: pandas.DataFrame) -> Table:
    """Return each claim with two verdicts: on the article's own numbers, and on this machine's.

    The claims of an article are judged together, shown or not: so each has the same verdict wherever it stands.
    """
    articles = {claim.article for claim in claims}
    family = [
        claim
        for claim in dict.fromkeys((*published.claims(), *claims))
        if claim.article in articles
    ]
    judged = dict(zip(family, articles_claims.judged(family, MeasuredLookup(frame)), strict=True))
    lines = []
    for claim in claims:
        own = articles_claims.test(claim, articles_claims.PublishedLookup(claim.article))
        here = judged[claim]
        remark = claim.holds_in_published.partition(": ")[2]
        # The articles measured more than they print: what their numbers lack is not what would be needed here.
        lacks = f"needs {claim.needs.removeprefix('needs ')}"
        cells = (
            _cell(own, remark, remark),
            _cell(here, lacks, claim.assumes if here.comparisons else ""),
        )
        verdicts = {"published": own.status, "here": here.status, "doubts": "; ".join(here.doubts)}
        lines.append(
            ((claim.id, claim.claim, *cells), {"id": claim.id, "claim": claim.claim, **verdicts})
        )
    notes = [NOTE] if any("one run" in cells[3] for cells, _ in lines) else []
    return Table.of(
        "Claims",
        ("Claim", "The article says", "On its own numbers", "On this machine"),
        lines,
        notes,
    )


def _cell(decision: Decision, lacks: str, remark: str) -> str:
    """Return `contradicted: CPU / GPU = 0.428 (0.40 to 0.45); claimed > 1`: a verdict and its numbers."""
    known = [each for each in decision.comparisons if each.known]
    shown = known
    if decision.status == articles_claims.CONTRADICTED:
        shown = [each for each in known if decision.fails(each)]
    shown.sort(key=lambda comparison: comparison.nominal)
    common = _common([term for each in decision.comparisons for term in each.terms])
    texts = [_text(each, common, decision.level) for each in shown[:MOST]]
    if len(shown) > MOST:
        texts.append(f"and {len(shown) - MOST} more")
    if decision.status != articles_claims.INCONCLUSIVE:
        return f"{decision.status}: {'; '.join(filter(None, (*texts, remark)))}"
    if known and len(known) == len(decision.comparisons):
        if decision.elsewhere:
            about = (
                "Apple's chips" if decision.elsewhere == "Apple" else f"the {decision.elsewhere}"
            )
            return f"{NOT_TESTABLE}: the sentence is about {about}; here {'; '.join(texts)}"
        why = ", ".join(decision.doubts) or decision.barred or "too close to tell"
        return f"{decision.status} ({why}): {'; '.join(texts)}"
    missing = [
        doubt
        for each in decision.comparisons
        for term in each.terms
        if term.number is None
        for doubt in term.doubts
    ]
    parts = [lacks, *missing[:1]] if decision.elsewhere else [*texts, lacks, *missing[:1]]
    return f"{NOT_TESTABLE}: {'; '.join(filter(None, parts))}"


def _text(comparison: Comparison, common: dict[str, Any], level: float) -> str:
    """Return `batch size 64: CPU / GPU = 2.00 (1.89 to 2.11); claimed > 1`."""
    sides = [_side(term) for term in comparison.terms]
    names = list(dict.fromkeys(side for side in sides if side))
    traits = {
        key: value for key, value in _common(comparison.terms).items() if common.get(key) != value
    }
    settings = {
        key: value for key, value in traits.items() if key not in ("metric", "role", *FIELDS)
    }
    label = config_text({key: value for key, value in settings.items() if key != "experiment"})
    device = names[0] if len(names) == 1 and "role" in traits else ""
    label = ", ".join(filter(None, (str(settings.get("experiment", "")), device, label)))
    left = _number(comparison.left)
    right = [value for _, value in comparison.bounds]
    constant = isinstance(right[0], str) or estimate(right[0]).covers == "exact"
    if len(names) == 2 and constant:
        left = f"{' / '.join(names)} = {left}"
    if comparison.ratio and constant and estimate(right[0]).value > 0:
        ratio = comparison.ratio.judged(1 - level).ratio
        bound = estimate(right[0])
        low, high = (
            comparison.left.replace(value=bound.value * end) for end in (ratio.low, ratio.high)
        )
        left += f" ({_number(low)} to {_number(high)})"
    if len(comparison.bounds) == 2:
        text = f"{left}; claimed {' to '.join(map(_number, right))}"
    elif constant:
        text = f"{left}; claimed {comparison.bounds[0][0]} {_number(right[0])}"
    else:
        first, second = names if len(names) == 2 else ("", "")
        sides = [f"{first} {left}".strip(), f"{second} {_number(right[0])}".strip()]
        text = f"{sides[0]} against {sides[1]}; claimed {comparison.bounds[0][0]}"
    return f"{label}: {text}" if label else text


def _side(term: Term) -> str:
    """Return `GPU with MLX`, `CPU`: the device that a term is about."""
    role = term.traits.get("role")
    name = ROLES.get(role, role or "")
    backend = term.traits.get("backend")
    framework = {"mps": "PyTorch", "mlx-gpu": "MLX"}.get(backend, "")
    precision = term.traits.get("precision", "")
    return " ".join(filter(None, (name, framework and f"with {framework}", precision)))


def _common(terms: Sequence[Term]) -> dict[str, Any]:
    """Return the traits that all of these terms have."""
    if not terms:
        return {}
    first, *others = [term.traits for term in terms]
    return {
        key: value
        for key, value in first.items()
        if all(other.get(key) == value for other in others)
    }


def _number(operand: Any) -> str:
    """Return a number with its unit: `8.79`, `591 J`, `11.7 million`."""
    if isinstance(operand, str):
        return operand
    if not isinstance(operand, Estimate):
        return f"{operand:g}"
    unit = {"s W": "J", "count": ""}.get(operand.unit, operand.unit)
    value = operand.value
    if not unit:
        if value >= 1e9:
            return f"{significant(value / 1e9)} billion"
        return f"{significant(value / 1e6)} million" if value >= 1e6 else significant(value)
    if value >= 1e6 and unit != "J":
        return quantity_per_s(value, unit)
    return f"{significant(value)} B" if unit == "B" and value < 1000 else quantity(value, unit)
