"""The doctor on machines that are not here: recorded Macs, and fakes of what their frameworks would answer."""

import copy
import getpass
import itertools
import json
import platform
import re
import socket
import subprocess
import sys
import types
from pathlib import Path

import fakes
import pytest
import test_machine
from macs import SECRETS

from pomology import __main__
from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.devices import torch as devices_torch
from pomology.extras.doctor import doctor
from pomology.machine import snapshot as machine_snapshot
from pomology.report import article, claims
from pomology.results.record import Record
from pomology.runner import notebooks, parameters

mac = test_machine.mac

NO_FP64 = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
FINE = {"power_source": "ac", "low_power_mode": False, "thermal_level": 0, "load": 1.5, "flags": []}


def there(backend: str, name: str, free_bytes: float = 20e9, **precisions: str | None) -> dict:
    kind = "cpu" if backend == "cpu" else "gpu"
    named = {"backend": backend, "kind": kind, "name": name, "reason": None, "free_bytes": free_bytes}
    return named | {"precisions": dict.fromkeys(("fp32", "fp16", "bf16", "fp64")) | precisions}


def absent(backend: str, reason: str) -> dict:
    return {"backend": backend, "kind": "gpu", "reason": reason}


def says(version: str, *devices: dict, **more: str) -> dict:
    return {"version": version, "reason": None, "devices": [there("cpu", "the processor"), *devices], **more}


MPS = there("mps", "Apple M2 Ultra", fp64=NO_FP64)
CUDA = there("cuda", "NVIDIA H100 80GB HBM3", 79e9)
SEES_MPS = {
    "torch": says("2.13.0", absent("cuda", "built without CUDA"), MPS),
    "tensorflow": says("2.16.2", absent("cuda", "no CUDA on macOS"), there("metal", "Apple M2 Ultra")),
    "mlx": says("0.32.4", there("mlx-gpu", "Apple M2 Ultra", fp64="float64 is not supported on the GPU")),
    "lightning": says("2.6.6", absent("cuda", "no CUDA"), MPS, auto="mps"),
}
SEES_NO_METAL = {
    "torch": says("2.13.0", absent("cuda", "built without CUDA"), absent("mps", "PyTorch finds no Metal GPU")),
    "tensorflow": says("2.16.2", absent("metal", "TensorFlow finds no Metal GPU")),
    "mlx": says("0.32.4", absent("mlx-gpu", "MLX finds no Metal GPU")),
    "lightning": says("2.6.6", absent("mps", "PyTorch finds no Metal GPU"), auto="cpu"),
}
NO_CUDA = {
    "torch": says("2.13.0+cpu", absent("cuda", "this PyTorch is built without CUDA"), absent("mps", "not built")),
    "tensorflow": says("2.16.2", absent("cuda", "built without CUDA"), absent("metal", "no")),
    "mlx": says("0.32.4", absent("mlx-gpu", "this MLX is built without CUDA")),
    "lightning": says("2.6.6", absent("cuda", "without CUDA"), absent("mps", "not built"), auto="cpu"),
}
SEES_CUDA = NO_CUDA | {
    "torch": says("2.13.0+cu130", CUDA, absent("mps", "this PyTorch is built without MPS")),
    "lightning": says("2.6.6", CUDA, absent("mps", "not built"), auto="cuda"),
}
NOTHING = {name: {"version": None, "reason": "not installed", "devices": []} for name in doctor.NAMES}
LINUX = {"chip": "AMD EPYC 7B13", "gpus": [], "os": "Linux", "os_version": "6.8", "architecture": "x86_64"}
LINUX |= {"translated": False, "virtual_machine": True, "python": "3.11.9", "packages": {}}
LINUX |= {"unknown": {"gpus": "no NVIDIA driver answers: Driver Not Loaded"}}
CUDA_BOX = LINUX | {"gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 8e10, "cores": None}] * 2, "unknown": {}}
INTEL_MAC = LINUX | {"chip": "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", "os": "macOS", "os_version": "14.7"}
INTEL_MAC |= {"gpus": [{"name": "AMD Radeon Pro 5300M", "memory_bytes": None, "cores": None}], "unknown": {}}

ALL = "PyTorch, TensorFlow and MLX"
SEE = ("Does PyTorch see the GPU?", "Does TensorFlow see the GPU?", "Does MLX see the GPU?")
NONE = (*SEE, "Does Lightning choose the GPU?")
CPU_ONLY, UNLOADED = f"No: this machine trains on its CPU only, with {ALL}.", "No: no framework can be loaded here."
# Machine -> (folder of recorded outputs or a snapshot, macOS, architecture, processor, answers, the questions that get
# a no, how the verdict begins, what stands in it).
MACHINES = {
    "a Mac": ("m2-ultra", "15.5", "arm64", "arm", SEES_MPS, (), f"This machine trains on its GPU with {ALL}.", ""),
    "a Mac under Rosetta": (
        *("rosetta", "15.5", "x86_64", "i386", NOTHING),
        *((doctor.PYTHON, *NONE), UNLOADED, "install a Python for arm64"),
    ),
    "a Mac of yesterday": (
        *("m1", "13.6", "arm64", "arm", SEES_NO_METAL),
        *((doctor.SYSTEM, *NONE), CPU_ONLY, "update to macOS 14"),
    ),
    "a virtual Mac": (
        *("vm", "15.5", "arm64", "arm", SEES_NO_METAL),
        *((doctor.CHIP, *NONE), CPU_ONLY, "a virtual machine does not pass the GPU on"),
    ),
    "an Intel Mac": (
        *(INTEL_MAC, "", "", "i386", NOTHING),
        *((doctor.CHIP, *NONE), UNLOADED, "use a Mac with an M1 or later"),
    ),
    "Linux without a GPU": (
        *(LINUX, "", "", "x86_64", NO_CUDA),
        *((doctor.CHIP, *NONE), CPU_ONLY, "a machine with an NVIDIA GPU"),
    ),
    "Linux with CUDA": (
        *(CUDA_BOX, "", "", "x86_64", SEES_CUDA),
        *(SEE[1:], "This machine trains on its GPU with PyTorch. Not with TensorFlow and MLX.", ""),
    ),
    "Linux without CUDA's PyTorch": (
        *(CUDA_BOX, "", "", "x86_64", NO_CUDA),
        *(NONE, CPU_ONLY, "Do this: remove .venv and run `make env`"),
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_machines_get_their_verdict_and_what_to_do_and_nobody_is_named(mac, name):
    source, version, architecture, processor, answers, refused, begins, holds = MACHINES[name]
    if isinstance(source, str):
        mac(source, architecture=architecture, version=version)
        source = machine_snapshot.snapshot()
    found = doctor.findings(source, FINE, answers, processor, {})
    verdict = doctor.verdict(found, answers)
    assert verdict.startswith(begins) and holds in verdict, verdict
    no = [each for each in found if each.verdict == doctor.NO]
    assert tuple(each.question for each in no) == refused and all(each.remedy for each in no)
    assert not [each for each in found if each.verdict == doctor.YES and each.remedy]
    assert len({each.question for each in found}) == len(found)

    examination = doctor.Examination(found, verdict)
    table = examination.table()
    assert [row.cells[0] for row in table.rows] == [each.question for each in found] and table.notes == (verdict,)
    text = "\n".join([*examination.lines(), str(table), table._repr_html_()])
    assert [secret for secret in SECRETS if secret in text] == []
    names = {getpass.getuser(), socket.gethostname()}
    assert not names & set(re.findall(r"[\w.-]+", "\n".join(examination.lines())))
    assert str(Path.home()) + "/" not in text and not re.search(r"/(Users|home|opt|var)/", text)


def finding(found: list[doctor.Finding], question: str) -> doctor.Finding:
    (one,) = [one for one in found if one.question.startswith(question)]
    return one


def test_a_mac_s_answers(mac):
    mac("m2-ultra")
    snapshot = machine_snapshot.snapshot() | {"packages": {"tensorflow-metal": "1.2.0"}}
    found = doctor.findings(snapshot, FINE, SEES_MPS, "arm", {})
    answers = {
        doctor.CHIP: "Apple M2 Ultra of 76 cores",
        doctor.SYSTEM: "macOS 15.5; this PyTorch's MPS needs 14 or later",
        doctor.PYTHON: "Python 3.11.9 for arm64; platform.processor() says 'arm'",
        "Does PyTorch see": "PyTorch 2.13.0: mps (Apple M2 Ultra)",
        "Does TensorFlow see": "TensorFlow 2.16.2 with tensorflow-metal 1.2.0: metal (Apple M2 Ultra); its numbers are",
        "Does Lightning": 'Lightning 2.6.6: accelerator="auto" is mps',
        "Does PyTorch compute in fp32 on mps?": f"fp32, fp16, bf16 work; not fp64 ({NO_FP64})",
        "Is there memory": "20.0 GB are free now for cpu; 20.0 GB are free now for mps; MPS may take 1 × what Metal",
    }
    for question, answer in answers.items():
        assert finding(found, question).answer.startswith(answer)


# One thing wrong with a good Mac: the question that gets a no, what it says, and what to do.
WRONG = {
    "a name of the processor that Lightning refuses": ({"processor": ""}, doctor.PYTHON, "expect 'arm'", "uname"),
    "fallback allowed": (
        {"environment": {devices_torch.FALLBACK_VARIABLE: "1"}},
        *("Would an operator", "fallback-enabled", f"unset {devices_torch.FALLBACK_VARIABLE}"),
    ),
    "watermarks that PyTorch would refuse": (
        {"environment": dict(zip(devices_torch.WATERMARKS, ("0.5", "0.9"), strict=True))},
        *("Is there memory", "must not exceed", "unset PYTORCH_MPS_HIGH"),
    ),
    "little memory": ({"torch": says("2.13.0", MPS | {"free_bytes": 1.5e9})}, "Is there memory", "1.50 GB", "close"),
    "on battery": (
        {"conditions": FINE | {"power_source": "battery", "flags": ["on-battery"]}},
        *("Is it fit", "power source battery, low-power mode off, thermal level 0, load average 1.50", "plug it in"),
    ),
    "no Metal plugin": (
        {"tensorflow": says("2.16.2", absent("metal", "tensorflow-metal is not installed"))},
        *("Does TensorFlow see", "tensorflow-metal is not installed", "make env"),
    ),
    "MPS turned off for Lightning": (
        {"lightning": says("2.6.6", absent("mps", "DISABLE_MPS=1 turns it off"), auto="cpu")},
        *("Does Lightning", "DISABLE_MPS=1", "unset DISABLE_MPS"),
    ),
    "fp32 that is wrong": (
        {"mlx": says("0.32.4", there("mlx-gpu", "Apple M2 Ultra", fp32="gives wrong products"))},
        *("Does MLX compute in fp32 on mlx-gpu?", "not fp32 (gives wrong products)", "do not train with MLX"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_thing_wrong_is_said_with_its_cure(mac, name):
    changed, question, words, cure = WRONG[name]
    mac("m2-ultra")
    answers = SEES_MPS | {framework: changed[framework] for framework in doctor.NAMES if framework in changed}
    given = (changed.get("processor", "arm"), changed.get("environment", {}))
    found = doctor.findings(machine_snapshot.snapshot(), changed.get("conditions", FINE), answers, *given)
    (refused,) = [each for each in found if each.verdict == doctor.NO]
    assert refused == finding(found, question) and words in refused.answer and cure in refused.remedy
    assert doctor.verdict(found, answers).startswith("This machine trains on its GPU with ")


def test_a_mac_that_does_not_say_is_not_told_and_no_reason_to_refuse(mac, monkeypatch):
    mac("m1", version="")
    monkeypatch.setattr(machine_snapshot, "run_command", lambda *command, timeout=10: None)
    found = doctor.findings(machine_snapshot.snapshot(), FINE, SEES_NO_METAL, "arm", {})
    assert finding(found, doctor.CHIP).verdict == finding(found, doctor.SYSTEM).verdict == doctor.NOT_TOLD
    assert finding(found, "Does PyTorch see").remedy.startswith("restart the Mac")


def test_the_article_s_own_check_is_checked():
    for translated, agrees in ((False, True), (True, False), (None, None)):
        assert doctor.processor_agrees({"os": "macOS", "translated": translated}, "arm") is agrees
    assert doctor.processor_agrees(LINUX, "x86_64") is None


PRINTS = """
print('2026-01-01 I tensorflow: could not find TensorRT')
os.system('echo loud; echo louder >&2')
json.dump({'version': '1', 'reason': None, 'devices': []}, open(sys.argv[2], 'w'))
"""
DLOPEN = "dlopen(/Users/jane/miniforge3/lib/libtorch.dylib, 0x2): Symbol not found: _x"
ANSWERS = {  # what a framework's process does -> the reason why there is no answer
    "time.sleep(600)": "it did not answer within 0.5 s",
    "os.kill(os.getpid(), signal.SIGABRT)": "loading it ended the process with SIGABRT",
    "sys.exit(3)": "exit status 3",
    f"raise ImportError('{DLOPEN}')": "ImportError: dlopen(libtorch.dylib, 0x2): Symbol not found: _x",
    PRINTS: None,
}


@pytest.mark.parametrize(("code", "reason"), ANSWERS.items())
def test_what_goes_wrong_in_a_framework_is_a_reason_and_nothing_on_the_terminal(tmp_path, capfd, code, reason):
    path = tmp_path / "framework.py"
    path.write_text(f"import json, os, signal, sys, time\n{code}\n", encoding="utf-8")
    version, limit_s = None if reason else "1", 0.5 if "sleep" in code else 60
    assert doctor.probe("torch", limit_s, [str(path)]) == {"version": version, "reason": reason, "devices": []}
    assert capfd.readouterr() == ("", "")


def test_a_framework_that_is_missing_and_a_process_that_cannot_be_started(monkeypatch):
    assert doctor.probe("no_such_framework")["reason"] == "not installed"
    monkeypatch.setattr(doctor.sys, "executable", "/no/such/python")
    reason = "no process could be started to ask it: No such file or directory"
    assert doctor.probe("torch") == {"version": None, "reason": reason, "devices": []}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("dlopen(/Users/jane doe/env/lib/x.dylib, 0x2): no", "dlopen(x.dylib, 0x2): no"),
        ("error:/home/john/x and ~/secret/y", "error:y"),
        (r"C:\Users\jo\x.dll is missing", "x.dll is missing"),
        ("see https://pytorch.org/get-started and/or 3 GB/s", "see https://pytorch.org/get-started and/or 3 GB/s"),
        ("two\n lines", "two lines"),
        ("x" * 1000, "x" * 199 + "…"),
    ],
)
def test_messages_lose_their_folders(text, left):
    assert doctor.one_line(text) == left


PROGRAM = """
import json, sys
from pomology.extras.doctor import doctor
doctor._main(*sys.argv[1:])
print(json.dumps([name for name in ("torch", "tensorflow", "mlx", "sklearn") if name in sys.modules]))
"""


@pytest.mark.parametrize("framework", doctor.NAMES)
def test_this_machine_s_frameworks_each_alone(request, framework, tmp_path):
    if framework in ("torch", "lightning"):
        request.getfixturevalue("forked")  # whose processes have PyTorch loaded, which takes seconds
    command = [sys.executable, "-c", PROGRAM, framework, str(tmp_path / "answer.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["torch" if framework == "lightning" else framework]
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["reason"] is None and re.match(r"\d+\.\d+", answer["version"])
    cpu = answer["devices"][0]
    assert (cpu["backend"], cpu["reason"]) == ("cpu", None)
    if framework == "lightning":
        assert answer["auto"] in [each["backend"] for each in doctor.usable(answer)]
    else:
        assert cpu["precisions"]["fp32"] is None and cpu["free_bytes"] > 0


@pytest.mark.parametrize(
    ("processor", "disabled", "auto", "reason"),
    [
        ("arm", "", "mps", None),
        ("i386", "", "cpu", "platform.processor() says 'i386', and Lightning wants 'arm'"),
        ("arm", "1", "cpu", "DISABLE_MPS=1 turns it off"),
    ],
)
def test_lightning_on_a_mac(monkeypatch, processor, disabled, auto, reason):
    import torch
    from lightning.fabric.accelerators import MPSAccelerator as Fabrics
    from lightning.pytorch.accelerators import MPSAccelerator

    kinds = [kind for kind in (MPSAccelerator, Fabrics) if hasattr(kind.is_available, "cache_clear")]
    with monkeypatch.context() as patch:
        for kind in kinds:
            kind.is_available.cache_clear()  # what Lightning remembers
        patch.setattr(torch.backends.mps, "is_available", lambda: True)
        patch.setattr(torch.backends.mps, "is_built", lambda: True)
        patch.setattr(platform, "processor", lambda: processor)
        patch.setenv("DISABLE_MPS", disabled)
        answer = doctor._probe_lightning()
    for kind in kinds:
        kind.is_available.cache_clear()
    assert kinds and answer["auto"] == auto
    assert {each["backend"]: each["reason"] for each in answer["devices"]}["mps"] == reason


def test_the_command_says_the_verdict_first_then_what_is_wrong_then_what_is_fine(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "probe", lambda framework: copy.deepcopy(NO_CUDA[framework]))
    monkeypatch.setattr(machine_snapshot, "snapshot", lambda: LINUX | {"cpu_cores": 64, "memory_bytes": 256 * 2**30})
    monkeypatch.setattr(machine_snapshot, "conditions", lambda: FINE)
    monkeypatch.setattr(platform, "processor", lambda: "x86_64")
    monkeypatch.setenv(devices_torch.FALLBACK_VARIABLE, "1")
    assert __main__.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "AMD EPYC 7B13, 64 cores, 256 GB, Linux 6.8, Python 3.11.9"
    assert lines[3].startswith("No: this machine trains on its CPU only") and max(map(len, lines)) <= 104
    place = lines.index("  Does PyTorch see the GPU?")
    assert lines[place + 1] == "    No: PyTorch 2.13.0+cpu: this PyTorch is built without CUDA."
    headings = [line for before, line in itertools.pairwise(lines[3:]) if not before]
    assert [heading.partition(" (")[0] for heading in headings] == [
        *("Not as it should be", "Fine", "Not known of this machine")
    ]
    assert lines.index(headings[0]) < place < lines.index(headings[1])
    assert any(line.startswith("    Do this: unset PYTORCH_ENABLE_MPS_FALLBACK") for line in lines)
    assert lines[-1] == "  gpus: no NVIDIA driver answers: Driver Not Loaded"
    counted = [line for line in lines if line.startswith("  ") and line[2].isupper() and line.endswith("?")]
    assert re.findall(r"\((\d+) of (\d+)\)", " ".join(headings))[0][1] == str(len(counted)), "every finding is there"


def record(backend: str, config: dict, **more) -> Record:
    config |= {"batch_size": 64}
    names = {"experiment": "device_check", "article": "002", "case": f"{backend} {config}", "config": config}
    reason = "Lightning says: no GPU" if "status" in more else None
    return fakes.record(**names | {"backend": backend, "chip": "Apple M2 Ultra", "reason": reason} | more)


def chart(cpu_s: float, gpu_s: float, scaled: bool = False) -> list[Record]:
    rows = itertools.product(("resnet50", "bert", "vgg16"), ("training", "inference"), (("cpu", cpu_s), ("mps", gpu_s)))
    return [
        record(
            *(backend, {"model": model, "mode": mode}),
            scaled=scaled and backend == "cpu",
            metrics={
                {"training": "step_s", "inference": "forward_s"}[mode]: fakes.metric(seconds),
                "flops_per_s": fakes.metric(1e12 / seconds, unit="FLOP/s"),
                **({"speedup": fakes.metric(cpu_s / gpu_s, unit="x")} if backend == "mps" else {}),
            },
        )
        for model, mode, (backend, seconds) in rows
    ]


def perceptron(backend: str, accelerator: str, arm: int | None = None, **more) -> Record:
    metrics = {} if arm is None else {"processor": fakes.metric(arm, unit="")}
    return record(backend, {"model": "perceptron", "accelerator": accelerator}, metrics=metrics, **more)


def test_claims_get_their_verdicts():
    lightning = [perceptron("cpu", "cpu", 1), perceptron("mps", "gpu", 1), perceptron("mps", "mps", 1)]
    good = [*lightning, perceptron("mps", "auto", 1), *chart(8.0, 1.0)]
    slow = [perceptron("cpu", "cpu", 0), perceptron("mps", "mps", status="error"), *chart(1.2, 1.0)]
    here = [perceptron("cpu", "cpu"), perceptron("cpu", "gpu", status="unsupported"), *chart(8.0, 1.0, scaled=True)]
    for records, verdict in ((good, "SUPPORTED"), (slow, "CONTRADICTED"), (here, "INCONCLUSIVE")):
        lookup = claims.MeasuredLookup([one.replace(repeat=repeat) for one in records for repeat in range(3)])
        verdicts = {claim.id: articles_claims.test(claim, lookup).status for claim in published.claims("002")}
        assert verdicts == dict.fromkeys(("002-C1", "002-C2", "002-C3"), getattr(articles_claims, verdict))


def test_scaled_cases_stand_there_by_their_rates_and_never_by_seconds():
    table = article.article_table("device_check", chart(8.0, 0.5, scaled=True))
    assert not [column for column in table.columns if re.search(r"second|time\b|Time\b", column)]
    cpu, gpu, *_ = [row.cells for row in table.rows if row.kind == "measured"]
    assert cpu[1:3] == ("resnet50", "training") and "125 GFLOP/s" in cpu and "scaled" in cpu[-1]
    assert gpu[7:9] == ("2,000 GFLOP/s", "16.0×") and "scaled" not in gpu[-1]
    assert any(note.startswith("scaled: ") for note in table.notes)


NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "lightning_on_mps" / "device_check.ipynb"


def test_each_device_runs_the_batches_that_fit_and_lightning_takes_the_one_it_takes():
    cells = ["".join(cell["source"]) for cell in notebooks.read_notebook(NOTEBOOK)["cells"]]
    imports, networks, planning = (
        next(cell for cell in cells if words in cell) for words in ("import torch", "BATCHES = ", "def to_run")
    )
    scope = {name: parameter.default for name, parameter in parameters.declared(NOTEBOOK).items()}
    exec(imports[: imports.index("experiment = ")], scope)
    exec(networks, scope)
    exec(planning, scope)

    def plan(auto: str, **free: float) -> dict[str, tuple[dict, list]]:
        """Of each kind of device, with so many bytes free, the training batches and Lightning's accelerators."""
        names = {"cpu": "cpu", "gpu": "mps"}
        devices = [
            types.SimpleNamespace(kind=kind, backend=names[kind], free_memory=lambda free=b: free)
            for kind, b in free.items()
        ]
        here = types.SimpleNamespace(devices=devices, cases=lambda rows, on: itertools.product(rows, on))
        scope.update(experiment=here, examination=types.SimpleNamespace(auto=auto))
        cases = list(scope["to_run"]())
        return {
            kind: (
                {
                    row["model"]: row["batch_size"]
                    for row, on in cases
                    if on.kind == kind and row.get("mode") == "training"
                },
                [row["accelerator"] for row, on in cases if on.kind == kind and "accelerator" in row],
            )
            for kind in free
        }

    small, full = {"resnet50": 4, "bert": 2, "vgg16": 2}, {"resnet50": 128, "bert": 64, "vgg16": 64}
    # Without a GPU, Lightning is asked for one all the same.
    assert plan("cpu", cpu=0) == {"cpu": (small, ["cpu", "gpu", "auto"])}
    assert plan("mps", cpu=0, gpu=100e9) == {"cpu": (small, ["cpu"]), "gpu": (full, ["gpu", "auto", "mps"])}
    # A GPU that Lightning does not take; and DEVICE=cpu on a Mac.
    assert plan("cpu", cpu=0, gpu=100e9) == {"cpu": (small, ["cpu", "gpu", "auto"]), "gpu": (full, [])}
    assert plan("mps", cpu=0) == {"cpu": (small, ["cpu"])}
    # A small Mac: weights, gradients and momentum of ResNet-50 take 0.3 GB, 32 pictures 2.75 GB.
    assert plan("mps", gpu=5e9)["gpu"][0] == {"resnet50": 32, "bert": 8, "vgg16": 16}


def test_a_python_without_a_metal_plug_in_is_replaced(mac):
    mac("m2-ultra")
    lacking = SEES_MPS | {
        "tensorflow": says("2.21.0", absent("metal", "tensorflow-metal has no build for Python 3.13"))
    }
    snapshot = machine_snapshot.snapshot()
    for python, remedy in (("3.13.1", "`make env PYTHON=python3.12`"), ("3.12.4", "`make env`")):
        found = doctor.findings(snapshot | {"python": python}, FINE, lacking, "arm", {})
        assert remedy in finding(found, "Does TensorFlow see").remedy
