"""SimCLR in the profile `article`, on a few images: the benchmark's own run of two epochs."""

import pytest
import smoke

from pomology.paths import root

PARAMETERS = {"profile": "article", "samples": 32, "batch_size": 8, "workers": 0, "budget_s": 0.1}


@pytest.mark.machines
def test_the_run_of_two_epochs_is_timed_as_a_whole(tmp_path):
    path = root() / "notebooks" / "m1_and_m2_ssl" / "simclr.ipynb"
    run = smoke.Execution(path, PARAMETERS, tmp_path)
    run.run()
    assert run.noticed["refused"] == [] and run.noticed["played"][0]["faults"] == []
    in_torch = [record for record in run.records if record.framework == "torch"]
    by_way = {record.config.get("epochs"): record for record in in_torch}
    alone, published = by_way[None], by_way[2]
    assert (published.status, published.reason) == ("ok", None)
    fit_s, epoch_s = (published.metrics[name].value for name in ("fit_s", "epoch_s"))
    assert fit_s == pytest.approx(2 * epoch_s)
    assert "proof_s" in published.metrics
    assert "verified after the timing" in published.note
    # It takes what its parts take, timed one by one.
    assert 0.4 < epoch_s / alone.metrics["epoch_s"].value < 2.5
