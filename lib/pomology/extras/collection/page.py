"""The pages of devices: one of all, and one of each with what was measured and predicted."""

import base64
import gc
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pomology.articles import devices as names
from pomology.extras.collection import check, evidence, kept, shared
from pomology.extras.collection.evidence import Device
from pomology.extras.compare.many import compare
from pomology.extras.versus import predicted
from pomology.paths import root, write_atomic
from pomology.report import table
from pomology.results import run as results_run

REFERENCE = "RTX 3090"  # one of the devices that share most published work with others
TEMPLATE = "devices.html.j2"
LONG = ("Workload", "Settings", "Known problems")  # columns of long texts
FOLDER = "devices"  # of the pages of single devices, next to the page of all
MOST_LINKS = 10  # to runs, in a cell; others are folded
MOST_LINES = 200  # about refused and marked zips, on a page
# Hides the devices that have not all words of the search; without a script the list is whole.
SCRIPT = """
const box = document.getElementById("search");
box.hidden = false;
// Makers, spaces and hyphens are left out: `NVIDIA RTX4090` and `rtx-4090` are `RTX 4090`.
const plain = (text) => text.toLowerCase().replace(/apple|nvidia|geforce|amd|tesla|[\\s-]+/g, "");
box.addEventListener("input", () => {
  const words = box.value.split(/[\\s-]+/).map(plain);
  let shown = 0;
  for (const item of document.querySelectorAll("#devices li")) {
    const name = plain(item.textContent);
    item.hidden = !words.every((word) => name.includes(word));
    shown += !item.hidden;
  }
  document.getElementById("none").hidden = shown > 0;
  for (const family of document.querySelectorAll("#devices div")) {
    family.hidden = !family.querySelector("li:not([hidden])");
  }
});
"""


def checked(
    paths: Sequence[Path], folder: Path, judged: Sequence[Path] | None = None
) -> list[kept.OneZip]:
    """Check zips by themselves and with each other.

    folder: where checks are kept. judged: the zips whose times are compared, by default all.
    """
    by_path = {path: kept.find(path, folder) for path in paths}
    new = [path for path in paths if by_path[path] is None]
    if new:
        # Looking for garbage takes half of the time, and there is none.
        context = get_context("spawn")
        with ProcessPoolExecutor(mp_context=context, initializer=gc.disable) as pool:
            made = pool.map(partial(kept.make, folder=folder), new, chunksize=4)
            for path, data in zip(new, made, strict=True):
                by_path[path] = kept.decoded(path, data)
    zips = [by_path[path] for path in paths]
    sound = [(path, one) for path, one in zip(paths, zips, strict=True) if not one.checked.refused]
    numbers = [number for number, (path, _) in enumerate(sound) if not judged or path in judged]
    broken = compare([one.checked.traits for _, one in sound], numbers)
    for (_, one), of_one in zip(sound, broken, strict=True):
        one.checked.broken.extend(of_one)
    return zips


def build(
    folder: Path, out: Path | None = None, own: Path | None = None, site: bool = False
) -> list[str]:
    """Check all zips of a folder, and write the pages. Return lines about them.

    out: folder of the pages, by default that of the zips. own: this machine's run, shown as `this
    run` without being checked. site: whether the pages of docs/ and the zips are next to these, as
    in the site; otherwise links go to the files of the checkout.
    """
    zips = checked(sorted(folder.glob("[!.]*.zip")), folder / kept.FOLDER)
    lines = [line for one in zips if one.checked.broken for line in one.checked.lines()]
    accepted = [one for one in zips if not one.checked.refused]
    replaced = sum(one.checked.replaced for one in zips)
    refused = len(zips) - len(accepted) - replaced
    head = f"Runs accepted: {len(accepted):,}, replaced: {replaced:,}, refused: {refused:,}"
    runs = [
        shared.Run(one.checked.name, one.proof, one.checked.marked, one.times) for one in accepted
    ]
    if own:
        runs.append(_own(own))
    every = evidence.devices(shared.pool(runs))
    out = out or folder
    facts = {
        "files": {device.name: device.file for device in every},
        "own": own and own.name,
        "workloads": len(predicted.steps(REFERENCE)),
        "docs": "../" if site else _link(root() / "docs", out),
        "zips": "./" if site else _link(folder, out),
        "suffix": "html" if site else "md",
    }
    for device in every:
        _write(out / FOLDER / device.file, device, every, facts)
    _write_index(out / "index.html", every, head, lines, facts)
    return [*lines, head]


def _link(folder: Path, out: Path) -> str:
    """Return the link to a folder from a page in another one."""
    return f"{Path(os.path.relpath(folder, out)).as_posix()}/"


def _own(path: Path) -> shared.Run:
    """Return this machine's run for the pages."""
    run = results_run.Run(path)
    one = check.of_run(run)
    return shared.Run(path.name, shared.proof(one), [], shared.times(one))


def _write(path: Path, device: Device, every: Sequence[Device], facts: dict[str, Any]) -> None:
    """Write the page of a device."""
    compared = [other.device for other in device.relatives if other.device == REFERENCE]
    example = compared or [other.device for other in device.relatives[:1]]
    headings = device.published[0].cells if device.published else ()
    content = {
        "columns": [
            heading for heading in headings if any(row.cells[heading] for row in device.published)
        ],
        "sections": device.sections,
        "long": LONG,
        "most_links": MOST_LINKS,
        "answer": evidence.answer(device.name, REFERENCE),
        "example": "".join(example[:1]),
    }
    others = [
        other
        for other in every
        if other.name != device.name and names.same_model(other.name, device.name)
    ]
    in_folder = facts | {name: f"../{facts[name]}" for name in ("docs", "zips")}
    page = table.template(TEMPLATE).render(in_folder | content, device=device, others=others)
    write_atomic(path, page)


def _write_index(
    path: Path, every: Sequence[Device], head: str, lines: Sequence[str], facts: dict[str, Any]
) -> None:
    """Write the page of all devices."""
    by_name = {device.name: device for device in every}
    by_family: dict[str, list[str]] = {title: [] for title, _ in evidence.FAMILIES}
    for name in sorted(by_name, key=names.order):
        by_family[evidence.family(name)].append(name)
    with_values = sum(bool(device.published) for device in every)
    with_runs = [device.name for device in every if device.shared]
    values = sum(device.values for device in every)
    lead = (
        f"{len(every)} devices: {values:,} published times and rates of {with_values}, "
        f"shared runs of {len(with_runs)}, predictions of {len(names.sheets())}."
    )
    ranking = by_name[REFERENCE].relatives
    files = {name: f"{FOLDER}/{file}" for name, file in facts["files"].items()}
    digest = hashlib.sha256(SCRIPT.encode()).digest()
    content = facts | {
        "files": files,
        "families": [(title, of_family) for title, of_family in by_family.items() if of_family],
        "measured": with_runs,
        "lead": lead,
        "reference": REFERENCE,
        "ranking": ranking,
        "head": head,
        "lines": lines[:MOST_LINES],
        "of": len(lines),
        "script": SCRIPT,
        "hash": base64.b64encode(digest).decode(),
    }
    write_atomic(path, table.template(TEMPLATE).render(content, device=None))
