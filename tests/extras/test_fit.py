"""`pomology fit` compared with counts by hand, and its errors in one line."""

import json
import re
from pathlib import Path

import pytest

from pomology.__main__ import main
from pomology.articles import published
from pomology.extras.fit import answer, memory, networks
from pomology.extras.fit.answer import Place
from pomology.extras.fit.networks import Plan
from pomology.extras.prediction import devices
from pomology.measure.estimate import Estimate
from pomology.paths import read_csv, root

COUNTS = Path(__file__).parents[1] / "fixtures" / "fit_parameters.csv"
WIDTH, MLP, LAYERS, VOCABULARY, KEYS = 64, 128, 2, 100, 32  # keys: 2 of 4 heads of 16
SIZES = {"hidden_size": WIDTH, "intermediate_size": MLP, "num_hidden_layers": LAYERS}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
SIZES |= {"tie_word_embeddings": False, "architectures": ["LlamaForCausalLM"]}
MATRICES = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * KEYS + 3 * WIDTH * MLP)
PARAMETERS = 2 * VOCABULARY * WIDTH + MATRICES + LAYERS * 2 * WIDTH + WIDTH
SHORT = Plan("full", sequence=1, precision="fp32")  # the update needs most


@pytest.fixture
def tiny(tmp_path):
    """The path of a config.json of a Llama with two layers."""
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    return str(tmp_path / "config.json")


def test_each_model_of_the_table_has_the_parameters_counted_by_hand():
    counted = {row["name"]: int(row["parameters"]) for row in read_csv(COUNTS)}
    assert counted.keys() == networks.known().keys()
    for name, parameters in counted.items():
        network = networks.build(networks.find(name), Plan("full"))
        built = sum(weight.numel() for weight in network.parameters())
        assert built == pytest.approx(parameters, rel=1e-3), name


def test_weights_gradients_and_optimizer_are_those_counted_by_hand(tiny):
    need = memory.count(tiny, SHORT, "cpu")
    assert need.parameters == need.trained == PARAMETERS
    assert need.parts["weights"] == pytest.approx(4 * PARAMETERS, abs=256)  # and RoPE's buffers
    assert need.parts["gradients"] == 4 * PARAMETERS
    assert need.parts["optimizer"] == 8 * PARAMETERS + 4 * (LAYERS * 9 + 3)  # steps, per tensor
    sgd = memory.count(tiny, SHORT._replace(optimizer="sgd"), "cpu")
    assert sgd.parts["optimizer"] == 4 * PARAMETERS


def test_lora_trains_two_small_matrices_for_each_and_qlora_keeps_the_rest_in_4_bits(tiny):
    lora = memory.count(tiny, SHORT._replace(method="lora", rank=4), "cpu")
    adapters = LAYERS * 4 * ((WIDTH + WIDTH) + (WIDTH + KEYS))  # of q and v: r · (in + out)
    assert (lora.parameters, lora.trained) == (PARAMETERS, adapters)
    assert lora.parts["optimizer"] == 8 * adapters + 4 * LAYERS * 4
    last = SHORT._replace(method="lora", rank=4, layers=1, targets="o_proj,down_proj")
    assert memory.count(tiny, last, "cpu").trained == 4 * (2 * WIDTH + MLP + WIDTH)
    for framework, bits in networks.QUANTIZED_BITS.items():
        plan = SHORT._replace(method="qlora", rank=4, framework=framework)
        weights = 4 * (PARAMETERS - MATRICES + adapters) + MATRICES * bits / 8
        assert memory.count(tiny, plan, "cpu").parts["weights"] == pytest.approx(weights, abs=256)


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(("field", "near"), [("batch", 0), ("sequence", 0.05)])
def test_the_largest_that_fits_fits_and_the_next_does_not(tiny, field, near, method):
    plan = Plan(method, sequence=64, batch=4, precision="fp32")
    limit = memory.count(tiny, plan, "mps").bytes * 1.7
    place = Place("mps", None, limit, "")
    most = answer.largest(tiny, plan, place, field)
    sizes = (int(most * (1 - near)), int(most * (1 + near)) + 1)
    needs = [memory.count(tiny, plan._replace(**{field: n}), "mps").bytes for n in sizes]
    assert getattr(plan, field) < most and needs[0] <= limit < needs[1]
    assert answer.largest(tiny, plan, place._replace(limit=1.0), field) == 0


def test_only_what_saves_memory_is_offered(tiny):
    plan = Plan("full", sequence=512, precision="fp32")
    for changes, is_offered in (({}, True), ({"method": "qlora", "precision": "bf16"}, False)):
        lines = answer.helps(tiny, plan._replace(**changes), Place("cpu", None, None, ""))
        offered = {line.split(":")[0].strip() for line in lines}
        assert [name in offered for name in ("LoRA", "bf16")] == [is_offered] * 2
        assert "256 tokens" in offered


def test_the_answer_says_what_its_intervals_contained_as_the_page_does():
    page = (root() / "docs" / "fit.md").read_text(encoding="utf-8")
    row = re.search(r"^\| all \| (\d+) \| \d+ % \| \d+ % \| (\d+ %) \|", page, re.MULTILINE)
    assert f"such intervals contain {row[2]} of {row[1]} published speeds" == answer.COVERED


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        ("0.4 s/step", "0.40 times the prediction; are its sequences shorter"),
        ("0.52it/s", "1.9 times the prediction, within the interval"),
        ("80 tokens/s", "launches of small batches"),
        ("0.025 steps/s", "40 times the prediction; usual causes: memory that swaps"),
    ],
)
def test_an_observed_speed_is_judged(observed, words):
    observed_s = answer.step_time(observed, Plan(batch=2, sequence=100))
    assert words in answer.judged(Estimate(1.0, "s", 0.5, 2.0, "estimated"), observed_s)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("gpt3", "gpt3: no config.json, nor one of gpt2"),
        ("CONFIG", "expected JSON with `architectures`"),
        ("gpt2 --on M2", "--on M2: unknown device; similar names: "),
        ("gpt2 --memory lots", "--memory lots: expected a value such as 36GB"),
        ("gpt2 --tokens -3", "--tokens -3: expected a value such as 10M"),
        ("gpt2 --sequence 1025", "--sequence 1025: the model takes 1,024 at most"),
        ("gpt2 --rank 0", "--rank 0: expected at least 1"),
        ("gpt2 --observed fast", "--observed fast: expected a value such as 93 s/it"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, words, tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"]}')
    config = str(tmp_path / "config.json")
    given = [config if each == "CONFIG" else each for each in arguments.split()]
    assert main(["fit", *given]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said and "\n" not in said


def test_published_speeds_name_known_devices_and_models():
    for row in published.read("finetuning.csv"):
        assert row["source"].startswith("https://") and row["printed"], row
        assert row["device"] in {"", *devices.published_devices()}, row
        assert row["model"] in {"", *networks.known()}, row
        assert row["method"] in ("full", "lora", "qlora") and float(row["tokens_per_s"] or 1) > 0
