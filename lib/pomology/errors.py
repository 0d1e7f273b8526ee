"""Errors that are shown to the user in one line."""


class PomologyError(Exception):
    """Bad input, with a message of one line: file, key or value, and the expected one."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the message without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class NoSuchDevice(PomologyError):
    """A framework finds no device of the requested kind on this machine."""


class Unsupported(PomologyError):
    """The device lacks a required operator, precision or feature."""


class TooBig(PomologyError):
    """A case is predicted not to fit the device, so it is not tried."""


class TooSlow(PomologyError):
    """A case is predicted not to end in time, so it is not tried."""


class Mismatch(PomologyError):
    """Two computations that should agree differ."""


class NotLearning(PomologyError):
    """A model's loss does not change as it does on the CPU."""
