"""What notebooks count of a step before it runs, against numbers worked out by hand."""

import ast
import contextlib
import dataclasses
import inspect
from types import SimpleNamespace

import counts
import nbformat
import pytest
import torch
from fakes import FakeCase
from notebook_code import PATHS, code, definitions

from pomology.data import images, photographs
from pomology.models import gpt2, large_models, whisper, workload
from pomology.models.cost import Cost

GIB = 2**30
METAL = 0.75 * GIB  # of each GiB of memory, what Metal recommends
# As the articles' models have them; of ResNet-50 torchvision's.
PARAMETERS = {
    ("vae", ""): 652_824,
    ("siamese", ""): 11_432_897,
    ("dcgan", ""): 6_342_272,
    ("simclr", ""): 11_497_792,
    ("transformer_lm", "200x2x200"): 13_828_478,
    ("resnet50", "64"): 25_557_032,
    ("bert_base", "8"): 108_311_810,
    ("mlp", ""): 435_402,
    ("cnn", ""): 93_322,
    ("lstm", ""): 81_674,
}


@pytest.mark.parametrize(("name", "size"), PARAMETERS)
def test_a_training_has_the_articles_parameters(name, size):
    counted = workload.count(counts.STEPS[name](size), 2)
    assert counted.trained == PARAMETERS[name, size]


def test_the_flops_of_the_perceptron_by_hand():
    """Two operations a weight forward, four backward, but for the gradient of the picture."""
    counted = workload.count(counts.STEPS["mlp"](""), 1)
    assert counted.cost.flops == 6 * (784 * 512 + 512 * 64 + 64 * 10) - 2 * 784 * 512


@pytest.mark.parametrize(
    ("name", "attention", "saved_gib"),
    [
        ("whisper-medium", "unfused", 23.5),
        ("whisper-medium", "fused", 10.9),
        ("gpt2-large", "unfused", 12.69),
        # CUDA's dropout keeps a byte where others keep a float: 73 tensors of 16 x 128 x 1280.
        ("gpt2-large", "fused", 11.64 - 73 * 16 * 128 * 1280 * 3 / GIB),
    ],
)
def test_memory_with_either_attention(name, attention, saved_gib):
    """Matrices of attention: batch x heads x rows x columns x 4 bytes, in each layer."""
    assert large_models.work(name, attention).saved_bytes / GIB == pytest.approx(
        saved_gib, rel=0.01
    )


@pytest.mark.parametrize("name", large_models.BATCH_SIZES)
def test_the_steps_whose_memory_is_counted_do_what_they_declare(name):
    declared = large_models.workload(name)
    counted = workload.count(declared, large_models.BATCH_SIZES[name], "mps")
    assert list(workload.differences(declared, counted)) == [] and declared.parameters


def test_checkpointing_keeps_the_input_of_each_layer_and_one_layer():
    plain = large_models.work("whisper-large", "unfused")
    recomputing = dataclasses.replace(large_models.workload("whisper-large", True), adjust=None)
    again = recomputing.cost(32, "mps")
    counted_once = large_models.work("whisper-large", "unfused", True)
    assert counted_once == dataclasses.replace(plain, saved_bytes=again.saved_bytes)
    assert plain.saved_bytes / GIB == pytest.approx(312, rel=0.01)
    inputs = 32 * (1500 + 32) * 1280 * 4 * 32  # batch x positions x width x 4 bytes x layers
    assert inputs < again.saved_bytes < inputs + 1.2 * 312 * GIB / 32
    assert again.flops / plain.flops == pytest.approx(4 / 3, rel=0.02)


def test_the_large_whisper_fits_a_mac_with_64_gb_only_with_checkpointing():
    """The article trained it on an M2 Max."""
    scope = definitions("whisper_pretraining")
    row, workload = scope["large"], scope["workload"]
    found = workload(row).cost(32, "mps")
    assert found.parameters == whisper.PARAMETERS["whisper-large"] == 1_543_304_960
    assert 36 * METAL < found.bytes < 64 * METAL
    assert workload(row | {"gradient_checkpointing": False}).cost(32, "mps").bytes > 64 * METAL


def test_whisper_pretraining_shows_the_step_that_other_notebooks_import():
    (path,) = [path for path in PATHS if path.stem == "whisper_pretraining"]
    sources = ["\n".join(code(nbformat.read(path, 4))), inspect.getsource(whisper.step)]
    bodies = []
    for source in sources:
        functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        (step,) = [function for function in functions if function.name == "step"]
        bodies.append([ast.unparse(node) for node in step.body])
    assert bodies[0] == bodies[1][1:]  # without a docstring


def flops(width: int, layers: int, lora: bool) -> float:
    """Of 16 texts of 128 tokens, with a head of two outputs for each token."""
    rows = 16 * 128
    attention = 4 * rows * 128 * width  # scores, and their product with the values
    dense = 2 * rows * 12 * width**2
    narrow = 2 * rows * 8 * (width + 3 * width) if lora else 0
    last = 2 * rows * width * 2
    forward = layers * (dense + attention + narrow) + last
    if not lora:
        return 3 * forward
    # A frozen matrix needs the gradient of its input only, the first one not even that.
    first = 2 * rows * width * 3 * width + 2 * rows * 8 * width
    return forward + layers * (dense + 2 * attention + 2 * narrow) - first + 2 * last


def test_lora_has_fewer_operations_and_the_state_of_its_adapters():
    workload = definitions("gpt2_finetuning")["workload"]
    large = [workload("gpt2-large", lora, "none") for lora in (False, True)]
    plain, lora = (each.cost(16, "mps") for each in large)
    for work, adapted in ((plain, False), (lora, True)):
        assert work.flops == pytest.approx(flops(1280, 36, adapted), rel=1e-9)
    weights, adapters = 774_030_080 + 2560, 1_474_560 + 2560
    assert plain.state_bytes == 16 * weights
    # peft keeps the score that it replaces.
    assert lora.state_bytes == 4 * (weights + adapters) + 12 * adapters
    small_plain, small_lora = (each.cost(4, "mps") for each in large)
    assert small_lora.bytes < 16 * METAL < small_plain.bytes


def test_with_offload_the_card_holds_a_block_and_the_host_all_that_training_keeps():
    workload, d = definitions("gpt2_finetuning")["workload"], 768
    work = workload("gpt2", False, "fsdp").cost(1, "cuda")
    block = 12 * d * d + 13 * d
    outside = (50_257 + 1024 + 2 + 2) * d  # embeddings, the last norm, and the score
    assert work.state_bytes == 4 * (block + outside)
    assert work.host_bytes == 16 * (12 * block + outside)


# Of each row of the article on the M1 Ultra: parameters, and steps of each part of an epoch.
OF_ROWS = {
    "dcgan": [3_576_704 + 2_765_568] * 2,
    "siamese": [11_432_897] * 2,
    "transformer_lm": [13_828_478, 36_321_278, 39_331_278, 45_488_422, 53_606_518],
    "vae": [652_824] * 2,
}
STEPS = {
    "dcgan": [[2627], [165]],
    "siamese": [[938], [59]],
    "transformer_lm": [[2984, 622]] * 2 + [[299, 622]] * 3,
    "vae": [[469], [12]],
}


@pytest.fixture(scope="module")
def samples() -> dict[str, range]:
    """As many as the data modules give, by what notebooks call them."""
    digits = range(len(images.mnist("stand-in")))
    photos = range(photographs.LSUN_CLASSROOM_IMAGES)
    return {"photographs": photos, "pairs": digits, "train_set": digits}


class Over(Exception):
    """The loops are over; what is behind them is not looked at."""


class PaperCase(FakeCase):
    """A case whose loops over batches are counted and not run."""

    device, backend = torch.device("cpu"), SimpleNamespace(kind="cpu", backend="cpu")

    def require_memory(self, workload):
        self.workload = workload

    def prepare(self, workload):
        self.workload = workload.cost(self.batch_size)
        model = self.watch_model(workload.build())
        return model, workload.optimizer(model)

    def watch_model(self, model):
        self.counted = sum(parameter.numel() for parameter in model.parameters())
        return model

    def steps(self, batches, part="training"):
        self.lengths.append(len(batches))
        return iter(())

    def occasional(self, name, per_epoch):
        raise Over


@pytest.mark.parametrize("name", OF_ROWS)
def test_parameters_and_steps_of_an_epoch_are_the_articles(name, samples):
    """Steps from the notebook's own loaders, at the article's number of samples."""
    scope = definitions(name, **samples)
    rows = scope.get("models") or [{"batch_size": size} for size in scope["batch_sizes"]]
    for row, parameters, steps in zip(rows, OF_ROWS[name], STEPS[name], strict=True):
        case = PaperCase(**row, config=row, lengths=[])
        with contextlib.suppress(Over):  # DCGAN saves its networks at the end
            scope["train"](case)
        assert case.counted == case.workload.parameters == parameters
        assert case.lengths == steps


def counted(shape: gpt2.Shape, batch_size: int, backend: str = "mps") -> Cost:
    """What PyTorch counts of the notebook's own step."""
    return definitions("gpt2_pretraining")["workload"](shape).cost(batch_size, backend)


def test_parameters_are_those_that_were_counted_elsewhere():
    assert gpt2.shape("gpt2-large", 1024, "transformer_lm").parameters == 733_816_080
    assert gpt2.shape("gpt2-large", 1024, "true_gpt2").parameters == 774_030_080
    # As many positions as ever.
    assert gpt2.shape("gpt2", 128, "true_gpt2").parameters == 124_439_808


@pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)
def test_the_formulas_are_what_pytorch_counts(architecture):
    shape, batch = gpt2.shape("gpt2-mini", 1024, architecture), 2
    ours, theirs = shape.workload(batch), counted(shape, batch)
    for name in ("parameters", "flops", "state_bytes"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.saved_bytes == pytest.approx(theirs.saved_bytes, rel=0.001)
    # A fused kernel keeps no matrices of attention.
    squares = 4 * shape.blocks * shape.heads * batch * 1024**2
    assert counted(shape, batch, "cuda").saved_bytes < theirs.saved_bytes - 0.9 * squares
