"""The notebook `memory` in MLX: the plan against what a step then takes."""

import fakes
import pytest

from pomology.devices import find

pytestmark = [pytest.mark.process("mlx"), pytest.mark.usefixtures("quiet_machine")]
find.prepare("mlx")
import mlx.core as mx  # noqa: E402


@pytest.fixture
def scope(tmp_path) -> dict:
    """The names of the notebook up to its cases."""
    scope: dict = {}
    settings = {"framework": "mlx", "devices": "cpu", "out": str(tmp_path), "batch_size": 256}
    settings |= {"steps": 12, "profile": "article"}
    for number, source in enumerate(fakes.cells("memory")):
        exec(source.split("\n\n\nfor case in")[0], scope)
        if number == 1:  # after both cells with parameters
            scope |= settings
        if "def prepare(case)" in source:
            break
    return scope


def test_the_plan_is_what_mlx_then_takes(scope):
    """From its own count: what three parts are planned to take, they take, within a tenth."""
    (backend,) = scope["experiment"].devices
    count = 3 * scope["PART"]
    work = scope["work"](backend, count)
    assert work.parameters == 18_250 and work.flops == 6 * count * (16 * 32 * 32 + 32 * 10)
    step = scope["training"](None, scope["build"](), scope["optim"].AdamW(1e-3), count)
    backend.reset_peak_memory()
    step()
    assert mx.get_peak_memory() == pytest.approx(work.bytes, rel=0.1)
