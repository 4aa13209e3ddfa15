"""Finished trials on disk, each under the hash of all that decides it."""

import hashlib
import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SHOWING = {"report", "cli.py", "cli_compare.py", "progress.py", "board.py"}


class Entry(NamedTuple):
    """What a finished trial left: numbers and texts, and arrays."""

    summary: dict[str, Any]
    arrays: dict[str, np.ndarray]


class Cache:
    """A folder with a file for each finished trial.

    A file appears at once or not at all, so that a comparison may be killed at any time.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self, key: str) -> Entry | None:
        """What is kept under a key, if it can be read."""
        try:
            with np.load(self._path(key)) as file:
                arrays = dict(file)
            return Entry(json.loads(str(arrays.pop("summary"))), arrays)
        except (FileNotFoundError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
            return None  # or broken, which is as good as absent

    def write(self, key: str, entry: Entry) -> None:
        """Keep it."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{uuid.uuid4().hex}")
        with draft.open("wb") as file:
            summary = np.array(json.dumps(entry.summary))
            np.savez_compressed(file, allow_pickle=False, summary=summary, **entry.arrays)
        os.replace(draft, path)

    def has(self, key: str) -> bool:
        """Whether something is kept under a key."""
        return self.read(key) is not None

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.npz"


def key_of(parts: Mapping[str, Any]) -> str:
    """The sha256 of all that decides a trial."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def source_digest() -> str:
    """The sha256 of the library's own files, but for those that only show what came out."""
    root = Path(__file__).parent.parent
    hashed = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if not SHOWING & {place.parts[0], place.name}:
            hashed.update(str(place).encode() + path.read_bytes())
    return hashed.hexdigest()
