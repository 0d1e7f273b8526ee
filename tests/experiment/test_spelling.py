"""Misspelt names and impossible sizes are one line before anything runs."""

import contextlib
from types import SimpleNamespace

import pytest

from pomology import Experiment
from pomology.errors import PomologyError
from pomology.experiment import experiment as experiment_module
from pomology.experiment import spelling


def experiment(tmp_path, **fields):
    return Experiment("vae", article="003", devices="cpu", out=str(tmp_path / "run"), **fields)


def test_a_column_that_is_nearly_a_metric_is_refused_and_an_own_metric_is_not(tmp_path):
    with pytest.raises(
        PomologyError, match=r"vae: columns has 'epoch_z'; did you mean 'epoch_s'\?"
    ):
        experiment(tmp_path, columns=["step_s", ("epoch_z", "Epoch")])
    experiment(tmp_path, columns=["perplexity", "epoch_s"])


def test_a_setting_that_is_nearly_one_of_the_cases_is_refused(tmp_path):
    declared = experiment(tmp_path, settings=["batch_size", ("widht", "Width")])
    with pytest.raises(PomologyError, match=r"vae: settings has 'widht'; did you mean 'width'\?"):
        next(declared.cases([{"batch_size": 4, "width": 8}]))
    # Published rows may have settings that the cases lack.
    next(experiment(tmp_path, settings=["batch_size", "versus"]).cases([{"batch_size": 4}]))


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_nothing_is_refused(tmp_path, size):
    with pytest.raises(PomologyError, match=f"vae: batch_size is {size}; it must be above 0"):
        next(experiment(tmp_path).cases(batch_size=[size]))


def test_a_part_of_the_data_is_a_setting_and_scales_the_case(tmp_path):
    """A shorter epoch is no published one, and compares with no whole one."""
    for profile, settings in (("quick", {"batch_size": 4, "samples": 3000}), ("smoke", None)):
        shortened = Experiment("vae", article="003", devices="cpu", profile=profile, out=tmp_path)
        shortened.dataset(SimpleNamespace(kind="real", origin="digits", part=3000))
        (case,) = shortened.cases(batch_size=[4])
        with case:
            case.metric("epoch_s", 3.0, "s")
        (record,) = [each for each in shortened.records if each.profile == profile]
        assert case.config == {"batch_size": 4}
        assert record.config == (settings or case.config) and record.scaled == bool(settings)
        assert ("samples=3000" in record.case) == bool(settings)


def test_after_a_refused_set_up_the_earlier_experiment_neither_measures_nor_shows(tmp_path):
    """JupyterLab may run the cells below the one that failed."""
    earlier, other = experiment(tmp_path), Experiment("siamese", article="003", out=tmp_path / "a")
    with pytest.raises(PomologyError, match="profile is 'quik'"):
        experiment(tmp_path, profile="quik")
    for use in (lambda: next(earlier.cases(batch_size=[4])), earlier.table, earlier.answer):
        with pytest.raises(PomologyError, match="vae: the set-up cell failed; correct it and run"):
            use()
    assert experiment(tmp_path).table() and other.table()


@pytest.mark.parametrize(
    ("value", "declared", "said"),
    [
        ("[128]", list[int], "batch_sizes is '[128]'; it must be list[int]"),
        (128, list[int], "batch_sizes is 128; it must be list[int]"),
        ([1.5], list[int], "batch_sizes is [1.5]; it must be list[int]"),
        ("3", float, "batch_sizes is '3'; it must be float"),
        ([128], list[int], ""),
        (3, float, ""),
        ("3", "list[int]", ""),  # the annotation of a module that postpones them
        ({}, SimpleNamespace, ""),  # a reader's own
    ],
)
def test_a_parameter_of_another_type_than_declared_is_refused(value, declared, said):
    names = {"batch_sizes": value, "__annotations__": {"batch_sizes": declared, "gone": int}}
    refused = pytest.raises(PomologyError) if said else contextlib.nullcontext()
    with refused as error:
        spelling.check_parameters("vae", names)
    assert not said or str(error.value) == f"vae: {said}"


def test_a_set_up_that_ran_anew_needs_the_cell_of_its_data(tmp_path, monkeypatch):
    """Its cases would be whole epochs of a part of the data, next to the article's."""
    monkeypatch.setattr(experiment_module, "get_ipython", lambda: SimpleNamespace(user_ns={}))
    data = SimpleNamespace(kind="stand-in", origin="drawn", part=100)
    first = experiment(tmp_path)
    first.dataset(data)
    next(first.cases([{"batch_size": 4}]))
    second = experiment(tmp_path)
    with pytest.raises(PomologyError, match="vae: the set-up cell has run anew; run the cells"):
        next(second.cases([{"batch_size": 8}]))
    second.dataset(data)
    next(second.cases([{"batch_size": 8}]))
    assert second.part == {"samples": 100}
