"""Fit the model of `pomology predict` to published times, and validate it: half a minute.

It writes articles/data/prediction.json. `make docs` then writes the table of docs/prediction.md.
"""

import json
from typing import Any

from pomology.articles import published
from pomology.extras.prediction import model, times, validation

FILE = published.DATA / "prediction.json"
DIGITS = 6  # of errors; tables round them to 1 %


def contents() -> dict[str, Any]:
    """Return the fitted numbers, the intervals by precision, and the errors by cross-validation."""
    measured = times.published()
    numbers = model.fit(measured).tolist()
    groups = validation.validation(measured)
    spreads = model.spreads(groups[model.DEVICE_LEFT_OUT], "device")
    shares = zip(model.COLUMNS[:-1], numbers[:-1], strict=True)
    return {
        "shares": {name: float(f"{1 / factor:.4g}") for name, factor in shares},
        "launch_s": float(f"{numbers[-1]:.4g}"),
        "spreads": {
            name: [round(end, 4) for end in spreads[name]] for name in validation.PRECISIONS
        },
        "errors": {
            title: {name: round(value, DIGITS) for name, value in model.summary(group).items()}
            for title, group in groups.items()
        },
    }


if __name__ == "__main__":
    FILE.write_text(f"{json.dumps(contents(), indent=1)}\n", encoding="utf-8")
