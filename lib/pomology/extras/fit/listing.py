"""The tables of `pomology models`: language models and others of `fit`, workloads of `predict`."""

import textwrap

from pomology.articles import names
from pomology.articles.names import Resolved
from pomology.errors import PomologyError
from pomology.extras.fit import networks
from pomology.extras.prediction import workloads
from pomology.format import significant
from pomology.report.table import Row, Table

FIT = (
    "Names may be typed in any form, such as 'Llama 3.1 8B' or 'Qwen/Qwen3-8B'. `fit` also takes",
    "the path of a config.json of transformers.",
)
WIDTH = 100  # columns
PREDICT = ("`predict` also takes a function of yours that returns a model: file.py:build.",)


def answer(text: str) -> str:
    """Return the output of the command: the tables, and what `fit` takes a text to mean.

    "" means all. Raises PomologyError, in one line with similar names, if there is none.
    """
    texts = [str(table) for table in tables(text)]
    note = "\n".join(textwrap.wrap(_meant(text).note, WIDTH))
    return "\n\n".join([*texts, note] if note else texts)


def tables(text: str) -> list[Table]:
    """Return the tables of models and workloads whose names contain all words of a text.

    The model that the text means is among them. "" means all. Raises PomologyError, in one line
    with similar names, if there is none.
    """
    by_name = {row["name"]: row for row in networks.rows()}
    by_workload = {row["workload"]: row for row in workloads.rows()}
    models = names.containing(text, by_name) if text else list(by_name)
    others = names.containing(text, by_workload) if text else list(by_workload)
    meant = _meant(text).name if models or others else networks.resolve(text).name
    if meant and meant not in models:
        models.append(meant)
    both = [
        Table("Models of `pomology fit`", [_model(by_name[name]) for name in models], FIT),
        Table(
            "Workloads of `pomology predict`",
            [_workload(by_workload[name]) for name in others],
            PREDICT,
        ),
    ]
    return [table for table in both if table.rows]


def _meant(text: str) -> Resolved:
    """Return the model of the table that a text means, with an empty name if it means none."""
    try:
        meant = networks.resolve(text)
    except PomologyError:
        return Resolved("")
    return meant if meant.name in networks.configurations() else Resolved("")


def _model(row: dict[str, str]) -> Row:
    longest = networks.longest(networks.configurations()[row["name"]])
    cells = {
        "Name": row["name"],
        "Parameters": _count(int(row["parameters"])),
        "Most tokens": f"{longest:,}" if longest < networks.UNLIMITED else "",
        "On the Hugging Face Hub": networks.hub_name(row),
    }
    return Row(cells)


def _workload(row: dict[str, str]) -> Row:
    cells = {"Example": row["example"], "Model": row["title"], "Last word": row["size"]}
    return Row(cells)


def _count(value: int) -> str:
    """Return a number of parameters as `494 million`."""
    # 999,885,952 is 1.00 billion, not 1,000 million.
    word, factor = ("billion", 1e9) if value >= 0.9995e9 else ("million", 1e6)
    return f"{significant(value / factor)} {word}"
