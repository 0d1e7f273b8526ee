"""Every figure of the reference run, and of a Mac's, can be read on a phone of 375 pixels.

The figures are drawn again from the records. A browser measures their texts.
"""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from records import write

from pomology.extras.share import results
from pomology.paths import notebook_paths, root
from pomology.report import page
from pomology.results.run import Run

REFERENCE = root() / "outputs" / "reference-cpu"
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
BROWSERS += ["/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"]
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)  # none is downloaded
PHONE, LEAST = 375, 9  # pixels: of the page's width, and of the size of text
# Opens all parts of a page, and returns the address and the width of each drawing.
DRAWINGS = """() => {
    const widths = () => [...document.querySelectorAll('img.drawing')].map(
        one => [one.src, one.getBoundingClientRect().width])
    const folded = widths()
    document.querySelectorAll('details').forEach(one => { one.open = true })
    return [...folded, ...widths()].filter(([, width]) => width)
}"""
# Shows a drawing in a width, and returns its texts that are too small, cut, or on another one.
FAULTS = """([source, width, least]) => {
    document.body.innerHTML = decodeURIComponent(source.slice(source.indexOf(',') + 1))
    const svg = document.querySelector('svg'), scale = width / svg.viewBox.baseVal.width
    svg.setAttribute('width', width)
    svg.setAttribute('height', scale * svg.viewBox.baseVal.height)
    const whole = svg.getBoundingClientRect(), faults = []
    const texts = [...svg.querySelectorAll('text')].filter(one => one.textContent.trim())
    const boxes = texts.map(one => one.getBoundingClientRect())
    texts.forEach((one, number) => {
        const box = boxes[number], size = scale * parseFloat(getComputedStyle(one).fontSize)
        if (size < least) faults.push(`${one.textContent}: ${size} pixels`)
        if (Math.min(box.left - whole.left, whole.right - box.right,
                     box.top - whole.top, whole.bottom - box.bottom) < -1)
            faults.push(`${one.textContent}: cut`)
        texts.slice(number + 1).forEach((other, index) => {
            const near = boxes[number + 1 + index]
            const across = Math.min(box.right, near.right) - Math.max(box.left, near.left)
            const down = Math.min(box.bottom, near.bottom) - Math.max(box.top, near.top)
            if (Math.min(across, down) > 2)
                faults.push(`${one.textContent} on ${other.textContent}`)
        })
    })
    return faults
}"""


def on_a_mac(records):
    """Return the records on a Mac's CPU, and the same on its GPU where a framework has one."""
    for one in records:
        gpus = {"torch": ["mps"], "mlx": ["mlx-gpu"]}.get(one.framework, [])
        for backend in ["cpu", *gpus]:
            fields = {"backend": backend, "chip": "Apple M3 Max"}
            fields |= {"device": "gpu" if backend in gpus else "cpu"}
            fields |= {"case": one.case.replace("cpu", backend)}
            yield msgspec.structs.replace(one, **fields)


def redrawn(folder: Path) -> Path:
    """Draw the figures of all notebooks from a run's records; return its page."""
    for path in notebook_paths(root() / "notebooks"):
        values: dict = {}
        document = json.loads(path.read_text())
        for cell in document["cells"]:
            if {"parameters", "study"} & {*cell["metadata"].get("tags", ())}:
                exec("".join(cell["source"]), values)
        values |= {"out": str(folder), "profile": "quick"}
        results.outputs(document["cells"], values, folder)
    return page.build(folder)


@pytest.mark.skipif(not BROWSER, reason="none of these browsers is here")
@pytest.mark.parametrize(
    "machine",
    [
        pytest.param("reference", marks=pytest.mark.long),
        pytest.param("mac", marks=pytest.mark.machines),
    ],
)
def test_every_figure_can_be_read(tmp_path, monkeypatch, machine):
    from playwright.sync_api import sync_playwright

    monkeypatch.setattr(results, "SHOWING", ("details", "figure", "show"))
    run = Run(REFERENCE)
    records = run.records if machine == "reference" else on_a_mac(run.records)
    built = redrawn(write(tmp_path / "run", records, run.machine))
    faults = {}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        phone = chromium.new_page(viewport={"width": PHONE, "height": 800})
        phone.goto(built.as_uri())
        drawings = phone.evaluate(DRAWINGS)
        phone.goto("about:blank")
        for number, (source, width) in enumerate(drawings):
            found = phone.evaluate(FAULTS, [source, width, LEAST])
            faults |= {f"drawing {number}, {width} pixels": found} if found else {}
        chromium.close()
    assert len(drawings) > 50 and faults == {}
