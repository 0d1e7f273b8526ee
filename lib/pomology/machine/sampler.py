"""What the machine did while a block of code ran: energy, temperature, memory, page faults, swap, load.

One daemon thread reads all sources, by default twice a second, which takes about 0.1 % of a core (where a Mac's GPU is
timed, it also runs `ioreg` once a second):

    device.synchronize()                                  # nothing from before may still run
    with Telemetry(device=device.kind) as telemetry:
        ...
        device.synchronize()                              # everything from inside must have ended
    telemetry.metrics()["power_w"]                        # an Estimate, in W

Energy is the difference of a counter between the first and the last reading, so without these two waits work is billed
to the wrong block. What a source does not know is left out of the metrics, and `absent` says why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil

from pomology.machine.energy import Absent
from pomology.machine.sources import SOURCES, Block, Source, too_short
from pomology.measure.estimate import Estimate

MOST_SAMPLES = 4096


class Sample(NamedTuple):
    """One reading; `power_w` is the mean since the sample before. None is what was not or could not be read."""

    t_s: float
    footprint_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    gpu_busy: float | None


def contended(foreign_load: float | None) -> bool:
    """Whether others used enough of the machine to spoil a measurement: over 0.1 core and over 2.5 % of all.

    What is not known is not held against a measurement.
    """
    return foreign_load is not None and foreign_load > max(0.1, 0.025 * (psutil.cpu_count() or 1))


class Telemetry:
    """Watch the machine while a block runs; one use each. device: "cpu" or "gpu", which decides the meter on PCs.

    After the block: `metrics()`; `foreign_load` (cores that other processes used, mean), `thermal_level` (highest, see
    `snapshot.thermal_level`), `rails` (what the energy covers), `flags` (of `swapping` and `compressing` those that
    hold), `footprint_source`, `seconds`, `samples`, `thread_s` (CPU time of the sampling thread itself), `absent`
    (metric or attribute -> why it is missing).

    The process means this one and its multiprocessing children (DataLoader workers). Its footprint is macOS's physical
    footprint, as in Activity Monitor, else resident memory, where pages that forked workers share count once. A peak
    between two samples is not seen. Children's page faults count when they have ended. Energy and temperature are the
    machine's: others' work is in them.

    Memory, on Linux and on macOS (psutil 7.2.2 and xnu 11417 read for it):
    `page_faults`: all of the process, of pages of 16 KiB on Apple Silicon and mostly 4 KiB elsewhere.
    `page_ins`: those of them that needed the disk. On Linux that includes pages that were swapped out; macOS counts
    pages of files only, but also those that it had read ahead.
    `swap_bytes`: by how much the machine's swap space in use grew. It can shrink while the machine swaps, so it proves
    little. psutil's `sin` and `sout` are swap on Linux, but on macOS every page-in and page-out; not used.
    `swapped_bytes`: what the machine moved into and out of swap; much of it is `swapping`.
    `compressed_bytes`: memory that macOS compressed or decompressed, which it does long before it swaps; much of it is
    `compressing`. `compressor_bytes`: by how much the memory grew that holds what is compressed.

    `cpu_busy`: what the process used of all the machine's hardware threads, in %. `gpu_busy`: the part of the time in
    which the GPU did anything for anyone, as its driver says, in %. It does not say how much of the GPU was used; on a
    Mac not at which clock either, and what span macOS looks at is not documented.
    """

    def __init__(
        self, interval_s: float = 0.5, device: str = "cpu", clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if device not in ("cpu", "gpu") or not interval_s > 0:
            raise ValueError(f"device must be cpu or gpu and interval_s above 0, not {device!r} and {interval_s!r}")
        self.foreign_load: float | None = None
        self.thermal_level: int | None = None
        self.footprint_source: str | None = None
        self.seconds: float | None = None
        self.thread_s: float | None = None
        self.rails: list[str] = []
        self.flags: list[str] = []
        self.absent: dict[str, str] = {}
        self._interval_s, self._clock, self._block = interval_s, clock, Block(device, interval_s, clock)
        self._sources: dict[str, Source] = {}
        self._first: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._count, self._stride, self._trace = 0, 1, []
        self._metrics: dict[str, Estimate] | None = None
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._stop, self._ready = threading.Event(), threading.Event()

    def __enter__(self) -> Telemetry:
        self._open()
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._close()

    def metrics(self) -> dict[str, Estimate]:
        """What was measured, by name; n counts samples, and one block has no interval."""
        if self._metrics is None:
            raise ValueError("telemetry has no metrics before its block has ended")
        return self._metrics

    @property
    def samples(self) -> list[Sample]:
        """The trace, for plots; of long blocks every second, fourth, ... sample is kept."""
        samples, before = [], None
        for row in self._trace:
            power_w = None
            # The last reading comes when the block ends; right behind another one it would give a wild power.
            if "energy" in row and before and "energy" in before and row["t"] - before["t"] > self._interval_s / 2:
                power_w = (row["energy"] - before["energy"]) / (row["t"] - before["t"])
            t_s = row["t"] - self._trace[0]["t"]
            samples.append(Sample(t_s, row.get("footprint"), power_w, row.get("temperature"), row.get("gpu")))
            before = row
        return samples

    def _open(self) -> None:
        for name, kind in SOURCES.items():
            try:
                source = self._sources[name] = kind(self._block)
                self.absent |= source.missing
            except Exception as error:  # see _sample
                self._drop(name, error)
        self.rails = getattr(self._sources.get("energy"), "rails", [])
        self.footprint_source = getattr(self._sources.get("footprint"), "origin", None)

    def _run(self) -> None:
        try:
            self._sample(edge=True)
            self._ready.set()
            while not self._stop.wait(self._interval_s):
                self._sample()
            self._sample(edge=True)
        finally:
            self.thread_s = time.thread_time()
            self._ready.set()

    def _sample(self, edge: bool = False) -> None:
        """Read the sources that are due.

        They are read backwards at the beginning: energy and load lie close around the block, and what takes a process
        of its own lies outside.
        """
        begins = not self._first
        row: dict[str, Any] = {} if begins else {"t": self._clock()}
        since_s = 0.0 if begins else row["t"] - self._first["t"]
        sources = list(self._sources.items())
        for name, source in reversed(sources) if begins else sources:
            try:
                if source.due(since_s, edge):
                    row[name] = source.read()
            except Exception as error:  # whatever a driver raises must not end the case that is being measured
                self._drop(name, error)
        row.setdefault("t", self._clock())
        self._first, self._last = self._first or row, row
        if self._count % self._stride == 0:
            self._keep(row)
            if len(self._trace) > MOST_SAMPLES:
                self._trace, self._stride = self._trace[::2], self._stride * 2
        self._count += 1

    def _close(self) -> None:
        first, last = self._first, self._last
        if self._trace[-1]["t"] != last["t"]:
            self._keep(last)
        self.seconds = last["t"] - first["t"]
        metrics: dict[str, Estimate] = {}
        for name, source in list(self._sources.items()):
            try:
                if self.seconds < source.least_s:
                    raise Absent(too_short(self.seconds, source.least_s))
                values = source.values(first.get(name), last.get(name), self.seconds)
            except Absent as reason:
                self._drop(name, reason)
                continue
            self.flags += source.flags
            for metric, value in values.items():
                metrics[metric] = Estimate(value, source.metrics[metric], n=source.samples or self._count)
        # These two describe the block, and are no metrics of its case.
        described = [metrics.pop(name, None) for name in ("foreign_load", "thermal_level")]
        self.foreign_load, self.thermal_level = (each and each.value for each in described)
        self._metrics = dict(sorted(metrics.items()))

    def _keep(self, row: dict[str, Any]) -> None:
        kept = ("t", "energy", "footprint", "temperature", "gpu")
        self._trace.append({name: row[name] for name in kept if name in row})

    def _drop(self, name: str, reason: Exception) -> None:
        if not isinstance(reason, Absent):
            reason = f"failed after {self._count} samples: {type(reason).__name__}: {reason}"
        self._sources.pop(name, None)
        if name == "energy":
            self.rails = []
        self.absent |= dict.fromkeys(SOURCES[name].metrics, str(reason))
