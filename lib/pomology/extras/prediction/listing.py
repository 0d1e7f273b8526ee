"""The table of `pomology devices`: data sheets, and numbers of published results."""

import re
import textwrap

from pomology.articles import devices, names
from pomology.articles.devices import Catalogue
from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.report.table import Row, Table

NOTES = (
    "TFLOP/s: peaks of the data sheet; half is fp16 or bf16. Checked: whether the data sheet was",
    "compared with a text, which datasheets.csv names. Results: published values.",
)
TYPED = (
    "Names may be typed in any form, such as 'rtx 4090' or 'NVIDIA A100-SXM4-80GB'. `predict` and",
    "`fit` take this machine's size of a model or else the smallest, and say which.",
)
WIDTH = 100  # columns


def table(text: str) -> Table:
    """Return the sizes of the model that a text means, or else names with all its words; "": all.

    Raises PomologyError, in one line with similar names, if there is none.
    """
    if not text:
        return _table(list(devices.all_names()), (*NOTES, *TYPED))
    sizes = devices.sizes(text)
    if sizes:
        notes = (_of_other_size(text, sizes), *_choices(text), _other_names(text, sizes))
        wrapped = [line for note in notes for line in textwrap.wrap(note, WIDTH)]
        return _table(devices.of_size(text, sizes) or sizes, (*NOTES, *wrapped))
    matching = names.containing(text, devices.all_names())
    if not matching:
        devices.resolve(text, _everything())  # raises
    return _table(matching, (*NOTES, *TYPED))


def _everything() -> Catalogue:
    return Catalogue(devices.all_names(), "", "data sheet or published result")


def _table(listed: list[str], notes: tuple[str, ...]) -> Table:
    rows = [_row(name) for name in sorted(listed, key=devices.order)]
    with_sheet = len(devices.sheets().keys() & set(listed))
    with_results = len(devices.counts().keys() & set(listed))
    counts = f"{with_sheet} with a data sheet, {with_results} with published results"
    head = "1 device" if len(listed) == 1 else f"{len(listed)} devices"
    return Table(f"{head}: {counts}", rows, notes)


def _of_other_size(text: str, sizes: list[str]) -> str:
    """Return that no device has the size that a text states, or "" where one has it."""
    if devices.of_size(text, sizes):
        return ""
    parts = devices.parse(text)
    size = [f"{parts.cores} cores"] if parts.cores else []
    size += [f"{parts.memory_gb:.0f} GB"] if parts.memory_gb else []
    size += [{"sxm": "SXM", "pci": "PCIe"}[parts.bus]] if parts.bus else []
    only = names.listed(sorted(sizes, key=devices.order), "and")
    have = f"has a data sheet or a published result of its own, only {only}"
    return f"No size with {' and '.join(size)} {have}."


def _choices(text: str) -> list[str]:
    """Return what predictions take for a model's name, and which size has most results."""
    try:
        sheet = devices.resolve(text, devices.with_data_sheet(), snapshot.gpus())
        _, _, choice = sheet.note.partition(": taken as ")
        chosen = [f"In predictions this name means {choice}."] if choice else []
    except PomologyError as error:
        reason = str(error).removesuffix(f"; `{devices.COMMAND}` lists all")
        chosen = [f"No prediction for {reason}."]
    counted = sorted(devices.sizes(text), key=devices.counts().__getitem__, reverse=True)
    if len(counted) == 1:
        return chosen
    most = devices.counts()[counted[0]]
    whole = sum(devices.counts()[name] for name in counted)
    return [*chosen, f"Most published results are of {counted[0]}: {most:,} of {whole:,}."]


def _other_names(text: str, sizes: list[str]) -> str:
    """Return the names of other models that contain all words of a text, or ""."""
    words = set(re.findall(r"[\w.]+", text.casefold()))
    others = [
        name
        for name in devices.all_names()
        if name not in sizes and words <= set(re.findall(r"[\w.]+", name.casefold()))
    ]
    return f"Other models: {', '.join(sorted(others, key=devices.order))}." if others else ""


def _row(name: str) -> Row:
    sheet = devices.sheets().get(name, {})
    tflops = {kind: sheet.get(f"{kind}_tflops", "") for kind in ("fp32", "tf32", "half")}
    memory = sheet.get("memory_gb", "")
    count = devices.counts()[name]
    cells = {
        "Device": name,
        "TFLOP/s fp32": tflops["fp32"],
        "tf32": tflops["tf32"],
        "half": tflops["half"],
        "GB/s": sheet.get("bandwidth_gb_s", ""),
        "Memory": f"{memory} GB" if memory else "",
        "Checked": ("yes" if sheet["checked"] else "no") if sheet else "",
        "Results": f"{count:,}" if count else "",
    }
    return Row(cells)
