"""Finding published files: a folder of the user's, the cache, or the official mirrors.

Whatever is found is checked against the published checksum of its decompressed content before it
is used, so that a truncated or altered file can't pass.
"""

import gzip
import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path

from ..errors import Mistake


def cache_folder() -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "biadam"


def fetch(name: str, md5: str, mirrors: tuple[str, ...]) -> bytes:
    """The content of a gzipped file, decompressed; ``md5`` is that of the content.

    Looks below the folder that the environment variable BIADAM_DATA names, then in the cache, then
    at the mirrors, in this order.
    """
    places = [os.environ.get("BIADAM_DATA"), str(cache_folder())]
    for place in places:
        for path in sorted(Path(place).rglob(f"{name}*")) if place else []:
            content = _open(path, name)
            if content is not None:
                if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
                    raise Mistake(
                        f"{path} is not the published {name}: its checksum differs; remove it "
                        f"and take the original."
                    )
                return content
    return _download(name, md5, mirrors)


def _open(path: Path, name: str) -> bytes | None:
    if path.name == name:
        return path.read_bytes()
    if path.name == f"{name}.gz":
        return gzip.decompress(path.read_bytes())
    return None


def _download(name: str, md5: str, mirrors: tuple[str, ...]) -> bytes:
    reasons = []
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=30) as reply:
                packed = reply.read()
            content = gzip.decompress(packed)
        except (urllib.error.URLError, OSError) as error:
            reasons.append(str(getattr(error, "reason", error)))
            continue
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == md5:
            cache_folder().mkdir(parents=True, exist_ok=True)
            (cache_folder() / f"{name}.gz").write_bytes(packed)
            return content
        reasons.append("wrong checksum")
    raise Mistake(
        f"{name} is neither below the folder that BIADAM_DATA names nor in {cache_folder()}, and "
        f"it could not be downloaded ({'; '.join(reasons)}); put the file there, or use the "
        f"embedded data, `digits`."
    )
