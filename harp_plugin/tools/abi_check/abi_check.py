"""Compares harp_plugin/abi with the headers of an NCCL source tree: `abi_check.py NCCL_SRC`.

A tree states the ABI up to twice: in what NCCL itself is compiled with (src/include), and in
the copies that it gives to authors of plugins (plugins/net/example or, earlier, ext-net/example).
Each is compared for every version that it has. NCCL's own headers want nccl.h, which NCCL's build
generates from nccl.h.in, and CUDA's, of which only the names of a few types matter; both are made
up here in a temporary folder. Nothing of the tree is copied anywhere else.

Exits 1 where anything differs, and where no header was found.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
HARP_PLUGIN = HERE.parents[1]
VERSIONS = range(4, 13)

# What nccl.h takes from CUDA, as far as a declaration needs it.
CUDA_STUB = """
#pragma once
#include <stddef.h>
#include <stdint.h>
typedef struct HarpCudaStream* cudaStream_t;
typedef struct HarpCudaEvent* cudaEvent_t;
typedef int cudaError_t;
"""
# What some trees lack although they have a version: examples lag behind, enumerations grow.
NOT_IN_ALL = (
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclFloat64",
    "ncclProfilerNetEventStart",
    "NCCL_NET_DEVICE_GIN_PROXY",
    "NCCL_NET_DEVICE_GIN_GDAKI",
    "NCCL_NET_DEVICE_GIN_GPI",
)
TYPEDEF = re.compile(r"\}\s*ncclNet_v(\d+)_t\s*;|typedef\s+ncclNet_v\d+_t\s+ncclNet_v(\d+)_t\s*;")
ALIAS = re.compile(r"typedef\s+ncclNet(\w+)_v(\d+)_t\s+ncclNet\1_v(\d+)_t\s*;")


def text_below(header: Path, folders: list[Path], seen: set[Path]) -> str:
    """Returns the text of `header` and of all that it includes from `folders`."""
    if header in seen:
        return ""
    seen.add(header)
    text = header.read_text(errors="replace")
    parts = [text]
    for name in re.findall(r'#\s*include\s*[<"]([^">]+)[">]', text):
        for folder in [header.parent, *folders]:
            if (folder / name).is_file():
                parts.append(text_below(folder / name, folders, seen))
                break
    return "".join(parts)


def definitions(text: str) -> list[str]:
    """Returns the macros that tell abi_check.cpp what `text`, the headers, has."""
    found = {int(a or b) for a, b in TYPEDEF.findall(text)}
    defined = [f"HARP_CHECK_V{version}" for version in VERSIONS if version in found]
    aliases = {(name, int(old), int(new)) for name, old, new in ALIAS.findall(text)}
    renamed = {new for name, old, new in aliases if name != "DeviceHandle" and old == new - 1}
    defined += [f"HARP_V{new}_IS_V{new - 1}" for new in sorted(renamed) if new >= 10]
    words = set(re.findall(r"\w+", text))
    defined += [f"HARP_HAS_{name}" for name in NOT_IN_ALL if name in words]
    return defined


def headers_of(tree: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yields each header of `tree` that states the ABI, with the folders that it needs."""
    for folder in ("plugins/net/example/nccl", "ext-net/example/nccl"):
        if (tree / folder / "net.h").is_file():
            yield tree / folder / "net.h", [tree / folder]
    include = tree / "src/include"
    for name in ("plugin/nccl_net.h", "nccl_net.h"):
        if (include / name).is_file():
            yield include / name, [include, include / "plugin"]


def make_nccl_h(tree: Path, folder: Path) -> None:
    """Writes to `folder` what NCCL's build and CUDA would provide."""
    for name in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h"):
        (folder / name).write_text(CUDA_STUB)
    source = tree / "src/nccl.h.in"
    if source.is_file():
        # Place holders: ${nccl:Major} and the like, all numbers or part of a string.
        (folder / "nccl.h").write_text(re.sub(r"\$\{nccl:\w+\}", "0", source.read_text()))


def check(header: Path, folders: list[Path], made: Path, compiler: str) -> tuple[list[str], str]:
    """Compares with one header; returns the versions checked and what the compiler said."""
    text = text_below(header, [*folders, made], set())
    defined = definitions(text)
    command = [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-DNCCL_OS_LINUX"]
    command += ["-D__CUDA_BF16_TYPES_EXIST__=1"]
    command += [] if "example" in header.parts else ["-DHARP_IS_CORE=1"]
    command += [f"-D{name}=1" for name in defined]
    command += [f'-DHARP_NVIDIA_HEADER="{header}"', f"-I{HARP_PLUGIN}"]
    command += [f"-isystem{folder}" for folder in [*folders, made]]
    result = subprocess.run(
        [*command, str(HERE / "abi_check.cpp")], capture_output=True, text=True, check=False
    )
    versions = [name.removeprefix("HARP_CHECK_V") for name in defined if "CHECK" in name]
    return versions, result.stderr if result.returncode else ""


def main() -> int:
    """Checks the tree that the command line names."""
    parser = argparse.ArgumentParser(description="Compare harp_plugin/abi with an NCCL tree.")
    parser.add_argument("tree", type=Path, help="an NCCL source tree")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "c++"))
    arguments = parser.parse_args()
    tree = arguments.tree.resolve()
    headers = list(headers_of(tree))
    if not headers:
        sys.stderr.write(f"abi-check: {tree} has no header of the net plugin ABI\n")
        return 1
    failures = 0
    with tempfile.TemporaryDirectory() as made:
        make_nccl_h(tree, Path(made))
        for header, folders in headers:
            versions, errors = check(header, folders, Path(made), arguments.compiler)
            name = header.relative_to(tree)
            if errors or not versions:
                failures += 1
                sys.stderr.write(errors or f"{name}: no version of the table found\n")
                sys.stdout.write(f"abi-check: {name}: FAIL\n")
            else:
                sys.stdout.write(f"abi-check: {name}: ok, versions {' '.join(versions)}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
