"""The errors that a user sees, each in one line."""


class PomologyError(Exception):
    """Bad input, said in one line that names the file, key or value and what would be right."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of it: that line, without the way through this package."""
        return [f"{type(self).__name__}: {self}"]


class NoSuchDevice(PomologyError):
    """A framework finds no device of the kind that was asked for on this machine."""


class Unsupported(PomologyError):
    """The device lacks an operator, a precision or a feature that was asked of it."""


class TooBig(PomologyError):
    """Predicted not to fit the device, so not tried."""


class TooSlow(PomologyError):
    """Predicted not to end in time, so not tried."""


class Mismatch(PomologyError):
    """Two computations that should agree do not."""
