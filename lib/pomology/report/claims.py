"""The articles' claims, tested with what was measured, and how a verdict reads."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.articles.claims import FIELDS, REPEATS, Comparison, Decision, Side, Term
from pomology.articles.published import experiment_of
from pomology.format import quantity, quantity_per_s, significant
from pomology.measure.estimate import Estimate
from pomology.report.table import Table, grouped
from pomology.results import metrics
from pomology.results.cases import DOUBTS, combined, comparable, config_text, good_of, groups, kind
from pomology.results.record import UNTRIED, Record

# What an NVIDIA or Apple GPU's name has beside the model.
MAKERS = ("nvidia", "geforce", "quadro", "rtx", "apple")
NOT_SHOWN = ("interrupted", "timeout", *UNTRIED)  # ends that do not show what a case would have done
# Photographs and sound are decoded while a model is trained, which takes as long as the files are; pictures and text of
# the other datasets are in memory, where a stand-in of their shape and type takes as long.
DECODED = ("dcgan", "whisper_pretraining", "whisper_finetuning")
LOADED = ("epoch_s", "fit_s")

NAMES = {"cpu": "the CPU", "gpu": "the GPU", "rival": "the NVIDIA GPU", "cuda": "CUDA", "mps": "MPS", "mlx-gpu": "MLX"}
NAMES |= {name: name.upper() for name in ("vae", "dcgan", "mlp", "cnn", "lstm")}
NAMES |= {"siamese": "Siamese network", "transformer_lm": "language model", "simclr": "SimCLR", "rasbt_vgg16": "VGG-16"}
VERBS = {"s": "takes {} as long as", "J": "needs {} as much energy as"}
BOUNDS = {"<": ("under", "at least"), "<=": ("at most", "over"), ">": ("over", "at most"), ">=": ("at least", "under")}
PICKED = {"min": "at least ", "max": "at most ", "average": "on average "}
STANDING = ("experiment", "metric", "role", *FIELDS)
UNITS = {"s W": "J", "count": ""}
NOTE = f"A verdict needs {REPEATS} repeats of every number, free of flags that cast doubt on it: REPEATS={REPEATS}."
MOST = 4  # comparisons that a cell shows


class MeasuredLookup:
    """A lookup for `articles.claims.judged` over this machine's records: roles `cpu` and `gpu`, SI units, repeats.

    What an article says of NVIDIA GPUs as such (`rival` with the backend `cuda`), or of a GPU by name, is tested where
    there is one. `gpus` are this machine's, by their backends: an Apple GPU is one for PyTorch and one for MLX.
    """

    def __init__(self, records: Sequence[Record]):
        records = [record for record in records if "other-way" not in record.flags]
        measured = grouped(records, lambda record: experiment_of(record.experiment))
        self.records = {experiment_of(of[0].experiment): of for of in measured}
        self.repeats = sorted({record.repeat for record in records})
        self.chips = {record.chip or "" for record in records}
        self.gpus = {_model(record.chip) for record in records if kind(record) == "gpu" and record.chip}

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        here = comparable(self.records.get(experiment, ()))
        return tuple(dict.fromkeys(record.backend for record in here if role == kind(record) == "gpu"))

    def has(self, about: str) -> bool:
        """Whether this machine has the chip, or any chip of the maker, that a sentence is about."""
        return not about or any(chip.startswith(about) or _model(chip) == _model(about) for chip in self.chips)

    def __call__(self, experiment: str, metric: str, role: str | None, config: dict) -> Term:
        if role in self.devices(experiment, "gpu") and "backend" not in config:
            role, config = "gpu", {**config, "backend": role}
        named = role is not None and role not in published.ROLES
        if (role == "rival" and config.get("backend") == "cuda") or (named and _model(role) in self.gpus):
            role = "gpu"
        if role not in ("cpu", "gpu", None):
            return Term(None)
        # By the device that was asked for: what ran out of memory at once was observed nowhere. Counts, which have no
        # role, are right however small the shapes.
        run = [
            record
            for record in self.records.get(experiment, ())
            if role in (None, kind(record))
            and all((getattr(record, k) if k in FIELDS else record.config.get(k)) == v for k, v in config.items())
        ]
        here = comparable(run, metric) if role else run
        counts = {(count.value, count.unit) for record in here if (count := record.metrics.get(metric))}
        if not here:
            return Term(None, ("scaled",) if any(record.profile != "smoke" for record in run) else ())
        if role is None and len(counts) == 1:
            return Term(Estimate.count(*counts.pop()))
        if len(groups(here)) > 1:
            return Term(None, (f"{len(groups(here))} cases of {experiment} match",) if role else ())
        ends = dict.fromkeys(record.status for record in here)
        if metric == "status":
            known = len(ends) == 1 and not ends.keys() & NOT_SHOWN
            return Term(*ends) if known else Term(None, (", ".join(ends),))
        measured = [record for record in good_of(here) if metric in record.metrics]
        if not measured:
            missing = f"{metrics.metric(metric).heading.lower()} was not measured"
            words = dict.fromkeys(record.status for record in here if record.status != "ok")
            return Term(None, (", ".join(words) or missing,))
        return self._measured(measured, experiment, metric)

    def _measured(self, measured: list[Record], experiment: str, metric: str) -> Term:
        """Of the repeats of a case: what all of them say, and with which of them a verdict can be given."""
        clean = [record for record in measured if not DOUBTS & set(record.flags)]
        runs = {record.repeat: record.metrics[metric].value for record in clean}
        matters = metric in LOADED and experiment in DECODED
        doubts = ["stand-in data"] if matters and any(record.data == "stand-in" for record in measured) else []
        if len(runs) < REPEATS:
            count = len({record.repeat for record in measured})
            doubts += [f"{count} runs" if count > 1 else "one run"] if count < REPEATS else []
            doubts += sorted({flag for record in measured for flag in record.flags if flag in DOUBTS})
        shown = combined(measured if doubts else clean, metric)
        each = [math.nan if doubts else runs.get(repeat, math.nan) for repeat in self.repeats]
        return Term(shown, tuple(doubts), each)


def _model(device: str) -> str:
    """What tells GPUs apart in their names: `A6000` and `NVIDIA RTX A6000` are one, `RTX 4090 Laptop` is another."""
    return "".join(word for word in device.casefold().split() if word not in MAKERS)


def claims_table(claims: Sequence[published.Claim], records: Sequence[Record]) -> Table:
    """Each claim with two verdicts: on the article's own numbers, and on this machine's, with the numbers compared.

    The claims of an article are judged together, shown or not: so each has the same verdict wherever it stands.
    """
    lines, articles = [], {claim.article for claim in claims}
    family = [claim for claim in dict.fromkeys((*published.claims(), *claims)) if claim.article in articles]
    judged = dict(zip(family, articles_claims.judged(family, MeasuredLookup(records)), strict=True))
    for claim in claims:
        own, here = articles_claims.test(claim, articles_claims.PublishedLookup(claim.article)), judged[claim]
        remark = claim.holds_in_published.partition(": ")[2]
        # The articles measured more than they print: what their numbers lack is not what would be needed here.
        lacks = f"needs {claim.needs.removeprefix('needs ')}"
        cells = (_cell(own, remark, remark), _cell(here, lacks, claim.assumes if here.numbers else ""))
        verdicts = {"published": own.status, "here": here.status, "doubts": "; ".join(here.doubts)}
        lines.append(((claim.id, claim.claim, *cells), {"id": claim.id, "claim": claim.claim, **verdicts}))
    columns = ("Claim", "The article says", "On its own numbers", "On this machine")
    return Table.of("Claims", columns, lines, [NOTE] if any("(one run" in line[0][3] for line in lines) else [])


def _cell(decision: Decision, lacks: str, remark: str) -> str:
    """`does not hold: the CPU takes 0.428× as long as the GPU`, `points to 8.80× (one run: no verdict)`."""
    known = [made for made in decision.numbers if made.nominal is not None]
    # Where one fails, those that do; else the values, first those that would not fulfil it.
    shown = [made for made in known if decision.holds is not False or decision.fails(made)]
    shown.sort(key=lambda made: made.nominal)
    terms = [term for made in decision.numbers for term in made.terms]
    texts = [_sentence(made, _shared(terms), decision.level) for made in shown[:MOST]]
    numbers = "; ".join(texts) + (f"; and {len(shown) - MOST} more" if len(shown) > MOST else "")
    if decision.holds is not None:
        return f"{decision.status}: {'; '.join(filter(None, (numbers, remark)))}"
    if known and len(known) == len(decision.numbers):
        if decision.elsewhere:
            about = "Apple's chips" if decision.elsewhere == "Apple" else f"the {decision.elsewhere}"
            return f"here {numbers} (the sentence is about {about}: no verdict)"
        if decision.doubts:
            return f"points to {numbers} ({', '.join(decision.doubts)}: no verdict)"
        lacks = decision.barred or "too close to tell"
    missing = [doubt for term in terms if term.number is None for doubt in term.doubts]
    parts = ("" if decision.elsewhere else numbers, lacks, *missing[:1])
    return f"{decision.status}: {'; '.join(filter(None, parts))}"


def _sentence(made: Comparison, known: dict, level: float) -> str:
    """`Siamese network, batch size 1024: the NVIDIA GPU takes 1.32× as long as the GPU`; known: what needs no word."""
    left, right, failed = made.left, made.right, "" if made.nominal else "not "
    text, shared, notes = _phrase(left), _shared(made.terms), []
    if right.terms and made.operator != "near":
        names = [_words(side.terms, shared, brief=True) for side in (left, right)]
        texts = (text, PICKED.get(right.pick, "") + _value(right, right.value))
        text = ", against ".join(f"{value}{name and f' ({name})'}" for value, name in zip(texts, names, strict=True))
    elif left.runs is not None and (from_1 := articles_claims.difference(left, Side(Estimate.count(1)))):
        ratio = from_1.judged(1 - level).ratio
        # Of what is above 0, as the test has it.
        notes += [] if (left.runs <= 0).any() else [f"{_value(left, ratio.low)} to {_value(left, ratio.high)}"]
    if left.pick == "average":
        values = [part.value for part in left.parts]
        notes.append(f"{_value(left, min(values))} to {_value(left, max(values))} in {len(values)} cases")
    bound = _value(left, right.value, exact=not right.terms)
    if made.operator == "near":
        notes.append(f"{failed}within {100 * made.within:.3g} % of {bound}")
    elif made.operator == "between":
        notes.append(f"{failed}between {bound} and {_value(left, made.upper.value, exact=True)}")
    elif made.operator in BOUNDS and not right.terms and right.value and bound != "1×":
        notes.append(f"{BOUNDS[made.operator][not made.nominal]} {bound}")
    label, notes = _words(made.terms, known), "; ".join(notes)
    return f"{label and f'{label}: '}{text}{notes and f' ({notes})'}"


def _shared(terms: Iterable[Term]) -> dict[str, Any]:
    """The traits that all of these have."""
    first, *others = [term.traits for term in terms] or [{}]
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def _phrase(side: Side) -> str:
    """`the CPU takes at least 2.10× as long as the GPU`, `temperature at most 53.0 °C`, or the value alone."""
    value, above, below = PICKED.get(side.pick, "") + _value(side, side.value), _shared(side.above), _shared(side.below)
    if not side.below:
        name = above.get("metric", "status")
        return value if name == "status" else f"{metrics.metric(name).heading.lower()} {value}"
    first, second = _words(side.above, below, brief=True), _words(side.below, above, brief=True)
    verb = VERBS.get(metrics.metric(side.above[0].traits["metric"]).unit)
    return f"{first} {verb.format(value)} {second}" if verb and first and second else value


def _words(terms: Sequence[Term], known: dict, brief: bool = False) -> str:
    """What these have in common, without what is known: `language model, batch size 200, layers 10`. brief: only what
    names them, `the GPU with MPS`."""
    traits = {key: value for key, value in _shared(terms).items() if known.get(key) != value}
    role, backend = traits.get("role"), traits.get("backend")
    framework = NAMES.get(backend, "") if not role or backend in ("mps", "mlx-gpu") else ""
    name = " with ".join(filter(None, (role and NAMES.get(role, f"the {role}"), framework)))
    experiment, metric = traits.get("experiment"), brief and traits.get("metric")
    settings = {key: value for key, value in traits.items() if key not in STANDING}
    cases = [value if isinstance(value, str) else config_text({key: value}) for key, value in settings.items()]
    parts = [experiment and NAMES.get(experiment, metrics.words(experiment)), name, traits.get("precision"), *cases]
    parts = [*filter(None, parts)] or [metrics.metric(metric).heading.lower() if metric else ""]
    return name or parts[0] if brief else ", ".join(parts)


def _value(side: Side, value: float | str, exact: bool = False) -> str:
    """A number of a side's kind: `8.79×`, `591 J`, `11.7 million`. exact: as it was typed."""
    if isinstance(value, str):
        return value
    unit, digits = UNITS.get(side.number.unit, side.number.unit), f"{value:g}" if exact else significant(value)
    if not unit and side.below:
        return f"{100 * value:.3g} %" if abs(value) < 0.01 else f"{digits}×"
    if not unit and value >= 1e6:
        return f"{significant(value / 1e9)} billion" if value >= 1e9 else f"{significant(value / 1e6)} million"
    if value >= 1e6 and unit != "J":
        return quantity_per_s(value, unit)
    return quantity(value, unit) if unit == "s" or value >= 1e3 else f"{digits} {unit}".rstrip()
