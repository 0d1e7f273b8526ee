"""How long a step takes, and where that number is from: measured here, or predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pomology.extras.fit import counts, times
from pomology.extras.fit.counts import Need
from pomology.extras.fit.measured import Measured
from pomology.extras.fit.offers import TrainingDevice
from pomology.extras.fit.plan import Plan
from pomology.format import quantity, significant
from pomology.measure.estimate import Estimate


class Pace(NamedTuple):
    """The time of a step, with a 90 % interval if it has one, and where it is from, in words.

    what: it is, "prediction" or "measured time".
    """

    step: Estimate
    source: str
    what: str = "prediction"


def of(
    name: str, plan: Plan, need: Need, where: TrainingDevice, here: Sequence[Measured]
) -> Pace | None:
    """Return the time of a step, from the best that there is; None if there is nothing.

    name: of the model. here: what was measured on this device. The same plan, measured, is best.
    Else it is the prediction from the data sheet, times what measured plans take of theirs. On a
    device without a data sheet it is the work at the rate of measured plans.
    """
    of_plan = [each for each in here if each.model == name and each.plan == plan]
    same = [each for each in of_plan if not each.disturbed] or of_plan
    here = [each for each in here if not each.disturbed] or here
    if same:
        return Pace(same[-1].step, _measured(same[-1]), "measured time")
    if where.device:
        return _predicted(plan, need, where, here)
    return _at_rate(plan, need, here)


def _measured(found: Measured) -> str:
    lengths = " and ".join(str(blocks.total) for blocks in found.models)
    share = f"{lengths} of {found.every.total} blocks, " if found.models != [found.every] else ""
    often = f"{found.rounds} times" if found.rounds > 1 else "once"
    when = f"{often}, {found.record.started[:10]}"
    return f"measured: {share}{when}{_disturbed([found])}"


def _disturbed(found: Sequence[Measured]) -> str:
    """Return the words that measurements were disturbed, or ""."""
    flags = dict.fromkeys(each.disturbed for each in found if each.disturbed)
    return f", disturbed: {', '.join(flags)}" if flags else ""


def _predicted(plan: Plan, need: Need, where: TrainingDevice, here: Sequence[Measured]) -> Pace:
    step, bound = times.predict(need, plan, where.device)
    used = [each for each in here if _ratio(each, where)]
    ratios = [_ratio(each, where) for each in used]
    if not ratios:
        return Pace(step, f"{covered(where.device.maker)}, mostly {bound}")
    ratio = float(np.exp(np.mean(np.log(ratios))))
    low, high = (math.exp(end) for end in times.kept()["calibrated"]["spread"])
    value = ratio * step.value
    step = Estimate(value, "s", low * value, high * value, how="estimated")
    plans = "plan" if len(ratios) == 1 else "plans"
    source = f"predicted, times {significant(ratio, 2)} as of {len(ratios)} {plans} measured here"
    source += _disturbed(used)
    return Pace(step, f"{source}, mostly {bound}")


def _ratio(found: Measured, where: TrainingDevice) -> float | None:
    """Return a measured time over its prediction; None for a model that is not in the table."""
    if counts.key(found.model, found.plan, where.backend) not in counts.table():
        return None
    need = counts.need(found.model, found.plan, where.backend)
    return found.step.value / times.predict(need, found.plan, where.device)[0].value


def _at_rate(plan: Plan, need: Need, here: Sequence[Measured]) -> Pace | None:
    """Return the time of a step's operations at the rate of plans measured in this precision."""
    alike = [each for each in here if each.plan.precision == plan.precision and each.flops]
    if not alike:
        return None
    rate = float(np.median([each.flops / each.step.value for each in alike]))
    step = Estimate(need.work["flops"] / rate, "s", how="estimated")
    source = f"{quantity(need.work['flops'], 'FLOP')} at {quantity(rate, 'FLOP/s')}, the rate of"
    of = alike[0].shape if len(alike) == 1 else f"{len(alike)} plans"
    return Pace(step, f"{source} {of} measured here{_disturbed(alike)}")


def covered(maker: str) -> str:
    """Return how well times are predicted of sources that nothing was fitted to.

    maker: of the device, whose own errors are told if it has published speeds.
    """
    errors = times.kept()["errors"]
    name = next((name for name in errors["makers"] if name.lower() == maker), "")
    errors = errors["makers"].get(name, errors)
    near, inside = (f"{100 * errors[name]:.0f} %" for name in ("within 30 %", "inside"))
    of_maker = f" of {name} GPUs" if name else ""
    runs = f"{errors['runs']} published speeds{of_maker}"
    return f"of {runs} {near} are within 30 %, {inside} in such intervals"
