"""What passes on Linux and breaks, or silently lies, on a Mac: found by reading the code of notebooks and modules.

A finding is one line: where, and what is wrong and why. Each rule is a generator of (syntax node, words). What only
Linux has is looked for in test_on_a_mac.py.

Two comments on a statement make an exception, and must give a reason: `# not fused: ...` for an AdamW whose article
forbids the fused one, and `# own clock: ...` in the notebooks of OWN_CLOCK.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "lib" / "pomology"

Found = Iterator[tuple[ast.AST, str]]

# A package that belongs to a framework -> the framework. No process may hold two.
FRAMEWORKS = {
    **dict.fromkeys(("torch", "lightning", "pytorch_lightning", "torchmetrics", "transformers", "peft"), "torch"),
    **dict.fromkeys(("accelerate", "deepspeed"), "torch"),
    **dict.fromkeys(("tensorflow", "keras", "tf_keras"), "tensorflow"),
    **dict.fromkeys(("mlx", "mlx_lm"), "mlx"),
    **dict.fromkeys(("jax", "flax"), "jax"),
}
# Nowhere, neither in a notebook nor in a module.
UNWANTED = {
    "sklearn": "it brings an OpenMP of its own, and two in one process may hang it on a Mac",
    "zeus": "it imports scikit-learn, which brings a second OpenMP; zeus_apple_silicon is the one without",
    "torchvision": "it does not import beside a PyTorch for CPUs only",
}
UNWANTED_IN_NOTEBOOKS = {
    "tqdm": "case.steps shows how far a case is",
    "ipywidgets": "its output does not stay in a rendered page",
}
# The package that speaks to devices, and the module that counts operations.
DEVICES, COUNTS = "devices/", "workloads/cost.py"
# These notebooks may read a clock of their own, statement by statement, each with its reason.
OWN_CLOCK = {"instrument_check"}
# What sets TURN_OFF_REMAPPER, other than the variable itself.
PREPARES_TENSORFLOW = {
    "pomology.devices.find.prepare",
    "pomology.devices.tensorflow.TensorFlowDevice.prepare",
    "pomology.devices.tensorflow.load",
}

CLOCKS = re.compile(r"time\.(time|perf_counter|monotonic|process_time|thread_time)(_ns)?$|timeit\.")
GPU = re.compile(r"(cuda|mps|metal)(:\d+)?$")
NUMPY_FLOATS = re.compile(
    r"numpy\.(zeros|ones|empty|eye|linspace|random\.(rand|randn|random|random_sample|normal|uniform|standard_normal))$"
)


class Code:
    """A notebook's cells or a module, parsed. `name` is the notebook's file, or the module's path in the package."""

    def __init__(self, name: str, sources: list[tuple[str, str]], notebook: bool, markdown: str = ""):
        """sources: (what the place is called, its text), in order. Raises SyntaxError."""
        self.name, self.notebook, self.markdown = name, notebook, markdown
        self.lines: dict[str, list[str]] = {}
        self.nodes: list[ast.AST] = []  # in the order of the text
        self._parents: dict[ast.AST, ast.AST] = {}
        self._places: dict[ast.AST, str] = {}
        self._names: dict[str, str] = {}
        self._strings = {"FALLBACK_VARIABLE": "PYTORCH_ENABLE_MPS_FALLBACK"}  # names of constants
        for place, text in sources:
            self.lines[place] = text.splitlines()
            self._add(ast.parse(text), place)
        for node in self.nodes:
            self._learn(node)
        self.order = {node: number for number, node in enumerate(self.nodes)}

    def _add(self, node: ast.AST, place: str) -> None:
        self.nodes.append(node)
        self._places[node] = place
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)):
                self._parents[child] = node
                self._add(child, place)

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                self._names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and text([node.value]):
            self._strings[node.targets[0].id] = text([node.value])

    def of(self, *kinds: type) -> Iterator[Any]:
        return (node for node in self.nodes if isinstance(node, kinds))

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(node)

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(ancestor, its child on the way to the node), the nearest first."""
        while (parent := self._parents.get(node)) is not None:
            yield parent, node
            node = parent

    def full(self, node: ast.AST) -> str:
        """A dotted name with its imports undone: `optim.AdamW` is `torch.optim.AdamW`. Empty if it is no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self._names.get(node.id, node.id))
        parts.reverse()
        if parts[0] == "self" and len(parts) > 1:  # a module that an object keeps: self._torch.cuda
            parts = [parts[1].lstrip("_"), *parts[2:]]
        return ".".join(parts)

    def string(self, node: ast.AST | None) -> str:
        """The string that a node is, as a literal or as the name of a constant; empty if it is none."""
        if node is None:
            return ""
        return text([node]) or self._strings.get(self.full(node).rsplit(".", 1)[-1], "")

    def imports(self) -> Iterator[tuple[ast.AST, str]]:
        """(node, dotted name) of everything that is imported, also by a function that imports."""
        for node in self.of(ast.Import, ast.ImportFrom, ast.Call):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)
            elif self.full(node.func) in ("__import__", "importlib.import_module") and text(node.args[:1]):
                yield node, text(node.args[:1])

    def statement(self, node: ast.AST) -> ast.stmt:
        return next((up for up in (node, *(up for up, _ in self.above(node))) if isinstance(up, ast.stmt)), node)

    def function(self, node: ast.AST) -> ast.AST | None:
        """The function that the node stands in."""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return next((up for up, _ in self.above(node) if isinstance(up, functions)), None)

    def has_reason(self, node: ast.AST, words: str) -> bool:
        """Whether the node's statement has the comment `# words: reason`."""
        statement = self.statement(node)
        lines = self.lines[self._places[node]][statement.lineno - 1 : statement.end_lineno]
        return any(re.search(rf"#\s*{words}:\s*\w", line) for line in lines)

    def inside(self, node: ast.AST, word: str) -> bool:
        """Whether the node runs only where a condition holds that has the string `word` in it, or under such a key."""
        for up, child in self.above(node):
            if isinstance(up, (ast.If, ast.IfExp)) and child is not up.test:
                chosen = up.body if isinstance(up.body, list) else [up.body]
                if child in chosen and has_string(up.test, word):
                    return True
            if isinstance(up, ast.Dict) and child in up.values:
                key = up.keys[up.values.index(child)]
                if key is not None and has_string(key, word):
                    return True
        return False

    def where(self, node: ast.AST) -> str:
        place = self._places[node]
        cell = f", cell {place}" if self.notebook else ""
        return f"{self.name}{cell}, line {getattr(node, 'lineno', 1)}"


def text(nodes: list[ast.AST]) -> str:
    """The string that the first node is; empty if there is none."""
    return nodes[0].value if nodes and isinstance(nodes[0], ast.Constant) and isinstance(nodes[0].value, str) else ""


def has_string(node: ast.AST, word: str) -> bool:
    return any(isinstance(item, ast.Constant) and item.value == word for item in ast.walk(node))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((item.value for item in call.keywords if item.arg == name), None)


def method(call: ast.Call) -> str:
    """The last part of what is called: `to` of `x.y().to(...)`."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_constant(node: ast.AST | None, value: Any) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def short(node: ast.AST) -> str:
    words = " ".join(ast.unparse(node).split())
    return words if len(words) <= 70 else words[:67] + "..."


def environment_writes(code: Code) -> Found:
    """(node, NAME) of everything that sets a variable of this process; a child's environment is a dict of its own."""

    def names_in(item: ast.AST) -> Iterator[str]:
        if isinstance(item, ast.Dict):
            yield from map(code.string, item.keys)
        elif isinstance(item, ast.Call) and code.full(item.func) == "dict":
            yield from (one.arg or "" for one in item.keywords)

    for node in code.of(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Call):
        if isinstance(node, ast.Call):
            function = code.full(node.func)
            if function in ("os.environ.setdefault", "os.putenv") and node.args:
                yield node, code.string(node.args[0])
            elif function == "os.environ.update":
                given = [one.arg or "" for one in node.keywords] + [name for one in node.args for name in names_in(one)]
                yield from ((node, name) for name in given)
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Subscript) and code.full(target.value) == "os.environ":
                yield node, code.string(target.slice)
            elif code.full(target) == "os.environ" and node.value is not None:
                for name in names_in(node.value):
                    yield node, name


# Rules ----------------------------------------------------------------------------------------------------------------

RULES: list[Callable[[Code], Found]] = []


def rule(function: Callable[[Code], Found]) -> Callable[[Code], Found]:
    RULES.append(function)
    return function


@rule
def non_blocking(code: Code) -> Found:
    why = "non_blocking=True corrupts data on MPS: what is read next may not have arrived; leave it out"
    for node in code.of(ast.keyword, ast.Constant, ast.Call):
        if isinstance(node, ast.keyword):
            if node.arg == "non_blocking" and not is_constant(node.value, False):
                yield node.value, why
        elif isinstance(node, ast.Constant):
            if node.value == "non_blocking":
                yield node, why
        elif method(node) in ("to", "copy_", "cuda") and any(is_constant(item, True) for item in node.args):
            yield node, why


@rule
def channels_last(code: Code) -> Found:
    why = "channels_last gives wrong gradients on MPS (BatchNorm backward); keep the default memory format"
    for node in code.of(ast.Attribute, ast.Name, ast.Constant, ast.keyword):
        if isinstance(node, (ast.Attribute, ast.Name)):
            if code.full(node).rsplit(".", 1)[-1] in ("channels_last", "channels_last_3d"):
                yield node, why
        elif isinstance(node, ast.Constant):
            # Keras' word for the order of axes that it has anyway.
            keras = isinstance(code.parent(node), ast.keyword) and code.parent(node).arg == "data_format"
            if node.value in ("channels_last", "channels_last_3d") and not keras:
                yield node, why
        elif node.arg == "memory_format" and not re.search(r"(contiguous|preserve)_format$", code.full(node.value)):
            yield node.value, f"memory_format={short(node.value)}: {why}"


@rule
def gpu_modules(code: Code) -> Found:
    """`torch.backends` may be asked and set anywhere."""
    if code.name.startswith(DEVICES):
        return
    for node, name in code.imports():
        if re.match(r"torch\.(cuda|mps|accelerator)\b", name):
            yield node, f"imports {name}: only the device module speaks to it, since a Mac has other ones"
    for node in code.of(ast.Attribute):
        name = code.full(node)
        if re.match(r"torch\.(cuda|mps|accelerator)\.", name) and not isinstance(code.parent(node), ast.Attribute):
            yield node, f"{name}: only the device module speaks to torch.{name.split('.')[1]}; use case.device"


@rule
def fixed_device(code: Code) -> Found:
    if code.name.startswith(DEVICES):
        return
    for node in code.of(ast.Call):
        called = method(node)
        if called in ("cuda", "mps") and not code.full(node.func).startswith("torch."):
            yield node, f"{short(node)}: .{called}() is a fixed device; use .to(case.device)"
        named = [keyword(node, name) for name in ("device", "device_type", "map_location")]
        first = node.args[:1] if called in ("to", "device", "autocast", "Generator", "set_default_device") else []
        if called == "GradScaler":
            first = node.args[:1]
            if not first and keyword(node, "device") is None:
                yield node, "GradScaler() without a device is CUDA's: on a Mac it warns and does nothing; give it one"
        for word in filter(None, (text([item]) for item in [*first, *named] if item is not None)):
            if word != "meta" and (code.notebook or GPU.match(word)):
                yield node, f"{short(node)}: a fixed device, {word!r}; take case.device"
    if not code.notebook:
        return
    for node in code.of(ast.Constant):
        if not isinstance(node.value, str) or not GPU.match(node.value):
            continue
        up = code.parent(node)
        if isinstance(up, (ast.Tuple, ast.List, ast.Set)):
            up = code.parent(up)
        is_key = isinstance(up, ast.Dict) and node in up.keys
        if not is_key and not isinstance(up, (ast.Compare, ast.MatchValue, ast.Call, ast.keyword)):
            yield node, f"{node.value!r}: a fixed device, which not every machine has; take case.device"
        elif isinstance(up, ast.keyword) and up.arg not in ("device", "device_type", "map_location"):
            yield node, f"{up.arg}={node.value!r}: a fixed device, which not every machine has; take case.device"


@rule
def adamw_fused(code: Code) -> Found:
    first = None
    for node in code.of(ast.Call):
        if re.match(r"torch\.(optim\.)?(\w+\.)*AdamW$", code.full(node.func)):
            first = first or node
            fused = keyword(node, "fused")
            if (fused is None or is_constant(fused, False)) and not code.has_reason(node, "not fused"):
                yield (
                    node,
                    "AdamW without fused=True is a slow loop over tensors on MPS; fuse it, or say why not in a "
                    "comment on the statement: # not fused: ...",
                )
        optimizer = keyword(node, "optim")
        if optimizer is not None and re.match(r"adamw_(torch|hf)$", text([optimizer])):
            yield (
                node,
                f"optim={text([optimizer])!r} is not fused, a slow loop over tensors on MPS: adamw_torch_fused is",
            )
    if first is not None and code.notebook and not re.search(r"\b(un)?fused\b", code.markdown):
        yield first, "AdamW is timed, but no text of the notebook says whether it is the fused one"


@rule
def out_of_memory(code: Code) -> Found:
    for node in code.of(ast.Try):
        caught: dict[str, ast.AST] = {}
        for handler in node.handlers:
            kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            caught |= {("BaseException" if kind is None else code.full(kind)): handler for kind in kinds}
        if {"RuntimeError", "Exception", "BaseException"} & set(caught):
            continue
        for name, handler in caught.items():
            if name.endswith("OutOfMemoryError"):
                yield (
                    handler,
                    f"except {name} misses MPS, which raises a plain RuntimeError when memory is out; "
                    "catch RuntimeError and ask device.failure",
                )


@rule
def float64(code: Code) -> Found:
    why = "MPS has no float64; use float32"
    if code.name.startswith(DEVICES):
        return
    for node in code.of(ast.Attribute, ast.Constant, ast.Call):
        if isinstance(node, ast.Attribute):
            name = code.full(node)
            exact = re.match(r"(torch|numpy|tensorflow|mlx\.core|keras)\.(\w+\.)*(float64|double|complex128)$", name)
            # NumPy on the host, outside notebooks, may be as exact as it likes.
            if exact and (code.notebook or name.startswith("torch.")):
                yield node, f"{name}: {why}"
        elif isinstance(node, ast.Constant):
            if code.notebook and node.value in ("float64", "torch.float64", "double", "f8", "<f8", "complex128"):
                yield node, f"{node.value!r}: {why}"
        else:
            called = method(node)
            if called in ("double", "cdouble") and not node.args:
                yield node, f"{short(node)}: {why}"
            kind = keyword(node, "dtype")
            if kind is None and called in ("astype", "to", "type"):
                kind = next(iter(node.args), None)
            if isinstance(kind, ast.Name) and kind.id == "float" and (code.notebook or "torch" in code.full(node.func)):
                yield node, f"{short(node)}: Python's float means float64, and {why}"
            name = code.full(node.func)
            if re.match(r"torch\.(tensor|from_numpy|as_tensor|asarray)$", name) and keyword(node, "dtype") is None:
                for item in ast.walk(ast.Expression(node.args[0])) if node.args else ():
                    if isinstance(item, ast.Call) and method(item) in ("astype", "float", "numpy"):
                        break
                    if isinstance(item, ast.Call) and NUMPY_FLOATS.match(code.full(item.func)):
                        if keyword(item, "dtype") is None:
                            yield node, f"{short(node)}: NumPy makes float64, and {why}"
                        break


@rule
def pin_memory(code: Code) -> Found:
    why = "pin_memory=True only warns on a Mac, and is forced off; give it to CUDA alone"
    for node in code.of(ast.keyword, ast.Dict):
        if isinstance(node, ast.keyword):
            if node.arg == "pin_memory" and is_constant(node.value, True) and not code.inside(node.value, "cuda"):
                yield node.value, why
        else:
            for key, value in zip(node.keys, node.values, strict=True):
                pins = key is not None and text([key]) == "pin_memory" and is_constant(value, True)
                if pins and not code.inside(node, "cuda"):
                    yield value, why


@rule
def fallback_variable(code: Code) -> Found:
    for node, name in environment_writes(code):
        if name == "PYTORCH_ENABLE_MPS_FALLBACK":
            yield (
                node,
                "PYTORCH_ENABLE_MPS_FALLBACK is read when torch is loaded: set after that it does nothing here, and "
                "lets child processes compute on the CPU unnoticed; give it to a child's env",
            )


@rule
def watermarks(code: Code) -> Found:
    names = {"PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"}
    said = {node.value: node for node in code.of(ast.Constant) if isinstance(node.value, str) and node.value in names}
    said |= {node.arg: node.value for node in code.of(ast.keyword) if node.arg in names}
    for name, node in said.items():
        if len(said) == 1:
            (other,) = names - {name}
            yield node, f"{name} without {other}: MPS refuses a high watermark below the low one; set both"


@rule
def openmp(code: Code) -> Found:
    why = "KMP_DUPLICATE_LIB_OK hides that two OpenMPs are loaded, and may hang on a Mac; load one framework"
    for node in code.of(ast.Constant, ast.keyword):
        name = node.arg if isinstance(node, ast.keyword) else node.value
        if isinstance(name, str) and re.match(r"KMP_DUPLICATE_LIB_OK(=|$)", name):
            up = code.parent(node)
            asks = isinstance(up, ast.Compare) or (isinstance(up, ast.Call) and method(up) in ("get", "pop", "getenv"))
            if not asks:
                yield (node.value if isinstance(node, ast.keyword) else node), why


@rule
def frameworks(code: Code) -> Found:
    seen: dict[str, str] = {}
    for node, name in code.imports():
        package = name.split(".")[0]
        unwanted = UNWANTED | (UNWANTED_IN_NOTEBOOKS if code.notebook else {})
        if package in unwanted:
            yield node, f"imports {package}: {unwanted[package]}"
        if package in FRAMEWORKS:
            seen.setdefault(FRAMEWORKS[package], package)
            if code.notebook and len(seen) > 1 and next(iter(seen)) != FRAMEWORKS[package]:
                first = next(iter(seen.values()))
                yield node, f"imports {package} beside {first}: two frameworks in one process may hang on a Mac"


@rule
def spawned_workers(code: Code) -> Found:
    """A worker that was started by spawn imports modules; it never sees cells, nor what a function has inside."""

    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name for node in code.of(*kinds) if code.notebook or code.function(node)}
    for node in code.of(ast.Assign):
        if isinstance(node.value, ast.Lambda):
            defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    place = "a cell" if code.notebook else "a function"
    why = f"is defined in {place}, where a worker that macOS starts by spawn cannot find it; put it into a module"

    if code.notebook:
        for node in code.of(ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            bases = " ".join(map(ast.unparse, node.bases))
            if methods & {"__getitem__", "__getitems__", "__iter__"} or re.search(r"Dataset|Sampler", bases):
                yield node, f"class {node.name} {why}"

    pools = {"map", "imap", "imap_unordered", "map_async", "starmap", "starmap_async", "apply", "apply_async", "submit"}
    processes = re.compile(r"((torch\.)?multiprocessing|concurrent\.futures)\b")
    starts = any(processes.match(name) for _, name in code.imports())
    for node in code.of(ast.Call):
        called = method(node)
        handed = [keyword(node, name) for name in ("collate_fn", "worker_init_fn", "initializer")]
        if called == "DataLoader":
            handed += [*node.args, *(item.value for item in node.keywords)]
        if called == "Process":
            handed.append(keyword(node, "target"))
        if starts and called in pools:
            handed += node.args[:1]
        if code.notebook and called == "map" and keyword(node, "num_proc"):
            handed += node.args[:1]
        if code.notebook:
            handed.append(keyword(node, "transform"))
        for item in {id(item): item for item in handed if item is not None}.values():
            for inner in ast.walk(item):
                if isinstance(inner, ast.Lambda):
                    yield inner, f"{short(node)}: a lambda {why}"
                elif isinstance(inner, ast.Name) and inner.id in defined:
                    yield inner, f"{short(node)}: {inner.id} {why}"
        if code.full(node.func) == "os.fork":
            yield node, "os.fork() is not safe on macOS: Metal and Objective-C do not outlive it"
        start = (called in ("set_start_method", "get_context") and text(node.args[:1])) or ""
        start = start or text([keyword(node, "multiprocessing_context") or ast.Constant(None)])
        if start in ("fork", "forkserver"):
            yield node, f"{short(node)}: {start} is not safe on macOS; leave the start method as it is"


@rule
def own_clock(code: Code) -> Found:
    if not code.notebook:
        return
    for node in code.of(ast.Attribute, ast.Name):  # called here or given a name of its own
        name = code.full(node)
        allowed = Path(code.name).stem in OWN_CLOCK and code.has_reason(node, "own clock")
        if CLOCKS.match(name) and not allowed:
            yield (
                node,
                f"{name} in a notebook reads the clock before a GPU has finished; "
                "case.steps and timing.measure wait for it (fence)",
            )


@rule
def operations(code: Code) -> Found:
    why = "on a CPU it counts LSTM and attention as 0"
    if code.name != COUNTS:
        for node, name in code.imports():
            if name.rsplit(".", 1)[-1] in ("FlopCounterMode", "flop_counter"):
                yield node, f"FlopCounterMode outside cost.workload: {why}"
        return
    for node in code.of(ast.Call):
        if code.full(node.func).endswith("FlopCounterMode"):
            on_meta = any(
                isinstance(up, (ast.With, ast.AsyncWith)) and any(has_string(item, "meta") for item in up.items)
                for up, _ in code.above(node)
            )
            if not on_meta:
                yield node, f"FlopCounterMode must run inside torch.device('meta'): {why}"


@rule
def precision(code: Code) -> Found:
    for node in code.of(ast.Constant, ast.Call):
        if isinstance(node, ast.Constant):
            if node.value == "64-true":
                yield node, "precision 64-true: Lightning takes it on MPS, which then fails, having no float64"
            continue
        given = keyword(node, "precision")
        if method(node) not in ("Trainer", "Fabric") or not isinstance(given, ast.Constant):
            continue
        if given.value == 64 or given.value == "64":
            yield given, "precision 64: Lightning takes it on MPS, which then fails, having no float64"
        elif re.match(r"(16|bf16)", str(given.value)):
            yield (
                given,
                f"precision={given.value!r} is fixed: on a CPU Lightning silently makes bf16-mixed of 16-mixed; "
                "take it from a parameter or the case, and record the plugin that is in effect",
            )


@rule
def keras(code: Code) -> Found:
    loads = [(node, name) for node, name in code.imports() if FRAMEWORKS.get(name.split(".")[0]) == "tensorflow"]
    if not loads:
        return
    for node in code.of(ast.Call):
        jit = keyword(node, "jit_compile")
        is_model = method(node) == "compile" and isinstance(node.func, ast.Attribute)
        if is_model and code.full(node.func).split(".")[0] not in ("re", "torch", "mlx", "builtins"):
            if not is_constant(jit, False):
                yield node, f"{short(node)}: jit_compile=False is missing, and XLA does not work on Metal"
        elif jit is not None and not is_constant(jit, False):
            yield node, f"{short(node)}: XLA does not work on Metal; jit_compile=False"
    sets = [node for node, name in environment_writes(code) if name == "TURN_OFF_REMAPPER"]
    for node in sets:
        if isinstance(node, ast.Assign) and text([node.value]) != "1":
            yield node, "TURN_OFF_REMAPPER switches the remapper off at exactly '1'"
    own = {node.name for node in code.of(ast.FunctionDef) if node.name == "prepare" and not code.notebook}
    calls = list(code.of(ast.Call))
    sets += [node for node in calls if code.full(node.func) in PREPARES_TENSORFLOW or method(node) in own]
    why = "tensorflow-metal would compute wrong numbers for Dense(activation='relu')"
    if code.notebook:
        node, name = loads[0]
        if all(code.order[one] > code.order[node] for one in sets):
            yield node, f"imports {name} before TURN_OFF_REMAPPER is set (find.prepare does it): {why}"
        return
    for node, name in loads:  # in a module, inside a function that has it set first
        before = [one for one in sets if code.function(one) is code.function(node) is not None]
        if name.split(".")[0] == "tensorflow" and all(code.order[one] > code.order[node] for one in before):
            yield node, f"imports {name} before TURN_OFF_REMAPPER is set; tensorflow.load does both: {why}"


# What is read ---------------------------------------------------------------------------------------------------------


def findings(code: Code) -> list[str]:
    """All that the rules find, in the order of the text, as lines."""
    found = [(code.order.get(node, 0), f"{code.where(node)}: {what}") for look in RULES for node, what in look(code)]
    return list(dict.fromkeys(line for _, line in sorted(found)))


def module(path: Path) -> list[str]:
    return source(path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix())


def source(code: str, name: str = "module.py") -> list[str]:
    """Findings of a module's text."""
    return findings(Code(name, [("", code)], notebook=False))


def notebook(document: Any, name: str) -> list[str]:
    """Findings of a notebook (nbformat). name: of its file. A cell that is not plain Python is one, too."""
    sources, broken = [], []
    for cell in document.cells:
        if cell.cell_type != "code":
            continue
        try:
            ast.parse(cell.source)
            sources.append((cell.id, cell.source))
        except SyntaxError as error:
            broken.append(f"{name}, cell {cell.id}, line {error.lineno}: not plain Python: {error.msg}")
    markdown = "\n".join(cell.source for cell in document.cells if cell.cell_type == "markdown")
    return broken + findings(Code(name, sources, notebook=True, markdown=markdown))
