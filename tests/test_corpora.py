"""Text and speech for the large models: formats, tokens, sound, damage, absence of network, counts, learnability."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants
from offline import cut_off, one_line_error

from pomology.data import hub as data_hub
from pomology.data import speech, synthetic
from pomology.data import text as data_text

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def network(monkeypatch, tmp_path_factory):
    return cut_off(monkeypatch, tmp_path_factory)


# --- tokenizers made by hand, in the form of the published ones

# Bytes, then what two of them merge into; Ġ is the space in front of a word. "bad" is 20, " good" is 24.
PIECES = {"b": 0, "a": 1, "d": 2, "g": 3, "o": 4, "Ġ": 5, "ba": 10, "bad": 20, "go": 21, "od": 22, "Ġgo": 23}
PIECES |= {"Ġgood": 24, "<|endoftext|>": 50256}
MERGES = ["b a", "ba d", "o d", "g o", "Ġ go", "Ġgo od"]
SPEECH = PIECES | {"<|endoftext|>": 50257, "<|startoftranscript|>": 50258, "<|en|>": 50259, "<|de|>": 50261}
SPEECH |= {"<|transcribe|>": 50359, "<|notimestamps|>": 50363}


def write_tokenizer(folder, pieces=PIECES):
    """As published: with an end of text that the post-processor would add, and a padding that must not be used."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    template = [{"Sequence": {"id": "A", "type_id": 0}}, end]
    number = pieces["<|endoftext|>"]
    content = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            **{"strategy": {"Fixed": 6}, "direction": "Left", "pad_to_multiple_of": None},
            **{"pad_id": number, "pad_type_id": 0, "pad_token": "<|endoftext|>"},
        },
        "added_tokens": [special | {"id": i, "content": text} for text, i in pieces.items() if text.startswith("<|")],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            **{"type": "TemplateProcessing", "single": template, "pair": template},
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [number], "tokens": ["<|endoftext|>"]}},
        },
        "decoder": byte_level,
        "model": {
            **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "fuse_unk": False},
            **{"end_of_word_suffix": "", "byte_fallback": False, "vocab": pieces, "merges": MERGES},
        },
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def hub_folder(repository, kind="models", branch="main"):
    """A snapshot in the hub's cache, as its client leaves one."""
    base = data_hub.Path(constants.HF_HUB_CACHE) / f"{kind}--{repository.replace('/', '--')}"
    (base / "refs" / branch).parent.mkdir(parents=True, exist_ok=True)
    (base / "refs" / branch).write_text("5f91d94bd9cd7190a9f3216ff93cd1dd95f2c7be")
    folder = base / "snapshots" / "5f91d94bd9cd7190a9f3216ff93cd1dd95f2c7be"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# --- IMDB

TEXTS = ["bad", "bad bad good", " good good", "good good bad", "bad good"]
NUMBERS = {"bad": [20], "bad bad good": [20, 5, 20, 24], " good good": [24, 24]}
NUMBERS |= {"good good bad": [21, 22, 24, 5, 20], "bad good": [20, 24]}
LABELS = [0, 0, 1, 1, 0]


def assert_small_reviews(found):
    """Each row is one of the texts with its label, padded behind; each text is there once."""
    rows = []
    for tokens, mask, label in zip(found.tokens, found.mask, found.labels, strict=True):
        count = mask.sum()
        assert mask.tolist() == [1] * count + [0] * (4 - count) and tokens[count:].tolist() == [50256] * (4 - count)
        rows.append((tokens[:count].tolist(), label))
    expected = [(NUMBERS[text][:4], label) for text, label in zip(TEXTS, LABELS, strict=True)]
    assert sorted(rows) == sorted(expected)
    assert found.tokens.dtype == found.mask.dtype == found.labels.dtype == np.int64
    assert found.kind == "real" and "5 reviews where the article has 25,000" in found.origin


def write_reviews(path, **changes):
    columns = {"text": TEXTS, "label": LABELS} | changes
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def write_aclimdb(folder):
    for number, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True)):
        place = folder / "train" / ("neg", "pos")[label]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}_7.txt").write_text(text, encoding="utf-8")
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("neither")
    return folder


@pytest.mark.parametrize("form", ["parquet", "aclImdb", "above aclImdb"])
def test_imdb_from_a_folder(tmp_path, network, form):
    if form == "parquet":
        write_reviews(tmp_path / "plain_text" / "train-00000-of-00001.parquet")
        write_reviews(tmp_path / "plain_text" / "unsupervised-00000-of-00001.parquet", label=[-1] * 5)
        write_tokenizer(tmp_path / "plain_text")
    else:
        write_aclimdb(tmp_path / "aclImdb")
        write_tokenizer(tmp_path if form.startswith("above") else tmp_path / "aclImdb")
    folder = tmp_path / "aclImdb" if form == "aclImdb" else tmp_path
    found = data_text.imdb("auto", folder, length=4)
    assert_small_reviews(found)
    assert found.origin.startswith("IMDB, real: local folder; tokenizer of GPT-2 in the folder")
    assert not network and str(tmp_path) not in found.origin
    assert len(data_text.imdb("real", folder, length=4, size=2)) == 2
    whole = data_text.imdb("real", folder, length=9).tokens
    assert [21, 22, 24, 5, 20, *[50256] * 4] in whole.tolist()


def test_the_first_reviews_are_of_both_labels(tmp_path):
    write_reviews(tmp_path / "train.parquet", text=["bad"] * 500 + [" good"] * 500, label=[0] * 500 + [1] * 500)
    write_tokenizer(tmp_path)
    found = data_text.imdb("real", tmp_path, size=100)
    assert 30 < found.labels.sum() < 70 and np.array_equal(found.tokens[:, 0], np.where(found.labels, 24, 20))
    assert "the first 100 only" in found.origin and "1,000 reviews where" in found.origin
    assert np.array_equal(found.labels, data_text.imdb("real", tmp_path).labels[:100])


def test_the_tokenizer_is_taken_from_the_cache(tmp_path, network):
    write_reviews(tmp_path / "train.parquet")
    write_tokenizer(hub_folder("openai-community/gpt2"))
    found = data_text.imdb("real", tmp_path, length=4)
    assert_small_reviews(found)
    assert "tokenizer of GPT-2 cached" in found.origin and not network


def test_reviews_without_a_tokenizer_cannot_be_had(tmp_path, network):
    write_reviews(tmp_path / "train.parquet")
    why = "tokenizer.json of openai-community/gpt2 is not in the cache, and no connection to the Hugging Face hub"
    found = data_text.imdb("auto", tmp_path, size=5)
    assert found.kind == "stand-in" and found.origin.startswith(f"stand-in for IMDB: {why}") and network
    one_line_error(lambda: data_text.imdb("real", tmp_path), f"IMDB: no real data: {why}", "local folder")


def test_imdb_from_the_hub(monkeypatch, network):
    table = pyarrow.table({"text": TEXTS, "label": LABELS})
    asked = []

    def tables(hub, config):
        asked.append((hub, config))
        return {"train": table, "test": table.slice(0, 2), "unsupervised": table}, "downloaded"

    monkeypatch.setattr(data_text, "hub_tables", tables)
    assert data_text.imdb("auto", size=3).kind == "stand-in"
    assert not asked  # 80 MB that would be of no use
    write_tokenizer(hub_folder("openai-community/gpt2"))
    found = data_text.imdb("auto", length=4)
    assert_small_reviews(found)
    assert found.origin.startswith("IMDB, real: stanfordnlp/imdb (plain_text), downloaded; tokenizer of GPT-2 cached")
    assert len(data_text.imdb("real", split="test")) == 2 and asked == [("stanfordnlp/imdb", "plain_text")] * 2


def test_unusable_imdb_folders(tmp_path):
    tokenizer = write_tokenizer(tmp_path)
    one_line_error(
        lambda: data_text.imdb("auto", tmp_path), "nothing to read", "train/neg and train/pos", "train*.parq"
    )
    path = write_reviews(tmp_path / "train.parquet", label=[0, 1, 2, 0, 0])
    one_line_error(lambda: data_text.imdb("auto", tmp_path), "labels should be 0 or 1, not 0 to 2")
    write_reviews(path, label=["neg"] * 5)
    one_line_error(lambda: data_text.imdb("auto", tmp_path), "train.parquet", "labels should be 0 or 1")
    write_reviews(path, text=["bad", None, "bad", "bad", "bad"])
    one_line_error(lambda: data_text.imdb("auto", tmp_path), "train.parquet", "text in every row")
    write_reviews(path, text=pyarrow.array([], "string"), label=pyarrow.array([], "int64"))
    one_line_error(lambda: data_text.imdb("auto", tmp_path), "train.parquet: no reviews")
    pyarrow.parquet.write_table(pyarrow.table({"review": TEXTS}), path)
    one_line_error(lambda: data_text.imdb("auto", tmp_path), "train.parquet", "expected text and label")
    path.write_bytes(path.read_bytes()[:-20])
    one_line_error(lambda: data_text.imdb("auto", tmp_path), "train.parquet", "damaged")
    write_reviews(path)
    tokenizer.write_text(tokenizer.read_text()[:300])
    one_line_error(lambda: data_text.imdb("auto", tmp_path), "tokenizer.json", "damaged or half downloaded")
    write_tokenizer(tmp_path, SPEECH)
    one_line_error(
        lambda: data_text.imdb("auto", tmp_path), "<|endoftext|> is 50257, should be 50256: not the tokenizer of GPT-2"
    )


def test_unusable_aclimdb_folders(tmp_path):
    root = write_aclimdb(tmp_path)
    write_tokenizer(tmp_path)
    (root / "train" / "neg" / "0_7.txt").write_bytes(b"half a letter \xe2\x80")
    one_line_error(lambda: data_text.imdb("auto", tmp_path), "0_7.txt", "damaged")
    for path in (root / "train" / "neg").iterdir():
        path.unlink()
    assert len(data_text.imdb("auto", tmp_path)) == 2
    (root / "train" / "neg").rmdir()
    one_line_error(lambda: data_text.imdb("auto", tmp_path), "no train/neg", "unpack it again")


@pytest.mark.parametrize(
    ("call", "fragment"),
    [
        (lambda: data_text.imdb("fake"), "auto, real, stand-in"),
        (lambda: data_text.imdb(split="valid"), "train, test"),
        (lambda: data_text.imdb("stand-in", length=0), "at least 1 token"),
        (lambda: data_text.imdb("stand-in", size=0), "at least 1"),
        (lambda: speech.common_voice("stand-in", tokens=4), "should be 5 to 448"),
        (lambda: speech.common_voice("stand-in", tokens=449), "should be 5 to 448"),
        (lambda: data_text.penn_treebank("ptb"), "auto, real, stand-in"),
        (lambda: data_text.imdb("real", "/nowhere"), "/nowhere is not a folder"),
    ],
)
def test_wrong_parameters(call, fragment):
    one_line_error(call, fragment)


@pytest.fixture(scope="module")
def reviews():
    return {split: data_text.imdb("stand-in", split=split) for split in ("train", "test")}


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_imdb_stand_in_has_the_articles_shape(reviews, split):
    found = reviews[split]
    assert found.tokens.shape == found.mask.shape == (25_000, 128) and len(found) == 25_000
    assert found.tokens.dtype == found.mask.dtype == found.labels.dtype == np.int64
    assert found.tokens.min() >= 0 and found.tokens.max() == 50_256 and found.labels.sum() == 12_500
    assert len(np.unique(found.tokens)) > 40_000
    assert ((found.tokens == 50_256) == (found.mask == 0)).all()  # the end of text pads, and is nowhere else
    assert (np.diff(found.mask, axis=1) <= 0).all() and found.mask.sum(1).min() >= 10
    assert 0.85 < found.mask.all(axis=1).mean() < 0.95
    assert len(np.unique(found.tokens, axis=0)) == 25_000
    assert (found.kind, found.origin) == ("stand-in", "stand-in for IMDB: asked for")


def test_the_imdb_stand_in_is_the_same_every_time_and_for_every_size(reviews):
    for size in (1, 101, 5000):
        again = data_text.imdb("stand-in", size=size)
        assert np.array_equal(again.tokens, reviews["train"].tokens[:size])
        assert np.array_equal(again.labels, reviews["train"].labels[:size])
    both = (reviews["train"].mask & reviews["test"].mask).astype(bool)
    assert (reviews["train"].tokens == reviews["test"].tokens)[both].mean() < 0.01  # by chance
    assert data_text.imdb("stand-in", length=7, size=30).mask.all()


def naive_bayes_accuracy(train, test):
    counts = [np.bincount(train.tokens[train.labels == label].ravel(), minlength=50_257) + 1 for label in (0, 1)]
    weight = np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())
    return (((weight[test.tokens] * test.mask).sum(1) > 0) == test.labels).mean()


def test_the_imdb_stand_in_can_be_learned_but_is_not_trivial(reviews):
    assert 0.75 < naive_bayes_accuracy(reviews["train"], reviews["test"]) < 0.9
    few = data_text.Reviews(
        *("few", reviews["train"].tokens[:100], reviews["train"].mask[:100], reviews["train"].labels[:100]), "", ""
    )
    assert naive_bayes_accuracy(few, reviews["test"]) < 0.75  # a hundred reviews do not teach it


def test_the_labels_do_not_follow_from_the_place_or_the_length(reviews):
    found = reviews["train"]
    assert abs(found.labels[::2].mean() - 0.5) < 0.02
    assert abs(np.corrcoef(found.mask.sum(1), found.labels)[0, 1]) < 0.02


def test_batches_are_what_gpt2_takes(reviews):
    from transformers import GPT2Config, GPT2ForSequenceClassification

    loader = torch.utils.data.DataLoader(reviews["train"], 3)
    batch = next(iter(loader))
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in batch.items()} == {
        "input_ids": (torch.int64, (3, 128)),
        "attention_mask": (torch.int64, (3, 128)),
        "labels": (torch.int64, (3,)),
    }
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "pad_token_id": data_text.END_OF_TEXT}
    model = GPT2ForSequenceClassification(GPT2Config(**sizes))
    assert torch.isfinite(model(**batch).loss)


# --- Common Voice

SENTENCES = ["bad good", '"bad,', "bad" + " good" * 30]  # PIECES has neither quote nor comma: they are left out


def tone(hertz, seconds, rate, level=0.3):
    return level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def write_release(folder, sentences=SENTENCES, locale="en", form="MP3", rate=32_000):
    """A release with tones of 500, 1000, 2000 Hz, a second long."""
    import soundfile

    (folder / "clips").mkdir(parents=True)
    lines = ["client_id\tpath\tsentence_id\tsentence\tup_votes\tlocale\tsegment"]
    for number, sentence in enumerate(sentences):
        name = f"common_voice_{locale}_{number}.{form.lower()}"
        soundfile.write(folder / "clips" / name, tone(500 * 2**number, 1, rate), rate, format=form)
        lines.append(f"c0ffee\t{name}\t{number}\t{sentence}\t2\t{locale}\t")
    (folder / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_tokenizer(folder, SPEECH)
    return folder


@pytest.mark.parametrize("place", ["", "en", "cv-corpus-21.0-2025-03-14/en"])
@pytest.mark.parametrize("form", ["MP3", "WAV"])
def test_common_voice_from_a_release(tmp_path, network, place, form):
    write_release(tmp_path / place, form=form)
    found = speech.common_voice("auto", tmp_path, tokens=8)
    assert len(found) == 3 and found.kind == "real"
    assert found.origin == "Common Voice, real: local folder; tokenizer of Whisper in the folder"
    items = [found[index] for index in range(3)]
    prefix = [50259, 50359, 50363]
    assert [item["labels"].tolist() for item in items] == [
        [*prefix, 20, 24, 50257, -100, -100],
        [*prefix, 20, 50257, -100, -100, -100],
        [*prefix, 20, 24, 24, 24, 50257],  # cut, with its end
    ]
    for number, item in enumerate(items):
        features = item["input_features"]
        assert features.shape == (80, 3000) and features.dtype == np.float32 and item["labels"].dtype == np.int64
        assert features.max() - features.min() == pytest.approx(2, abs=1e-4)
        assert np.median(features[:, 200:]) == pytest.approx(features.min())  # silence behind the second of sound
        heard = features[:, 20:80].mean(1).argmax()
        # Slaney's scale: 80 bands over 0 to 45.2 mel (8 kHz), linear (200 / 3 Hz a mel) up to 1 kHz, then logarithmic
        mel = (7.5, 15, 15 + 27 * np.log(2) / np.log(6.4))[number]
        assert abs(heard - (mel / (15 + 27 * np.log(8) / np.log(6.4)) * 81 - 1)) < 1.5
    assert not network and len(speech.common_voice("real", tmp_path, size=2)) == 2
    with pytest.raises(IndexError):
        found[3]


def test_features_are_those_of_transformers_numpy_code():
    """Of a sound that needs no other rate; its PyTorch code is taken where PyTorch is, and this is the other one."""
    from transformers import WhisperFeatureExtractor

    sound = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    padded = np.zeros(480_000, np.float32)
    padded[: len(sound)] = sound
    expected = WhisperFeatureExtractor()._np_extract_fbank_features(padded[None], "cpu")[0]
    assert np.abs(speech.log_mel(sound, 16_000) - expected).max() < 1e-3
    long = np.concatenate((padded, np.ones(16_000, np.float32)))
    assert np.array_equal(speech.log_mel(long, 16_000), speech.log_mel(padded, 16_000))  # 30 s, no more


@pytest.mark.parametrize("rate", [8_000, 22_050, 32_000, 44_100, 48_000])
def test_resampling_keeps_tones_and_drops_what_cannot_be_carried(rate):
    found = speech.resample(tone(700, 1.37, rate), rate, 16_000)
    expected = tone(700, 1.37, 16_000)
    assert abs(len(found) - len(expected)) <= 1 and found.dtype == np.float32
    inner = slice(1600, -1600)
    assert np.abs(found[: len(expected)] - expected[: len(found)])[inner].max() < 2e-3
    if rate > 22_050:
        assert np.abs(speech.resample(tone(9_500, 1, rate), rate, 16_000)[inner]).max() < 2e-3


def test_channels_are_averaged(tmp_path):
    import soundfile

    left, right = tone(500, 1, 16_000), tone(900, 1, 16_000)
    soundfile.write(tmp_path / "a.wav", np.stack((left, right), axis=1), 16_000, subtype="FLOAT")
    sound, rate = speech._read_sound(tmp_path / "a.wav")
    assert rate == 16_000 and np.allclose(sound, (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize("locale", ["de", "de-CH"])
def test_the_language_and_a_cached_tokenizer_of_another_whisper(tmp_path, network, locale):
    write_release(tmp_path, locale=locale)
    (tmp_path / "tokenizer.json").unlink()
    write_tokenizer(hub_folder("openai/whisper-small"), SPEECH)
    found = speech.common_voice("real", tmp_path)
    assert found[0]["labels"][:6].tolist() == [50261, 50359, 50363, 20, 24, 50257]
    assert "tokenizer of Whisper cached" in found.origin and not network


def test_common_voice_without_a_folder_or_a_tokenizer(tmp_path, network):
    why = "no folder was named, and only the Mozilla Data Collective gives it, by hand"
    assert speech.common_voice("auto").origin == f"stand-in for Common Voice: {why}"
    one_line_error(lambda: speech.common_voice("real"), f"Common Voice: no real data: {why}; name a local folder")
    assert not network
    write_release(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    found = speech.common_voice("auto", tmp_path)
    assert found.kind == "stand-in" and "tokenizer.json of openai/whisper-medium is not in the cache" in found.origin
    one_line_error(lambda: speech.common_voice("real", tmp_path), "no real data: tokenizer.json")


def test_unusable_releases(tmp_path):
    def fails(*fragments):
        one_line_error(lambda: speech.common_voice("auto", tmp_path), *fragments)

    fails("no train.tsv", "unpacked release")
    write_release(tmp_path)
    table = tmp_path / "train.tsv"
    content = table.read_text(encoding="utf-8")
    for changed, *fragments in (
        (content.replace("locale", "accent"), "columns", "expected path, sentence and locale"),
        (content.splitlines()[0], "no clips are listed"),
        (content[: content.rindex("bad")], "line 4 has no file name, sentence and locale"),
        (content.replace("common_voice_en_1", "../common_voice_en_1"), "line 3 has no file name"),
        (content.replace("\ten\t", "\tde\t", 1), "several languages (de, en)"),
        (content.replace("\ten\t", "\txx-Y\t"), "no token for the language 'xx-Y'"),
    ):
        table.write_text(changed, encoding="utf-8")
        fails("train.tsv", *fragments)
    table.write_bytes(content.encode() + b"\xff")
    fails("train.tsv", "damaged")
    table.write_text(content, encoding="utf-8")
    write_tokenizer(tmp_path)
    fails("tokenizer.json", "not the tokenizer of Whisper")
    write_tokenizer(tmp_path, SPEECH)
    for name in ("de", "fr"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.tsv").write_text(content, encoding="utf-8")
    fails("train.tsv is in several folders")
    table.unlink()
    (tmp_path / "de" / "train.tsv").unlink()
    fails("no folder clips beside", "fr/train.tsv")


def test_damaged_clips_are_one_line_that_names_the_file(tmp_path):
    import soundfile

    write_release(tmp_path)
    found = speech.common_voice("real", tmp_path)
    first, second, third = sorted((tmp_path / "clips").iterdir())
    first.write_bytes(b"<html>please log in</html>")
    second.unlink()
    third.unlink()
    soundfile.write(third.with_suffix(".wav"), np.zeros(0), 16_000)
    third.with_suffix(".wav").rename(third)
    for index, path in enumerate((first, second, third)):
        one_line_error(lambda index=index: found[index], path.name, "damaged")


def test_the_common_voice_stand_in():
    found = speech.common_voice("stand-in")
    assert found.kind == "stand-in" and found.origin == "stand-in for Common Voice: asked for"
    assert len(found) == speech.STAND_IN_CLIPS and len(speech.common_voice("stand-in", size=5)) == 5
    lengths = set()
    for index in (0, 1, 2, 17, len(found) - 1):
        features, labels = found[index]["input_features"], found[index]["labels"]
        assert features.shape == (80, 3000) and features.dtype == np.float32 and features.flags.c_contiguous
        assert features.min() == np.float32(-0.8) and 0.8 < features.max() <= np.float32(1.2)
        assert labels.shape == (32,) and labels.dtype == np.int64
        count = int((labels != -100).sum())
        assert (labels[count:] == -100).all() and labels[:3].tolist() == [50259, 50359, 50363]
        text = labels[3 : count - 1]
        assert labels[count - 1] == 50257 and len(text) and text.min() >= 0 and text.max() < 50257
        assert (features[:, 30 * len(text) :] == np.float32(-0.8)).all()
        again = speech.common_voice("stand-in", size=index + 1)[index]
        assert np.array_equal(again["input_features"], features) and np.array_equal(again["labels"], labels)
        lengths.add(count)
    assert len(lengths) > 2
    assert {len(speech.common_voice("stand-in", tokens=5)[index]["labels"]) for index in range(9)} == {5}


def test_the_common_voice_stand_in_can_be_learned_but_is_not_trivial():
    """The mean sound of each token in some clips, looked for in others."""
    pairs = []
    for index in range(1500):
        features, numbers = synthetic.speech(index, 28)
        pairs += [(int(n), features[:, 30 * place : 30 * place + 30].mean(1)) for place, n in enumerate(numbers)]
    train, test = pairs[: len(pairs) * 2 // 3], pairs[len(pairs) * 2 // 3 :]
    sums = {}
    for number, sound in train:
        sums.setdefault(number, []).append(sound)
    known = list(sums)
    means = np.stack([np.mean(sums[number], axis=0) for number in known])
    sounds = np.stack([sound for _, sound in test])
    nearest = np.argmax(sounds @ means.T - (means**2).sum(1) / 2, axis=1)
    right = np.mean([known[place] == number for place, (number, _) in zip(nearest, test, strict=True)])
    assert 0.2 < right < 0.8  # chance is below 0.02: the most frequent token's share


def test_batches_are_what_whisper_takes():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    batch = next(iter(torch.utils.data.DataLoader(speech.common_voice("stand-in"), 2)))
    assert batch["input_features"].shape == (2, 80, 3000) and batch["input_features"].dtype == torch.float32
    assert batch["labels"].shape == (2, 32) and batch["labels"].dtype == torch.int64
    sides = {f"{side}_{key}": 1 for side in ("encoder", "decoder") for key in ("layers", "attention_heads")}
    model = WhisperForConditionalGeneration(
        WhisperConfig(d_model=8, encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=51_865, **sides)
    )
    result = model(**batch)
    assert torch.isfinite(result.loss) and result.logits.shape == (2, 32, 51_865)


# --- Penn Treebank

LINES = {"train": [" no it was n't black monday ", " <unk> N "], "valid": [" it was "], "test": [" no <unk> "]}
WORDS = ("no", "it", "was", "n't", "black", "monday", "<eos>", "<unk>", "N")


def assert_small_treebank(found):
    assert found.words == WORDS and found.train.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 6]
    assert found.valid.tolist() == [1, 2, 6] and found.test.tolist() == [0, 7, 6] and found.train.dtype == np.int64
    assert found.kind == "real"
    assert "10 + 3 + 3 tokens, 9 words where the article has 929,589 + 73,760 + 82,430, 10,000" in found.origin


@pytest.mark.parametrize("place", ["", "simple-examples/data"])
def test_penn_treebank_from_text(tmp_path, network, place):
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for part, lines in LINES.items():
        (tmp_path / place / f"ptb.{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (tmp_path / place / f"ptb.char.{part}.txt").write_text("n o _ i t\n")
    assert_small_treebank(data_text.penn_treebank("auto", tmp_path))
    assert len(data_text.penn_treebank("real", tmp_path, size=2).train) == 2 and not network


def write_treebank_parquet(folder):
    for part, lines in LINES.items():
        path = folder / ("validation" if part == "valid" else part) / "0000.parquet"
        path.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"sentence": [line.strip() for line in lines]}), path)


def test_penn_treebank_from_parquet_and_from_the_cache(tmp_path, network):
    write_treebank_parquet(tmp_path)
    assert_small_treebank(data_text.penn_treebank("auto", tmp_path))
    write_treebank_parquet(
        hub_folder("ptb-text-only/ptb_text_only", "datasets", "refs/convert/parquet") / "penn_treebank"
    )
    found = data_text.penn_treebank("real")
    assert_small_treebank(found)
    assert "real: ptb-text-only/ptb_text_only (penn_treebank), cached;" in found.origin and not network


def test_unusable_treebank_folders(tmp_path):
    one_line_error(lambda: data_text.penn_treebank("auto", tmp_path), "nothing to read", "ptb.train.txt")
    for part in LINES:
        (tmp_path / f"ptb.{part}.txt").write_bytes(b"caf\xe9 \n" if part == "test" else b"it was\n")
    one_line_error(lambda: data_text.penn_treebank("auto", tmp_path), "ptb.test.txt", "damaged")
    (tmp_path / "ptb.test.txt").write_text("")
    one_line_error(lambda: data_text.penn_treebank("auto", tmp_path), "a part is empty", "'test': 0")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["it"]}), tmp_path / "train.parquet")
    one_line_error(lambda: data_text.penn_treebank("auto", tmp_path), "train.parquet", "expected sentence")


def test_the_treebank_stand_in_has_the_articles_counts():
    found = data_text.penn_treebank("stand-in")
    assert (len(found.train), len(found.valid), len(found.test)) == (929_589, 73_760, 82_430)
    assert found.vocabulary == 10_000 and len(set(found.words)) == 10_000 and "<eos>" in found.words
    assert np.array_equal(np.unique(found.train), np.arange(10_000))
    assert max(found.valid.max(), found.test.max()) < 10_000
    assert found.origin == "stand-in for Penn Treebank: asked for"
    assert np.array_equal(found.train, data_text.penn_treebank("stand-in").train)


def test_windows_of_running_text():
    tokens = np.arange(100, 111)
    inputs, targets = data_text.windows(tokens, 3)
    assert inputs.tolist() == [[100, 101, 102], [104, 105, 106]]
    assert targets.tolist() == [[101, 102, 103], [105, 106, 107]]
    inputs, targets = data_text.windows(tokens, 3, stride=1)
    assert inputs.tolist() == [[100 + k, 101 + k, 102 + k] for k in range(8)] and (targets == inputs + 1).all()
    assert np.shares_memory(inputs, tokens) and not inputs.flags.writeable
    inputs, targets = data_text.windows(tokens, 10)
    assert inputs.shape == (1, 10) and targets[0, -1] == 110
    assert data_text.windows(tokens, 3, stride=3)[0][:, 0].tolist() == [100, 103, 106]
    one_line_error(lambda: data_text.windows(tokens, 11), "11 tokens are too few for a context_size of 11")
    one_line_error(lambda: data_text.windows(tokens, 0), "at least 1")
    one_line_error(lambda: data_text.windows(tokens, 3, stride=0), "at least 1")


def test_windows_of_the_treebank():
    """Of 1,024 and a target: 929,589 // 1,025 without overlap, 929,589 - 1,024 at every place."""
    tokens = np.zeros(929_589, np.int64)
    assert len(data_text.windows(tokens, 1024)[0]) == 906 and len(data_text.windows(tokens, 1024, 1)[0]) == 928_565


# --- where it comes from, and workers


def test_stand_ins_ask_no_network(network):
    found = [
        data_text.imdb("stand-in", size=5),
        speech.common_voice("stand-in"),
        data_text.penn_treebank("stand-in"),
    ]
    assert {one.kind for one in found} == {"stand-in"} and not network


@pytest.mark.parametrize(
    ("load", "file"),
    [(data_text.imdb, "tokenizer.json"), (data_text.penn_treebank, "penn_treebank/train/0000.parquet")],
)
def test_without_network_auto_says_why_and_real_refuses(monkeypatch, network, load, file):
    found = load("auto", size=5)
    assert found.kind == "stand-in" and network
    assert f"{file} of " in found.origin
    assert "is not in the cache, and no connection to the Hugging Face hub (ConnectError)" in found.origin
    one_line_error(lambda: load("real"), "no real data", file, "name a local folder")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    network.clear()
    assert "HF_HUB_OFFLINE is set" in load("auto", size=5).origin and not network


@pytest.mark.parametrize(("dataset", "address"), [(True, "datasets/a/b/resolve"), (False, "a/b/resolve")])
def test_models_and_datasets_have_different_addresses(monkeypatch, dataset, address):
    import huggingface_hub

    class Session:
        def head(self, url, **_):
            assert url == f"{constants.ENDPOINT}/{address}/main/README.md"
            return self

        status_code = 200

    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    assert data_hub.hub_problem("a/b", dataset) is None


def test_a_file_of_the_hub_is_downloaded_where_it_answers(monkeypatch, tmp_path):
    import huggingface_hub

    asked = []

    def download(**where):
        asked.append(where)
        return str(tmp_path / "there")

    monkeypatch.setattr(data_hub, "hub_problem", lambda hub, dataset: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert data_hub.hub_file("openai-community/gpt2", "tokenizer.json") == (tmp_path / "there", "downloaded")
    assert asked == [
        {
            **{"repo_id": "openai-community/gpt2", "filename": "tokenizer.json", "repo_type": "model"},
            "revision": "main",
        }
    ]
    absent = huggingface_hub.errors.LocalEntryNotFoundError("gone")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda **_: (_ for _ in ()).throw(absent))
    found = data_text.imdb("auto", size=5)
    assert found.kind == "stand-in" and "the download failed (LocalEntryNotFoundError)" in found.origin


def test_spawned_workers_read_what_the_parent_reads(tmp_path):
    write_release(tmp_path)
    datasets = [
        speech.common_voice("stand-in", size=4),
        speech.common_voice("real", tmp_path),
        data_text.imdb("stand-in", size=4),
    ]
    # One worker for all of them, since one takes seconds to start; no batch has items of two.
    together, first, batches = torch.utils.data.ConcatDataset(datasets), 0, []
    for dataset in datasets:
        places = range(first, first := first + len(dataset))
        batches += [places[place : place + 2] for place in range(0, len(dataset), 2)]
    loader = torch.utils.data.DataLoader(
        together, batch_sampler=batches, num_workers=1, multiprocessing_context="spawn"
    )
    read = [
        {name: part[row] for name, part in batch.items()} for batch in loader for row in range(len(batch["labels"]))
    ]
    assert len(read) == first
    for dataset in datasets:
        copy, rows, read = pickle.loads(pickle.dumps(dataset)), read[: len(dataset)], read[len(dataset) :]
        assert len(rows) == len(dataset) == len(copy) > 1
        for index, row in enumerate(rows):
            for name, expected in dataset[index].items():
                assert np.array_equal(row[name].numpy(), expected) and np.array_equal(copy[index][name], expected)


def test_importing_and_stand_ins_take_no_framework():
    program = (
        "import sys, json; from pomology.data import text as corpora; corpora.imdb('stand-in', size=5); "
        "corpora.common_voice('stand-in')[0]; corpora.windows(corpora.penn_treebank('stand-in').train, 8); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = {*json.loads(done.stdout)}
    assert (
        not {"torch", "tensorflow", "mlx", "transformers", "tokenizers", "datasets", "pyarrow", "soundfile"} & modules
    )


def test_the_treebank_takes_no_framework_where_it_is_real(tmp_path):
    """The MLX notebook reads it, too."""
    write_treebank_parquet(tmp_path)
    program = (
        "import sys; from pomology.data import text as corpora; "
        "assert corpora.penn_treebank('real', sys.argv[1]).kind == 'real'; "
        "corpora.penn_treebank('auto'); print([*{'torch', 'transformers', 'jax'}.intersection(sys.modules)])"
    )
    environment = {**data_hub.os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, check=True, env=environment)
    assert done.stdout.strip() == b"[]"
