"""The devices that TensorFlow can train on here; the same methods as `device.Device` has for PyTorch.

TensorFlow reads what is set here while it is loaded, so it is loaded through `load` only. On Apple's GPUs it has
needed that: the plugin tensorflow-metal fuses MatMul, BiasAdd and Relu into an operator that gives wrong values, and
leaves that be if `TURN_OFF_REMAPPER` is 1 (read out of the plugin; what it changes on hardware has to be measured, so
notebooks compare CPU and GPU before they time anything).
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from typing import Any

from pomology.errors import PomologyError
from pomology.machine import snapshot

REMAPPER = "TURN_OFF_REMAPPER"
BACKENDS = ("cpu", "cuda", "metal")


def prepare() -> None:
    """Set what TensorFlow and Keras read when they are loaded. Raises PomologyError if it is too late for that."""
    if "keras" in sys.modules and os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        raise PomologyError("Keras was loaded with KERAS_BACKEND set to another backend: unset it, restart the kernel")
    if "tensorflow" in sys.modules:
        if sys.platform == "darwin" and os.environ.get(REMAPPER) != "1":
            raise PomologyError(
                f"TensorFlow was imported before {REMAPPER}=1 was set, without which its Metal plugin may give wrong "
                "results: restart the kernel, and let device.prepare('tensorflow') come before any import of it"
            )
        return
    os.environ[REMAPPER] = "1"
    os.environ["KERAS_BACKEND"] = "tensorflow"
    # Else loading it writes a screen of lines about CUDA and instruction sets; what goes wrong raises anyway.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def load() -> Any:
    """The module `tensorflow`, with true fp32 and no more GPU memory taken than is used."""
    prepare()
    import tensorflow

    # fp32 means fp32: TensorFlow would otherwise multiply in TF32 on Ampere and later, but not on older cards.
    tensorflow.config.experimental.enable_tensor_float_32_execution(False)
    # A GPU that is in use already refuses; then this was set when it was first seen.
    with contextlib.suppress(RuntimeError):
        for gpu in tensorflow.config.list_physical_devices("GPU"):
            tensorflow.config.experimental.set_memory_growth(gpu, True)
    return tensorflow


def backends() -> dict[str, str | None]:
    """Each backend of TensorFlow, with None if it can train here and else the reason why not, in plain words."""
    tensorflow = load()
    gpus = tensorflow.config.list_physical_devices("GPU")
    reasons: dict[str, str | None] = {"cpu": None}
    if sys.platform == "darwin":
        reasons["cuda"] = "TensorFlow has no CUDA on macOS"
        if gpus:
            reasons["metal"] = None
        elif not _has_metal_plugin():
            reasons["metal"] = "tensorflow-metal is not installed (it needs a native arm64 Python)"
        else:
            reasons["metal"] = "TensorFlow finds no Metal GPU (a virtual machine, or a plugin for another TensorFlow)"
        return reasons
    reasons["metal"] = "Metal is on macOS only"
    if gpus:
        reasons["cuda"] = None
    elif not tensorflow.test.is_built_with_cuda():
        reasons["cuda"] = "this TensorFlow is built without CUDA"
    else:
        reasons["cuda"] = "TensorFlow finds no NVIDIA GPU, or not the CUDA libraries that it was built for"
    return reasons


def _has_metal_plugin() -> bool:
    try:
        importlib.metadata.version("tensorflow-metal")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class TensorFlowDevice:
    """One device as TensorFlow sees it.

    `backend` is `cpu`, `cuda` or `metal`; `kind` is `cpu` or `gpu`; `handle` is the name that `tf.device` takes.
    """

    framework = "tensorflow"

    def __init__(self, backend: str):
        self._tf = load()
        self.backend = backend
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.handle = "/CPU:0" if backend == "cpu" else "/GPU:0"
        self.uncounted: str | None = None  # why the memory counters do not answer, where they do not

    def __repr__(self) -> str:
        return f"Device({self.framework}, {self.backend})"

    @property
    def name(self) -> str:
        """What people call it: the GPU's or the processor's name."""
        if self.backend == "cuda":
            gpu = self._tf.config.list_physical_devices("GPU")[0]
            return self._tf.config.experimental.get_device_details(gpu).get("device_name", "NVIDIA GPU")
        return snapshot.chip()  # the GPU of an Apple chip has the chip's name

    @property
    def framework_version(self) -> str:
        return self._tf.__version__

    @property
    def threads(self) -> int:
        """CPU threads that an operator may use; 0 in TensorFlow's own settings stands for one a core."""
        return (
            self._tf.config.threading.get_intra_op_parallelism_threads()
            or int(os.environ.get("TF_NUM_INTRAOP_THREADS", "0"))
            or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
        )

    def context(self) -> contextlib.AbstractContextManager:
        """Inside, everything is computed on this device, unless it has no kernel for it."""
        return self._tf.device(self.handle)

    def on_cpu(self) -> contextlib.AbstractContextManager:
        """Inside, everything is computed on the CPU: the reference that a GPU is compared with."""
        return self._tf.device("/CPU:0")

    def synchronize(self) -> None:
        """Wait until all work given to this device is done."""
        sync = getattr(self._tf.test.experimental, "sync_devices", None)
        if sync is not None:
            sync()
        if sync is None or self.backend == "metal":
            # Nobody has shown that the Metal plugin waits when asked to. A value read back has been computed, and on
            # one queue so has all that was asked for before it.
            with self.context():
                (self._tf.zeros(()) + 1.0).numpy()

    def to_device(self, batch: Any) -> Any:
        """The same batch on this device: an array or a tensor, or tuples, lists and dicts of them."""
        if isinstance(batch, dict):
            return {key: self.to_device(value) for key, value in batch.items()}
        if isinstance(batch, (tuple, list)):
            return type(batch)(self.to_device(value) for value in batch)
        with self.context():
            return self._tf.identity(batch)

    def device_of(self, item: Any) -> str:
        """The backend that really holds a model's weights or a tensor; `mixed` if there is more than one.

        Raises ValueError for a model without weights.
        """
        tensors = [weight.value for weight in item.weights] if hasattr(item, "weights") else [item]
        gpu = "metal" if sys.platform == "darwin" else "cuda"
        found = {gpu if "GPU" in tensor.device else "cpu" for tensor in tensors}
        if not found:
            raise ValueError(f"{type(item).__name__} has no weights that could tell its device")
        return found.pop() if len(found) == 1 else "mixed"

    def count(self, model: Any) -> int:
        """Parameters of a Keras model, trained or not."""
        return model.count_params()

    def weight_sample(self, model: Any) -> list[float]:
        """A few of the weights that are trained, to see whether training changed them."""
        few = [weight.numpy().ravel()[:64] for weight in model.trainable_weights[-4:]]
        return [value for weight in few for value in weight.astype("float32").tolist()]

    def precisions(self) -> dict[str, str | None]:
        """Which of fp32, fp16, bf16 and fp64 multiply matrices here: None for those that do, else why not."""
        kinds = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
        reasons: dict[str, str | None] = {}
        for name, kind in kinds.items():
            try:
                with self.context():
                    matrix = self._tf.ones((8, 8), dtype=kind)
                    product = self._tf.matmul(matrix, matrix)
                if self.device_of(product) != self.backend:
                    reasons[name] = f"computed on {self.device_of(product)}"
                else:
                    reasons[name] = None if float(product[0, 0]) == 8 else "gives wrong products"
            except (self._tf.errors.OpError, TypeError, ValueError) as error:
                reasons[name] = str(error).split("\n")[0]
        return reasons

    def reset_peak_memory(self) -> None:
        """Forget the last model and begin a new peak."""
        self.release()
        self.uncounted = None
        if self.backend == "cpu":
            return
        try:
            self._tf.config.experimental.reset_memory_stats("GPU:0")
        except (ValueError, RuntimeError, self._tf.errors.OpError) as error:  # the Metal plugin may keep no count
            self.uncounted = str(error).split("\n")[0]

    def peak_memory(self) -> dict[str, int]:
        """`allocated_peak_bytes` of a GPU since the last reset; empty where nobody counts, and on the CPU.

        On the CPU TensorFlow counts only part of what it takes: see the process footprint of `telemetry`.
        """
        if self.backend == "cpu" or self.uncounted:
            return {}
        try:
            return {"allocated_peak_bytes": self._tf.config.experimental.get_memory_info("GPU:0")["peak"]}
        except (ValueError, RuntimeError, KeyError, self._tf.errors.OpError) as error:
            self.uncounted = str(error).split("\n")[0]
            return {}

    def memory(self) -> dict[str, int]:
        """`allocated_bytes` of a GPU now; empty where `peak_memory` is."""
        if self.backend == "cpu" or self.uncounted:
            return {}
        try:
            return {"allocated_bytes": self._tf.config.experimental.get_memory_info("GPU:0")["current"]}
        except (ValueError, RuntimeError, KeyError, self._tf.errors.OpError) as error:
            self.uncounted = str(error).split("\n")[0]
            return {}

    def free_memory(self) -> int:
        """Bytes that a case may still take: without swapping, on a machine whose CPU and GPU share their memory."""
        if self.backend == "cuda":
            import pynvml

            pynvml.nvmlInit()
            try:
                return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free
            finally:
                pynvml.nvmlShutdown()
        return snapshot.available_memory_bytes()

    def release(self) -> None:
        """Free what the last case left behind."""
        import keras

        keras.backend.clear_session()
        gc.collect()

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        """TensorFlow moves an operator that a GPU lacks to the CPU without a word, so this set stays empty."""
        yield set()
