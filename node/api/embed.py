#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns a file into a C source that holds its bytes: embed.py IN OUT NAME HEADER."""
import sys


def main():
    source, target, name, header = sys.argv[1:5]
    with open(source, "rb") as f:
        data = f.read()
    rows = [",".join(str(b) for b in data[i:i + 24]) for i in range(0, len(data), 24)]
    with open(target, "w", encoding="ascii") as f:
        f.write(f'#include "{header}"\n')
        f.write(f"const unsigned char {name}[] = {{\n" + ",\n".join(rows) + "};\n")
        f.write(f"const size_t {name}_len = sizeof({name});\n")


if __name__ == "__main__":
    main()
