"""`python -m lightcc.horovod train.py ...`: runs a Horovod program, unchanged, with lightcc.

The interpreter starts itself anew with `LIGHTCC_HOROVOD=1` and its own options, so that the
program runs exactly as `python train.py ...` would: as `__main__`, with its own `sys.path`, and
found again by its spawned children.

`--install-horovodrun` writes the command `horovodrun`, for scripts that start their jobs with it.
No installation does so by itself: lightcc can stand beside the real Horovod, whose command has the
same name, and only one of them could have the file.
"""

from __future__ import annotations

import os
import shlex
import site
import sys
import sysconfig
from pathlib import Path

_MODULE = "lightcc.horovod"
_PTH = "lightcc_horovod.pth"
_USAGE = """\
usage: python -m lightcc.horovod SCRIPT [arguments ...]
       python -m lightcc.horovod -m MODULE [arguments ...]
       python -m lightcc.horovod -c CODE [arguments ...]
       python -m lightcc.horovod --install-horovodrun [FOLDER]

Runs a program written for Horovod, unchanged: `import horovod` gives lightcc, here and in its child
processes. To start several ranks: lightccrun --horovod -np N python SCRIPT ...

--install-horovodrun writes FOLDER/horovodrun, by default beside this interpreter's other commands.
It is lightccrun --horovod under Horovod's name. A file of that name that is not lightcc's is kept.
"""
# The first line starts a shell, which starts the interpreter: a path may be long or have blanks.
_MARK = "# lightcc's horovodrun, written by python -m lightcc.horovod --install-horovodrun"
_COMMAND = """\
#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
{mark}
import sys

from lightcc.horovod.runner.launch import run_commandline

sys.exit(run_commandline())
"""


def interpreter_options(orig_argv: list[str], arguments: int) -> list[str]:
    """Returns the interpreter's own options.

    Args:
        orig_argv: As in `sys.orig_argv`: interpreter, options, `-m lightcc.horovod`, arguments.
        arguments: How many arguments there are at its end.

    Example:
        >>> interpreter_options(["python", "-X", "dev", "-um", "lightcc.horovod", "a.py"], 1)
        ['-X', 'dev', '-u']
    """
    options = orig_argv[1 : len(orig_argv) - arguments]
    last = options.pop().removesuffix(_MODULE) or options.pop()  # "-m", "-um", also joined.
    flags = last[:-1]
    return options if flags == "-" else [*options, flags]


def _pth_is_read() -> bool:
    if sys.flags.no_site:
        return False
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return any(Path(folder, _PTH).is_file() for folder in folders)


def install_horovodrun(folder: Path) -> str:
    """Writes the command and returns what to tell the user.

    Raises:
        OSError: There is a file of that name that is not lightcc's, or it cannot be written.
    """
    path = folder / "horovodrun"
    if path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace"):
        msg = f"{path} is there and is not lightcc's: remove it, or name another folder"
        raise FileExistsError(msg)
    text = _COMMAND.format(python=shlex.quote(sys.executable), mark=_MARK)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return f"wrote {path}; removing that file undoes it"


def _install(arguments: list[str]) -> int:
    if len(arguments) > 1:
        sys.stderr.write(_USAGE)
        return 2
    try:
        folder = arguments[0] if arguments else sysconfig.get_path("scripts")
        sys.stdout.write(f"{install_horovodrun(Path(folder))}\n")
    except OSError as error:
        sys.stderr.write(f"python -m {_MODULE}: {error}\n")
        return 1
    return 0


def main() -> int:  # noqa: RET503 - execv does not return.
    """Replaces this process; returns only on a mistake."""
    program = sys.argv[1:]
    if not program or program[0] in {"-h", "--help"}:
        (sys.stdout if program else sys.stderr).write(_USAGE)
        return 0 if program else 2
    if program[0] == "--install-horovodrun":
        return _install(program[1:])
    if not _pth_is_read():
        sys.stderr.write(
            f"python -m {_MODULE}: {_PTH} is not in the site-packages of {sys.executable}, or the "
            "interpreter was told not to look there (-S); install lightcc there with pip, neither "
            "editable nor with --target.\n"
        )
        return 2
    os.environ["LIGHTCC_HOROVOD"] = "1"
    options = interpreter_options(sys.orig_argv, len(program))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, [sys.executable, *options, *program])  # noqa: S606 - no shell wanted.


if __name__ == "__main__":
    sys.exit(main())
