"""Packages of a few files as wheels, or of one module as a source whose build runs a line of our own."""

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

NAME = "tiny-of-ours"


def write_wheel(folder: Path, text: str, version: str = "1.0") -> Path:
    """Write a wheel with the module `tiny_of_ours`, in place of one that is there."""
    return write_files(folder, NAME, version, {"tiny_of_ours.py": text})


def write_files(folder: Path, name: str, version: str, files: dict[str, str | bytes]) -> Path:
    """Write a wheel of any name with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for file, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{file},sha256={digest},{len(data)}\n")
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in {**files, f"{info}/RECORD": f"{''.join(rows)}{info}/RECORD,,\n"}.items():
            wheel.writestr(zipfile.ZipInfo(file), content)
    return path


def hash_of(wheel: Path) -> str:
    """Return its hash as a lock has it."""
    return f"sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"


def write_source(folder: Path, line: str) -> Path:
    """Write a source that runs `line` when it is built, with no other backend than its own."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{NAME}"\nversion = "1.0"\n'
    )
    (folder / "backend.py").write_text(
        f"{line}\nimport sys\nfrom pathlib import Path\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "def build_wheel(folder, *_):\n"
        "    from tests.support import tiny_wheels\n"
        "    return tiny_wheels.write_wheel(Path(folder), 'x = 1').name\n"
    )
    return folder
