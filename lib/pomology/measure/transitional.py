"""For the time of the rebuild only: Records and Estimates answer as the dictionaries that they were. To be deleted."""

from __future__ import annotations

from typing import Any

import msgspec


class MetricKeys:
    """`metric["value"]`, `metric | {...}`, `{**metric}`: of the metric's form in a journal."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        return self.metric()[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.metric().get(key, default)

    def __contains__(self, key: str) -> bool:
        return key in self.metric()

    def keys(self) -> Any:
        return self.metric().keys()

    def items(self) -> Any:
        return self.metric().items()

    def __or__(self, other: dict) -> dict:
        return self.metric() | other

    @property
    def mean(self) -> float:
        return self.value


def Interval(mean: float, low: float | None, high: float | None, n: int, batches: int = 1) -> Any:
    """What was a class beside Estimate."""
    from pomology.measure.estimate import Estimate

    return Estimate(mean, "s", low, high, n)


def as_estimate(metric: Any) -> Any:
    """A metric that is still a dictionary."""
    from pomology.measure.estimate import Estimate

    if isinstance(metric, Estimate):
        return metric
    form = dict(metric)
    return Estimate(**form, covers="repeats") if form.pop("repeats", False) else Estimate(**form)


def seconds_metric(seconds: Any, how: str = "measured") -> Any:
    return seconds.replace(how=how)


class RecordKeys:
    """`record["key"]`, `record | {...}`, `"key" in record`, `record.get("key")`."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        value = self.__struct_config__.tag if key == "event" else getattr(self, key, msgspec.UNSET)
        if value is msgspec.UNSET:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return dict(self.items()).get(key, default)

    def __contains__(self, key: str) -> bool:
        return key in self.keys()

    def keys(self) -> list[str]:
        given = (name for name in self.__struct_fields__ if getattr(self, name) is not msgspec.UNSET)
        return ["event", *given]

    def items(self) -> list[tuple[str, Any]]:
        return [(key, self[key]) for key in self.keys()]

    def __or__(self, other: dict) -> Any:
        return msgspec.structs.replace(self, **other)
