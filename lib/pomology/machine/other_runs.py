"""Other runs of pomology that measure on this machine at the same time, on whatever device.

CPU time does not show a second run on a GPU, which waits for the device as this one does. So each
case holds a lock while it runs, on a file that all runs of a user on a machine share, and that the
runs of other users may read. Containers have folders of their own: a run in another one is seen by
its CPU time only, see `other_programs`.
"""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

# Not in the home folder, which several machines may share. TMPDIR may differ between two runs.
PLACE = Path("/tmp")
ATTEMPTS, WAIT_S = 10, 0.001  # for a lock that another case holds only while it begins
NOTE = "another run of pomology measured on this machine at the same time"


class OtherRuns:
    """Whether another run measured between `begin` and `end`.

    Every case holds a shared lock and adds a byte to the file. A case that began before is seen by
    its lock, and one that began later, even if it has ended, by its byte. Other users' files are
    looked at in the same way, without writing to them.
    """

    def __init__(self):
        self.noticed = False
        self._file: int | None = None
        self._bytes = 0
        self._others: dict[str, int] = {}  # other users' files and their bytes

    @property
    def flags(self) -> list[str]:
        """`contended`, if another run measured."""
        return ["contended"] if self.noticed else []

    def begin(self) -> None:
        """Begin to watch, without waiting for others. Raises OSError if no lock can be had."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        self._file = os.open(self.path, flags, 0o644)
        try:
            alone = self._locked(fcntl.LOCK_EX)
            if alone:
                os.ftruncate(self._file, 0)
            else:
                self._share()
            os.write(self._file, b".")
            self._bytes = os.lseek(self._file, 0, os.SEEK_CUR)
            if alone:  # only now: who comes meanwhile must find the lock, and adds its byte later
                self._share()
        except OSError:
            self._close()
            raise
        self._others = dict(self._of_other_users())
        self.noticed = not alone or -1 in self._others.values()

    def end(self) -> None:
        """End to watch, and set `noticed`."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # of a network's volume that is gone
            grown = os.fstat(self._file).st_size != self._bytes
            self.noticed |= grown or not self._locked(fcntl.LOCK_EX)
            self.noticed |= dict(self._of_other_users()) != self._others
            # A worker that was forked meanwhile has the same lock, and may live on.
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._close()

    @property
    def path(self) -> Path:
        """The file that all runs of this user lock."""
        return PLACE / f"pomology-{os.getuid()}.lock"

    def _of_other_users(self) -> Iterator[tuple[str, int]]:
        """Yield the names of other users' files and their bytes, -1 while one of them measures."""
        for path in PLACE.glob("pomology-*.lock"):
            if path == self.path:
                continue
            with contextlib.suppress(OSError):  # it may not be read, or is gone
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    state = os.fstat(file)
                    if stat.S_ISREG(state.st_mode):
                        free = _locked(file, fcntl.LOCK_EX)
                        yield path.name, state.st_size if free else -1
                finally:
                    os.close(file)

    def _share(self) -> None:
        """Take the shared lock, which only a case that begins at this moment refuses."""
        for _ in range(ATTEMPTS):
            if self._locked(fcntl.LOCK_SH):
                return
            time.sleep(WAIT_S)

    def _locked(self, kind: int) -> bool:
        """Return whether the lock was free for this."""
        return _locked(self._file, kind)

    def _close(self) -> None:
        os.close(self._file)
        self._file = None


def _locked(file: int, kind: int) -> bool:
    """Return whether a file's lock was free for this."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
