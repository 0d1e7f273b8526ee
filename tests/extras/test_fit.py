"""`pomology fit` compared with counts by hand, and its errors in one line."""

import json
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pomology.__main__ import main
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.fit import (
    answer,
    counts,
    listing,
    networks,
    offers,
    operators,
    paces,
    published_runs,
)
from pomology.extras.fit.offers import TrainingDevice
from pomology.extras.fit.plan import Plan
from pomology.extras.prediction import devices
from pomology.measure.estimate import Estimate
from pomology.models import cost
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
    listed = {row["name"]: int(row["parameters"]) for row in networks.rows()}
    assert counted.keys() == networks.configurations().keys() == listed.keys()
    for name, parameters in counted.items():
        network = networks.build(networks.find(name), Plan("full"), "cpu")
        built = sum(weight.numel() for weight in network.parameters())
        assert built == pytest.approx(parameters, rel=1e-3), name
        assert built == listed[name], name


def test_weights_gradients_and_optimizer_are_those_counted_by_hand(tiny):
    need = counts.need(tiny, SHORT, "cpu")
    assert need.parameters == need.trained == PARAMETERS
    assert need.parts["weights"] == pytest.approx(4 * PARAMETERS, abs=256)  # and RoPE's buffers
    assert need.parts["gradients"] == 4 * PARAMETERS
    assert need.parts["optimizer"] == 8 * PARAMETERS + 4 * (LAYERS * 9 + 3)  # steps, per tensor
    sgd = counts.need(tiny, SHORT._replace(optimizer="sgd"), "cpu")
    assert sgd.parts["optimizer"] == 4 * PARAMETERS


def test_lora_trains_two_small_matrices_for_each_and_qlora_keeps_the_rest_in_4_bits(tiny):
    lora = counts.need(tiny, SHORT._replace(method="lora", rank=4), "cpu")
    adapters = LAYERS * 4 * ((WIDTH + WIDTH) + (WIDTH + KEYS))  # of q and v: r · (in + out)
    assert (lora.parameters, lora.trained) == (PARAMETERS, adapters)
    assert lora.parts["optimizer"] == 8 * adapters + 4 * LAYERS * 4
    last = SHORT._replace(method="lora", rank=4, layers=1, targets="o_proj,down_proj")
    assert counts.need(tiny, last, "cpu").trained == 4 * (2 * WIDTH + MLP + WIDTH)
    # bitsandbytes leaves embedding and output; mlx-lm leaves norms alone.
    norms = (2 * LAYERS + 1) * WIDTH
    for framework, bits, others in (("torch", 4.127, PARAMETERS - MATRICES), ("mlx", 4.5, norms)):
        plan = SHORT._replace(method="qlora", rank=4, framework=framework, targets="q_proj,v_proj")
        weights = 4 * (others + adapters) + (PARAMETERS - others) * bits / 8
        assert counts.need(tiny, plan, "cpu").parts["weights"] == pytest.approx(weights, abs=256)


# Adapters of rank 8 of a block in mlx-lm 0.32.2, by hand: 8 · (in + out) of each matrix, of each
# expert; and all in the last 16 blocks.
QWEN3_BLOCK = 8 * (2048 + 4096) * 2 + 8 * (2048 + 512) * 2 + 8 * (2048 + 128)
QWEN3_BLOCK += 3 * 128 * 8 * (2048 + 768)
GPT_OSS_BLOCK = 8 * (2880 + 4096) * 2 + 8 * (2880 + 512) * 2 + 8 * (2880 + 32)
GPT_OSS_BLOCK += 3 * 32 * 8 * (2880 + 2880)
MIXTRAL_BLOCK = 8 * (4096 + 4096) * 2 + 8 * (4096 + 1024) * 2 + 8 * (4096 + 8)
MIXTRAL_BLOCK += 3 * 8 * 8 * (4096 + 14336)


@pytest.mark.parametrize(
    ("name", "block", "router"),
    [
        ("qwen3-30b-a3b", QWEN3_BLOCK, "gate"),
        ("gpt-oss-20b", GPT_OSS_BLOCK, "router"),
        ("mixtral-8x7b", MIXTRAL_BLOCK, "gate"),
    ],
)
def test_in_mlx_routers_and_experts_have_adapters(name, block, router, capsys):
    assert QWEN3_BLOCK == 8_650_752 + 17_408 + 139_264
    asked = ["fit", name, "--on=M3 Max", "--memory=64GB", "--framework=mlx", "--method=qlora"]
    assert main(asked) in (0, 1)
    said = capsys.readouterr().out
    assert f" of the last 16 blocks: {16 * block:,} of " in said
    assert router in re.search(r"rank 8 on (.*) of the last", said)[1].split(", ")
    assert "experts have no adapters" not in said
    need = counts.need(name, Plan("qlora", framework="mlx"), "mps")
    # Two states in fp32, and a number of steps for each of the tensors.
    assert need.parts["optimizer"] == pytest.approx(8 * 16 * block, rel=1e-4)


# Bytes of weights in mlx-lm's 4 bits, by hand: 4.5 bits an element, routers 8.5 (not Mixtral's),
# experts of gpt-oss 4.25, norms and biases 16; adapters of rank 8 in fp32.
@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("llama-3.1-8b", 8_030_261_248 * 4.5 / 8 + 4 * 10_485_760),
        ("gemma-3-4b", 3_880_099_328 * 4.5 / 8 + 4 * 7_012_352),
        ("qwen3-30b-a3b", 30_532_122_624 * 4.5 / 8 + 4 * 16 * QWEN3_BLOCK),
        (
            "gpt-oss-20b",
            24 * 32 * 3 * 2880 * 2880 * 4.25 / 8
            + (20_914_757_184 - 24 * 32 * 3 * 2880 * 2880) * 4.5 / 8
            + 4 * 16 * GPT_OSS_BLOCK,
        ),
    ],
)
def test_mlx_quantizes_embeddings_and_the_output_too(name, weights):
    need = counts.need(name, Plan("qlora", framework="mlx"), "mps")
    assert need.parts["weights"] == pytest.approx(weights, rel=2e-3)


SMALL_MOE = {"hidden_size": 128, "intermediate_size": 192, "moe_intermediate_size": 64}
SMALL_MOE |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL_MOE |= {"head_dim": 32, "vocab_size": 256, "tie_word_embeddings": False}
SMALL_MOE |= {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
BUILT = """
import json, sys
sys.modules["torch"] = None
from mlx.utils import tree_flatten
from pomology.extras.fit import training_mlx
from pomology.extras.fit.plan import Plan
from pomology.extras.fit.truncated import Blocks
network = training_mlx.build(json.loads(sys.argv[1]), Plan("qlora", framework="mlx"), Blocks(2))
print(sum(each.size for _, each in tree_flatten(network.trainable_parameters())))
print(sum(each.nbytes for _, each in tree_flatten(network.parameters())))
"""


@pytest.mark.parametrize(
    "architecture", ["Qwen3MoeForCausalLM", "MixtralForCausalLM", "GptOssForCausalLM"]
)
def test_what_is_measured_in_mlx_has_the_weights_that_are_counted(architecture):
    """mlx-lm's own model, its adapters and its quantization."""
    pytest.importorskip("mlx_lm")
    config = networks.full_configuration(SMALL_MOE | {"architectures": [architecture]})
    command = [sys.executable, "-P", "-c", BUILT, json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    trained, weights = map(int, done.stdout.split())
    plan = Plan("qlora", framework="mlx")
    need = counts.count(config, plan, "mps").need(plan)
    assert need.trained == trained
    assert need.parts["weights"] == pytest.approx(weights, abs=1000)  # and RoPE's buffers


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("field", ["batch", "sequence"])
def test_the_largest_that_fits_fits_and_the_next_does_not(tiny, field, method):
    plan = Plan(method, sequence=64, batch=4, precision="fp32")
    limit = counts.need(tiny, plan, "mps").bytes * 1.7
    device = TrainingDevice("mps", None, limit, "")
    most = answer.largest(tiny, plan, device, field)
    sizes = (most, most + 1)
    needs = [counts.need(tiny, plan._replace(**{field: n}), "mps").bytes for n in sizes]
    assert getattr(plan, field) < most and needs[0] <= limit < needs[1]
    assert answer.largest(tiny, plan, device._replace(limit=1.0), field) == 0


BERT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
BERT |= {"vocab_size": 100, "num_attention_heads": 4, "max_position_embeddings": 96}
BERT |= {"architectures": ["BertForSequenceClassification"]}
WHISPER = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4}
WHISPER |= {"decoder_attention_heads": 4, "vocab_size": 100, "max_target_positions": 96}
WHISPER |= {"pad_token_id": 0, "architectures": ["WhisperForConditionalGeneration"]}


OPT = {"hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
OPT |= {"vocab_size": 100, "word_embed_proj_dim": 64, "max_position_embeddings": 96}
OPT |= {"architectures": ["OPTForCausalLM"]}


@pytest.mark.parametrize("sizes", [BERT, WHISPER, OPT], ids=["bert", "whisper", "opt"])
def test_a_model_at_its_longest_sequence_has_an_answer(sizes, tmp_path, capsys):
    """No longer one is counted, which such a model does not run."""
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert main(["fit", str(tmp_path / "config.json")]) == 0
    said = capsys.readouterr().out
    assert "longest sequence at batch 1: 96 tokens" in said


# Sizes of text models in files of models of texts and images -> their parameters, by hand.
QWEN3_VL = {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
QWEN3_VL |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
QWEN3_VL |= {"vocab_size": 151936, "max_position_embeddings": 262144}
QWEN3_VL |= {"rope_scaling": {"mrope_section": [24, 20, 20], "rope_type": "default"}}
QWEN25_VL = {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36}
QWEN25_VL |= {"num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936}
QWEN25_VL |= {"max_position_embeddings": 128000}
QWEN25_VL |= {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
FOUR, THREE = 4_022_468_096, 3_085_938_688
TIED = {"tie_word_embeddings": True, "vision_config": {"depth": 24, "hidden_size": 1024}}
WITH_IMAGES = {
    "nested": (
        "Qwen3VLForConditionalGeneration",
        {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"} | QWEN3_VL},
        FOUR,
    ),
    "nested 2.5": (
        "Qwen2_5_VLForConditionalGeneration",
        {"model_type": "qwen2_5_vl", "text_config": {"model_type": "qwen2_5_vl_text"} | QWEN25_VL},
        THREE,
    ),
    "flat": (
        "Qwen2_5_VLForConditionalGeneration",
        {"model_type": "qwen2_5_vl"} | QWEN25_VL,
        THREE,
    ),
}


@pytest.mark.parametrize("kind", WITH_IMAGES)
def test_of_a_model_of_texts_and_images_the_text_model_is_counted(kind, tmp_path, capsys):
    architecture, sizes, parameters = WITH_IMAGES[kind]
    config = {"architectures": [architecture]} | TIED | sizes
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["fit", str(tmp_path), "--on=rtx 4090", "--checkpointing"]) == 0
    said = capsys.readouterr()
    assert f" of {parameters:,} parameters trained" in said.out and not said.err
    assert "counted: the text model alone, without images" in said.out


@pytest.mark.parametrize(
    ("architecture", "sizes", "text"),
    [
        ("MllamaForConditionalGeneration", {"text_config": {}}, "without a model_type"),
        (
            "MllamaForConditionalGeneration",
            {"text_config": {"model_type": "mllama_text_model"}},
            "mllama_text_model",
        ),
        (
            "Glm4vForConditionalGeneration",
            {"text_config": {"model_type": "glm4v_text"}},
            "glm4v_text",
        ),
        ("Phi4MultimodalForCausalLM", {"vision_config": {}}, "Phi4MultimodalForCausalLM"),
        ("Qwen2_5OmniForConditionalGeneration", {"thinker_config": {}}, "Qwen2_5Omni"),
    ],
)
def test_a_text_model_without_a_class_is_one_line(architecture, sizes, text, tmp_path, capsys):
    """No other model is counted in its place."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]} | sizes))
    assert main(["fit", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert text in said and "has no class for its text model alone" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("architecture", "kind", "words"),
    [
        ("GPT2LMHeadModel", "gpt2", "longest sequence at batch 1: 1,024 tokens"),
        ("BertForMaskedLM", "bert", "longest sequence at batch 1: 512 tokens"),
        ("ViTForImageClassification", "vit", "1 × 197 tokens"),
    ],
)
def test_a_file_without_sizes_has_those_of_its_class(architecture, kind, words, tmp_path, capsys):
    config = {"architectures": [architecture], "model_type": kind}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["fit", str(tmp_path), "--on=T4"]) == 0
    assert words in capsys.readouterr().out


def test_the_sequence_of_an_image_is_its_patches(capsys):
    """A ViT with patches of 16 pixels: 14 by 14, and the class token."""
    assert main(["fit", "vit-base", "--on=T4"]) == 0
    said = capsys.readouterr().out
    assert "1 × 197 tokens" in said and "longest sequence" not in said
    assert main(["fit", "vit-base", "--on=T4", "--sequence=100"]) == 2
    assert "--sequence 100: an image is 197 patches here" in capsys.readouterr().err


ARCHITECTURES = {row["architecture"]: row["name"] for row in reversed(networks.rows())}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_lora_of_every_architecture_comes_without_a_warning(name):
    networks.build(networks.find(name), Plan("lora"), "cpu")


def test_the_answer_is_all_that_is_printed(tiny):
    command = [sys.executable, "-m", "pomology", "fit", tiny, "--sequence", "64"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"fits: LoRA of {Path(tiny).parent.name} needs ")
    assert f" of {PARAMETERS:,} parameters" in done.stdout and not done.stderr


# Of commands as people type them: what the answer says.
ANSWERS = {
    # Of a T4's 15.6 × 10^9 bytes a batch of 27 needs 15.4 with CUDA's reserve, one of 28 15.9.
    "gpt2 --method full --precision fp32 --sequence 256 --on T4": "256 tokens: 27;",
    "llama-3.1-8b --method full --on H100": "does not fit: training llama-3.1-8b needs 80.3 GB, "
    "about 89.1 GB with CUDA's context and fragmentation, 106 % of 84.2 GB",
    "llama-3.1-8b --on 'M4 Pro' --memory 24GB": "what fits: QLoRA in MLX + checkpointing: ",
    "Mistral-7B-v0.1 --method full --batch 4 --sequence 4096 --checkpointing --on 'A100 80 GB'": (
        "tight: training mistral-7b needs 72.4 GB"
    ),
    "mistral-7b --method qlora --batch 4 --sequence 4096 --checkpointing --rank 16 "
    "--targets q_proj,k_proj,v_proj,o_proj --on 'A100 80 GB'": "needs 20.7 GB",
    "qwen2.5-0.5b --framework mlx --on M4 --memory 16gb": "2,932,736 of 494,032,768 parameters",
    "qwen2.5-0.5b --framework mlx --layers 4 --on M4 --memory 16gb": "733,184 of 494,032,768",
}


# GB that PyTorch reports of cards with GiB of a power of two: T4 14.56 GiB, L40S 44.42, RTX 4090
# 23.52 to 23.68, A100 79.14 to 79.25.
@pytest.mark.parametrize(
    ("on", "reported"),
    [
        ("T4", (15.6, 15.7)),
        ("L40S", (47.6, 47.8)),
        ("rtx 4090", (25.2, 25.5)),
        ("A100 80 GB SXM", (84.1, 85.1)),
        ("GB10", (108, 110)),
    ],
)
def test_a_program_gets_of_a_card_what_a_system_reports(on, reported):
    where = answer.training_device(options_of(on=on))
    assert reported[0] <= where.limit / 1e9 <= reported[1]
    assert where.limited_by.startswith("what a program gets of ")


def test_more_than_a_card_with_the_reserve_does_not_fit_as_the_shown_share_says(capsys):
    """Also of what is offered instead, and of the largest batch and sequence."""
    for options in ("--checkpointing", "", "--sequence=4096"):
        assert main(["fit", "qwen3-8b", "--on=rtx 4090", *options.split()]) == 0
        said = capsys.readouterr().out
        share = int(re.search(r"fragmentation, (\d+) % of 25\.3 GB", said)[1])
        assert share > 100 and said.startswith("does not fit: ")
        assert int(re.search(r"with CUDA's, (\d+) %", said)[1]) <= 100
        assert "largest batch of " in said and " tokens: 0; " in said


@pytest.mark.parametrize("typed", ANSWERS)
def test_an_answer_has_the_right_value(typed, capsys):
    """Peaks of A100s: published, 72.43 and 20.67 GB; the trained parameters: mlx-lm's own log."""
    assert main(["fit", *shlex.split(typed)]) == 0
    assert ANSWERS[typed] in capsys.readouterr().out


def test_the_offer_is_a_command_that_fits(capsys):
    asked = ["fit", "qwen2.5-7b", "--method=full", "--on=rtx 3090", "--tokens=10m"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith("does not fit: training qwen2.5-7b needs 7")
    pattern = r"^what fits: (.*)\n(  10,000,000 tokens: .*)\n  pomology (fit .*)$"
    (offer,) = re.findall(pattern, said, re.MULTILINE)
    assert offer[0].startswith("QLoRA + checkpointing: ") and "--tokens 10m" in offer[2]
    assert main(shlex.split(offer[2])) == 0
    again = capsys.readouterr().out
    assert offer[1] in again
    assert again.startswith("fits: QLoRA of qwen2.5-7b needs") and "what fits" not in again


def test_experts_are_in_16_bits_where_the_installed_software_leaves_them_so(capsys):
    """In the answer, in what is offered, and in the table; MLX has them in 4 bits."""
    assert main(["fit", "qwen3-30b-a3b", "--method=qlora", "--checkpointing", "--on=L40S"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("does not fit: ") and networks.EXPERTS_IN_16_BITS in said
    assert main(["fit", "gpt-oss-20b", "--on=A100 80 GB", "--batch=8"]) == 0
    said = capsys.readouterr().out
    assert "what fits" in said and "experts have no adapters" in said
    for options, is_16 in (("--on=H200", True), ("--on=M4 --memory=128GB --framework=mlx", False)):
        assert main(["fit", "--table", "mixtral", *options.split()]) == 0
        said = capsys.readouterr().out
        assert (networks.EXPERTS_IN_16_BITS in said) is is_16
    assert "QLoRA mixtral-8x7b" in said


@pytest.fixture
def counted(monkeypatch):
    """The plans that are counted, and not stored."""
    plans = []
    count = counts.count

    def counting(config, plan, backend):
        plans.append(plan)
        return count(config, plan, backend)

    monkeypatch.setattr(counts, "count", counting)
    return plans


def test_default_matrices_that_are_named_are_not_counted_anew(counted, capsys):
    assert main(["fit", "llama-3.1-8b", "--on=RTX4090", "--targets=q_proj, v_proj"]) == 0
    named = capsys.readouterr().out
    assert counted == [] and "rank 8 on q_proj, v_proj: 3,407,872 of" in named
    assert main(["fit", "llama-3.1-8b", "--on=RTX4090"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == named.splitlines()[0]


def test_a_change_whose_weights_alone_do_not_fit_is_not_counted(counted, capsys):
    assert main(["fit", "gpt-oss-20b", "--on=RTX4090", "--dropout=0.2"]) == 1
    said = capsys.readouterr().out
    assert [plan.method for plan in counted] == ["lora"] and "nothing fits" in said
    assert networks.EXPERTS_IN_16_BITS in said


def test_a_change_that_does_not_fit_by_one_step_is_not_counted(tiny, counted):
    Path(tiny).write_text(json.dumps(SIZES | {"hidden_size": 256, "intermediate_size": 512}))
    plan = Plan("full", sequence=256, precision="fp32")
    adapted = plan._replace(method="lora", checkpointing=True)
    limit = counts.need(tiny, adapted, "mps").bytes / cost.ROOM + 1
    need = counts.need(tiny, plan, "mps")
    assert [each.method for each in counted] == ["lora", "full"]
    offer = offers.cheapest(tiny, plan, TrainingDevice("mps", None, limit, ""), need)
    assert offer.plan == adapted and len(counted) == 2


def of_key(key):
    """The model, the plan and the backend of a key of the table."""
    name, backend, *changed = key.split()
    default = Plan()._asdict()
    values = dict(field.split("=") for field in changed)
    return name, Plan(**{each: type(default[each])(text) for each, text in values.items()}), backend


def test_the_least_bytes_are_fewer_than_any_counted_step_needs():
    """Those of weights and, in full fine-tunings, of gradients and states."""
    for key, stored in counts.table().items():
        name, plan, backend = of_key(key)
        assert counts.key(name, plan, backend) == key
        need = stored.need(plan._replace(batch=1, sequence=1, rank=1))
        for known in (need, None):
            assert 0 < offers.least(name, plan, known) < need.bytes, key


@pytest.mark.parametrize(
    ("plan", "share"),
    [
        (Plan("full", sequence=1, amp=True), 0.9),
        (Plan("full", sequence=1, precision="fp32", optimizer="sgd"), 0.9),
        (Plan("full", sequence=1, optimizer="adamw8bit"), 0.9),
        (Plan("full", sequence=1, precision="fp16", optimizer="paged-adamw8bit"), 0.9),
        (Plan(sequence=1, amp=True), 0.6),
        (Plan("qlora", sequence=1, precision="fp32", upcast=True), 0.2),
    ],
)
def test_the_least_bytes_of_a_file_are_a_part_of_those_of_its_first_count(plan, share, tiny):
    assert offers.least(tiny, plan, None) == 0
    need = counts.need(tiny, plan, "cpu")
    assert share < offers.least(tiny, plan, need) / need.bytes < 1


STEPS = [
    ("cuda", Plan("full", optimizer="adamw8bit", checkpointing=True)),
    ("cuda", Plan("qlora", upcast=True, loss="fused")),
    ("mps", Plan("qlora", framework="mlx", checkpointing=True)),
    ("cpu", Plan(amp=True, dropout=0.1)),
]


@pytest.mark.parametrize(("backend", "plan"), STEPS)
def test_one_step_has_the_bytes_that_are_counted(backend, plan, tiny):
    """Or fewer: a batch of one is copied less often, and the parts of a loss are of equal size."""
    for tokens in (2048, 777):
        one = plan._replace(sequence=tokens)
        ratio = counts.bytes_of_step(tiny, one, backend) / counts.need(tiny, one, backend).bytes
        assert 0.99 < ratio < 1.001


def test_more_and_longer_sequences_need_more():
    """What a short one needs tells of all others."""
    shapes = [(1, offers.SHORTEST), (1, 2048), (4, 2048)]
    for key, stored in counts.table().items():
        plan = of_key(key)[1]
        needs = [stored.need(plan._replace(batch=b, sequence=s)).bytes for b, s in shapes]
        assert needs[1] <= needs[2] and needs[0] < 1.001 * needs[1], key  # images are all as long


def test_remembered_calls_of_operators_change_no_count(tiny, monkeypatch):
    class Forgetful(dict):
        def get(self, key):
            return None

    sizes = networks.find(tiny)
    remembered = [counts.count(sizes, plan, backend) for backend, plan in STEPS[::2]]
    monkeypatch.setattr(operators, "_calls", Forgetful())
    assert [counts.count(sizes, plan, backend) for backend, plan in STEPS[::2]] == remembered


def test_no_model_of_the_table_is_refused_as_recurrent():
    for config in networks.configurations().values():
        words = [config["architectures"][0], *config]
        assert not [word for word in words if any(r in word.lower() for r in counts.RECURRENT)]


def test_where_nothing_fits_the_status_is_1(capsys):
    assert main(["fit", "qwen-72b", "--on=T4"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("does not fit") and "\nnothing fits: not even QLoRA" in said


@pytest.mark.parametrize(
    ("asked", "offer"),
    [
        # Checkpointing alone fits, too, and is slower; so does a batch of one.
        ("bert-large --method full --batch 128", "batch 16 with 8 passes an update: "),
        ("vit-large --batch 256", "batch 64 with 4 passes an update: "),
        ("gpt2 --batch 300", "batch 6 with 50 passes an update: "),
    ],
)
def test_the_offer_is_the_fastest_of_the_least_changes(asked, offer, capsys):
    assert main(["fit", *asked.split(), "--on=T4"]) == 0
    assert f"what fits: {offer}" in capsys.readouterr().out


def test_other_software_is_offered_before_a_shorter_sequence(tiny):
    """Liger's loss, and no casts to fp32."""
    Path(tiny).write_text(json.dumps(SIZES | {"vocab_size": 20_000}))
    plan = Plan("qlora", sequence=8192, checkpointing=True, upcast=True)
    where = TrainingDevice("cuda", None, 0.9 * counts.need(tiny, plan, "cuda").bytes, "")
    offer = offers.cheapest(tiny, plan, where)
    assert offer.verdict == offers.FITS and offer.plan.sequence == 8192
    assert offers.words(plan, offer.plan) == "fused loss"
    assert offers.words(plan, plan._replace(upcast=False)) == "no casts to fp32"
    assert offers.words(plan, plan._replace(upcast=False), "cpu") == ""


def test_without_pytorch_the_offer_is_of_the_stored_counts(monkeypatch):
    def missing(*_):
        raise ImportError

    monkeypatch.setattr(counts, "count", missing)
    where = answer.training_device(options_of(on="rtx 5080"))
    offer = offers.cheapest("gemma-3-12b", Plan(), where).plan
    assert (offer.sequence, offer.loss, offer.upcast) == (2048, "fused", False)
    # Of smaller models the counts have no other loss, so that the sequence becomes shorter.
    stored = Plan("qlora", checkpointing=True, upcast=True)
    limit = counts.need("gemma-3-1b", stored, "cuda").bytes
    offer = offers.cheapest("gemma-3-1b", Plan(), TrainingDevice("cuda", None, limit, "")).plan
    assert (offer.sequence, offer.loss) == (1024, "default")


def test_on_a_mac_qlora_is_mlx_lms_which_the_offered_command_says(capsys):
    asked = ["fit", "qwen2.5-7b", "--on=M4", "--memory=16GB"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    (offer,) = re.findall(r"^what fits: (QLoRA in MLX .*): .*\n  pomology (fit .*)$", said, re.M)
    assert "--framework mlx" in offer[1] and "--no-upcast" not in offer[1]
    assert main(shlex.split(offer[1])) == 0
    assert capsys.readouterr().out.startswith("fits: QLoRA of qwen2.5-7b ")
    assert main([*asked, "--method=qlora"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("does not run: QLoRA of qwen2.5-7b in PyTorch on a Mac: ")
    assert offers.NO_KERNELS in said.splitlines()[0] and "\nwhat fits: QLoRA in MLX" in said
    assert main(["fit", "--table", "gpt2", "--on=M4", "--memory=16GB"]) == 0
    assert offers.NO_KERNELS in capsys.readouterr().out
    # mlx-lm has no model of images.
    assert main(["fit", "vit-large", "--on=M4", "--memory=16GB", "--batch=512"]) == 0
    assert "MLX" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "offer"),
    [
        ("llama-3.1-8b --method qlora --memory 128GB", "what fits: QLoRA in MLX: "),
        ("gpt2 --method full --optimizer adamw8bit --memory 16GB", "what fits: plain AdamW: "),
        ("gpt2 --method full --optimizer paged-adamw8bit", "what runs: plain AdamW: "),
        ("vit-base --method qlora --memory 16GB", "what fits: LoRA: "),
        ("deepseek-v2-lite --method qlora --memory 128GB", "what fits: LoRA: "),
    ],
)
def test_what_needs_bitsandbytes_does_not_run_on_a_mac(typed, offer, capsys):
    """The first line says so, and the offered command runs."""
    assert main(["fit", *shlex.split(typed), "--on=M4 Max"]) == 0
    said = capsys.readouterr().out
    first, second = said.splitlines()[:2]
    assert first.startswith("does not run: ") and first.endswith(offers.NO_KERNELS)
    assert second.startswith(offer) and "fits: QLoRA of" not in said
    (command,) = re.findall(r"^  pomology (fit .*)$", said, re.MULTILINE)
    assert main(shlex.split(command)) == 0
    again = capsys.readouterr().out
    assert again.startswith(("fits: ", "unknown: ", "tight: ")), again


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("unsloth/Meta-Llama-3.1-8B-bnb-4bit", "--method=qlora --on=A100"),
        ("mlx-community/gemma-3-4b-it-4bit", "--method=qlora --framework=mlx --on=M4"),
    ],
)
def test_with_qlora_the_note_on_quantized_weights_advises_nothing(name, options, capsys):
    assert main(["fit", name, *options.split()]) in (0, 1)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{name}: taken as ") and last.endswith(", in 4 bits")


@pytest.mark.parametrize(
    ("name", "is_said"),
    [("google/gemma-3-4b-it", True), ("gemma-3-12b", True), ("gemma-3-1b", False)],
)
def test_the_text_model_alone_is_named(name, is_said, capsys):
    assert main(["fit", name, "--on=A100 80 GB"]) == 0
    assert (networks.TEXT_ALONE in capsys.readouterr().out) is is_said


@pytest.mark.parametrize("on", ["m4 max 128gb", "Apple M4 Max 128 GB", "MacBook Pro M4 Max 128GB"])
def test_the_memory_of_a_mac_may_stand_in_its_name(on, capsys):
    where = answer.training_device(options_of(on=on))
    assert where.limit == answer.metal_limit(128 * 2**30)
    assert where.device.name == "M4 Max GPU (40 cores)"  # with 32 cores it has 36 GB
    apart = answer.training_device(options_of(on="M4 Max", memory="36GB"))
    assert apart.device.name == "M4 Max GPU (32 cores)" and "Macs with 36 GB" in apart.note
    assert answer.training_device(options_of(on=on, memory="128GB")).limit == where.limit
    with pytest.raises(PomologyError, match="expected one memory"):
        answer.training_device(options_of(on=on, memory="64GB"))


def test_mlx_trains_weights_in_4_bits_as_they_are(tmp_path, capsys):
    asked = ["--framework=mlx", "--on=M4", "--memory=24GB", "--batch=1"]
    assert main(["fit", "mlx-community/Qwen3-8B-4bit", *asked]) == 0
    said = capsys.readouterr().out
    assert "QLoRA of qwen3-8b needs" in said and "in 4 bits, as mlx-lm trains it" in said
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"quantization": {"bits": 4}}))
    assert main(["fit", str(tmp_path), *asked]) == 0
    assert capsys.readouterr().out.startswith("fits: QLoRA of ")
    assert main(["fit", "mlx-community/Qwen3-8B-8bit", *asked]) == 0
    assert " LoRA of qwen3-8b needs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("on", "without"),
    [("T4", True), ("M1", True), ("M2 Max", True), ("M4", False), ("A100 40 GB", False)],
)
def test_a_chip_without_bf16_is_named(on, without, capsys):
    assert main(["fit", "gpt2", f"--on={on}"]) == 0
    assert ("has no arithmetic in bf16" in capsys.readouterr().out) is without
    assert main(["fit", "--table", "gpt2", f"--on={on}"]) == 0
    assert ("has no arithmetic in bf16" in capsys.readouterr().out) is without
    assert main(["fit", "gpt2", "--precision=fp16", f"--on={on}"]) == 0
    assert "bf16" not in capsys.readouterr().out


def test_a_training_has_at_least_one_step(capsys):
    assert main(["fit", "gpt2", "--on=T4", "--tokens=1"]) == 0
    assert "  1 tokens: 0 s" not in capsys.readouterr().out


def test_divisors_are_all_batches_that_keep_the_sequences_of_an_update():
    assert offers.divisors(12) == [12, 6, 4, 3, 2, 1] and offers.divisors(1) == [1]


@pytest.mark.long
def test_a_change_is_offered_only_where_it_keeps_more(tiny):
    """Of changes that fit, those that keep the result; then LoRA, before shorter texts."""
    plan = Plan("full", sequence=512, batch=4, precision="fp32")
    smaller = plan._replace(batch=1, accumulation=4)
    checkpointed = smaller._replace(checkpointing=True)
    adapted = checkpointed._replace(method="lora")
    for fitting in (smaller, checkpointed, adapted):
        limit = counts.need(tiny, fitting, "mps").bytes / cost.ROOM + 1
        where = TrainingDevice("mps", None, limit, "")
        assert offers.cheapest(tiny, plan, where).plan == fitting
    assert offers.cheapest(tiny, plan, where._replace(limit=limit / 2)).plan.sequence == 256


# Peak bytes that were measured, and the step: GPT-2 by PyTorch's allocator on a CPU, the others by
# `max_memory_allocated` on an A100 (fms-acceleration, scripts/benchmarks/refs @876e2ed).
QKVO = "q_proj,k_proj,v_proj,o_proj"
LONG = {"batch": 4, "sequence": 4096, "checkpointing": True, "rank": 16, "targets": QKVO}
POWERLM = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 40}
POWERLM |= {"num_attention_heads": 36, "num_key_value_heads": 36, "vocab_size": 49152}
POWERLM |= {"tie_word_embeddings": True, "architectures": ["GraniteForCausalLM"]}
MIXTRAL = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
MIXTRAL |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
MIXTRAL |= {"num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False}
MIXTRAL |= {"architectures": ["MixtralForCausalLM"]}
QWEN3_MOE = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 48}
QWEN3_MOE |= {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
QWEN3_MOE |= {"vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8}
QWEN3_MOE |= {"tie_word_embeddings": False, "architectures": ["Qwen3MoeForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "plan", "backend", "parameters", "peak", "within"),
    [
        ("gpt2", Plan("full", batch=2, sequence=256, amp=True), "cpu", 124_439_808, 2.610e9, 1e-3),
        (POWERLM, Plan(**LONG), "cuda", 3_510_819_072, 20.17e9, 0.01),
        (POWERLM, Plan("qlora", upcast=True, **LONG), "cuda", 3_510_819_072, 18.17e9, 0.03),
        (MIXTRAL, Plan("qlora", small_experts=True, **LONG), "cuda", 46_702_792_704, 36.73e9, 0.01),
        (QWEN3_MOE, Plan("qlora", small_experts=True), "cuda", 30_532_122_624, None, 16.7e9),
        (QWEN3_MOE, Plan("qlora"), "cuda", 30_532_122_624, None, 59.7e9),
        (QWEN3_MOE, Plan("qlora", upcast=True), "cuda", 30_532_122_624, None, 60.9e9),
        ("gpt-oss-20b", Plan("qlora", small_experts=True), "cuda", 20_914_757_184, None, 13.5e9),
    ],
    ids=[
        *("gpt2 amp", "powerlm lora", "powerlm upcast", "mixtral"),
        *("qwen3 moe", "qwen3 moe today", "qwen3 moe upcast", "gpt-oss"),
    ],
)
def test_a_count_is_near_a_measured_peak(config, plan, backend, parameters, peak, within):
    """within: the share of a peak; without a peak the bytes of weights, by hand."""
    settings = networks.find(config) if isinstance(config, str) else config
    counted = counts.count(settings, plan, backend)
    need = counted.need(plan)
    assert need.parameters == parameters
    if peak:
        assert need.bytes == pytest.approx(peak, rel=within)
    else:
        assert need.parts["weights"] == pytest.approx(within, rel=0.03)


@pytest.mark.parametrize("backend", ["cuda", "mps"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_short_model_stands_for_a_deep_one(method, backend):
    """Seven blocks are counted as five of which one counts three times."""
    deep = SIZES | {"num_hidden_layers": 7}
    plan = Plan(method, sequence=96, batch=3, checkpointing=True, precision="fp32")
    whole = counts.ShortModel(deep, plan, backend)
    assert (whole.times, len(whole.network.get_submodule(whole.blocks))) == (3, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "SHORT", 100)
        every = counts.count(deep, plan, backend)
    short = counts.count(deep, plan, backend)
    for shape in ({}, {"batch": 1, "sequence": 500}, {"rank": 64}):
        ours, theirs = (each.need(plan._replace(**shape)) for each in (short, every))
        assert ours.bytes == pytest.approx(theirs.bytes, rel=1e-6)
        assert ours.work == pytest.approx(theirs.work, rel=1e-6)
        assert (ours.parameters, ours.trained) == (theirs.parameters, theirs.trained)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_gradients_of_the_passes_before_are_there_all_the_time(tiny, monkeypatch, method):
    """As in steps that begin with them."""
    resident = counts.ShortModel._note_resident

    def with_gradients(model, notes):
        resident(model, notes)
        for name, weight in model.trained.items():
            weight.grad = torch.zeros_like(weight)
            notes.allocated(weight.grad, "gradients", model._is_middle(name))

    several = Plan(method, sequence=256, batch=2, checkpointing=True, accumulation=2)
    derived = counts.count(networks.find(tiny), several, "mps")
    monkeypatch.setattr(counts.ShortModel, "_note_resident", with_gradients)
    counted = counts.count(networks.find(tiny), several, "mps")
    for shape in ({}, {"batch": 1, "sequence": 64}, {"batch": 1, "sequence": 8192}):
        once = several._replace(accumulation=1, **shape)
        ours = derived.need(several._replace(**shape))
        assert ours.bytes == pytest.approx(counted.need(once).bytes, rel=1e-3)
        assert ours.bytes >= derived.need(once).bytes
        assert ours.work["flops"] == 2 * derived.need(once).work["flops"]


def test_bytes_are_of_the_passes_and_an_update_has_its_launches(tiny):
    """A fused update moves less than its operators, and `answer.predicted` counts it."""
    passes = {}
    for optimizer in ("sgd", "adamw"):
        passes[optimizer] = counts.need(tiny, SHORT._replace(optimizer=optimizer), "mps").work
    assert passes["sgd"]["bytes"] == passes["adamw"]["bytes"]
    assert passes["sgd"]["launches"] < passes["adamw"]["launches"]


@pytest.mark.parametrize(
    ("memory", "limit"),
    [(16, 12.71), (24, 19.07), (36, 28.99), (48, 40.20), (64, 55.66), (128, 115.45)],
)
def test_a_macs_limit_is_metals(memory, limit):
    assert answer.metal_limit(memory * 2**30) == pytest.approx(limit * 1e9, rel=1e-3)
    assert 0.8 < answer.metal_limit(96 * 2**30) / (96 * 2**30) < 0.85


TABLED = sorted(counts.table())  # written by `setup/fit.py counts`


# Whisper has two lists of blocks, so that all of its blocks are counted.
SLOW = ("whisper-large", "whisper-medium", "whisper-small", "moe", "deepseek")
LARGE = [key for key in TABLED if any(name in key for name in SLOW)]
SAMPLE = random.Random(1).sample(sorted(set(TABLED) - set(LARGE)), min(4, len(TABLED)))


@pytest.mark.parametrize(
    "key", [*SAMPLE, *(pytest.param(key, marks=pytest.mark.long) for key in LARGE[:1])]
)
def test_the_table_has_the_counts_of_today(key):
    """Some of its lines; a large model takes 20 s, a large Whisper 40 s."""
    name, backend, *_ = key.split()
    (row,) = (row for row in networks.rows() if row["name"] == name)
    (plan,) = (plan for at, plan in counts.tabled(row) if counts.key(name, plan, at) == key)
    kept, now = counts.table()[key], counts.count(networks.find(name), plan, backend)
    assert kept.parameters == now.parameters and kept.matrices == now.matrices
    for shape in ({"batch": 1}, {"batch": 4, "sequence": 4096, "rank": 32}):
        some = plan._replace(**shape)
        assert kept.need(some).bytes == pytest.approx(now.need(some).bytes, rel=1e-3)


def test_every_model_of_the_table_has_all_its_counts():
    """The larger Whispers, whose two lists of blocks are counted whole, are when asked for."""
    keys = {
        counts.key(row["name"], plan, at)
        for row in networks.rows()
        for at, plan in counts.tabled(row)
    }
    sheets = devices.published_devices()
    published_keys = {
        counts.key(row["model"], published_runs.planned(row), sheets[row["device"]].backend)
        for row in published_runs.lora()
        if row["device"] in sheets
    }
    missing = {key.split()[0] for key in keys - counts.table().keys()}
    assert counts.table().keys() <= keys | published_keys
    assert published_keys <= counts.table().keys() and missing <= {
        "whisper-medium",
        "whisper-large-v2",
        "whisper-large-v3",
    }


@pytest.mark.parametrize(
    "typed",
    [
        "'Qwen3 8B' --on 'RTX 3060'",
        "gpt-oss-20b --on 'RTX 5090' --method qlora",
        "gemma3:12b --on 'RTX 5080'",
        "Mixtral --on H100 --method qlora",
        "'DeepSeek V2 Lite' --on L40S",
        "'Llama 3.1 70B' --on 'M4 Max' --memory 128GB --method qlora",
        "gpt2 --method qlora --on 'M4 Max' --memory 128GB",
    ],
)
def test_nothing_is_counted_for_a_model_of_the_table(typed, monkeypatch, capsys):
    """Neither for the plan, nor for what is offered in its place, nor for that command."""

    def missing(config, plan, backend):
        raise AssertionError(plan)

    monkeypatch.setattr(counts, "count", missing)
    counts._of_any_shape.cache_clear()
    assert main(["fit", *shlex.split(typed)]) in (0, 1)
    offered = re.findall(r"^  pomology (fit .*)$", capsys.readouterr().out, re.MULTILINE)
    for command in offered:
        assert main(shlex.split(command)) == 0


def test_the_answer_says_what_its_intervals_contained_as_the_page_does():
    page = (root() / "docs" / "fit.md").read_text(encoding="utf-8")
    row = re.search(
        r"^\| all \| (\d+) \| (\d+ %) \| (\d+ %) \| \d+ \((\d+ %)\) \|", page, re.MULTILINE
    )
    shares = f"{row[3]} are within 30 %, {row[4]} in such intervals"
    assert f"of {row[1]} published speeds {shares}" == paces.covered("")
    assert float(row[2].split()[0]) <= 18  # of sources that it was not fitted to
    for name in ("Apple", "NVIDIA"):
        line = rf"^\| {name} \| (\d+) \| \d+ % \| (\d+ %) \| \d+ \((\d+ %)\) \|"
        row = re.search(line, page, re.MULTILINE)
        shares = f"{row[2]} are within 30 %, {row[3]} in such intervals"
        said = f"of {row[1]} published speeds of {name} GPUs {shares}"
        assert paces.covered(name.lower()) == said


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
    pace = paces.Pace(Estimate(1.0, "s", 0.5, 2.0, "estimated"), "")
    assert words in answer.judged(pace, observed_s, "mps")
    assert "PYTORCH_ENABLE_MPS_FALLBACK" not in answer.judged(pace, observed_s, "cuda")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("gpt3", "gpt3: unknown model, and no path of a config.json; similar names: gpt2, "),
        ("banana", "banana: unknown model, and no path of a config.json; `pomology models` lists"),
        ("distilbert", "similar names: bert-base, bert-large; `pomology models` lists all"),
        ("CONFIG", " has no NoSuchModel, which may have code of its own"),
        ("BROKEN", "broken.json: no JSON: "),
        ("KEYLESS", "keyless.json: expected the key `architectures`, a list with the name of a"),
        ("HEADLESS", "headless.json: LlamaModel has no loss; expected a class such as Llama"),
        ("MAMBA", "MambaForCausalLM: this architecture is not counted: its operators depend on"),
        ("JAMBA", "JambaForCausalLM: this architecture is not counted: its operators depend on"),
        ("RWKV", "RwkvForCausalLM: this architecture is not counted: its operators depend on"),
        ("deepseek-v2-lite --layers 4 --on T4", "its first blocks are of another kind; expected"),
        ("gpt2 --layers 100", "--layers 100: the model has 12 blocks"),
        ("gpt2 --no-upcast", "--no-upcast: expected --method qlora in PyTorch"),
        ("gpt2 --method full --rank 16", "--rank 16: expected --method lora or qlora, not full"),
        ("gpt2 --framework mlx --on T4", "--framework mlx: expected an Apple chip, not --on T4"),
        ("gpt2 --framework mlx --amp", "--framework mlx: mlx-lm has no --amp and no other --loss"),
        ("gpt2 --framework mlx --loss fused", "mlx-lm has no --amp and no other --loss"),
        ("bert-base --framework mlx --on M4", "mlx-lm trains language models, no BertFor"),
        ("vit-base --framework mlx --on M4", "mlx-lm trains language models, no ViTFor"),
        ("whisper-tiny --framework mlx --on M4", "mlx-lm trains language models, no Whisper"),
        ("deepseek-v2-lite --framework mlx --on M4", "DeepseekV2ForCausalLM: its first blocks"),
        ("gpt2 --on M9", "--on M9: unknown device; `pomology devices` lists all"),
        ("gpt2 --on MI300X", "--on MI300X: MI300X has no data sheet; similar names: MI100"),
        ("gpt2 --on M5_Max", "--on M5_Max: M5 Max GPU has no data sheet"),
        ("gpt2 --on MacBook", "--on MacBook: names no device; expected a model, such as"),
        ("gpt2 --on GPU", "--on GPU: names no device; expected a model, such as 'RTX 4090'"),
        ("gpt2 --on cpu", "--on cpu: no CPU has a data sheet"),
        ("gpt2 --sequence 0", "--sequence 0: expected at least 1"),
        ("gpt2 --on L40", "`pomology devices` lists all"),
        ("gpt2 --memory lots", "--memory lots: expected a value such as 36GB"),
        ("gpt2 --tokens -3", "--tokens -3: expected a value such as 10M"),
        ("gpt2 --sequence 1025", "--sequence 1025: the model takes 1,024 at most"),
        ("gpt2 --rank 0", "--rank 0: expected at least 1"),
        ("gpt2 --rank 100000000", "--rank 100000000: expected at most 768, the model's width"),
        ("gpt2 --rank 769 --on M4", "--rank 769: expected at most 768, the model's width"),
        ("gpt2 --batch 1000000000000000000000000000000", "expected at most 1,000,000,000"),
        ("gpt2 --layers -1", "--layers -1: expected 0, for all blocks, or more"),
        ("gpt2 --dropout 1", "--dropout 1: expected a share from 0 to below 1"),
        ("gpt2 --targets q_proj", "--targets q_proj: no matrix of this model; expected some of c_"),
        ("gpt2 --amp --precision fp32", "--amp: expected --precision bf16 or fp16"),
        ("gpt2 --amp --method qlora", "--amp: QLoRA keeps its weights in 4 bits"),
        ("gpt2 --observed fast", "--observed fast: expected a value such as 93 s/it"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, words, tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"]}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "keyless.json").write_text("{}")
    (tmp_path / "headless.json").write_text('{"architectures": ["LlamaModel"]}')
    mamba = {"architectures": ["MambaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64}
    (tmp_path / "mamba.json").write_text(json.dumps(mamba | {"vocab_size": 100}))
    for name in ("Jamba", "Rwkv"):
        other = mamba | {"architectures": [f"{name}ForCausalLM"]}
        (tmp_path / f"{name.lower()}.json").write_text(json.dumps(other))
    files = {each.stem.upper(): str(each) for each in tmp_path.glob("*.json")}
    given = [files.get(each, each) for each in arguments.split()]
    assert main(["fit", *given]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said and "\n" not in said


def test_published_speeds_name_known_devices_and_models():
    for row in published.read("finetuning.csv"):
        assert row["source"].startswith("https://") and row["printed"], row
        assert row["device"] in {"", *devices.published_devices()}, row
        assert row["model"] in {"", *networks.configurations()}, row
        assert row["method"] in ("full", "lora", "qlora") and float(row["tokens_per_s"] or 1) > 0


# What people type -> the model of models.csv.
TYPED = {
    "qwen2.5-0.5b": "qwen2.5-0.5b",
    "Qwen2.5 0.5B": "qwen2.5-0.5b",
    "Qwen/Qwen2.5-0.5B": "qwen2.5-0.5b",
    "Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5-0.5b",
    "Qwen3-8B-Base": "qwen3-8b",
    "Llama 3.1 8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Meta Llama 3 8B": "llama-3-8b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "google/gemma-3-12b-it": "gemma-3-12b",
    "deepseek-ai/DeepSeek-V2-Lite-Chat": "deepseek-v2-lite",
    "meta-llama/Llama-2-7b-chat-hf": "llama-2-7b",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "google/gemma-2-2b-it": "gemma-2-2b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3",
    "Phi-3-mini-4k-instruct": "phi-3-mini",
    "GPT-2 XL": "gpt2-xl",
    "openai/whisper-large-v3": "whisper-large-v3",
    "BERT base": "bert-base",
    "google-bert/bert-base-uncased": "bert-base",
    "google/vit-base-patch16-224": "vit-base",
    "Qwen/Qwen-1_8B": "qwen-1.8b",
    "Qwen/Qwen-1_8B-Chat": "qwen-1.8b",
    "GPT-2 small": "gpt2",
    "gpt2-small": "gpt2",
    "GPT-2 124M": "gpt2",
    "ViT-B/16": "vit-base",
    "vit_l_16": "vit-large",
    "mistralai/Mistral-7B-Instruct-v0.2": "mistral-7b",
    "llama3.1:8b": "llama-3.1-8b",
    "Google Gemma 2 2B": "gemma-2-2b",
    "microsoft phi 4": "phi-4",
    "openai/whisper-large": "whisper-large-v2",
    "mlx-community/Meta-Llama-3.1-8B-Instruct-bf16": "llama-3.1-8b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "llama-3.1-8b",
}
LONGER = "which takes 40,960 tokens instead of 262,144"
QUANTIZED = "not quantized; `fit --method qlora` keeps its weights in 4 bits"
# A name of a model with other weights or of several models -> the model, and the end of the note.
TAKEN = {
    "unsloth/Llama-3.2-1B-Instruct-bnb-4bit": ("llama-3.2-1b", QUANTIZED),
    "mlx-community/Qwen3-8B-4bit": ("qwen3-8b", QUANTIZED),
    "mlx-community/Qwen2.5-0.5B-4bit": ("qwen2.5-0.5b", QUANTIZED),
    "TheBloke/Llama-2-7B-Chat-GPTQ": ("llama-2-7b", QUANTIZED),
    "llama3.2:1b-instruct-q4_K_M": ("llama-3.2-1b", QUANTIZED),
    "Llama 3 8bit": ("llama-3-8b", f"the only size listed, {QUANTIZED}"),
    "TinyLlama": ("tinyllama-1.1b", "the only size listed"),
    "Mixtral": ("mixtral-8x7b", "the only size listed"),
    "Phi 3": ("phi-3-mini", "the only size listed"),
    "Llama 3": ("llama-3-8b", "the only size listed"),
    "meta-llama/Llama-3.1": (
        "llama-3.1-8b",
        "the smallest listed; say 'llama-3.1-70b' for the other",
    ),
    "whisper turbo": ("whisper-large-v3-turbo", "the only size listed"),
    "bert": ("bert-base", "the smallest listed; say 'bert-large' for the other"),
    "smollm": (
        "smollm2-135m",
        "the smallest listed; say 'smollm2-360m' or 'smollm2-1.7b' for another",
    ),
    "whisper": (
        "whisper-tiny",
        "the smallest listed; say 'whisper-base', 'whisper-small' or 'whisper-medium' for another "
        "(`pomology models` lists all)",
    ),
    "google-bert/bert-base-cased": (
        "bert-base",
        "whose vocabulary has 30,522 tokens instead of 28,996",
    ),
    "Qwen3-4B-Instruct-2507": ("qwen3-4b", LONGER),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("qwen3-30b-a3b", LONGER),
    "mlx-community/Qwen3-4B-Instruct-2507-4bit": ("qwen3-4b", f"{LONGER}, {QUANTIZED}"),
    "google/vit-base-patch16-224-in21k": (
        "vit-base",
        "whose output has 1,000 classes instead of 2",
    ),
    "openai/whisper-small.en": (
        "whisper-small",
        "whose vocabulary has 51,865 tokens instead of 51,864",
    ),
}
# Names of other models.
OTHERS = ["Llama 3 18B", "phi-3-mini-128k-instruct", "Qwen2.5-0.5", "Qwen2.5-Coder-0.5B", "", "/"]
OTHERS += ["Qwen 18B", "ViT-H/14", "gpt3", "gemma 2b", "bert-base-multilingual-cased", "Mamba"]
OTHERS += ["Mixtral-8x22B", "DeepSeek-R1-Distill-Qwen-1.5B", "whisper.en", "llama!x"]


@pytest.mark.parametrize("name", TYPED)
def test_a_typed_name_means_a_model(name):
    assert networks.resolve(name) == (TYPED[name], "")
    assert networks.find(name) is networks.configurations()[TYPED[name]]


@pytest.mark.parametrize("name", TAKEN)
def test_the_note_says_what_was_taken_where_it_is_not_the_very_model(name):
    model, end = TAKEN[name]
    assert networks.resolve(name) == (model, f"{name}: taken as {model}, {end}")


def test_the_smallest_of_a_name_has_the_fewest_parameters():
    sizes = {row["name"]: int(row["parameters"]) for row in networks.rows()}
    for name in ("whisper", "qwen", "llama", "gpt2", "phi", "vit"):
        beginning = {each: size for each, size in sizes.items() if each.startswith(name)}
        assert networks.resolve(name).name == min(beginning, key=beginning.get)


def test_fit_and_models_end_with_the_note(capsys):
    note = "bert-base-cased: taken as bert-base, whose vocabulary has 30,522 tokens instead of "
    assert main(["fit", "bert-base-cased", "--sequence=64", "--on=T4"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("fits: LoRA of bert-base ") and said.splitlines()[-1].startswith(note)
    assert main(["models", "bert-base-cased"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(note)
    assert main(["models", "whisper"]) == 0
    said = capsys.readouterr().out
    assert "whisper-large-v3-turbo " in said and "\nwhisper: taken as whisper-tiny, " in said
    assert main(["models", "8b"]) == 0
    assert "taken as" not in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--on", "--memory", "--tokens", "--observed"])
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_text_is_refused_with_an_example(option, text, capsys):
    assert main(["fit", "gpt2", option, text]) == 2
    said = capsys.readouterr().err
    assert f"{option}: expected " in said and ", such as " in said
    assert "not an empty text" in said and said.count("\n") == 1


@pytest.mark.parametrize("name", OTHERS)
def test_the_name_of_another_model_is_refused(name):
    with pytest.raises(PomologyError, match=r"unknown model.*; `pomology models` lists all$"):
        networks.resolve(name)


def test_each_model_is_found_by_its_own_name_in_any_spelling_and_on_the_hub():
    for row in networks.rows():
        spaced = row["name"].replace("-", " ").upper()
        for name in (row["name"], spaced, networks.hub_name(row) or row["name"]):
            assert networks.resolve(name) == (row["name"], ""), name


def options_of(**given):
    return SimpleNamespace(**{"on": "", "memory": "", "framework": "torch", **given})


# A GPU as PyTorch and MLX name it, with the cores and the memory of snapshot.gpus -> its device.
OWN = {
    ("Apple M4 Max", 40, None): "M4 Max GPU (40 cores)",
    ("Apple M1 Pro", 14, None): "M1 Pro GPU (14 cores)",
    ("NVIDIA GeForce RTX 4090", None, 24): "RTX 4090",
    ("NVIDIA A100-SXM4-80GB", None, 80): "A100 80 GB SXM",
    ("Tesla T4", None, 15): "T4",
}


def machine(monkeypatch, name, cores, memory_gb):
    """Let this machine have a GPU, and its framework name it."""
    backend = "mps" if "Apple" in name else "cuda"
    gpu = SimpleNamespace(kind="gpu", backend=backend, name=name, title="PyTorch")
    gpu.unified_memory, gpu.free_memory = backend == "mps", lambda: 20 * 2**30
    monkeypatch.setattr(answer.find, "find", lambda *_: [gpu])
    memory_bytes = memory_gb and memory_gb * 2**30
    listed = [{"name": name, "cores": cores, "memory_bytes": memory_bytes}]
    monkeypatch.setattr(answer.snapshot, "gpus", lambda: listed)


@pytest.mark.parametrize("own", OWN)
def test_this_machine_has_the_data_sheet_of_its_gpu(own, monkeypatch):
    machine(monkeypatch, *own)
    place = answer.training_device(options_of())
    assert place.device.name == OWN[own] and place.limit == 20 * 2**30
    assert bool(place.note) == ("cores" in OWN[own])


def test_a_time_is_predicted_for_the_machine_that_it_runs_on(tiny, monkeypatch, capsys):
    machine(monkeypatch, "Apple M1 Pro", 14, None)
    assert main(["fit", tiny, "--sequence", "64"]) == 0
    said = capsys.readouterr().out
    assert "\ntakes " in said and "tokens/s" in said and "no time is predicted" not in said
    assert "\nApple M1 Pro: taken as M1 Pro GPU (14 cores), this machine's\n" in said


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (("Apple M5", 8, None), "this machine has 8 GPU cores; only M5 GPU (10 cores)"),
        (("Apple M5 Pro", 16, None), "Apple M5 Pro: M5 Pro GPU has no data sheet"),
        (("NVIDIA GeForce RTX 3080 Laptop GPU", None, 16), "RTX 3080 Laptop has no data sheet"),
        (("NVIDIA L40", None, 48), "NVIDIA L40: unknown device"),
    ],
)
def test_it_says_why_no_time_is_predicted(own, words, tiny, monkeypatch, capsys):
    machine(monkeypatch, *own)
    assert main(["fit", tiny, "--sequence", "64"]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "no time is predicted" in x)
    assert words in line and "\ntakes " not in line


@pytest.mark.parametrize(
    ("on", "device"),
    [
        ("M4 Max", "M4 Max GPU (32 cores)"),
        ("rtx 4090", "RTX 4090"),
        ("MacBook Pro M4", "M4 GPU (10 cores)"),
        ("MacBook Pro (M4 Pro)", "M4 Pro GPU (16 cores)"),
    ],
)
def test_a_device_is_named_as_people_type_it(on, device):
    place = answer.training_device(options_of(on=on))
    assert place.device.name == device
    assert place.limit == (None if place.backend == "mps" else 0.98 * 24 * 2**30)


def test_models_are_listed_with_parameters_and_longest_sequence(capsys):
    assert main(["models"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 100
    lines = [line.split() for line in said.splitlines()]
    assert ["llama-3.1-8b", "8.03", "billion", "131,072", "meta-llama/Llama-3.1-8B"] in lines
    assert ["gemma-3-1b", "1.00", "billion", "32,768", "google/gemma-3-1b-it"] in lines
    assert ["nanogpt-char", "10.8", "million", "256"] in lines
    assert {row["name"] for row in networks.rows()} <= {line[0] for line in lines if line}
    assert "\nvae 128 " in said


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("qwen2.5 0.5b", ["qwen2.5-0.5b"]),
        ("Qwen/Qwen2.5-0.5B-Instruct", ["qwen2.5-0.5b"]),
        ("resnet", ["resnet50 64 224"]),
        ("whisper tiny", ["whisper-tiny"]),
        ("bert large", ["bert-large"]),
    ],
)
def test_a_filter_lists_some_models(text, wanted):
    rows = [row for table in listing.tables(text) for row in table.rows]
    assert [next(iter(row.cells.values())) for row in rows] == wanted
