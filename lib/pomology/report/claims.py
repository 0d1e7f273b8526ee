"""The articles' claims, tested with what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.articles.published import experiment_of
from pomology.format import (
    significant,
)
from pomology.report.table import Row, Table
from pomology.results.cases import combined, comparable, groups


def measured_lookup(records: list[dict]) -> articles_claims.Lookup:
    """A lookup for `published.test` over this machine's records: roles `cpu` and `gpu`, SI units, intervals.

    What an article says of NVIDIA GPUs as such (`rival` with the backend `cuda`), or of a GPU by name, is tested where
    there is one. `gpus` are this machine's, by their backends: an Apple GPU is one for PyTorch and one for MLX.
    """

    def gpus(experiment: str, role: str) -> tuple[str, ...]:
        ours = [record for record in comparable(records) if experiment_of(record["experiment"]) == experiment]
        found = dict.fromkeys(record["backend"] for record in ours if record["backend"] != "cpu")
        return tuple(found) if role == "gpu" else ()

    chips = {_model(record["chip"]) for record in records if record["backend"] != "cpu" and record["chip"]}

    def look(experiment: str, metric: str, role: str | None, config: dict) -> articles_claims.Value:
        if role in gpus(experiment, "gpu") and "backend" not in config:
            role, config = "gpu", {**config, "backend": role}
        named = role is not None and role not in published.ROLES
        if (role == "rival" and config.get("backend") == "cuda") or (named and _model(role) in chips):
            role = "gpu"
        if role not in ("cpu", "gpu", None):
            return articles_claims.Value(None, reason=f"needs {role or 'another machine'}, which is not this machine's")
        # By the device that was asked for: what ran out of memory at once was observed nowhere.
        here = [
            record
            for record in (comparable(records) if role else records)  # counts are right however small the shapes
            if experiment_of(record["experiment"]) == experiment
            and role in (None, "cpu" if record["backend"] == "cpu" else "gpu")
            and all(
                (_field(record, key) if key in articles_claims.FIELDS else record["config"].get(key)) == want
                for key, want in config.items()
            )
        ]
        what = f"{experiment} on {role or 'any device'} with {json.dumps(config)}"
        if not here:
            kind = {"gpu": "GPU ", "cpu": "CPU "}.get(role, "")
            return articles_claims.Value(None, reason=f"no such {kind}case of {experiment} was run here")
        if role is None:  # what is counted, and so the same on every device
            counts = {record["metrics"][metric]["value"] for record in here if metric in record["metrics"]}
            if len(counts) == 1:
                return articles_claims.Value(*3 * tuple(counts))  # value, low and high
        if len(groups(here)) > 1:
            return articles_claims.Value(
                None, reason=f"{what}: {len(groups(here))} cases match; the term must say which"
            )
        if metric == "status":
            return articles_claims.Value(here[-1]["status"])
        found = combined(here, metric)
        if found is None:
            return articles_claims.Value(None, reason=f"{what}: {metric} was not measured ({here[-1]['status']})")
        source = f"{here[-1]['experiment']}: {here[-1]['case']}: {metric}"
        return articles_claims.Value(found["value"], found["low"], found["high"], source=source)

    look.devices = gpus
    return look


def _field(record: dict, key: str) -> str:
    if key == "maker":
        return "Apple" if (record["chip"] or "").startswith("Apple") else ""
    return record[key]


def _model(device: str) -> str:
    """What tells GPUs apart in their names: `A6000` and `NVIDIA RTX A6000` are one, `RTX 4090 Laptop` is another."""
    return "".join(word for word in device.casefold().split() if word not in MAKERS)


MAKERS = ("nvidia", "geforce", "quadro", "rtx", "apple")


def claims_table(claims: Sequence[published.Claim], records: list[dict]) -> Table:
    """Each claim with two verdicts: on the article's own numbers, and on this machine's, with the numbers compared."""
    rows, data = [], []
    for claim in claims:
        theirs = articles_claims.test(claim, articles_claims.published_lookup(claim.article))
        ours = articles_claims.test(claim, measured_lookup(records))
        # The articles measured more than they print: why theirs cannot be told is not what would be needed here.
        printed = claim.holds_in_published.partition(": ")[2]
        cells = (_verdict(theirs, printed), _verdict(ours, f"needs {claim.needs.removeprefix('needs ')}"))
        rows.append(Row((claim.id, claim.claim, *cells)))
        verdicts = {"published": theirs.status, "here": ours.status, "reason": ours.reason}
        data.append({"id": claim.id, "claim": claim.claim, **verdicts})
    columns = ("Claim", "The article says", "On its own numbers", "On this machine")
    return Table("Claims", columns, tuple(rows), (), tuple(data))


def _verdict(verdict: articles_claims.Verdict, lacks: str, most: int = 4) -> str:
    """`does not hold: 0.748 > 1 no, 3.04 > 1 yes`."""
    # Those that fail come first, then those whose intervals overlap; what lacks a number is not shown.
    known = [made for made in verdict.numbers if made.left.value is not None and made.right.value is not None]
    judged = sorted(known, key=lambda made: (made.holds is not False, made.holds is not None))
    words = {True: "yes", False: "no", None: "too close to tell"}
    shown = [f"{_side(made.left)} {made.operator} {_side(made.right)} {words[made.holds]}" for made in judged]
    parts = [", ".join(shown[:most]) + (f", and {len(shown) - most} more" if len(shown) > most else "")]
    if verdict.status == articles_claims.CANNOT_BE_TOLD and (not known or len(known) < len(verdict.numbers)):
        parts.append(lacks)
    return f"{verdict.status}: {'; '.join(filter(None, parts))}"


def _side(number: articles_claims.Value) -> str:
    """`0.748 (0.731 to 0.765)`: with its 95 % interval where it has one."""
    if isinstance(number.value, str):
        return number.value
    bounds = [bound for bound in (number.low, number.high) if bound is not None and math.isfinite(bound)]
    between = f" ({significant(bounds[0])} to {significant(bounds[1])})" if len(set(bounds)) == 2 else ""
    return significant(number.value) + between
