"""The lock of a machine: one measurement at a time, whoever measures."""

import threading

from pomology.machine import quiet


def test_a_second_measurement_on_a_machine_waits_for_the_first():
    waits = threading.Event()
    order = []

    def measure() -> None:
        with quiet.alone(lambda line: waits.set()):
            order.append("second")

    second = threading.Thread(target=measure)
    with quiet.alone(str):
        second.start()
        assert waits.wait(10)
        order.append("first")
    second.join()
    assert order == ["first", "second"]
