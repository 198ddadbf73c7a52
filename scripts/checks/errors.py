"""Check that docs/errors.rst has each error text of the program, and no other.

The texts are read from the code: what each exception says that is made, each line that is logged as an error or a
warning, what these quote, and what the packages' scripts tell. Names, functions of the project that return a text, and
functions that only hand a text on are followed. A value that is filled in stands as ``{}``. An error that only repeats
another one's text has none of its own, and what has less than three words is taken for a value.
On the page a text is a literal in a line block, with any name in the braces.

Run: ``python -m scripts.checks.errors [--list]``; exit code 1 if anything is missing or left over.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PAGE = Path("docs/errors.rst")
FOLDERS = ("runtimeproxy", "hooks", "deploy/installer")
PACKAGES = Path("deploy/packages")
FOREIGN = (
    *("Exception", "ValueError", "OSError", "RuntimeError", "TypeError", "LookupError", "TimeoutError"),
    *("ClickException", "UsageError", "BadParameter", "ArgumentError", "ArgumentTypeError"),
)
"""The exceptions of others that the project raises."""
LEVELS = frozenset({"error", "warning", "exception"})
REPORTING = frozenset({"_error", "log", "warn_once"})
"""Functions that answer or log what they are given."""
BY_WAY_OF_A_FIELD = frozenset({"_warnings", "_unknown_variables", "_without_image_endpoint"})
"""Functions whose texts are kept in a field and logged from there."""
DEPTH = 5
"""How far a text is followed through names and functions."""
MOST = 6
"""How many texts of a part are put into its whole; if there are more, each is a text of its own."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
_LITERAL = re.compile(r"``(.+?)``(?!`)", re.DOTALL)
_BLOCK = re.compile(r"^\| .*(?:\n(?:\|| ) .*)*", re.MULTILINE)
_TOLD = re.compile(r'\btell ((?:"[^"]*"(?: \\\n *| ?))+)')
_VALUE = re.compile(r"%(?:\.\d+)?[sdrfg]|\{[^{}]*\}")


class Place(NamedTuple):
    """Where an expression stands: the names in it are those of this function up to this line, and of this file."""

    path: Path
    function: Function | None
    line: int


def main() -> int:
    """Compare the code of the current directory with the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts.checks.errors", description="Check docs/errors.rst.")
    parser.add_argument("--list", action="store_true", help="print the texts of the code and where they stand")
    found = texts_here()
    if parser.parse_args().list:
        print("\n".join(found.values()))
        return 0
    wrong = findings(found, PAGE.read_text())
    print("\n".join(wrong) or f"{len(found)} error texts, each on the page")
    return bool(wrong)


def texts_here() -> dict[str, str]:
    """Return the error texts of the code of the current directory, as ``texts_of``."""
    found = texts_of({path: path.read_text() for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py"))})
    return found | texts_told({path: path.read_text() for path in sorted(PACKAGES.glob("*.sh"))})


def findings(found: dict[str, str], page: str) -> list[str]:
    """Return a line for each text that the page lacks, and for each of the page that the code lacks."""
    told = texts_on(page)
    missing = [f"{PAGE} lacks what {said}" for text, said in found.items() if text not in told]
    return [*missing, *(f"{PAGE}: no code says: {text}" for text in sorted(told - found.keys()))]


def texts_on(page: str) -> set[str]:
    """Return the texts that a page has entries of."""
    return {plain(text) for block in _BLOCK.findall(page) for text in _LITERAL.findall(block)}


def plain(text: str) -> str:
    """Return a text in one line, with ``{}`` for the values that are filled in."""
    text = _VALUE.sub("{}", " ".join(text.split())).replace("'{}'", "{}")
    return re.sub(r"(?:\{\}){2,}", "{}", text).strip(" :;,")


def texts_of(files: dict[Path, str]) -> dict[str, str]:
    """Return the error texts in files, each with the first place that says it and its words there."""
    code = _Code({path: ast.parse(text) for path, text in files.items() if not path.stem.endswith("_pb2")})
    found: dict[str, str] = {}
    for place, call in code.errors():
        for text in code.said_by(place, call):
            if _tells(shown := plain(text)):
                found.setdefault(shown, f"{place.path}:{call.lineno} says: {text}")
    return found


def texts_told(scripts: dict[Path, str]) -> dict[str, str]:
    """Return what shell scripts tell, as ``texts_of``: all words of one call are one text."""
    found: dict[str, str] = {}
    for path, content in scripts.items():
        for call in _TOLD.finditer(content):
            text = re.sub(r"\$\w+|@\w+@", "{}", " ".join(re.findall('"([^"]*)"', call[1])))
            line = content[: call.start()].count("\n") + 1
            found[plain(text)] = f"{path}:{line} says: {text}"
    return found


def _tells(text: str) -> bool:
    """Return whether a text says something by itself."""
    words = text.split()
    return len(words) >= 3 and sum(bool(re.search("[A-Za-z]", word)) for word in words) >= 2


class _Code:
    """Syntax trees, and what is known by name: functions, exceptions, and the functions that make or hand on errors."""

    def __init__(self, trees: dict[Path, ast.Module]) -> None:
        self._assigned = {path: _assigned(tree.body) for path, tree in trees.items()}
        self._classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
        self._functions: dict[str, list[tuple[Path, Function]]] = defaultdict(list)
        # Every tree is walked once, here: that is most of the time that a check takes.
        self._calls: dict[Path, list[tuple[Function | None, ast.Call]]] = defaultdict(list)
        self._imports: dict[Path, list[ast.ImportFrom]] = defaultdict(list)
        for path, tree in trees.items():
            for around, node in _walk(tree):
                if isinstance(node, ast.Call):
                    self._calls[path].append((around, node))
                elif isinstance(node, ast.ClassDef):
                    self._classes[node.name].append(node)
                elif isinstance(node, Function):
                    self._functions[node.name].append((path, node))
                elif isinstance(node, ast.ImportFrom):
                    self._imports[path].append(node)
        self._errors = set(FOREIGN)
        while more := {
            name
            for name, found in self._classes.items()
            if name not in self._errors and any(_last(base) in self._errors for each in found for base in each.bases)
        }:
            self._errors |= more
        self._makers = {
            (path, function.name)
            for found in self._functions.values()
            for path, function in found
            if function.returns and _names(function.returns) & self._errors
        }
        self._makers |= {
            (place.path, place.function.name)
            for place, call in self.errors()
            if place.function and self._hands_on(call, _parameters(place.function))
        }

    def errors(self) -> Iterator[tuple[Place, ast.Call]]:
        """Yield each call that makes, logs or hands on an error."""
        for path, calls in self._calls.items():
            for function, node in calls:
                if self._is_error(path, node):
                    yield Place(path, function, node.lineno), node

    def _is_error(self, path: Path, call: ast.Call) -> bool:
        name = _last(call.func)
        return name in self._errors | REPORTING | BY_WAY_OF_A_FIELD or _is_log(call) or self._is_maker(path, name)

    def _is_maker(self, path: Path, name: str) -> bool:
        """Return whether a function makes errors or hands them on. One with a private name is known in its file only,
        one that is called as a method of dict is not known by its name."""
        return not hasattr(dict, name) and any(
            name == maker and (file == path or name[:1] != "_") for file, maker in self._makers
        )

    def _hands_on(self, call: ast.Call, parameters: set[str]) -> bool:
        """Return whether a call says nothing but a parameter."""
        said = call.args[1:] if _is_log(call) and ast.unparse(call.args[0]) == "'%s'" else call.args
        return len(said) == 1 and isinstance(said[0], ast.Name) and said[0].id in parameters

    def said_by(self, place: Place, call: ast.Call) -> Iterator[str]:
        """Yield what a call says: the texts among its arguments, and those that they quote."""
        if (name := _last(call.func)) in BY_WAY_OF_A_FIELD:
            yield from self._returned(name, DEPTH)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords if keyword.arg != "extra")):
            yield from self._said(place, argument, DEPTH)

    def _said(self, place: Place, node: ast.expr, depth: int) -> list[str]:
        """Return the texts that an expression can be, and those of its parts that stand for themselves."""
        if not depth:
            return []
        match node:
            case ast.Constant(value=str(text)):
                return [] if "\n" in text else [text]
            case ast.JoinedStr(values=parts):
                return self._joined(place, parts, depth)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return self._joined(place, (left, right), depth) if self._any(place, (left, right), depth) else []
            case ast.IfExp(body=body, orelse=orelse):
                return self._any(place, (body, orelse), depth)
            case ast.BoolOp(values=values):
                return self._any(place, values, depth)
            case ast.Dict(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                return self._each(place, values, depth)
            case ast.Starred(value=value) | ast.Await(value=value):
                return self._said(place, value, depth)
            case ast.Name(id=name):
                return self._named(place, name, depth)
            case ast.Attribute(value=ast.Name(id=owner)) if owner in self._classes:
                members = (_assigned(each.body) for each in self._classes[owner])
                return self._each(place, [value for each in members for all_ in each.values() for value in all_], depth)
            case ast.Call(func=ast.Attribute(value=value, attr="format" | "get")) | ast.Subscript(value=value):
                return self._said(place, value, depth)
            case ast.Call(func=called):
                return self._returned(_last(called), depth)
        return []

    def _each(self, place: Place, nodes: Iterable[ast.expr], depth: int) -> list[str]:
        return [text for node in nodes for text in self._said(place, node, depth)]

    def _any(self, place: Place, nodes: Iterable[ast.expr], depth: int) -> list[str]:
        """Return the texts of alternatives; one that is no text of the code is a value beside the others."""
        each = [self._said(place, node, depth) for node in nodes]
        return [text for texts in each for text in texts or ["{}"]] if any(each) else []

    def _named(self, place: Place, name: str, depth: int) -> list[str]:
        if place.function:
            for suite in _suites(place.function, place.line):
                if local := _assigned(suite).get(name):
                    return self._any(place, local, depth - 1)
            if name in _local(place.function):
                return []
        for path in (place.path, *self._imported(place.path, name)):
            if values := self._assigned.get(path, {}).get(name):
                return self._any(Place(path, None, 0), values, depth - 1)
        return []

    def _imported(self, path: Path, name: str) -> Iterator[Path]:
        for node in self._imports[path]:
            if node.module and name in {alias.name for alias in node.names}:
                yield Path(node.module.replace("runtimeproxy_hooks", "hooks").replace(".", "/") + ".py")

    def _returned(self, name: str, depth: int) -> list[str]:
        """Return the texts that a function of the project returns or yields, if the name is one function's."""
        if len(found := self._functions.get(name, [])) != 1:
            return []
        [(path, function)] = found
        if function.returns is None or "str" not in _names(function.returns):
            return []
        given = [node.value for node in ast.walk(function) if isinstance(node, ast.Return | ast.Yield) and node.value]
        each = (self._said(Place(path, function, node.lineno), node, depth - 1) for node in given)
        return [text for texts in each for text in texts if text]

    def _joined(self, place: Place, parts: Sequence[ast.expr], depth: int) -> list[str]:
        whole, apart = [""], []
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                whole = [text + part.value for text in whole]
                continue
            value = part.value if isinstance(part, ast.FormattedValue) else part
            said = self._said(place, value, depth - 1)
            if 0 < len(said) <= MOST and not isinstance(value, ast.Call):
                whole = [text + each for text in whole for each in said]
            else:
                whole = [f"{text}{{{_word(value)}}}" for text in whole]
                apart.extend(said)
        return [*whole, *apart]


def _walk(tree: ast.AST) -> Iterator[tuple[Function | None, ast.AST]]:
    """Yield each node in the order of the text, with the function around it."""
    waiting: list[tuple[Function | None, ast.AST]] = [(None, tree)]
    while waiting:
        function, node = waiting.pop()
        yield function, node
        inside = node if isinstance(node, Function) else function
        waiting += [(inside, child) for child in reversed([*ast.iter_child_nodes(node)])]


def _suites(function: Function, line: int) -> Iterator[list[ast.stmt]]:
    """Yield the statements before a line of each block around it, the innermost first."""
    suite = function.body
    around = []
    while suite:
        before = [statement for statement in suite if statement.lineno <= line]
        around.append(before)
        blocks = (getattr(before[-1], name, []) for name in ("body", "orelse", "finalbody")) if before else ()
        handlers = [each.body for each in getattr(before[-1], "handlers", [])] if before else []
        starts = [block for block in (*blocks, *handlers) if block and block[0].lineno <= line]
        suite = max(starts, key=lambda block: block[0].lineno, default=[])
    yield from reversed(around)


def _assigned(body: Sequence[ast.stmt]) -> dict[str, list[ast.expr]]:
    """Return the names that statements assign, each with all its values; a loop's name has what is looped over."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in (node for statement in body for node in ast.walk(statement)):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for name, value in zip(names, values, strict=True):
                    found[ast.unparse(name)].append(value)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
                | ast.For(target=ast.Name(id=name), iter=value)
            ):
                found[name].append(value)
    return found


def _is_log(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS and "log" in ast.unparse(call.func).lower()


def _parameters(function: Function) -> set[str]:
    return {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}


def _local(function: Function) -> set[str]:
    """Return the names that belong to a function."""
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | _parameters(function)


def _names(annotation: ast.expr) -> set[str]:
    return {_last(node) for node in ast.walk(annotation) if isinstance(node, ast.expr)}


def _word(node: ast.expr) -> str:
    """Return a name for a value."""
    names = [_last(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)]
    return next((name.strip("_").lower() for name in names if name), "value")


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    sys.exit(main())
