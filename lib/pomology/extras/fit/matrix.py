"""The table of `pomology fit --table`: models by methods, with memory and time on one device."""

from __future__ import annotations

import math

from pomology.articles import names
from pomology.errors import PomologyError
from pomology.extras.fit import counts, networks, offers, times
from pomology.extras.fit.offers import TrainingDevice
from pomology.extras.fit.plan import METHODS, Plan
from pomology.format import quantity
from pomology.report.table import Row, Table

METHOD_WORDS = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
COUNTED = ("cuda", "mps")  # backends that counts.jsonl has
OPTIONS = (
    "--on, --memory, --framework, --batch, --sequence, --accumulation, --rank, --checkpointing "
    "and --precision bf16 or fp16"
)
MILLION = 1e6  # tokens of a time


def check(plan: Plan) -> None:
    """Raise PomologyError for a plan that counts.jsonl has of no model."""
    half = plan.precision != "fp32"
    alike = plan._replace(precision="bf16", checkpointing=False, **counts.ANY)
    if not half or alike != Plan(framework=plan.framework, **counts.ANY):
        raise PomologyError(f"--table: expected no options but {OPTIONS}")


def table(plan: Plan, where: TrainingDevice, text: str = "") -> Table:
    """Return memory, and minutes per million tokens, of the language models of the table.

    plan: see `check`; its method is replaced by each of METHODS, and it has checkpointing. text:
    words of the models' names, "" for all. Raises PomologyError, in one line, where no model has
    such a name, or for a CPU.
    """
    if where.backend not in COUNTED:
        raise PomologyError("--table: expected a GPU, and this machine has none; try --on 'M4 Max'")
    plan = plan._replace(checkpointing=True)
    every = {row["name"]: row for row in networks.rows() if _is_language_model(row)}
    chosen = names.containing(text, every) if text else list(every)
    if not chosen:
        chosen = [networks.resolve(text).name]
    rows = sorted((every[name] for name in chosen if name in every), key=_parameters)
    if not rows:
        raise PomologyError(f"--table {chosen[0]}: expected a language model")
    lines = []
    largest: dict[str, str] = {}
    words = (
        METHOD_WORDS | {"qlora": "QLoRA in MLX"} if _in_mlx(plan, where.backend) else METHOD_WORDS
    )
    for row in rows:
        cells = {"Model": row["name"]}
        for method in METHODS:
            own = _of_method(plan, method, row["name"], where.backend)
            if counts.key(row["name"], own, where.backend) not in counts.table():
                cells[words[method]] = ""
                continue
            need = counts.need(row["name"], own, where.backend)
            verdict = offers.verdict(need, own, where)
            if verdict in (offers.FITS, offers.TIGHT):
                largest[method] = row["name"]
            cells[words[method]] = _cell(need, own, where, verdict)
        lines.append(Row(cells))
    notes = _notes(where) + times.slow_precision(plan, where.device)
    if _in_mlx(plan, where.backend):
        notes.append(f"QLoRA is mlx-lm's: {offers.NO_KERNELS}.")
    if where.backend == "cuda" and any(map(networks.has_experts, map(_name, rows))):
        notes.append(f"QLoRA of mixtures: {networks.EXPERTS_IN_16_BITS}.")
    return Table(_title(plan, where, largest, words), lines, notes)


def _in_mlx(plan: Plan, backend: str) -> bool:
    """Return whether QLoRA, and only that, is mlx-lm's."""
    return (backend, plan.framework) == ("mps", "torch")


def _is_language_model(row: dict[str, str]) -> bool:
    return row["architecture"].endswith(networks.LANGUAGE_MODEL)


def _name(row: dict[str, str]) -> str:
    return row["name"]


def _parameters(row: dict[str, str]) -> int:
    return int(row["parameters"])


def _of_method(plan: Plan, method: str, name: str, backend: str) -> Plan:
    """Return the plan of a method for a model, with as many tokens as it takes."""
    longest = networks.longest(networks.configurations()[name])
    in_mlx = method == "qlora" and backend == "mps"
    return plan._replace(
        method=method,
        framework="mlx" if in_mlx else plan.framework,
        sequence=min(plan.sequence, longest),
        upcast=method == "qlora" and backend == "cuda",
    )


def _cell(need: counts.Need, plan: Plan, where: TrainingDevice, verdict: str) -> str:
    if verdict == offers.TOO_LARGE:
        return f"({quantity(need.bytes, 'B')})"
    words = quantity(need.bytes, "B") + (", tight" if verdict == offers.TIGHT else "")
    if not where.device:
        return words
    step, _ = times.predict(need, plan, where.device)
    return f"{words}, {times.duration(MILLION / plan.tokens * step.value)}"


def _title(plan: Plan, where: TrainingDevice, largest: dict[str, str], words: dict) -> str:
    """Return the answer: the largest model that fits, by method, which has the given words."""
    steps = f"{plan.batch} × {plan.sequence:,} tokens, {plan.precision}, checkpointing"
    if not where.limit:
        return f"Memory of a step of {steps}"
    fitting = [f"{words[method]} {name}" for method, name in largest.items()]
    answer = "the largest that fit: " + ", ".join(fitting) if fitting else "nothing fits"
    return f"In {quantity(where.limit, 'B')} ({where.limited_by}) {answer} ({steps})"


def _notes(where: TrainingDevice) -> list[str]:
    notes = ["In brackets: does not fit." if where.limit else ""]
    if where.limit and where.backend == "cuda":
        ratios = ", ".join(f"{METHOD_WORDS[name]} {offers.RESERVES[name]}" for name in METHODS)
        notes.append(f"CUDA's context and fragmentation take more: {ratios} times the memory.")
    if where.device:
        low, high = (math.exp(end) for end in times.kept()["spread"])
        notes.append(
            f"Times: of a million tokens on {where.device.name}; 90 % intervals reach from "
            f"{low:.2f} to {high:.1f} times."
        )
    else:
        notes.append(f"No times: {where.note}; --on names a device with a data sheet.")
    return [note for note in notes if note]
