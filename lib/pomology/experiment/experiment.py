"""Experiments: the cases of a notebook on this machine."""

import contextlib
import itertools
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from IPython import get_ipython

from pomology.articles import published
from pomology.devices import find
from pomology.devices.base import Device
from pomology.errors import PomologyError
from pomology.experiment import spelling, twin
from pomology.experiment.case import Case
from pomology.machine import snapshot
from pomology.report.answer import Answer
from pomology.report.article import EPOCH, Declaration
from pomology.report.display import Report
from pomology.report.figures import article_figure
from pomology.report.table import Table
from pomology.results import journal
from pomology.results.record import PROFILES, UNTRIED, Record
from pomology.results.run import by_hand, note_software, set_aside

LIMIT = 5  # time limit of a case, in budgets
LIMIT_LEAST_S = 10.0  # least time limit of a case, since a compilation can take as long
CONDITIONS_S = 5.0  # the machine's conditions are checked again after this time
TOO_LARGE = (*UNTRIED, "out-of-memory", "crashed", "timeout")  # a smaller variant may fit


_MADE: weakref.WeakSet = weakref.WeakSet()  # the experiments of this process


@contextlib.contextmanager
def _closing_earlier(name: str) -> Iterator[None]:
    """Close the earlier experiments of a name if a new one is refused.

    JupyterLab may run the cells below the one that failed. They would measure and show with the
    earlier parameters.
    """
    try:
        yield
    except PomologyError:
        for earlier in _MADE:
            earlier._is_closed |= earlier.name == name
        raise


class Experiment:
    """The cases of one notebook on this machine, with their tables and figures."""

    def __init__(
        self,
        name: str,
        *,
        article: str,
        framework: str = "torch",
        devices: str = "auto",
        profile: str = "quick",
        budget_s: float = 10.0,
        out: str = "",
        repeat: int = 0,
        expects_learning: bool = True,
        title: str = "",
        settings: Sequence[str | tuple[str, str]] = (),
        columns: Sequence[str | tuple[str, str]] = EPOCH,
        figure: str = "",
        series: Sequence[str] = (),
        shared_panel: Sequence[str] = (),
        over: str = "",
        claims_of: Sequence[str] = (),
        beside: Callable[[str], list[dict]] | None = None,
        opens_report: bool = False,
    ):
        """Choose the devices and the run's folder.

        name: of the notebook and its journal. article: number of the published values, `kit`,
        `today`, or "" without a source. framework: `torch`, `tensorflow`, `mlx`, or a file of
        `pomology/devices/`. devices: one of `find.choices()`. profile: `smoke`, `quick`, or
        `article`, which runs whole epochs. budget_s: seconds for the steady steps of a case. out:
        the run's folder; "" selects `by_hand`. repeat: number of the repeat in the run.
        expects_learning: whether the loss must fall (not in a GAN). title: of the table. settings:
        the keys of a case's config that have a column, each alone or with its heading; by default
        those of the published rows, and those that tell the cases apart. columns: metrics,
        likewise; by default those of an epoch. figure: the drawn metric; by default the first
        column with an axis, else the first one. series: metrics with lines of their own in the
        figure. shared_panel: settings whose values share a panel. over: the setting of the figure's
        horizontal axis, if its subject is a curve. claims_of: other experiments whose claims are
        tested, too. beside: a function of the name that returns rows to compare
        with, in the form of `published.rows`, in place of the article's. opens_report: whether the
        report begins with this notebook.

        Raises PomologyError for a wrong value, and NoSuchDevice without a device.
        """
        with _closing_earlier(name):
            if profile not in PROFILES:
                allowed = ", ".join(PROFILES)
                raise PomologyError(f"{name}: profile is {profile!r}; it must be one of {allowed}")
            try:
                published.check_source(article)
            except PomologyError as error:
                raise PomologyError(f"{name}: {error}") from None
            if not 0 < budget_s < math.inf:
                text = f"{name}: budget_s is {budget_s!r}; it must be positive and finite"
                raise PomologyError(text)
            spelling.check_columns(name, [*columns, *series, *filter(None, [figure])])
            shell = get_ipython()
            names = shell.user_ns if shell else {}
            spelling.check_parameters(name, names)
            self.devices = find.find(devices, framework)
        self._no_gpu = find.no_gpu(framework) if devices == "auto" else ""
        self.profile = profile
        self.budget_s = float(budget_s)
        # Timing stops at this limit, for example on a busy machine.
        self.limit_s = math.inf if profile == "article" else max(LIMIT * budget_s, LIMIT_LEAST_S)
        self.repeat = repeat
        self.expects_learning = expects_learning
        self.out = Path(out) if out else by_hand(name, profile, framework)
        # What an MLX twin needs for an experiment of its own, in the same journal.
        self._arguments = {
            "name": name,
            "article": article,
            "devices": devices,
            "profile": profile,
            "budget_s": self.budget_s,
            "repeat": repeat,
            "expects_learning": False,  # its inputs are random
            "out": str(self.out.resolve()),
        }
        self._hint = "" if out else " (run the set-up cell and all below it again to repeat it)"
        declaration = Declaration(
            name=name,
            article=article,
            title=title,
            settings=settings,
            columns=columns,
            figure=figure,
            series=series,
            shared_panel=shared_panel,
            over=over,
            claims_of=claims_of,
            beside=beside,
            opens_report=opens_report,
        )
        self._report = Report(
            name, declaration=declaration, profile=profile, out=self.out, devices=self.devices
        )
        self.name = name
        self.article = article
        self.journal = journal.Journal(self.out / f"{name}.jsonl")
        self.data = {"data": "none"}
        self.part: dict[str, int] = {}
        # A run by hand measures anew, also in the framework of the twin. A notebook that is
        # executed once for each framework keeps the results of the other one.
        self._twin_is_earlier = not out
        if not out and framework != "mlx" and "framework" not in names:
            set_aside(self.journal.path, "mlx")
            self._twin_is_earlier = False
        # Data that an earlier experiment of this kernel was given, and this one not yet.
        self._lacks_data = shell is not None and any(
            earlier.name == name and "data_origin" in earlier.data for earlier in _MADE
        )
        self.software = note_software(self.out, self.devices[0].threads)
        self._conditions: dict[str, Any] = {}
        self._conditions_at_s = -math.inf
        # On these backends the runner starts a new kernel for each case.
        self._one_case_on = os.environ.get(journal.ONE_CASE_ON, "").split()
        self._kernel_is_used = False
        self._is_closed = False
        _MADE.add(self)

    @property
    def report(self) -> Report:
        """What the notebook shows. Raises PomologyError after a set-up with wrong values."""
        if self._is_closed:
            raise PomologyError(f"{self.name}: the set-up cell failed; correct it and run it again")
        return self._report

    @property
    def records(self) -> list[Record]:
        """Records of this notebook's finished cases."""
        return self.report.records

    def machine(self) -> Table:
        """Return a table of the machine, its software, the timed devices and the run's folder."""
        return self.report.machine()

    def answer(
        self, text: str = "", opening: str | Answer = "", values: bool = True, also: str = ""
    ) -> None:
        """Display the answer to the notebook's question, made from this run, and save it.

        text, opening, values, also: see `Report.answer`.
        """
        self.report.answer(text, opening, values, also)

    def table(self) -> Table:
        """Save and return the table of published values and this machine's."""
        return self.report.table()

    def figure(self, draw: Callable[..., Any] = article_figure) -> Any:
        """Save and return the figure `draw(declaration, records)`, by default of all devices."""
        return self.report.figure(draw)

    def claims(self) -> Table:
        """Save and return the table of the article's claims with their verdicts."""
        return self.report.claims()

    def details(self) -> Table:
        """Save and return the table of all measured values, a column per repeat."""
        return self.report.details()

    def printed(self) -> Table:
        """Save and return the table of all published values of this experiment."""
        return self.report.printed()

    def show(
        self, table_or_figure: Any, name: str, caption: str = "", folded: bool = False
    ) -> None:
        """Display a `Table` or a matplotlib figure, and save it for the report.

        name: of its files in the run's folder. caption: text under it. folded: the report hides it
        at first.
        """
        self.report.show(table_or_figure, name, caption, folded)

    def dataset(self, data: Any) -> None:
        """Set the data of the cases, with attributes `kind` (`real`, `stand-in`) and `origin`.

        Of data with a `part` of the samples an epoch is shorter: the cases get the setting
        `samples`, and are scaled. A smoke run always has a part, and is compared with none.
        """
        self.data = {"data": data.kind, "data_origin": data.origin}
        self._lacks_data = False
        part = getattr(data, "part", 0)
        self.part = {"samples": part} if part and self.profile != "smoke" else {}

    def cases(
        self,
        rows: Iterable[dict] | None = None,
        on: Iterable[Device] | None = None,
        **axes: Iterable,
    ) -> Iterator[Case]:
        """Yield the cases to run: each row of settings on every device, in alternation.

        rows: settings by name; by default every combination of the axes' values. on: devices, by
        default all. Cases that the journal already has are skipped with a message. Raises
        PomologyError if the cell that names the data has not run since the set-up cell.
        """
        if self._lacks_data:
            again = "run the cells below it again, from that of the data on"
            raise PomologyError(f"{self.name}: the set-up cell has run anew; {again}")
        if rows is None:
            combinations = itertools.product(*axes.values())
            rows = [dict(zip(axes, values, strict=True)) for values in combinations]
        rows = list(rows)
        for config in rows:
            spelling.check_settings(self.name, self.report.declaration.settings, config)
        before = journal.read(self.journal.path)
        for config, device in itertools.product(rows, self.devices if on is None else on):
            case = Case(self, device, config)
            if self._no_gpu:
                case.note(self._no_gpu)
            if before.done(case.name, self.repeat):
                print(f"{case.name}: skipped, since the journal already has it{self._hint}")
            elif self._kernel_is_used:
                print(f"{case.name}: runs in a separate kernel, without memory of other cases")
            else:
                self._free_other_devices(case)
                yield case

    def _free_other_devices(self, case: Case) -> None:
        """Free the last case's memory on other devices; a case frees that of its own device."""
        for device in self.devices:
            try:
                if device is not case.backend:
                    device.release()
            except Exception as error:  # a lost GPU must not end cases on the CPU
                case.note(f"the memory of {device.backend} could not be freed: {error}")

    def first_that_fits(
        self, rows: Iterable[dict], on: Iterable[Device] | None = None
    ) -> Iterator[Case]:
        """Yield cases on each device until one fits. rows: from the article's to smaller ones."""
        rows = list(rows)
        for device in self.devices if on is None else on:
            for config in rows:
                yield from self.cases([config], on=[device])
                name = Case(self, device, config).name
                ran = [record for record in self.records if record.repeat == self.repeat]
                statuses = {record.case: record.status for record in ran}
                if statuses.get(name) not in TOO_LARGE:
                    break

    def finished(self, **settings: Any) -> list[Record]:
        """Return the records of this repeat's cases that ended well, without those of a twin.

        settings: values that a case must have; a case without a precision has fp32.
        """
        framework = self.devices[0].framework  # a twin has another one

        def matches(record: Record) -> bool:
            config = {"precision": record.precision} | record.config
            same = all(config.get(name) == value for name, value in settings.items())
            ran = (record.framework, record.status, record.repeat)
            return same and ran == (framework, "ok", self.repeat)

        return [record for record in self.records if matches(record)]

    def twin(
        self,
        source: str,
        rows: Iterable[dict | Record],
        samples: int = 0,
        seed: int = 1,
        steps: int = 0,
        epochs: int = 0,
        drop_last: bool = False,
        scaled_below: int = 0,
        throughput: str = "",
        **options: Any,
    ) -> None:
        """Time a workload in MLX in a process of its own, and journal it as cases of this notebook.

        source: `vae_mlx.py:vae`, a `Workload` of a file next to the notebook, or a function of a
        case's settings that returns one. rows: settings of the cases, for all devices; or records
        of PyTorch's cases, each for the kind of its device, if MLX has such a device. samples: of
        an epoch, which is estimated from steps on random batches; 0 if the training has no epochs.
        steps, epochs: of a training, whose time is the metric `fit_s`; 0 if there is none.
        drop_last: whether an epoch leaves out a smaller last batch, as in a loader. scaled_below:
        the article's smallest batch size; cases with smaller ones are scaled. throughput: unit
        of that metric, `samples/s`, or `tokens/s` where a sample has the tokens of the setting
        `sequence`. options: further arguments of the function. Where MLX has no device, a line says
        so.
        """
        twin_cases = [twin.of_case(case, samples, drop_last) for case in rows]
        if not twin_cases:
            print("MLX is skipped: PyTorch finished no case that it could repeat")
            return
        if self._twin_is_earlier:
            set_aside(self.journal.path, "mlx")
            self._twin_is_earlier = False
        for twin_case in twin_cases:
            twin_case.steps = steps or epochs * twin_case.epoch_steps
            twin_case.scaled |= twin_case.config.get("batch_size", 0) < scaled_below
        for device in self.devices:  # their memory is the twin's, too
            device.release()
        request = twin.Request(
            source=source,
            experiment=self._arguments,
            cases=twin_cases,
            part=self.part,
            seed=seed,
            epochs=epochs or 1,
            throughput=throughput,
            options=options,
        )
        status, reason = "interrupted", "stopped by the user"
        try:
            code, status, words = twin.run(request)
            reason = f"the process of the twin ended with status {code}: {words}"
        finally:
            self.journal.finish_open(status, reason)
        for line in twin.unlike(self.records):
            print(line)
        if code == twin.NO_DEVICE:
            print(f"MLX is skipped: {words}")
        elif code:
            raise PomologyError(f"{source}: {words or reason}")

    def conditions(self) -> dict[str, Any]:
        """Return recent conditions of the machine, see `snapshot.conditions`."""
        if time.perf_counter() - self._conditions_at_s > CONDITIONS_S:
            self._conditions = snapshot.conditions()
            self._conditions_at_s = time.perf_counter()
        return self._conditions

    def earlier(self) -> list[Record]:
        """Return the records of the run so far, of all its notebooks."""
        return self.report.run.records

    def ended(self, backend: str, status: str) -> None:
        """Note the end of a case, after which some devices need a new kernel for the next case."""
        if backend in self._one_case_on and journal.fills_kernel(status):
            self._kernel_is_used = True
