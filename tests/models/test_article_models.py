"""Copies of the articles' small models, against the models of their own notebooks."""

import pytest
import torch
from notebook_code import definitions

from pomology.data import photographs
from pomology.models.article_workloads import article_workloads

# Notebook -> its workload.
NOTEBOOKS = {
    "vae": "vae",
    "siamese": "siamese",
    "dcgan": "dcgan",
    "transformer_lm": "language_model(200, 2, 200)",
}
SAMPLES = {"photographs": range(photographs.LSUN_CLASSROOM_IMAGES), "pairs": range(60_000)}
SAMPLES |= {"train_set": range(60_000)}
BATCH = 2


def of_notebook(name, **values):
    return eval(NOTEBOOKS[name], definitions(name, **SAMPLES, **values))


def of_copy(name):
    return article_workloads(lr=0.01)[name].workload


def inputs_of_copy(name, batch):
    """The inputs of a notebook's step, as the copy's step takes them."""
    if name == "dcgan":  # the notebook's step draws the noise, with the seed of `stepped`
        torch.manual_seed(2)
        return *batch, torch.randn(BATCH, 100, 1, 1)
    return batch[:1] if name == "transformer_lm" else batch  # whose targets are its inputs


def stepped(workload, batch):
    """Initial weights, the loss of a step, and its gradients in units of their norm.

    Of their norm, because one notebook clips them.
    """
    torch.manual_seed(1)
    model = workload.build()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(2)
    loss = workload.step(model, workload.optimizer(model), *batch)
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    norm = torch.stack([each.norm() for each in gradients.values()]).norm()
    losses = loss[:2] if isinstance(loss, tuple) else [loss]  # DCGAN's of both networks
    shares = {name: each / norm for name, each in gradients.items()}
    return weights, float(sum(torch.as_tensor(each).detach() for each in losses)), shares


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_copy_is_the_model_of_its_notebook(name):
    # With a rate of 0, since DCGAN updates one network before it computes the other's loss.
    own = of_notebook(name, lr=0.0)
    batch = own.batch(BATCH)
    weights, loss, gradients = stepped(own, batch)
    copied = stepped(of_copy(name), inputs_of_copy(name, batch))
    torch.testing.assert_close(copied[0], weights, rtol=0, atol=0)
    assert copied[1] == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(copied[2], gradients, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_copy_costs_what_its_notebook_does(name):
    cost, copied = of_notebook(name).cost(BATCH), of_copy(name).cost(BATCH)
    for each in ("parameters", "flops", "forward_flops"):
        assert getattr(copied, each) == getattr(cost, each), each
