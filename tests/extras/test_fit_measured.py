"""`pomology fit --measure`: what follows from a few blocks, and that these are trained for real."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from records import metric, record

from pomology.__main__ import main
from pomology.extras.fit import (
    counts,
    measured,
    measuring,
    networks,
    paces,
    times,
    training,
    truncated,
)
from pomology.extras.fit.offers import TrainingDevice
from pomology.extras.fit.plan import Plan
from pomology.extras.fit.truncated import Blocks, Linear
from pomology.extras.prediction import devices
from pomology.format import seconds
from pomology.paths import root
from pomology.results import journal

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}
# A kernel's process that is a Mac's or an NVIDIA machine's, and measures.
PRETENDED = """
import sys
sys.path.insert(0, sys.argv[1])
import rehearsal
if sys.argv[2] == "mlx":  # mlx-lm imports transformers, without PyTorch
    rehearsal.FRAMEWORKS["transformers"] = "mlx"
else:  # which reads what is hidden then
    import torch._dynamo
rehearsal.begin(sys.argv[2], sys.argv[3])
if sys.argv[2] == "torch":
    rehearsal.add_gpu(sys.argv[3], False, True)
sys.path.remove(sys.argv[1])
from pomology.extras.fit import measuring
sys.exit(measuring.main())
"""


@pytest.fixture
def config(tmp_path):
    """The path of a config.json of a Llama with seven small blocks."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL))
    return str(folder / "config.json")


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """The folder of the run with what is measured, and short measurements."""
    monkeypatch.setattr(measured, "folder", lambda: tmp_path / "outputs" / "fit-1")
    monkeypatch.setattr(measured, "root", lambda: tmp_path)
    monkeypatch.setattr(measured, "BUDGET_S", 0.2)
    monkeypatch.setattr(measured, "STEADY", 100.0)  # such short steps vary much
    return tmp_path / "outputs" / "fit-1"


def case(blocks, seconds, size, repeat=0, trained=None, depth=30, **more):
    """Return the record of a case of `measuring`, in fp32 of a model with `depth` blocks."""
    plan = Plan("lora", precision="fp32", sequence=256)
    models = Blocks(trained or blocks, blocks - (trained or blocks))
    settings = measuring.settings("gpt2", plan, models, depth)
    values = {"step_s": metric(seconds, 0.9 * seconds, 1.1 * seconds)}
    values["step_peak_bytes"] = metric(size, unit="B")
    more = {"flops_per_step": round(1e9 * (2 + blocks)), "repeat": repeat} | more
    return record("fit", values, settings, precision="fp32", **more)


@pytest.mark.parametrize("every", [Blocks(30), Blocks(16, 14), Blocks(24, 1)])
@pytest.mark.parametrize("step", [1, 2, 6])
def test_every_choice_of_models_gives_what_the_whole_model_takes(every, step):
    takes = Linear(0.5, 0.2, 0.07)
    chosen = list(truncated.choices(every, step))
    assert chosen
    for models in chosen:
        assert truncated.suffices(models, every)
        assert all(blocks.trained % step == 0 for blocks in models)
        values = [takes.at(blocks) for blocks in models]
        assert truncated.fitted(models, values).at(every) == pytest.approx(takes.at(every))
        weights = truncated.weights(models, every)
        total = sum(weight * value for weight, value in zip(weights, values, strict=True))
        assert total == pytest.approx(takes.at(every))
    longest = [max(blocks.trained for blocks in models) for models in chosen]
    assert longest == sorted(longest, reverse=True)


def test_a_model_of_few_blocks_is_measured_as_it_is():
    assert list(truncated.choices(Blocks(3), 1)) == [[Blocks(3)]]
    assert truncated.fitted([Blocks(3)], [1.5]).at(Blocks(3)) == 1.5
    assert not truncated.suffices([Blocks(2)], Blocks(3))


def test_models_keep_the_pattern_of_their_kinds_of_blocks():
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 4 + ["sliding_attention"] * 2
    assert truncated.period({"num_hidden_layers": 26, "layer_types": kinds}) == 6
    assert truncated.period({"num_hidden_layers": 26, "layer_types": kinds[:1] * 26}) == 1
    short = truncated.configuration({"num_hidden_layers": 26, "layer_types": kinds}, Blocks(6))
    assert short == {"num_hidden_layers": 6, "layer_types": kinds[:6]}
    with pytest.raises(Exception, match="kinds that never repeat"):
        truncated.period({"num_hidden_layers": 4, "layer_types": ["a", "b", "b", "a"]})


def test_the_whole_model_follows_from_the_medians_of_the_rounds():
    # 0.1 s and 20 MB of a block, 0.3 s and 100 MB of the rest.
    records = []
    for repeat, more in enumerate((0.0, 0.1, -0.1)):
        records += [case(5, 0.8 + more, 200e6, repeat), case(15, 1.8, 400e6, repeat)]
    result = measured.result(records)
    assert result.models == [Blocks(5), Blocks(15)] and result.rounds == 3
    assert result.step.value == pytest.approx(3.3)
    assert result.seconds == pytest.approx(Linear(0.3, 0.1))
    assert (result.bytes, result.flops) == pytest.approx((700e6, 32e9))
    # Three rounds say 3.3, 3.15 and 3.45 s: t of two degrees of freedom is 2.92.
    half = ((2.92 * 0.15 / 3**0.5) ** 2 + (measured.EXTRAPOLATION * 3.3) ** 2) ** 0.5
    assert result.step.bounds == pytest.approx((3.3 - half, 3.3 + half), rel=1e-3)
    calm = measured.result(records[:2])
    # The two cases of a round have ± 10 %: of the whole, 1.5 · 0.08 and 2.5 · 0.18 s; and 10 %.
    half = ((1.5 * 0.08) ** 2 + (2.5 * 0.18) ** 2 + (measured.EXTRAPOLATION * 3.3) ** 2) ** 0.5
    assert calm.step.bounds == pytest.approx((3.3 - half, 3.3 + half))


def test_a_disturbed_round_is_left_out_and_two_of_three_are_no_result():
    calm = [case(5, 0.8, 1e8, 0), case(15, 1.8, 2e8, 0)]
    one = [*calm, case(5, 4.0, 1e8, 1), case(15, 1.8, 2e8, 1)]
    three = [*one, case(5, 0.82, 1e8, 2), case(15, 1.8, 2e8, 2)]
    result = measured.result(three)
    assert result.rounds == 2 and result.step.value == pytest.approx(3.3, rel=0.01)
    assert measured.result(one) is None
    said = measured.why_none(one)
    assert "times of one model differ by up to 5.0 times; repeat it on an idle machine" in said


def test_a_rest_of_less_than_no_time_is_no_result():
    negative = [case(5, 0.5, 1e8), case(15, 1.8, 2e8)]
    assert measured.result(negative) is None
    assert "would take less than no time; repeat it on an idle" in measured.why_none(negative)
    assert list(measured.results(negative)) == []  # nor is it of a later answer


def test_frozen_blocks_have_a_time_of_their_own():
    records = [
        case(1, 1.0, 1e8, trained=1),
        case(3, 1.4, 1.2e8, trained=3),
        case(3, 1.1, 1.1e8, trained=1),
    ]
    plan = measuring.planned(records[0].config, "mlx")
    assert plan == Plan("lora", precision="fp32", sequence=256, framework="mlx")
    result = measured.result([msgspec.structs.replace(each, framework="mlx") for each in records])
    assert result.every == Blocks(16, 14)
    assert result.step.value == pytest.approx(0.8 + 16 * 0.2 + 14 * 0.05)


def test_nothing_follows_from_cases_that_do_not_suffice():
    assert measured.result([case(5, 1.0, 1e8)]) is None
    failed = case(15, 1.0, 1e8, status="out-of-memory", reason="too little")
    assert measured.result([case(5, 1.0, 1e8), failed]) is None
    # Rounds with other models are left out one by one.
    more = [case(5, 1.0, 1e8, 1), case(15, 2.0, 2e8, 1)]
    assert measured.result([case(5, 9.0, 1e8), *more]).step.value == pytest.approx(3.5)


def test_settings_restore_the_plan():
    plans = [
        Plan("full", sequence=64, batch=2, precision="bf16", amp=True, optimizer="sgd"),
        Plan("lora", rank=4, targets="q_proj,o_proj", layers=3, dropout=0.1, checkpointing=True),
        Plan("lora", accumulation=4),
    ]
    for plan in plans:
        config = measuring.settings("gpt2", plan, Blocks(2, 1), 12)
        assert measuring.planned(json.loads(json.dumps(config)), "torch") == plan
    assert measuring.blocks(config) == Blocks(2, 1)


def test_trained_parameters_are_those_of_the_network(config):
    for plan in (Plan("lora", rank=4), Plan("lora", targets="all-linear", layers=2)):
        every = truncated.whole(SMALL, plan)
        network = training.workload(SMALL, plan, every, "cpu").build()
        trained = [weight for weight in network.parameters() if weight.requires_grad]
        counted = training.trained(SMALL, plan, every)
        assert counted == sum(weight.numel() for weight in trained)
        assert counted == counts.need(config, plan, "cpu").trained


def test_a_step_of_several_passes_has_the_gradient_of_one(config):
    whole = Plan("full", precision="fp32", batch=4, sequence=16)
    parts = whole._replace(batch=1, accumulation=4)
    updated = []
    for plan in (whole, parts):
        torch.manual_seed(1)
        work = training.workload(SMALL, plan, Blocks(2), "cpu")
        network = work.build()
        inputs = work.batch(4)
        work.step(network, work.optimizer(network), *inputs)
        updated.append(torch.cat([weight.grad.flatten() for weight in network.parameters()]))
    assert torch.allclose(*updated, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpt2 --on m4", "expected no --on"),
        ("gpt2 --method qlora", "bitsandbytes"),
        ("gpt2 --optimizer adamw8bit", "expected --optimizer adamw or sgd"),
        ("gpt2 --loss fused", "expected --loss default"),
        ("gpt2 --precision fp16", "expected --precision fp32 or bf16"),
        ("gpt2 --framework mlx --accumulation 2", "expected no --amp and no --accumulation"),
        ("whisper-tiny --sequence 64", "expected a model with one list of equal blocks"),
        ("--table", "expected no --observed, no --tokens and no --measure"),
        ("gpt2 --memory 1GB", "does not fit: LoRA of gpt2 needs 3.21 GB, 299 % of 1.07 GB"),
    ],
)
def test_what_is_not_measured_is_one_line(words, message, capsys):
    assert main(["fit", "--measure", *words.split(" ")]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1
    assert not said.out


def test_a_small_model_is_measured_and_calibrates_later_answers(config, outputs, capsys):
    words = ["--precision=fp32", "--sequence=32", "--batch=2", "--checkpointing"]
    # Beside other tests the steps with one block may take longer than those with five.
    for _ in range(3):
        shutil.rmtree(outputs, ignore_errors=True)
        status = main(["fit", config, "--measure", "--tokens=1M", *words])
        said, why_not = capsys.readouterr()
        if "repeat it on an idle machine" not in why_not:
            break
    assert status == 0
    assert "fits: LoRA of small needs " in said and " (measured)" in said
    assert " per step (" in said and "1 and 5 of 7 blocks, 3 times" in said
    assert "1,000,000 tokens: " in said and "a block takes " in said
    assert "outputs/fit-1" in said
    contents = journal.read(outputs / "fit.jsonl")
    assert len(contents.records) == 6 and not contents.problems
    assert {each.status for each in contents.records} == {"ok"}
    assert {each.config["checkpointing"] for each in contents.records} == {True}
    (result,) = measured.results(contents.records)
    # The second command takes what the first one has measured.
    assert main(["fit", config, *words]) == 0
    later = capsys.readouterr().out
    assert f"{seconds(result.step.value)} per step (" in later
    # Another shape has the work of its own at the same rate.
    assert main(["fit", config, "--precision=fp32", "--sequence=64"]) == 0
    assert "no interval; " in capsys.readouterr().out


@pytest.mark.parametrize(
    "flag",
    [
        pytest.param([], marks=pytest.mark.long),
        pytest.param(["--method=full"], marks=pytest.mark.machines),
    ],
)
def test_memory_is_that_of_tensors(config, outputs, flag, capsys):
    # 80 MB of logits, so that the process's own changes of some MB are few.
    options = ["--precision=fp32", "--sequence=1024", *flag]
    large = SMALL | {"max_position_embeddings": 4096, "vocab_size": 20_000}
    Path(config).write_text(json.dumps(large))
    assert main(["fit", config, "--measure", *options]) in (0, 1)
    said = capsys.readouterr().out
    plan = Plan("full" if flag else "lora", sequence=1024, precision="fp32")
    (result,) = measured.results(journal.read(outputs / "fit.jsonl").records)
    assert result.bytes == pytest.approx(counts.need(config, plan, "cpu").bytes, rel=0.1), said


@pytest.mark.parametrize(
    ("framework", "machine", "method"),
    [
        ("torch", "mac", "lora"),
        pytest.param("torch", "nvidia", "full", marks=pytest.mark.long),
        pytest.param("mlx", "mac-mlx", "lora", marks=pytest.mark.machines),
        pytest.param("mlx", "mac-mlx", "qlora", marks=pytest.mark.long),
        pytest.param("mlx", "mac-mlx", "full", marks=pytest.mark.machines),
    ],
)
def test_a_gpu_is_measured_after_its_step_is_verified(tmp_path, framework, machine, method):
    torch_mac = Plan(method, precision="fp32", sequence=16, batch=1, framework=framework)
    request = measuring.Request("small", SMALL, torch_mac._asdict(), str(tmp_path / "fit-1"))
    request.rounds, request.budget_s = 1, 0.2
    if framework == "mlx":
        request.config = networks.full_configuration(SMALL)
        request.flops, request.bytes = [1e6, 1e6, 1e6], [1e6, 1e6, 1e6]
    command = [sys.executable, "-P", "-c", PRETENDED, str(root() / "tests"), framework, machine]
    encoded = msgspec.json.encode(request)
    done = subprocess.run(command, input=encoded, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    records = journal.read(tmp_path / "fit-1" / "fit.jsonl").records
    assert {each.status for each in records} == {"ok"}, records[0].reason
    assert {each.device for each in records} == {"gpu"}
    assert all("proof_s" in each.metrics for each in records)
    assert "unproved" not in {flag for each in records for flag in each.flags}


def test_an_answer_from_a_disturbed_measurement_says_so():
    plan = Plan("lora", sequence=512)
    device = devices.with_data_sheet("m4 max").device
    where = TrainingDevice("mps", device, None, "", "")
    need = counts.need("gpt2", plan, "mps")
    other = measured.result([case(5, 0.8, 1e8, flags=["busy"]), case(15, 1.8, 2e8)])
    busy = other._replace(model="gpt2", plan=plan)
    assert busy.disturbed == "busy"
    calm = busy._replace(flags=[], step=busy.step.replace(value=1.0))
    for here, step, word in (([busy], busy, True), ([calm, busy], calm, False)):
        same = paces.of("gpt2", plan, need, where, here)
        assert same.step is step.step and ("disturbed: busy" in same.source) is word
        scaled = paces.of("gpt2", plan._replace(sequence=256), need, where, here)
        assert "1 plan measured here" in scaled.source
        assert ("disturbed: busy" in scaled.source) is word


def test_a_later_undisturbed_measurement_replaces_a_disturbed_one():
    first = [case(5, 0.8, 1e8, 0, flags=["busy"]), case(15, 2.2, 2e8, 0)]
    later = [each for n in (1, 2) for each in (case(5, 0.8, 1e8, n), case(15, 1.8, 2e8, n))]
    (result,) = measured.results(first + later)
    assert not result.disturbed and result.rounds == 2
    assert result.step.value == pytest.approx(3.3)


def test_a_prediction_is_scaled_by_what_is_measured_here():
    plan = Plan("lora", sequence=512)
    device = devices.with_data_sheet("m4 max").device
    where = TrainingDevice("mps", device, None, "", "")
    need = counts.need("gpt2", plan, "mps")
    plain = paces.of("gpt2", plan, need, where, []).step
    other = measured.result([case(5, 0.8, 1e8), case(15, 1.8, 2e8)])
    twice = plain.replace(value=2 * times.predict(need, plan, device)[0].value)
    found = other._replace(model="gpt2", plan=plan, step=twice)
    half_batch = plan._replace(sequence=256)
    need = counts.need("gpt2", half_batch, "mps")
    before = paces.of("gpt2", half_batch, need, where, []).step
    after = paces.of("gpt2", half_batch, need, where, [found])
    assert after.step.value == pytest.approx(2 * before.value)
    assert "times 2.0 as of 1 plan measured here" in after.source
    assert paces.of("gpt2", plan, need, where, [found]).step is twice


def test_without_glibc_memory_is_read_as_it_is(monkeypatch):
    """As on macOS, whose C library has neither function."""
    monkeypatch.setattr(measuring.ctypes, "CDLL", lambda _: SimpleNamespace())
    with measuring.returned_at_once():
        assert measuring.settled_bytes() > 2**20


def test_the_process_says_why_nothing_was_measured(config, outputs, monkeypatch, capsys):
    monkeypatch.setattr(measured, "MODULE", "pomology.no_such_module")
    assert main(["fit", config, "--measure"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no_such_module" in said


def test_an_answer_names_the_option_where_no_time_is_predicted(config, outputs, capsys):
    assert main(["fit", config, "--sequence=16"]) == 0
    assert "--measure times a few blocks here" in capsys.readouterr().out
