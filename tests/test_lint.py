"""The rules of lint.py find the faults that they are for, and nothing in what does the same rightly.

The rehearsal of a Mac in a notebook's kernel, too: it refuses what does not exist there, in plain words.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import lint
import nbformat
import pytest
import rehearsal

TESTS = Path(__file__).resolve().parent

TORCH = "import torch\n"
LOADER = "from torch.utils.data import DataLoader\n"
KERAS = "import os\nos.environ['TURN_OFF_REMAPPER'] = '1'\nimport tensorflow\n"


def notebook(*cells: str, markdown: str = "# A title", name: str = "planted.ipynb") -> list[str]:
    document = nbformat.v4.new_notebook()
    document.cells = [nbformat.v4.new_markdown_cell(markdown), *map(nbformat.v4.new_code_cell, cells)]
    for number, cell in enumerate(document.cells):
        cell.id = f"cell-{number:02}"
    return lint.notebook(document, name)


# Of each: the words that the finding must have, a faulty form, and one that is right.
IN_BOTH = {
    "non_blocking": (
        "non_blocking=True corrupts data on MPS",
        "x = x.to(case.device, non_blocking=True)",
        "x = x.to(case.device, non_blocking=False)",
    ),
    "non_blocking by position": ("corrupts data on MPS", "x.copy_(y, True)", "x.copy_(y)"),
    "non_blocking as a key": ("corrupts data on MPS", "options = {'non_blocking': True}", "options = {}"),
    "channels_last": (
        "channels_last gives wrong gradients on MPS",
        TORCH + "model.to(memory_format=torch.channels_last)",
        TORCH + "model.to(memory_format=torch.contiguous_format)",
    ),
    "channels_last by name": (
        "channels_last gives wrong gradients on MPS",
        TORCH + "kind = getattr(torch, 'channels_last')",
        "keras.layers.Conv2D(8, 3, data_format='channels_last')",
    ),
    "torch.cuda": (
        "only the device module speaks to torch.cuda",
        TORCH + "torch.cuda.synchronize()",
        TORCH + "torch.backends.cudnn.benchmark = True",
    ),
    "torch.mps": (
        "torch.mps.synchronize",
        "class A:\n    def f(self):\n        self._torch.mps.synchronize()",
        "class A:\n    def f(self):\n        self.backend.synchronize()",
    ),
    "device='cuda'": (
        "a fixed device, 'cuda'",
        TORCH + "torch.ones(2, device='cuda')",
        TORCH + "torch.ones(2, device=case.device)",
    ),
    ".to('cuda')": ("a fixed device, 'cuda:0'", "model.to('cuda:0')", "model.to(case.device)"),
    ".cuda()": (".cuda() is a fixed device", "model = Model().cuda()", "model = Model().cpu()"),
    "GradScaler": (
        "GradScaler() without a device is CUDA's",
        TORCH + "scaler = torch.amp.GradScaler()",
        TORCH + "scaler = torch.amp.GradScaler(case.device.type)",
    ),
    "out of memory": (
        "misses MPS, which raises a plain RuntimeError when memory is out",
        TORCH + "try:\n    step()\nexcept torch.OutOfMemoryError:\n    smaller()",
        TORCH + "try:\n    step()\nexcept RuntimeError as error:\n    known = device.failure(error)",
    ),
    "torch.float64": (
        "MPS has no float64",
        TORCH + "x = torch.zeros(2, dtype=torch.float64)",
        TORCH + "x = torch.zeros(2)",
    ),
    ".double()": ("MPS has no float64", "loss = output.double().mean()", "loss = output.float().mean()"),
    "dtype=float": (
        "Python's float means float64",
        TORCH + "torch.zeros(2, dtype=float)",
        TORCH + "torch.zeros(2, dtype=torch.float32)",
    ),
    "NumPy's float64": (
        "NumPy makes float64",
        TORCH + "import numpy as np\nx = torch.from_numpy(np.random.rand(3, 2))",
        TORCH + "import numpy as np\nx = torch.from_numpy(np.random.rand(3, 2).astype(np.float32))",
    ),
    "pin_memory": (
        "pin_memory=True only warns on a Mac",
        LOADER + "DataLoader(data, 8, pin_memory=True)",
        LOADER + "options = {'pin_memory': True} if device.type == 'cuda' else {}\nDataLoader(data, 8, **options)",
    ),
    "pin_memory where there is no CUDA": (
        "give it to CUDA alone",
        "options = {} if device.type == 'cuda' else {'pin_memory': True}",
        "options = {'cpu': {}, 'cuda': {'pin_memory': True}}[device.type]",
    ),
    "fallback variable": (
        "read when torch is loaded",
        TORCH + "import os\nos.environ['PYTORCH_ENABLE_MPS_FALLBACK'] = '1'",
        "import subprocess\nsubprocess.run(command, env={'PYTORCH_ENABLE_MPS_FALLBACK': '0'})",
    ),
    "fallback variable, by its constant": (
        "give it to a child's env",
        "import os\nfrom pomology.devices import torch as device\nos.environ.setdefault(device.FALLBACK_VARIABLE, '1')",
        "import os\nfrom pomology.devices import torch as device\nos.environ.get(device.FALLBACK_VARIABLE, '0')",
    ),
    "watermark": (
        "set both",
        "env = {'PYTORCH_MPS_HIGH_WATERMARK_RATIO': '1.0'}",
        "env = {'PYTORCH_MPS_HIGH_WATERMARK_RATIO': '1.0', 'PYTORCH_MPS_LOW_WATERMARK_RATIO': '1.0'}",
    ),
    "KMP_DUPLICATE_LIB_OK": (
        "hides that two OpenMPs are loaded",
        "import os\nos.environ['KMP_DUPLICATE_LIB_OK'] = 'TRUE'",
        "import os\nos.environ.pop('KMP_DUPLICATE_LIB_OK', None)",
    ),
    "KMP_DUPLICATE_LIB_OK for a child": (
        "hides that two OpenMPs are loaded",
        "import os\nenv = dict(os.environ, KMP_DUPLICATE_LIB_OK='TRUE')",
        "import os\nenv = dict(os.environ)",
    ),
    "scikit-learn": ("imports sklearn: it brings an OpenMP of its own", "from sklearn import metrics", "import numpy"),
    "an import by function": (
        "imports sklearn",
        "import importlib\nimportlib.import_module('sklearn.metrics')",
        "import importlib\nimportlib.import_module('json')",
    ),
    "AdamW": (
        "AdamW without fused=True is a slow loop",
        TORCH + "optimizer = torch.optim.AdamW(model.parameters())",
        TORCH + "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
    ),
    "AdamW, imported": (
        "AdamW without fused=True is a slow loop",
        "from torch.optim import AdamW\noptimizer = AdamW(parameters, fused=False)",
        "from torch.optim import AdamW\noptimizer = AdamW(\n    parameters\n)  # not fused: the article's was not",
    ),
    "AdamW with a comment but no reason": (
        "AdamW without fused=True is a slow loop",
        TORCH + "optimizer = torch.optim.AdamW(model.parameters())  # not fused:",
        "from mlx import optimizers as optim\noptimizer = optim.AdamW(1e-3)",
    ),
    "transformers' AdamW": (
        "adamw_torch_fused",
        "TrainingArguments('out', optim='adamw_torch')",
        "TrainingArguments('out', optim='adamw_torch_fused')",
    ),
    "a lambda for a worker": (
        "a lambda is defined in",
        LOADER + "def loader():\n    return DataLoader(data, 8, collate_fn=lambda batch: batch)",
        LOADER + "def loader():\n    return DataLoader(data, 8, collate_fn=pomology.data.images.collate)",
    ),
    "fork": (
        "fork is not safe on macOS",
        LOADER + "DataLoader(data, 8, num_workers=2, multiprocessing_context='fork')",
        LOADER + "DataLoader(data, 8, num_workers=2, multiprocessing_context='spawn')",
    ),
    "fork as the start method": (
        "fork is not safe on macOS",
        "import multiprocessing\nmultiprocessing.get_context('fork')",
        "import multiprocessing\nmultiprocessing.get_context()",
    ),
    "FLOPs": (
        "FlopCounterMode outside cost.workload: on a CPU it counts LSTM and attention as 0",
        "from torch.utils.flop_counter import FlopCounterMode",
        "from pomology.workloads.cost import workload",
    ),
    "fp64 by Lightning": (
        "having no float64",
        "trainer = Trainer(precision='64-true')",
        "trainer = Trainer(precision='32-true')",
    ),
    "fp16 by Lightning": (
        "silently makes bf16-mixed of 16-mixed",
        "import lightning as L\ntrainer = L.Trainer(precision='16-mixed')",
        "import lightning as L\ntrainer = L.Trainer(precision=case.precision)",
    ),
    "jit_compile is missing": (
        "jit_compile=False is missing",
        "model = tensorflow.keras.Model(x, y)\nmodel.compile('adam', 'mse')",
        "import re\npattern = re.compile('a')",
    ),
    "jit_compile": (
        "XLA does not work on Metal",
        "import keras, tensorflow as tf\nf = tf.function(g, jit_compile=True)",
        "import torch\nf = torch.compile(g)",
    ),
    "fork by hand": ("Metal and Objective-C do not outlive it", "import os\nos.fork()", "import os\nos.getpid()"),
}


@pytest.mark.parametrize("name", IN_BOTH)
def test_a_planted_fault_is_named_and_the_right_form_is_not(name):
    words, faulty, right = IN_BOTH[name]
    if "tensorflow" in faulty or "keras" in faulty:
        faulty = KERAS + faulty
    markdown = "# Timed is the fused AdamW"
    for found in (lint.source(faulty), notebook(faulty, markdown=markdown)):
        assert found and any(words in line for line in found), found
    assert lint.source(right) == [] == notebook(right, markdown=markdown)


def test_a_finding_says_where():
    (line,) = notebook("a = 1", "a = 2\nx.to(case.device, non_blocking=True)")
    assert line.startswith("planted.ipynb, cell cell-02, line 2: non_blocking=True ")
    (line,) = lint.source("\n\nx.to(case.device, non_blocking=True)", "timing.py")
    assert line.startswith("timing.py, line 3: ")


# Of each: the words, the cells of a faulty notebook, and those of one that is right.
IN_NOTEBOOKS = {
    "two frameworks": (
        "imports tensorflow beside torch: two frameworks in one process",
        ["import torch", KERAS],
        ["import torch", "import lightning, transformers, peft"],
    ),
    "a bar of its own": ("imports tqdm: case.steps shows", ["from tqdm import tqdm"], ["from pathlib import Path"]),
    "a device in a variable": (
        "'cuda': a fixed device",
        ["device = 'cuda'"],
        ["options = {'cuda': 2}.get(case.device.type, 0) if case.device.type in ('cuda', 'mps') else 1"],
    ),
    "a device for Lightning": (
        "accelerator='mps': a fixed device",
        ["trainer = Trainer(accelerator='mps')"],
        ["trainer = Trainer(accelerator='gpu')"],
    ),
    "NumPy's float64, by name": ("MPS has no float64", ["x = data.astype('float64')"], ["x = data.astype('float32')"]),
    "a dataset in a cell": (
        "class Digits is defined in a cell, where a worker that macOS starts by spawn cannot find it",
        [LOADER, "class Digits:\n    def __getitem__(self, index):\n        return index"],
        [LOADER, "from pomology.data.images import ArticleMNIST\nDataLoader(ArticleMNIST(digits), 8, num_workers=2)"],
    ),
    "a collate function in a cell": (
        "together is defined in a cell",
        [LOADER, "def together(batch):\n    return batch", "DataLoader(data, 8, collate_fn=together)"],
        [LOADER, "def together(batch):\n    return batch", "print(together([1]))"],
    ),
    "a transform in a cell": (
        "flip is defined in a cell",
        ["def flip(image):\n    return image[::-1]", "views = simclr(digits, transform=flip)"],
        ["from pomology.data.images import flip\nviews = simclr(digits, transform=flip)"],
    ),
    "a pool's function in a cell": (
        "work is defined in a cell",
        ["from multiprocessing import Pool\ndef work(x):\n    return x\nPool(2).map(work, [1])"],
        ["def work(x):\n    return x\nlist(map(work, [1]))"],
    ),
    "a clock": (
        "time.perf_counter in a notebook reads the clock before a GPU has finished",
        ["import time\nclock = time.perf_counter\nbegun = clock()\nmodel(x)\nprint(clock() - begun)"],
        ["for batch in case.steps(loader):\n    model(batch)"],
    ),
    "a clock by another name": (
        "time.time in a notebook",
        ["from time import time as now\nbegun = now()"],
        ["import time\ntime.sleep(1)"],
    ),
    "AdamW without a word": (
        "no text of the notebook says whether it is the fused one",
        [TORCH, "optimizer = torch.optim.AdamW(model.parameters(), fused=True)"],
        [TORCH, "optimizer = torch.optim.Adam(model.parameters())"],
    ),
    "TensorFlow before its variable": (
        "imports tensorflow before TURN_OFF_REMAPPER is set",
        ["import tensorflow", "import os\nos.environ['TURN_OFF_REMAPPER'] = '1'"],
        ["from pomology.devices import find\nfind.prepare('tensorflow')\nimport tensorflow"],
    ),
    "the variable with another value": (
        "switches the remapper off at exactly '1'",
        ["import os\nos.environ['TURN_OFF_REMAPPER'] = 'true'\nimport tensorflow"],
        [KERAS],
    ),
    "a magic": ("not plain Python", ["%timeit model(x)"], ["model(x)"]),
}


@pytest.mark.parametrize("name", IN_NOTEBOOKS)
def test_a_fault_planted_in_a_notebook_is_named_and_the_right_form_is_not(name):
    words, faulty, right = IN_NOTEBOOKS[name]
    found = notebook(*faulty)
    assert any(words in line for line in found), found
    assert notebook(*right) == []


def test_a_clock_needs_a_listed_notebook_and_a_reason():
    plain, said = "import time\ntime.time()", "import time\ntime.time()  # own clock: it is what is looked at"
    assert notebook(plain, name="instrument_check.ipynb") and notebook(said)
    assert notebook(said, name="instrument_check.ipynb") == []


# Of each module: the words, a faulty form, and one that is right there.
IN_MODULES = {
    "workloads/cost.py": (
        "FlopCounterMode must run inside torch.device('meta')",
        "from torch.utils.flop_counter import FlopCounterMode\nwith FlopCounterMode() as counter:\n    step()",
        "from torch.utils.flop_counter import FlopCounterMode\n"
        "with torch.device('meta'):\n    with FlopCounterMode() as counter:\n        step()",
    ),
    "devices/torch.py": (
        "corrupts data on MPS",
        "import torch\nbatch.to(self.handle, non_blocking=True)",
        "import torch\ntorch.cuda.synchronize()\ntorch.mps.synchronize()\nkind = torch.float64",
    ),
    "workloads/parity.py": (
        "imports tensorflow before TURN_OFF_REMAPPER is set; tensorflow.load does both",
        "def f():\n    import tensorflow\n    device_tensorflow.TensorFlowDevice.prepare()",
        "from pomology.devices import tensorflow as device_tensorflow\n"
        "def f():\n    tensorflow = device_tensorflow.load()\n    import keras",
    ),
    "devices/tensorflow.py": (
        "imports tensorflow before",
        "import os\nREMAPPER = 'TURN_OFF_REMAPPER'\ndef prepare():\n    os.environ[REMAPPER] = '1'\n"
        "def load():\n    import tensorflow\n    return tensorflow",
        "import os\nREMAPPER = 'TURN_OFF_REMAPPER'\ndef prepare():\n    os.environ[REMAPPER] = '1'\n"
        "def load():\n    prepare()\n    import tensorflow\n    return tensorflow",
    ),
    "data/images.py": (
        "Inner is defined in a function",
        LOADER
        + "def loader():\n    class Inner(list):\n        pass\n    return DataLoader(Inner(), 8, num_workers=2)",
        LOADER + "class Outer(list):\n    pass\ndef loader():\n    return DataLoader(Outer(), 8, num_workers=2)",
    ),
    "machine/snapshot.py": ("imports zeus", "def f():\n    import zeus", "import numpy\nnumpy.float64(1)"),
}


@pytest.mark.parametrize("name", IN_MODULES)
def test_a_fault_planted_in_a_module_is_named_and_the_right_form_is_not(name):
    words, faulty, right = IN_MODULES[name]
    found = lint.source(faulty, name)
    assert any(words in line for line in found), found
    assert lint.source(right, name) == []


def test_every_rule_has_a_planted_fault():
    """A rule that finds nothing here could be broken without anyone noticing."""
    sources = [faulty for _, faulty, _ in IN_BOTH.values()] + [KERAS + "model.compile('adam')"]
    sources += ["\n".join(cells) for _, cells, _ in IN_NOTEBOOKS.values() if "%" not in cells[0]]
    asleep = []
    for look in lint.RULES:
        codes = [lint.Code("planted.ipynb", [("a", source)], notebook=True) for source in sources]
        if not any(list(look(code)) for code in codes):
            asleep.append(look.__name__)
    assert asleep == []


# The rehearsal in a kernel --------------------------------------------------------------------------------------------


def rehearsed(own: str, program: str) -> str:
    """What a fresh process prints that begins as a notebook of this framework does in the tests."""
    begin = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nimport rehearsal\nrehearsal.begin({own!r})\n"
    done = subprocess.run([sys.executable, "-c", begin + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cuda_functions_say_that_a_mac_has_none_and_are_noted_even_if_caught():
    program = """
import contextlib, torch
for call in (torch.cuda.synchronize, torch.cuda.max_memory_allocated, torch.ones(1).cuda, torch.nn.Linear(1, 1).cuda):
    try:
        call()
    except AssertionError as error:
        print(error)
with contextlib.suppress(AssertionError):
    torch.cuda.get_device_name()
print(len(rehearsal.refused), torch.cuda.is_available())
torch.manual_seed(1)
loss = torch.nn.Linear(2, 1)(torch.randn(3, 2)).sum()
loss.backward()
print(rehearsal.refused[5:])
"""
    assert rehearsed("torch", program).splitlines() == [
        "torch.cuda.synchronize was called: it does not exist on a Mac",
        "torch.cuda.max_memory_allocated was called: it does not exist on a Mac",
        "Tensor.cuda was called: it does not exist on a Mac",
        "Module.cuda was called: it does not exist on a Mac",
        "5 False",
        "[]",
    ]


@pytest.mark.parametrize("own", ["torch", "tensorflow"])
def test_the_frameworks_own_ways_are_not_refused(own):
    """A training step by Lightning, and one by Keras; packages around them look for other frameworks and find none."""
    programs = {
        "torch": """
import importlib.util, lightning, torch, transformers
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 2)
    def training_step(self, batch, index):
        return self.net(batch).sum()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), fused=True)
trainer = lightning.Trainer(max_steps=1, accelerator="auto", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(4, 2), 2))
print(rehearsal.refused, rehearsal.attempts, len(rehearsal.loaders), importlib.util.find_spec("tensorflow"))
""",
        "tensorflow": """
import os
os.environ |= {"TURN_OFF_REMAPPER": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
import importlib.util, keras, numpy
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2, activation="relu")])
model.compile("sgd", "mse", jit_compile=False)
model.fit(numpy.ones((4, 2), "float32"), numpy.ones((4, 2), "float32"), verbose=0)
print(rehearsal.remapper, rehearsal.attempts, len(rehearsal.loaders), importlib.util.find_spec("torch"))
""",
    }
    expected = {"torch": "[] [] 1 None", "tensorflow": "['1'] [] 0 None"}
    assert rehearsed(own, programs[own]).splitlines()[-1] == expected[own]


def test_a_second_framework_does_not_import_and_is_noted():
    program = """
for line in ("import tensorflow", "import mlx.core", "from sklearn import metrics", "import torchvision"):
    try:
        exec(line)
    except ModuleNotFoundError as error:
        print(error)
module = type(sys)("keras_like")
try:
    exec("import keras", vars(module))
except ModuleNotFoundError as error:
    print(error)
print(rehearsal.attempts[-1], len(rehearsal.attempts), [name for name in ("tensorflow", "mlx") if name in sys.modules])
"""
    first, *more = rehearsed("torch", program).splitlines()
    assert first == "a second framework in one process: tensorflow beside torch, imported by __main__"
    assert [line.split()[6] for line in more[:3]] == ["mlx", "sklearn", "torchvision"]
    assert more[3:] == ["No module named 'keras'", "keras beside torch, imported by keras_like 5 []"]


def test_what_a_worker_cannot_get_is_said(tmp_path):
    program = f"""
import torch
torch.utils.data.DataLoader([1, 2], 2)
torch.utils.data.DataLoader([1, 2], 2, collate_fn=lambda batch: batch)
rehearsal.end({str(tmp_path)!r})
"""
    rehearsed("torch", program)
    (said,) = json.loads((tmp_path / "end.json").read_text())["refused"]
    assert said.startswith("a DataLoader's worker, which macOS starts by spawn, cannot get its data: Can't pickle")
    assert len(pickle.loads((tmp_path / "loaders.pickle").read_bytes())) == 1


def test_permuted_inputs_are_refused():
    import torch

    images = torch.randn(2, 4, 4, 3)
    norm, lstm = torch.nn.BatchNorm2d(3), torch.nn.LSTM(3, 5)
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    before = len(rehearsal.refused)
    with rehearsal.refuse_permuted_inputs():
        for bad in (images.permute(0, 3, 1, 2), torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)):
            with pytest.raises(RuntimeError, match="BatchNorm2d got a non-contiguous input: wrong gradients on MPS"):
                norm(bad)
        with pytest.raises(RuntimeError, match="LSTM got a non-contiguous input"):
            lstm(torch.randn(2, 6, 3).transpose(0, 1))
        norm(images.permute(0, 3, 1, 2).contiguous())
        lstm(torch.randn(6, 2, 3))
        lstm(packed)
        torch.nn.LayerNorm(3)(images.transpose(1, 2))  # no fault of it is known
    assert len(rehearsal.refused) == before + 3
    norm(images.permute(0, 3, 1, 2))
