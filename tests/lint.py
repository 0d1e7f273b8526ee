"""What passes on Linux and breaks, or silently lies, on a Mac: found by reading the code of notebooks and modules.

A finding is one line: where, what, and why it is wrong. `TABLE` has a rule a row; what needs more is a function.

Two comments on a statement make an exception, and must give a reason: `# not fused: ...` for an AdamW whose article
forbids the fused one, and `# own clock: ...` in the notebooks of OWN_CLOCK.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import macs

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
}
# These notebooks may read a clock of their own, statement by statement, each with its reason.
OWN_CLOCK = {"instrument_check.ipynb"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TOKEN = re.compile(r"(?<![\w.'\"])[A-Za-z_][\w.]*+(?!=[^=])")  # a dotted name that is not of a keyword


class Code:
    """A notebook's cells or a module, parsed. `name` is the notebook's file, or the module's path in the package."""

    def __init__(self, name: str, sources: list[tuple[str, str]], notebook: bool, markdown: str = ""):
        """sources: (what the place is called, its text), in order. Raises SyntaxError."""
        self.name, self.notebook, self.markdown = name, notebook, markdown
        self._lines = {place: text.splitlines() for place, text in sources}
        self.parents: dict[ast.AST, ast.AST] = {}
        self._places: dict[ast.AST, str] = {}
        self._names: dict[str, str] = {}  # of what is imported
        self._strings = {"FALLBACK_VARIABLE": "PYTORCH_ENABLE_MPS_FALLBACK"}  # constants
        for place, source in sources:
            self._add(ast.parse(source), place)
        self.order = {node: number for number, node in enumerate(self._places)}  # of the text
        for node in self.of(ast.Import):
            heads = {alias.name.split(".")[0]: alias.name.split(".")[0] for alias in node.names if not alias.asname}
            self._names |= heads | {alias.asname: alias.name for alias in node.names if alias.asname}
        for node in self.of(ast.ImportFrom):
            self._names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in self.of(ast.Assign):
            if isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper() and text([node.value]):
                self._strings[node.targets[0].id] = text([node.value])
        self.facts = list(self._facts())

    def _add(self, node: ast.AST, place: str) -> None:
        self._places[node] = place
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)):
                self.parents[child] = node
                self._add(child, place)

    def of(self, *kinds: type) -> Iterator[Any]:
        return (node for node in self._places if isinstance(node, kinds))

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(ancestor, its child on the way to the node), the nearest first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent, node
            node = parent

    def words(self, node: ast.AST) -> str:
        """The node in one line, with imports undone and constants read: `optim.AdamW` is `torch.optim.AdamW`."""
        return TOKEN.sub(self._undone, " ".join(ast.unparse(node).split()))

    def _undone(self, token: re.Match) -> str:
        head, dot, rest = token[0].partition(".")
        if (last := token[0].rpartition(".")[2]) in self._strings:
            return repr(self._strings[last])
        if head == "self" and rest:  # a module that an object keeps: self._torch.cuda
            return rest.lstrip("_")
        return self._names.get(head, head) + dot + rest

    def full(self, node: ast.AST) -> str:
        """A dotted name with its imports undone; empty if the node is none."""
        inner = node
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        return self.words(node) if isinstance(inner, ast.Name) else ""

    def imports(self) -> Iterator[tuple[ast.AST, str]]:
        """(node, dotted name) of everything that is imported, also by a function that imports."""
        for node in self.of(ast.Import, ast.ImportFrom, ast.Call):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)
            elif self.full(node.func) in ("__import__", "importlib.import_module") and text(node.args[:1]):
                yield node, text(node.args[:1])

    def function(self, node: ast.AST) -> ast.AST | None:
        """The function that the node stands in."""
        return next((up for up, _ in self.above(node) if isinstance(up, FUNCTIONS)), None)

    def has_reason(self, node: ast.AST, words: str) -> bool:
        """Whether the node's statement has the comment `# words: reason`."""
        statement = next((up for up in (node, *(up for up, _ in self.above(node))) if isinstance(up, ast.stmt)), node)
        lines = self._lines[self._places[node]][statement.lineno - 1 : statement.end_lineno]
        return any(re.search(rf"#\s*{words}:\s*\w", line) for line in lines)

    def where(self, node: ast.AST) -> str:
        cell = f", cell {self._places[node]}" if self.notebook else ""
        return f"{self.name}{cell}, line {getattr(node, 'lineno', 1)}"

    def _facts(self) -> Found:
        """What the patterns of TABLE are held against, as (node, `kind words`)."""
        yield from ((node, f"import {name}") for node, name in self.imports())
        for node in self._places:
            if isinstance(node, (ast.Attribute, ast.Name)) and not isinstance(self.parents.get(node), ast.Attribute):
                yield node, f"name {self.full(node)}"
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node, f"string {node.value}"
            elif isinstance(node, ast.keyword):
                yield node.value, f"keyword {node.arg}={self.words(node.value)}"
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                yield from ((value, f"key {text([key])}={self.words(value)}") for key, value in pairs)
            elif isinstance(node, ast.Call):
                given = ", ".join(map(self.words, [*node.args, *node.keywords]))
                yield node, f"call {self.full(node.func) or f'.{method(node)}'}({given})"
            elif isinstance(node, ast.Try):
                kinds = [handler.type for handler in node.handlers]
                kinds = [kind for each in kinds for kind in (each.elts if isinstance(each, ast.Tuple) else [each])]
                names = {"BaseException" if kind is None else self.full(kind) for kind in kinds}
                if not names & {"RuntimeError", "Exception", "BaseException"}:
                    yield from ((node, f"catches {name}") for name in names)
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Call)):
                yield node, f"does {self.words(node)}"


def text(nodes: list[ast.AST]) -> str:
    """The string that the first node is; empty if there is none."""
    return nodes[0].value if nodes and isinstance(nodes[0], ast.Constant) and isinstance(nodes[0].value, str) else ""


def has_string(node: ast.AST | None, word: str) -> bool:
    return node is not None and any(isinstance(item, ast.Constant) and item.value == word for item in ast.walk(node))


def method(call: ast.Call) -> str:
    """The last part of what is called: `to` of `x.y().to(...)`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


# Where a rule holds ---------------------------------------------------------------------------------------------------


notebooks = operator.attrgetter("notebook")


def but_for_devices(code: Code) -> bool:
    # A proof holds what a device gave against the CPU, which has them.
    return not code.name.startswith("devices/") and not code.name.endswith(("/proof.py", "/sample.py", "/reference.py"))


def loads_keras(code: Code) -> bool:
    return any(FRAMEWORKS.get(name.split(".")[0]) == "tensorflow" for _, name in code.imports())


# What makes an exception ----------------------------------------------------------------------------------------------


def only_with_cuda(code: Code, node: ast.AST) -> bool:
    """Whether the node runs only where a condition holds that has `cuda` in it, or stands under such a key."""
    for up, child in code.above(node):
        if isinstance(up, (ast.If, ast.IfExp)) and child is not up.test and has_string(up.test, "cuda"):
            return child in (up.body if isinstance(up.body, list) else [up.body])
        if isinstance(up, ast.Dict) and child in up.values and has_string(up.keys[up.values.index(child)], "cuda"):
            return True
    return False


def is_asked_for(code: Code, node: ast.AST) -> bool:
    """Whether a string is compared, looked up, or an argument, which has rules of its own."""
    up = code.parents.get(node)
    if isinstance(up, (ast.Tuple, ast.List, ast.Set)):
        up = code.parents.get(up)
    named = isinstance(up, ast.keyword) and up.arg in ("device", "device_type", "map_location")
    return named or isinstance(up, (ast.Compare, ast.MatchValue, ast.Call)) or node in getattr(up, "keys", ())


def is_read_from_the_environment(code: Code, node: ast.AST) -> bool:
    up = code.parents.get(node)
    return isinstance(up, ast.Compare) or (isinstance(up, ast.Call) and method(up) in ("get", "pop", "getenv"))


def is_of_keras(code: Code, node: ast.AST) -> bool:
    """Whether a string is Keras' word for the order of axes, which it has anyway."""
    return getattr(code.parents.get(node), "arg", "") == "data_format"


def is_said_to_be_unfused(code: Code, node: ast.AST) -> bool:
    return code.has_reason(node, "not fused")


def may_read_clocks(code: Code, node: ast.AST) -> bool:
    return code.name in OWN_CLOCK and code.has_reason(node, "own clock")


def asks_which_system(code: Code, node: ast.AST) -> bool:
    """Whether a module's function does so. A cell of a notebook must leave it to the library."""
    function = None if code.notebook else code.function(node)
    return function is not None and bool(re.search(r"sys\.platform|hasattr\(", ast.unparse(function)))


def names_files_of_linux(code: Code, node: ast.AST) -> bool:
    """Constants of these modules; who reads the files must bear that they are missing, as test_on_a_mac.py proves."""
    listed = ("machine/snapshot.py", "machine/quiet.py", "machine/energy.py", "machine/sources.py")
    return (code.name in listed and code.function(node) is None) or asks_which_system(code, node)


# Rules ----------------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What of the facts is wrong, and why; `holds` says in which code, `unless` where not."""

    pattern: str
    why: str
    holds: Callable[[Code], bool] = lambda code: True
    unless: Callable[[Code, ast.AST], bool] = lambda code, node: False

    def __call__(self, code: Code) -> Found:
        wrong = re.compile(self.pattern)
        for node, fact in code.facts if self.holds(code) else ():
            if wrong.match(fact) and not self.unless(code, node):
                yield node, f"{fact.partition(' ')[2]:.70}: {self.why}"


GPU = r"(cuda|mps|metal)(:\d+)?"
OF = r"([^(]*\.)?"  # whose method it is
DEVICE = rf"(keyword (device|device_type|map_location)=|call {OF}(to|device|autocast|Generator|set_default_device)\()"
LARGE = r"(float64|double|complex128)$"
MADE = "zeros|ones|empty|eye|linspace|random.(rand|randn|random|random_sample|normal|uniform|standard_normal)"
UNTYPED = rf"(?!.*(dtype=|\.(astype|float|numpy)\()).*\bnumpy\.({MADE})\("
CLOCKS = "(time|perf_counter|monotonic|process_time|thread_time)"
ENVIRONMENT = r"does (os\.environ(\[| \|= | = |\.setdefault\(|\.update\()|os\.putenv\().*"

NOT_BLOCKING = "non_blocking=True corrupts data on MPS: what is read next may not have arrived; leave it out"
LAST = "channels_last gives wrong gradients on MPS (BatchNorm backward); keep the default memory format"
MODULES = "only the device module speaks to it, since a Mac has other ones; use case.device"
FIXED = "a fixed device, which not every machine has; take case.device"
NOT_FUSED = "AdamW without fused=True is a slow loop over tensors on MPS; fuse it, or say why not: # not fused: ..."
NO_FLOAT64 = "MPS has no float64; use float32"
PYTHON_FLOAT = "Python's float means float64, and " + NO_FLOAT64
NUMPY_FLOAT = "NumPy makes float64, and " + NO_FLOAT64
PINNED = "pin_memory=True only warns on a Mac, and is forced off; give it to CUDA alone"
NO_SCALER = "without a device it is CUDA's: on a Mac it warns and does nothing"
OUT = "misses MPS, which raises a plain RuntimeError when memory is out; catch that and ask device.failure"
READ_EARLY = "is read when torch is loaded: set later it does nothing here, and lets child processes compute on the "
READ_EARLY += "CPU unnoticed; give it to a child's env"
TWO_OPENMPS = "KMP_DUPLICATE_LIB_OK hides that two OpenMPs are loaded, and may hang on a Mac; load one framework"
FORKED = "fork is not safe on macOS: Metal and Objective-C do not outlive it; leave the start method as it is"
CLOCK = "in a notebook reads the clock before a GPU has finished; case.steps and case.measure wait for it (fence)"
UNFIXED = "fixed: on a CPU Lightning silently makes bf16-mixed of 16-mixed; take it from a parameter or the case"
NO_XLA = "jit_compile=False is missing, and XLA does not work on Metal"
NOT_ON_MACOS = "it does not exist on macOS; ask hasattr or sys.platform first"
OF_OS = "|".join((*macs.NOT_IN_OS, "sched_[gs]etscheduler|[gs]etresuid|[gs]etxattr|O_DIRECT|O_TMPFILE|O_PATH"))
OF_PSUTIL = "|".join((*macs.NOT_IN_PSUTIL, "PROCFS_PATH"))
OTHERS = (
    r"resource\.(prlimit|RUSAGE_THREAD)|signal\.(sigwaitinfo|sigtimedwait)|time\.CLOCK_(BOOTTIME|TAI)|select\.epoll"
)
RUNS = rf"call (subprocess\.\w+|os\.(system|popen|posix_spawnp?|exec\w+)|shutil\.which|{OF}(run_command|run))"

TABLE = [
    Rule(r"(keyword|key) non_blocking=(?!False)|string non_blocking$", NOT_BLOCKING),
    Rule(rf"call {OF}(to|copy_|cuda)\((.*, )?True[,)]", NOT_BLOCKING),
    Rule(r"name ([\w.]*\.)?channels_last(_3d)?$", LAST),
    Rule(r"string channels_last(_3d)?$", LAST, unless=is_of_keras),
    Rule(r"keyword memory_format=(?!.*(contiguous|preserve)_format$)", LAST),
    Rule(r"(name|import) torch\.(cuda|mps|accelerator)\.", MODULES, but_for_devices),
    Rule(r"import torch\.(cuda|mps|accelerator)$", MODULES, but_for_devices),
    Rule(r"call (?!torch\.)[^(]*\.(cuda|mps)\(", FIXED, but_for_devices),
    Rule(rf"{DEVICE}'{GPU}'", FIXED, but_for_devices),
    Rule(rf"{DEVICE}'(?!meta')", FIXED, notebooks),
    Rule(rf"string {GPU}$", FIXED, notebooks, is_asked_for),
    Rule(rf"call {OF}GradScaler\((?=\)|\w+=)(?!.*\bdevice=)", NO_SCALER),
    Rule(r"call torch\.(\w+\.)*AdamW\((?!.*\bfused=(?!False))", NOT_FUSED, unless=is_said_to_be_unfused),
    Rule(r"keyword optim='adamw_(torch|hf)'$", "it is a slow loop over tensors on MPS: adamw_torch_fused is fused"),
    Rule(r"catches .*OutOfMemoryError$", OUT),
    Rule(rf"name torch\.(\w+\.)*{LARGE}", NO_FLOAT64, but_for_devices),
    Rule(rf"name (numpy|tensorflow|mlx\.core|keras)\.(\w+\.)*{LARGE}", NO_FLOAT64, notebooks),
    Rule(rf"string (torch\.)?{LARGE}|string <?f8$", NO_FLOAT64, notebooks),
    Rule(rf"call {OF}c?double\(\)", NO_FLOAT64, but_for_devices),
    Rule(r"call torch\.[^(]*\(.*\bdtype=float[,)]", PYTHON_FLOAT, but_for_devices),
    Rule(rf"keyword dtype=float$|call {OF}(astype|to|type)\(float[,)]", PYTHON_FLOAT, notebooks),
    Rule(rf"call torch\.(tensor|from_numpy|as_tensor|asarray)\({UNTYPED}", NUMPY_FLOAT, but_for_devices),
    Rule(r"(keyword|key) pin_memory=True$", PINNED, unless=only_with_cuda),
    Rule(ENVIRONMENT + r"PYTORCH_ENABLE_MPS_FALLBACK", READ_EARLY),
    Rule(r"string KMP_DUPLICATE_LIB_OK(=|$)", TWO_OPENMPS, unless=is_read_from_the_environment),
    Rule(r"keyword KMP_DUPLICATE_LIB_OK=", TWO_OPENMPS),
    Rule(rf"call os\.fork\(|call {OF}(set_start_method|get_context)\('fork", FORKED),
    Rule(r"keyword multiprocessing_context='fork", FORKED),
    Rule(rf"name (time\.{CLOCKS}(_ns)?$|timeit\.)", CLOCK, notebooks, may_read_clocks),
    Rule(rf"string 64-true$|call {OF}(Trainer|Fabric)\(.*\bprecision='?64\b", "it fails on MPS, which has no float64"),
    Rule(rf"call {OF}(Trainer|Fabric)\(.*\bprecision='?(bf)?16", UNFIXED),
    Rule(r"call (?!(re|torch|mlx|builtins)\.)[^(]*\.compile\((?!.*\bjit_compile=False)", NO_XLA, loads_keras),
    Rule(r"keyword jit_compile=(?!False)", NO_XLA, loads_keras),
    Rule(ENVIRONMENT + r"TURN_OFF_REMAPPER'\](?! = '1'$)", "it switches the remapper off at exactly '1'", loads_keras),
    Rule(rf"(name|import) (os\.({OF_OS})|psutil\.({OF_PSUTIL})|{OTHERS})$", NOT_ON_MACOS, unless=asks_which_system),
    Rule(rf"call {OF}({'|'.join(macs.NOT_OF_A_PROCESS)})\(", NOT_ON_MACOS, unless=asks_which_system),
    Rule(rf"{RUNS}\([\[(]?'([^' ]*/)?({'|'.join(macs.NOT_A_COMMAND)})[' ]", NOT_ON_MACOS, unless=asks_which_system),
    Rule(r"string /(proc|sys)(/|$)", NOT_ON_MACOS, unless=names_files_of_linux),
    Rule(
        r"string lib(c|m|rt|dl|pthread)\.so", "it does not exist on macOS; ctypes.CDLL(None) is the C library on both"
    ),
    Rule(r"(name|does) .*\.ru_maxrss\b", "KiB, but on macOS bytes: let sys.platform choose", unless=asks_which_system),
]
TABLE += [Rule(rf"import {package}(\.|$)", why) for package, why in UNWANTED.items()]


def says_whether_fused(code: Code) -> Found:
    timed = [node for node in code.of(ast.Call) if re.match(r"torch\.(\w+\.)*AdamW$", code.full(node.func))]
    if timed and code.notebook and not re.search(r"\b(un)?fused\b", code.markdown):
        yield timed[0], "AdamW is timed, but no text of the notebook says whether it is the fused one"


def watermarks(code: Code) -> Found:
    names = {"PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"}
    said = {node.value: node for node in code.of(ast.Constant) if isinstance(node.value, str) and node.value in names}
    said |= {node.arg: node.value for node in code.of(ast.keyword) if node.arg in names}
    if len(said) == 1:
        ((name, node),) = said.items()
        yield node, f"{name} alone: MPS refuses a high watermark below the low one; set both"


def two_frameworks(code: Code) -> Found:
    loads = [(node, name.split(".")[0]) for node, name in code.imports() if name.split(".")[0] in FRAMEWORKS]
    for node, package in loads if code.notebook else ():
        if FRAMEWORKS[package] != FRAMEWORKS[loads[0][1]]:
            yield node, f"imports {package} beside {loads[0][1]}: two frameworks in one process may hang on a Mac"


POOLS = {"map", "imap", "imap_unordered", "map_async", "starmap", "starmap_async", "apply", "apply_async", "submit"}


def spawned_workers(code: Code) -> Found:
    """A worker that was started by spawn imports modules; it never sees cells, nor what a function has inside."""
    kinds = (*FUNCTIONS, ast.ClassDef)
    defined = {node.name for node in code.of(*kinds) if code.notebook or code.function(node)}
    lambdas = [node for node in code.of(ast.Assign) if isinstance(node.value, ast.Lambda)]
    defined |= {target.id for node in lambdas for target in node.targets if isinstance(target, ast.Name)}
    place = "a cell" if code.notebook else "a function"
    why = f"is defined in {place}, where a worker that macOS starts by spawn cannot find it; put it into a module"
    for node in code.of(ast.ClassDef) if code.notebook else ():
        methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        bases = " ".join(map(ast.unparse, node.bases))
        if methods & {"__getitem__", "__getitems__", "__iter__"} or re.search(r"Dataset|Sampler", bases):
            yield node, f"class {node.name} {why}"
    processes = re.compile(r"((torch\.)?multiprocessing|concurrent\.futures)\b")
    starts = any(processes.match(name) for _, name in code.imports())
    for node in code.of(ast.Call):
        called, given = method(node), {item.arg for item in node.keywords}
        names = {"collate_fn", "worker_init_fn", "initializer", *(["transform"] if code.notebook else [])}
        names |= {"target"} if called == "Process" else set()
        handed = [item.value for item in node.keywords if item.arg in names or called == "DataLoader"]
        handed += node.args if called == "DataLoader" else []
        if (starts and called in POOLS) or (code.notebook and called == "map" and "num_proc" in given):
            handed += node.args[:1]
        for inner in (inner for item in handed for inner in ast.walk(item)):
            if isinstance(inner, ast.Lambda):
                yield inner, f"{ast.unparse(inner):.70}: a lambda {why}"
            elif isinstance(inner, ast.Name) and inner.id in defined:
                yield inner, f"{inner.id} {why}"


WRONG = "tensorflow-metal would compute wrong numbers for Dense(activation='relu')"


def remapper(code: Code) -> Found:
    """TensorFlow is loaded behind TURN_OFF_REMAPPER: in a notebook, and in the function of a module that loads it."""
    sets = [node for node, fact in code.facts if re.match(ENVIRONMENT + "TURN_OFF_REMAPPER", fact)]
    own = {node.name for node in code.of(ast.FunctionDef) if node.name == "prepare" and not code.notebook}
    prepares = re.compile(r"pomology\.devices\.(find\.prepare|tensorflow\.(TensorFlowDevice\.prepare|load))$")
    sets += [node for node in code.of(ast.Call) if prepares.match(code.full(node.func)) or method(node) in own]
    loads = [(node, name.split(".")[0]) for node, name in code.imports()]
    loads = [(node, name) for node, name in loads if FRAMEWORKS.get(name) == "tensorflow"]
    for node, name in loads[:1] if code.notebook else loads:
        known = sets if code.notebook else [s for s in sets if code.function(s) is code.function(node) is not None]
        judged = code.notebook or name == "tensorflow"
        if judged and all(code.order[before] > code.order[node] for before in known):
            yield node, f"imports {name} before TURN_OFF_REMAPPER is set, by find.prepare or tensorflow.load: {WRONG}"


RULES = [*TABLE, says_whether_fused, watermarks, two_frameworks, spawned_workers, remapper]


def findings(code: Code) -> list[str]:
    """All that the rules find, in the order of the text, as lines."""
    found = [(code.order.get(node, 0), f"{code.where(node)}: {what}") for look in RULES for node, what in look(code)]
    return list(dict.fromkeys(line for _, line in sorted(found)))


def source(code: str, name: str = "module.py") -> list[str]:
    """Findings of a module's text."""
    return findings(Code(name, [("", code)], notebook=False))


def notebook(document: Any, name: str) -> list[str]:
    """Findings of a notebook (nbformat). name: of its file. A cell that is not plain Python is one, too."""
    sources, broken = [], []
    for cell in (cell for cell in document.cells if cell.cell_type == "code"):
        try:
            ast.parse(cell.source)
            sources.append((cell.id, cell.source))
        except SyntaxError as error:
            broken.append(f"{name}, cell {cell.id}, line {error.lineno}: not plain Python: {error.msg}")
    markdown = "\n".join(cell.source for cell in document.cells if cell.cell_type == "markdown")
    return broken + findings(Code(name, sources, notebook=True, markdown=markdown))
