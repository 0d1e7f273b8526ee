"""Count the workloads of `pomology predict`, for the table that `make docs` writes.

The step of a workload is the one that its notebook times. It is counted on `meta` for three batch
sizes. What a step computes and moves is a polynomial of the second degree in the batch size: the
square is that of losses which compare all samples with each other. So three counts give the counts
of all batch sizes, which a test compares.
"""

import functools
from collections.abc import Callable, Iterator

from notebook_definitions import definitions

from pomology.extras.prediction import work, workloads
from pomology.models import article_models
from pomology.models.workload import Workload, count_warm

BACKENDS = ("mps", "cuda", "cpu")
SAMPLES = (2, 4, 6)
DIGITS = 60_000  # in MNIST; a stand-in for the data of a notebook, whose step needs its length


@functools.cache
def names(notebook: str, **values: int) -> dict:
    """Return what a notebook defines, with these values of its parameters."""
    data = dict.fromkeys(("photographs", "pairs", "train_set"), range(DIGITS))
    return definitions(notebook, **data, **values)


def transformer_lm(size: str) -> Workload:
    """Return the step of a size, `WIDTHxLAYERSxHIDDEN`."""
    width, layers, hidden = map(int, size.split("x"))
    return names("transformer_lm")["language_model"](width, layers, hidden)


def whisper(size: str) -> Workload:
    """Return the step of a size, which is a model's name."""
    return names("whisper_pretraining")["workload"]({"model": size, "precision": "fp32"})


def of_one_size(name: str) -> Callable[[str], Workload]:
    """Return the step of a workload that its notebook defines under its own name."""
    return lambda _size: names(name)[name]


# Workload -> its step for a size.
STEPS: dict[str, Callable[[str], Workload]] = {
    **{name: of_one_size(name) for name in ("vae", "siamese", "dcgan", "simclr")},
    "transformer_lm": transformer_lm,
    "whisper": whisper,
    "bert_base": lambda size: names("bert_base")["classifier"](int(size)),
    "resnet50": lambda size: names("resnet50", image_size=int(size))["classifier"](),
    # The notebook trains them in Keras, whose operators cannot be counted on `meta`.
    "mlp": lambda _size: article_models.classifier("mlp"),
    "cnn": lambda _size: article_models.classifier("cnn"),
    "lstm": lambda _size: article_models.classifier("lstm"),
}


def rows() -> Iterator[dict[str, str]]:
    """Yield the rows of the table: a row for each workload, size, backend and quantity."""
    for workload, step in STEPS.items():
        for size in workloads.sizes(workload):
            for backend in BACKENDS:
                counts = [
                    work.quantities(count_warm(step(size), samples, backend)) for samples in SAMPLES
                ]
                for quantity in counts[0]:
                    yield {
                        "workload": workload,
                        "size": size,
                        "backend": backend,
                        "quantity": quantity,
                        **polynomial(*(count[quantity] for count in counts)),
                    }


def polynomial(two: int, four: int, six: int) -> dict[str, str]:
    """Return the coefficients of a polynomial of the batch size from its values at `SAMPLES`."""
    squared = (six - 2 * four + two) / 8
    linear = (four - two) / 2 - 6 * squared
    fixed = two - 2 * linear - 4 * squared
    coefficients = {"fixed": fixed, "per_sample": linear, "per_pair": squared}
    return {name: f"{value:.10g}" for name, value in coefficients.items()}
