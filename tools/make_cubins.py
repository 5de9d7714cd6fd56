"""Assembles the committed PTX into machine code of GPUs, for a library that need not be compiled.

Usage: make_cubins.py ENVIRONMENT FOLDER    (a virtual environment with CUDA 12's ptxas)

Writes FOLDER/NAME.smCAPABILITY.cubin, for each file of csrc/lightcc_cuda/ptx and each architecture
that CUDA 12 knows of check_ptx.py. `cmake -DLIGHTCC_CUBINS=FOLDER` puts them into the library.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from check_ptx import ASSEMBLERS, PTX

ASSEMBLER = "nvidia/cuda_nvcc/bin/ptxas"


def make_cubins(environment: Path, folder: Path) -> list[Path]:
    """Returns the files that it has written.

    Raises:
        FileNotFoundError: The environment has no ptxas.
        subprocess.CalledProcessError: ptxas refuses a file; it has said why.
    """
    try:
        (ptxas,) = environment.glob(f"lib/python*/site-packages/{ASSEMBLER}")
    except ValueError:
        message = f"{environment} has no {ASSEMBLER} (nvidia-cuda-nvcc-cu12)"
        raise FileNotFoundError(message) from None
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for text in sorted(PTX.glob("*.ptx")):
        for architecture in ASSEMBLERS[ASSEMBLER]:
            cubin = folder / f"{text.stem}.sm{architecture}.cubin"
            subprocess.run([ptxas, f"-arch=sm_{architecture}", text, "-o", cubin], check=True)
            made.append(cubin)
    return made


def main() -> int:
    """Writes them, and says how large they are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("environment", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    made = make_cubins(arguments.environment, arguments.folder)
    size = sum(cubin.stat().st_size for cubin in made)
    sys.stdout.write(f"{len(made)} cubins, {size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
