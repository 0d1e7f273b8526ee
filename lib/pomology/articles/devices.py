"""Devices by the names that people type, that systems report and that sources print.

`resolve` answers for every command and notebook that takes the name of a device. Names of systems,
such as `NVIDIA A100-SXM4-80GB` (CUDA and NVML) or `Apple M3 Max` (macOS and MLX), are texts to it,
so it imports no framework. Names in the data read `A100 80 GB SXM`, `M3 Max GPU (40 cores)`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pomology.articles import names, published
from pomology.articles.names import Resolved
from pomology.errors import PomologyError
from pomology.format import one_line

COMMAND = "pomology devices"  # lists all names
# Words that tell no device from another: makers, trademarks, the kind of memory, a CPU's clock.
MAKERS = re.compile(r"\b(apple|nvidia|geforce|tesla|amd|instinct|intel|corporation)\b|\((r|tm)\)")
FILLERS = re.compile(r"\b(generation|graphics|processor|chip|with|design|hbm\d\w?)\b|@.*")
SAME_WORDS = {"mobile": "laptop", "notebook": "laptop"}
MACS = re.compile(r"\b(macbook( pro| air)?|mac ?mini|mac studio|mac pro|imac( pro)?)\b")
CORES = re.compile(r"(\d+)[ -]*(?:gpu[ -]*)?cores?\b")
CORES_OF_CPU = re.compile(r"\d+[ -]*cores?[ -]*cpu\b")
MEMORY = re.compile(r"(\d+) ?gi?b\b")
BUS = re.compile(r"\b(sxm|pci)e?\d?\b(?: ?gen ?\d)?")
KIND = re.compile(r"\b(cpu|gpu|cuda)\b")
# Words of CPUs; a Ryzen may have a Radeon.
CPUS = re.compile(r"\b(cpu|epyc|ryzen|threadripper|xeon|core *(i\d|ultra)|i[3579]-\d|graviton)")
APPLE = re.compile(r"m\d(pro|max|ultra)?")  # an M60 is NVIDIA's
# Words at the beginning of a name that people leave out: `4090`, `RX 6800`, `RTX 8000`.
SERIES = {"quadro", "radeon", "rtx", "gtx", "rx"}
# Devices of which there is neither a data sheet nor a published value here.
WITHOUT_DATA = ("M5 Max GPU", "MI300X", "MI325X")
# Systems report 0.93 times (K80) to all of the memory of a data sheet, without what ECC takes.
REPORTED_MEMORY = (0.9, 1.05)


class Parts(NamedTuple):
    """A device's name in parts; None and "": not stated.

    model: without maker, size and separators, such as `m3max` or `rtx3080laptop`. kind: `cpu` or
    `gpu`. cores: of an Apple GPU. memory_gb: a card's own. bus: `sxm` or `pci`.
    """

    model: str
    kind: str
    cores: int | None
    memory_gb: float | None
    bus: str

    @property
    def size(self) -> tuple[int | None, float | None, str]:
        """What tells sizes of one model from each other."""
        return self.cores, self.memory_gb, self.bus


class Catalogue(NamedTuple):
    """The devices among which a name is looked up.

    names: in the order of preference where a name fits several. first: why the first one is taken.
    has: what these devices have, and others have not.
    """

    names: tuple[str, ...]
    first: str
    has: str


@functools.cache
def parse(name: str) -> Parts:
    """Return the parts of a name in any of the forms that people, systems and sources write."""
    text = MAKERS.sub(" ", re.sub("[_,]", " ", name.casefold()))
    text = MACS.sub(" ", text)
    if "gpu" in text:
        text = CORES_OF_CPU.sub(" ", text)  # `M1 Ultra (20-core CPU, 64-core GPU)`
    # What a pattern finds is taken out of the name, so that the model is left.
    stated = []
    for pattern in (CORES, MEMORY, BUS, KIND):
        match = pattern.search(text)
        stated.append(match[1] if match else "")
        text = pattern.sub(" ", text, count=0 if pattern is KIND else 1)
    cores, memory, bus, kind = stated
    words = re.split(r"\W+", FILLERS.sub(" ", text))
    model = "".join(SAME_WORDS.get(word, word) for word in words)
    if model.endswith(("cpu", "gpu")):  # `M3MaxGPU`
        model, kind = model[:-3], model[-3:]
    if is_cpu(name):
        cores = ""  # `16-Core Processor`
    if APPLE.fullmatch(model):
        memory = ""  # the machine's, which says nothing of the size of the GPU
    return Parts(
        model=model,
        kind=kind.replace("cuda", "gpu"),
        cores=int(cores) if cores else None,
        memory_gb=float(memory) if memory else None,
        bus=bus,
    )


def is_apple(name: str) -> bool:
    """Return whether a name is that of an Apple chip, such as `M4 Max` or `MacBook Pro M1`."""
    return bool(APPLE.fullmatch(parse(name).model))


def mac_memory_gb(name: str) -> float | None:
    """Return the memory of a Mac that a name states: 128 of `M4 Max 128GB`; None without."""
    match = MEMORY.search(name.casefold())
    return float(match[1]) if match and is_apple(name) else None


def resolve(name: str, catalogue: Catalogue, gpus: Sequence[Mapping[str, Any]] = ()) -> Resolved:
    """Return the device that a name means, and how it was chosen where the name fits several.

    A model without a size means this machine's size if this machine has such a GPU, else the first
    of the catalogue that a Mac with the stated memory may have. A laptop's GPU is another model
    than the desktop card of the same number.

    name: as typed, or as a system reports it. gpus: this machine's, from `snapshot.gpus` or a run's
    machine.json. Raises PomologyError, in one line with similar names, for other names.
    """
    # A name of the catalogue means itself, also where its parts fit several devices.
    for listed_name in catalogue.names:
        if names.spelling(listed_name) == names.spelling(name):
            return Resolved(listed_name, "")
    typed = one_line(name)
    stated = _parts(name)
    of_model = _of_model(stated, catalogue.names)
    by_machine = None if any(stated.size) else _machine_size(of_model, catalogue, gpus)
    parts = by_machine or stated
    fitting = _of_size(parts, of_model)
    if not fitting:
        raise _missing(typed, parts, of_model, catalogue, bool(by_machine))
    memory_gb = mac_memory_gb(name)
    sold = [each for each in fitting if memory_gb in sold_with().get(each, ())]
    device = (sold or fitting)[0]
    choice = _choice(parts, bool(by_machine), sold or fitting, catalogue)
    if 0 < len(sold) < len(fitting):
        choice = f", the size that Macs with {memory_gb:g} GB have"
    other_words = _models(device)[0] != stated.model
    note = f"{typed}: taken as {device}{choice}"
    return Resolved(device, note if choice or other_words else "")


def _choice(parts: Parts, by_machine: bool, fitting: Sequence[str], catalogue: Catalogue) -> str:
    """Return how the first of the fitting devices was chosen, or "" if the name left no choice.

    by_machine: whether the size is this machine's, not of the name.
    """
    others = [f"'{device}'" for device in fitting[1:]]
    cores, *memory_and_bus = parse(fitting[0]).size
    if others:
        which = "the other" if len(others) == 1 else "another"
        return f", {catalogue.first}; say {names.listed(others)} for {which}"
    if parts.cores and not cores:
        return ", whose number of cores is not stated"
    if not (cores or any(memory_and_bus)):
        return ""
    if by_machine:
        return ", this machine's"
    return "" if any(parts.size) else f", the only size with a {catalogue.has}"


def _missing(
    typed: str, parts: Parts, of_model: Sequence[str], catalogue: Catalogue, by_machine: bool
) -> PomologyError:
    """Return the error for a device that a catalogue lacks. of_model: its other sizes there."""
    remedy = f"; `{COMMAND}` lists all"
    # The model is there in other sizes.
    if of_model:
        has = "has" if len(of_model) == 1 else "have"
        only = f"only {names.listed(of_model, 'and')} {has} a {catalogue.has}"
        size = f"{parts.cores} GPU cores" if parts.cores else f"{parts.memory_gb or 0:.0f} GB"
        machine = f"this machine has {size}; " if by_machine else ""
        return PomologyError(f"{typed}: {machine}{only}{remedy}")
    # A CPU, of which the catalogue has none at all.
    if is_cpu(typed) and not any(_kind(name) == "cpu" for name in catalogue.names):
        gpus = _of_model(parts._replace(kind="gpu"), catalogue.names)
        gpu = f"; the GPU of this chip is {names.listed(gpus)}" if gpus else ""
        return PomologyError(f"{typed}: no CPU has a {catalogue.has}{gpu}{remedy}")
    if typed.strip() and not parts.model:
        expected = "expected a model, such as 'RTX 4090' or 'M3 Max'"
        return PomologyError(f"{typed}: names no device; {expected}{remedy}")
    # A device of which other data are there: published times without a data sheet, or the reverse.
    elsewhere = _of_size(parts, _of_model(parts, [*all_names(), *WITHOUT_DATA]))
    if elsewhere:
        hint = names.hint(typed, catalogue.names, _model)
        return PomologyError(f"{typed}: {elsewhere[0]} has no {catalogue.has}{hint}{remedy}")
    return names.unknown(typed, "device", catalogue.names, COMMAND, _model)


def variants(name: str, catalogue: Catalogue) -> list[str]:
    """Return all devices of a catalogue that a name may mean, none for an unknown one."""
    parts = _parts(name)
    return _of_size(parts, _of_model(parts, catalogue.names))


def order(name: str) -> tuple:
    """Return a key that sorts Apple's chips first, and numbers in names by their value."""
    parts = re.split(r"(\d+)", name.casefold())
    numbered = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
    return not is_apple(name), numbered


def measured(chip: str, kind: str, machine: Mapping[str, Any]) -> str:
    """Return the name of a device that a run measured, with its size: `M4 Max GPU (40 cores)`.

    chip: as the system reports it, without its maker. kind: `cpu` or `gpu`. machine: the run's
    machine.json, which has the cores of the CPU and of an Apple GPU, and the memory of a card.
    """
    if kind == "cpu":
        cores = machine.get("cpu_cores")
        return f"{_without_apple(chip)} CPU" + (f" ({cores} cores)" if cores else "")
    gpus = [gpu for gpu in machine.get("gpus") or () if same_model(gpu["name"], chip)]
    gpu = gpus[0] if gpus else {}
    parts = _parts(chip)
    memory_gb = (gpu.get("memory_bytes") or 0) / 2**30
    parts = parts._replace(
        cores=parts.cores or gpu.get("cores"), memory_gb=parts.memory_gb or memory_gb or None
    )
    if APPLE.fullmatch(parts.model):
        return f"{_without_apple(chip)} GPU" + (f" ({parts.cores} cores)" if parts.cores else "")
    # Of a card the data may have several sizes, of which only one is this.
    stated = _exactly(parts, _of_model(parts, all_names()))
    return stated[0] if len(stated) == 1 else f"{chip} GPU"


def _without_apple(chip: str) -> str:
    """Return the name of an Apple chip as the data has it: `M4 Max`."""
    return chip.removeprefix("Apple ")


def is_cpu(name: str) -> bool:
    """Return whether a name says that it is a CPU's: `M3 Max CPU`, `AMD EPYC 7B13`."""
    words = MAKERS.sub(" ", name.casefold())
    return bool(CPUS.search(words)) and not re.search("gpu|radeon", words)


def sizes(name: str) -> list[str]:
    """Return the CPU and the GPUs of a name's model in any size, none for an unknown one.

    A name that says CPU or GPU means only these.
    """
    parts = _parts(name)
    stated = parse(name).kind
    kinds = [stated] if stated else ["gpu", "cpu"]
    by_kind = [_of_model(parts._replace(kind=kind), all_names()) for kind in kinds]
    return list(dict.fromkeys(itertools.chain(*by_kind)))


def of_size(name: str, among: Sequence[str]) -> list[str]:
    """Return the devices that have the size that a name states, all if it states none.

    What no device among them states, such as the bus of a V100, tells no sizes from each other.
    """
    return _exactly(_parts(name), among)


def _exactly(parts: Parts, among: Sequence[str]) -> list[str]:
    """Return the devices that have a stated size, see `of_size`."""
    others = [parse(device) for device in among]
    if not any(other.cores for other in others):
        parts = parts._replace(cores=None)
    if not any(other.bus for other in others):
        parts = parts._replace(bus="")
    if not any(map(_memory_gb, among)):
        parts = parts._replace(memory_gb=None)
    return [device for device in among if _fits(parts, device, loosely=False)]


def same_model(name: str, other: str) -> bool:
    """Return whether two names are of one model in any size: `Apple M1 Pro` and `M1 Pro GPU`."""
    return _model(name) == _model(other)


def canonical(printed: str, role: str = "") -> str:
    """Return the one name of a device that sources print in several ways.

    printed: the device of a row; the result is "" if that is several devices or none. role: of the
    row, which tells the CPU of an Apple chip from its GPU.
    """
    name = _printed().get(printed, printed)
    if KIND.search(printed.casefold()) or not is_apple(name):
        return name
    if role == "cpu":
        return f"{name.partition(' GPU')[0]} CPU"
    return name if " GPU" in name else f"{name} GPU"


@functools.cache
def sheets() -> dict[str, dict[str, str]]:
    """Return the lines of datasheets.csv by full name, the smallest device first.

    A name without a number of cores gets the one of its peaks: `M4 Max GPU (40 cores)`.
    """
    lines = {}
    for line in published.read("datasheets.csv"):
        cores = f" ({line['cores']} cores)" if line["cores"] else ""
        lines[line["device"].removesuffix(cores) + cores] = line

    def size(name: str) -> tuple[float, ...]:
        columns = ("fp32_tflops", "bandwidth_gb_s", "memory_gb")
        return tuple(float(lines[name][column] or 0) for column in columns)

    return {name: lines[name] for name in sorted(lines, key=size)}


@functools.cache
def sold_with() -> dict[str, set[float]]:
    """Return the memory that Macs with a GPU of two sizes are sold with, in GB."""
    lines = published.read("macs.csv")
    return {line["device"]: set(map(float, line["memory_gb"].split())) for line in lines}


@functools.cache
def counts() -> Counter[str]:
    """Return the number of published values by device. Values of several devices are left out."""
    rows = (*published.rows(), *published.elsewhere())
    by_device = Counter(canonical(row["device"], row["role"]) for row in rows)
    del by_device[""]
    return by_device


@functools.cache
def with_data_sheet() -> Catalogue:
    """Return the devices with a data sheet, for predictions, which take the smallest size."""
    return Catalogue(tuple(sheets()), "the smallest with a data sheet", "data sheet")


@functools.cache
def with_results() -> Catalogue:
    """Return the devices with published values, for look-ups, which take the one with most."""
    order = tuple(name for name, _ in counts().most_common())
    return Catalogue(order, "the one with most published results", "published result")


@functools.cache
def all_names() -> tuple[str, ...]:
    """Return the names of all devices with a data sheet or published values."""
    return tuple(dict.fromkeys([*sheets(), *counts()]))


@functools.cache
def _printed() -> dict[str, str]:
    """Return the names of devices.csv by what sources print."""
    return {line["printed"]: line["device"] for line in published.read("devices.csv")}


def _bare(name: str) -> str:
    """Return the spelling of a name without its maker."""
    return names.spelling(MAKERS.sub("", re.sub("_", " ", name.casefold())))


@functools.cache
def _printed_spellings() -> dict[str, str]:
    """Return the names of devices.csv by the spelling of what sources print."""
    return {_bare(printed): device for printed, device in _printed().items()}


def _parts(name: str) -> Parts:
    """Return the parts of a name, or of the one that devices.csv has for it."""
    return parse(_printed_spellings().get(_bare(name)) or name)


def _model(name: str) -> str:
    return _parts(name).model


@functools.cache
def _models(name: str) -> tuple[str, ...]:
    """Return the models by which a device of the data may be called, the full one first."""
    models = [parse(name).model, parse(name.partition("(")[0]).model]  # `Titan X (Pascal)`
    # People leave out any of the words of the series: `Quadro RTX 8000` is `RTX 8000` or `8000`.
    words = name.casefold().split()
    series = list(itertools.takewhile(SERIES.__contains__, words))
    rest = words[len(series) :]
    for count in range(len(series)):
        subsets = itertools.combinations(series, count)
        models += [parse(" ".join([*subset, *rest])).model for subset in subsets]
    return tuple(models)


def _kind(name: str) -> str:
    """Return `cpu` or `gpu`, or "" where neither the name nor a data sheet says it."""
    return parse(name).kind or ("gpu" if name in sheets() else "")


def _memory_gb(name: str) -> float:
    """Return the memory that a device's name or data sheet states, or 0."""
    sheet = sheets().get(name, {})
    return parse(name).memory_gb or float(sheet.get("memory_gb") or 0)


def _of_model(parts: Parts, among: Iterable[str]) -> list[str]:
    """Return the devices of a model in any size: GPUs, unless the name says CPU."""
    if not parts.model:  # `GPU`, or a maker alone
        return []
    of_kind = [name for name in among if not parts.kind or _kind(name) in ("", parts.kind)]
    full = [name for name in of_kind if _models(name)[0] == parts.model]
    same = full or [name for name in of_kind if parts.model in _models(name)]
    return [name for name in same if _kind(name) != "cpu"] or same


def _of_size(parts: Parts, among: Sequence[str]) -> list[str]:
    """Return the devices of the stated size, or else those whose own size is not stated."""
    stated = [name for name in among if _fits(parts, name, loosely=False)]
    return stated or [name for name in among if _fits(parts, name, loosely=True)]


def _fits(parts: Parts, name: str, loosely: bool) -> bool:
    """Return whether a device has the stated size. loosely: also if its own is not stated."""
    device = parse(name)
    memory_gb = _memory_gb(name)
    if parts.cores and parts.cores != device.cores and not (loosely and not device.cores):
        return False
    if parts.bus and parts.bus != device.bus and not (loosely and not device.bus):
        return False
    if not parts.memory_gb:
        return True
    if not memory_gb:
        return loosely
    least, most = (factor * memory_gb for factor in REPORTED_MEMORY)
    return least <= parts.memory_gb <= most


def _machine_size(
    of_model: Sequence[str], catalogue: Catalogue, gpus: Iterable[Mapping[str, Any]]
) -> Parts | None:
    """Return the parts of this machine's GPU with its size, if it is of the model.

    None: no GPU is of the model, or the first of the model states no size.
    """
    for gpu in gpus:
        parts = _parts(gpu["name"])
        if of_model and _of_model(parts, catalogue.names) == of_model:
            memory_gb = (gpu.get("memory_bytes") or 0) / 2**30
            parts = parts._replace(
                cores=parts.cores or gpu.get("cores"),
                memory_gb=parts.memory_gb or memory_gb or None,
            )
            return parts if any(parts.size) else None
    return None
