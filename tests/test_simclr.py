"""SimCLR's views and kNN: against torchvision's own results, colorsys, known distributions and a brute-force vote."""

import colorsys
import itertools
import multiprocessing.reduction
import pickle
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from pomology.data import images as data_images
from pomology.data import synthetic
from pomology.errors import PomologyError
from pomology.models import simclr

LEVEL = 1 / 255
# Made by torchvision 0.28.0 with PyTorch 2.13.0 on a CPU: its classes in lightly's order, on `gradient()`, twice in a
# row after torch.manual_seed(seed). Red, green and blue of the first view and of the second: mean, and mean times a
# ramp from -1 at the left to 1 at the right.
TORCHVISION = {
    0: ([-0.6558, -0.4711, -0.1018, -0.1999, 0.6254, 1.1053], [-0.2747, 0.1994, 0.2362, -0.5878, 0.0, 0.168]),
    1: ([0.1788, 0.2415, 0.9109, -0.6076, 1.1468, 0.6964], [-0.7646, 0.128, -0.0027, 0.6969, -0.2978, 0.018]),
    2: ([-0.378, 0.0395, 1.0253, 0.2618, 0.4752, 0.982], [0.5824, 0.4251, -0.2841, 0.5677, -0.094, 0.1085]),
}
PLAIN = simclr.View(0, 0, 32, 32, False, (1.0, 1.0, 1.0, 0.0), (-1, -1, -1, -1), False)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def gradient():
    y, x = np.mgrid[:32, :32]
    levels = np.stack((8 * x, 8 * y, (x - 16) ** 2 + (y - 8) ** 2), 2)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def pictures():
    """Photograph-like ones and noise, which has every colour beside every other: uint8 (120, 32, 32, 3)."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    return np.concatenate((synthetic.digits_on_photographs(80, "train")[0], noise))


@pytest.fixture(scope="module")
def images():
    return data_images.cifar10("stand-in", size=60)


def batch_of(views):
    """Views one by one as the tensors that `draw_views` gives."""
    return simclr.View(*(torch.tensor(column) for column in zip(*views, strict=True)))


def apply_view(picture, view):
    """A view of given numbers by PIL."""
    picture = picture.crop((view.left, view.top, view.left + view.width, view.top + view.height))
    picture = picture.resize((32, 32), Image.Resampling.BILINEAR)
    if view.flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for which in filter(lambda which: which >= 0, view.order):
        change = simclr._turn_hue if which == 3 else simclr._enhance
        picture = change(picture, which, view.factors[which])
    return picture.convert("L").convert("RGB") if view.grey else picture


def by_pil(pictures, views):
    """Views of pictures, float32 (N, 3, 32, 32) from 0 to 1, made one by one; `views` as `draw_views` gives them."""
    each = [simclr.View(*(part[index].tolist() for part in views)) for index in range(len(pictures))]
    made = [apply_view(Image.fromarray(picture), view) for picture, view in zip(pictures, each, strict=True)]
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in made])).permute(0, 3, 1, 2).float() / 255


def as_batch(pictures):
    return torch.from_numpy(pictures.copy()).permute(0, 3, 1, 2).contiguous()


def unjittered(views):
    return views._replace(order=torch.full_like(views.order, -1))


@pytest.mark.parametrize("seed", TORCHVISION)
def test_views_are_those_of_torchvision(seed):
    torch.manual_seed(seed)
    views = torch.cat(simclr.two_views(gradient()))
    means, ramps = TORCHVISION[seed]
    assert views.shape == (6, 32, 32) and views.dtype == torch.float32
    assert views.mean((1, 2)).tolist() == pytest.approx(means, abs=1e-3)
    assert (views * torch.linspace(-1, 1, 32)).mean((1, 2)).tolist() == pytest.approx(ramps, abs=1e-3)


# What each change should make of levels from 0 to 1, by its definition. Both ways are held against it.
LUMINANCE = np.array([0.299, 0.587, 0.114])


def contrasted(levels, factor):
    mean = (levels @ LUMINANCE).mean()
    return mean + factor * (levels - mean)


def saturated(levels, factor):
    grey = (levels @ LUMINANCE)[..., None]
    return grey + factor * (levels - grey)


def turned(levels, turns):
    def one(colour):
        hue, saturation, value = colorsys.rgb_to_hsv(*colour)
        return colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value)

    return np.apply_along_axis(one, 2, levels)


CHANGES = (lambda levels, factor: levels * factor, contrasted, saturated, turned)


def test_each_change_does_what_its_name_says_and_their_order_is_kept(pictures):
    orders = [(which, -1, -1, -1) for which in range(4)] * 2 + [*itertools.permutations(range(4))]
    factors = [(0.6, 0.6, 0.6, -0.1)] * 4 + [(1.4, 1.4, 1.4, 0.1)] * 4 + [(1.3, 0.7, 1.4, 0.1)] * 24
    views = [PLAIN._replace(factors=f, order=o) for f, o in zip(factors, orders, strict=True)]
    for picture in (pictures[3], pictures[-1]):
        some = np.stack([picture] * len(views))
        on_device = simclr.apply_views(as_batch(some), batch_of(views))
        for view, one, other in zip(views, on_device, by_pil(some, batch_of(views)), strict=True):
            expected = picture / 255
            for which in view.order:
                if which >= 0:
                    expected = CHANGES[which](expected, view.factors[which]).clip(0, 1)
            assert np.abs(expected - picture / 255).max() > 0.1  # it changes something at all
            expected = torch.from_numpy(expected.transpose(2, 0, 1)).float()
            assert (one - expected).abs().max() < 2e-3, view
            # PIL has whole levels; of hue, too, before and after: one of 255 is up to 6 levels of a strong colour
            apart = (other - expected).abs()
            assert apart.mean() < 2.5 * LEVEL and (3 in view.order or apart.max() < 2 * LEVEL), view
        assert len({tuple(view.flatten().tolist()) for view in on_device}) > 20  # some of the four commute


@pytest.mark.parametrize("flip", [False, True])
def test_a_crop_is_that_part_enlarged(pictures, flip):
    """Exact where it must be: a crop of one colour, and of all the picture; PIL's own resize for the rest."""
    flat = np.zeros((1, 32, 32, 3), np.uint8)
    flat[:, 5:13, 9:25] = (10, 100, 250)  # if a pixel outside took part, it would darken the edge
    some = np.concatenate((flat, pictures[:50]))
    views = batch_of([PLAIN._replace(top=5, left=9, height=8, width=16, flip=flip)] * 51)
    on_device = simclr.apply_views(as_batch(some), views)
    for result, tolerance in ((by_pil(some, views), 0), (on_device, 1e-6)):
        assert (result[0].flatten(1) - torch.tensor([[10.0], [100.0], [250.0]]) / 255).abs().max() <= tolerance
    resized = [Image.fromarray(picture[5:13, 9:25]).resize((32, 32), Image.Resampling.BILINEAR) for picture in some]
    expected = np.stack([np.asarray(picture) for picture in resized])[:, :, :: -1 if flip else 1]
    assert np.abs(on_device.numpy() - expected.transpose(0, 3, 1, 2) / 255).max() < 1.5 * LEVEL


def test_both_ways_make_the_same_views_of_the_same_numbers(pictures):
    batch, views = as_batch(pictures), simclr.draw_views(len(pictures), torch.Generator().manual_seed(1))
    made = simclr.apply_views(batch, views)
    assert made.shape == (len(pictures), 3, 32, 32) and made.dtype == torch.float32
    difference = (made - by_pil(pictures, views)).abs()
    assert difference.mean() < 0.01 and difference.max() < 0.1 and (difference > 0.05).float().mean() < 1e-3
    views = unjittered(views)
    assert (simclr.apply_views(batch, views) - by_pil(pictures, views)).abs().max() < 1.5 * LEVEL


def test_numbers_are_distributed_as_torchvision_documents():
    """Those of a batch; the ones drawn one by one are torchvision's."""
    count = 6000
    views = simclr.View(*(part.numpy() for part in simclr.draw_views(count, torch.Generator().manual_seed(0))))
    five_deviations = 5 * 0.5 / count**0.5
    assert abs(views.flip.mean() - 0.5) < five_deviations and abs(views.grey.mean() - 0.2) < five_deviations
    jittered = views.order[:, 0] >= 0
    assert abs(jittered.mean() - 0.8) < five_deviations and (views.order[~jittered] == -1).all()
    _, often = np.unique(views.order[jittered], axis=0, return_counts=True)
    assert len(often) == 24 and (abs(often / jittered.sum() - 1 / 24) < 5 * (1 / 24 / jittered.sum()) ** 0.5).all()
    for place, (low, high) in enumerate(((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))):
        share = (views.factors[jittered, place] - low) / (high - low)
        assert 0 <= share.min() < 0.01 and 0.99 < share.max() <= 1
        assert np.abs(np.histogram(share, 10, (0, 1))[0] / jittered.sum() - 0.1).max() < 0.03
    assert abs(np.corrcoef(views.factors[jittered].T) - np.eye(4)).max() < 0.08  # no number is used twice

    assert views.top.min() == views.left.min() == 0
    assert (views.top + views.height).max() == (views.left + views.width).max() == 32
    # Up to 3/4 of the picture every shape fits, so areas are uniform there: 67 of 92 parts, less what is refused above.
    area = views.height * views.width / 1024
    low = np.histogram(area, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7))[0]
    assert 0.06 < area.min() < 0.1 and area.max() == 1 and np.abs(low / low.mean() - 1).max() < 0.2
    ratio = np.log(views.width / views.height)[(area > 0.3) & (area < 0.7)]
    assert (
        abs(ratio.mean()) < 0.02 and np.abs(np.histogram(ratio, 4, (-0.28, 0.28))[0] / len(ratio) - 0.25).max() < 0.06
    )


def test_a_shape_that_never_fits_becomes_the_whole_picture(monkeypatch):
    monkeypatch.setattr(simclr, "SCALE", (1.0, 1.0))
    monkeypatch.setattr(simclr, "RATIO", (1.3, 4 / 3))
    whole = simclr._random_crop(gradient())
    assert np.array_equal(np.asarray(whole), np.asarray(gradient()))
    views = simclr.draw_views(3, torch.Generator())
    assert [part.tolist() for part in views[:4]] == [[0] * 3, [0] * 3, [32] * 3, [32] * 3]


def test_device_views_are_the_views_normalised_and_follow_their_generator_alone(pictures):
    batch, before = as_batch(pictures[:16]), torch.get_rng_state()
    one, other = simclr.device_views(batch, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert one.shape == other.shape == (16, 3, 32, 32) and one.is_contiguous() and not one.requires_grad
    again = simclr.device_views(batch, torch.Generator().manual_seed(3))
    assert torch.equal(torch.stack(again), torch.stack((one, other))) and not torch.equal(one, other)
    assert not torch.equal(one, simclr.device_views(batch, torch.Generator().manual_seed(4))[0])
    assert torch.equal(batch, as_batch(pictures[:16]))
    levels = by_pil(np.concatenate([pictures[:16]] * 2), simclr.draw_views(32, torch.Generator().manual_seed(3)))
    mean, deviation = (torch.tensor(part).reshape(3, 1, 1) for part in (MEAN, STD))
    assert ((torch.cat((one, other)) * deviation + mean) - levels).abs().max() < 0.1


def test_shapes_on_the_device_do_not_depend_on_the_numbers(pictures):
    """MPS compiles a graph for every new shape, and keeps it."""

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            seen.append((str(function), getattr(result, "shape", None)))
            return result

    batch, runs = as_batch(pictures[:8]), []
    for seed in range(2):
        seen = []
        views = simclr.draw_views(8, torch.Generator().manual_seed(seed))
        with Shapes():
            simclr.apply_views(batch, views)
        runs.append(seen)
    assert len(runs[0]) > 50 and runs[0] == runs[1]


def test_items(images):
    plain = simclr.PNGPictures(images, simclr.normalised)
    assert len(plain) == 60
    for index in (0, 1, 59):
        (picture, label, name), given = plain[index], images.images[index]
        assert name == f"{label}/{index:05}.png"
        assert type(label) is int and label == images.labels[index]
        assert picture.is_contiguous() and picture.dtype == torch.float32
        assert np.allclose(picture.numpy(), ((given / 255 - MEAN) / STD).transpose(2, 0, 1), atol=1e-6)
    for index in (-1, 60):
        with pytest.raises(IndexError):
            plain[index]
    pairs = plain.with_transform(simclr.two_views)
    assert pairs.files is plain.files and plain.transform is simclr.normalised
    (first, second), labels, names = next(iter(DataLoader(pairs, 8)))
    assert first.shape == second.shape == (8, 3, 32, 32) and not torch.equal(first, second)
    assert labels.tolist() == images.labels[:8].tolist() and len({*names}) == 8
    # What a spawned worker gets: a handle, and a few bytes a picture.
    assert len(plain.files) > 50_000 and len(multiprocessing.reduction.ForkingPickler.dumps(plain)) < 3_000
    copy = pickle.loads(pickle.dumps(plain.with_transform(simclr.pixels)))
    assert copy[7][0].dtype == torch.uint8 and np.array_equal(copy[7][0], images.images[7].transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(4, 28, 28), (4, 32, 30, 3)])
def test_grey_and_oblong_pictures_are_refused(shape):
    odd = data_images.ImageSet(np.zeros(shape, np.uint8), np.zeros(4, np.int64), name="odd", kind="real", origin="")
    with pytest.raises(PomologyError, match=r"odd: images of .*: should be square and in colour"):
        simclr.PNGPictures(odd, simclr.normalised)


def loaded(seed, workers, context=None):
    """Four batches of one picture again and again: whatever differs was drawn."""
    one_picture = np.full((16, 32, 32, 3), (200, 100, 50), np.uint8)
    same = data_images.ImageSet(one_picture, np.zeros(16, np.int64), name="same", kind="stand-in", origin="")
    torch.manual_seed(seed)
    pictures = simclr.PNGPictures(same, simclr.two_views)
    loader = DataLoader(pictures, 4, num_workers=workers, multiprocessing_context=context)
    return torch.stack([torch.stack(views) for views, *_ in loader])


def test_a_seed_decides_the_views_and_workers_differ():
    here, workers = loaded(0, 0), loaded(0, 2, "spawn" if sys.platform == "darwin" else "fork")  # spawn takes seconds
    assert torch.equal(here, loaded(0, 0)) and not torch.equal(here, loaded(1, 0))
    for batches in (here, workers):
        for one, other in itertools.combinations(batches, 2):  # with two workers the first and second batch differ, too
            assert not torch.equal(one, other)


@pytest.mark.parametrize(("k", "t"), [(1, 0.1), (200, 0.1), (200, 10.0)])
def test_knn_votes_as_counted_by_hand(k, t):
    generator = np.random.default_rng(k)
    labels = generator.integers(0, 7, 300)
    centres = generator.normal(size=(7, 16))
    bank = centres[labels] + 1.5 * generator.normal(size=(300, 16))
    feature = centres[generator.integers(0, 7, 25)] + 1.5 * generator.normal(size=(25, 16))
    feature, bank = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (feature, bank))
    scores = np.zeros((25, 7))
    for row, cosines in enumerate(feature @ bank.T):
        for neighbour in sorted(range(300), key=lambda place: -cosines[place])[:k]:
            scores[row, labels[neighbour]] += np.exp(cosines[neighbour] / t)
    tensors = (torch.from_numpy(part).float().contiguous() for part in (feature, bank.T))
    found = simclr.knn_predict(*tensors, torch.from_numpy(labels), 7, k, t)
    assert found.dtype == torch.int64 and (np.sort(found.numpy()) == np.arange(7)).all()
    ordered = np.take_along_axis(scores, found.numpy(), 1)  # by score, as ties may come either way
    assert (ordered[:, :-1] >= ordered[:, 1:] * (1 - 1e-4)).all()


def test_knn_wants_a_bank_of_k_features():
    with pytest.raises(PomologyError, match="k is 5, should be 1 to 4"):
        simclr.knn_predict(torch.ones(1, 2), torch.ones(2, 4), torch.zeros(4, dtype=torch.int64), 5, k=5)
