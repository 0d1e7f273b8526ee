"""Predictions: the model against sums done by hand, times that obey it, and what the command says of them"""

import numpy as np
import pytest
from pomology.report.showing import Report
from records import metric, product, rate, record, stream

from pomology.__main__ import main
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.prediction import model, operators, predict, rates, rows, shown, validate
from pomology.extras.prediction.model import Model, Observed
from pomology.extras.prediction.operators import Operator
from pomology.extras.prediction.rates import Device
from pomology.measure.estimate import Estimate
from pomology.results import cases

PEAKS = {"fp32": 10e12, "tf32": None, "half": 100e12}
CARD = Device("a card", PEAKS, 500e9, "cuda", "by hand")
SHARES = np.array([0.5, 0.8, 0.1, 0.3, 0.4, 0.25, 0.6, 0.6, 1e-5, 1.0])
MODEL = Model(SHARES, (-0.1, 0.2))
STEP = [Operator("convolution", 1e12, 1e9, 100), Operator("elementwise", 0, 3e10, 300)]


def test_a_step_is_the_larger_of_computing_and_moving_of_each_operator_and_launches():
    """1e12 / (0.5 · 10e12) = 0.2 s, more than 1e9 / 300e9; 3e10 / 300e9 = 0.1 s; 400 launches of 10 µs = 4 ms."""
    made = MODEL.predict(STEP, CARD)
    assert made.step_s.value == pytest.approx(0.304)
    assert (made.step_s.low, made.step_s.high) == pytest.approx((0.304 * np.exp(-0.1), 0.304 * np.exp(0.2)))
    assert made.bound == "operations" and sum(made.parts.values()) == pytest.approx(1)
    half = MODEL.predict(STEP, CARD, "bf16")  # 1e12 / (0.25 · 100e12) = 0.04 s
    assert half.step_s.value == pytest.approx(0.144) and half.bound == "memory traffic"


def test_the_time_of_a_launch_that_a_run_has_measured_is_taken():
    made = MODEL.predict(STEP, CARD._replace(launch_s=1e-3))
    assert made.step_s.value == pytest.approx(0.7) and made.bound == "launches"


def test_a_processor_s_convolutions_have_a_ceiling_of_their_own_beside_its_products():
    kernels = [product(2e11), product(1.9e11), product(5e11, operation="convolution")]
    processor = rates.measured_devices([*kernels, stream(1e10)], "a run")["cpu"]
    assert (processor.flops_per_s, processor.convolution) == ({"fp32": 2e11}, 5e11)
    assert rates.measured_devices([kernels[0], stream(1e10)], "a run")["cpu"].convolution is None
    for kind, reached in (("product", 0.8 * 2e11), ("convolution", 0.8 * 5e11), ("depthwise", 0.08 * 5e11)):
        made = MODEL.predict([Operator(kind, 1e12, 0, 0)], processor)
        assert made.step_s.value == pytest.approx(1e12 / reached)


def of_single(name: str, count: int, value: float):
    metrics = {"flops_per_s" if name == "depthwise" else "bytes_per_s": metric(value)}
    return record("ceilings", metrics, {"operation": name, "shape": f"{count // 10}x10", "precision": "fp32"})


def test_a_processor_s_operators_take_the_rates_of_those_that_were_timed():
    """An addition of 10 MB is between those of 1 and 100 MB, which reach 40 and 10 GB/s: 20, of which a training has
    0.6. In place nothing is slower than the memory. A convolution moves twice what it reads and writes, besides."""
    timed = [of_single(name, 10**6, 1e10) for name in rates.SINGLE - {"addition", "depthwise"}]
    timed += [of_single("addition", 250_000, 4e10), of_single("addition", 25_000_000, 1e10)]
    timed += [of_single("depthwise", 10**6, value) for value in (4e9, 5e9, 9e9)]
    processor = rates.measured_devices([product(2e11), stream(1e10), *timed], "a run")["cpu"]
    assert processor.single["depthwise"] == [(4e6, 5e9)]
    large, small = {"largest": 10**8}, {"largest": 10**7}
    for operator, seconds in (
        (Operator("elementwise", 0, 1e9, 0, **small), 1 / 12),
        (Operator("elementwise", 0, 1e9, 0, **large), 1 / 6),
        (Operator("elementwise", 0, 1e9, 0, **large, fresh=False), 1 / 10),
        (Operator("reduction", 0, 1e9, 0, **small, like="batch_norm"), 1 / 10),
        (Operator("depthwise", 1e10, 0, 0, **small), 2),
        (Operator("product", 1e11, 1e9, 0, **small), 1 / 1.6 + 1 / 12),
        (Operator("convolution", 1e11, 1e9, 0, **small, filled=0.5), 2 / 1.6 + 2 / 12),
        (Operator("elementwise", 0, 1e9, 0), 1 / 5),  # of many operators, of which no size is known
    ):
        assert MODEL.predict([operator], processor).step_s.value == pytest.approx(seconds), operator
    assert not rates.measured_devices([product(2e11), stream(1e10), *timed[1:]], "a run")["cpu"].single
    for text in ("", "0x10", "10x" * 20_000, "1e9x1"):  # of a stranger's file
        wrong = record("ceilings", {"bytes_per_s": metric(1e10)}, {"operation": "addition", "shape": text})
        assert rates.measured_devices([product(2e11), stream(1e10), *timed, wrong], "a run")["cpu"] == processor
    absurd = processor._replace(single={"addition": [(1e6, 1e99)]})
    with pytest.raises(PomologyError, match=r"addition: 1e\+99 B/s"):
        MODEL.predict(STEP, absurd)


def test_half_precision_is_of_the_runs_own_ceiling_or_refused_in_one_line():
    """fp16 and bf16 differ by ten times on some processors. 1e12 / (0.8 · 20e12) and / (0.8 · 2e12) s of products."""
    own = CARD._replace(flops_per_s={"fp32": 10e12, "bf16": 20e12, "fp16": 2e12}, measured=True)
    work = [Operator("product", 1e12, 0, 0)]
    assert MODEL.predict(work, own, "bf16").step_s.value == pytest.approx(1 / 16)
    assert MODEL.predict(work, own, "fp16").step_s.value == MODEL.predict(work, own, "amp").step_s.value == 0.625
    lacks = own._replace(flops_per_s={"fp32": 10e12})
    with pytest.raises(PomologyError, match=r"^bf16: a card must have a ceiling in it in by hand; it has fp32$"):
        MODEL.predict(work, lacks, "bf16")
    assert shown.usable([own, lacks], "bf16")[0] == [own]


def invented(spread: float = 0.0, seed: int = 0, devices: int = 12, workloads: int = 8) -> list[Observed]:
    """Times of devices and workloads that obey the model with SHARES, but for this spread of their logarithms."""
    random, made = np.random.default_rng(seed), []
    for number in range(devices):
        device = CARD._replace(name=f"card {number}", bytes_per_s=random.uniform(1e11, 2e12))
        device = device._replace(
            flops_per_s={key: peak and peak * random.uniform(0.2, 5) for key, peak in PEAKS.items()}
        )
        for workload in range(workloads):
            kinds = random.permutation(["convolution", "product", "depthwise", "elementwise"])
            steps = [
                Operator(str(kind), 10 ** random.uniform(9, 13), 10 ** random.uniform(8, 10), 99) for kind in kinds
            ]
            precision = ("fp32", "half")[workload % 2]
            about = (f"w{workload}", device, precision, 32, "here", "2026")
            one = Observed(*about, 1.0, model.lines(steps, device, precision))
            step_s = float(model.Stack([one]).parts(SHARES).sum()) * float(np.exp(random.normal(0, spread)))
            made.append(one._replace(step_s=step_s))
    return made


def errors(times: list[Observed], *how: str) -> validate.Errors:
    return validate.Errors("", *model.left_out(times, *how))


def test_times_that_obey_the_model_are_predicted_without_their_device_and_without_their_workload():
    for group in ("device.name", "workload"):
        assert errors(invented(), group).row()["median"] < 0.05


def test_the_interval_covers_what_it_says_where_the_spread_is_known():
    row = errors(invented(0.3), "device.name").row()
    assert 0.8 <= row["covered"] <= 0.97
    assert row["median"] == pytest.approx(0.2, abs=0.08)  # of a lognormal with 0.3: exp(0.3 · 0.674) - 1 = 0.22


def test_a_device_that_is_left_out_cannot_tell_its_own_time_but_its_other_workloads_can():
    """A card ten times as slow as its peaks say is missed by ten, whatever its own times are, until those of its other
    workloads calibrate what is predicted."""
    times = [one._replace(step_s=10 * one.step_s) if one.device.name == "card 3" else one for one in invented()]
    own, left = np.array([one.device.name == "card 3" for one in times]), errors(times, "device.name")
    assert np.median(left.logs[own]) == pytest.approx(np.log(10), abs=0.15)
    assert not left.covered[own].any()
    known = errors(times, "workload", "device.name")
    assert np.abs(known.logs).max() < 0.3


def test_a_factor_of_a_device_is_recovered_from_its_other_workloads_and_few_times_move_nothing():
    times = [one._replace(step_s=1.7 * one.step_s) for one in invented(devices=1)]
    asked = times[0]
    few, known = (MODEL.calibrated(asked.device, some, asked.workload) for some in (times[:3], times))
    before, after, little = (np.exp(model.Stack([asked]).left(one.shares)[0]) for one in (MODEL, known, few))
    assert before == pytest.approx(1.7) and after == pytest.approx(1, abs=0.05) and little == pytest.approx(1.7)
    assert (known.times, known.workloads, few.times) == (7, 7, 2)
    assert known.spread[1] - known.spread[0] < 0.3 <= few.spread[1] - few.spread[0] + 1e-9
    assert MODEL.calibrated(CARD, times).times == 0  # those of another device say nothing of this one


def test_a_users_model_on_a_runs_device_has_the_general_interval_at_the_least():
    """A run's times are of the kit's own trainings, which are more alike than anybody's model is to them."""
    times, general = invented(devices=1), Model(SHARES, (-0.55, 0.55))
    here = times[0].device._replace(measured=True)
    times = [one._replace(device=here) for one in times]
    own, kit = (general.calibrated(here, times, workload) for workload in ("", times[0].workload))
    assert kit.spread[1] < 0.5 and own.spread == (-0.55, 0.55)
    assert (own.widened, own.covered) == (True, kit.covered) and "this one is wider" in own.held
    assert not general.calibrated(here._replace(measured=False), times).widened  # others' times are of many kinds
    cpu = here._replace(backend="cpu", flops_per_s={"fp32": 1e11}, launch_s=None)
    assert general.calibrated(cpu, []).spread == (-0.58, 0.86)  # also of a run without a time of its own
    timed = cpu._replace(single={"addition": [(4e6, 1e10)]})  # which narrows it on the kinds of chips that were tried
    chips = map(cases.short_chip, ("AMD EPYC", "Intel(R) Xeon(R) Processor", "Apple M4 Max", "Neoverse-V2"))
    spreads = [MODEL.calibrated(timed._replace(name=f"{name} CPU"), []).spread for name in chips]
    assert spreads == [(-0.43, 0.405)] * 2 + [(-0.58, 0.86)] * 2


def test_a_class_of_operators_that_rows_have_moves_alone():
    """Convolutions twice as slow as the shares say, in eight times that hardly differ by anything else."""
    slow = SHARES.copy()
    slow[[0, 5]] /= 2
    times = invented(devices=1, workloads=24)
    times = [one._replace(step_s=float(model.Stack([one]).parts(slow).sum())) for one in times]
    made = MODEL.calibrated(times[0].device, times).shares
    assert made[9] * made[1] == pytest.approx(SHARES[1], rel=0.2) and made[0] / made[9] == pytest.approx(0.25, rel=0.2)


def test_the_interval_of_a_calibrated_device_covers_nine_of_ten():
    """Forty devices with a factor and a spread of their own; each time is predicted from the other workloads' only."""
    inside = []
    for seed in range(40):
        factor = np.exp(np.random.default_rng(seed).normal(0, 0.4))
        times = [one._replace(step_s=factor * one.step_s) for one in invented(0.25, seed, 1, 12)]
        for asked in times[:4]:
            known = Model(SHARES, (-0.55, 0.55)).calibrated(asked.device, times, asked.workload)
            off = model.Stack([asked]).left(known.shares)[0]
            inside.append(known.spread[0] <= off <= known.spread[1])
    assert 0.85 <= np.mean(inside) <= 0.95


def test_errors_are_those_of_the_prediction_over_the_measured_time():
    row = validate.Errors("x", np.log([1.0, 2.0, 0.8]), np.array([True, False, True])).row()
    assert row["median"] == pytest.approx(0.25) and row["mean"] == pytest.approx((0 + 0.5 + 0.25) / 3)
    assert row["within_30"] == pytest.approx(2 / 3) and row["covered"] == pytest.approx(2 / 3)


def test_published_work_is_what_is_counted_of_the_kits_own_model():
    """VGG-16 for pictures of 224 pixels, which notebooks have too: its operations by this kit's other counter."""
    import torch

    from pomology.models import cost, vision

    images = torch.empty(4, 3, 224, 224, device="meta")
    counted = cost.workload(vision.vgg16, lambda m: m(images).mean().backward())
    ours = rows.operators_of("vgg16", 224, "fp32", 4)
    assert sum(each.flops for each in ours) == pytest.approx(counted.flops, rel=1e-3)
    seen = operators.count(vision.vgg16(), operators.step([images]), optimizer="sgd", backend="cuda").operators
    assert sum(each.bytes for each in ours) == pytest.approx(sum(each.bytes for each in seen), rel=0.02)


def test_published_times_without_serious_faults_are_used_and_the_kept_numbers_are_their_fit():
    times = rows.elsewheres()
    kept = model.model()
    assert len(times) == kept.times
    assert model.fit(model.Stack(times)) == pytest.approx(kept.shares, rel=0.01)


def test_every_data_sheet_is_in_order_of_magnitude_what_its_kin_have():
    for device in rates.published_devices().values():
        fp32, half = device.flops_per_s["fp32"], device.flops_per_s["half"]
        assert 1e12 < fp32 < 2e14 and 5e10 < device.bytes_per_s < 1e13, device
        assert half is None or fp32 <= half <= 32 * fp32, device
    for line in published.read("peaks.csv"):  # where both files have a device, they agree
        device = rates.published_devices().get(line["device"])
        if device and line["precision"] == "fp32":
            assert device.flops_per_s["fp32"] == pytest.approx(float(line["peak_flops_per_s"]), rel=0.1), device


def test_the_command_says_what_is_predicted_and_from_what(capsys):
    lines = predict.answer("mlp 128", 60_000, on="M2 Max GPU")
    text = "\n".join(lines)
    assert "predicted for M2 Max GPU from published peaks" in text and "60,000 samples, 469 steps" in text
    assert "90 % interval" in text and "published times" in text
    assert main(["predict", "mlp 128", "--on", "M2 Maxx GPU"]) == 2
    assert "M2 Max GPU" in capsys.readouterr().err


def test_a_wrong_workload_or_a_size_that_lacks_gets_one_line():
    for target, said in (("nothing 3", "must read"), ("resnet50 32", "some need a size")):
        with pytest.raises(PomologyError, match=said):
            predict.answer(target, on="RTX 3090")


def test_a_prediction_says_that_it_is_estimated():
    step = MODEL.predict(STEP, CARD).step_s
    assert isinstance(step, Estimate) and step.how == "estimated"


@pytest.mark.parametrize("wrong", [0.0, -1e12, float("nan"), 1e30])
def test_an_absurd_ceiling_is_named_and_nothing_is_predicted_from_it(wrong):
    for absurd in (
        CARD._replace(bytes_per_s=wrong),
        CARD._replace(flops_per_s=PEAKS | {"fp32": wrong}),
        CARD._replace(launch_s=wrong),
    ):
        with pytest.raises(PomologyError, match=r"a card, .*of by hand; must be"):
            MODEL.predict(STEP, absurd)
        good, notes = shown.usable([absurd, CARD])
        assert good == [CARD] and len(notes) == 1 and "\n" not in notes[0]


def test_what_machines_would_do_is_named_predicted_and_drawn_hollow(tmp_path):
    known = Model(SHARES, (-0.2, 0.2), 10, 0.9)
    made, notes = shown.machines("resnet50 32 224", "fp32", shown.Own({}, [], []), known)
    steps = [one.prediction.step_s.value for one in made]
    assert len(made) == len(rates.published_devices()) and steps == sorted(steps)
    table = shown.machines_table("resnet50 32 224", "fp32", made, notes, known)
    assert "predicted, not measured" in table.title and "90 % of them" not in table.title
    for row in table.rows:
        assert row.cells[1].startswith("predicted ") and row.cells[-1].startswith("published peaks"), row
    report = Report("prediction", article="kit", combines=["*"], out=str(tmp_path / "run"))
    shown.keep(report, "machines", table)
    assert (tmp_path / "run/tables/prediction-machines.json").exists()
    assert not list(tmp_path.rglob("*.csv"))  # nothing predicted is among numbers for programs
    figure = shown.machines_figure(made, "predicted")
    marks = [line for line in figure.axes[0].lines if line.get_marker() in ("o", "D")]
    assert marks and {line.get_markerfacecolor() for line in marks} == {"none"}
    with pytest.raises(PomologyError, match="resnet50 is counted at size 224"):
        shown.asked("resnet50 32 225", "fp32")


def ended(experiment: str, flops: int | None, moved: int | None, **config):
    work = {"flops_per_step": flops, "bytes_per_step": moved}
    return record(experiment, {}, {"batch_size": 1} | config, status="too-slow", reason="a step would take 9 s", **work)


def test_what_was_too_slow_here_is_predicted_from_the_runs_ceilings_and_the_rest_is_named(monkeypatch):
    """1e12 / (0.8 · 10e12) + 3e10 / (0.6 · 500e9) = 0.225 s."""
    slow = ended("vae", 1_000_000_000_000, 30_000_000_000)
    card = CARD._replace(source="the ceilings measured in the run mine")
    monkeypatch.setattr(rates, "measured_devices", lambda *_: {"cpu": card})
    twice = ended("whisper_finetuning", 10**12, 10**10, recompute=True)
    records = [slow, ended("dcgan", None, None), twice]
    table = shown.here(records, shown.own(records, "mine"), Model(SHARES, (-0.2, 0.2), 10, 0.9))
    (row,) = table.rows
    assert row.cells[0] == "vae" and row.cells[3:5] == ("too-slow", "predicted 0.23 s")
    assert any("in the run mine" in note for note in table.notes)
    assert any("Not predicted" in note and "dcgan (1), whisper_finetuning (1)" in note for note in table.notes)
    monkeypatch.setattr(rates, "measured_devices", lambda *_: {})
    empty = shown.here([slow], shown.own([slow], "mine"), Model(SHARES, (-0.2, 0.2)))
    assert not empty.rows and shown.NO_CEILINGS in empty.notes


def test_times_of_a_run_are_of_steps_on_ready_inputs_and_the_loader_is_known_apart(monkeypatch):
    """1e9 operations at 1e11 a second take 10 ms; with loading a step takes 14 ms, for 8 samples 0.5 ms each."""
    work = {"flops_per_step": 10**9, "bytes_per_step": 10**8}
    metrics = rate(1e11) | {"step_s": metric(0.014, unit="s"), "compute_epoch_s": metric(1.0, unit="s")}
    ready = record("energy", metrics, {"batch_size": 8}, **work)
    others = [record("energy", metrics, {"batch_size": 4, "recompute": True}, **work), record("energy", rate(1e11))]
    ((_, one),) = rows.of_run([ready, *others], "mine", {"cpu": CARD})
    assert (one.workload, one.batch, one.step_s) == ("energy", 8, pytest.approx(0.01))
    assert one.work[:, 2:] == pytest.approx(np.array([[1e9 / 10e12, 0, 0], [0, 1e8 / 500e9, 0]]))
    assert rows.loading_s([ready], "energy", "cpu") == pytest.approx(0.0005)
    assert rows.loading_s([ready], "vae", "cpu") is None


def test_a_training_of_the_kit_is_counted_again_by_operators_where_they_add_up():
    vae = rows.count({"workload": "vae", "batch_size": 128}, backend=CARD.backend).operators
    flops = int(sum(one.flops for one in vae))
    for stated, parts in ((flops, len(vae)), (2 * flops, 2)):
        of = record("vae", rate(1e11), flops_per_step=stated, bytes_per_step=10**8)
        ((_, one),) = rows.of_run([of], "mine", {"cpu": CARD})
        assert len(one.work) == parts


def test_the_articles_own_times_have_devices_and_years():
    times = rows.articles()
    assert {"siamese", "dcgan", "transformer_lm"} <= {one.workload for one in times}
    assert any(one.device.name == "M1 Ultra GPU" for one in times) and not any(one.workload == "vae" for one in times)
    assert all(0.001 < one.step_s < 60 and one.year.startswith("20") for one in times)
