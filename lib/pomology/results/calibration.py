"""How much slower a machine was than at its fastest in a run, by its calibration matmuls."""

from collections.abc import Iterable, Sequence

from pomology.machine.calibration import slower
from pomology.results.record import Record


def slowed(kind: str, calibration: dict[str, float], earlier: Iterable[dict[str, float]]) -> str:
    """Return by how much a case's calibration took longer than the run's fastest, as a sentence.

    The result is "" where it is within the noise. kind: of the device that was calibrated, `cpu` or
    `gpu`. calibration: see `Record`. earlier: calibrations of the cases that compare with it.
    """
    prefix = "" if kind == "cpu" else "device_"
    sides = (f"{prefix}before_s", f"{prefix}after_s")
    before_s, after_s = (calibration.get(side) for side in sides)
    if not (before_s and after_s):
        return ""
    times_s = [times.get(side) for times in (*earlier, calibration) for side in sides]
    fastest_s = min(filter(None, times_s))
    # A CPU's calibrations vary more, so both sides of the case must be slow.
    case_s = min(before_s, after_s) if kind == "cpu" else after_s
    excess = slower(kind, case_s, fastest_s)
    if not excess:
        return ""
    device = kind.upper()
    return f"the calibration matmul on the {device} took {excess} longer than the run's fastest"


def slowed_by(
    earlier: Sequence[Record],
    framework: str,
    backend: str,
    software: str,
    calibration: dict[str, float],
) -> list[str]:
    """Return the sentences of `slowed` of a case, about the CPU and about its GPU.

    earlier: the run's records before it. framework, backend, software, calibration: of the case. On
    a GPU only times of the same device and software compare.
    """
    device = (framework, backend, software)
    of_device = [
        record
        for record in earlier
        if (record.framework, record.backend, record.software) == device
    ]
    texts = [
        slowed("cpu", calibration, [record.calibration for record in earlier]),
        slowed("gpu", calibration, [record.calibration for record in of_device]),
    ]
    return [*filter(None, texts)]
