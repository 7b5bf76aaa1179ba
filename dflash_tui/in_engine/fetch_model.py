"""Fetch a model or a data set into the Hugging Face cache: `python fetch_model.py`, run by an engine's Python.

One line of JSON on stdin says what: repo, revision, commit, cache, and files with name, size, etag and large. It ends
when stdin does, so that it never outlives who started it. An error is one line of JSON on stdout, with its kind.

Large files are fetched here by plain HTTP, each into `blobs/<etag>.incomplete`, and go on where they ended.
huggingface_hub 2 itself throws a partial file away when its process ends, by HTTP and by xet alike: with eight files
under way, a cancelled download of 16 GB would begin from nothing. What is left (small files, those over 50 GB, which
only xet carries, and the links) is `snapshot_download`'s.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

AT_ONCE = 4
HTTP_LIMIT = 50_000_000_000
CHUNK = 1 << 20
PLAIN_NAME = re.compile(r"\w[\w.+=-]{0,127}", re.ASCII)
SHA256, SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")
KINDS = {  # the first class of an error's ancestors that is listed
    "Damaged": "damaged",
    "Hostile": "hostile",
    "GatedRepoError": "gated",
    "RepositoryNotFoundError": "not found",
    "RevisionNotFoundError": "not found",
    "ImportError": "library",
    "PermissionError": "folder",
}


class Damaged(Exception):
    """A fetched file does not have the hash that is its name."""


class Hostile(Exception):
    """The hub names a blob or a commit by what would be a path, or sends more than it says."""


class BoundedFile:
    """A file that is being fetched and becomes no larger than so many bytes, whatever is written to it."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file, self._limit = file, limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        """Write, or raise when it would become too large."""
        if self._file.tell() + len(data) > self._limit:
            raise Hostile(f"the hub sent more than the {self._limit} bytes that it announced for this file")
        written: int = self._file.write(data)
        return written


def refuse_paths() -> None:
    """Let huggingface_hub take no name of a blob or a commit that leads elsewhere: it joins them to its cache as is."""
    from huggingface_hub import file_download

    ask = file_download.get_hf_file_metadata

    def ask_and_check(*args: Any, **more: Any) -> Any:
        answer = ask(*args, **more)
        for name in (answer.etag, answer.commit_hash):
            if name and not PLAIN_NAME.fullmatch(name):
                raise Hostile(f"the hub's name of a blob or commit is not valid: {name[:80]!r}")
        return answer

    file_download.get_hf_file_metadata = ask_and_check


def refuse_excess(files: list[dict[str, Any]]) -> None:
    """Let huggingface_hub write no more of a file than the hub said: an answer may be endless, or packed.

    A size that it says while it answers is believed only up to that of the largest file that room was made for.
    """
    from huggingface_hub import file_download

    get, largest = file_download.http_get, max(file["size"] for file in files)

    def get_bounded(url: str, temp_file: Any, **more: Any) -> None:
        stated = more.get("expected_size")
        limit = largest if stated is None or stated < 0 else min(stated, largest)
        get(url, BoundedFile(temp_file, limit), **more)

    file_download.http_get = get_bounded


def refuse_damage() -> None:
    """Let huggingface_hub give a file the name of a blob only when it has that hash: it compares sizes alone."""
    from huggingface_hub import file_download

    move = file_download._chmod_and_move

    def check_and_move(source: Path, blob: Path) -> None:
        require_hash(Path(source), Path(blob).name, f"the blob {Path(blob).name}")
        move(source, blob)

    file_download._chmod_and_move = check_and_move


def fetch(request: dict[str, Any], file: dict[str, Any]) -> None:
    """Bring one large file into `blobs`, going on where an earlier call was ended."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    kind, repo = split(request["repo"])
    url = hf_hub_url(repo, file["name"], repo_type=kind, revision=request["commit"])
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    folder = model_folder(request)
    blob = folder / "blobs" / file["etag"]
    lock = folder.parent / ".locks" / folder.name / f"{blob.name}.lock"
    for needed in (blob.parent, lock.parent):
        needed.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists():
            return
        part = blob.with_name(f"{blob.name}.incomplete")
        if part.exists() and part.stat().st_size > file["size"]:
            part.unlink()
        complete(part, url, headers, file["size"])
        require_hash(part, blob.name, file["name"])
        part.rename(blob)


def complete(part: Path, url: str, headers: dict[str, str], size: int) -> None:
    """Append what is missing to `part`, trying again for as long as every try brings something."""
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get

    with part.open("ab", buffering=0) as out:
        while True:
            before = os.fstat(out.fileno()).st_size
            try:
                http_get(url, out, resume_size=before, headers=headers, expected_size=size)
                return
            except HfHubHTTPError:
                raise
            except Exception:  # the class depends on the HTTP library of this huggingface_hub
                if os.fstat(out.fileno()).st_size <= before:
                    raise


def require_hash(path: Path, name: str, what: str) -> None:
    """Remove a fetched file and raise `Damaged` unless it has the hash that is its name; other names say nothing.

    It is read from the disk: a power cut may have left zeros in what was kept, and http_get may begin anew.
    """
    if SHA256.fullmatch(name):
        kind, digests = "SHA-256", {digest(path, hashlib.sha256())}
    elif SHA1.fullmatch(name):  # git counts the size in, a mirror may not
        header = b"blob %d\0" % path.stat().st_size
        kind, digests = "SHA-1", {digest(path, hashlib.sha1(start, usedforsecurity=False)) for start in (header, b"")}
    else:
        return
    if name not in digests:
        path.unlink()
        raise Damaged(f"{what} does not have the {kind} that the hub states")


def digest(path: Path, begun: Any) -> str:
    """Return the hexadecimal digest of a file after what `begun` was given."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: begun).hexdigest()


def model_folder(request: dict[str, Any]) -> Path:
    """Return the folder of the repository in the cache."""
    kind, repo = split(request["repo"])
    return Path(request["cache"]) / f"{kind}s--{repo.replace('/', '--')}"


def split(repo: str) -> tuple[str, str]:
    """Return the type of a repository and its name: that of a data set begins with `datasets/`, as its address does."""
    name = repo.removeprefix("datasets/")
    return ("model" if name == repo else "dataset"), name


def remember(request: dict[str, Any]) -> None:
    """Write which commit the revision is, which is what an offline start goes by."""
    ref = model_folder(request) / "refs" / request["revision"]
    if request["revision"] == request["commit"]:
        return
    ref.parent.mkdir(parents=True, exist_ok=True)
    temporary = ref.with_name(f".{ref.name}.{os.getpid()}")
    temporary.write_text(request["commit"])
    temporary.replace(ref)


def run(request: dict[str, Any]) -> None:
    """Fetch every file of the request."""
    from huggingface_hub import constants, snapshot_download

    refuse_paths()
    refuse_excess(request["files"])
    refuse_damage()
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK  # is written and counted at once; 10 MB would take a slow line ten seconds
    pool = ThreadPoolExecutor(AT_ONCE)
    own = [file for file in request["files"] if file["large"] and file["size"] <= HTTP_LIMIT]
    for done in as_completed([pool.submit(fetch, request, file) for file in own]):
        done.result()
    kind, repo = split(request["repo"])
    snapshot_download(
        repo,
        repo_type=kind,
        revision=request["commit"],
        cache_dir=request["cache"],
        allow_patterns=[glob.escape(file["name"]) for file in request["files"]],
    )
    remember(request)


def kind(error: Exception) -> str:
    """Return what the caller can advise on; anything else is taken for the network."""
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "disk"
    return next(
        (KINDS[error_class.__name__] for error_class in type(error).__mro__ if error_class.__name__ in KINDS), "network"
    )


def end_with_caller() -> None:
    """End when whoever started this is gone."""
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Read the request, fetch, and tell the error."""
    code = 0
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_caller, daemon=True).start()
    try:
        run(request)
    except Exception as error:
        print(json.dumps({"kind": kind(error), "error": f"{type(error).__name__}: {error}"}), flush=True)
        code = 1
    # The threads of other files would be waited for; what they wrote is kept.
    os._exit(code)


if __name__ == "__main__":
    main()
