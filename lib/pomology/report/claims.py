"""The articles' claims, tested with what was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.articles.claims import Term
from pomology.articles.published import experiment_of
from pomology.measure.estimate import Estimate
from pomology.report.table import Table
from pomology.results.cases import combined, comparable, groups, kind
from pomology.results.record import Record

# What an NVIDIA or Apple GPU's name has beside the model.
MAKERS = ("nvidia", "geforce", "quadro", "rtx", "apple")


class MeasuredLookup:
    """A lookup for `articles.claims.test` over this machine's records: roles `cpu` and `gpu`, SI units, intervals.

    What an article says of NVIDIA GPUs as such (`rival` with the backend `cuda`), or of a GPU by name, is tested where
    there is one. `gpus` are this machine's, by their backends: an Apple GPU is one for PyTorch and one for MLX.
    """

    def __init__(self, records: Sequence[Record]):
        records = [record for record in records if "other-way" not in record.flags]
        self.records, self.comparable = records, comparable(records)
        self.chips = {_model(record.chip) for record in records if kind(record) == "gpu" and record.chip}

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        here = [record for record in self.comparable if experiment_of(record.experiment) == experiment]
        return tuple(dict.fromkeys(one.backend for one in here if role == kind(one) == "gpu"))

    def __call__(self, experiment: str, metric: str, role: str | None, config: dict) -> Term:
        if role in self.devices(experiment, "gpu") and "backend" not in config:
            role, config = "gpu", {**config, "backend": role}
        named = role is not None and role not in published.ROLES
        if (role == "rival" and config.get("backend") == "cuda") or (named and _model(role) in self.chips):
            role = "gpu"
        if role not in ("cpu", "gpu", None):
            return Term(None, f"needs {role}, which is not this machine's")
        # By the device that was asked for: what ran out of memory at once was observed nowhere. Counts, which have no
        # role, are right however small the shapes.
        here = [
            record
            for record in (self.comparable if role else self.records)
            if experiment_of(record.experiment) == experiment
            and role in (None, kind(record))
            and all(_setting(record, key) == wanted for key, wanted in config.items())
        ]
        what = f"{experiment} on {role or 'any device'} with {json.dumps(config)}"
        counts = {record.metrics[metric].value for record in here if metric in record.metrics}
        measured = combined(here, metric)
        if not here:
            return Term(None, f"no such {f'{role.upper()} ' if role else ''}case of {experiment} was run here")
        if role is None and len(counts) == 1:
            return Term(Estimate.count(counts.pop()))
        if len(groups(here)) > 1:
            return Term(None, f"{what}: {len(groups(here))} cases match; the term must say which")
        if metric == "status":
            return Term(here[-1].status)
        if measured is None:
            return Term(None, f"{what}: {metric} was not measured ({here[-1].status})")
        return Term(measured, source=f"{experiment}: {here[-1].case}: {metric}")


def _setting(record: Record, key: str):
    if key == "maker":
        return "Apple" if (record.chip or "").startswith("Apple") else ""
    return getattr(record, key) if key in articles_claims.FIELDS else record.config.get(key)


def _model(device: str) -> str:
    """What tells GPUs apart in their names: `A6000` and `NVIDIA RTX A6000` are one, `RTX 4090 Laptop` is another."""
    return "".join(word for word in device.casefold().split() if word not in MAKERS)


def claims_table(claims: Sequence[published.Claim], records: Sequence[Record]) -> Table:
    """Each claim with two verdicts: on the article's own numbers, and on this machine's, with the numbers compared."""
    lines, measured = [], MeasuredLookup(records)
    for claim in claims:
        own = articles_claims.test(claim, articles_claims.PublishedLookup(claim.article))
        here = articles_claims.test(claim, measured)
        # The articles measured more than they print: why theirs cannot be told is not what would be needed here.
        printed = claim.holds_in_published.partition(": ")[2]
        cells = (_verdict(own, printed), _verdict(here, f"needs {claim.needs.removeprefix('needs ')}"))
        verdicts = {"published": own.status, "here": here.status, "reason": here.reason}
        lines.append(((claim.id, claim.claim, *cells), {"id": claim.id, "claim": claim.claim, **verdicts}))
    return Table.of("Claims", ("Claim", "The article says", "On its own numbers", "On this machine"), lines)


def _verdict(verdict: articles_claims.Decision, lacks: str) -> str:
    """`does not hold: 0.748 > 1 no, 3.04 > 1 yes`."""
    # Those that fail come first, then those whose intervals overlap; what lacks a number is not shown.
    known = [made for made in verdict.numbers if made.left.value is not None and made.right.value is not None]
    shown = [str(made) for made in sorted(known, key=lambda made: (made.holds is not False, made.holds is not None))]
    parts = [", ".join(shown[:4]) + (f", and {len(shown) - 4} more" if len(shown) > 4 else "")]
    if verdict.status == articles_claims.CANNOT_BE_TOLD and (not known or len(known) < len(verdict.numbers)):
        parts.append(lacks)
    return f"{verdict.status}: {'; '.join(filter(None, parts))}"
