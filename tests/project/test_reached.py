"""The lines of notebooks, devices/ and machine/ run in the tests, on both pretended machines."""

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reached
import smoke

from pomology.paths import notebook_paths, root
from pomology.runner import notebooks

MOST = 0.05  # of the lines of a part

# Reasons why no run reaches a line.
BROKEN = "what it refuses, no pretended machine has"
WRONG = "refuses a wrong parameter"
SMOKE = "a figure that leaves smoke tests out"
WHOLE = "a loop that is longer than smoke's"
ON_CPU = "MLX on a CPU, which `make test` runs"
SLOW = "too slow for MLX on a busy CPU; tests/references/test_twins.py runs it"
OFFLOAD = "offload needs a real CUDA; tests/models/test_offload.py runs it on a CPU"
WEIGHTS = "needs weights of the hub"
REAL_MAC = "asks the system itself, which is no Mac here"
ARTICLE = "the article profile alone; tests/notebooks/test_simclr_article.py runs it"
ELSEWHERE = "tests of other folders run it"
RARE = "what happens to no pretended machine"
OTHER = "another kind of model; tests/notebooks/test_counts.py counts it"

# File -> lines that no run reaches, by their beginnings.
UNREACHED: dict[str, dict[str, str]] = {
    "capabilities.ipynb": {
        'raise PomologyError(f"unknown {name!r}': WRONG,
        "except Exception as error:": BROKEN,
        "status, reason = outcome.of_exception(error)": BROKEN,
        'if status == "out-of-memory":': BROKEN,
        "raise  # too little memory": BROKEN,
        "raise Unsupported(": BROKEN,
    },
    "base.py": {"return None": RARE},
    "cgroups.py": {"continue": RARE},
    "dcgan_mlx.py": {"": SLOW},
    "device_check.ipynb": {
        "agrees = (platform.processor()": REAL_MAC,
        'case.metric("processor"': REAL_MAC,
        "except MisconfigurationException": BROKEN,
        'raise Unsupported(f"Lightning says': BROKEN,
    },
    "driver_reports.py": {
        'return "out-of-memory", reported.reason': ELSEWHERE,
        "own += filter(None": ELSEWHERE,
        "file.close()": RARE,
        "return None": RARE,
        "try:": ELSEWHERE,
        "return signal.Signals(number).name": ELSEWHERE,
        "except ValueError:  # a real-time signal": ELSEWHERE,
        'return f"signal {number}"': ELSEWHERE,
    },
    "energy.ipynb": {
        "experiment.budget_s = max(": WHOLE,
    },
    "gpt2_finetuning.ipynb": {
        "return offload.placed(": OFFLOAD,
        'case.note("weights, gradients and AdamW on the host': OFFLOAD,
        "return declared, *case.prepare(declared, put=offload.fsdp)": OFFLOAD,
    },
    "gpt2_pretraining_mlx.py": {
        "self.positions = nn.Embedding(shape.positions": OTHER,
    },
    "instrument_check.ipynb": {
        "raise Mismatch(": BROKEN,
        'raise Unsupported(f"this system reports no': BROKEN,
        'texts = [f"{name} needs {needs}': BROKEN,
    },
    "lora.ipynb": {
        'raise PomologyError(f"model is': WRONG,
        'raise PomologyError(f"lora_layers is': WRONG,
        "path = try_to_load_from_cache(": WEIGHTS,
        "return path if isinstance(path, str)": WEIGHTS,
        "weights = load_file(path)": WEIGHTS,
        "with torch.no_grad():": WEIGHTS,
        "for name, weight in network.named_parameters():": WEIGHTS,
        "if not weight.requires_grad:": WEIGHTS,
        'own = name.removeprefix("base_model.model.")': WEIGHTS,
        "weight.copy_(weights[own])": WEIGHTS,
        "load(network, path)": WEIGHTS,
        'raise Unsupported(f"no matmul in bf16': BROKEN,
    },
    "mac_sensors.py": {"return {}": REAL_MAC, "return ctypes.CDLL(": REAL_MAC, "main()": REAL_MAC},
    "mlx.py": {"return None": ON_CPU},
    "model_sizes_mlx.py": {"raise TooSlow(": BROKEN},
    "other_runs.py": {
        "except OSError:": BROKEN,
        "self._close()": BROKEN,
        "raise": BROKEN,
        "time.sleep(WAIT_S)": RARE,
    },
    "peaks.ipynb": {
        'raise Mismatch(f"the result has data type': BROKEN,
        "return once, 1, 3": ON_CPU,
        "continue": WHOLE,
    },
    "rasbt_vgg16.ipynb": {
        'with case.occasional("copy of the weights"': WHOLE,
        "return copy.deepcopy(model.state_dict())": WHOLE,
        "kept = keep(case, model)": WHOLE,
        "model.load_state_dict(kept)": WHOLE,
    },
    "rasbt_vgg16_mlx.py": {"": SLOW},
    "simclr.ipynb": dict.fromkeys(
        (
            "case.count(simclr)",
            "seed_everything(seed",
            "files, others = ",
            "on_disk, test_on_disk = ",
            "training, test = loader(case, on_disk",
            "model = case.watch_model(",
            "verify.workload(case, model, simclr",
            "model.bank = bank = ",
            'options = {"accelerator"',
            "trainer = Trainer(",
            "case.watch()",
            "timed = case.occasional(",
            "with open(Path(folder",
            "trainer.fit(model",
            "(fit_s,) = ",
            "model.to(case.device)",
            "model.trainer = model.bank = None",
            'case.metric("fit_s"',
            'case.metric("epoch_s"',
            'yield from experiment.cases([row | {"epochs": 2}])',
        ),
        ARTICLE,
    )
    | {"case.accuracy(bank.right / bank.tested": WHOLE},
    "siamese_mlx.py": {"": SLOW},
    "simclr_mlx.py": {"": SLOW},
    "whisper_pretraining.ipynb": {'return "filled" if config': SMOKE},
    "whisper_finetuning.ipynb": {'yield first | {"recompute": True}': BROKEN},
}


def executions(folder: Path) -> Iterator[tuple[str, smoke.Execution]]:
    """Yield all measured runs: those of test_smoke, and the notebooks that read results."""
    for machine in smoke.LONG:
        for name, path, parameters in smoke.runs(machine):
            run = f"{machine}-{name}"
            yield run, smoke.Execution(path, parameters, folder / run, machine)
    readers = [each.path for each in notebooks.notebooks(skipped={}) if each.after]
    readers += [each.path for each in notebooks.notebooks(run=False, skipped={})]
    for path in readers:
        run = f"read-{path.stem}"
        execution = smoke.Execution(path, {"profile": "quick"}, folder / run)
        shutil.copytree(root() / "outputs" / "reference-cpu", execution.out)
        yield run, execution


def run_unit_tests(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "tests/devices", "tests/machine", "-x"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long and not machines"]
    alone = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    options: dict[str, Any] = {"cwd": root(), "env": alone | environment, "capture_output": True}
    done = subprocess.run(command, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.machines
def test_nearly_all_lines_run_on_a_pretended_mac_or_nvidia_machine(tmp_path_factory, tmp_path):
    """Runs of other processes are taken over; those that are missing are made here."""
    measured = reached.Reached(tmp_path_factory)
    for run, execution in executions(tmp_path):
        if not measured.has(run):
            execution.folder.mkdir(exist_ok=True)
            measured.measure(execution)
            execution.run()
            measured.note(run)
    run_unit_tests(measured.environment)
    counts, lines = measured.unreached()
    said, without_reason = [], []
    for part, missing in lines.items():
        said.append(f"{part}: {len(missing)} of {counts[part]:,} lines do not run")
        for file, line in missing:
            reasons = UNREACHED.get(file, {})
            reason = next((why for text, why in reasons.items() if line.startswith(text)), None)
            said.append(f"  {file}: {line}  # {reason or 'NO REASON'}")
            if reason is None:
                without_reason.append(f"{file}: {line}")
    warnings.warn("\n".join(said), stacklevel=1)  # pytest shows it at its end
    assert without_reason == []
    shares = {part: len(missing) / counts[part] for part, missing in lines.items()}
    assert {part: share for part, share in shares.items() if share > MOST} == {}


def test_a_line_with_a_reason_is_in_its_file():
    sources = {path.name: path.read_text(encoding="utf-8") for path in files()}
    for name, reasons in UNREACHED.items():
        for text in reasons:
            assert text.replace('"', '\\"') in sources[name] or text in sources[name], (name, text)


def files() -> Iterator[Path]:
    yield from notebook_paths(root() / "notebooks")
    yield from (root() / "notebooks").glob("*/*.py")
    for part in ("devices", "machine"):
        yield from (root() / "lib" / "pomology" / part).glob("*.py")
