"""A process of the rehearsal refuses what a Mac lacks, and lets the rest pass."""

import json
import pickle

import apart

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
    assert (attempts, loaded) == (
        [f"{name} beside torch, imported by __main__" for name in others],
        [],
    )
    *refused, worker = json.loads((tmp_path / "end.json").read_text())["refused"]
    called = ("torch.cuda.synchronize", "Tensor.cuda", "Module.cuda", "torch.cuda.get_device_name")
    assert refused == [f"{name} was called: it does not exist on a Mac" for name in called]
    assert worker.startswith(
        "a DataLoader's worker, which macOS starts by spawn, cannot get its data: Can't pickle"
    )
    assert len(pickle.loads((tmp_path / "loaders.pickle").read_bytes())) == 1
