"""The bank of known silent faults, on a pretended M1: without any, and with each planted; and on devices without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pomology.devices import find, known_faults
from pomology.runner import doctor

FRAME = """
import json, math, os, sys
import torch
import pretended_mps
from pomology.devices import known_faults

aten, rehearsal = torch.ops.aten, pretended_mps.Rehearsal()
device, kept = pretended_mps._pretended_mps(rehearsal), dict(pretended_mps.BY_HAND)

def verdicts(chip="Apple M1 Pro", plant=None):
    type(device).name = chip
    for function, wrong in (plant or {}).items():
        right = kept.get(function, function)
        pretended_mps.BY_HAND[function] = lambda *a, wrong=wrong, right=right, **k: wrong(right(*a, **k), *a, **k)
    with rehearsal.entered():
        answers = {fault.what: said for fault, said in known_faults.look(device)}
    pretended_mps.BY_HAND.clear()
    pretended_mps.BY_HAND.update(kept)
    return answers

def long(result, a, *_, **__):
    return result * 1.2 if a.shape[-1] >= 32767 else result

def permuted(result, grad, x, *_, **__):
    return result if x.is_contiguous() else (result[0] + 0.1, *result[1:])

def early(result, x, *_, **named):
    return result.fill_(-1) if named.get("non_blocking") else result

chop = lambda result, *_, **__: (result.view(torch.int32) & ~0x1FFF).view(torch.float32)
PLANTS = {
    "products over 32,767 numbers or more": {aten.mm.default: long},
    "the same in a batch of products": {aten.bmm.default: long},
    "convolutions of 65,536 pictures or more": {
        aten.convolution.default: lambda result, x, *_, **__: result * (len(x) < 65_536)},
    "products with matrices of 2 GB": {
        aten.mm.default: lambda result, a, b: result * math.nan if b.numel() > 2**28 else result},
    "gradients of permuted inputs": {aten.native_batch_norm_backward.default: permuted},
    "copies that are read too early": {aten._to_copy.default: early},
    "TF32 in place of fp32": {aten.mm.default: chop},
}
json.dump({"none": verdicts(), "M4": verdicts("Apple M4"), **{name: verdicts(plant=plant) for name, plant in PLANTS.items()}}, sys.stdout)
sys.stdout.flush()
os._exit(0)
"""
PLANTED = (
    "products over 32,767 numbers or more",
    "the same in a batch of products",
    "convolutions of 65,536 pictures or more",
    "products with matrices of 2 GB",
    "gradients of permuted inputs",
    "copies that are read too early",
    "TF32 in place of fp32",
)


@pytest.fixture(scope="module")
def answers():
    command, environment = [sys.executable, "-W", "ignore", "-c", FRAME], os.environ | {"OMP_NUM_THREADS": "1"}
    texts = {"capture_output": True, "text": True, "env": environment}
    done = subprocess.run(command, check=False, cwd=Path(__file__).parent, **texts)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_an_m1_without_any_is_cured_of_those_that_concern_it(answers):
    cured = {what for what, said in answers["none"].items() if said == known_faults.CURED}
    assert set(PLANTED) <= cured
    assert not [said for said in answers["none"].values() if said.startswith(known_faults.PRESENT)]
    elsewhere = [what for what, said in answers["M4"].items() if said == known_faults.ELSEWHERE]
    assert set(elsewhere) >= {PLANTED[0], PLANTED[1], PLANTED[3]} and PLANTED[2] not in elsewhere


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_one_is_present_and_no_other(answers, fault):
    present = {what for what, said in answers[fault].items() if said.startswith(known_faults.PRESENT)}
    assert fault in present and present <= {fault, "gradients behind torch.compile"}, answers[fault]


def test_none_concerns_a_processor_and_all_have_a_source_and_a_cure():
    (device,) = find.find("cpu")
    assert {said for _, said in known_faults.look(device)} == {known_faults.ELSEWHERE}
    assert all(fault.source and fault.cure for fault in known_faults.FAULTS)


def test_the_doctor_says_which_are_present_and_what_helps():
    gpu = {"backend": "mps", "kind": "gpu", "reason": None}
    fine = ["a", "cured here", "issue 1", "cure 1"]
    clean = doctor._faults("torch", gpu | {"faults": [fine, ["b", known_faults.ELSEWHERE, "issue 2", "cure 2"]]})
    assert (clean.verdict, clean.remedy) == ("yes", "") and "issue 2" not in clean.answer
    ill = doctor._faults("torch", gpu | {"faults": [fine, ["b", "present here: by 20 %", "issue 2", "cure 2"]]})
    assert (ill.verdict, ill.remedy) == ("no", "b: cure 2") and "b (issue 2): present here: by 20 %" in ill.answer
