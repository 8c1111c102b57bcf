"""Import cycles between modules of a Rust crate or a Python package.

Two checks. `cycles` compares files. `folder-cycles` compares siblings of which one has modules of
its own: `a -> b` where a module in `a` or below imports one in `b` or below.

Edges between a module and its parents do not count: a `mod.rs` re-exports its children, and these
share what it defines. A path through `pub use` counts for the module that defines the item.
"""

import ast
from collections import defaultdict, deque

from .result import Result, Violation
from .rust import crates


def check_files(tree, exemptions):
    """No two files of a crate or Python package import each other, directly or through others."""
    violations, scanned = [], 0
    for where, modules, imports in _graphs(tree):
        scanned += len(modules)
        edges = {}
        for source, target, place in imports:
            if _common(source, target) < min(len(source), len(target)):
                edges.setdefault(("/".join(source), "/".join(target)), place)
        violations += _cycles(edges, where, exemptions.cycles)
    return Result(scanned, violations)


def check_folders(tree, exemptions):
    """Folders of modules do not import each other, nor a folder and a file beside it."""
    violations, scanned = [], 0
    for where, modules, imports in _graphs(tree):
        scanned += len(modules)
        folders = {path[:depth] for path in modules for depth in range(len(path))}
        edges = defaultdict(dict)
        for source, target, place in imports:
            depth = _common(source, target)
            if depth < min(len(source), len(target)):
                edges[source[:depth]].setdefault((source[depth], target[depth]), place)
        for parent, graph in sorted(edges.items()):
            found = _cycles(graph, "/".join((where, *parent)), exemptions.cycles, lambda name, at=parent: (*at, name) in folders)
            violations += found
    return Result(scanned, violations)


def _graphs(tree):
    """Triples (folder, module paths, imports) of the crates and packages."""
    for crate in crates(tree):
        yield crate.folder or ".", list(crate.modules), _rust_imports(crate)
    for package in _python_packages(tree):
        modules = _python_modules(tree, package)
        yield package, list(modules), _python_imports(package, modules)


def _common(one, other):
    """The number of leading segments that two paths share."""
    depth = 0
    while depth < min(len(one), len(other)) and one[depth] == other[depth]:
        depth += 1
    return depth


def _rust_imports(crate):
    """Triples (importing module, imported module, place)."""
    for module in crate.modules.values():
        for segments, offset in module.imports + module.inline_paths:
            target = crate.resolve(segments, module)
            if target is not None and target != module.path:
                yield module.path, target, (module.file.path, module.line(offset))


def _python_packages(tree):
    """Folders of outermost packages."""
    folders = [path[: -len("/__init__.py")] for path in tree.paths if path.endswith("/__init__.py")]
    return [folder for folder in folders if folder.rpartition("/")[0] not in folders]


def _python_modules(tree, package):
    modules = {}
    for file in tree.by_language("python"):
        if file.path.startswith(package + "/"):
            parts = file.path[len(package) + 1 : -len(".py")].split("/")
            modules[tuple(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def _python_imports(package, modules):
    """Imports at any depth of the code: an import inside a function is a cycle all the same."""
    name = package.rpartition("/")[2]
    for path, file in modules.items():
        is_folder = file.path.endswith("/__init__.py")
        for node in _imports_at_run_time(ast.parse(file.text)):
            for target in _python_targets(node, path if is_folder else path[:-1], name):
                while target and target not in modules:
                    target = target[:-1]
                if target in modules and target != path:
                    yield path, target, (file.path, node.lineno)


def _imports_at_run_time(node):
    """Import statements below `node`, without those under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for branch in child.orelse:
                yield from _imports_at_run_time(branch)
        else:
            yield from _imports_at_run_time(child)


def _python_targets(node, folder, package):
    """Paths inside the package that an import may name."""
    if isinstance(node, ast.Import):
        dotted = [alias.name.split(".") for alias in node.names]
        return [tuple(parts[1:]) for parts in dotted if parts[0] == package]
    module = tuple((node.module or "").split(".")) if node.module else ()
    if node.level:
        base = folder[: len(folder) - (node.level - 1)] + module
    elif module[:1] == (package,):
        base = module[1:]
    else:
        return []
    return [base + (alias.name,) for alias in node.names]


def _cycles(graph, where, exempt, needs=None):
    """A violation for each pair that imports each other, or one for a longer cycle.

    With `needs`, a cycle counts if that is true for one of its members.
    """
    for members in _strongly_connected(graph):
        if any(where == path and members <= allowed for path, allowed in exempt):
            continue
        inside = {edge: place for edge, place in graph.items() if set(edge) <= members}
        pairs = {tuple(sorted(edge)) for edge in inside if edge[::-1] in inside}
        for cycle in [list(pair) for pair in sorted(pairs)] or [_shortest_cycle(inside)]:
            if needs is None or any(needs(member) for member in cycle):
                yield _violation(where, cycle, inside, len(members))


def _violation(folder, cycle, places, size):
    steps = list(zip(cycle, cycle[1:] + cycle[:1]))
    path, line = places[steps[0]]
    others = ", ".join(f"{a} imports {b} at {places[(a, b)][0]}:{places[(a, b)][1]}" for a, b in steps[1:])
    ring = " -> ".join(cycle + cycle[:1])
    problem = f"import cycle in {folder}: {ring} ({others}; {size} modules in the circle)"
    return Violation(path, line, problem, "move what both need into a module below them")


def _strongly_connected(graph):
    """Sets of two or more nodes that reach each other (by reachability: graphs here are small)."""
    successors = defaultdict(set)
    for source, target in graph:
        successors[source].add(target)
    reach = {node: _reachable(node, successors) for node in list(successors)}
    groups = []
    for node in sorted(reach):
        group = {other for other in reach[node] if node in reach.get(other, ())}
        if len(group) > 1 and group not in groups:
            groups.append(group)
    return groups


def _reachable(start, successors):
    seen, queue = set(), deque([start])
    while queue:
        for target in successors.get(queue.popleft(), ()):
            if target not in seen:
                seen.add(target)
                queue.append(target)
    return seen


def _shortest_cycle(edges):
    best = None
    for start, second in sorted(edges):
        queue, previous = deque([second]), {second: start}
        while queue:
            node = queue.popleft()
            for source, target in sorted(edges):
                if source == node and target == start:
                    cycle = [node]
                    while cycle[-1] != start:
                        cycle.append(previous[cycle[-1]])
                    cycle.reverse()
                    if best is None or len(cycle) < len(best):
                        best = cycle
                    queue.clear()
                    break
                if source == node and target not in previous:
                    previous[target] = node
                    queue.append(target)
    return best
