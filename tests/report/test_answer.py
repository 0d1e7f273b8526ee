"""The answer of a run: its sentences follow the run's values, devices and verdicts."""

import pytest
from declared import of
from notebook_code import PATHS
from records import metric, record, write

from pomology.report import answer, article, figures
from pomology.report import page as report_page
from pomology.report.display import Report
from pomology.runner import notebooks

CHIP = {"chip": "Apple M3 Max"}


def epoch(seconds, backend="mps", repeat=0, batch_size=128, **more):
    values = {"epoch_s": metric(seconds, 0.99 * seconds, 1.01 * seconds)}
    fields = CHIP | {"backend": backend, "repeat": repeat} | more
    return record("vae", values, {"batch_size": batch_size}, **fields)


def varying(share, backend):
    values = {"between_process_difference": metric(share, unit="")}
    return record("instrument_check", values, {"check": "x"}, backend=backend)


BOTH = [varying(0.1, "cpu"), varying(0.1, "mps")]


def said_of(declaration, records, **options):
    """The answer with its evidence, as one text."""
    return str(answer.of_run(declaration, records, **options))


def answer_of(*records):
    return said_of(of("vae"), records)


def test_a_value_has_its_interval_its_device_and_what_it_rests_on():
    said = answer_of(epoch(2.0), epoch(4.0, "cpu", flags=["busy"]))
    assert said.startswith("Time per epoch at batch size 128: ")
    assert "2.00 s ± 1.0 % in this process on the Apple M3 Max GPU in PyTorch (one run); " in said
    assert (
        "4.00 s ± 1.0 % in this process on the Apple M3 Max CPU in PyTorch (one run, busy)" in said
    )
    published = "3.75 s on M1 Ultra CPU (PyTorch, 2022) to 8.76 s on M1 Ultra GPU (PyTorch, 2022)"
    assert f"Published at batch size 128: {published}." in said
    # Three claims are about the M1 Ultra, one is about every Mac, and two have no condition.
    needed = "2 need an M1 Ultra and an NVIDIA GPU, 2 need other evidence, 1 needs an NVIDIA GPU"
    needed += ", 1 needs an M1 Ultra"
    assert f"Of the article's 6 claims none is decided on this machine: {needed}." in said


def test_names_take_with_and_numbers_at():
    config = {"model": "mlp", "batch_size": 32}
    times = {"fit_s": metric(2.0)}
    fields = {"article": "004", "framework": "tensorflow"}
    said = said_of(of("mlp_cnn_lstm"), [record("mlp_cnn_lstm", times, config, **fields)])
    assert said.startswith("Training time with model mlp, at batch size 32: 2.00 s")
    of_claim = said_of(of("capabilities"), [record("capabilities", {}, {"feature": "fp16"})])
    assert "The article's claim is not decided on this machine: it needs" in of_claim


@pytest.mark.parametrize(
    ("cpu_s", "checks", "verdict"),
    [
        (4.0, BOTH, "In PyTorch the GPU is 2.0× faster than the CPU (1.7 to 2.4×)."),
        (1.0, BOTH, "In PyTorch the CPU is 2.0× faster than the GPU (1.7 to 2.4×)."),
        (2.1, BOTH, "no difference between GPU and CPU is established (CPU / GPU = 1.1; within"),
        (4.0, [], "no difference between GPU and CPU is established (CPU / GPU = 2.0; single"),
    ],
)
def test_the_sentence_on_gpu_and_cpu_follows_the_verdict(cpu_s, checks, verdict):
    assert verdict in answer_of(epoch(2.0), epoch(cpu_s, "cpu"), *checks)


def test_without_a_gpu_or_without_any_value_the_answer_says_less():
    said = answer_of(epoch(4.0, "cpu"), *BOTH)
    assert "CPU" in said and "In PyTorch the" not in said and "M3 Max GPU" not in said
    said = answer_of(
        record("vae", {}, {"batch_size": 128}, status="too-big", backend="mps"),
        record("vae", {}, {"batch_size": 128}, status="too-slow"),
    )
    ends = "1 too big (on the GPU), 1 too slow (on the CPU)"
    assert said.startswith(f"No case has a value on this machine: {ends}.")
    assert answer_of().startswith("Nothing was measured on this machine yet.")
    assert answer_of(epoch(4.0, profile="smoke")) == answer.SMOKE
    said = answer_of(epoch(4.0, "cpu"), epoch(9.0, "cpu", batch_size=5120, status="too-slow"))
    assert "1 of 2 cases has no value: 1 too slow (batch size 5120)." in said


def test_repeats_are_named_and_a_claim_is_quoted_once_it_is_decided():
    """003-C1 is about an M1 Ultra: the CPU is much faster than both GPUs."""
    chip = {"chip": "Apple M1 Ultra"}
    records = [
        epoch(factor * seconds, backend, repeat, batch_size, data="real", **chip)
        for repeat, factor in enumerate((1.0, 1.02, 0.98))
        for backend, seconds in (("cpu", 1.0), ("mps", 1.01))
        for batch_size in (128, 5120)
    ]
    said = answer_of(*records)
    assert "(3 repeats)" in said and "contradicted: “The CPU was much faster" in said


def test_the_answer_stands_in_the_report_and_on_top_of_the_executed_notebook(tmp_path):
    both = [epoch(2.0), epoch(4.0, "cpu")]
    out = write(tmp_path / "run", both, {"chip": "Apple M3 Max", "python": "3.12"})
    report = Report("vae", article="003", declaration=of("vae"), out=out)
    report.answer()
    report.table()
    page = report_page.build(out).read_text(encoding="utf-8")
    seen = '<span class="answer">Time per epoch at batch size 128: 2.00 s'
    evidence = "<li>Published at batch size 128: 3.75 s on M1 Ultra CPU (PyTorch, 2022) to "
    order = [page.index(text) for text in (seen, "</summary>", evidence, "<table")]
    assert order == sorted(order)
    output = {"output_type": "display_data", "data": {"text/markdown": "**2 s**"}, "metadata": {}}
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Title"},
        {"cell_type": "code", "id": "b", "metadata": {}, "source": "x", "outputs": [output]},
        {
            "cell_type": "code",
            "id": "c",
            "metadata": {"tags": ["answer"]},
            "source": "experiment.answer()",
            "outputs": [output],
        },
    ]
    moved = notebooks.answered({"cells": cells})["cells"]
    assert [cell["id"] for cell in moved] == ["a", "answer", "b", "c"]
    assert [len(cell.get("outputs", ())) for cell in moved] == [0, 1, 1, 0]
    assert notebooks.answered({"cells": cells[:2]}) == {"cells": cells[:2]}


def test_another_framework_is_named_with_its_own_settings():
    twin = {"framework": "mlx", "backend": "cpu", "note": "compute only: random batches"}
    other = epoch(50.0, batch_size=64, **twin)
    said = answer_of(epoch(4.0, "cpu"), epoch(5.0, "cpu", batch_size=5120), other)
    assert "With other settings: 50.0 s" in said
    assert "in MLX at batch size 64 (compute only, one run)." in said
    assert "With other settings" not in answer_of(epoch(4.0, "cpu"), epoch(50.0, **twin))


def test_what_an_answer_rests_on_is_a_list_below_it(tmp_path):
    out = write(tmp_path / "run", [epoch(2.0)], {"chip": "Apple M3 Max", "python": "3.12"})
    displayed = []
    report = Report("vae", declaration=of("vae"), out=out, receive=displayed.append)
    report.answer()
    first, _, *sentences = displayed.pop().data.splitlines()
    assert first.startswith("**On this machine.** Time per epoch at batch size 128: 2.00 s")
    assert [line[:12] for line in sentences] == ["- Published ", "- Of the art"]
    report.answer(opening="It learns. ")
    opened = displayed.pop().data.splitlines()
    assert opened[0] == "**On this machine.** It learns." and opened[2].startswith("- Time per ep")
    assert opened[3:] == sentences
    report.answer(opening=answer.Answer("It learns.", ["In 3 of 3 repeats."]), also="Fast.")
    opened = displayed.pop().data.splitlines()
    assert opened[0] == "**On this machine.** It learns. Fast."
    assert opened[2] == "- In 3 of 3 repeats." and opened[3].startswith("- Time per ep")
    report.answer("Yes.")
    assert displayed.pop().data == "**On this machine.** Yes."


def test_the_answer_comes_after_the_question_and_replaces_what_announces_it():
    """In every notebook: nothing of another machine is above this machine's answer."""
    output = {"output_type": "display_data", "data": {"text/markdown": "**2 s**"}, "metadata": {}}
    titles = {}
    for notebook in notebooks.notebooks(skipped={}):
        document = notebooks.read_notebook(notebook.path)
        for cell in document["cells"]:
            if "answer" in cell["metadata"].get("tags", ()):
                cell["outputs"] = [output]
        question, top, finding, *rest = notebooks.answered(document)["cells"]
        assert top["id"] == "answer" and top["outputs"]
        assert question["source"].startswith("# ") and "**Question.**" in question["source"]
        assert finding["source"].startswith("**Finding.**") and "**Method.**" in finding["source"]
        for cell in (question, finding):
            assert "answer of this machine" not in cell["source"]
            assert "EPYC" not in cell["source"], notebook.name
        assert len(rest) == len(document["cells"]) - 1
        (announced,) = [cell for cell in rest if "answer of this run" in "".join(cell["source"])]
        assert "at the top" in announced["source"] and not announced["source"].endswith(":")
        titles[notebook.name] = question["source"]
    assert len(titles) > 25


def test_a_single_claim_has_its_verdict_in_the_sentence():
    case = record("capabilities", {}, {"feature": "torch.compile"}, backend="mps", article="000")
    said = said_of(of("capabilities"), [case])
    assert "The article's claim is contradicted on this machine: “On MPS" in said


def test_values_have_the_unit_of_their_column():
    config = {"batch_size": 128, "epochs": 2, "workers": 8, "persistent": "no"}
    config |= {"augmentation": "loader"}
    case = record("simclr", {"epoch_s": metric(120.0)}, config, article="000", backend="mps")
    said = said_of(of("simclr"), [case])
    assert ": 2.0 min on the Apple M9 GPU" in said or ": 2.00 min on the Apple M9 GPU" in said
    assert "to 59.3 min on M1 Pro CPU" in said


def test_a_rate_of_computing_alone_is_named_as_such_in_answer_table_and_figure():
    declaration = of("device_check")
    rates = {"throughput": metric(173.0, unit="steps/s"), "flops_per_s": metric(1e11)}
    config = {"model": "perceptron", "accelerator": "cpu", "batch_size": 256}
    step = record("device_check", rates, config, article="002")
    said = said_of(declaration, [step])
    assert "Throughput (compute only) with model perceptron and accelerator cpu, at " in said
    assert ": 173 steps/s, which is 100 GFLOP/s, on the Apple M9 CPU in PyTorch" in said
    shown = article.article_table(declaration, [step])
    of_rates = [name for name in shown.columns if shown.rows[-1].cells[name].endswith("/s")]
    assert of_rates == ["Steps per second, compute only", "Achieved, compute only"]
    axis = figures.article_figure(declaration, [step]).axes[-1]
    assert axis.get_xlabel() == "achieved FLOP/s, compute only (higher is better)"
    assert of("vae").condition("flops_per_s") == ""  # the article's times are with loading


def test_of_a_ratio_the_highest_is_named_and_only_speeds_are_compared():
    def cases(backend, **more):
        ratios = {"fp32": 0.99, "autocast": 1.6}
        step = {"step_s": metric(2.0, 1.9, 2.1)}
        for feature, ratio in ratios.items():
            values = {"speedup": metric(ratio, unit="×")} | step
            yield record("capabilities", values, {"feature": feature}, backend=backend, **more)

    said = said_of(of("capabilities"), [*cases("cpu"), *cases("mps"), *BOTH])
    assert said.startswith("Speed-up with feature autocast: 1.60× on the")
    # The plain step is what others are compared with, also where all others are slower.
    slower = [record("capabilities", {"speedup": metric(0.1, unit="×")}, {"feature": "fp16"})]
    said = said_of(of("capabilities"), [*slower, *list(cases("cpu"))[:1]])
    assert said.startswith("Speed-up with feature fp16: 0.100× on the")
    said = said_of(of("capabilities"), [*cases("cpu"), *cases("mps"), *BOTH])
    assert "GPU is" not in said and "between GPU and CPU" not in said


def test_the_whole_model_is_named_before_a_smaller_variant_of_it():
    def case(blocks, flops, rate, **more):
        values = {"throughput": metric(rate, unit="tokens/s")}
        config = {"model": "qwen", "batch_size": 1, "sequence": blocks}
        return record("lora", values, config, flops_per_step=flops, article="", **more)

    variants = [case(2, 10, 900.0, scaled=True), case(24, 100, 90.0, scaled=True)]
    said = said_of(of("lora"), variants)
    assert "sequence 24: 90.0" in said, said
    said = said_of(of("lora"), [*variants, case(12, 50, 500.0)])
    assert "sequence 12: 500" in said, said


def test_settings_are_words():
    settings = {"model": "gpt2", "lora": False, "amp": True, "batch_size": 4, "sequence": 512}
    said = answer._in_words(settings)
    assert said == "with model gpt2 and AMP, without LoRA, at batch size 4 and sequence 512"
    numbers = answer._in_words({"batch_size": 20, "layers": 2, "size": 200})
    assert numbers == "at batch size 20, layers 2 and size 200"


def test_values_of_other_settings_are_named_where_one_differs():
    """`What does LoRA change?` needs both values; many batch sizes are left to the table."""

    def case(step_s, lora=False, batch_size=1, **more):
        config = {"model": "gpt2", "batch_size": batch_size, "lora": lora}
        values = {"step_s": metric(step_s, unit="s")}
        return record("gpt2_finetuning", values, config, article="001", **more)

    named = "With LoRA: 8.00 s."
    declared = of("gpt2_finetuning")
    said = said_of(declared, [case(21.0), case(8.0, True), case(9.0, True, 2)])  # two differ there
    assert "21.0 s on the" in said and named in said and "9.00 s" not in said
    said = said_of(declared, [case(21.0), case(8.0, True, flags=["drift"])])
    assert "With LoRA: 8.00 s (drift)." in said
    batches = [case(3.0, batch_size=size) for size in (2, 4, 8, 16, 32)]
    several = said_of(declared, [case(21.0), case(8.0, True), *batches])
    assert "With model gpt2 and LoRA, at batch size 1: 8.00 s." in several
    many = said_of(declared, [case(21.0), *batches])
    assert many.count("at batch size") == 6
    # Another device, framework or a smaller variant is no other setting.
    said = said_of(declared, [case(21.0), case(8.0, True, backend="mps", scaled=True)])
    assert "ith LoRA: " not in said


def test_settings_of_one_framework_are_named_with_it_where_another_has_values():
    plain = [epoch(4.0, "cpu"), epoch(3.0, "cpu", batch_size=5120)]
    said = answer.of_run(of("vae"), plain)
    alike = "0.75× as long, without a verdict, since instrument_check has not run"
    assert f"(one run). At batch size 5120: 3.00 s ± 1.0 %, {alike}. How a GPU" in said.text
    other = epoch(9.0, "cpu", framework="mlx")
    told = answer.of_run(of("vae"), [other, *plain])
    assert "5120: 3.00" not in told.text
    assert (
        f"Other settings in PyTorch: at batch size 5120: 3.00 s ± 1.0 %, {alike}." in told.evidence
    )
    more = [epoch(seconds, "cpu", batch_size=10 * seconds) for seconds in (1, 2)]
    listed = answer.of_run(of("vae"), [*plain, *more])
    assert "Other settings: at batch size 5120: 3.00 s ± 1.0 %; at batch size 10: " in str(listed)


def test_of_several_settings_that_differ_all_are_named():
    def case(step_s, batch_size, lora):
        config = {"model": "gpt2", "batch_size": batch_size, "lora": lora}
        return record("gpt2_finetuning", {"step_s": metric(step_s)}, config, article="001")

    cases = [case(4.0, 1, False), case(3.0, 1, True), case(9.0, 2, False)]
    said = said_of(of("gpt2_finetuning"), cases)
    assert "With model gpt2 and LoRA, at batch size 1: 3.00 s; " in said
    assert "with model gpt2, without LoRA, at batch size 2: 9.00 s." in said


def test_repeats_that_are_left_out_are_counted():
    flags = ([], [], ["drift"])
    epochs = [epoch(4.0, "cpu", repeat=repeat, flags=of) for repeat, of in enumerate(flags)]
    assert "(2 of 3 repeats)" in answer_of(*epochs)


def test_without_a_whole_case_the_one_of_most_work_is_told():
    def case(model, flops, **more):
        config = {"model": model, "batch_size": 1, "context_size": 64}
        fields = {"flops_per_step": flops, "scaled": True} | more
        return record("gpt2_pretraining", {"pass_s": metric(1.0)}, config, article="001", **fields)

    micro = [case("gpt2-micro", 10), case("gpt2-micro", 10, framework="mlx")]
    said = said_of(of("gpt2_pretraining"), [*micro, case("gpt2", 1000)])
    assert said.startswith("None of the published settings was timed here; a smaller one was. Pass")
    assert "with model gpt2, at batch size 1" in said


def test_a_case_that_failed_has_its_reason():
    reason = "the model has 326,824 parameters, not 652,824"
    said = answer_of(
        epoch(4.0, "cpu"), epoch(1.0, "cpu", batch_size=9, status="mismatch", reason=reason)
    )
    assert f"1 mismatch (batch size 9: {reason})." in said


def test_a_case_that_ended_without_the_value_is_counted():
    without = record("vae", {"step_s": metric(0.1)}, {"batch_size": 5120}, **CHIP)
    assert (
        "1 of 2 cases has no value: 1 ended without time per epoch (batch size 5120)."
        in answer_of(epoch(4.0, "cpu"), without)
    )
    alone = record("vae", {"compute_epoch_s": metric(1.0)}, {"batch_size": 128}, framework="mlx")
    assert "1 of 2 cases has no time per epoch: 1 with computing alone (in MLX)." in answer_of(
        epoch(4.0, "cpu"), alone
    )


def test_a_case_without_a_value_is_told_from_the_same_one_with_it():
    mlx = {"framework": "mlx", "status": "too-slow"}
    said = answer_of(epoch(4.0, "cpu"), record("vae", {}, {"batch_size": 128}, **mlx))
    assert "1 of 2 cases has no value: 1 too slow (in MLX)." in said
    larger = record("vae", {}, {"batch_size": 5120}, **mlx)
    said = answer_of(epoch(4.0, "cpu"), larger)
    assert "1 of 2 cases has no value: 1 too slow (batch size 5120 in MLX)." in said


def test_synthetic_data_and_a_missing_gpu_are_told():
    said = answer_of(epoch(4.0, "cpu", data="stand-in"))
    assert "(one run, synthetic data)" in said and "no case ran on a GPU." in said
    assert "ran on a GPU" not in answer_of(epoch(4.0, "cpu"), epoch(2.0))


# Notebooks whose article says how a GPU and a CPU compare, by the words of its claims.
COMPARING = ["vae", "dcgan", "siamese", "transformer_lm", "simclr", "rasbt_vgg16", "device_check"]
COMPARING += ["mlp_cnn_lstm"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_question_about_gpu_and_cpu_says_which_of_them_is_answered(path):
    """The claims of article 004 name a GPU and a CPU as do those of 000, 002 and 003."""
    name = path.stem
    declared = of(name)
    metric_asked = answer._asked_for(declared)
    words = "How a GPU compares is not answered here:"

    def case(backend, **more):
        values = {} if "status" in more else {metric_asked: metric(2.0)}
        return record(name, values, {}, backend=backend, article=declared.article, **more)

    said = said_of(declared, [case("cpu")])
    assert (f". {words} no case ran on a GPU. " in said) == (name in COMPARING)
    assert said.count("no case ran on a GPU") <= 1
    if name not in COMPARING:
        return
    assert "No case ran on a GPU" not in said
    late = said_of(declared, [case("cpu"), case("mps", status="too-slow")])
    assert f". {words} no case on a GPU has a value. " in late
    on_gpu = said_of(declared, [case("mps")])
    assert ". How a CPU compares is not answered here: no case ran on a CPU" in on_gpu
    assert "not answered here" not in said_of(declared, [case("cpu"), case("mps")])
    assert "not answered here" not in said_of(declared, [])


def test_joules_of_a_gpu_are_not_answered_without_one():
    said = said_of(of("energy"), [record("energy", {"step_s": metric(1.0)}, {})])
    assert said.startswith("The question is about a GPU and is not answered here: no case ran on a")
    joules = {"energy_gpu_j_per_step": metric(100.0, unit="J")}
    said = said_of(of("energy"), [record("energy", joules, {}, backend="mps")])
    assert "not answered" not in said


def test_an_opening_may_tell_the_values():
    said = said_of(of("vae"), [epoch(4.0, "cpu"), epoch(4.0)], values=False)
    assert "4.00 s" not in said and "Published time per epoch at batch size 128: " in said
    assert "Time per epoch" not in said


def test_the_shortest_and_the_longest_of_many_settings_are_told():
    sizes = (8, 16, 32, 64, 128, 256, 512)
    said = answer_of(*(epoch(100 / size, "cpu", batch_size=size) for size in sizes))
    assert "Of its 7 settings the shortest takes 0.195 s ± 1.0 % at batch size 512; " in said
    assert said.count("the longest, 12.5 s ± 1.0 % at batch size 8.") == 1


def test_passes_and_minutes_are_in_words():
    times = {name: metric(seconds) for name, seconds in (("forward_s", 1.0), ("backward_s", 2.0))}
    config = {"model": "gpt2", "lora": True, "offload": "none", "batch_size": 1}
    case = record("gpt2_finetuning", times | {"step_s": metric(3.5)}, config)
    said = said_of(of("gpt2_finetuning"), [case])
    assert "with model gpt2 and LoRA, without offload, at batch size 1: 3.50 s" in said
    parts = "The same case on the Apple M9 CPU in PyTorch: forward 1.00 s, backward 2.00 s."
    assert parts in said
    load = record("sustained_load", {"rate_left": metric(1.01, unit="%")}, {"minutes": 1.0})
    assert "after 1 min: " in said_of(of("sustained_load"), [load])


def test_a_disturbed_value_is_not_to_be_relied_on():
    said = answer_of(epoch(4.0, "cpu", flags=["busy", "few-steps"]))
    warning = "It was disturbed (busy): repeat it before you rely on this number."
    assert f"few steps). {warning} " in said
    assert "disturbed" not in answer_of(epoch(4.0, "cpu", flags=["few-steps"]))
    # A disturbed repeat is in no mean where two others are clean.
    flags = ([], [], ["busy"])
    repeats = [epoch(4.0, "cpu", repeat=repeat, flags=of) for repeat, of in enumerate(flags)]
    assert "disturbed" not in answer_of(*repeats)
