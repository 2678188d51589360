#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a C file with the migrations as string literals.

usage: embed.py OUTPUT FILE...    (files are <database>/NNNN_<name>.sql, ascending)
"""
import pathlib
import re
import sys


def literal(text):
    lines = []
    for line in text.splitlines():
        code = line.split("--")[0].rstrip()
        if not code:
            continue
        escaped = code.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'        "{escaped}\\n"')
    return "\n".join(lines)


def main():
    output = pathlib.Path(sys.argv[1])
    by_database = {}
    for name in sys.argv[2:]:
        path = pathlib.Path(name)
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", path.name)
        if not match:
            sys.exit(f"{name}: not a migration's name (NNNN_<name>.sql)")
        entries = by_database.setdefault(path.parent.name, [])
        if int(match[1]) != len(entries) + 1:
            sys.exit(f"{name}: version {len(entries) + 1} is expected here")
        entries.append((int(match[1]), match[2], literal(path.read_text())))

    text = ["/* Made by proto/sql/embed.py. */", '#include "node/store/migrations.h"', ""]
    for database, entries in sorted(by_database.items()):
        text.append(f"const struct migration {database}_migrations[] = {{")
        for version, name, sql in entries:
            text.append(f'    {{{version}, "{name}",\n{sql}}},')
        text.append("};")
        text.append(f"const size_t {database}_n_migrations = {len(entries)};")
        text.append("")
    output.write_text("\n".join(text))


main()
