"""A host that ssh reaches, played by another home folder: a script in place of ssh runs the words there."""

import os
import sys
from pathlib import Path

from tests import ROOT

# What the far shell finds besides Python.
_TOOLS = ("sh", "sleep", "cat", "head")
# Runs the last of its words as sshd would: what is there goes on when ssh is killed, and sees its stdin end.
_SSH = """\
#!/bin/sh
for words; do :; done
pip="PIP_NO_INDEX=1 PIP_FIND_LINKS={links} PIP_CONFIG_FILE=/dev/null"
exec setsid -w env -i HOME={home} PATH={tools} $pip {filter}"$words"
"""
# Unlike head, which keeps what came until it has enough.
_FIRST_BYTES = """\
import os, sys
left = int(sys.argv[1])
while left and (data := os.read(0, min(left, 4096))):
    left -= os.write(1, data)
while sys.argv[2:] and os.read(0, 65536):
    pass
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
            place = next(each for each in (Path("/bin") / tool, Path("/usr/bin") / tool) if each.exists())
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
        self._put(self.programs / "python3", f'#!/bin/sh\n{first}\nexec {sys.executable} "$@"\n')

    def put_program(self) -> None:
        """Put this program on its PATH, as if it were installed there."""
        run = f'PYTHONPATH={ROOT} exec {sys.executable} -P -m dflash_tui "$@"'
        self._put(self.programs / "dflash-tui", f"#!/bin/sh\n{run}\n")

    def put_ssh(self, through: str = "") -> None:
        """Put the script into the place of ssh; what comes on stdin may go `through` a command first."""
        run = f"sh -c '{through} | sh -c \"$0\"' " if through else "sh -c "
        text = _SSH.format(home=self.folder, tools=self.programs, links=self.links, filter=run)
        self._put(self.root / "near" / "ssh", text)

    def put_cut(self, count: int, *, stays: bool = False) -> None:
        """Let so many bytes of stdin come there, each at once; the line ends then, or stays until it ends here."""
        self._put(self.programs / "first-bytes", f"#!{sys.executable}\n{_FIRST_BYTES}")
        self.put_ssh(f"first-bytes {count} {'stays' * stays}")

    def put_answer(self, script: str) -> None:
        """Put a script into the place of ssh that runs nothing of what it is told."""
        self._put(self.root / "near" / "ssh", f"#!/bin/sh\n{script}\n")

    def _put(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)
