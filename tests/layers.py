"""Reads the layer table of ARCHITECTURE.md and the imports of a package, and says where they disagree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "infersiege"
SOCKETS = frozenset({"asyncio", "http", "selectors", "socket", "socketserver", "ssl", "urllib.request"})
"""What a module that the table calls pure may not import, beside gevent."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement's target, as seen from one module."""

    module: str
    """The importing module, below the package: `wire.sse`."""
    target: str
    """Absolute name: `infersiege.errors` or `gevent.event`. For `from a import b` it is `a.b`."""
    line: int
    at_module_level: bool
    """Runs when the module is imported: neither in a function nor under TYPE_CHECKING."""


@dataclass(frozen=True, slots=True)
class Layer:
    number: int
    modules: tuple[str, ...]
    may_import: frozenset[int]
    pure: bool


@dataclass(frozen=True, slots=True)
class Table:
    """The layer table. A module's row is that of its longest listed prefix: `wire` holds what isn't `wire.sse`."""

    layers: tuple[Layer, ...]
    only: dict[str, frozenset[str]]
    """Module -> the only modules of ours that it may import, narrower than its layer."""
    libraries: dict[str, frozenset[str]]
    """Library -> the modules that may import it, and nobody else."""

    def row(self, module: str) -> tuple[str, Layer] | None:
        """The listed name that holds `module`, and its layer."""
        names = {name: layer for layer in self.layers for name in layer.modules}
        held = [name for name in names if module == name or module.startswith(f"{name}.")]
        return (max(held, key=len), names[max(held, key=len)]) if held else None


def read_table(markdown: str) -> Table:
    """The table whose header starts with `| layer | modules |`. Raises ValueError when there is none to read."""
    layers: list[Layer] = []
    only: dict[str, frozenset[str]] = {}
    libraries: dict[str, frozenset[str]] = {}
    for number, modules, rule in re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", markdown, re.MULTILINE):
        names = tuple(re.findall(r"`([\w.]+)`", modules))
        layers.append(Layer(int(number), names, _allowed(rule), "pure" in rule))
        only |= {
            name: frozenset(re.findall(r"`(\w+)`", rest)) for name, rest in re.findall(r"the (\w+) only (.+)", rule)
        }
        if one := re.search(r"only one with (\w+)(?: \(and, with `([\w.]+)`, (\w+)\))?", rule):
            libraries[one[1]] = frozenset(names)
            if one[3]:
                libraries[one[3]] = frozenset({*names, one[2]})
    if not layers:
        raise ValueError("no layer table found")
    return Table(tuple(layers), only, libraries)


def _allowed(rule: str) -> frozenset[int]:
    """`nothing of ours`, `1, 2: …`, `1 to 4; …`, `all`."""
    head = re.split(r"[:;]", rule)[0].strip()
    if head == "nothing of ours":
        return frozenset()
    if head == "all":
        return frozenset(range(1, 100))
    if span := re.fullmatch(r"(\d+) to (\d+)", head):
        return frozenset(range(int(span[1]), int(span[2]) + 1))
    if re.fullmatch(r"\d+(, \d+)*", head):
        return frozenset(int(number) for number in head.split(", "))
    raise ValueError(f"can't read the rule {rule!r} of the layer table")


def modules_of(root: Path) -> dict[str, Path]:
    """Module name below the package -> file; the package itself is ``""``."""
    names = {}
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


def imports_of(module: str, file: Path) -> list[Import]:
    """All imports of one file, relative ones made absolute."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    found = []
    for node, top in _walk(tree, True):
        if isinstance(node, ast.Import):
            found += [Import(module, name.name, node.lineno, top) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            found += [Import(module, f"{base}.{name.name}", node.lineno, top) for name in node.names]
    return found


def _walk(node: ast.AST, top: bool) -> Iterator[tuple[ast.AST, bool]]:
    yield node, top
    typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, top and not typing_only and not in_function)


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = [PACKAGE, *package.split(".")] if package else [PACKAGE]
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def own_module(target: str, modules: dict[str, Path]) -> str | None:
    """The module of ours that holds `target` (a module or a name inside one); None: not of ours."""
    if target != PACKAGE and not target.startswith(f"{PACKAGE}."):
        return None
    name = target.removeprefix(PACKAGE).removeprefix(".")
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def violations(root: Path, table: Table) -> list[str]:
    """One line per breach of the table; empty when the package keeps it."""
    modules = modules_of(root)
    found = [f"{name}: in no row of the layer table" for name in modules if name and table.row(name) is None]
    listed = [name for layer in table.layers for name in layer.modules]
    found += [f"{name}: in the layer table, but there is no such module" for name in listed if name not in modules]
    for module, file in modules.items():
        for one in imports_of(module, file):
            found += [f"{module or PACKAGE}:{one.line}: {breach}" for breach in _breaches(one, modules, table)]
    return found


def _breaches(one: Import, modules: dict[str, Path], table: Table) -> Iterator[str]:
    mine = table.row(one.module)
    target = own_module(one.target, modules)
    if target is not None:
        theirs = table.row(target)
        if theirs is None:
            return  # the package itself (its version), or a module already reported as in no row
        if mine is None:
            yield f"the package itself imports {target}"
        elif mine[0] != theirs[0]:  # inside one listed module everything goes
            if theirs[1].number not in mine[1].may_import:
                yield f"layer {mine[1].number} ({mine[0]}) imports layer {theirs[1].number} ({theirs[0]})"
            if mine[0] in table.only and theirs[0] not in table.only[mine[0]]:
                yield f"{mine[0]} may import only {', '.join(sorted(table.only[mine[0]]))}, not {theirs[0]}"
        return
    library = one.target.split(".")[0]
    if library in table.libraries and not _may_use(library, mine, table):
        yield f"imports {library}, which only {', '.join(sorted(table.libraries[library]))} may"
    if mine and mine[1].pure and any(one.target == name or one.target.startswith(f"{name}.") for name in SOCKETS):
        yield f"layer {mine[1].number} is pure, but this imports {one.target}"


def _may_use(library: str, mine: tuple[str, Layer] | None, table: Table) -> bool:
    """`wire.transport` speaks for its siblings in the same row of the table (`wire`), which are its private parts."""
    if mine is None:
        return False
    return any(
        mine[0] == name
        or ((row := table.row(name)) is not None and row[1] == mine[1] and name.startswith(f"{mine[0]}."))
        for name in table.libraries[library]
    )


def cycles(root: Path) -> list[tuple[str, ...]]:
    """Groups of modules that need each other while they are being imported, each group sorted."""
    modules = modules_of(root)
    needs: dict[str, set[str]] = {name: set() for name in modules}
    for module, file in modules.items():
        for one in imports_of(module, file):
            target = own_module(one.target, modules)
            if one.at_module_level and target is not None and target != module:
                needs[module].add(target)
    reach = {name: _reachable(name, needs) for name in needs}
    groups = {tuple(sorted(b for b in reach[a] if a in reach[b])) for a in needs if a in reach[a]}
    return sorted(groups)


def _reachable(start: str, needs: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = list(needs[start])
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += needs[name]
    return seen
