"""Names in the data that are similar to a name that people type."""

import pytest

from pomology.articles import names

MODELS = ["whisper-tiny", "bert-base", "bert-large", "gpt2", "gpt2-xl", "mistral-7b", "resnet50"]
SIMILAR = {
    "gpt3": ["gpt2", "gpt2-xl"],
    "Mixtral": ["mistral-7b"],
    "resnet": ["resnet50"],
    "bert": ["bert-base", "bert-large"],
    "distilbert": ["bert-base", "bert-large"],  # by the word, not by its letters
    "banana": [],
    "t5": [],
    "x": [],
    "": [],
}


@pytest.mark.parametrize("name", SIMILAR)
def test_only_similar_names_are_suggested(name):
    assert names.similar(name, MODELS) == SIMILAR[name]
    said = str(names.unknown(name, "model", MODELS, "pomology models"))
    assert said.startswith(f"{name}: unknown model; ")
    assert ("similar names: " in said) == bool(SIMILAR[name])
    assert said.endswith("; `pomology models` lists all")


def test_at_most_three_are_suggested_and_one_of_each_key():
    assert len(names.similar("gpt", [f"gpt-{number}" for number in range(9)])) == 3
    assert names.similar("A1", ["A 10 x", "A 10 y"], lambda name: name[:4]) == ["A 10 x"]


def test_texts_are_listed_in_words():
    assert names.listed(["a"]) == "a" and names.listed(["a", "b"], "and") == "a and b"
    assert names.listed(["a", "b", "c"]) == "a, b or c"


def test_a_number_after_a_letter_is_whole_in_a_filter():
    known = ["M60", "M6 Pro GPU", "RTX 4090"]
    assert names.containing("m6", known) == ["M6 Pro GPU"]
    assert names.containing("rtx 40", known) == ["RTX 4090"]
