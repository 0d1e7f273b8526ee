"""Write the generated tables of the pages and of the package: `make docs`. Tests compare them.

A page marks the place of a table: `<!-- generated: flags -->`, the table, `<!-- end -->`. Models
and data, which no code declares, are in docs/experiments.csv.
"""

import argparse
import contextlib
import csv
import functools
import io
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import pandas

from pomology import __main__, paths
from pomology.articles import claims, devices, published
from pomology.errors import PomologyError
from pomology.format import clock_time, seconds, significant
from pomology.results import cases, metrics, repeats
from pomology.results.record import Record
from pomology.results.run import Run
from pomology.runner import notebooks, plan

SOURCES = {
    **{article.id: article.short for article in published.articles()},
    "today": "community results",
    "kit": "this machine",
    "": "none",
}
TYPES = {"str": "text", "Int64": "integer", "float64": "number", "boolean": "boolean"}
# Machines of docs/how-it-measures.md: their chips, and the names of their devices in conditions.
CPU, CUDA = {"cpu"}, {"cpu", "gpu", "cuda"}
MAC = {"cpu", "gpu", "device", "mps", "mlx-gpu"}
MACHINES = {
    "a CPU": (["AMD EPYC"], CPU),
    "an RTX 4090": (["NVIDIA GeForce RTX 4090"], CUDA | {"device"}),
    "an M3 Max": (["Apple M3 Max"], MAC),
    "an M1 Pro": (["Apple M1 Pro"], MAC),
    "an M1 Ultra": (["Apple M1 Ultra"], MAC),
    "an M2 Max": (["Apple M2 Max"], MAC),
    "an M2 Max and an RTX 4090": (["Apple M2 Max", "NVIDIA GeForce RTX 4090"], MAC | CUDA),
    "an M2 Ultra, an RTX 4090 and an A6000": (
        ["Apple M2 Ultra", "NVIDIA GeForce RTX 4090", "NVIDIA RTX A6000"],
        MAC | CUDA,
    ),
    "an M2 Max, an M1, a P100, a V100 and a T4": (
        ["Apple M2 Max", "Apple M1", "Tesla P100-PCIE-16GB", "Tesla V100-SXM2-16GB", "Tesla T4"],
        MAC | CUDA,
    ),
}
# Macs of docs/how-to/fine-tune-on-a-mac.md by memory, and its models.
MACS = dict.fromkeys(("36 GB", "48 GB", "64 GB", "128 GB"), "M4 Max GPU (40 cores)")
MACS["36 GB"] = "M4 Max GPU (32 cores)"
FINE_TUNED = ("llama-3.2-1b", "qwen3-4b", "llama-3.1-8b", "qwen3-14b", "gemma-3-27b")
FINE_TUNED += ("qwen3-30b-a3b", "qwen3-32b", "llama-3.1-70b")
# Trainings of the README's example: notebook and batch size.
EXAMPLES = {"VAE": ("vae", 128), "Siamese": ("siamese", 64), "Transformer": ("transformer_lm", 20)}
DATA = {"real": "real", "stand-in": "*synthetic*"}
REFERENCE = paths.root() / "outputs" / "reference-cpu"
MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
# What a command prints, on any machine: it names its devices in full.
PRINTED = re.compile(r"(<!-- output: ([^\n]*) -->\n).*?(<!-- end -->)", re.DOTALL)
FOLDER = paths.root() / "docs"


def markdown(headings: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown. headings: with ` | ` between."""
    lines = [headings, re.sub(r"[^|]+", " --- ", headings).strip(), *map(" | ".join, rows)]
    return "".join(f"| {line} |\n" for line in lines)


def frameworks(notebook: notebooks.Notebook) -> str:
    """Return the frameworks that a notebook measures; none if it shows other notebooks' results."""
    if notebook.after:
        return "none"
    # Those of its variants and of its code; a notebook that names none measures PyTorch.
    source = notebook.path.read_text(encoding="utf-8")
    names = [variant.parameters.get("framework") for variant in notebook.variants]
    names += re.findall(r'framework=\\"(\w+)', source)
    names = [name for name in names if name] or ["torch"]
    if "experiment.twin(" in source:
        names.append("mlx")
    return ", ".join(dict.fromkeys(map(cases.framework_name, names)))


def experiments() -> Iterable[tuple[str, ...]]:
    """Yield a row of docs/experiments.md for each notebook, by source."""
    lines = {line["notebook"]: line for line in paths.read_csv(FOLDER / "experiments.csv")}
    by_source = sorted(
        notebooks.notebooks(skipped={}), key=lambda notebook: (notebook.article, notebook.name)
    )
    for notebook in by_source:
        plan.require_line(notebook, lines)
        published.check_source(notebook.article)
        line = lines[notebook.name]
        path = notebook.path.relative_to(paths.root()).as_posix()
        yield (
            f"[`{notebook.name}`](../{path})",
            SOURCES[notebook.article],
            line["model"],
            line["data"],
            frameworks(notebook),
            clock_time(notebook.seconds("quick")),
        )


def claims_by_machine() -> Iterable[tuple[str, str]]:
    """Yield for machines how many claims have the devices that they need, of all claims."""
    tested = [claim for claim in published.claims() if claim.conditions]
    total = len(published.claims())
    for words, (chips, names) in MACHINES.items():
        rival = {"rival"} if len(chips) > 1 and "cuda" in names else set()
        count = sum(
            all(
                name in names | rival or any(devices.same_model(chip, name) for chip in chips)
                for name in claims.devices_of(claim)
            )
            and claims.is_of_any(chips, claim.about)
            for claim in tested
        )
        yield words, f"{count} of {total}"


def prediction_errors() -> Iterable[tuple[str, ...]]:
    """Yield a row of docs/prediction.md for each cross-validation by setup/prediction.py."""
    from pomology.extras.prediction import model, validation

    for title, numbers in model.kept()["errors"].items():
        yield title, *validation.cells(numbers)


def macs() -> Iterable[tuple[str, ...]]:
    """Yield for models what fits Macs of MACS in MLX, as `pomology fit --table` has it."""
    from pomology.extras.fit import answer, matrix
    from pomology.extras.fit.plan import Plan

    columns = []
    for memory, on in MACS.items():
        options = argparse.Namespace(on=on, memory=memory, framework="mlx")
        rows = matrix.table(Plan(framework="mlx"), answer.training_device(options)).rows
        columns.append({row.cells["Model"]: row.cells for row in rows})
    for model in FINE_TUNED:
        cells = []
        for by_model in columns:
            fitting = [
                f"{method} {by_model[model][method]}"
                for method in ("LoRA", "QLoRA")
                if not by_model[model][method].startswith("(")
            ]
            cells.append(fitting[0] if fitting else "does not fit")
        yield f"`{model}`", *cells


@functools.cache
def reference() -> list[Record]:
    """Return the cases of the reference run."""
    return Run(REFERENCE).records


def example() -> str:
    """Return the README's table of epochs, published and of the reference run, and a sentence."""
    lines = []
    records = reference()
    for model, (name, batch) in EXAMPLES.items():
        (path,) = REFERENCE.glob(f"shown/{name}/*-article.csv")
        rows = pandas.read_csv(path)
        timed = rows["batch_size"].eq(batch) & rows["epoch_s"].notna()
        # The first size of the Transformer; PyTorch's rows come before those of MLX.
        rows = rows[timed].drop_duplicates("device").fillna({"flags": ""})
        published_s = rows[rows["source"] == "published"].set_index("device")["epoch_s"]
        (here,) = rows[rows["source"] != "published"].itertuples()
        if name == "vae":
            loading = f"{1 - here.compute_share:.0%}".replace("%", " %")
        own = [record for record in records if record.experiment == name]
        of_batch = [case for case in repeats.pool(own) if case.config["batch_size"] == batch]
        epoch = next(case.values["epoch_s"] for case in of_batch if "epoch_s" in case.values)
        seen = " seen" * (epoch.covers == "seen")  # of two repeats, which have no interval
        ends = f"{significant(here.epoch_s_low)} to {significant(here.epoch_s_high)}"
        bounds = f" ({ends}{seen})"
        kinds = {record.data for record in own}
        (kind,) = kinds & DATA.keys()
        how = ", ".join(filter(None, (here.epoch_s_how, f"{DATA[kind]} data", here.flags)))
        times = [*map(seconds, published_s), f"{seconds(here.epoch_s)}{bounds}, {how}"]
        lines.append((f"{model}, batch {batch}", *times))
    table = markdown(f"model | {' | '.join(published_s.index)} | {here.device}", lines)
    return f"{table}\nThe VAE's epoch includes {loading} of loading.\n"


def variation() -> str:
    """Return the README's sentences on the run-to-run variation of the reference run's machine."""
    text = repeats.variation_text(repeats.pool(reference()))
    return (
        f"**What a difference means.** On the machine of the example {text} Your report states "
        "that of your machine; the ± within one process is too small for this.\n"
    )


def output(command: str) -> str:
    """Return what a command of pomology prints, as a block of Markdown."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(printed):
        __main__.main(shlex.split(command))
    printed.seek(0)
    return f"```text\n{printed.read()}```\n"


def csv_text(rows: list[dict[str, str]]) -> str:
    """Return rows with the same keys as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def pages() -> dict[Path, str]:
    """Return the README, the pages of docs/ and the generated table of the package, by path."""
    flags = [
        (f"`{flag}`", meaning, "no" if flag in cases.DOUBTS else "yes")
        for flag, meaning in cases.FLAGS.items()
    ]
    columns = [
        (f"`{line['column']}`", TYPES[line["type"]], line["meaning"])
        for line in paths.read_csv(paths.RESOURCES / "columns.csv")
    ]
    by_name = {name: metrics.Metric(name) for name in sorted(metrics.TABLE)}
    metric_rows = [
        (f"`{name}`", metric.heading, metric.unit, metric.meaning)
        for name, metric in by_name.items()
    ]
    prediction_headings = (
        "prediction | n | devices | median error | mean | within 30 % | in the 90 % interval"
    )
    mac_headings = f"model | {' | '.join(MACS)}"
    headings = "notebook | source | model | data | frameworks | time"
    tables = {
        "flags": markdown("flag | meaning | allows a verdict", flags),
        "columns": markdown("column | type | meaning", columns),
        "metrics": markdown("metric | heading | unit | note", metric_rows),
        "experiments": markdown(headings, experiments()),
        "claims": markdown("machines | claims that their numbers can decide", claims_by_machine()),
        "example": example(),
        "macs": markdown(mac_headings, macs()),
        "prediction": markdown(prediction_headings, prediction_errors()),
        "variation": variation(),
    }
    texts = {}
    docs = sorted([*FOLDER.glob("*.md"), *FOLDER.glob("how-to/*.md")])
    for path in (paths.root() / "README.md", *docs):
        text = path.read_text(encoding="utf-8")
        text = MARKED.sub(lambda mark: mark[1] + tables[mark[2]] + mark[3], text)
        texts[path] = PRINTED.sub(lambda mark: mark[1] + output(mark[2]) + mark[3], text)
    return texts | {notebooks.LISTED: csv_text(notebooks.listed())}


if __name__ == "__main__":
    try:
        for path, text in pages().items():
            path.write_text(text, encoding="utf-8")
        print("counting the steps that `pomology predict` knows, in about two minutes")
        import counts  # with the frameworks

        counts.workloads.COUNTS.write_text(csv_text([*counts.rows()]), encoding="utf-8")
    except PomologyError as error:
        sys.exit(f"make docs: {error}")
