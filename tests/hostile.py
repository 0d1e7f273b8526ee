"""Files of a run's folder, a checkout and a zip made malformed at random: each command says a line, or works.

`python tests/hostile.py 1000 SEED` tries that many by hand; test_hostile_files.py tries a few.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import records
from test_report import MACHINE, run

from pomology import __main__
from pomology.runner import notebooks, plan

LIMIT_S, MOST_BYTES = 2, 2 * 2**30  # how much longer than with clean files, and how much more memory
VALUES = [None, True, -1, 3, 1e308, 10**400, float("nan"), float("inf"), "", "x", "\ud800", "a\nb\x1b[31m", [], {}]
VALUES += [[[]], {"a": [1]}, ["x"] * 3, "9" * 6000, "\u202e" * 300, {"\n": None}, [None], -0.0, 2**63]
NAMES = ["\n", "a b", "ü", "'\"", "<b>", "-x", "x" * 200, "\x1b[31m"]
CODE = "# @title\nexperiment = Experiment('vae', article='001', settings=['batch_size'])\nexperiment.table()"


class Hang(BaseException):
    """A command took longer than it may."""


def cell(kind: str, source: str, **more) -> dict:
    outputs = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source, "id": f"{kind}{len(source)}"} | outputs | more


def template(folder: Path) -> Path:
    """A checkout with a notebook, its parameters, and a run of it that has every kind of file."""
    out = run(
        folder / "outputs" / "r",
        records.record(metrics={"epoch_s": records.metric(1.0, unit="s")}),
        machine=MACHINE | {"profile": "quick"},
    )
    declared = "profile: str = 'smoke'  # a\nout: str = ''  # b\ndevices: str = 'auto'  # c\nrepeat: int = 0  # d"
    text = {"output_type": "stream", "name": "stdout", "text": "x"}
    table = {"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": {"text/html": "<b>x</b>"}}
    cells = [cell("markdown", "# A title\n\n![](attachment:a.png)", attachments={"a.png": {"image/png": "aGk="}})]
    cells += [cell("code", declared, metadata={"tags": ["parameters"]}), cell("code", CODE, outputs=[text, table])]
    about = {"pomology": {"article": "001", "seconds": {"quick": 1.0}, "after": []}}
    about |= {"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}}
    about |= {"papermill": {"parameters": {"profile": "smoke"}}}
    document = json.dumps({"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5})
    for place in ("outputs/r/vae.ipynb", "outputs/r/.partial/mlp.ipynb", "notebooks/vae.ipynb"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(document)
    for profile in ("smoke", "quick", "article"):
        (folder / "params" / profile).mkdir(parents=True)
        (folder / f"params/{profile}/vae.yaml").write_text(f"profile: {profile}\nrepeat: 1\n")
    call(folder, "report", 60)
    shutil.copytree(out, folder / "outputs" / "s")
    return folder


def call(folder: Path, command: str, limit_s: float = LIMIT_S) -> int:
    """Run a command on a checkout; AssertionError, Hang, or whatever it raises, where it does neither."""
    place = str(folder / "outputs" / "r")
    command, *options = command.split()
    arguments = {"report": [place], "share": [place], "compare": [place, str(folder / "outputs" / "s")]}
    said, wrong = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(action="ignore"))  # matplotlib's, of numbers that no axis has
        for module in (__main__, notebooks, plan):
            stack.enter_context(mock.patch.object(module, "root", lambda: folder))
        stack.enter_context(contextlib.redirect_stdout(said))
        stack.enter_context(contextlib.redirect_stderr(wrong))
        begun_s = time.process_time()
        status = __main__.main([command, *arguments.get(command, ()), *options])
    took_s = time.process_time() - begun_s
    lines = wrong.getvalue()
    assert status in (0, 1, 2) and "Traceback" not in said.getvalue() + lines, (status, lines)
    assert (status == 0 and not lines) or (lines.startswith("pomology: ") and lines.count("\n") == 1), lines
    assert len(lines) < 1000 and lines.strip().isprintable() and "\x1b" not in said.getvalue(), lines
    assert took_s < limit_s, f"{took_s:.1f} s"
    return status if not lines else f"{status} {lines}"


def _leaves(value, way=()) -> Iterator[tuple]:
    yield way
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _leaves(value[key], (*way, key))


def _type_changed(data: bytes, rng: random.Random) -> bytes:
    """JSON, or a line of it, with one value in it replaced, or taken out."""
    lines = data.splitlines()
    document = json.loads(lines[-1] if len(lines) > 1 and data[:8] == lines[-1][:8] else data)
    way = rng.choice(list(_leaves(document)))
    if not way:
        return json.dumps(rng.choice(VALUES)).encode()
    inner = document
    for key in way[:-1]:
        inner = inner[key]
    if rng.random() < 0.3 and isinstance(inner, dict):
        del inner[way[-1]]
    else:
        inner[way[-1]] = rng.choice(VALUES)
    return json.dumps(document).encode() + b"\n"


def spoil(place: Path, rng: random.Random) -> str:
    """Make one file malformed in one way; returns what was done."""
    data = place.read_bytes()
    place.unlink()
    cut = rng.randrange(len(data) or 1)
    made = {"cut": data[:cut], "empty": b"", "bytes": data[:cut] + rng.randbytes(9) + data[cut:], "again": data * 3}
    made |= {"deep": rng.choice([b"[", b'{"a":', b"- "]) * 100_000, "digits": b"seed: 0x" + b"f" * 9000}
    made |= {"half a sign": data[:cut] + b"\\ud800\xed\xa0\x80" + data[cut:]}
    links = {"zero": "/dev/zero", "loop": place.name, "dangling": "nowhere"}
    changed = ["changed"] * 12 if place.suffix in (".json", ".jsonl", ".ipynb") else []
    way = rng.choice([*made, *links, *changed, "pipe", "folder", "large", "names"])
    if way in made:
        place.write_bytes(made[way])
    elif way in links:
        place.symlink_to(links[way])
    elif way == "changed":
        place.write_bytes(_type_changed(data, rng))
    elif way == "pipe":
        os.mkfifo(place)
    elif way == "folder":
        (place / "x").mkdir(parents=True)
    elif way == "large":
        with open(place, "wb") as file:
            file.truncate(200 * 2**20)
    else:
        place.write_bytes(data)
        for name in (b"\xff", rng.choice(NAMES).encode()):
            shutil.copy(place, os.fsencode(place.parent) + b"/" + name + place.suffix.encode())
    return way


def attempts(count: int, seed: int, commands: tuple[str, ...]) -> Iterator[tuple]:
    """(what was done, the command, what went wrong or None) of each."""
    rng, most = random.Random(seed), resource.getrlimit(resource.RLIMIT_AS)

    def stop(*_):
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    with tempfile.TemporaryDirectory() as scratch:
        kept = template(Path(scratch, "kept"))
        files = sorted(place for place in kept.glob("**/*.*") if place.is_file() and "s" not in place.parts)
        takes_s = {}
        for name in commands:
            begun_s = time.process_time()
            call(kept, name, 60)
            takes_s[name] = time.process_time() - begun_s
        (kept / "outputs/r.zip").unlink(missing_ok=True)
        if sys.platform == "linux":  # macOS has no such limit
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, most[1]))
        try:
            for number in range(count):
                folder = Path(scratch, str(number))
                shutil.copytree(kept, folder)
                suffix = rng.choice(sorted({place.suffix for place in files}))
                place = rng.choice([place.relative_to(kept) for place in files if place.suffix == suffix])
                of_run = place.parts[0] == "outputs"
                command = rng.choice([name for name in commands if (name not in ("list", "check")) == of_run])
                what, wrong = f"{place} {spoil(folder / place, rng)} ({number})", None
                signal.setitimer(signal.ITIMER_REAL, 90)
                try:
                    call(folder, command, takes_s[command] + LIMIT_S)
                except BaseException as error:
                    wrong = error
                signal.setitimer(signal.ITIMER_REAL, 0)
                yield what, command, wrong
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            signal.signal(signal.SIGALRM, before)
            resource.setrlimit(resource.RLIMIT_AS, most)


if __name__ == "__main__":
    every = ("report", "compare", "share", "share --notebooks", "list", "check")
    for what, command, wrong in attempts(int(sys.argv[1]), int(sys.argv[2]), every):
        if wrong is not None:
            calls = [f"{Path(call.filename).name}:{call.lineno}" for call in traceback.extract_tb(wrong.__traceback__)]
            print(f"{command} {what}: {type(wrong).__name__}: {str(wrong)[:150]} {calls[-7:]}", flush=True)
    print("tried", sys.argv[1])
