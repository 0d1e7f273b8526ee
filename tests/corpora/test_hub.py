"""Where data come from: the real files, a stand-in without a network, or an error of one line."""

import io

import numpy as np
import pandas
import pytest
import soundfile
import tokenizers
from offline import cut_off, hub_folder, one_line_error
from PIL import Image

from pomology.data import images, photographs, speech, text


@pytest.fixture(autouse=True)
def network(monkeypatch, tmp_path_factory):
    """Cuts the network off, and lists what was asked of it."""
    return cut_off(monkeypatch, tmp_path_factory)


LOADS = {
    "MNIST": images.mnist,
    "Fashion-MNIST": images.fashion_mnist,
    "CIFAR-10": images.cifar10,
    "LSUN classroom": photographs.lsun_classroom,
    "WikiText-2": lambda *request: text.corpus(text.WIKITEXT2, *request),
    "Penn Treebank": lambda *request: text.corpus(text.PENN_TREEBANK, *request),
    "IMDB": text.imdb,
    "Common Voice": speech.common_voice,
}


@pytest.mark.parametrize("name", LOADS)
def test_without_a_network_auto_takes_a_stand_in_and_real_refuses(name, tmp_path, network):
    load = LOADS[name]
    data = load("auto", "", 20)
    why = "does not answer (ConnectError)" if network else "no folder was named"
    assert (data.name, data.kind) == (name, "stand-in")
    assert data.origin.startswith(f"stand-in for {name}: ") and why in data.origin
    one_line_error(lambda: load("real", "", 20), f"{name}: no real data: ", why)
    one_line_error(lambda: load("auto", str(tmp_path), 20), name, tmp_path.name)
    network.clear()
    origin = f"stand-in for {name}: asked for; the first 20 only"
    assert load("stand-in", "", 20).origin == origin and not network


def test_an_unknown_source_or_folder_is_refused():
    one_line_error(lambda: images.mnist("fake"), "'fake' is not one of auto, real, stand-in")
    one_line_error(lambda: images.mnist("auto", "/nowhere"), "/nowhere is not a folder")


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(columns).to_parquet(path)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def test_images_of_the_hub_and_of_a_folder(tmp_path, network):
    def load(folder):
        shape = (20, 32, 32, 3)
        return images._image_set(images.CIFAR10, "img", shape, "real", folder, 0, "test")

    pictures = np.random.default_rng(3).integers(0, 256, (20, 32, 32, 3), np.uint8)
    labels = np.arange(20) % 10
    encoded = [png(picture) for picture in pictures]
    cache = hub_folder("uoft-cs/cifar10", "datasets", images.CIFAR10.revision)
    path = tmp_path / "test-00000-of-00001.parquet"
    write(path, img=encoded, label=labels)
    write(cache / "plain_text" / path.name, img=encoded, label=labels)
    for folder, where in ((str(tmp_path), "local folder"), ("", "uoft-cs/cifar10, cached")):
        real = load(folder)
        assert np.array_equal(real.images, pictures) and np.array_equal(real.labels, labels)
        assert real.images.dtype == np.uint8 and real.labels.dtype == np.int64
        assert real.origin == f"CIFAR-10, real: {where}" and not network
    write(path, img=encoded[:5], label=labels[:5])
    one_line_error(lambda: load(str(tmp_path)), "(5, 32, 32, 3), should be (20, 32, 32, 3)")
    path.write_bytes(path.read_bytes()[:-200])
    one_line_error(lambda: load(str(tmp_path)), "damaged")


def test_words_are_numbered_by_their_appearance(tmp_path):
    write(tmp_path / "train/0000.parquet", sentence=[" the apple is a fruit ", "", "a fruit the"])
    write(tmp_path / "validation/0000.parquet", sentence=["the fruit"])
    dataset = text.PENN_TREEBANK.dataset
    small = text.Words(dataset, "sentence", {"train": 11, "valid": 3}, vocabulary=6)
    corpus = text.corpus(small, "real", str(tmp_path))
    words = " ".join(corpus.words[number] for number in corpus.train)
    assert words == "the apple is a fruit <eos> <eos> a fruit the <eos>"
    assert corpus.valid.tolist() == [0, 4, 5]
    article = LOADS["Penn Treebank"]
    one_line_error(lambda: article("auto", str(tmp_path)), "11", "929589")


def write_tokenizer(repository, revision, pieces, end):
    """One like the published ones, which are byte-level, and pad and cut by themselves."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(pieces, [("b", "a"), ("ba", "d")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([piece for piece in pieces if piece.startswith("<|")])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=6, pad_id=end)
    tokenizer.save(str(hub_folder(repository, revision=revision) / "tokenizer.json"))


BYTES = {"b": 0, "a": 1, "d": 2, "Ġ": 5, "ba": 10, "bad": 20}


def test_reviews_are_cut_and_padded(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "IMDB_REVIEWS", 4)
    reviews = ["bad", "bad bad", "bad bad bad", "b"]
    write(tmp_path / "train-00000-of-00001.parquet", text=reviews, label=[0, 0, 1, 1])
    assert text.imdb("auto", str(tmp_path)).kind == "stand-in"  # for want of the tokenizer
    end = text.END_OF_TEXT
    pieces = BYTES | {"<|endoftext|>": end}
    write_tokenizer("openai-community/gpt2", text.GPT2_REVISION, pieces, end)
    real = text.imdb("real", str(tmp_path), length=4)
    rows = {tuple(row): label for row, label in zip(real.tokens.tolist(), real.labels, strict=True)}
    assert rows == {
        (20, end, end, end): 0,
        (20, 5, 20, end): 0,
        (20, 5, 20, 5): 1,
        (0, end, end, end): 1,
    }
    assert ((real.tokens == end) == (real.mask == 0)).all() and real.mask.dtype == np.int64
    assert real.origin == "IMDB, real: local folder; tokenizer cached"


def test_clips_of_common_voice(tmp_path):
    end = speech.END
    pieces = BYTES | {"<|endoftext|>": end, "<|de|>": 50_261}
    write_tokenizer("openai/whisper-tiny", speech.WHISPER_REVISION, pieces, end)
    (tmp_path / "clips").mkdir()
    rows = {"path": ["0.wav", "1.wav"], "sentence": ['"bad bad', "bad" * 40], "locale": "de-CH"}
    pandas.DataFrame(rows).to_csv(tmp_path / "train.tsv", sep="\t", index=False, quoting=3)
    for number, hertz in enumerate((500, 2000)):
        sound = 0.3 * np.sin(2 * np.pi * hertz * np.arange(32_000) / 32_000)
        soundfile.write(tmp_path / "clips" / f"{number}.wav", sound, 32_000)
    short, long = speech.common_voice("real", str(tmp_path)).clips
    prefix = [50_261, speech.TRANSCRIBE, speech.NO_TIMESTAMPS]
    assert short["labels"].tolist() == [*prefix, 20, 5, 20, end, *[text.IGNORED] * 25]
    assert long["labels"].tolist() == [*prefix, *[20] * 28, end]
    # Slaney's scale: 80 bands up to 45.2 mel (8 kHz), logarithmic from 15 mel (1 kHz).
    for clip, mel in ((short, 7.5), (long, 15 + 27 * np.log(2) / np.log(6.4))):
        loudest = clip["input_features"][:, :80].mean(1).argmax()
        assert loudest == pytest.approx(mel / 45.2 * 81 - 1, abs=1.5)
    (tmp_path / "clips" / "0.wav").write_bytes(b"<html>please log in</html>")
    one_line_error(lambda: speech.common_voice("real", str(tmp_path)), "0.wav: damaged")
