"""The tests of `keras_side.py`, in a process of their own: TensorFlow must not share one with PyTorch."""

import apart

test_in_tensorflow = apart.tests_of("keras_side.py")
