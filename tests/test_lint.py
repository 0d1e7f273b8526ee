"""The rules of lint.py find the faults that they are for, and nothing in what does the same rightly.

The rehearsal of a Mac in a notebook's kernel, too: it refuses what does not exist there, in plain words.
"""

from __future__ import annotations

import json
import pickle

import apart
import lint
import nbformat

TORCH = "import os, torch\nimport numpy as np\nfrom torch.utils.data import DataLoader\n"
KERAS = "import os\nos.environ['TURN_OFF_REMAPPER'] = '1'\nimport keras, tensorflow as tf\n"


def notebook(*cells: str, markdown: str = "# Timed is the fused AdamW", name: str = "planted.ipynb") -> list[str]:
    document = nbformat.v4.new_notebook()
    document.cells = [nbformat.v4.new_markdown_cell(markdown), *map(nbformat.v4.new_code_cell, cells)]
    for number, cell in enumerate(document.cells):
        cell.id = f"cell-{number:02}"
    return lint.notebook(document, name)


def begun(code: str) -> str:
    """With the imports that it needs."""
    return (KERAS if "keras" in code or "tf." in code else TORCH) + code


BAD = [  # in a notebook and in a module: words that the finding must have, and what somebody might write
    ("corrupts data on MPS", "x = x.to(case.device, non_blocking=True)"),
    ("corrupts data on MPS", "x.copy_(y, True)"),
    ("channels_last gives wrong gradients", "model.to(memory_format=torch.channels_last)"),
    ("channels_last gives wrong gradients", "kind = getattr(torch, 'channels_last')"),
    ("torch.cuda.synchronize: only the device module", "torch.cuda.synchronize()"),
    ("only the device module", "from torch import mps"),
    ("torch.mps.synchronize: only the device module", "def f(self):\n    self._torch.mps.synchronize()"),
    ("a fixed device", "torch.ones(2, device='cuda')"),
    ("a fixed device", "model = Model().cuda()"),
    ("without a device it is CUDA's", "scaler = torch.amp.GradScaler()"),
    ("misses MPS, which raises", "try:\n    step()\nexcept torch.OutOfMemoryError:\n    smaller()"),
    ("MPS has no float64", "x = torch.zeros(2, dtype=torch.float64)"),
    ("MPS has no float64", "loss = output.double().mean()"),
    ("Python's float means float64", "torch.zeros(2, dtype=float)"),
    ("NumPy makes float64", "x = torch.from_numpy(np.random.rand(3, 2))"),
    ("give it to CUDA alone", "DataLoader(data, 8, pin_memory=True)"),
    ("give it to CUDA alone", "options = {} if device.type == 'cuda' else {'pin_memory': True}"),
    ("is read when torch is loaded", "os.environ.update({'PYTORCH_ENABLE_MPS_FALLBACK': '1'})"),
    ("give it to a child's env", "os.environ.setdefault(device.FALLBACK_VARIABLE, '1')"),
    ("set both", "env = {'PYTORCH_MPS_HIGH_WATERMARK_RATIO': '1.0'}"),
    ("hides that two OpenMPs are loaded", "os.environ['KMP_DUPLICATE_LIB_OK'] = 'TRUE'"),
    ("hides that two OpenMPs are loaded", "env = dict(os.environ, KMP_DUPLICATE_LIB_OK='TRUE')"),
    ("sklearn.metrics: it brings an OpenMP of its own", "from sklearn import metrics"),
    ("sklearn.metrics: it brings", "import importlib\nimportlib.import_module('sklearn.metrics')"),
    ("which brings a second OpenMP", "def f():\n    import zeus"),
    ("AdamW without fused=True", "from torch.optim import AdamW\noptimizer = AdamW(parameters, fused=False)"),
    ("AdamW without fused=True", "optimizer = torch.optim.AdamW(model.parameters())  # not fused:"),
    ("adamw_torch_fused is fused", "TrainingArguments('out', optim='adamw_torch')"),
    ("a lambda is defined in", "def loader():\n    return DataLoader(data, 8, collate_fn=lambda batch: batch)"),
    ("fork is not safe on macOS", "DataLoader(data, 8, num_workers=2, multiprocessing_context='fork')"),
    ("fork is not safe on macOS", "import multiprocessing\nmultiprocessing.get_context('fork')"),
    ("Metal and Objective-C do not outlive it", "os.fork()"),
    ("has no float64", "trainer = Trainer(precision='64-true')"),
    ("silently makes bf16-mixed of 16-mixed", "import lightning as L\ntrainer = L.Trainer(precision='16-mixed')"),
    ("jit_compile=False is missing", "model = tf.keras.Model(x, y)\nmodel.compile('adam', 'mse')"),
    ("XLA does not work on Metal", "f = tf.function(g, jit_compile=True)"),
    ("os.sched_getaffinity: it does not exist on macOS", "threads = len(os.sched_getaffinity(0))"),
    ("it does not exist on macOS; ask hasattr", "from os import sched_getaffinity as affinity"),
    ("it does not exist on macOS", "import psutil\npsutil.Process().io_counters()"),
    ("it does not exist on macOS", "GOVERNOR = open('/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor')"),
    ("it does not exist on macOS", "import subprocess\nsubprocess.check_output('/usr/bin/nproc --all', shell=True)"),
    ("it does not exist on macOS", "snapshot.run_command('lscpu')"),
    ("ctypes.CDLL(None) is the C library on both", "ctypes.CDLL('libc.so.6')"),
    ("on macOS bytes", "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024"),
    ("switches the remapper off at exactly '1'", "os.environ['TURN_OFF_REMAPPER'] = 'true'\nimport keras"),
]
IN_NOTEBOOKS = [  # likewise, in a notebook alone
    ("imports tensorflow beside torch: two frameworks in one process", "import torch, tensorflow"),
    ("cuda: a fixed device", "name = 'cuda'"),
    ("a fixed device", "torch.ones(2, device='cpu')"),
    ("mps: a fixed device", "trainer = Trainer(accelerator='mps')"),
    ("MPS has no float64", "x = np.float64(1) + data.astype('float64')"),
    ("Python's float means float64", "x = data.astype(float)"),
    ("class Digits is defined in a cell", "class Digits:\n    def __getitem__(self, index): ..."),
    ("together is defined in a cell", "def together(x):\n    return x\nDataLoader(data, 8, collate_fn=together)"),
    ("flip is defined in a cell", "def flip(image):\n    return image\nviews = simclr(digits, transform=flip)"),
    ("work is defined in a cell", "from multiprocessing import Pool\ndef work(x): ...\nPool(2).map(work, [1])"),
    ("time.time: in a notebook", "from time import time as now\nbegun = now()"),
    ("in a notebook reads the clock", "import timeit\ntimeit.timeit('1')"),
    ("not plain Python", "%timeit model(x)"),
]
OWN = "import os\nREMAPPER = 'TURN_OFF_REMAPPER'\ndef prepare():\n    os.environ[REMAPPER] = '1'\ndef load():\n"
IN_MODULES = [  # likewise, in this module
    ("devices/torch.py", "corrupts data on MPS", "batch.to(self.handle, non_blocking=True)"),
    ("parity.py", "imports tensorflow before", "def f():\n    import tensorflow\n    TensorFlowDevice.prepare()"),
    ("devices/tensorflow.py", "imports tensorflow before", OWN + "    import tensorflow\n    return tensorflow"),
    ("images.py", "D is defined in a function", "def f():\n    class D(list): ...\n    return DataLoader(D(), 8)"),
]
RIGHT = [  # in a notebook and in a module
    "x = x.to(case.device, non_blocking=False)\nx.copy_(y)\ntorch.ones(2, device=case.device).cpu()",
    "model.to(memory_format=torch.contiguous_format)\ntorch.backends.cudnn.benchmark = True",
    "scaler = torch.amp.GradScaler(case.device.type)",
    "try:\n    step()\nexcept RuntimeError as error:\n    known = device.failure(error)",
    "x = torch.from_numpy(np.random.rand(3, 2).astype(np.float32))\ny = torch.zeros(2, dtype=torch.float32)",
    "options = {'pin_memory': True} if device.type == 'cuda' else {}\nDataLoader(data, 8, **options)",
    "options = {'cpu': {}, 'cuda': {'pin_memory': True}}[device.type]",
    "import subprocess\nsubprocess.run(command, env={'PYTORCH_ENABLE_MPS_FALLBACK': '0'})",
    "os.environ.get(device.FALLBACK_VARIABLE, '0')\nos.environ.pop('KMP_DUPLICATE_LIB_OK', None)",
    "env = {'PYTORCH_MPS_HIGH_WATERMARK_RATIO': '1.0', 'PYTORCH_MPS_LOW_WATERMARK_RATIO': '1.0'}",
    "optimizer = torch.optim.AdamW(model.parameters(), fused=True)\nTrainingArguments(optim='adamw_torch_fused')",
    "optimizer = torch.optim.AdamW(\n    parameters\n)  # not fused: the article's was not",
    "import importlib\nimportlib.import_module('json')\nimport lightning, transformers, peft",
    "DataLoader(data, 8, collate_fn=pomology.data.images.collate, multiprocessing_context='spawn')",
    "import lightning as L\ntrainer = L.Trainer(precision=case.precision, accelerator='gpu')",
    "import re\npattern = re.compile('a')\nf = torch.compile(g)\ntrainer = Trainer(precision='32-true')",
    "options = {'cuda': 2}.get(case.device.type, 0) if case.device.type in ('cuda', 'mps') else 1",
    "def together(batch):\n    return batch\nprint(together([1]), list(map(together, [1])))",
    "sizes = {'free': device.free_memory()}\nprint('free', 'what /proc holds')",
    "import time\ntime.sleep(1)\nx = data.astype('float32')\nfor batch in case.steps(loader):\n    model(batch)",
]
LOADED = "from pomology.devices import tensorflow as t\ndef f():\n    tensorflow = t.load()\n    import keras"
RIGHT_IN_MODULES = [
    ("devices/torch.py", "torch.cuda.synchronize()\ntorch.mps.synchronize()\nkind = torch.float64"),
    ("models/parity.py", LOADED),
    ("devices/tensorflow.py", OWN + "    prepare()\n    import tensorflow\n    return tensorflow"),
    ("data/images.py", "class Outer(list): ...\ndef loader():\n    return DataLoader(Outer(), 8, num_workers=2)"),
    ("machine/snapshot.py", "import numpy\nnumpy.float64(1)\nCPUINFO = Path('/proc/cpuinfo')"),
    (
        "data/images.py",
        "def count():\n    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1",
    ),
    ("data/images.py", "def peak(usage):\n    return usage.ru_maxrss * (1 if sys.platform == 'darwin' else 1024)"),
]


def named(words: str, found: list[str]) -> bool:
    return any(words in line for line in found)


def test_a_planted_fault_is_named():
    missed = [code for words, code in BAD if not named(words, lint.source(begun(code)))]
    missed += [code for words, code in BAD + IN_NOTEBOOKS if not named(words, notebook(begun(code)))]
    missed += [code for name, words, code in IN_MODULES if not named(words, lint.source(TORCH + code, name))]
    assert missed == []


def test_what_does_the_same_rightly_is_left_alone():
    found = [line for code in RIGHT for line in lint.source(begun(code)) + notebook(begun(code))]
    found += [line for name, code in RIGHT_IN_MODULES for line in lint.source(TORCH + code, name)]
    assert found == []
    assert notebook("from pomology.devices import find\nfind.prepare('tensorflow')\nimport tensorflow") == []
    assert notebook(KERAS + "keras.layers.Conv2D(8, 3, data_format='channels_last').compile(jit_compile=False)") == []


def test_what_a_notebook_says_or_does_first():
    adamw = "import torch\noptimizer = torch.optim.AdamW(model.parameters(), fused=True)"
    assert named("no text of the notebook says whether it is the fused one", notebook(adamw, markdown="# A title"))
    late = ("import tensorflow", "import os\nos.environ['TURN_OFF_REMAPPER'] = '1'")
    assert named("imports tensorflow before TURN_OFF_REMAPPER is set", notebook(*late))
    plain, said = "import time\ntime.time()", "import time\ntime.time()  # own clock: it is what is looked at"
    assert notebook(plain, name="instrument_check.ipynb") and notebook(said)
    assert notebook(said, name="instrument_check.ipynb") == []


def test_a_finding_says_where():
    line, *_ = notebook("a = 1", "a = 2\nx.copy_(y, True)")
    assert line.startswith("planted.ipynb, cell cell-02, line 2: x.copy_(y, True): non_blocking=True ")
    assert lint.source("\n\nx.copy_(y, True)", "timing.py")[0].startswith("timing.py, line 3: ")


def test_every_rule_has_a_planted_fault():
    """A rule that finds nothing here could be broken without anyone noticing."""
    planted = [("planted.ipynb", code) for _, code in BAD + IN_NOTEBOOKS if "%" not in code]
    planted += [(name, code) for name, _, code in IN_MODULES]
    codes = [lint.Code(name, [("a", begun(code))], notebook=name == "planted.ipynb") for name, code in planted]
    codes += [lint.Code("a.ipynb", [("a", "import keras\nimport torch.cuda\nx = tf.float64")], notebook=True)]
    assert [rule for rule in lint.RULES if not any(list(rule(code)) for code in codes)] == []


# The rehearsal in a kernel --------------------------------------------------------------------------------------------


# What a fresh process notes that begins and ends as a notebook with PyTorch does in the tests.
IN_TORCH = """
import json, sys
import rehearsal
rehearsal.begin("torch")
import contextlib, importlib.util, lightning, torch, transformers
said = []
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 2)
    def training_step(self, batch, index):
        return self.net(batch).sum()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), fused=True)
off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = lightning.Trainer(max_steps=1, accelerator="auto", **off)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(4, 2), 2))
torch.manual_seed(1)
said += [len(rehearsal.loaders), importlib.util.find_spec("tensorflow"), torch.cuda.is_available()]
said += [list(rehearsal.refused), list(rehearsal.attempts)]  # what the frameworks do themselves
for call in (torch.cuda.synchronize, torch.ones(1).cuda, torch.nn.Linear(1, 1).cuda, torch.cuda.get_device_name):
    with contextlib.suppress(AssertionError):
        call()
for line in ("import tensorflow", "import mlx.core", "from sklearn import metrics"):
    with contextlib.suppress(ModuleNotFoundError):
        exec(line)
torch.utils.data.DataLoader([1, 2], 2, collate_fn=lambda batch: batch)
said += [rehearsal.attempts, [name for name in ("tensorflow", "mlx", "sklearn") if name in sys.modules]]
rehearsal.end(sys.argv[1])
print(json.dumps(said))
"""


def test_a_process_with_torch_behaves_as_on_a_mac(tmp_path):
    """A training step by Lightning is not refused; what does not exist on a Mac is, and is noted even if caught."""
    loaders, *said, attempts, loaded = apart.answers(tmp_path, IN_TORCH, str(tmp_path))
    assert [loaders, *said] == [1, None, False, [], []]
    others = ("tensorflow", "mlx", "sklearn")
    assert (attempts, loaded) == ([f"{name} beside torch, imported by __main__" for name in others], [])
    *refused, worker = json.loads((tmp_path / "end.json").read_text())["refused"]
    called = ("torch.cuda.synchronize", "Tensor.cuda", "Module.cuda", "torch.cuda.get_device_name")
    assert refused == [f"{name} was called: it does not exist on a Mac" for name in called]
    assert worker.startswith("a DataLoader's worker, which macOS starts by spawn, cannot get its data: Can't pickle")
    assert len(pickle.loads((tmp_path / "loaders.pickle").read_bytes())) == 1
