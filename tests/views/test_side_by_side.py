"""PyTorch compared with MLX: ratios computed by hand, and cases without a ratio."""

import pytest
from declared import of
from msgspec import structs
from records import metric, record

from pomology.paths import root
from pomology.results.run import Run
from pomology.views import answers, side_by_side

CONFIG = {"operation": "matvec", "shape": "8x9", "precision": "fp16"}


def case(framework, backend="cpu", config=None, seconds=1.0, checksum=7, **changes):
    values = {"kernel_s": metric(seconds, 0.99 * seconds, 1.01 * seconds, "s")}
    values["inputs_checksum"] = metric(checksum)
    fields = {"metrics": values, "config": config or CONFIG, "framework": framework}
    fields |= {"backend": backend, "precision": "fp16", "chip": "M2 Ultra"}
    return record("blas", **fields | changes)


def compared(*records):
    return side_by_side.side_by_side(records, of("blas"))


def varying(share, **changes):
    """The record of `instrument_check` that two equal runs differ by this share."""
    values = {"between_process_difference": metric(share, unit="")}
    return record("instrument_check", values, {"check": "same thing twice"}, **changes)


@pytest.mark.parametrize(
    ("seconds", "share", "verdict", "said"),
    [
        (3.0, 0.1, "MLX", "MLX is faster in 1, the other framework in 0; 0 show no difference"),
        (3.0, 0.3, "within run-to-run variation", "the other framework in 0; 1 show no difference"),
        (1.0, 0.3, "PyTorch", "MLX is faster in 0, the other framework in 1; 0 show no difference"),
        (3.0, None, "single runs", "0 show no difference beyond run-to-run variation, 1 have no"),
    ],
)
def test_single_runs_of_two_frameworks_differ_by_more_than_two_equal_runs(
    seconds, share, verdict, said
):
    """The intervals within a process, of 1 % here, decide nothing."""
    records = [case("torch", "mps", seconds=seconds), case("mlx", "mlx-gpu", seconds=2.0)]
    table = compared(*records, *([varying(share, backend="mps")] if share else []))
    (row,), (shown,) = table.data, table.rows
    factor = share and (1 + share) ** 1.9
    bounds = [row["ratio"] / factor, row["ratio"] * factor] if share else [None, None]
    assert row["ratio"] == pytest.approx(seconds / 2)
    assert [row.get("ratio_low"), row.get("ratio_high")] == pytest.approx(bounds)
    times = {f"{time:.2f} s ± 1.0 % in this process" for time in (seconds, 2.0)}
    assert times | {"GPU", "the same", verdict} < {*shown.cells.values()}
    assert said in " ".join(table.notes)


def test_repeats_of_two_frameworks_are_judged_by_their_processes():
    times = {"torch": (3.0, 3.1, 2.9), "mlx": (2.0, 2.1, 1.9)}
    records = [
        case(framework, seconds=seconds, repeat=repeat)
        for framework, of_framework in times.items()
        for repeat, seconds in enumerate(of_framework)
    ]
    (row,) = compared(*records).data
    assert row["verdict"] == "slower" and 1.3 < row["ratio_low"] < 1.5 < row["ratio_high"] < 1.7


def test_two_runs_of_one_framework_are_called_different_in_at_most_5_percent_of_cases():
    """Two repeats of the reference run, one of them as if it were the other framework's."""
    run = Run(root() / "outputs" / "reference-cpu").records
    checks = [each for each in run if each.experiment == "instrument_check"]
    different, judged = 0, 0
    for first, second in ((0, 1), (0, 2), (1, 2)):
        for name in ("blas", "gpt2_pretraining", "model_sizes"):
            of_name = [each for each in run if each.experiment == name]
            for framework in ("torch", "mlx"):
                same = [each for each in of_name if each.framework == framework]
                sides = [
                    structs.replace(each, repeat=0, framework=label, case=f"{label} {each.case}")
                    for repeat, label in ((first, "torch"), (second, "mlx"))
                    for each in same
                    if each.repeat == repeat
                ]
                rows = side_by_side.side_by_side([*sides, *checks], of(name)).data
                verdicts = [row["verdict"] for row in rows if row["verdict"]]
                judged += len(verdicts)
                different += sum(verdict in ("faster", "slower") for verdict in verdicts)
    assert judged > 400 and different <= 0.05 * judged


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (case("mlx", checksum=8), "different inputs"),
        (case("mlx", status="mismatch", reason="[3] is 1"), "one or both have no time"),
        (case("mlx", "mlx-gpu"), "not run with the other framework"),
        (case("mlx", config=CONFIG | {"shape": "9x9"}), "not run with the other framework"),
        (case("mlx", metrics={"kernel_s": metric(1.0)}), "unknown inputs"),
    ],
)
def test_different_cases_have_no_ratio(second, words):
    table = compared(case("torch"), second)
    assert words in table.data[0]["remark"]
    assert all(row["ratio"] is None for row in table.data)


def test_the_inputs_of_every_repeat_must_be_known():
    records = [case("torch"), case("torch", repeat=1), case("mlx"), case("mlx", repeat=1)]
    assert compared(*records).data[0]["ratio"] == 1
    records[3] = case("mlx", repeat=1, metrics={"kernel_s": metric(1.0)})
    assert compared(*records).data[0]["ratio"] is None


def trained(framework, experiment="vae", config=None, **seconds):
    """A training of 100 parameters with these times, each with an interval of 1 % around it."""
    values = {name: metric(x, 0.99 * x, 1.01 * x, "s") for name, x in seconds.items()}
    fields = {"framework": framework, "backend": "mps", "parameters": 100, "chip": "M2 Ultra"}
    return record(experiment, values, config or {"batch_size": 128}, **fields)


def test_all_trainings_of_a_run_are_joined_by_their_times_without_loading():
    records = [
        trained("torch", epoch_s=9.0, compute_epoch_s=3.0, step_s=0.1),
        trained("mlx", compute_epoch_s=2.0, step_s=0.01),
        trained("torch", "bert_base", step_s=1.0),
        trained("mlx", "bert_base", step_s=2.0),
        trained("tensorflow", "mlp_cnn_lstm", epoch_s=4.0, step_s=0.04),
        trained("mlx", "mlp_cnn_lstm", epoch_s=2.0, step_s=0.02),
        trained("torch", "peaks", {"operation": "matmul"}, kernel_s=1.0),
        trained("mlx", "peaks", {"operation": "matmul"}, kernel_s=1.0),
        trained("torch", "resnet50", step_s=1.0),
    ]
    table = side_by_side.joined(records)
    rows = {row["experiment"]: row for row in table.data}
    ratios = {name: row["ratio"] for name, row in rows.items()}
    wanted = {"vae": 1.5, "bert_base": 0.5, "mlp_cnn_lstm": 2.0, "peaks": None}
    assert ratios == {name: ratio and pytest.approx(ratio) for name, ratio in wanted.items()}
    assert rows["vae"]["metric"] == "compute_epoch_s" and rows["vae"]["framework"] == "torch"
    assert rows["mlp_cnn_lstm"]["framework"] == "tensorflow"
    panels = side_by_side.joined_figure(table).axes
    titles = ["GPU: MLX against PyTorch", "GPU: MLX against TensorFlow"]
    assert [panel.get_title(loc="left") for panel in panels] == titles
    assert [len(panel.get_yticklabels()) for panel in panels] == [2, 1]
    words = [text.get_text() for panel in panels for text in panel.texts]
    assert words == ["MLX 1.5× faster", "MLX 2.0× slower", "MLX 2.0× faster"]


@pytest.mark.parametrize(
    ("sizes", "note"),
    [
        ({"parameters": 2_378}, "other models: 2,378 and 2,404 parameters"),
        ({"flops_per_step": 3_000}, "other models: 3,000 and 2,000 FLOPs of a step"),
        ({"parameters": 2_404}, "inputs of equal shape"),
    ],
)
def test_models_of_other_sizes_have_no_ratio_though_their_settings_are_equal(sizes, note):
    settings = {"metrics": {"compute_epoch_s": metric(2.0)}, "config": {"hidden": 24}}
    common = {"parameters": 2_404, "flops_per_step": 2_000}
    torch = record("vae", **settings, **common, backend="mps")
    mlx = record("vae", **settings, **common | sizes, backend="mlx-gpu", framework="mlx")
    (row,) = side_by_side.joined([torch, mlx]).data
    assert row["remark"] == note and (row["ratio"] is None) == note.startswith("other")


def test_an_epoch_with_loading_is_not_compared_with_one_without():
    records = [trained("torch", epoch_s=9.0, step_s=0.1), trained("mlx", step_s=0.01)]
    (row,) = side_by_side.joined(records).data
    assert row["ratio"] is None and row["remark"] == side_by_side.NO_LOADER


def test_a_time_without_a_partner_is_not_shown_as_one_to_compare():
    slow = record("vae", {}, {"batch_size": 128}, framework="mlx", backend="mps", parameters=100)
    slow.status = "too-slow"
    (row,) = side_by_side.joined([trained("torch", epoch_s=9.0, step_s=0.1), slow]).rows
    assert (row.cells["Other framework"], row.cells["MLX"]) == ("PyTorch: timed", "too-slow")
    assert row.cells["Notes"] == "one or both have no time"


def told(*ratios, share=0.1):
    """The answer to MLX or PyTorch of trainings with these ratios of PyTorch's time to MLX's."""
    records = [varying(share, backend="mps")] if share else []
    for number, ratio in enumerate(ratios):
        records.append(trained("torch", f"model_{number}", step_s=0.1 * ratio))
        records.append(trained("mlx", f"model_{number}", step_s=0.1))
    return answers.frameworks(records)


def test_a_framework_is_faster_if_most_cases_say_so_and_none_the_other_way():
    said = told(2.0, 2.0, 2.0)
    assert said.startswith("MLX is 2.0× faster than PyTorch on the GPU (3 models, 2.0 to 2.0×; MLX")
    said = told(0.5, 0.5, 1.01)
    assert said.startswith("PyTorch is 1.6× faster than MLX on the GPU (3 models, 0.99 to")
    for ratios in ((1.01,) * 11 + (1.5,), (2.0, 2.0, 0.5), (1.0, 1.02)):
        assert "Neither is faster in most cases" in told(*ratios)
    said = told(0.1, 0.1, share=None)
    assert said.startswith("MLX's time is 10× PyTorch's on the GPU, without a verdict, since")
