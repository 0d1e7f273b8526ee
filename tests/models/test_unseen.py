"""The table of unseen weights in docs/how-it-measures.md, made again by `unseen.py`."""

import json
import re
import subprocess
import sys

import pytest

from pomology.paths import root

PRECISIONS = ("fp32", "bf16")
# Of a few steps, and of all trainings; each in a process of its framework.
QUICK = {"torch": ["device_check"], "mlx": ["lora"], "tensorflow": ["mlp"]}
TITLES = {"PyTorch": "torch", "MLX": "mlx", "Keras": "tensorflow"}
POINTS = {"step": 10, "blocks": 1}  # by which the percentages of another machine may differ


def printed():
    """Return both percentages by framework, training and precision."""
    text = (root() / "docs" / "how-it-measures.md").read_text(encoding="utf-8")
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0] in TITLES:
            for precision, cell in zip(PRECISIONS, cells[2:], strict=True):
                numbers = [int(number) for number in re.findall(r"\d+", cell)]
                if numbers:
                    rows[TITLES[cells[0]], cells[1].strip("`"), precision] = tuple(numbers)
    return rows


def made(framework, names=()):
    """Return the rows that the script prints for a framework."""
    script = str(root() / "tests" / "models" / "unseen.py")
    command = [sys.executable, "-P", script, framework, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {
        (framework, name, precision): (100 * step, 100 * blocks)
        for name, precision, step, blocks in map(json.loads, done.stdout.splitlines())
    }


def compare(rows):
    table = printed()
    for key, (step, blocks) in rows.items():
        assert abs(table[key][0] - step) <= POINTS["step"], key
        assert abs(table[key][1] - blocks) <= POINTS["blocks"], key


@pytest.mark.long
@pytest.mark.parametrize("framework", QUICK)
def test_the_table_has_what_a_small_training_gives(framework):
    compare(made(framework, QUICK[framework]))


@pytest.mark.machines
@pytest.mark.parametrize("framework", QUICK)
def test_the_table_has_every_training(framework):
    rows = made(framework)
    for key, shares in rows.items():
        print(*key, *map(round, shares))
    compare(rows)
    assert rows.keys() == {key for key in printed() if key[0] == framework}
