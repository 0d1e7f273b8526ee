"""Which notebook is run next: all in order, or with MINUTES those that say most and end in time, by the clock."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from pomology.format import clock_time
from pomology.runner.plan import Job

SLACK = 0.05  # of the time, by which a case may be late before it is stopped
PRIOR_S, UNSTATED_S, PAGE_S = 20.0, 30.0, 6.0  # what weighs against the first times; of a notebook that says none


def _place(job: Job) -> tuple:
    """Where a job stands in the order of those that fit, those first that say most for their time."""
    return job.repeat, job.ends, job.notebook.soon or math.inf


class Turns:
    """The jobs of a run that are not done, each when its turn comes.

    With `minutes` that is the first that should end in time, from what notebooks state and how fast this machine has
    been so far. Those that show others' numbers come last, and their time and the page's are kept free. No case of a
    notebook begins after `late_s`, and what it does then ends at `ends_s`, both in seconds of `clock`. done: names of
    notebooks that have numbers. page_s: what the page took last.
    """

    late_s = ends_s = math.inf

    def __init__(
        self,
        jobs: Sequence[Job],
        profile: str,
        minutes: float = math.inf,
        done: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        begun_s: float | None = None,
    ):
        self.timed, self.total_s, self._profile, self._clock = math.isfinite(minutes), 60 * minutes, profile, clock
        self.until_s = (clock() if begun_s is None else begun_s) + self.total_s
        self.waiting = sorted(jobs, key=_place) if self.timed else list(jobs)
        self.page_s = self.stated_s = self._taken_s = 0.0
        self._done, self._closing = set(done), False

    def __iter__(self) -> Iterator[Job]:
        while job := self._next() if self.timed else next(iter(self.waiting), None):
            self.waiting.remove(job)
            if self.timed:
                free_s, slack_s = self.until_s - self._last_s(job), SLACK * self.total_s
                self.late_s = min(self._clock() + 2 * self.expected_s(job), free_s)
                self.ends_s = free_s + slack_s * (3 if job.notebook.after else 1)
            yield job
            if self.timed and job.notebook.closing:
                return

    @property
    def pace(self) -> float:
        """How many times as long as stated notebooks take here."""
        return (PRIOR_S + self._taken_s) / (PRIOR_S + self.stated_s)

    def expected_s(self, job: Job) -> float:
        return self.pace * (job.notebook.seconds.get(self._profile) or UNSTATED_S)

    def ended(self, job: Job, seconds: float, well: bool, late: bool = False) -> None:
        """Note what a job took. well: whether it got to its end; else its time says nothing of others, unless it was
        late."""
        if well or late:
            self._taken_s += seconds
            self.stated_s += job.notebook.seconds.get(self._profile) or seconds / self.pace
            self._done.add(job.notebook.name)
        if late:  # what did not come to its end is not run again
            self.waiting = [each for each in self.waiting if each.notebook.name != job.notebook.name]

    def left_out(self) -> dict[str, str]:
        """Why each notebook that has not had its turn has none: its label -> the words."""
        return {job.label: self._why(job) for job in self.waiting if not job.repeat}

    def _why(self, job: Job) -> str:
        if job.notebook.after and not self._due(job):
            return "too little of what it shows was measured"
        if job.ends and job.notebook.name not in self._done:
            return "its first turn was left out"
        return f"takes about {clock_time(self.expected_s(job))} here, and less was left"

    def _next(self) -> Job | None:
        if not self._closing:
            free_s = self.until_s - self._clock() - self._last_s()
            fits = (job for job in self.waiting if self._ready(job) and self.expected_s(job) <= free_s)
            if job := next(fits, None):
                return job
        self._closing = True
        latest_s = self.until_s + SLACK * self.total_s
        for job in filter(self._due, self.waiting):
            if job.notebook.closing or self._clock() + self.expected_s(job) + self._last_s(job) <= latest_s:
                return job
        return None

    def _ready(self, job: Job) -> bool:
        again = job.repeat or job.ends  # of what has run well
        return not job.notebook.after and not (again and job.notebook.name not in self._done)

    def _due(self, job: Job) -> bool:
        """Whether a notebook that shows others' numbers has enough to show: half of them, at the least."""
        of = job.notebook.after
        enough = job.notebook.closing or 2 * len(self._done.intersection(of)) >= len(of)
        return bool(of) and enough and not job.repeat

    def _last_s(self, job: Job | None = None) -> float:
        """What comes behind a job: with the page, all that is due, or behind one of these the summary."""
        due = [each for each in self.waiting if self._due(each)]
        if job and job.notebook.after:
            due = [each for each in due if each.notebook.closing and each is not job]
        return max(1.5 * self.page_s, PAGE_S * self.pace) + sum(map(self.expected_s, due))
