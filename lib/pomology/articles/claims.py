"""Sentences of the articles that numbers can test, and how they are tested."""

from __future__ import annotations

import ast
import copy
import functools
import json
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pomology.articles.published import ROLES, Claim, _rows, _select, articles
from pomology.errors import PomologyError

HOLDS, DOES_NOT_HOLD, CANNOT_BE_TOLD = "holds", "does not hold", "cannot be told here"

FIELDS = ("backend", "framework", "precision", "maker")  # keywords of a term that are not of a row's config

# What a case's record can hold; formulas may also use the metrics that only the articles have.
_KIT_METRICS = """status step_s epoch_s compute_epoch_s pass_s forward_s backward_s first_step_s kernel_s launch_cold_s
launch_s fit_s throughput flops_per_s allocated_peak_bytes reserved_peak_bytes footprint_peak_bytes power_w
energy_j_per_step temperature_c page_faults page_ins swap_bytes footprint_slope_bytes footprint_start_bytes
footprint_end_bytes resident_slope_bytes resident_start_bytes resident_end_bytes allocated_slope_bytes
allocated_start_bytes allocated_end_bytes reserved_slope_bytes reserved_start_bytes reserved_end_bytes page_faults_slope
page_ins_slope loss_first loss_last accuracy max_abs_error saved_fused_bytes"""

_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}

_COMPUTE = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}

_REDUCE = {"min": min, "max": max, "mean": lambda numbers: math.fsum(numbers) / len(numbers)}

_COLLECTIONS = {"gpus": ("gpu",), "rivals": ("rival",), "devices": ("gpu", "rival")}

_MAX_CHARACTERS, _MAX_EXPANSIONS = 2000, 1000


@dataclass(frozen=True)
class Value:
    """A number in SI units with its interval (low = high = value if there is none), or a status.

    A lookup that has no value gives `value=None` and the reason. In a Verdict, `text` is the term or the side of the
    comparison, and a bound that is not known is infinite.
    """

    value: float | str | None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    text: str = ""
    source: str = ""  # which measurement this is; two terms of one source are one number


@dataclass(frozen=True)
class Comparison:
    """Two sides, the terms in them, and whether it `holds`: None if that cannot be told, with the reason."""

    left: Value
    operator: str
    right: Value
    holds: bool | None
    reason: str
    terms: tuple[Value, ...]


@dataclass(frozen=True)
class Verdict:
    """`status` is HOLDS, DOES_NOT_HOLD or CANNOT_BE_TOLD; `numbers` has every comparison that was made."""

    status: str
    reason: str
    numbers: tuple[Comparison, ...]


Lookup = Callable[[str, str, str | None, dict], Value | None]


@functools.cache
def _metrics() -> frozenset[str]:
    return frozenset(_KIT_METRICS.split()) | {row["metric"] for row in _rows()}


class _PublishedLookup:
    """Looks terms up in what one article printed."""

    def __init__(self, article: str):
        self.article = article

    def __call__(self, experiment: str, metric: str, role: str | None, config: dict) -> Value:
        meant = [row for row in _select(self.article, experiment) if _is_meant(row, role, config)]
        if metric == "status":
            return self._status(meant)
        rows = [row for row in meant if row["metric"] == metric]
        printed = [row for row in rows if row["si"] is not None]
        if len({(_subject(row), row["si"]) for row in printed}) > 1:
            return Value(None, reason=f"{len(printed)} published values match; the term must say which")
        if printed:
            si, bound = printed[0]["si"], printed[0]["bound"]
            return Value(si, 0.0 if bound == "<" else si, math.inf if bound == ">" else si)
        if rows:
            return Value(None, reason=f'published as "{rows[0]["printed"]}"' if rows[0]["printed"] else rows[0]["note"])
        return Value(None, reason=f"the text of article {self.article} prints no such number")

    def _status(self, rows: list[dict]) -> Value:
        seen: dict[tuple, set[str]] = {}
        for row in rows:
            seen.setdefault(_subject(row), set()).add(row["status"])
        # A failed case still has a temperature printed beside it: the failure is the status of the whole row.
        found = {next((s for s in ("error", "out-of-memory", "ok") if s in all_), None) for all_ in seen.values()}
        if len(found) == 1 and None not in found:
            return Value(found.pop())
        return Value(None, reason=f"article {self.article} prints {'more than one' if found else 'no'} such status")

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        """The devices of a role that have numbers in an experiment, in printed order."""
        rows = _select(self.article, experiment)
        return tuple(dict.fromkeys(row["device"] for row in rows if row["role"] == role and row["si"] is not None))


def _is_meant(row: dict, role: str | None, config: dict) -> bool:
    named = row["role"] if role in ROLES else row["device"].casefold()
    if role is not None and named != role.casefold():
        return False
    return all((row[k] if k in FIELDS else row["config"].get(k)) == wanted for k, wanted in config.items())


def _subject(row: dict) -> tuple:
    return (row["device"], *(row[field] for field in FIELDS), json.dumps(row["config"], sort_keys=True))


def published_lookup(article: str) -> Lookup:
    """A lookup for `test` over one article's printed numbers; `<0.3GB` becomes the interval from 0 to 0.3e9."""
    if article not in {known.id for known in articles()}:
        raise PomologyError(f"article {article!r}: unknown; the articles are {', '.join(a.id for a in articles())}")
    return _PublishedLookup(article)


def test(claim: Claim, lookup: Lookup) -> Verdict:
    """Put numbers into a claim's formula and say whether it holds.

    `lookup(experiment, metric, role, config)` gives a `Value`, or None if it has none; `role` is `cpu`, `gpu`,
    `rival`, a device's name, or None where the term names no device; every key of `config` must match. A lookup with a
    method `devices(experiment, role)` says which devices `gpus`, `rivals` and `devices` stand for; else `gpus` and
    `devices` are the role `gpu`, `rivals` is the role `rival`. Raises PomologyError if the formula is malformed.
    """
    if not claim.formula:
        return Verdict(CANNOT_BE_TOLD, f"needs {claim.needs}", ())
    evaluator = _Evaluator(lookup, claim.experiment)
    holds = evaluator.evaluate(claim.formula)
    made = tuple(evaluator.comparisons)
    count = f"{sum(c.holds is True for c in made)} of {len(made)} comparisons hold"
    if holds is None:
        needs = f"needs {claim.needs}; " if any(term.value is None for c in made for term in c.terms) else ""
        return Verdict(CANNOT_BE_TOLD, f"{needs}{count}; {_join(c.reason for c in made)}", made)
    if holds:
        return Verdict(HOLDS, count, made)
    failed = (
        f"{_short(c.left)} {c.operator} {_short(c.right)} is false for {max(c.left.text, c.right.text, key=len)}"
        for c in made
        if c.holds is False
    )
    return Verdict(DOES_NOT_HOLD, f"{count}; {_join(failed)}", made)


def check_formula(formula: str) -> None:
    """Raise PomologyError, in one line, unless the formula is of this module's language with known metrics."""
    _Evaluator(lambda *_: None, "").evaluate(formula)


def _join(reasons: Iterable[str], most: int = 3) -> str:
    found = list(dict.fromkeys(reason for reason in reasons if reason))
    return "; ".join(found[:most]) + (f"; and {len(found) - most} more" if len(found) > most else "")


def _short(number: Value) -> str:
    if isinstance(number.value, str):
        return number.value
    value = "?" if number.value is None else f"{number.value:.4g}"
    return value if number.low == number.high else f"{value} ({number.low:.4g} to {number.high:.4g})"


def _twice(terms: tuple[Value, ...]) -> str:
    """Two terms with one measurement behind them, as of a device by its name and by its role."""
    known: dict[str, str] = {}
    for term in terms:
        if term.source and known.setdefault(term.source, term.text) != term.text:
            return f"{known[term.source]} and {term.text}"
    return ""


class _Substitute(ast.NodeTransformer):
    def __init__(self, nodes: dict[str, ast.expr]):
        self.nodes = nodes

    def visit_Name(self, node):
        return self.nodes.get(node.id, node)


class _Evaluator:
    """Walks a formula and refuses what it does not know; nothing is short-circuited, so that all of it is checked."""

    def __init__(self, lookup: Lookup, experiment: str):
        self.lookup, self.experiment = lookup, experiment
        self.terms: list[Value] = []
        self.comparisons: list[Comparison] = []
        self.expansions = 0

    def evaluate(self, formula: str) -> bool | None:
        self.formula = " ".join(formula[:80].split())
        if len(formula) > _MAX_CHARACTERS:
            raise PomologyError(f"claim formula {self.formula!r}: longer than {_MAX_CHARACTERS} characters")
        try:
            tree = ast.parse(formula.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise PomologyError(f"claim formula {self.formula!r}: not an expression ({type(error).__name__})") from None
        try:
            return self.truth(tree.body)
        except RecursionError:
            raise PomologyError(f"claim formula {self.formula!r}: nested too deeply") from None

    def refuse(self, node: ast.AST, why: str):
        raise PomologyError(f"claim formula {self.formula!r}: {' '.join(ast.unparse(node)[:60].split())!r} {why}")

    def truth(self, node: ast.expr) -> bool | None:
        match node:
            case ast.BoolOp(op, nodes):
                return _every([self.truth(n) for n in nodes], isinstance(op, ast.And))
            case ast.Call(ast.Name("all" | "any" as name)):
                return _every([self.truth(n) for n in self.items(node)], name == "all")
            case ast.UnaryOp(ast.Not(), operand):
                holds = self.truth(operand)
                return None if holds is None else not holds
            case ast.Compare(left, ops, rights):
                return _every(self.compare([left, *rights], [_COMPARE.get(type(op)) for op in ops]), True)
        return self.refuse(node, "is not a comparison")

    def compare(self, nodes: list[ast.expr], symbols: list[str | None]) -> list[bool | None]:
        kinds = {_is_text(node) for node in nodes}
        if None in symbols or len(kinds) > 1 or (kinds == {True} and not {"==", "!="}.issuperset(symbols)):
            self.refuse(nodes[0], "is compared by an unknown operator, or a status with a number")
        sides, terms = [], []
        for node in nodes:
            known = len(self.terms)
            sides.append(self.text(node) if True in kinds else self.number(node))
            terms.append(self.terms[known:])
        results = []
        for i, symbol in enumerate(symbols):
            left, right = sides[i : i + 2]
            holds = _decide(symbol, left, right)
            reason = _join((left.reason, right.reason)) or "the intervals of the two sides overlap"
            used = tuple(dict.fromkeys(terms[i] + terms[i + 1]))
            if twice := _twice(used):
                holds, reason = None, f"{twice} are one measurement here, which is not compared with itself"
                left = Value(None, -math.inf, math.inf, reason, left.text)
            self.comparisons.append(Comparison(left, symbol, right, holds, reason if holds is None else "", used))
            results.append(holds)
        return results

    def text(self, node: ast.expr) -> Value:
        return Value(node.value, text=repr(node.value)) if isinstance(node, ast.Constant) else self.term(node, "status")

    def number(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(int() | float() as value) if not isinstance(value, bool) and value < 1e300:
                return _exact(float(value), repr(value))
            case ast.UnaryOp(ast.USub(), operand):
                return _compute(ast.unparse(node), operator.sub, _exact(0.0, "0"), self.number(operand))
            case ast.BinOp(left, op, right) if type(op) in _COMPUTE:
                return _compute(ast.unparse(node), _COMPUTE[type(op)], self.number(left), self.number(right))
            case ast.Call(ast.Name("min" | "max" | "mean" as name)):
                return _reduce(ast.unparse(node), _REDUCE[name], [self.number(n) for n in self.items(node)])
            case ast.Call(ast.Name("abs"), [argument]):
                minus = ast.UnaryOp(ast.USub(), argument)
                return _reduce(ast.unparse(node), max, [self.number(argument), self.number(minus)])
            case ast.Call(ast.Name(metric)) if metric in _metrics() - {"status"}:
                return self.term(node, metric)
        return self.refuse(node, "is not allowed here")

    def term(self, call: ast.Call, metric: str) -> Value:
        match call.args:
            case []:
                role = None
            case [ast.Name(role)] if role in ROLES:
                pass
            case [ast.Constant(str() as role)]:
                pass
            case _:
                self.refuse(call, f"needs one of {', '.join(ROLES)} or a quoted device, then keywords")
        if not all(keyword.arg and isinstance(keyword.value, ast.Constant) for keyword in call.keywords):
            self.refuse(call, "has a keyword that is not a literal")
        config = {keyword.arg: keyword.value.value for keyword in call.keywords}
        if len(config) < len(call.keywords):
            self.refuse(call, "has a keyword twice")
        text, experiment = ast.unparse(call), config.pop("experiment", self.experiment)
        found = self.lookup(experiment, metric, role, config) or Value(None, reason="no such measurement")
        low, high = (found.value if bound is None else bound for bound in (found.low, found.high))
        if found.value is None or any(x != x for x in (found.value, low, high)):
            number = Value(None, -math.inf, math.inf, f"{text}: {found.reason or 'no value'}", text)
        elif isinstance(found.value, str):
            number = Value(found.value, text=text)
        else:
            low, high = min(low, found.value), max(high, found.value)
            number = Value(float(found.value), low, high, text=text, source=found.source)
        self.terms.append(number)
        return number

    def items(self, call: ast.Call) -> list[ast.expr]:
        if call.keywords or not call.args:
            self.refuse(call, "takes positional arguments or one generator")
        if isinstance(call.args[0], ast.GeneratorExp) and len(call.args) == 1:
            return self.expand(call.args[0].elt, call.args[0].generators)
        return call.args

    def expand(self, element: ast.expr, generators: list[ast.comprehension]) -> list[ast.expr]:
        if not generators:
            return [element]
        first, *rest = generators
        match first:
            case ast.comprehension(iter=ast.Name(name), ifs=[], is_async=0) if name in _COLLECTIONS:
                choices = self.devices(name)
            case ast.comprehension(iter=ast.Tuple([_, *_] as choices), ifs=[], is_async=0):
                pass
            case _:
                self.refuse(first.iter, "is not a tuple of literals, gpus, rivals or devices, or has a condition")
        targets = first.target.elts if isinstance(first.target, ast.Tuple) else [first.target]
        nodes = []
        for choice in choices:
            parts = choice.elts if isinstance(choice, ast.Tuple) else [choice]
            plain = all(isinstance(p, ast.Constant) or (isinstance(p, ast.Name) and p.id in ROLES) for p in parts)
            self.expansions += 1
            if not plain or len(parts) != len(targets) or not all(isinstance(t, ast.Name) for t in targets):
                self.refuse(choice, "does not fit the generator's names")
            if self.expansions > _MAX_EXPANSIONS:
                self.refuse(first.iter, f"makes more than {_MAX_EXPANSIONS} comparisons")
            put = _Substitute({target.id: part for target, part in zip(targets, parts, strict=True)})
            nodes += self.expand(put.visit(copy.deepcopy(element)), [put.visit(copy.deepcopy(g)) for g in rest])
        return nodes

    def devices(self, collection: str) -> list[ast.expr]:
        known = getattr(self.lookup, "devices", lambda experiment, role: ())
        names = [ast.Constant(d) for role in _COLLECTIONS[collection] for d in known(self.experiment, role)]
        return names or [ast.Name(_COLLECTIONS[collection][0], ast.Load())]


def _is_text(node: ast.expr) -> bool:
    match node:
        case ast.Constant(str()) | ast.Call(ast.Name("status")):
            return True
    return False


def _every(results: list[bool | None], conjunction: bool) -> bool | None:
    """Kleene's and (else: or): decided as soon as one result decides it, unknown if an unknown one could."""
    if (not conjunction) in results:
        return not conjunction
    return None if None in results else conjunction


def _decide(symbol: str, a: Value, b: Value) -> bool | None:
    if symbol in (">", ">="):
        return _decide("<" if symbol == ">" else "<=", b, a)
    if symbol == "<":
        return True if a.high < b.low else False if a.low >= b.high else None
    if symbol == "<=":
        return True if a.high <= b.low else False if a.low > b.high else None
    if isinstance(a.value, str) or isinstance(b.value, str):
        equal = None if a.value is None or b.value is None else a.value == b.value
    else:
        equal = False if a.high < b.low or b.high < a.low else True if a.low == a.high == b.low == b.high else None
    return equal if symbol == "==" or equal is None else not equal


def _exact(value: float, text: str) -> Value:
    return Value(value, value, value, text=text)


def _compute(text: str, compute: Callable, a: Value, b: Value) -> Value:
    reason = _join((a.reason, b.reason))
    if compute is operator.truediv and b.low <= 0 <= b.high:
        return Value(None, -math.inf, math.inf, reason or f"{b.text} may be zero", text)
    ends = [compute(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    ends = [0.0 if math.isnan(end) else end for end in ends]  # 0 * inf, inf - inf, inf / inf: their range contains 0
    value = None if a.value is None or b.value is None else compute(a.value, b.value)
    return Value(value, min(ends), max(ends), reason, text)


def _reduce(text: str, reduce: Callable, numbers: list[Value]) -> Value:
    value = None if any(n.value is None for n in numbers) else reduce([n.value for n in numbers])
    low, high = reduce([n.low for n in numbers]), reduce([n.high for n in numbers])
    return Value(value, low, high, _join(n.reason for n in numbers), text)
