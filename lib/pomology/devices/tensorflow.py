"""The devices of TensorFlow: the CPU, CUDA and, through its plugin tensorflow-metal, the GPU of an Apple chip.

TensorFlow reads what is set here while it is loaded, so it is loaded through `load` only. Apple's GPUs need that: the
plugin fuses MatMul, BiasAdd and Relu into an operator that gives wrong values, unless `TURN_OFF_REMAPPER` is 1 (read in
the plugin's binary; its effect on hardware is unmeasured, so notebooks compare CPU and GPU before they time anything).
The article trained with that fusion: its notebooks ask for it, and a process of its own has it off."""

import contextlib
import functools
import importlib.metadata
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

    # fp32 means fp32: TensorFlow would otherwise multiply in TF32 on Ampere and later, but not on older cards.
    tensorflow.config.experimental.enable_tensor_float_32_execution(False)
    # A GPU that is in use already refuses; then this was set when it was first seen.
    with contextlib.suppress(RuntimeError):
        for gpu in tensorflow.config.list_physical_devices("GPU"):
            tensorflow.config.experimental.set_memory_growth(gpu, True)
    return tensorflow


class TensorFlowDevice(Device):
    """One device of TensorFlow. `handle` is the name that `tf.device` takes."""

    framework, title, gpus, apple_gpu = "tensorflow", "TensorFlow", ("cuda", "metal"), "metal"

    def __init__(self, backend: str):
        self._tf = load()
        super().__init__(self._tf, backend, "/CPU:0" if backend == "cpu" else "/GPU:0")

    @classmethod
    def prepare(cls, fusion: bool | None = None) -> None:
        """Set what TensorFlow and Keras read when they are loaded. Raises PomologyError if it is too late for that.

        fusion: of Apple's plugin, as it comes; left out, what was asked for before in this process, else none."""
        wanted = os.environ.get(REMAPPER) if fusion is None else "0" if fusion else "1"
        if "keras" in sys.modules and os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
            raise PomologyError("Keras was loaded with KERAS_BACKEND set to another: unset it, restart the kernel")
        if "tensorflow" not in sys.modules:
            os.environ.update({REMAPPER: "0" if wanted == "0" else "1", "KERAS_BACKEND": "tensorflow"})
            # Else loading it writes a screen of lines about CUDA and instruction sets; what goes wrong raises anyway.
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            if quiet.quotas():  # it detects what it may run on, and not what a quota pays
                os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(quiet.usable_threads()))
        elif sys.platform == "darwin" and (wanted is None or os.environ.get(REMAPPER) != wanted):
            raise cls.too_late(f"{REMAPPER}={wanted or 1}", "by which its Metal plugin fuses operators, or does not")

    @classmethod
    def other_ways(cls) -> dict[str, tuple[bool, str]]:
        return {"fusion": (False, "-unfused")} if sys.platform == "darwin" else {}

    @classmethod
    def backends(cls) -> dict[str, str | None]:
        tensorflow = load()
        if sys.platform == "darwin":
            here, why = "metal", "TensorFlow finds no Metal GPU (a virtual machine, or a plugin for another TensorFlow)"
            if not any(importlib.metadata.distributions(name="tensorflow-metal")):
                why = cls.unusable().get("metal", "tensorflow-metal is not installed; `make env` installs it")
        else:
            here, why = "cuda", "TensorFlow finds no NVIDIA GPU, or not the CUDA libraries that it was built for"
            if not tensorflow.test.is_built_with_cuda():
                why = "this TensorFlow is built without CUDA"
        reasons = {"cpu": None, "cuda": "TensorFlow has no CUDA on macOS", "metal": "Metal is on macOS only"}
        return reasons | {here: None if tensorflow.config.list_physical_devices("GPU") else why}

    @classmethod
    def unusable(cls) -> dict[str, str]:
        if sys.platform != "darwin" or sys.version_info < (3, 13):
            return {}
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return {"metal": f"tensorflow-metal has no build for Python {version}: PYTHON=python3.12 has one"}

    @property
    def name(self) -> str | None:
        if self.backend != "cuda":
            return super().name
        gpu = self._tf.config.list_physical_devices("GPU")[0]
        return self._tf.config.experimental.get_device_details(gpu).get("device_name", "NVIDIA GPU")

    @property
    def threads(self) -> int:
        set_here = self._tf.config.threading.get_intra_op_parallelism_threads()  # 0 stands for one a core
        return set_here or int(os.environ.get("TF_NUM_INTRAOP_THREADS", "0")) or quiet.usable_threads()

    def context(self, strict: bool = False) -> contextlib.AbstractContextManager:
        """Inside, everything is computed on this device, unless it has no kernel for it."""
        return self._tf.device(self.handle)

    def on_cpu(self) -> contextlib.AbstractContextManager:
        """Inside, everything is computed on the CPU: the reference that a GPU is compared with."""
        return self._tf.device("/CPU:0")

    def synchronize(self) -> None:
        self._tf.test.experimental.sync_devices()
        if self.backend == "metal":
            # Nobody has shown that the Metal plugin waits when asked to. A value read back has been computed, and on
            # one queue so has all that was asked for before it.
            with self.context():
                (self._tf.zeros(()) + 1.0).numpy()

    def _here(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self.context():
            return function(*arguments)

    def product(self, precision: str, size: int) -> Callable[[], Any]:
        with self.context():
            a, b = (self._tf.cast(self._tf.random.uniform((size, size)), DTYPES[precision]) for _ in range(2))
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
        backends = {gpu if "GPU" in tensor.device else "cpu" for tensor in tensors}
        if not backends:
            raise ValueError(f"{type(item).__name__} has no weights, so no device")
        return backends.pop() if len(backends) == 1 else "mixed"

    def count(self, model: Any) -> int:
        return model.count_params()

    def weight_sample(self, model: Any) -> list[float]:
        last = [weight.numpy().ravel() for weight in model.trainable_weights[-SAMPLED_TENSORS:]]
        return [number for weight in last for number in weight[:SAMPLED_NUMBERS].astype("float32").tolist()]

    def free_memory(self) -> int:
        if self.backend != "cuda":
            return super().free_memory()
        nvml, gpu = energy.nvml_gpu()
        return nvml.nvmlDeviceGetMemoryInfo(gpu).free

    def release(self) -> None:
        import keras

        keras.backend.clear_session()
        super().release()

    # Of GPUs only: on the CPU TensorFlow counts only part of what it takes. The Metal plugin may keep no count.

    def _reset_peak(self) -> None:
        self._tf.config.experimental.reset_memory_stats("GPU:0")

    def _peak_bytes(self) -> dict[str, int]:
        return {"allocated_peak_bytes": self._tf.config.experimental.get_memory_info("GPU:0")["peak"]}

    def _bytes_now(self) -> dict[str, int]:
        return {"allocated_bytes": self._tf.config.experimental.get_memory_info("GPU:0")["current"]}
