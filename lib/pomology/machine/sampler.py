"""What the machine did while a block of code ran: energy, temperature, memory, page faults, swap, load.

One daemon thread reads all sources, by default twice a second, which takes about 0.1 % of a core (where a Mac's GPU is
timed, it also runs `ioreg` once a second). The first and the last reading are the caller's. Energy is what a counter
grew between these: synchronize the device before the block and at its end, or work is billed to the wrong block."""

import contextlib
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Self

from pomology.machine.energy import Absent
from pomology.machine.sources import SHORTAGE, SOURCES, mean
from pomology.measure.estimate import Estimate

# One reading; `power_w` is the mean of the window that ends there: mostly since the sample before, but longer, and not
# in each sample, where counters move seldom. None is what was not or could not be read.
Sample = namedtuple("Sample", "t_s footprint_bytes power_w temperature_c gpu_busy clock_hz thermal_level")


class Telemetry:
    """Watch the machine while a block runs; one use each. device: "cpu" or "gpu", which decides the meter on PCs.
    only: of `SOURCES`, those that are read.

    After the block: `metrics()`; `thermal_level` (highest), `rails` (what the energy covers), `flags` (of `swapping`
    and `compressing` those that hold), `footprint_source`, `seconds`, `samples`, `thread_s` (CPU time of the sampling
    thread), `absent` (metric -> why it is missing).

    The process is this one and its multiprocessing children, whose page faults count when they have ended. Its
    footprint is macOS's physical one, else resident memory, where pages that forked workers share count once.
    `cpu_busy` is in % of all hardware threads. Energy, temperature and `gpu_busy` (in %, as the driver says) have
    others' work in them.

    Memory (psutil 7.2.2 and xnu 11417 read for it): `page_ins` are `page_faults` that needed the disk: on Linux swapped
    pages too; on macOS of files only, but also those that were read ahead. `swap_bytes`: by how much the swap space in
    use grew, which can shrink while the machine swaps. `swapped_bytes`: moved into and out of swap (psutil's `sin` and
    `sout` are every page-in and page-out on macOS). `compressed_bytes`: what macOS compressed or decompressed, as it
    does long before it swaps; `compressor_bytes`: by how much the memory grew that holds it."""

    thermal_level = footprint_source = seconds = thread_s = None

    def __init__(
        self,
        interval_s: float = 0.5,
        device: str = "cpu",
        clock: Callable[[], float] = time.perf_counter,
        only: Iterable[str] = SOURCES,
    ):
        self.device, self.clock, self._interval_s, self._only = device, clock, interval_s, only
        self.rails, self.flags, self.absent = list[str](), list[str](), dict[str, str]()
        self._read: dict[str, Callable[[], Any]] = {}
        self.powers: Callable[..., dict[float, float]] = lambda *_: {}  # see `rails.Counters.powers`, where it is from
        self._rows: list[dict[str, Any]] = []
        self._metrics: dict[str, Estimate] | None = None
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._open()
        self._sample(edge=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample(edge=True)
        self._close()

    def metrics(self) -> dict[str, Estimate]:
        """What was measured, by name; n counts samples, and one block has no interval."""
        if self._metrics is None:
            raise ValueError("telemetry has no metrics before its block has ended")
        return self._metrics

    @property
    def thermal(self) -> dict[str, dict[str, float]]:
        """Thermal level and temperature `before` and `after`, as far as the system says."""
        names = (("thermal", "level"), ("temperature", "temperature_c"))
        ends = zip(("before", "after"), (self._rows[0], self._rows[-1]), strict=True)
        return {end: {name: row[key] for key, name in names if key in row} for end, row in ends}

    def mark(self, stretch: Hashable, steps: int) -> None:
        """A steady block begins or ends here, see `rails.Counters.mark`."""
        with self._dropped_if_it_fails("energy"):
            if "energy" in self._read:
                self._read["energy"].mark(stretch, steps)

    @property
    def samples(self) -> list[Sample]:
        """All samples, for plots."""
        rows, others = list(self._rows), ("temperature", "gpu", "clock", "thermal")
        # The last reading comes when the block ends; right behind another one it would give a wild power.
        powers = self.powers([row["energy"] for row in rows if "energy" in row], self._interval_s / 2)
        watts = [powers.get(row["energy"].seconds) if "energy" in row else None for row in rows]
        known = [(row["t"] - rows[0]["t"], row.get("footprint")) for row in rows]
        return [Sample(*known[k], watts[k], *map(row.get, others)) for k, row in enumerate(rows)]

    def _open(self) -> None:
        for name in self._only:
            with self._dropped_if_it_fails(name):
                self._read[name] = SOURCES[name].open(self)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sample()
        self.thread_s = time.thread_time()

    def _sample(self, edge: bool = False) -> None:
        # Backwards at the beginning: energy and load close around the block, what takes a process of its own outside.
        begins, row, since_s, before_s = not self._rows, {}, 0.0, 0.0
        if not begins:
            row = {"t": self.clock()}
            since_s, before_s = (each["t"] - self._rows[0]["t"] for each in (row, self._rows[-1]))
        for name in list(self._read)[:: -1 if begins else 1]:
            with self._dropped_if_it_fails(name):
                if SOURCES[name].due(since_s, before_s, edge):
                    row[name] = self._read[name]()
        self._rows.append({"t": self.clock()} | row)

    def _close(self) -> None:
        self.seconds = self._rows[-1]["t"] - self._rows[0]["t"]
        metrics: dict[str, Estimate] = {}
        for name in list(self._read):
            source, readings = SOURCES[name], [row[name] for row in self._rows if name in row]
            with self._dropped_if_it_fails(name):
                if self.seconds < source.least_s:
                    raise Absent(f"the block took {self.seconds:.2f} s; {source.least_s:g} s are needed")
                # A reader that knows more than its readings makes the metrics itself.
                values = getattr(self._read[name], "values", source.values)(readings, self.seconds)
                values = values if isinstance(values, dict) else dict.fromkeys(source.units, values)
                n = len(readings) if source.values is mean else len(self._rows)
                for metric, value in values.items():
                    if isinstance(value, str):
                        self.absent[metric] = value
                    else:
                        known = isinstance(value, Estimate)
                        metrics[metric] = value if known else Estimate(value, source.units[metric], n=n)
        for flag, (name, least, least_per_s) in SHORTAGE.items():
            self.flags += [flag] * (name in metrics and metrics[name].value > max(least, least_per_s * self.seconds))
        level = metrics.pop("thermal_level", None)  # describes the block, and is no metric of its case
        self.thermal_level = level and level.value
        self._metrics = dict(sorted(metrics.items()))

    @contextlib.contextmanager
    def _dropped_if_it_fails(self, name: str) -> Iterator[None]:
        """Whatever a driver raises must not end the case that is being measured: its source is absent then."""
        try:
            yield
        except Exception as error:
            failed = f"failed after {len(self._rows)} samples: {type(error).__name__}: {error}"
            self.absent |= dict.fromkeys(SOURCES[name].units, str(error) if isinstance(error, Absent) else failed)
            self._read.pop(name, None)
            self.rails = [] if name == "energy" else self.rails
