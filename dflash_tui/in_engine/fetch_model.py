"""Fetch a model into the Hugging Face cache: `python fetch_model.py`, run by an engine's Python.

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
    """A fetched file is not what its name says."""


class Hostile(Exception):
    """The hub names a blob or a commit by what would be a path."""


def refuse_paths() -> None:
    """Let huggingface_hub take no name of a blob or a commit that leads elsewhere: it joins them to its cache as is."""
    from huggingface_hub import file_download

    ask = file_download.get_hf_file_metadata

    def ask_and_check(*args: Any, **more: Any) -> Any:
        answer = ask(*args, **more)
        for name in (answer.etag, answer.commit_hash):
            if name and not PLAIN_NAME.fullmatch(name):
                raise Hostile(f"the hub calls a blob or a commit {name[:80]!r}")
        return answer

    file_download.get_hf_file_metadata = ask_and_check


def fetch(request: dict[str, Any], file: dict[str, Any]) -> None:
    """Bring one large file into `blobs`, going on where an earlier call was ended."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    url = hf_hub_url(request["repo"], file["name"], revision=request["commit"])
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
        kept = part.stat().st_size if part.exists() else 0
        if kept > file["size"]:
            part.unlink()
        complete(part, url, headers, file["size"])
        if kept and sha256(part) != blob.name:
            part.unlink()
            raise Damaged(f"{file['name']} does not have the SHA-256 that the hub states")
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


def sha256(path: Path) -> str:
    """Return the digest of a file: a power cut may have left zeros in what was kept."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_folder(request: dict[str, Any]) -> Path:
    """Return the folder of the repository in the cache."""
    return Path(request["cache"]) / f"models--{request['repo'].replace('/', '--')}"


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
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK  # is written and counted at once; 10 MB would take a slow line ten seconds
    pool = ThreadPoolExecutor(AT_ONCE)
    own = [file for file in request["files"] if file["large"] and file["size"] <= HTTP_LIMIT]
    for done in as_completed([pool.submit(fetch, request, file) for file in own]):
        done.result()
    snapshot_download(
        request["repo"],
        revision=request["commit"],
        cache_dir=request["cache"],
        allow_patterns=[glob.escape(file["name"]) for file in request["files"]],
    )
    remember(request)


def kind(error: Exception) -> str:
    """Return what the caller can advise on; anything else is taken for the network."""
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "disk"
    return next((KINDS[known.__name__] for known in type(error).__mro__ if known.__name__ in KINDS), "network")


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
