"""Text and speech: forms, tokens, sound, damage, absence of network, the article's counts, and stand-ins to learn."""

import dataclasses
import hashlib
import pickle

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import soundfile
import tokenizers
from offline import cut_off, hub_folder, one_line_error

from pomology.data import images, speech
from pomology.data import text as data_text

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def network(monkeypatch, tmp_path_factory):
    return cut_off(monkeypatch, tmp_path_factory)


TEXT = {
    "train": " \n = An Apple = \n \n The apple <unk> is a fruit . \n",
    "valid": " The fruit \n",
    "test": " An apple \n \n",
}


def assert_small(real, counts):
    words = "<eos> = An Apple = <eos> <eos> The apple <unk> is a fruit . <eos>"
    assert " ".join(real.words[number] for number in real.train) == words
    assert [real.words[number] for number in real.valid] == ["The", "fruit", "<eos>"]
    assert [real.words[number] for number in real.test] == ["An", "apple", "<eos>", "<eos>"]
    assert real.vocabulary == 11 and real.train.dtype == np.int64 and real.kind == "real"
    assert f"15 + 3 + 4 tokens, 11 words where the article has {counts}" in real.origin


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


def write_texts(folder, texts, form):
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in texts.items():
        (folder / form.format(part)).write_text(content, encoding="utf-8")


def write_lines(folder, texts, form, column):
    """As parquet, a row a line, as the hub has them."""
    for part, content in texts.items():
        path = folder / form.format("validation" if part == "valid" else part)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [line.strip() for line in content.splitlines()]
        pyarrow.parquet.write_table(pyarrow.table({column: lines}), path)


def test_wikitext_from_parquet_and_from_the_cache(tmp_path, network):
    write_lines(tmp_path / "wikitext-2-v1", TEXT, "{}-00000-of-00001.parquet", "text")
    write_lines(tmp_path / "wikitext-2-raw-v1", dict.fromkeys(TEXT, "raw"), "{}-00000-of-00001.parquet", "text")
    counts = "2,088,628 + 217,646 + 245,569, 33,278"
    assert_small(data_text.wikitext2("real", tmp_path), counts)  # the article's variant
    for revision in ("main", data_text._WIKITEXT2.revision):  # what is published later is not taken for it
        assert data_text.wikitext2("auto").kind == "stand-in"
        cached = hub_folder("Salesforce/wikitext", "datasets", revision) / "wikitext-2-v1"
        write_lines(cached, TEXT, "{}-00000-of-00001.parquet", "text")
    network.clear()
    real = data_text.wikitext2("real")
    assert_small(real, counts)
    assert real.origin.startswith("WikiText-2, real: Salesforce/wikitext (wikitext-2-v1), cached;") and not network


def test_penn_treebank_from_text_from_parquet_and_from_the_cache(tmp_path, network, monkeypatch):
    place, counts = tmp_path / "text" / "simple-examples" / "data", "929,589 + 73,760 + 82,430, 10,000"
    write_texts(place, TEXT, "ptb.{}.txt")
    write_texts(place, dict.fromkeys(TEXT, "n o _ i t\n"), "ptb.char.{}.txt")
    assert_small(data_text.penn_treebank("auto", tmp_path / "text"), counts)
    cached = hub_folder("ptb-text-only/ptb_text_only", "datasets", "refs/convert/parquet") / "penn_treebank"
    write_lines(cached, TEXT, "{}/0000.parquet", "sentence")
    assert_small(data_text.penn_treebank("auto", cached), counts)
    assert "another text: MD5 of train" in data_text.penn_treebank("auto").origin  # nothing pins the hub's own branch
    sums = {
        part: md5("".join(f" {' '.join(line.split())} \n" for line in text.splitlines())) for part, text in TEXT.items()
    }
    monkeypatch.setattr(data_text, "_PENN_TREEBANK", dataclasses.replace(data_text._PENN_TREEBANK, md5=sums))
    real = data_text.penn_treebank("real")
    assert_small(real, counts)
    assert "real: ptb-text-only/ptb_text_only (penn_treebank), cached;" in real.origin and not network
    (cached / "test" / "0000.parquet").unlink()
    why = "penn_treebank/test/0000.parquet of ptb-text-only/ptb_text_only is not in the cache, and no"
    assert why in data_text.penn_treebank("auto").origin


def test_unusable_folders_of_text(tmp_path):
    def fails(*fragments):
        one_line_error(lambda: data_text.penn_treebank("auto", tmp_path), *fragments)

    write_texts(tmp_path, TEXT, "ptb.{}.txt")
    path = tmp_path / "ptb.valid.txt"
    path.write_text("")
    fails("a part is empty", "'valid': 0")
    path.write_bytes(b"half a letter \xe2\x80")
    fails(path.name, "damaged")
    path.unlink()
    fails("nothing to read", path.name)
    pyarrow.parquet.write_table(pyarrow.table({"words": ["it"]}), tmp_path / "train.parquet")
    fails("train.parquet", "expected sentence")


@pytest.mark.parametrize(
    ("load", "name"), [(data_text.wikitext2, "WikiText-2"), (data_text.penn_treebank, "Penn Treebank")]
)
def test_stand_ins_for_text(load, name):
    corpus, vocabulary = load("stand-in"), {"WikiText-2": 33_278, "Penn Treebank": 10_000}[name]
    counts = (2_088_628, 217_646, 245_569) if name == "WikiText-2" else (929_589, 73_760, 82_430)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == counts
    assert corpus.vocabulary == vocabulary == len(set(corpus.words)) and "<eos>" in corpus.words
    assert np.array_equal(np.unique(corpus.train), np.arange(vocabulary))
    for part in (corpus.train, corpus.valid, corpus.test):
        assert part.dtype == np.int64 and part.min() >= 0 and part.max() < vocabulary
    assert corpus.origin == f"stand-in for {name}: asked for"
    assert np.array_equal(corpus.train, load("stand-in").train)  # the same every time

    def bits(probability):
        return -np.log2(probability).mean()

    train, valid = corpus.train, corpus.valid  # pairs of words, counted in one, say more of the other than words do
    unigram = np.bincount(train, minlength=vocabulary) / len(train)
    pairs, times = np.unique(train[:-1] * vocabulary + train[1:], return_counts=True)
    asked = valid[:-1] * vocabulary + valid[1:]
    place = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    conditional = np.where(pairs[place] == asked, times[place], 0) / (unigram[valid[:-1]] * len(train))
    assert bits(0.8 * conditional + 0.2 * unigram[valid[1:]]) < bits(unigram[valid[1:]]) - 2


def test_batches_as_in_the_article():
    counts = []
    for tokens, batch_size in ((2_088_628, 20), (2_088_628, 200), (217_646, 10)):
        batches = data_text.LanguageBatches(data_text.batchify(np.zeros(tokens, np.int64), batch_size))
        shapes = [pair[0].shape for pair in batches]
        assert len(shapes) == len(batches)
        counts.append((len(batches), shapes[0], shapes[-1]))
    assert counts == [(2984, (35, 20), (25, 20)), (299, (35, 200), (12, 200)), (622, (35, 10), (28, 10))]
    columns = data_text.batchify(np.arange(23), 2)
    assert columns.tolist() == [[row, row + 11] for row in range(11)] and columns.flags.c_contiguous
    for convert in (np.asarray, torch.from_numpy):
        pairs = list(data_text.LanguageBatches(convert(columns), bptt=4))
        assert [len(inputs) for inputs, _ in pairs] == [4, 4, 2]
        assert all(target.tolist() == (inputs + 1).reshape(-1).tolist() for inputs, target in pairs)


def test_windows_of_running_text():
    tokens = np.arange(100, 111)
    inputs, targets = data_text.windows(tokens, 3)
    assert inputs.tolist() == [[100 + k, 101 + k, 102 + k] for k in range(8)] and (targets == inputs + 1).all()
    assert np.shares_memory(inputs, tokens) and not inputs.flags.writeable
    inputs, targets = data_text.windows(tokens, 10)
    assert inputs.shape == (1, 10) and targets[0, -1] == 110
    for size in (0, 11):
        one_line_error(lambda size=size: data_text.windows(tokens, size), f"context_size {size} should be 1 to 10")


# Bytes, then what two of them merge into; Ġ is the space in front of a word. "bad" is 20, " good" is 24.
PIECES = {"b": 0, "a": 1, "d": 2, "g": 3, "o": 4, "Ġ": 5, "ba": 10, "bad": 20, "go": 21, "od": 22, "Ġgo": 23}
PIECES |= {"Ġgood": 24, "<|endoftext|>": 50256}
MERGES = ["b a", "ba d", "o d", "g o", "Ġ go", "Ġgo od"]
SPEECH = PIECES | {"<|endoftext|>": 50257, "<|startoftranscript|>": 50258, "<|en|>": 50259, "<|de|>": 50261}
SPEECH |= {"<|transcribe|>": 50359, "<|notimestamps|>": 50363}


def write_tokenizer(folder, pieces=PIECES):
    """As published: with an end of text that the post-processor would add, and a padding that must not be used."""
    end = "<|endoftext|>"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(pieces, [tuple(merge.split()) for merge in MERGES]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ending = tokenizers.processors.TemplateProcessing(f"$A {end}", special_tokens=[(end, pieces[end])])
    tokenizer.post_processor = ending
    tokenizer.add_special_tokens([piece for piece in pieces if piece.startswith("<|")])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(direction="left", pad_id=pieces[end], pad_token=end, length=6)
    tokenizer.save(str(path := folder / "tokenizer.json"))
    return path


TEXTS = ["bad", "bad bad good", " good good", "good good bad", "bad good"]
NUMBERS = [[20], [20, 5, 20, 24], [24, 24], [21, 22, 24, 5, 20], [20, 24]]
LABELS = [0, 0, 1, 1, 0]


def assert_small_reviews(given):
    """Each row is one of the texts with its label, padded behind; each text is there once."""
    rows = []
    for tokens, mask, label in zip(given.tokens, given.mask, given.labels, strict=True):
        count = mask.sum()
        assert mask.tolist() == [1] * count + [0] * (4 - count) and tokens[count:].tolist() == [50256] * (4 - count)
        rows.append((tokens[:count].tolist(), label))
    assert sorted(rows) == sorted((numbers[:4], label) for numbers, label in zip(NUMBERS, LABELS, strict=True))
    assert given.tokens.dtype == given.mask.dtype == given.labels.dtype == np.int64
    assert given.kind == "real" and "5 reviews where the article has 25,000" in given.origin


def write_reviews(path, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS, "label": LABELS} | changes), path)


def test_imdb_from_a_folder(tmp_path, network):
    write_reviews(tmp_path / "plain_text" / "train-00000-of-00001.parquet")
    write_reviews(tmp_path / "plain_text" / "unsupervised-00000-of-00001.parquet", label=[-1] * 5)
    write_tokenizer(tmp_path / "plain_text")
    given = data_text.imdb("auto", tmp_path, length=4)
    assert_small_reviews(given)
    assert given.origin.startswith("IMDB, real: local folder; tokenizer of GPT-2 in the folder")
    assert not network and str(tmp_path) not in given.origin
    assert len(data_text.imdb("real", tmp_path, length=4, size=2)) == 2
    whole = data_text.imdb("real", tmp_path, length=9).tokens
    assert [21, 22, 24, 5, 20, *[50256] * 4] in whole.tolist()


def test_the_first_reviews_are_of_both_labels(tmp_path):
    write_reviews(tmp_path / "train.parquet", text=["bad"] * 500 + [" good"] * 500, label=[0] * 500 + [1] * 500)
    write_tokenizer(tmp_path)
    given = data_text.imdb("real", tmp_path, size=100)
    assert 30 < given.labels.sum() < 70 and np.array_equal(given.tokens[:, 0], np.where(given.labels, 24, 20))
    assert "the first 100 only" in given.origin and "1,000 reviews where" in given.origin
    assert np.array_equal(given.labels, data_text.imdb("real", tmp_path).labels[:100])


def test_imdb_from_the_cache(network):
    cached = hub_folder("stanfordnlp/imdb", "datasets", data_text._IMDB.revision)
    write_reviews(cached / "plain_text" / "train-00000-of-00001.parquet")
    given = data_text.imdb("auto", size=3)
    assert given.kind == "stand-in" and "tokenizer.json of openai-community/gpt2 is not in the cache" in given.origin
    network.clear()
    write_tokenizer(hub_folder("openai-community/gpt2", revision=data_text.GPT2_REVISION))
    given = data_text.imdb("auto", length=4)
    assert_small_reviews(given)
    assert given.origin.startswith("IMDB, real: stanfordnlp/imdb (plain_text), cached; tokenizer of GPT-2 cached")
    assert not network


def test_unusable_imdb_folders(tmp_path):
    def fails(*fragments):
        one_line_error(lambda: data_text.imdb("auto", tmp_path), *fragments)

    tokenizer = write_tokenizer(tmp_path)
    fails("nothing to read", "train*.parquet")
    path = tmp_path / "train.parquet"
    for labels in ([0, 1, 2, 0, 0], [0] * 5):
        write_reviews(path, label=labels)
        fails("train.parquet: labels should be 0 or 1, and reviews of both be there")
    pyarrow.parquet.write_table(pyarrow.table({"review": TEXTS}), path)
    fails("train.parquet", "expected text and label")
    path.write_bytes(path.read_bytes()[:-20])
    fails("train.parquet", "damaged")
    write_reviews(path)
    tokenizer.write_text(tokenizer.read_text()[:300])
    fails("tokenizer.json", "damaged or half downloaded")
    write_tokenizer(tmp_path, SPEECH)
    fails("<|endoftext|> is 50257, should be 50256: not the tokenizer of GPT-2")


def test_wrong_parameters():
    one_line_error(lambda: images.mnist("fake"), "auto, real, stand-in")
    one_line_error(lambda: images.mnist(split="valid"), "train, test")
    one_line_error(lambda: data_text.imdb("stand-in", length=0), "at least 1 token")
    one_line_error(lambda: data_text.wikitext2("stand-in", size=0), "at least 1")


def naive_bayes_accuracy(given, count):
    """Of the last reviews, learned from the first `count`."""
    tokens, labels, later = given.tokens[:count], given.labels[:count], slice(20_000, None)
    counts = [np.bincount(tokens[labels == label].ravel(), minlength=50_257) + 1 for label in (0, 1)]
    weight = np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())
    return (((weight[given.tokens[later]] * given.mask[later]).sum(1) > 0) == given.labels[later]).mean()


def test_the_stand_in_for_imdb():
    given = data_text.imdb("stand-in")
    assert given.tokens.shape == given.mask.shape == (25_000, 128) and len(given) == 25_000
    assert given.tokens.dtype == given.mask.dtype == given.labels.dtype == np.int64
    assert given.tokens.min() >= 0 and given.tokens.max() == 50_256 and given.labels.sum() == 12_500
    assert ((given.tokens == 50_256) == (given.mask == 0)).all()  # the end of text pads, and is nowhere else
    assert (np.diff(given.mask, axis=1) <= 0).all() and given.mask.sum(1).min() >= 10
    assert 0.85 < given.mask.all(axis=1).mean() < 0.95
    assert len({row.tobytes() for row in given.tokens}) == 25_000
    # the labels follow neither from the place nor from the length
    assert abs(given.labels[::2].mean() - 0.5) < 0.02
    assert abs(np.corrcoef(given.mask.sum(1), given.labels)[0, 1]) < 0.02
    for size in (1, 5000):  # the same every time, and for every size
        again = data_text.imdb("stand-in", size=size)
        assert np.array_equal(again.tokens, given.tokens[:size]) and np.array_equal(again.labels, given.labels[:size])
    assert data_text.imdb("stand-in", length=7, size=30).mask.all()
    # it can be learned, but not from a hundred reviews
    assert 0.75 < naive_bayes_accuracy(given, 20_000) < 0.9 and naive_bayes_accuracy(given, 100) < 0.75


SENTENCES = ["bad good", '"bad,', "bad" + " good" * 30]  # PIECES has neither quote nor comma: they are left out


def tone(hertz, seconds, rate, level=0.3):
    return level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def write_release(folder, sentences=SENTENCES, locale="en", form="MP3", rate=32_000):
    """A release with tones of 500, 1000, 2000 Hz, a second long."""
    (folder / "clips").mkdir(parents=True)
    lines = ["client_id\tpath\tsentence_id\tsentence\tup_votes\tlocale\tsegment"]
    for number, sentence in enumerate(sentences):
        name = f"common_voice_{locale}_{number}.{form.lower()}"
        soundfile.write(folder / "clips" / name, tone(500 * 2**number, 1, rate), rate, format=form)
        lines.append(f"c0ffee\t{name}\t{number}\t{sentence}\t2\t{locale}\t")
    (folder / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_tokenizer(folder, SPEECH)
    return folder


@pytest.mark.parametrize(("place", "form"), [("en", "WAV"), ("cv-corpus-21.0-2025-03-14/en", "MP3")])
def test_common_voice_from_a_release(tmp_path, monkeypatch, network, place, form):
    write_release(tmp_path / place, form=form)
    monkeypatch.setattr(speech, "TOKENS", 8)
    given = speech.common_voice("auto", tmp_path)
    assert len(given) == 3 and given.kind == "real"
    assert given.origin == "Common Voice, real: local folder; tokenizer of Whisper in the folder"
    items = [given[index] for index in range(3)]
    prefix = [50259, 50359, 50363]
    assert [item["labels"].tolist() for item in items] == [
        [*prefix, 20, 24, 50257, -100, -100],
        [*prefix, 20, 50257, -100, -100, -100],
        [*prefix, 20, 24, 24, 24, 50257],  # cut, with its end
    ]
    for number, item in enumerate(items):
        features = item["input_features"]
        assert features.shape == (80, 3000) and features.dtype == np.float32 and item["labels"].dtype == np.int64
        assert np.median(features[:, 200:]) == pytest.approx(features.min())  # silence behind the second of sound
        heard = features[:, 20:80].mean(1).argmax()
        # Slaney's scale: 80 bands over 0 to 45.2 mel (8 kHz), linear (200 / 3 Hz a mel) up to 1 kHz, then logarithmic
        mel = (7.5, 15, 15 + 27 * np.log(2) / np.log(6.4))[number]
        assert abs(heard - (mel / (15 + 27 * np.log(8) / np.log(6.4)) * 81 - 1)) < 1.5
    assert not network and len(speech.common_voice("real", tmp_path, size=2)) == 2
    with pytest.raises(IndexError):
        given[3]


@pytest.mark.parametrize("rate", [8_000, 48_000])
def test_resampling_keeps_tones_and_drops_what_cannot_be_carried(rate):
    given = speech.resample(tone(700, 1.37, rate), rate, 16_000)
    expected = tone(700, 1.37, 16_000)
    assert abs(len(given) - len(expected)) <= 1 and given.dtype == np.float32
    inner = slice(1600, -1600)
    assert np.abs(given[: len(expected)] - expected[: len(given)])[inner].max() < 2e-3
    if rate > 16_000:
        assert np.abs(speech.resample(tone(9_500, 1, rate), rate, 16_000)[inner]).max() < 2e-3


def test_common_voice_without_a_folder_or_a_tokenizer(tmp_path, network):
    why = "no folder was named, and only the Mozilla Data Collective gives it, by hand"
    assert speech.common_voice("auto").origin == f"stand-in for Common Voice: {why}"
    one_line_error(lambda: speech.common_voice("real"), f"Common Voice: no real data: {why}; name a local folder")
    write_release(tmp_path, locale="de-CH")
    (tmp_path / "tokenizer.json").unlink()
    write_tokenizer(hub_folder("openai/whisper-tiny"), SPEECH)  # what is published later is not taken for it
    assert speech.common_voice("auto", tmp_path).kind == "stand-in"
    pinned = hub_folder("openai/whisper-tiny", revision=speech._REVISION)
    write_tokenizer(pinned, SPEECH)
    network.clear()
    given = speech.common_voice("real", tmp_path)
    assert given[0]["labels"][:6].tolist() == [50261, 50359, 50363, 20, 24, 50257]
    assert "tokenizer of Whisper cached" in given.origin and not network
    (pinned / "tokenizer.json").unlink()
    given = speech.common_voice("auto", tmp_path)
    assert given.kind == "stand-in" and "tokenizer.json of openai/whisper-tiny is not in the cache" in given.origin


def test_unusable_releases(tmp_path):
    def fails(*fragments):
        one_line_error(lambda: speech.common_voice("auto", tmp_path), *fragments)

    fails("no train.tsv", "unpacked release")
    write_release(tmp_path)
    table = tmp_path / "train.tsv"
    content = table.read_text(encoding="utf-8")
    for changed, *fragments in (
        (content.replace("locale", "accent"), "line 2 has no file name, sentence and locale"),
        (content[: content.rindex("bad")], "line 4 has no file name, sentence and locale"),
        (content.replace("common_voice_en_1", "../common_voice_en_1"), "line 3 has no file name"),
        (content.replace("\ten\t", "\tde\t", 1), "2 languages ['de', 'en']"),
        (content.splitlines()[0] + "\n", "0 languages"),
        (content.replace("\ten\t", "\txx-Y\t"), "no token for the language 'xx-Y'"),
    ):
        table.write_text(changed, encoding="utf-8")
        fails("train.tsv", *fragments)
    table.write_text(content, encoding="utf-8")
    write_tokenizer(tmp_path)
    fails("tokenizer.json", "not the tokenizer of Whisper")
    write_tokenizer(tmp_path, SPEECH)
    (tmp_path / "de").mkdir()
    (tmp_path / "de" / "train.tsv").write_text(content, encoding="utf-8")
    fails("train.tsv in several folders")


def test_damaged_clips_are_one_line_that_names_the_file(tmp_path):
    write_release(tmp_path)
    given = speech.common_voice("real", tmp_path)
    first, second, third = sorted((tmp_path / "clips").iterdir())
    first.write_bytes(b"<html>please log in</html>")
    second.unlink()
    soundfile.write(third, np.zeros(0), 16_000, format="WAV")
    for index, path in enumerate((first, second, third)):
        one_line_error(lambda index=index: given[index], path.name, "damaged")


def test_the_common_voice_stand_in():
    given = speech.common_voice("stand-in")
    assert given.kind == "stand-in" and given.origin == "stand-in for Common Voice: asked for"
    assert len(given) == speech.STAND_IN_CLIPS and len(speech.common_voice("stand-in", size=5)) == 5
    lengths = set()
    for index in (0, 1, 2, 17, len(given) - 1):
        features, labels = given[index]["input_features"], given[index]["labels"]
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


def test_what_a_worker_is_sent_reads_the_same(tmp_path):
    write_release(tmp_path)
    real = speech.common_voice("real", tmp_path)
    for dataset in (speech.common_voice("stand-in", size=3), real, data_text.imdb("stand-in", size=3)):
        copy = pickle.loads(pickle.dumps(dataset))
        for index in range(len(dataset)):
            for name, expected in dataset[index].items():
                assert np.array_equal(copy[index][name], expected)
