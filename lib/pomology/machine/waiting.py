"""Whether a device's synchronization waits for its work: all times of a device rest on that."""

import functools
import time
from typing import Any

from pomology import format

SIDE = 1024  # of the products' matrices: 2.1 GFLOP each
CHAIN_S = 0.02  # least time of the products
MOST = 256  # products
LATE_SHARE = 0.1  # of the time until the result is there
LATE_S = 0.002  # least time that shows more than the cost of a read


@functools.cache
def late_result(device: Any) -> str | None:
    """Return by how much a result comes after the synchronization, None if it does not.

    device: a `Device`. Its products run one after another, so that the last one is there when all
    are. Without a data sheet, too, this finds a synchronization that returns at once.
    """
    with device.context():
        launch = device.dispatch(device.product("fp32", SIDE))
        count = 4
        _read(launch())
        while True:
            device.synchronize()
            start_s = time.perf_counter()
            for _ in range(count):
                product = launch()
            device.synchronize()
            waited_s = time.perf_counter() - start_s
            _read(product)
            result_s = time.perf_counter() - start_s
            _read(product)  # again: the cost of a read without a wait
            late_s = result_s - waited_s - (time.perf_counter() - start_s - result_s)
            if result_s >= CHAIN_S or count >= MOST:
                break
            count *= 4
    if late_s < max(LATE_S, LATE_SHARE * result_s):
        return None
    return (
        f"a synchronization ended after {format.seconds(waited_s)}, the result came "
        f"{format.seconds(late_s)} later: it does not wait, so all times of this device are too "
        f"short"
    )


def _read(product: Any) -> float:
    return float(product[0, 0])
