"""A host that ssh reaches, played by another home folder: a script in place of ssh runs the words there."""

import os
import shutil
import sys
from pathlib import Path

from tests import ROOT

# What the far shell finds besides Python.
_TOOLS = (
    *("sh", "sleep", "cat", "head", "true", "rsync"),
    *("mkdir", "flock", "mktemp", "rm", "wc", "tail", "tr", "ln", "readlink", "grep"),
)
# Runs the words after the host as sshd would: what is there goes on when ssh is killed, and sees its stdin end.
_SSH = """\
#!/bin/sh
while :; do
    case $1 in
    -o | -l) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
shift
words=$*
pip="PIP_NO_INDEX=1 PIP_FIND_LINKS={links} PIP_CONFIG_FILE=/dev/null"
exec setsid -w env -i HOME={home} PATH={tools} $pip {filter}"$words"
"""
# Unlike head, which keeps what came until it has enough; it ends with who reads from it, too.
_FIRST_BYTES = """\
import os, select, sys
left, poll = int(sys.argv[1]), select.poll()
poll.register(0, select.POLLIN)
poll.register(1, 0)
while (left or sys.argv[2:]) and 1 not in dict(poll.poll()) and (data := os.read(0, min(left or 65536, 4096))):
    left -= os.write(1, data) if left else 0
"""


class FarHome:
    """The other host: `folder` is its home, `programs` its PATH, and its pip finds packages in `wheels` alone."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.programs, self.wheels = (
            root,
            *(root / name for name in ("home", "programs", "wheels")),
        )
        for folder in (self.folder, self.programs, self.wheels, root / "near"):
            folder.mkdir(parents=True)
        self.links = str(self.wheels)
        for tool in _TOOLS:
            if place := shutil.which(tool):
                (self.programs / tool).symlink_to(place)
        self.put_python()
        self.put_ssh()
        os.environ["PATH"] = f"{root / 'near'}:{os.environ['PATH']}"

    @property
    def data(self) -> Path:
        """Our own folder there."""
        return self.folder / ".local" / "share" / "dflash-tui"

    def list_programs(self) -> list[str]:
        """Return what lies in our own folder there, but for the lock."""
        return sorted(path.name for path in self.data.glob("*") if path.suffix != ".lock")

    def put_python(self, first: str = "") -> None:
        """Put Python on its PATH; a line of shell may come `first`."""
        self.put(self.programs / "python3", f'#!/bin/sh\n{first}\nexec {sys.executable} "$@"\n')

    def put_program(self) -> None:
        """Put this program on its PATH, as if it were installed there."""
        run = f'PYTHONPATH={ROOT} exec {sys.executable} -P -m dflash_tui "$@"'
        self.put(self.programs / "dflash-tui", f"#!/bin/sh\n{run}\n")

    def put_ssh(self, through: str = "") -> None:
        """Put the script into the place of ssh; what comes on stdin may go `through` a command first."""
        run = f"sh -c '{through} | sh -c \"$0\"' " if through else "sh -c "
        text = _SSH.format(home=self.folder, tools=self.programs, links=self.links, filter=run)
        self.put(self.root / "near" / "ssh", text)

    def put_first_bytes(self) -> None:
        """Put a program on its PATH that passes so many bytes on."""
        self.put(self.programs / "first-bytes", f"#!{sys.executable}\n{_FIRST_BYTES}")

    def put_answer(self, script: str) -> None:
        """Put a script into the place of ssh that runs nothing of what it is told."""
        self.put(self.root / "near" / "ssh", f"#!/bin/sh\n{script}\n")

    def put(self, path: Path, text: str) -> None:
        """Write a program."""
        path.write_text(text)
        path.chmod(0o755)
