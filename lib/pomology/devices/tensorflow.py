"""Devices of TensorFlow: the CPU, CUDA and, through tensorflow-metal, an Apple chip's GPU.

TensorFlow reads these settings on import, so only `load` imports it. On Apple's GPUs the plugin
fuses MatMul, BiasAdd and Relu into an operator that gives wrong values, unless `TURN_OFF_REMAPPER`
is 1 (read in the plugin's binary; not measured). Daniel 2023 trained with that fusion, so its
notebooks run once with it and once without."""

import contextlib
import os
import sys
from typing import Any

from pomology.devices.base import Device
from pomology.machine import energy, snapshot

REMAPPER = "TURN_OFF_REMAPPER"
THREADS = "TF_NUM_INTRAOP_THREADS"


def load() -> Any:
    """Return the module `tensorflow`, with true fp32 and GPU memory allocated on demand."""
    TensorFlowDevice.prepare()
    import tensorflow

    # On Ampere and later TensorFlow would compute fp32 matmuls in TF32.
    tensorflow.config.experimental.enable_tensor_float_32_execution(False)
    # A GPU in use raises RuntimeError; an earlier call has set it then.
    with contextlib.suppress(RuntimeError):
        for gpu in tensorflow.config.list_physical_devices("GPU"):
            tensorflow.config.experimental.set_memory_growth(gpu, True)
    return tensorflow


class TensorFlowDevice(Device):
    """Device of TensorFlow. `handle` is the name that `tf.device` takes."""

    framework = "tensorflow"
    title = "TensorFlow"
    gpus = ("cuda", "metal")
    apple_gpu = "metal"
    _remapper_off = "1"

    def __init__(self, backend: str):
        self._tf = load()
        super().__init__(self._tf, backend, "/CPU:0" if backend == "cpu" else "/GPU:0")

    @classmethod
    def prepare(cls, fusion: bool | None = None) -> None:
        """Set what TensorFlow and Keras read on import. Raises PomologyError if imported.

        fusion: let Apple's plugin fuse operators; by default as in the last call, at first off."""
        if fusion is not None:
            cls._remapper_off = "0" if fusion else "1"
        cls._before_import("tensorflow", REMAPPER, cls._remapper_off)
        os.environ["KERAS_BACKEND"] = "tensorflow"
        # Suppress the many import messages about CUDA and instruction sets.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        # TensorFlow ignores a container's CPU quota.
        os.environ.setdefault(THREADS, str(snapshot.usable_threads()))

    @classmethod
    def backends(cls) -> dict[str, str | None]:
        reasons = {
            "cpu": None,
            "cuda": "no NVIDIA GPU, or another CUDA version than TensorFlow's",
            "metal": "no Metal GPU, or no tensorflow-metal, which needs Python 3.12 or older",
        }
        if load().config.list_physical_devices("GPU"):
            reasons["metal" if sys.platform == "darwin" else "cuda"] = None
        return reasons

    @property
    def name(self) -> str | None:
        if self.backend != "cuda":
            return super().name
        gpu = self._tf.config.list_physical_devices("GPU")[0]
        return self._tf.config.experimental.get_device_details(gpu).get("device_name", "NVIDIA GPU")

    @property
    def threads(self) -> int:
        return int(os.environ[THREADS])

    def context(self, strict: bool = False) -> contextlib.AbstractContextManager:
        """Return a context in which this device computes every operator that it supports."""
        return self._tf.device(self.handle)

    def synchronize(self) -> None:
        self._tf.test.experimental.sync_devices()
        if self.backend == "metal":
            # The Metal plugin is not known to wait. Reading a value back waits for its queue.
            with self.context():
                (self._tf.zeros(()) + 1.0).numpy()

    def _random(self, dtype: str, size: int) -> Any:
        return self._tf.cast(self._tf.random.uniform((size, size)), dtype)

    def _move(self, item: Any) -> Any:
        with self.context():
            return self._tf.identity(item)

    def device_of(self, item: Any) -> str:
        tensors = [weight.value for weight in item.weights] if hasattr(item, "weights") else [item]
        gpu = "metal" if sys.platform == "darwin" else "cuda"
        # A tensor's device is a text such as `/job:localhost/replica:0/task:0/device:GPU:0`.
        backends = {gpu if "GPU" in tensor.device else "cpu" for tensor in tensors}
        return self._backend_of(backends, item)

    def count(self, model: Any) -> int:
        return model.count_params()

    def _trained(self, model: Any) -> list[Any]:
        return [weight.numpy() for weight in model.trainable_weights]

    def free_memory(self) -> int:
        if self.backend != "cuda":
            return super().free_memory()
        nvml, gpu = energy.nvml_gpu()
        return nvml.nvmlDeviceGetMemoryInfo(gpu).free

    def release(self) -> None:
        import keras

        keras.backend.clear_session()
        super().release()

    # TensorFlow counts only part of the CPU's memory. The Metal plugin may count nothing.

    def _reset_peak(self) -> None:
        self._tf.config.experimental.reset_memory_stats("GPU:0")

    def _memory(self) -> dict[str, int]:
        info = self._tf.config.experimental.get_memory_info("GPU:0")
        return {"allocated_bytes": info["current"], "allocated_peak_bytes": info["peak"]}
