#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the compiler does not: include layers, order of includes, sizes, licence lines, names.

Speaks TAP. Without arguments it looks at the tree that it lies in; the last cases prove with a tree of
its own that each rule can fail.
"""

import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
C_LINES_MAX = 800
H_LINES_MAX = 200
FUNCTION_LINES_MAX = 80
SPDX = "SPDX-License-Identifier: Apache-2.0"
SOURCE_FOLDERS = ("common", "proto", "node", "cli", "clients", "examples", "tests")

# folder → folders whose headers it may include, its own aside. The longest folder that fits counts.
SIBLINGS = ("node/store", "node/cluster", "node/dispatch", "node/api", "node/ops")
LAYERS = {
    "common": (),
    "proto": ("common",),
    "node/core": ("common", "proto"),
    **{sibling: ("common", "proto", "node/core") for sibling in SIBLINGS},
    "node": ("common", "proto", "node/core", *SIBLINGS),
    "cli": ("common", "proto"),
    "clients": (),
    "examples": ("clients",),
    "tests": ("common", "proto", "node/core", *SIBLINGS, "node", "cli", "clients", "tests"),
}

# What a layer may include from outside, where that is limited. The rest is free.
PURE = {
    "node/core": r"(event2?|curl|sqlite3|libpq-fe|mysql|jansson|http_parser|openssl|pthread|unistd|"
                 r"time|sys/|netinet|arpa|fcntl|yaml|poll)",
    "common": r"(event2?|curl|sqlite3|libpq-fe|mysql|jansson|http_parser|openssl|netinet|arpa|"
              r"sys/socket)",
    "proto": r"(event2?|curl|sqlite3|libpq-fe|mysql|http_parser|openssl|pthread|netinet|arpa|"
             r"sys/socket)",
}
# A header with another library's types would tie its includers to that library; those that a folder
# keeps to itself may have them.
NOT_IN_HEADERS = r"(event2?/|curl/|sqlite3|libpq-fe|mysql|http_parser|openssl/|yaml)"
ONE_DRIVER = {"sqlite3": "sqlite", "libpq-fe": "postgres", "mysql": "mysql"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def layer_of(path):
    """The longest folder in LAYERS that holds the path, or None."""
    fits = [layer for layer in LAYERS if path.startswith(layer + "/")]
    return max(fits, key=len, default=None)


def sources(root):
    for folder in SOURCE_FOLDERS:
        yield from sorted(path for pattern in ("*.c", "*.h") for path in (root / folder).rglob(pattern))


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def check_layers(root):
    """Ours: only from below, by a path from the root. A client library is made to be taken out of
    this tree: its files include one another by bare names, and nothing else of ours."""
    for path in sources(root):
        name = str(path.relative_to(root))
        layer = layer_of(name)
        for number, ours, target in includes(path):
            if not ours:
                continue
            if layer == "clients":
                if not any((folder / target).exists() for folder in path.parents[:2]):
                    yield f"{name}:{number}: \"{target}\" is not in the library's own folder"
                continue
            there = layer_of(target)
            if there is None or not (root / target).exists():
                yield f"{name}:{number}: \"{target}\" is no path from the root"
            elif there != layer and there not in LAYERS[layer]:
                yield f"{name}:{number}: {layer} must not include {there} ({target})"


def check_pure(root):
    """Theirs: what a layer has no business with."""
    for path in sources(root):
        name = str(path.relative_to(root))
        layer = layer_of(name)
        for number, ours, target in includes(path):
            if ours:
                continue
            if layer in PURE and re.match(PURE[layer], target):
                allowed = layer == "common" and re.match(r"(sys/eventfd|event2?$)", target)
                if not allowed:
                    yield f"{name}:{number}: {layer} must not include <{target}>"
            public = name.endswith(".h") and not re.search(r"_(impl|internal)\.h$", name)
            if name.startswith("node/") and public and re.match(NOT_IN_HEADERS, target):
                yield f"{name}:{number}: <{target}> in a header"
            driver = ONE_DRIVER.get(target.removesuffix(".h"))
            if driver and name.startswith("node/") and driver not in path.name:
                yield f"{name}:{number}: <{target}> outside the {driver} driver's files"


def check_order(root):
    """A .c includes its own header first, so that each header stands alone; blocks ascend."""
    for path in sources(root):
        name = str(path.relative_to(root))
        found = list(includes(path))
        own = name[:-2] + ".h"
        first = found[0][2] if found else None
        bare = layer_of(name) == "clients" and first == path.name[:-2] + ".h"
        if name.endswith(".c") and (root / own).exists() and first != own and not bare:
            yield f"{name}: its own header comes first"
        lines = path.read_text(encoding="utf-8").splitlines()
        for (n1, ours1, t1), (n2, ours2, t2) in zip(found, found[1:]):
            adjacent = all(INCLUDE.match(line) for line in lines[n1 - 1:n2])
            if adjacent and ours1 == ours2 and t1 > t2:
                yield f"{name}:{n2}: {t2} belongs before {t1}"


def check_sizes(root):
    for path in sources(root):
        n = len(path.read_text(encoding="utf-8").splitlines())
        limit = H_LINES_MAX if path.suffix == ".h" else C_LINES_MAX
        if n > limit:
            yield f"{path.relative_to(root)}: {n} lines, {limit} are the most"


def check_functions(root):
    """In this formatting a function's body is what stands between lines that are one brace."""
    for path in sources(root):
        if path.suffix != ".c":
            continue
        start = None
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line == "{":
                start = number
            elif line == "}" and start is not None:
                if number - start + 1 > FUNCTION_LINES_MAX:
                    yield (f"{path.relative_to(root)}:{start}: a function of {number - start + 1} "
                           f"lines, {FUNCTION_LINES_MAX} are the most")
                start = None


def check_licence(root):
    """In the first line, or the second below #!."""
    others = [path for pattern in ("*.py", "*.sh") for path in root.glob(f"tests/**/{pattern}")]
    others += [path for path in (root / "scripts").glob("*") if path.is_file()]
    for path in [*sources(root), *sorted(others)]:
        head = path.read_text(encoding="utf-8").splitlines()[:2]
        if not any(SPDX in line for line in head):
            yield f"{path.relative_to(root)}: no {SPDX}"


def check_text(root):
    """What does not belong into a finished file."""
    for path in sources(root):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line):
                yield f"{path.relative_to(root)}:{number}: {line.strip()}"
            if len(line) > 100:
                yield f"{path.relative_to(root)}:{number}: {len(line)} columns, 100 are the most"
            if line != line.rstrip() or "\t" in line:
                yield f"{path.relative_to(root)}:{number}: a tab, or white space at the end"


def check_guards(root):
    for path in sources(root):
        if path.suffix == ".h" and not re.search(r"^#ifndef (\w+)\n#define \1$",
                                                 path.read_text(encoding="utf-8"), re.M):
            yield f"{path.relative_to(root)}: no include guard"


CHECKS = {
    "include layers": check_layers,
    "libraries stay in their layer": check_pure,
    "order of includes": check_order,
    "sizes of files": check_sizes,
    "sizes of functions": check_functions,
    "licence lines": check_licence,
    "text": check_text,
    "include guards": check_guards,
}

# One broken tree for each rule: file → text.
BROKEN = {
    "include layers": {"node/core/a.c": '#include "node/store/b.h"\n', "node/store/b.h": ""},
    "libraries stay in their layer": {"node/core/a.c": "#include <curl/curl.h>\n"},
    "order of includes": {"common/a.c": '#include <stdio.h>\n#include "common/a.h"\n',
                          "common/a.h": ""},
    "sizes of files": {"common/a.h": "\n" * (H_LINES_MAX + 1)},
    "sizes of functions": {"common/a.c": "{\n" + "\n" * FUNCTION_LINES_MAX + "}\n"},
    "licence lines": {"common/a.c": "int a;\n"},
    "text": {"common/a.c": "/* TODO */\n"},
    "include guards": {"common/a.h": "int a;\n"},
}


def fails_on_broken(name):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for file, text in BROKEN[name].items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text, encoding="utf-8")
        return bool(list(CHECKS[name](root)))


def main():
    print(f"1..{2 * len(CHECKS)}")
    number = 0
    failed = False
    for name, check in CHECKS.items():
        problems = list(check(ROOT))
        proves = fails_on_broken(name)
        for ok, what in ((not problems, name), (proves, f"{name}: a broken tree is noticed")):
            number += 1
            print(f"{'ok' if ok else 'not ok'} {number} - {what}")
            failed = failed or not ok
        for problem in problems:
            print(f"# {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
