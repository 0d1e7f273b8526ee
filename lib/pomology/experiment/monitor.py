"""A monitor: what happens on the machine while a case is timed.

It knows nothing of the case's settings or its model. A case calls it in the order of a measurement:
`begin`, `listen`, `watch` where the timing begins, `steady` and `pause` at the clock's blocks,
`stop` where the timing has ended, and `finish`. `close` ends what an interruption has left open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from pomology.experiment import outcome
from pomology.machine import calibration, memory, waiting
from pomology.machine.cgroups import Throttling
from pomology.machine.driver_reports import DriverReports, Reported
from pomology.machine.other_programs import OtherPrograms
from pomology.machine.other_runs import NOTE, OtherRuns
from pomology.machine.sampler import Sample, Sampler
from pomology.measure.estimate import Estimate

if TYPE_CHECKING:
    from pomology.devices.base import Device

TRACE_LEAST = 500  # samples of a trace in the journal at least, if so many were taken


class Observed(NamedTuple):
    """What a monitor saw. The fields have the meaning of those of `results.record.Record`.

    metrics: of the sampler. peaks: memory in bytes, by metric. sampled: whether anything was
    timed, so that the sampler ran. notes: sentences for the case's notes. late: see
    `waiting.late_result`. reported: see `driver_reports`.
    """

    metrics: dict[str, Estimate]
    peaks: dict[str, int]
    flags: list[str]
    notes: list[str]
    calibration: dict[str, float]
    sampled: bool
    trace: list[Sample]
    absent: dict[str, str]
    rails: list[str]
    thermal_level: int | None
    late: str | None
    reported: Reported


class Monitor:
    """Calibration, load of other programs, energy, memory peaks and sleep around one measurement.

    device: the one that is timed. calibrated: whether the machine's speed is timed before and after
    it, which a smoke test does without.
    """

    def __init__(self, device: Device, calibrated: bool):
        self._device = device
        self._calibrated = calibrated
        self._calibration: dict[str, float] = {}
        self._others = OtherPrograms()
        self._other_runs = OtherRuns()
        self._quota = Throttling()
        self._sampling = contextlib.ExitStack()
        self._sampler: Sampler | None = None
        self._peaks: dict[str, int] = {}
        self._notes: list[str] = []
        self._late: str | None = None
        self._driver = DriverReports()

    def begin(self) -> None:
        """Time the calibration, before the model takes memory, and reset the memory's peak."""
        self._calibrate("before_s")
        self._device.reset_peak_memory()
        self._others.begin()
        self._quota.begin()

    def listen(self) -> None:
        """Listen to what drivers report, and watch for other runs, until `finish` or `close`."""
        self._driver.begin()
        try:
            self._other_runs.begin()
        except OSError as error:
            why = f"{self._other_runs.path} cannot be locked: {error.strerror}"
            self._notes.append(f"other runs would not be noticed: {why}")

    def watch(self) -> None:
        """Start the sampler, and count CPU time of other programs from here."""
        if self._sampler is None:
            self._device.synchronize()
            self._sampler = self._sampling.enter_context(Sampler(self._device.kind))
        self._others.begin()
        self._quota.begin()

    def steady(self, stretch: Hashable, steps: int) -> None:
        """Read energy where a steady block begins or ends, see `EnergyCounter.steady`."""
        self._sampler.steady(stretch, steps)

    def pause(self) -> None:
        """Judge other programs, and a container's quota, in the timing that has just ended."""
        self._others.end()
        self._quota.end()

    def note_peaks(self) -> None:
        """Keep the peaks of memory up to here, if this is the first call.

        Steps on pre-loaded batches follow, whose batches are no part of the loop's own peak.
        """
        if self._peaks:
            return
        self._peaks = self._device.peak_memory()
        sampled = [sample.footprint_bytes or 0 for sample in self._sampler.samples]
        if any(sampled):
            self._peaks["footprint_peak_bytes"] = max(*sampled, memory.footprint())

    def stop(self) -> None:
        """End the timing: what follows, such as checks, counts for no number."""
        if self._sampler:
            self.pause()
        self._sampling.close()
        self._peaks = self._peaks or self._device.peak_memory()

    def finish(self) -> Observed:
        """Time the calibration once more, and return what was seen."""
        self._calibrate("after_s")
        reported = self._driver.end()
        self._other_runs.end()
        if self._other_runs.flags:
            self._notes.append(NOTE)
        sampler = self._sampler or Sampler(self._device.kind)
        samples = sampler.samples
        return Observed(
            metrics=sampler.metrics,
            peaks=self._peaks,
            flags=[
                *self._others.flags,
                *self._quota.flags,
                *sampler.flags,
                *self._other_runs.flags,
            ],
            notes=[*self._notes, *reported.remarks],
            calibration=self._calibration,
            sampled=self._sampler is not None,
            trace=samples[:: max(1, len(samples) // TRACE_LEAST)],
            absent=sampler.absent,
            rails=sampler.rails,
            thermal_level=sampler.thermal_level,
            late=self._late,
            reported=reported,
        )

    def close(self) -> None:
        """Stop sampling, listening and watching, if an interruption came before `finish`."""
        self._sampling.close()
        self._driver.end()
        self._other_runs.end()

    def _calibrate(self, side: str) -> None:
        """Time the machine's speed on a `side` of the measurement, `before_s` or `after_s`."""
        if not self._calibrated:
            return
        self._calibration[side] = calibration.calibrate()
        if self._device.kind != "gpu":
            return
        try:
            self._calibration[f"device_{side}"] = calibration.calibrate_gpu(self._device)
            self._late = waiting.late_result(self._device)
        except Exception as error:  # a lost or full GPU, of which the case itself tells
            reason = outcome.of_exception(error)[1]
            self._notes.append(f"no calibration matmul on the GPU: {reason}")
