"""The devices of TensorFlow: the CPU, CUDA and, through tensorflow-metal, an Apple chip's GPU.

TensorFlow reads what is set here while it is loaded, so only `load` loads it. On Apple's GPUs the
plugin fuses MatMul, BiasAdd and Relu into an operator that gives wrong values, unless
`TURN_OFF_REMAPPER` is 1 (read in the plugin's binary; not measured). The article trained with that
fusion: its notebooks run once with it and once without."""

import contextlib
import os
import sys
from typing import Any

from pomology.devices.base import Device
from pomology.machine import energy, quiet

REMAPPER = "TURN_OFF_REMAPPER"
THREADS = "TF_NUM_INTRAOP_THREADS"


def load() -> Any:
    """The module `tensorflow`, with true fp32 and no more GPU memory taken than is used."""
    TensorFlowDevice.prepare()
    import tensorflow

    # fp32 means fp32: on Ampere and later TensorFlow would multiply in TF32.
    tensorflow.config.experimental.enable_tensor_float_32_execution(False)
    # A GPU in use refuses: it was set when it was first seen.
    with contextlib.suppress(RuntimeError):
        for gpu in tensorflow.config.list_physical_devices("GPU"):
            tensorflow.config.experimental.set_memory_growth(gpu, True)
    return tensorflow


class TensorFlowDevice(Device):
    """One device of TensorFlow. `handle` is the name that `tf.device` takes."""

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
        """Set what TensorFlow and Keras read when loaded. Raises PomologyError if it is too late.

        fusion: whether Apple's plugin fuses operators. By default as in the last call, else not."""
        if fusion is not None:
            cls._remapper_off = "0" if fusion else "1"
        cls._before_import("tensorflow", REMAPPER, cls._remapper_off)
        os.environ["KERAS_BACKEND"] = "tensorflow"
        # Else loading it writes a screen of lines about CUDA and instruction sets.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        # TensorFlow does not know of a container's quota.
        os.environ.setdefault(THREADS, str(quiet.usable_threads()))

    @classmethod
    def backends(cls) -> dict[str, str | None]:
        reasons = {
            "cpu": None,
            "cuda": "no NVIDIA GPU, or not the CUDA that TensorFlow was built for",
            "metal": "no Metal GPU, or no tensorflow-metal, which Python 3.13 and later lack",
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
        """Inside, this device computes what it has a kernel for."""
        return self._tf.device(self.handle)

    def synchronize(self) -> None:
        self._tf.test.experimental.sync_devices()
        if self.backend == "metal":
            # Nobody has shown that the Metal plugin waits. A value that is read back has been
            # computed, and on one queue so has all before it.
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
        return self._one_of({gpu if "GPU" in tensor.device else "cpu" for tensor in tensors}, item)

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

    # On the CPU TensorFlow counts only a part. The Metal plugin may keep no count.

    def _reset_peak(self) -> None:
        self._tf.config.experimental.reset_memory_stats("GPU:0")

    def _memory(self) -> dict[str, int]:
        info = self._tf.config.experimental.get_memory_info("GPU:0")
        return {"allocated_bytes": info["current"], "allocated_peak_bytes": info["peak"]}
