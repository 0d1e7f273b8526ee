"""The devices of TensorFlow: the CPU, CUDA and, through tensorflow-metal, an Apple chip's GPU.

TensorFlow reads what is set here while it is loaded, so only `load` loads it. On Apple's GPUs the
plugin fuses MatMul, BiasAdd and Relu into an operator that gives wrong values, unless
`TURN_OFF_REMAPPER` is 1 (read in the plugin's binary; not measured). The article trained with that
fusion: its notebooks run once with it and once without."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from pomology.devices.base import DTYPES, SAMPLED_NUMBERS, SAMPLED_TENSORS, Device
from pomology.errors import PomologyError
from pomology.machine import energy, quiet

REMAPPER = "TURN_OFF_REMAPPER"


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

    def __init__(self, backend: str):
        self._tf = load()
        super().__init__(self._tf, backend, "/CPU:0" if backend == "cpu" else "/GPU:0")

    @classmethod
    def prepare(cls, fusion: bool | None = None) -> None:
        """Set what TensorFlow and Keras read when loaded. Raises PomologyError if it is too late.

        fusion: whether Apple's plugin fuses operators. By default as in the last call, else not."""
        wanted = os.environ.get(REMAPPER)
        if fusion is not None:
            wanted = "0" if fusion else "1"
        keras = os.environ.get("KERAS_BACKEND", "tensorflow")
        if "keras" in sys.modules and keras != "tensorflow":
            raise PomologyError(f"KERAS_BACKEND={keras}: unset it, and restart the kernel")
        if "tensorflow" not in sys.modules:
            os.environ[REMAPPER] = "0" if wanted == "0" else "1"
            os.environ["KERAS_BACKEND"] = "tensorflow"
            # Else loading it writes a screen of lines about CUDA and instruction sets.
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            if quiet.quota():  # TensorFlow does not know of a container's quota
                os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(quiet.usable_threads()))
        elif sys.platform == "darwin" and (wanted is None or os.environ.get(REMAPPER) != wanted):
            why = "by which its Metal plugin fuses operators, or does not"
            raise cls.too_late(f"{REMAPPER}={wanted or 1}", why)

    @classmethod
    def backends(cls) -> dict[str, str | None]:
        present = bool(load().config.list_physical_devices("GPU"))
        if sys.platform == "darwin":
            absent = "no Metal GPU, or no tensorflow-metal for this TensorFlow"
            metal = None if present else cls.unusable().get("metal", absent)
            return {"cpu": None, "cuda": "TensorFlow has no CUDA on macOS", "metal": metal}
        absent = "no NVIDIA GPU, or not the CUDA that TensorFlow was built for"
        return {
            "cpu": None,
            "cuda": None if present else absent,
            "metal": "Metal is on macOS only",
        }

    @classmethod
    def unusable(cls) -> dict[str, str]:
        if sys.platform != "darwin" or sys.version_info < (3, 13):
            return {}
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        reason = f"tensorflow-metal has no build for Python {version}: PYTHON=python3.12 has one"
        return {"metal": reason}

    @property
    def name(self) -> str | None:
        if self.backend != "cuda":
            return super().name
        gpu = self._tf.config.list_physical_devices("GPU")[0]
        return self._tf.config.experimental.get_device_details(gpu).get("device_name", "NVIDIA GPU")

    @property
    def threads(self) -> int:
        threads = self._tf.config.threading.get_intra_op_parallelism_threads()  # 0: one a core
        threads = threads or int(os.environ.get("TF_NUM_INTRAOP_THREADS", "0"))
        return threads or quiet.usable_threads()

    def context(self, strict: bool = False) -> contextlib.AbstractContextManager:
        """Inside, this device computes what it has a kernel for."""
        return self._tf.device(self.handle)

    def on_cpu(self) -> contextlib.AbstractContextManager:
        """Inside, the CPU computes."""
        return self._tf.device("/CPU:0")

    def synchronize(self) -> None:
        self._tf.test.experimental.sync_devices()
        if self.backend == "metal":
            # Nobody has shown that the Metal plugin waits. A value that is read back has been
            # computed, and on one queue so has all before it.
            with self.context():
                (self._tf.zeros(()) + 1.0).numpy()

    def _here(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self.context():
            return function(*arguments)

    def product(self, precision: str, size: int) -> Callable[[], Any]:
        with self.context():
            a = self._tf.cast(self._tf.random.uniform((size, size)), DTYPES[precision])
            b = self._tf.cast(self._tf.random.uniform((size, size)), DTYPES[precision])
        return functools.partial(self._here, self._tf.matmul, a, b)

    def smallest_kernel(self, own: bool = True) -> tuple[Callable[[], Any], str]:
        with self.context():
            number = self._tf.ones(1)
        return functools.partial(self._here, self._tf.add, number, 1), "adding 1 to one number"

    def _ones(self, dtype: str, size: int) -> Any:
        return self._tf.ones((size, size), dtype=dtype)

    def _move(self, item: Any) -> Any:
        return self._here(self._tf.identity, item)

    def device_of(self, item: Any) -> str:
        tensors = [weight.value for weight in item.weights] if hasattr(item, "weights") else [item]
        gpu = "metal" if sys.platform == "darwin" else "cuda"
        return self._one_of({gpu if "GPU" in tensor.device else "cpu" for tensor in tensors}, item)

    def count(self, model: Any) -> int:
        return model.count_params()

    def weight_sample(self, model: Any) -> list[float]:
        numbers: list[float] = []
        for weight in model.trainable_weights[-SAMPLED_TENSORS:]:
            numbers += weight.numpy().ravel()[:SAMPLED_NUMBERS].astype("float32").tolist()
        return numbers

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

    def _peak_bytes(self) -> dict[str, int]:
        info = self._tf.config.experimental.get_memory_info("GPU:0")
        return {"allocated_peak_bytes": info["peak"]}

    def _bytes_now(self) -> dict[str, int]:
        info = self._tf.config.experimental.get_memory_info("GPU:0")
        return {"allocated_bytes": info["current"]}
