"""What plays a Mac for the notebooks: the pretended MPS and the kernel, against planted faults."""

import contextlib
import importlib.util
import json
import pickle
import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace

import lightning
import numpy as np
import pretended_mps
import pytest
import rehearsal
import torch
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.process("torch")


@pytest.fixture(scope="module")
def mps() -> pretended_mps.Rehearsal:
    return pretended_mps.Rehearsal()


@pytest.fixture
def asked(mps) -> Callable[[Callable], SimpleNamespace]:
    """Run a function of the device; give what it asked of MPS, and what was wrong."""

    def run(function: Callable) -> SimpleNamespace:
        mps.faults.clear()
        mps.operators.clear()
        wrong = []
        with mps.entered():
            try:
                function(mps.handle)
            except (RuntimeError, TypeError) as caught:
                wrong = [f"{type(caught).__name__}: {caught}"]
        return SimpleNamespace(wrong=[*mps.faults, *wrong], operators=mps.operators)

    return run


def norm_of_permuted(device):
    pictures = torch.rand(2, 4, 4, 3, device=device)
    nn.BatchNorm2d(3).to(device)(pictures.permute(0, 3, 1, 2))


def renormed_embedding(device):
    nn.Embedding(5, 4, max_norm=1.0).to(device)(torch.tensor([1, 2]).to(device))


def margin_loss(device):
    F.multi_margin_loss(torch.ones(2, 3, device=device), torch.tensor([1, 2]).to(device))


# A program, and words of the fault that is named.
PLANTED = [
    (lambda device: torch.as_tensor(np.ones(3), device=device), "makes float64 on the device"),
    (margin_loss, "no kernel for multi_"),
    (renormed_embedding, "embedding_renorm_ to the CPU"),
    (lambda device: torch.ones(3).to(device, non_blocking=True), "non_blocking=True"),
    (
        lambda device: torch.ones(1, 2, 3, 3, device=device).to(memory_format=torch.channels_last),
        "with channels_last",
    ),
    (norm_of_permuted, "BatchNorm2d gets a permuted input"),
    (
        lambda device: nn.Linear(3, 3).to(device)(torch.ones(2, 3)),
        "RuntimeError: addmm: expected all tensors on one device",
    ),
    (lambda device: torch.ones(3, device=device).numpy(), "TypeError: can't convert mps"),
]


@pytest.mark.parametrize(("program", "words"), PLANTED)
def test_a_planted_fault_is_named(asked, program, words):
    assert any(words in text for text in asked(program).wrong)


def test_the_bytes_of_its_tensors_are_counted_by_storage(mps):
    memory = mps.memory
    with mps.entered():
        before = memory.allocated
        memory.reset_peaks()
        tensor = torch.ones(1000, device=mps.handle)
        view, moved = tensor[10:], torch.zeros(500).to(mps.handle)
        assert memory.allocated - before == 4000 + 2000
        del tensor, moved
        assert memory.allocated - before == 4000  # that of the view
        del view
        assert (memory.allocated, memory.allocated_peak) == (before, before + 6000)
        assert memory.pool >= before + 6000
        memory.empty_cache()
        assert memory.pool == before


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)

    def training_step(self, batch, index):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), fused=True)


def test_a_kernel_refuses_what_a_mac_lacks_and_lets_the_rest_pass(tmp_path):
    """A training step by Lightning is not refused; what is refused is noted even if caught."""
    rehearsal.begin("torch")
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(max_steps=1, accelerator="auto", **dict.fromkeys(off, False))
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(4, 2), 2))
    torch.manual_seed(1)
    assert importlib.util.find_spec("tensorflow") is None and not torch.cuda.is_available()
    assert (len(rehearsal.loaders), rehearsal.refused, rehearsal.attempts) == (1, [], [])
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("192.0.2.1", 80))
    calls = [torch.cuda.synchronize, torch.ones(1).cuda, nn.Linear(1, 1).cuda]
    for call in calls:
        with pytest.raises(AssertionError, match="does not exist on a Mac"):
            call()
    for name in ("tensorflow", "mlx", "sklearn"):
        with contextlib.suppress(ModuleNotFoundError):
            exec(f"import {name}", {"__name__": "__main__"})
        assert name not in sys.modules
        assert rehearsal.attempts[-1] == f"{name} beside torch, imported by __main__"
    torch.utils.data.DataLoader([1, 2], 2, collate_fn=lambda batch: batch)
    rehearsal.end(str(tmp_path))
    *refused, worker = json.loads((tmp_path / "end.json").read_text())["refused"]
    assert len(refused) == len(calls) and worker.startswith("a DataLoader's worker, which macOS")
    assert len(pickle.loads((tmp_path / "loaders.pickle").read_bytes())) == 1
