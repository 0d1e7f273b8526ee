"""What the machine did while a block of code ran: energy, temperature, memory, faults, swap, load.

One daemon thread reads all sources, by default twice a second, which takes about 0.1 % of a core
(where a Mac's GPU is timed, it also runs `ioreg` once a second). The first and the last reading are
the caller's. Energy is what a counter grew between these: synchronize the device before the block
and at its end, or work is billed to the wrong block.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, Self

from pomology.machine.energy import Absent, EnergyCounter
from pomology.machine.sources import SHORTAGE, SOURCES
from pomology.measure.estimate import Estimate

LATE_S = 1.0  # by which a sample is late where the process was stopped
IDLE = 0.1  # of a core, at most, that a process uses while it is stopped
ENERGY = "energy"
ENERGY_UNITS = {"power_w": "W", "energy_j": "J"}


class Sample(NamedTuple):
    """One reading; None is what was not or could not be read.

    power_w: the mean of the window that ends there, longer than a sample where counters move
    seldom.
    """

    t_s: float
    footprint_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    gpu_busy: float | None
    clock_hz: float | None
    thermal_level: int | None


class Sampler:
    """Watch the machine while a block runs; one use each.

    kind: "cpu" or "gpu", which decides the meter on PCs. After the block: `metrics()`;
    thermal_level (highest); rails (what the energy covers); flags (of `swapping` and `paused` those
    that hold); samples; absent (metric -> why it is missing).

    Page faults are of this process, all else also of its multiprocessing children. Its footprint is
    macOS's physical one, else resident memory, where pages that forked workers share count once.
    `cpu_busy` is in % of all hardware threads. Energy, temperature and `gpu_busy` (in %, as the
    driver says) have others' work in them.

    Memory (psutil 7.2.2 and xnu 11417 read for it): `page_ins` are `page_faults` that needed the
    disk: on Linux swapped pages too; on macOS of files only, but also those that were read ahead.
    `swap_bytes`: by how much the swap space in use grew, which can shrink while the machine swaps.
    `swapped_bytes`: moved into and out of swap (psutil's `sin` and `sout` are every page-in and
    page-out on macOS). `compressed_bytes`: what macOS compressed or decompressed, as it does long
    before it swaps; `compressor_bytes`: by how much the memory grew that holds it.
    """

    def __init__(
        self,
        kind: str = "cpu",
        interval_s: float = 0.5,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.kind = kind
        self.rails: list[str] = []
        self.flags: list[str] = []
        self.absent: dict[str, str] = {}
        self.thermal_level: int | None = None
        self._interval_s = interval_s
        self._clock = clock
        self._energy: EnergyCounter | None = None
        self._read: dict[str, Callable[[], Any]] = {}
        self._rows: list[dict[str, Any]] = []
        self._metrics: dict[str, Estimate] | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._begin()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._end()

    def _begin(self) -> None:
        with self._dropped_if_it_fails(ENERGY):
            self._energy = EnergyCounter(self.kind, self._clock)
            self.rails = self._energy.rails
            for rail, reason in self._energy.missing.items():
                self.absent[f"energy of the {rail}"] = reason
        for name, source in SOURCES.items():
            with self._dropped_if_it_fails(name):
                self._read[name] = source.open(self.kind)
        # Energy and load last, close to the block; what takes a process of its own before.
        first = self._sample([*reversed(self._read)], at_end=True)
        self._read_energy(first)
        first["t"] = self._clock()
        self._rows.append(first)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._tick()

    def _tick(self) -> None:
        row: dict[str, Any] = {"t": self._clock()}
        self._read_energy(row)
        row |= self._sample([*self._read], at_end=False)
        self._rows.append(row)

    def _end(self) -> None:
        last: dict[str, Any] = {}
        self._read_energy(last)
        last |= self._sample([*self._read], at_end=True)
        last["t"] = self._clock()
        self._rows.append(last)
        self._summarise()

    def metrics(self) -> dict[str, Estimate]:
        """Return what was measured, by name; n counts samples, and one block has no interval."""
        if self._metrics is None:
            raise ValueError("a sampler has no metrics before its block has ended")
        return self._metrics

    def steady(self, stretch: Hashable, steps: int) -> None:
        """Note that a steady block begins or ends here, see `EnergyCounter.steady`."""
        with self._dropped_if_it_fails(ENERGY):
            if self._energy:
                self._energy.steady(stretch, steps)

    @property
    def thermal(self) -> dict[str, dict[str, float]]:
        """Thermal level and temperature `before` and `after`, as far as the system says."""
        ends = {"before": self._rows[0], "after": self._rows[-1]}
        return {
            end: {
                name: row[source]
                for source, name in (("thermal", "level"), ("temperature", "temperature_c"))
                if source in row
            }
            for end, row in ends.items()
        }

    @property
    def samples(self) -> list[Sample]:
        """All samples, for plots."""
        rows = list(self._rows)
        watts = {}
        if self._energy:
            readings = [row[ENERGY] for row in rows if ENERGY in row]
            watts = self._energy.powers(readings, self._interval_s / 2)
        return [
            Sample(
                row["t"] - rows[0]["t"],
                row.get("footprint"),
                watts.get(row[ENERGY].seconds) if ENERGY in row else None,
                row.get("temperature"),
                row.get("gpu"),
                row.get("clock"),
                row.get("thermal"),
            )
            for row in rows
        ]

    def _read_energy(self, row: dict[str, Any]) -> None:
        with self._dropped_if_it_fails(ENERGY):
            if self._energy:
                row[ENERGY] = self._energy.read()

    def _sample(self, names: list[str], at_end: bool) -> dict[str, Any]:
        """Read these sources, at an end of the block or within it, as far as they are due."""
        row = {}
        for name in names:
            with self._dropped_if_it_fails(name):
                due = SOURCES[name].at_ends if at_end else SOURCES[name].within
                value = self._read[name]() if due else None
                if value is not None:
                    row[name] = value
        return row

    def _summarise(self) -> None:
        seconds = self._rows[-1]["t"] - self._rows[0]["t"]
        metrics: dict[str, Estimate] = {}
        with self._dropped_if_it_fails(ENERGY):
            if self._energy:
                energy = self._energy.metrics(self._rows[0][ENERGY], self._rows[-1][ENERGY])
                for name, value in energy.items():
                    if isinstance(value, str):
                        self.absent[name] = value
                    else:
                        metrics[name] = value
        for name in list(self._read):
            source = SOURCES[name]
            readings = [row[name] for row in self._rows if name in row]
            with self._dropped_if_it_fails(name):
                for metric, value in source.values(readings, seconds).items():
                    n = len(readings) if source.counts_readings else len(self._rows)
                    metrics[metric] = Estimate(value, source.units[metric], n=n)
                for metric in source.units.keys() - metrics.keys():
                    self.absent[metric] = "this system does not count it"
        # It describes the block, and is no metric of its case.
        level = metrics.pop("thermal_level", None)
        self.thermal_level = level and level.value
        for name, least, least_per_s in SHORTAGE:
            moved = metrics[name].value if name in metrics else 0.0
            if moved > max(least, least_per_s * seconds) and "swapping" not in self.flags:
                self.flags.append("swapping")
        if self._was_stopped():
            self.flags.append("paused")
        self._metrics = dict(sorted(metrics.items()))

    def _was_stopped(self) -> bool:
        """Return whether a sample was late, and this process had used no processor meanwhile."""
        rows = [row for row in self._rows if "load" in row]
        for before, now in itertools.pairwise(rows):
            late_s = now["t"] - before["t"] - self._interval_s
            used_s = now["load"] - before["load"]
            if late_s > LATE_S and used_s < IDLE * late_s:
                return True
        return False

    @contextlib.contextmanager
    def _dropped_if_it_fails(self, name: str) -> Iterator[None]:
        """Drop a source that fails: what a driver raises must not end the case that is measured."""
        try:
            yield
        except Exception as error:
            reason = str(error)
            if not isinstance(error, Absent):
                samples = f"failed after {len(self._rows)} samples"
                reason = f"{samples}: {type(error).__name__}: {error}"
            units = ENERGY_UNITS if name == ENERGY else SOURCES[name].units
            self.absent |= dict.fromkeys(units, reason)
            self._read.pop(name, None)
            if name == ENERGY:
                self._energy = None
                self.rails = []
