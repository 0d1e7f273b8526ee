"""Verification of a step on a mock MPS, with injected faults and with rounding only."""

from types import SimpleNamespace

import numpy as np
import planted
import pretended_mps
import pytest
import torch
import yaml
from planted import times

from pomology import Workload
from pomology.experiment.experiment import Experiment
from pomology.models import verify
from pomology.paths import root
from pomology.results.run import Run

pytestmark = [pytest.mark.process("torch"), pytest.mark.usefixtures("quiet_machine")]
aten, rehearsal = torch.ops.aten, pretended_mps.become(False)
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def verified(folder, faults, precision="fp32"):
    """Return the record of a case on a device with injected faults."""
    with rehearsal.entered(), planted.faults(faults):
        return train(precision, str(folder))


def training(precision, timed):
    """Return the training of `planted.Network`. timed: gets each optimizer that is made."""

    def optimizer(model):
        timed.append(torch.optim.Adam(model.parameters(), lr=1e-3))
        return timed[-1]

    def step(model, optimizer, images, tokens):
        optimizer.zero_grad()
        half = {"dtype": PRECISIONS[precision], "enabled": precision != "fp32"}
        with torch.autocast(images.device.type, **half):
            loss = planted.loss_of(model, images, tokens)
        loss.backward()
        optimizer.step()
        return loss

    return Workload(
        build=planted.Network,
        batch=planted.draw,
        optimizer=optimizer,
        step=step,
        autocast=precision != "fp32",
    )


def train(precision, folder):
    experiment = Experiment("sustained_load", article="kit", budget_s=20.0, out=folder)
    (case,) = experiment.cases(batch_size=[12], precision=[precision])
    with case:
        declared = training(precision, [])
        torch.manual_seed(1)
        model = case.watch_model(planted.Network().to(case.device))
        optimizer = declared.optimizer(model)
        before = {name: item.cpu().clone() for name, item in model.state_dict().items()}
        random = torch.get_rng_state()
        verify.workload(case, model, declared, 12, optimizer)
        after = model.state_dict()
        assert all(torch.equal(before[name], after[name].cpu()) for name in before)
        assert all(weight.grad is None for weight in model.parameters())
        assert torch.equal(random, torch.get_rng_state()) and not optimizer.state
        batch = case.backend.to_device(planted.draw(12))
        for _ in case.steps([batch] * 5, ready=False):
            case.loss(declared.step(model, optimizer, *batch).item())
    return experiment.records[0]


def one_row(result, *_, **__):
    if len(result) > 20:
        result[len(result) // 3] = 0.0
    return result


FAULTS = {
    "matmul": {aten.mm.default: times(1.01)},
    "matmul, the second shape": {aten.addmm.default: planted.second_size()},
    "matmul, a row": {aten.mm.default: one_row},
    "matmul, a NaN": {aten.mm.default: planted.one_nan},
    "gradient of images": {aten.convolution_backward.default: times(1.02)},
    "gradient of weights": {aten.convolution_backward.default: times(1.02, 1)},
    "update": {aten.addcdiv_.default: lambda result, x, *_, **__: x.mul_(1.001)},
    "update of odd places": {aten.addcdiv_.default: planted.odd_places_kept},
    "average of gradients": {aten.lerp_.Scalar: lambda result, x, y, w: x.copy_(y)},
    "gradient of repeated words": {
        aten.embedding_dense_backward.default: planted.without_repeats,
    },
    "gradient of ReLU": {aten.threshold_backward.default: planted.moved},
    "random numbers that repeat": {aten.randn_like.default: planted.the_same_again()},
    "random numbers that are too large": {aten.randn_like.default: times(1.1)},
    "a loss that is late": {aten._local_scalar_dense.default: planted.previous()},
}
SAID = {"update": "the update of", "matmul, a NaN": "a matmul of 512"}
SAID |= {"matmul": "a matmul of 512 × 512 in fp32 (mm) differs by 1 % from that in fp64"}


def test_a_device_that_computes_with_old_weights_does_not_learn(tmp_path):
    """Its gradients at the first weights are right, and so are its updates."""
    record = verified(tmp_path, {aten.addmm.default: planted.first_weights()})
    assert record.status == "not-learning" and "step_s" not in record.metrics, record.reason
    assert "steps on one batch; on the CPU it went to" in record.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_ends_as_a_mismatch_before_anything_is_timed(tmp_path, fault):
    record = verified(tmp_path, FAULTS[fault])
    assert record.status == "mismatch" and "step_s" not in record.metrics, record.reason
    assert SAID.get(fault, "") in record.reason


LATER = {
    "every 60th matmul": {aten.addmm.default: planted.after(0, times(3), every=60)},
    "convolutions after 14": {aten.convolution.default: planted.after(14, times(1.1))},
    "images lost after 900 copies": dict.fromkeys(
        (aten.copy_.default, aten._to_copy.default), planted.after(900, planted.lost_images)
    ),
    "updates after 400": {
        aten.addcdiv_.default: planted.after(400, lambda result, x, *_, **__: x.mul_(1.001))
    },
}


@pytest.mark.parametrize("fault", LATER)
def test_a_fault_that_comes_later_ends_as_a_mismatch_with_the_times(tmp_path, fault, monkeypatch):
    # A busy machine verifies fewer steps in the time of a case.
    monkeypatch.setattr(verify, "AGAIN_S", 60.0)
    record = verified(tmp_path, LATER[fault])
    assert record.status == "mismatch" and "step_s" in record.metrics, record.reason


def rounded(result, *_, **__):
    """Change the last digits of a result, as a sum in another order does."""
    return result * (1 + 1e-6 * torch.randn(result.shape, generator=NOISE))


NOISE = torch.Generator().manual_seed(1)
MATMULS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)


@pytest.mark.parametrize("precision", [*PRECISIONS, "rounding"])
def test_a_correct_device_passes_with_a_note(tmp_path, precision):
    if precision == "rounding":
        record = verified(tmp_path, dict.fromkeys(MATMULS, rounded))
    else:
        record = verified(tmp_path, {}, precision)
    assert record.status == "ok", record.reason
    assert {"step_s", "proof_s"} <= set(record.metrics) and "unproved" not in record.flags
    assert record.proof["rule"] == verify.RULE and 0 <= record.proof["unseen_weights"] <= 1
    assert record.proof["samples"] and record.proof["steps_after"]
    assert 2 <= record.proof["cpu_steps"] <= verify.CPU_STEPS
    assert record.note.startswith("verified against the CPU before it was timed")


class Sides:
    """A step on two devices. seconds: of the CPU per sample. late: error after the timing.

    rounding: what the CPU's relative error of 1 changes.
    """

    in_blocks = None
    traces = False

    def __init__(self, clock, wrong_above=99, seconds=0.02, late=0.0, rounding=0.0, wrong=0.1):
        self.clock, self.wrong_above, self.sizes = clock, wrong_above, []
        self.seconds, self.late, self.rounding, self.wrong = seconds, late, rounding, wrong
        self.optimizers, self.unverified, self.parameters = [], {"dropout"}, 4

    def reference(self, size, seed):
        self.clock[0] += self.seconds * size
        self.size = size
        return SimpleNamespace(seconds=self.seconds * size)

    def deviations(self, reference, noise=0.0, draw=0):
        if noise:
            return {"the gradient of x": verify.Deviation(self.rounding * noise, 2.0, 4)}
        self.sizes.append(self.size)
        late = self.late * ("restored" in self.sizes)
        wrong = self.wrong * (self.size > self.wrong_above)
        return {"the gradient of x": verify.Deviation(2 * (wrong + late), 2.0, 4)}

    def repeated(self, size):
        self.sizes.append(size)
        self.sizes.append(size)
        return {}

    def products(self, left, right):
        return {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sizes.append("restored")


@pytest.fixture
def run():
    """Function that verifies a case of 64 samples with given sides, and returns its notes."""

    def run(sides, budget_s=1.0, batch_size=64, again=False, precision="fp32"):
        notes = []
        backend = SimpleNamespace(kind="gpu", backend="mps", tf32=False, tf32_products=False)
        backend.reset_peak_memory = lambda: None
        case = SimpleNamespace(backend=backend, config={}, precision=precision, proof={})
        case.experiment = SimpleNamespace(budget_s=budget_s, profile="quick")
        case.note, case.metric = lambda *note: notes.append(note), lambda *_: None
        case.at_end = (lambda check: check(10.0)) if again else lambda _: None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verify.time, "perf_counter", lambda: sides.clock[0])
            verify.Verification(case, sides).before_timing(batch_size, batch_size, False)
        return notes

    return run


def test_a_batch_that_takes_the_cpu_too_long_is_verified_with_fewer_samples(run):
    sides = Sides([0.0])
    notes = run(sides)
    assert sides.sizes == [2, 10, "restored"]  # a quarter of a budget of 1 s is enough for 12
    assert notes[1] == ("verified with 10 of the 64 samples of a step", "unproved")
    assert notes[2] == ("not verified: dropout, the update of the weights",)
    assert len(run(Sides([0.0]), budget_s=6.0)) == 2


def test_the_verification_after_the_timing_takes_half_a_second_on_the_cpu(run):
    sides = Sides([0.0])
    notes = run(sides, again=True)
    assert sides.sizes[3:] == 12 * [2] + ["restored"]  # 12 steps of 2 samples take 0.48 s
    assert notes[-1] == ("verified after the timing in 12 steps against the CPU",)
    slow = Sides([0.0], seconds=0.3)
    notes = run(slow, again=True)
    assert slow.sizes[-3:] == [2, 2, "restored"]
    assert notes[-1] == ("verified after the timing by repeating a step",)


class Slow(Sides):
    """A step whose comparison takes as many of the CPU's steps as one may: rounding hides all."""

    def __init__(self, sample_s):
        super().__init__([0.0], seconds=sample_s, wrong_above=0, wrong=0.01)
        self.optimizers, self.parameters = ["an optimizer"], 25_000_000
        self.made = []  # samples of each step of the CPU

    def on_cpu(self, size):
        self.made.append(size)
        self.clock[0] += self.seconds * size

    def reference(self, size, seed):
        self.size = size
        self.on_cpu(size)
        return SimpleNamespace(seconds=self.seconds * size)

    def deviations(self, reference, noise=0.0, draw=0):
        if noise:
            self.on_cpu(self.size)
        # 0.5 % of the norm, at last explained by the rounding of the third draw.
        difference = 0.01 if not noise or draw == 2 else 1e-6
        return {"the gradient of x": verify.Deviation(difference, 2.0, 4)}

    in_blocks = deviations

    def updates(self, count, timed=False):
        return {}

    def losses(self, size, count, cpu, noise=0.0):
        for _ in range(count * cpu):
            self.on_cpu(size)
        return [2.0, *(count - 1) * [1.0]] if cpu and not noise else [2.0, *(count - 1) * [1.9]]


# Experiment -> samples of a GPU's case in `quick`; steps of the CPU, and their share of the case's
# time, where the CPU is as fast as the two virtual cores of the reference run, or eight times.
QUICK = {
    "resnet50": (64, {1: (30, 0.72), 8: (60, 0.50)}),
    "whisper_pretraining": (4, {1: (30, 0.90), 8: (50, 0.60)}),
}


@pytest.mark.parametrize("faster", [1, 8])
@pytest.mark.parametrize("experiment", QUICK)
def test_the_check_of_a_quick_case_makes_few_steps_on_the_cpu(run, experiment, faster):
    """At worst, when only the last draw of rounding explains a difference in every look."""
    records = Run(root() / "outputs" / "reference-cpu").records
    measured = [each for each in records if each.experiment == experiment]
    record = next(each for each in measured if "step_s" in each.metrics)
    sample_s = record.metrics["step_s"].value / record.config["batch_size"] / faster
    file = root() / "params" / "quick" / f"{experiment}.yaml"
    budget_s = yaml.safe_load(file.read_text(encoding="utf-8"))["budget_s"]
    batch_size, most = QUICK[experiment]
    sides = Slow(sample_s)
    run(sides, budget_s=budget_s, batch_size=batch_size, again=True)
    check_s = sides.clock[0]
    # Warm-up, and of five bursts three, in the loop and on pre-loaded batches.
    case_s = (0.2 + 0.6 + 0.2) * budget_s
    share = check_s / (check_s + case_s)
    print(f"{experiment} {faster}: {len(sides.made)} steps, {check_s:.2f} s, {share:.2f}")
    steps, share_at_most = most[faster]
    assert len(sides.made) <= steps < verify.CPU_STEPS and share <= share_at_most
    # Beside what is compared at least: two samples, and three steps that show whether it learns.
    least_s = 2 * sample_s * (1 + 3 + 3 + 2 * 3)
    assert check_s <= least_s + 2 * 0.25 * budget_s + 2 * 7 * 2 * sample_s + 0.5


# Differences of four repetitions of a step in turn, and whether they are accepted.
REPEATED = {
    "equal": ([0.0], True),
    "in changing order": ([0.4, 0.1, 0.3], True),
    "wrong once": ([0.4, 0.0, 0.001], False),
    "not finite": ([np.inf, 0.1, 0.1], False),
}


@pytest.mark.parametrize("way", REPEATED)
def test_a_repeated_step_differs_by_no_more_than_it_usually_does(run, way):
    differences, accepted = REPEATED[way]
    sides = Sides([0.0], seconds=0.3)
    turns = iter(differences)
    deviation = lambda: verify.Deviation(next(turns), 2.0, 4)  # noqa: E731
    sides.repeated = lambda size: {"the gradient of x": deviation()}
    if accepted:
        run(sides, again=True)
        return
    with pytest.raises(verify.Mismatch, match="from that of the same step before"):
        run(sides, again=True)


# Losses of the CPU, the device, and the CPU with rounding; and whether they are accepted.
LEARNING = {
    "as on the CPU": ([2.0, 1.0], [2.0, 1.4], [2.0, 1.0], True),
    "a tenth of the change": ([6.41, 1.53], [6.41, 6.30], [6.41, 1.54], False),
    "the other way": ([2.0, 1.0], [2.0, 3.0], [2.0, 1.0], False),
    "no change that tells": ([2.0, 1.91], [2.0, 2.0], [2.0, 1.91], True),
    "rounding grows": ([2.0, 1.0], [2.0, 1.9], [2.0, 1.2], True),
    "rounding parts and meets": ([0.9, 0.6, 0.4], [0.9, 1.7, 2.8], [0.9, 2.0, 0.4], True),
    "not finite": ([2.0, 1.0], [2.0, np.nan], [2.0, 1.0], False),
}


@pytest.mark.parametrize("way", LEARNING)
def test_a_loss_changes_as_on_the_cpu_in_the_same_first_steps(run, way):
    cpu, device, rounded, accepted = LEARNING[way]
    sides = Sides([0.0])
    sides.optimizers, sides.updates = ["an optimizer"], lambda *_: {}
    sides.losses = lambda size, count, on_cpu, noise=0.0: (
        rounded if noise else cpu if on_cpu else device
    )
    if accepted:
        run(sides)
        return
    with pytest.raises(verify.NotLearning, match="on one batch; on the CPU it went to"):
        run(sides)


# Differences of the whole step in turn; a block's is 0, and 0.001 are allowed. The draw of rounding
# in which the CPU differs as much, and whether the step is accepted.
IN_TURN = {
    "a bend of a ReLU": ([0.2, 0.2, 0.2], None, True),
    "a bend that only rounding reaches": ([0.2, 0.0, 0.001], 20, True),
    "in changing order": ([0.2, 0.0, 0.05], None, True),
    "now and then": ([0.2, 0.0, 0.001], None, False),
    "far off": ([0.9, 0.9, 0.9], None, False),
}


@pytest.mark.parametrize("way", IN_TURN)
def test_a_difference_that_blocks_do_not_explain_has_to_come_again(run, way):
    differences, bent, accepted = IN_TURN[way]
    sides = Sides([0.0], rounding=0.0)
    turns = iter(differences)

    def deviations(reference, noise=0.0, draw=0):
        difference = 0.2 * (draw == bent) if noise else next(turns, 0.0)
        return {"the gradient of x": verify.Deviation(difference, 2.0, 4)}

    sides.deviations = deviations
    sides.in_blocks = lambda *_: {"the gradient of x": verify.Deviation(0.0, 2.0, 4)}
    if accepted:
        run(sides)
        return
    with pytest.raises(verify.Mismatch):
        run(sides)


def test_a_step_is_verified_again_as_strictly_as_at_first(run):
    run(Sides([0.0], late=1e-4), again=True)
    with pytest.raises(verify.Mismatch, match=r"the gradient of x differs by 0\.04"):
        run(Sides([0.0], late=0.02), again=True)


@pytest.mark.parametrize(("rounding", "accepted"), [(0.0, False), (0.03, False), (0.04, True)])
def test_a_difference_is_allowed_if_six_times_the_rounding_explains_it(run, rounding, accepted):
    """The gradient differs by 0.2; the rounding makes 0.18 or 0.24 of it six times."""
    sides = Sides([0.0], wrong_above=2, rounding=rounding / verify.ROUNDING["fp32"])
    if accepted:
        run(sides)
        return
    with pytest.raises(verify.Mismatch, match="in a step of 10 samples on the mps"):
        run(sides)


@pytest.mark.parametrize(("first_norm", "accepted"), [(0.69, True), (0.01, False)])
def test_a_trained_loss_near_0_is_compared_relative_to_the_first_one(run, first_norm, accepted):
    """0.0112 and 0.01 differ by 12 %, and by 0.2 % of the untrained loss of two classes."""
    backend = SimpleNamespace(kind="gpu", backend="mps", tf32=False, tf32_products=False)
    verification = verify.Verification(
        SimpleNamespace(backend=backend, config={}, precision="bf16"), Sides([0.0])
    )
    verification.step.in_blocks = lambda *_: {}
    verification.first_norms = {"the loss": first_norm}
    seen = verify.compared({"the loss": np.array(0.0112)}, {"the loss": np.array(0.01)})
    if accepted:
        verification._refuse(seen, verification._tolerances(seen), 2)
        return
    with pytest.raises(verify.Mismatch, match=r"the loss differs by 0\.0012"):
        verification._refuse(seen, verification._tolerances(seen), 2)


class Held:
    """The CPU's step of so many samples, whose outputs take 100 bytes for each, and 500 more."""

    def __init__(self, size, seed):
        self.size, self.seed, self.smaller = size, seed, None
        self.bytes = 500 + 100 * size
        few = size == verify.SMALLEST or self.bytes <= verify.BLOCKS_BYTES
        self.outputs = ["an output"] if few else []


@pytest.mark.parametrize(("limit", "sizes"), [(7000, [64]), (6000, [64, 32]), (600, [64, 5, 2])])
def test_what_takes_too_much_memory_is_kept_of_fewer_samples(monkeypatch, limit, sizes):
    monkeypatch.setattr(verify, "BLOCKS_BYTES", limit)
    run = [Held(64, 0)]

    def smaller(size, seed):
        run.append(Held(size, seed))
        return run[-1]

    kept = verify.with_blocks(run[0], smaller)
    assert [each.size for each in run] == sizes and kept is run[-1] and kept.outputs
    assert verify.with_blocks(run[0], smaller) is kept  # each of them runs once


def test_a_gradient_that_a_step_lacks_or_adds_is_refused():
    deviations = verify.compared({"b": np.ones(2)}, {"a": np.ones(2)})
    assert {name: each.what for name, each in deviations.items()} == {
        "a": "is missing",
        "b": "is none of the CPU's",
    }
    assert all(each.difference == np.inf for each in deviations.values())


@pytest.mark.parametrize("place", [0, 1, 4_999, 9_999])
def test_an_element_that_is_not_updated_is_found_at_every_place(place):
    before = np.linspace(-1, 1, 10_000, dtype="f")
    cpu = before + np.float32(1e-3)
    device = cpu.copy()
    assert verify.of_update(before, device, cpu, 2e-7).difference == 0
    device[place] = before[place]
    deviation = verify.of_update(before, device, cpu, 2e-7)
    assert deviation.difference > 100
    assert deviation.what.startswith(
        "differs from the CPU's at 1 of 10,000 elements, by up to 0.001"
    )


def test_words_have_the_borders_of_the_vocabulary_and_repeat():
    drawn = verify.words(500, 6, 20)
    assert drawn.shape == (6, 20) and {0, 1, 499} <= set(drawn.flatten().tolist())
    assert (drawn == drawn.roll(1, -1)).any() and drawn.max() < 500
    _, counts = verify.words(33_000, 20, 35).unique(return_counts=True)
    assert counts.max() > 50 and counts.sort().values[-2] <= 10  # of 700
    assert verify.words(9, 2).tolist() == [0, 1]
    with torch.device("meta"):
        assert verify.words(500, 6, 20).shape == (6, 20)
