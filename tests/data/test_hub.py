"""Sources of datasets: real files, synthetic data without a network, or an error of one line."""

import functools
import hashlib
import io
from dataclasses import replace
from pathlib import Path

import httpx
import huggingface_hub
import numpy as np
import pandas
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from offline import cut_off, one_line_error
from PIL import Image

from pomology.data import hub, images, layouts, photographs, text


@pytest.fixture(autouse=True)
def network(monkeypatch, tmp_path_factory):
    """Block the network, and list the requests."""
    monkeypatch.delenv(hub.FOLDER, raising=False)
    return cut_off(monkeypatch, tmp_path_factory)


LOADS = {"CIFAR-10": images.cifar10, "LSUN classroom": photographs.lsun_classroom}
LOADS["Penn Treebank"] = functools.partial(text.corpus, text.PENN_TREEBANK)


@pytest.mark.parametrize("name", LOADS)
def test_without_a_network_auto_is_synthetic_and_real_is_an_error(name, tmp_path, network):
    load = LOADS[name]
    data = load("auto", "", 20)
    why = "does not answer (ConnectError)" if network else "no folder was named"
    assert (data.name, data.kind) == (name, "stand-in")
    assert data.origin.startswith(f"synthetic data in place of {name}: ") and why in data.origin
    one_line_error(lambda: load("real", "", 20), f"{name}: no real data: ", why)
    one_line_error(lambda: load("auto", str(tmp_path), 20), name, tmp_path.name)
    network.clear()
    origin = f"synthetic data in place of {name}: as requested; the first 20 only"
    assert load("stand-in", "", 20).origin == origin and not network
    one_line_error(lambda: load("stand-in", "", -5), "-5 samples", "or 0 for all")


def test_more_samples_than_there_are_is_all_of_them():
    for load, most in ((images.mnist, 60_000), (images.mnist, 70_000)):
        data = load("synthetic", "", most)
        assert (len(data), data.part) == (60_000, 0) and "the first" not in data.origin


@pytest.mark.parametrize(
    ("with_token", "without", "words"),
    [
        (401, 200, "downloaded without the Hugging Face token (HfHubHTTPError, HTTP 401 with it)"),
        (403, 401, "HTTP 403; without the Hugging Face token: HfHubHTTPError, HTTP 401)"),
        (429, 200, "download failed (HfHubHTTPError, HTTP 429: too many requests"),
    ],
)
def test_a_token_that_is_refused_does_not_hide_public_data(monkeypatch, with_token, without, words):
    def download(*_, token, **__):
        code = without if token is False else with_token
        if code != 200:
            answer = httpx.Response(code, request=httpx.Request("GET", "https://huggingface.co"))
            raise OSError("offline?") from HfHubHTTPError("", response=answer)
        return "train.parquet"

    monkeypatch.setattr(hub, "connection_problem", str)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_old")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    try:
        said = hub.find(images.MNIST, "train", None)[1]
    except hub.Unavailable as reason:
        said = str(reason)
    assert words in said


def test_an_unknown_source_or_folder_is_an_error():
    one_line_error(lambda: images.mnist("fake"), "'fake' is not one of auto, real, synthetic")
    one_line_error(lambda: images.mnist("auto", "/nowhere"), "/nowhere is not a folder")


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(columns).to_parquet(path)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def test_a_folder_for_all_datasets_may_lack_some(tmp_path, network, monkeypatch):
    words = dict.fromkeys(("train", "valid"), 2)
    small = replace(text.PENN_TREEBANK, tokens=words, vocabulary=2)
    for split in ("train", "validation"):
        write(tmp_path / f"penn_treebank/{split}/0000.parquet", sentence=["word"])
    monkeypatch.setenv(hub.FOLDER, str(tmp_path))
    corpus = text.corpus(small, "real")
    assert corpus.origin == "Penn Treebank, real: local folder, Parquet files" and not network
    for load in (images.mnist, images.cifar10, photographs.lsun_classroom):
        data = load("auto", "", 20)
        assert data.kind == "stand-in" and "; POMOLOGY_DATA_FOLDER lacks it" in data.origin
        real = functools.partial(load, "real", "", 20)
        one_line_error(real, "no real data", "POMOLOGY_DATA_FOLDER lacks it")
        assert str(tmp_path) not in data.origin
    expected = "train-images-idx3-ubyte and train-labels-idx1-ubyte (unpacked or .gz) in it"
    assert f"lacks it, expected {expected}" in images.mnist("auto", "", 20).origin
    (tmp_path / "other").mkdir()
    named = str(tmp_path / "other")
    one_line_error(lambda: text.corpus(small, "auto", named), f"{named} lacks it; expected train/")
    monkeypatch.setenv(hub.FOLDER, "/nowhere")
    one_line_error(lambda: images.mnist("auto"), "POMOLOGY_DATA_FOLDER: /nowhere is not a folder")
    assert images.mnist("synthetic", "", 20).kind == "stand-in"


def test_a_folder_that_may_not_be_opened_is_no_damaged_file(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    paths = [tmp_path / f"train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
    for path in paths:
        path.touch()
    monkeypatch.setattr(Path, "open", refuse)
    ends = "cannot be read: Operation not permitted"
    assert one_line_error(lambda: images.mnist("auto", str(tmp_path)), paths[0].name).endswith(ends)
    monkeypatch.setattr(Path, "is_file", refuse)
    assert one_line_error(lambda: images.mnist("auto", str(tmp_path))) == f"{tmp_path}: {ends}"


def test_images_of_the_hub_and_of_a_folder(tmp_path, network):
    small = replace(images.CIFAR10, shapes={"train": (20, 32, 32, 3)})

    def load(folder):
        return images.image_set(small, "real", folder, 0)

    arrays = np.random.default_rng(3).integers(0, 256, (20, 32, 32, 3), np.uint8)
    labels = np.arange(20) % 10
    encoded = [png(array) for array in arrays]
    cache = Path(constants.HF_HUB_CACHE, "datasets--uoft-cs--cifar10", "snapshots")
    path = tmp_path / "train-00000-of-00001.parquet"
    write(path, img=encoded, label=labels)
    write(cache / images.CIFAR10.revision / "plain_text" / path.name, img=encoded, label=labels)
    for folder, where in (
        (str(tmp_path), "local folder, Parquet files"),
        ("", "uoft-cs/cifar10, cached"),
    ):
        real = load(folder)
        assert np.array_equal(real.images, arrays) and np.array_equal(real.labels, labels)
        assert real.origin == f"CIFAR-10, real: {where}" and not network
    write(path, img=encoded[:5], label=labels[:5])
    one_line_error(lambda: load(str(tmp_path)), "(5, 32, 32, 3), expected (20, 32, 32, 3)")
    path.write_bytes(path.read_bytes()[:-200])
    one_line_error(lambda: load(str(tmp_path)), "damaged")


def test_another_dataset_under_the_same_name_is_refused(tmp_path, monkeypatch):
    small = replace(images.MNIST, shapes={"train": (20, 28, 28)})
    labels = np.arange(20) % 10
    path = tmp_path / "train-00000-of-00001.parquet"
    write(path, image=[png(np.zeros((28, 28), np.uint8))] * 20, label=labels)
    assert images.image_set(small, "real", str(tmp_path), 0).labels.tolist() == labels.tolist()
    file = bytes((0, 0, 8, 1, 0, 0, 0, 20, *labels))  # as an idx file
    monkeypatch.setitem(layouts.OWNERS, hashlib.md5(file).hexdigest(), "Fashion-MNIST")
    words = "is of Fashion-MNIST, not of MNIST"
    one_line_error(lambda: images.image_set(small, "real", str(tmp_path), 0), path.name, words)
    write(path, image=[png(np.zeros((28, 28), np.uint8))] * 20, label=[None] * 20)
    one_line_error(lambda: images.image_set(small, "real", str(tmp_path), 0), "damaged")


def test_words_are_numbered_by_their_appearance(tmp_path):
    write(tmp_path / "train/0000.parquet", sentence=[" the apple is a fruit ", "", "a fruit the"])
    write(tmp_path / "validation/0000.parquet", sentence=["the fruit"])
    small = replace(text.PENN_TREEBANK, tokens={"train": 11, "valid": 3}, vocabulary=6)
    corpus = text.corpus(small, "real", str(tmp_path))
    words = " ".join(corpus.words[number] for number in corpus.train)
    assert words == "the apple is a fruit <eos> <eos> a fruit the <eos>"
    assert corpus.valid.tolist() == [0, 4, 5]
    one_line_error(lambda: LOADS["Penn Treebank"]("auto", str(tmp_path)), "11", "929589")
