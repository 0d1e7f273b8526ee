"""Versions measured in turn, by a pretended installer, whose environments do what a test plans; and the statistics."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from test_batch import PACKAGE, Checkout, alive, checkout, wait_until  # noqa: F401
from test_report import Page, assert_harmless, metric, record

from pomology import __main__ as command_line
from pomology.errors import PomologyError
from pomology.extras.versions import environments
from pomology.extras.versions import matrix as runner
from pomology.extras.versions import report as versions
from pomology.report import compare
from pomology.results import journal

OWN = {"numpy": "1.26.4", "torch": "2.13.0+cpu", "mlx": "0.32.4", "tensorflow-macos": "2.16.2", "python": "3.11.7"}
# An environment's Python. It answers what it is asked about itself, and in place of the kit writes a record a case,
# whose time is its factor's; or it runs the kit, in which every sleep takes so much longer.
PYTHON = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(__file__).parents[1]
plan = json.loads((folder / "plan.json").read_text())
if "-I" in sys.argv:
    if plan.get("broken"):
        sys.exit("Traceback\\nImportError: libpretended.so: no such file")
    print(json.dumps(plan["has"]))
    sys.exit()
if plan.get("real"):
    os.environ["PYTHONPATH"] = os.pathsep.join((str(folder), os.environ["PYTHONPATH"]))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
out, profile, devices, data, name, repeat = sys.argv[-6:]
with open(folder.parent / "log", "a") as log:
    print(plan["label"], name, repeat, os.getpid(), file=log)
if plan.get("fails") == name:
    print("  " + name + " did not finish: ImportError: no pretended")
    sys.exit(1)
if plan.get("hangs") == int(repeat):
    (folder.parent / "hangs").touch()
    time.sleep(600)
line = json.loads((folder.parent / "record.json").read_text())
seconds = 0.01 * plan["factor"] * (1 + 0.01 * ((7 * int(repeat) + len(plan["label"])) % 5))
line |= {{"experiment": name, "repeat": int(repeat)}}
line["metrics"]["step_s"]["value"] = seconds
place = pathlib.Path(out, name + ".jsonl")
(place.parent / "repeats").mkdir(parents=True, exist_ok=True)
(place.parent / "machine.json").write_text(json.dumps({{"chip": "Apple M9", "python": "3.11.7", "profile": profile}}))
with open(place, "a") as file:
    print(json.dumps(line), file=file)
(source,) = pathlib.Path("notebooks").glob("*/" + name + ".ipynb")
target = name + ".ipynb" if repeat == "0" else "repeats/" + name + "-" + repeat + ".ipynb"
(place.parent / target).write_text(source.read_text())
"""
SLOWED = (
    "import json, pathlib, time\nplain, plan = time.sleep, json.loads(pathlib.Path(__file__).with_name('plan.json')"
)
SLOWED += ".read_text())\ntime.sleep = lambda seconds: plain(seconds * plan['factor'])\n"


class Pretended:
    """Versions in a checkout, each with an environment that is planned."""

    def __init__(self, made: Checkout, text: str):
        self.folder, self.out = made.folder, made.folder / "outputs" / "m"
        self.text, self.wanted = text, environments.parse(text)

    def plan(self, **more: dict) -> None:
        """What each version does, by its version's number."""
        for wanted in self.wanted:
            folder = environments.python_of(wanted).parents[1]
            (folder / "bin").mkdir(parents=True, exist_ok=True)
            (folder / environments.READY).touch()
            about = {"label": wanted.version, "factor": 1.0, "has": OWN | {wanted.package: wanted.version}}
            (folder / "plan.json").write_text(json.dumps(about | more.get(wanted.version, {})))
            (folder / "sitecustomize.py").write_text(SLOWED)
            environments.python_of(wanted).write_text(PYTHON.format(python=sys.executable))
            environments.python_of(wanted).chmod(0o755)
        line = record("x", backend="cpu", metrics={"step_s": metric(0.01)}, config={"size": 1}, profile="smoke").line()
        (folder.parent / "record.json").write_text(json.dumps({"event": "end"} | line))

    def log(self) -> list[list[str]]:
        place = self.folder / environments.FOLDER / "log"
        return [line.split()[:3] for line in place.read_text().splitlines()] if place.exists() else []

    def run(self, *more: str) -> int:
        return command_line.main(["matrix", f"--versions={self.text}", "--profile=smoke", "--run=m", *more])

    def rows(self) -> list[dict]:
        with open(self.out / "matrix.csv", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


@pytest.fixture
def pretended(checkout, monkeypatch):  # noqa: F811
    monkeypatch.setattr(environments, "installed", lambda: dict(OWN))
    (checkout.folder / "pyproject.toml").write_text('[project]\ndependencies = ["numpy>=1.26", "torch>=2"]')
    return lambda text: Pretended(checkout, text)


WRONG = {
    "": "must name from 2 to 20 versions",
    "torch==2.13.0": "must name from 2 to 20 versions",
    "torch=2.1 torch==2.2": "'torch=2.1' must read package==version",
    "torch==2.13.0; rm -rf x": "'torch==2.13.0;' must read package==version",
    "numpy==$(x) numpy==2": "must read package==version",
    "numpy>=1 numpy==2": "must read package==version",
    "numpy==1.* numpy==2": "must read package==version",
    "-r==1 -e==2": "must read package==version",
    "jax==1 jax==2": "the kit has no package 'jax'",
    "tensorflow==1 tensorflow==2": "perhaps tensorflow-macos",
    "numpy==1 torch==2": "names numpy and torch; must be versions of one package",
    "python==3.12 python==3.11.7": "must name a release of Python, as python==3.12.1",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_read_is_a_line_before_anything_is_installed(pretended, capsys, checkout, text):  # noqa: F811
    assert command_line.main(["matrix", f"--versions={text}", "--profile=smoke"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pomology: VERSIONS") and WRONG[text] in line
    assert not (checkout.folder / environments.FOLDER).exists() and not (checkout.folder / "outputs").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--repeats=1", "REPEATS=1: must be from 2"),
        ("--only=nix", "ONLY=nix: no notebook"),
        ("--run=../x", "RUN=../x: "),
    ],
)
def test_other_arguments_are_checked_before_anything_is_installed(pretended, capsys, checkout, more, words):  # noqa: F811
    assert pretended("numpy==1.26.3 numpy==1.26.4").run(more) == 2
    assert words in capsys.readouterr().err and not (checkout.folder / environments.FOLDER).exists()


def test_an_environment_is_the_kit_s_own_with_one_line_replaced(pretended):
    cpu, cuda = environments.parse("torch==2.12.0 torch==2.12.0+cu126")
    assert (cpu.version, cuda.version) == ("2.12.0+cpu", "2.12.0+cu126")  # a build for CPUs stays one
    asked, constraints = environments.lines(cpu)
    assert asked == ["numpy==1.26.4", "torch==2.12.0+cpu"]
    assert constraints == ["mlx==0.32.4", "tensorflow-macos==2.16.2"]
    asked, constraints = environments.lines(environments.parse("mlx==0.33.0 mlx==0.32.4")[0], free=["numpy"])
    assert asked == ["mlx==0.33.0", "numpy", "torch==2.13.0+cpu"] and constraints == ["tensorflow-macos==2.16.2"]
    python, own = environments.parse("python==3.12.1 python==3.11.7")
    assert environments.lines(python) == environments.lines(own) and environments.key(python) != environments.key(own)
    twice = environments.parse("numpy==1.26.4 numpy==1.26.4")  # how much two of a kind differ
    assert [each.name for each in twice] == ["numpy-1.26.4", "numpy-1.26.4-2"]
    assert environments.key(twice[0]) == environments.key(twice[1])


def installer(monkeypatch, tools: str, answers) -> tuple[list, list]:
    """uv and pip that answer what a test says; the commands, and the lines that are told."""
    commands: list[list[str]] = []
    monkeypatch.setattr(
        environments.shutil, "which", lambda name: "/bin/uv" if name == "uv" and tools == "uv" else None
    )
    monkeypatch.setattr(environments.metadata, "requires", lambda name: ["mlx-metal==0.32.4; sys_platform == 'darwin'"])

    def command(words):
        words = [str(word) for word in words]
        commands.append(words)
        if "venv" in words:
            (environments.Path(words[-1]) / "bin").mkdir(parents=True)
        return (0, [json.dumps(OWN | {"mlx": "0.33.0"})]) if "-I" in words else answers(words)

    return commands, command


def test_uv_is_taken_where_it_is_there_and_what_it_cannot_find_pip_looks_for(pretended, monkeypatch, checkout):  # noqa: F811
    wanted, lines = environments.parse("mlx==0.33.0 mlx==0.32.4")[0], []
    commands, command = installer(monkeypatch, "uv", lambda words: (0, []))
    assert environments.make(wanted, command, lines.append)["mlx"] == "0.33.0"
    assert [words[:3] for words in commands[:2]] == [["/bin/uv", "venv", "--quiet"], ["/bin/uv", "pip", "install"]]
    environments.make(wanted, command, lines.append)  # it is there: only looked at
    assert len(commands) == 4 and "-I" in commands[-1] and len(lines) == 1
    shutil.rmtree(environments.python_of(wanted).parents[1])
    commands, command = installer(monkeypatch, "uv", lambda words: ("/bin/uv" in words and "pip" in words, ["× None."]))
    environments.make(wanted, command, lines.append)
    assert lines[-1] == "mlx 0.33.0: uv: None.; trying pip"
    assert [sum("/bin/uv" in words for words in commands), len(commands)] == [3, 6]


def test_what_a_version_itself_requires_may_change_only_where_it_must_and_else_the_reason_is_a_line(
    pretended,
    monkeypatch,
):
    wanted = environments.parse("mlx==0.33.0 mlx==0.32.4")[0]
    monkeypatch.setitem(OWN, "mlx-metal", "0.32.4")
    tried = []

    def conflicting(words):
        if "-c" not in words:
            return 0, []
        tried.append(environments.Path(words[words.index("-c") + 1]).read_text().splitlines())
        return int("mlx-metal==0.32.4" in tried[-1]), ["ERROR: Cannot install", "ERROR: ResolutionImpossible: see"]

    _, command = installer(monkeypatch, "pip", conflicting)
    environments.make(wanted, command, print)
    assert len(tried) == 2 and set(tried[0]) - set(tried[1]) == {"mlx-metal==0.32.4"}
    printed = ["ERROR: Could not find a version (from versions: 1, 2)", "ERROR: No matching distribution found for x"]
    other = wanted._replace(version="0.34.0")
    _, command = installer(monkeypatch, "pip", lambda words: (1, printed))
    with pytest.raises(environments.Unusable, match=r"^cannot be installed: No matching distribution found for x$"):
        environments.make(other, command, print)
    _, command = installer(monkeypatch, "pip", lambda words: (0, []))
    with pytest.raises(environments.Unusable, match=r"^is not what was installed: that is mlx 0\.33\.0$"):
        environments.make(other, command, print)


def test_versions_take_turns_and_a_slow_down_is_found(pretended, capsys):
    matrix = pretended("numpy==1.26.2 numpy==1.26.3 numpy==1.26.4")
    matrix.plan(**{"1.26.3": {"broken": True}, "1.26.4": {"factor": 1.2}})
    assert matrix.run("--repeats=4") == 1
    shown = capsys.readouterr().out
    turns = [("1.26.2", "1.26.4"), ("1.26.4", "1.26.2")] * 2
    names = ("zeta", "alpha")
    assert matrix.log() == [[v, name, str(r)] for r in range(4) for name in names for v in turns[r]]
    assert "how small a difference can be shown is not known" in shown and "so far, zeta: " in shown
    assert "numpy 1.26.3 does not import: ImportError: libpretended.so: no such file" in shown
    rows = {(row["experiment"], row["run"]): row for row in matrix.rows()}
    assert rows["", "numpy 1.26.3"]["verdict"] == "not measured" and "libpretended" in rows["", "numpy 1.26.3"]["why"]
    for name in names:
        assert rows[name, "numpy 1.26.2"]["verdict"] == "the first"
        row = rows[name, "numpy 1.26.4"]
        assert (row["verdict"], row["repeats"], row["base"]) == ("slower", "4", "numpy 1.26.2")
        assert float(row["low"]) < 1.2 < float(row["high"]) and 1 < float(row["smallest_detectable"]) < 1.1
    page = Page(matrix.out / "index.html")
    assert_harmless(page)
    assert "numpy 1.26.4" in page.text and "slower" in page.text
    # What is in the folder are runs that every other command reads.
    sides = [compare.load(place) for place in compare.find([str(matrix.out)])]
    assert [side.name for side in sides] == ["numpy-1.26.2", "numpy-1.26.4"]


def test_the_same_command_carries_on_and_another_is_refused(pretended, capsys):
    matrix = pretended("numpy==1.26.3 numpy==1.26.4")
    matrix.plan(**{"1.26.4": {"hangs": 1}})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    hangs = matrix.folder / environments.FOLDER / "hangs"
    inside = []

    def interrupt():
        wait_until(hangs.exists)
        inside.append(matrix.run())
        os.kill(os.getpid(), signal.SIGINT)

    try:
        threading.Thread(target=interrupt, daemon=True).start()
        assert matrix.run("--only=zeta", "--repeats=3") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr()
    assert inside == [2] and "RUN=m: another `pomology matrix` is running there" in said.err
    assert "interrupted; what was finished" in said.out and not alive(int(pids(matrix)[-1]))
    done = [["1.26.3", "zeta", "0"], ["1.26.4", "zeta", "0"], ["1.26.4", "zeta", "1"]]
    assert matrix.log() == done and [row["repeats"] for row in matrix.rows()] == ["1", "1"]
    matrix.plan()
    assert matrix.run("--only=zeta", "--repeats=3") == 0
    assert matrix.log()[3:] == [
        ["1.26.4", "zeta", "1"],
        ["1.26.3", "zeta", "1"],
        ["1.26.3", "zeta", "2"],
        ["1.26.4", "zeta", "2"],
    ]
    assert matrix.run("--only=zeta", "--repeats=3") == 0 and len(matrix.log()) == 7
    assert "0 executions to run" in capsys.readouterr().out
    # More repeats go on behind these, and begin with what is known from them.
    assert matrix.run("--only=zeta", "--repeats=4") == 0 and len(matrix.log()) == 9
    assert "zeta: two runs of the same thing differ by up to" in capsys.readouterr().out
    other = pretended("numpy==1.26.2 numpy==1.26.4")
    assert other.run() == 2 and "RUN=m: is a matrix of numpy-1.26.3 and numpy-1.26.4" in capsys.readouterr().err
    (matrix.out / "machine.json").write_text("{}")
    assert matrix.run() == 2 and "RUN=m: is a run, not a matrix" in capsys.readouterr().err


def pids(matrix: Pretended) -> list[str]:
    return [line.split()[3] for line in (matrix.folder / environments.FOLDER / "log").read_text().splitlines()]


def test_a_notebook_that_fails_with_a_version_is_a_row_and_is_not_tried_again(pretended, capsys):
    matrix = pretended("numpy==1.26.3 numpy==1.26.4")
    matrix.plan(**{"1.26.4": {"fails": "zeta"}})
    assert matrix.run("--repeats=3") == 1
    assert matrix.log().count(["1.26.4", "zeta", "0"]) == 1 and len(matrix.log()) == 3 + 1 + 6
    rows = {(row["experiment"], row["run"], row["verdict"]): row for row in matrix.rows()}
    assert rows["zeta", "numpy 1.26.4", "not measured"]["why"] == "zeta did not finish: ImportError: no pretended"
    assert ("alpha", "numpy 1.26.4", "no difference shown") in rows


def test_for_real_in_a_kernel_that_ends_with_what_started_it(pretended, checkout):  # noqa: F811
    """Only the repeat that is asked for, and in its environment, whose sleeps are slowed, the runner's too."""
    shutil.copytree(PACKAGE, checkout.folder / "lib" / "pomology")
    matrix = pretended("numpy==1.26.3 numpy==1.26.4")
    matrix.plan(**{"1.26.4": {"real": True, "factor": 4.0}})
    words = [
        environments.python_of(matrix.wanted[1]),
        "-P",
        "-m",
        "pomology.extras.versions.matrix",
        matrix.out / "r",
        "smoke",
    ]
    words += ["auto", "auto", "zeta", "1"]
    about = {"cwd": checkout.folder, "env": runner._environment()}
    checkout.fault("zeta", "hang 2")
    with subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE, start_new_session=True, **about) as process:
        wait_until((checkout.notebooks / "zeta.hangs").exists)
        process.stdin.close()  # as by the system, when a process is killed
        assert process.wait(60) == 130
    assert not any(map(alive, checkout.pids("zeta")))
    checkout.fault("zeta")
    heard = []
    assert environments.command(words, threading.Event(), heard.append, **about) == 0, heard
    held = journal.read(matrix.out / "r" / "zeta.jsonl")
    assert [(each.repeat, each.status) for each in held.records] == [(1, "ok")] * 3 and not held.problems
    assert min(each.metrics["step_s"].value for each in held.records) >= 0.004
    machine = json.loads((matrix.out / "r" / "machine.json").read_text())
    assert machine["packages"] and (matrix.out / "r" / "repeats" / "zeta-1.ipynb").exists()


# Statistics -----------------------------------------------------------------------------------------------------------


BASE = record("vae")


def side(name: str, **times) -> compare.Side:
    """A version's: case -> its times, one a process."""
    cases = {}
    for size, values in times.items():
        for repeat, value in enumerate(values):
            about = {"config": {"size": size}, "repeat": repeat, "metrics": {"step_s": metric(float(value))}}
            one = BASE.replace(**about)
            cases.setdefault(compare.Case.of(one), []).append(one)
    return compare.Side(name, {}, cases)


def drawn(generator, rows: int, repeats: int, deviation: float, wander: float, factor: float = 1.0) -> list[np.ndarray]:
    """Times of two versions, by row and repeat, that were measured as A B, B A. `deviation`: between processes.
    `wander`: the standard deviation of what the machine does meanwhile, which neighbours in time have in common."""
    logs = deviation * generator.standard_normal((rows, repeats, 2))
    machine = np.cumsum(generator.standard_normal(2 * repeats)) * wander / math.sqrt(repeats)
    machine += wander * generator.standard_normal() * np.linspace(-1, 1, 2 * repeats)  # and it warms up
    for repeat in range(repeats):
        for turn, version in enumerate((0, 1)[:: -1 if repeat % 2 else 1]):
            logs[:, repeat, version] += machine[2 * repeat + turn]
    logs[..., 1] += math.log(factor)
    return [np.exp(logs[..., version]) for version in (0, 1)]


def called(draws: list[list[np.ndarray]]) -> float:
    """The share of rows that are called different."""
    told = []
    for a, b in draws:
        arms = [versions.Arm("a", side("a", **{f"s{n}": row for n, row in enumerate(a)}), {})]
        arms += [versions.Arm("b", side("b", **{f"s{n}": row for n, row in enumerate(b)}), {})]
        told += [finding.verdict in ("faster", "slower") for finding in versions.findings(arms, [(0, 1)]).values()]
    return float(np.mean(told))


@pytest.mark.parametrize("wander", [0.0, 0.05])
@pytest.mark.parametrize("repeats", [2, 5, 10])
def test_two_of_a_kind_are_called_different_in_at_most_5_percent(repeats, wander):
    generator = np.random.default_rng(5)
    draws = [drawn(generator, rows, repeats, 0.05, wander) for rows in (1, 4) for _ in range(150)]
    assert called(draws[:150]) <= 0.075 and called(draws[150:]) <= 0.05  # 5 %, of 150 draws by themselves


@pytest.mark.parametrize("deviation", [0.005, 0.017, 0.04])
def test_a_slow_down_by_3_percent_is_found_as_often_as_is_said_before(deviation):
    """From an A/A of ten processes a side, and with ten repeats."""
    generator = np.random.default_rng(9)
    known, (least, share) = [], versions.can_show(deviation, 10)
    for a, b in (drawn(generator, 1, 10, deviation, 0.0) for _ in range(20)):
        known += versions.noise([side("a", s=a[0]), side("b", s=b[0])]).values()
    assert np.mean(np.square(known)) == pytest.approx(deviation**2, rel=0.2)
    found = called([drawn(generator, 1, 10, deviation, 0.0, 1.03) for _ in range(300)])
    assert found == pytest.approx(share, abs=0.06) and (share >= 0.9) == (deviation < 0.018)
    assert called([drawn(generator, 1, 10, deviation, 0.0, least) for _ in range(300)]) == pytest.approx(0.8, abs=0.07)
    (line,) = versions.beforehand({"vae": [deviation]}, 10)
    assert f"a slow-down by 3.0 % in {100 * share:.0f} % of cases" in line


def test_a_history_shows_changes_where_the_evidence_carries_them():
    generator, lines = np.random.default_rng(2), []
    for factors in ([1, 1, 1, 1, 1], [1, 1, 1.2, 1.2, 1.2]):
        changed = []
        for _ in range(40):
            times = {n: f * np.exp(0.03 * generator.standard_normal(5)) for n, f in enumerate(factors)}
            arms = [versions.Arm(f"torch 2.{n}", side(str(n), s=values), {}) for n, values in times.items()]
            changed.append({place for _, place in versions.changes(arms)})
        lines.append(changed)
        text = versions.style.svg(versions.history(arms, "vae"))
        assert "torch 2.4" in text and ("slower: 1." in text) == (changed[-1] != set())
    never, once = lines
    assert np.mean([bool(places) for places in never]) <= 0.1  # of 40 draws; 5 % are allowed
    assert np.mean([2 in places for places in once]) >= 0.95
    assert np.mean([bool(places - {2}) for places in once]) <= 0.1


def test_of_unequal_or_missing_cases_nothing_is_said():
    a = versions.Arm("a", side("a", s=[1.0, 1.1], t=[1.0, 1.1]), {})
    b = versions.Arm("b", side("b", s=[2.0]), {"": "x" * 9}, "sympy 2 (1)")
    shown = versions.table([a, b])
    verdicts = {(row["case"][-1], row["run"]): row["verdict"] for row in shown.data if row["case"]}
    assert verdicts == {
        ("s", "a"): "the first",
        ("s", "b"): "cannot be told",
        ("t", "a"): "the first",
        ("t", "b"): "cannot be told",
    }
    assert "sympy 2 (1)" in str(shown) and not versions.table([versions.Arm("a", None, {"": "no"})]).rows[0].cells[2]
    with pytest.raises(PomologyError, match="must name from 2"):
        environments.parse(" ".join([f"numpy==1.{n}" for n in range(21)]))
