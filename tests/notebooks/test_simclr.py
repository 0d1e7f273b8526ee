"""The notebooks on CIFAR-10: views against torchvision's own; data, loss and votes by hand."""

import math
import pickle
import re
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import lightning_steps
import numpy as np
import pytest
import torch
from notebook_code import definitions
from PIL import Image
from records import metric, record
from torch.nn import functional as F
from torch.utils.data import DataLoader

from pomology.data import augmentation, enlarged_images
from pomology.data import images as data_images
from pomology.measure import clock
from pomology.models import isolated, vision
from pomology.views import epoch_breakdown

# Made by torchvision 0.28.0 and PyTorch 2.13.0 on a CPU with its classes in lightly's order, on
# `gradient()`, twice in a row after torch.manual_seed(seed): means of red, green and blue of the
# first view and of the second.
TORCHVISION = {
    0: [-0.6558, -0.4711, -0.1018, -0.1999, 0.6254, 1.1053],
    1: [0.1788, 0.2415, 0.9109, -0.6076, 1.1468, 0.6964],
    2: [-0.378, 0.0395, 1.0253, 0.2618, 0.4752, 0.982],
}


def gradient():
    y, x = np.mgrid[:32, :32]
    levels = np.stack((8 * x, 8 * y, (x - 16) ** 2 + (y - 8) ** 2), 2)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("seed", TORCHVISION)
def test_views_are_those_of_lightly(seed):
    torch.manual_seed(seed)
    views = torch.cat(augmentation.two_views(gradient()))
    assert views.shape == (6, 32, 32) and views.dtype == torch.float32
    assert views.mean((1, 2)).tolist() == pytest.approx(TORCHVISION[seed], abs=1e-3)


def test_items_come_from_png_files_and_go_to_spawned_workers(tmp_path):
    source = data_images.cifar10("stand-in", "", 60)
    plain = augmentation.PNGImages(source, np.asarray)
    picture, label, name = plain[59]
    assert np.array_equal(picture, source.images[59])
    assert label == source.labels[59] and name == f"{label}/00059.png"
    normalized = plain.with_transform(augmentation.normalized)
    expected = (source.images[7] / 255 - augmentation.MEAN) / augmentation.STD
    assert np.allclose(normalized[7][0], expected.transpose(2, 0, 1), atol=1e-6)
    pairs = plain.with_transform(augmentation.two_views)
    (first, second), labels, _ = next(iter(DataLoader(pairs, 8)))
    assert first.shape == (8, 3, 32, 32) and not torch.equal(first, second)
    assert labels.tolist() == source.labels[:8].tolist()
    # Written to a folder they are the same images, and the files of a folder per class.
    on_disk = pickle.loads(pickle.dumps(plain.written(tmp_path)))
    for index in (0, 59):
        assert np.array_equal(on_disk[index][0], plain[index][0])
        assert on_disk[index][1:] == plain[index][1:] and (tmp_path / plain[index][2]).is_file()
    # A spawned worker gets a handle of the files, and a few bytes a picture.
    assert len(ForkingPickler.dumps(pairs)) < 10_000


@pytest.mark.parametrize(("k", "t"), [(1, 0.1), (200, 10.0)])
def test_knn_votes_as_counted_by_hand(k, t):
    generator = torch.Generator().manual_seed(k)
    labels = torch.randint(7, (300,), generator=generator)
    bank = F.normalize(torch.randn(300, 16, generator=generator))
    feature = F.normalize(torch.randn(25, 16, generator=generator))
    found = definitions("simclr")["knn_predict"](feature, bank.T, labels, 7, k, t)
    for ordered, cosines in zip(found.tolist(), (feature @ bank.T).tolist(), strict=True):
        scores = [0.0] * 7
        for cosine, label in sorted(zip(cosines, labels.tolist(), strict=True))[-k:]:
            scores[label] += math.exp(cosine / t)
        assert sorted(ordered) == list(range(7))
        by_hand = [scores[label] for label in ordered]  # ties may come either way
        assert by_hand == pytest.approx(sorted(by_hand, reverse=True), rel=1e-4)


def test_the_twin_votes_as_the_notebook():
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(10, (300,), generator=generator)
    bank = F.normalize(torch.randn(300, 16, generator=generator)).T
    features = torch.randn(25, 16, generator=generator)
    votes = definitions("simclr")["knn_predict"](F.normalize(features), bank, labels, 10, 200)
    arrays = [tensor.numpy() for tensor in (features, bank, labels)]
    classes = isolated.call("MLX", "references.passes_reference:classified", *arrays)
    assert classes.tolist() == votes[:, 0].tolist()


def test_loss_is_nt_xent():
    """Compared with its definition, view by view: Chen et al. 2020, equation 1."""
    n, temperature = 5, 0.5
    halves = torch.randn(2, n, 128, generator=torch.Generator().manual_seed(3))
    views = F.normalize(halves.flatten(0, 1), dim=1)
    similar = torch.exp(views @ views.T / temperature).fill_diagonal_(0)
    losses = [-math.log(similar[i, (i + n) % (2 * n)] / similar[i].sum()) for i in range(2 * n)]
    found = vision.nt_xent(*halves)
    assert float(found) == pytest.approx(sum(losses) / (2 * n), rel=1e-5)


def test_lightning_makes_the_step_that_is_verified():
    simclr = definitions("simclr")["simclr"]
    (views,) = simclr.batch(4)
    labels, names = torch.zeros(4), ["0/00000.png"] * 4  # which training does not use
    lightning_steps.compare(simclr, (views,), (views, labels, names))


@pytest.mark.parametrize(
    ("loop_s", "waiting"), [(5.0, r"100 s ± .+ %"), (4.02, r"not distinguishable \(20 steps\)")]
)
def test_waiting_for_data_is_shown_where_it_is_resolved(loop_s, waiting):
    noise = [0.1, -0.1] * 10
    part = clock.Part("training", 100.0, first_step_s=loop_s)
    part.blocks = [clock.Block(1, loop_s + off) for off in noise]
    part.ready_blocks = [clock.Block(1, 4.0 + off) for off in noise]
    steps = clock.StepClock()
    steps.parts = dict.fromkeys(("training", "feature bank", "kNN"), part)
    metrics = {}
    epoch_breakdown.record_split(SimpleNamespace(clock=steps, metric=metrics.__setitem__))
    config = {"batch_size": 128, "workers": 8}
    fields = {"metrics": metrics, "status": "ok", "backend": "mps", "config": config}
    case, again = (SimpleNamespace(repeat=repeat, **fields) for repeat in (0, 1))
    rows = epoch_breakdown.table([case, again]).rows
    assert [row.cells["Repeat"] for row in rows] == ["1", "2"]
    (row,) = epoch_breakdown.table([case]).rows
    assert row.cells["Repeat"] == ""
    assert re.fullmatch(r"400 s ± .+ %", row.cells["Training"])
    assert re.fullmatch(waiting, row.cells["Data-loading stall"])
    assert row.cells["Reading alone"] == "not measured"


def test_evaluation_is_shown_where_no_time_was_left_for_computing_alone():
    part = clock.Part("training", 100.0, first_step_s=5.0)
    part.blocks = [clock.Block(1, 5.0 + 0.01 * (number % 2)) for number in range(20)]
    steps = clock.StepClock()
    steps.parts = dict.fromkeys(("training", "feature bank", "kNN"), part)
    metrics = {}
    epoch_breakdown.record_split(SimpleNamespace(clock=steps, metric=metrics.__setitem__))
    assert metrics.keys() == {"loop_epoch_s", "evaluation_epoch_s"}
    config = {"batch_size": 128, "workers": 8}
    fields = {"metrics": metrics, "status": "ok", "backend": "cpu", "config": config}
    (row,) = epoch_breakdown.table([SimpleNamespace(repeat=0, **fields)]).rows
    assert row.cells["Training"] == row.cells["Data-loading stall"] == "not measured"
    assert row.cells["Evaluation"].startswith("1,00")  # two parts of 100 steps of 5 s


def epoch(loop_s=None, training_s=400.0, batch_size=128, steps=20, **more):
    metrics = {}
    if loop_s:
        times = {"loop_epoch_s": loop_s, "training_epoch_s": training_s, "epoch_s": 1000.0}
        metrics = {
            name: metric(each, each - 5, each + 5).replace(n=steps) for name, each in times.items()
        }
    config = {"batch_size": batch_size, "workers": 8}
    return record("simclr", metrics, config, **more)


def test_the_share_of_loading_opens_the_answer_or_says_why_it_has_no_value():
    loading = epoch_breakdown.loading
    assert loading([epoch(520.0, backend="mps")]) == (
        "The data-loading stall is 12 % (11 to 13 % in this process) of an epoch on the Apple M9 "
        "GPU at batch size 128 with 8 workers."
    )
    unknown = "The share of data loading has no value on the Apple M9 CPU at batch size"
    assert loading([epoch(402.0)]) == (
        f"{unknown} 128: it is not distinguishable from 0 (20 steps)."
    )
    slow = epoch(status="too-slow", reason="a step takes 9 s")
    assert loading([slow]) == f"{unknown} 128: too slow (a step takes 9 s)."
    small = epoch(batch_size=2, scaled=True)
    why = "the time budget ended before all parts of an epoch were timed"
    assert loading([slow, small]) == f"{unknown} 2: {why}."
    whole = record("simclr", {}, {"batch_size": 128, "workers": 8, "epochs": 2})
    in_mlx = epoch(status="ok", framework="mlx")
    assert loading([whole, in_mlx]) == ""
    assert loading([epoch(520.0, profile="smoke")]) == ""


def test_vgg16_trains_on_the_images_and_batches_of_the_published_script():
    source = data_images.cifar10("stand-in", "", 60)
    middle, label = enlarged_images.CIFAR10(source, 224, at_random=False)[59]
    large = Image.fromarray(source.images[59]).resize((256, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(large)[16:240, 16:240] / 127.5 - 1
    assert np.allclose(middle.permute(1, 2, 0), expected, atol=1e-6) and label == source.labels[59]
    all_images = {"crops": range(50_000), "middles": range(50_000), "test": range(10_000)}
    scope = definitions("rasbt_vgg16", **all_images)
    training, validation, test = scope["loaders"]({"batch_size": 32})
    assert [len(training), len(validation), len(test)] == [1406, 157, 313]
    assert sorted([*training.sampler, *validation.sampler]) == list(range(50_000))
    assert max(training.sampler) < 45_000
    assert scope["rasbt_vgg16"].cost(32).parameters == 134_309_962
