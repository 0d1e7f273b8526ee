"""The tests of `keras_side.py`, in a process of their own: TensorFlow must not share one with PyTorch."""

from pathlib import Path

import apart

test_in_tensorflow = apart.tests_of(Path(__file__).with_name("keras_side.py"))
