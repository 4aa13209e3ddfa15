"""Finding published files: a folder of the user's, the cache, or the official mirrors.

Whatever is found is checked against its published checksum before it is used, so that a truncated
or altered file can't pass.
"""

import contextlib
import gzip
import hashlib
import http.client
import os
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import Mistake


def cache_folder() -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "biadam"


def fetch(name: str, md5: str, mirrors: tuple[str, ...]) -> bytes:
    """The content of a gzipped file, decompressed; ``md5`` is that of the content.

    Looks below the folder that the environment variable BIADAM_DATA names, then in the cache, then
    at the mirrors, in this order. The file may also lie there decompressed.
    """
    packed = f"{name}.gz"
    content = local({name: bytes, packed: gzip.decompress}, md5)
    return download(packed, md5, mirrors, gzip.decompress) if content is None else content


def local(names: Mapping[str, Callable[[bytes], bytes]], md5: str) -> bytes | None:
    """The content of a file of this machine, if one has a name of these; the mirrors are left.

    Each name comes with what unpacks such a file; ``md5`` is that of the unpacked content. Another
    data set may have files of the same names.
    """
    found = [(path, unpack) for name, unpack in names.items() for path in find(name)]
    for path, unpack in found:
        try:
            content = unpack(path.read_bytes())
        except (OSError, EOFError, zlib.error):
            content = b""  # cut off or altered, like any other content
        if _is(content, md5):
            return content
    if found:
        path, _ = found[0]
        raise Mistake(
            f"{path} is not the published {path.name}: its checksum differs; remove it and take "
            f"the original."
        )
    return None


def find(name: str) -> list[Path]:
    """The files of that name on this machine, the user's before those of the cache."""
    places = (os.environ.get("BIADAM_DATA"), str(cache_folder()))
    return [path for place in places if place for path in sorted(Path(place).rglob(name))]


def download(
    name: str, md5: str, mirrors: tuple[str, ...], unpack: Callable[[bytes], bytes] = bytes
) -> bytes:
    """The content of a file of the mirrors, which is kept in the cache."""
    reasons = []
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(f"{mirror}{name}", timeout=30) as reply:
                packed = reply.read()
            content = unpack(packed)
        except (OSError, http.client.HTTPException, EOFError, zlib.error) as error:
            reasons.append(str(getattr(error, "reason", error)))
            continue
        if _is(content, md5):
            keep(name, packed)
            return content
        reasons.append("wrong checksum")
    raise Mistake(
        f"{name} is neither below the folder that BIADAM_DATA names nor in {cache_folder()}, and "
        f"it could not be downloaded ({'; '.join(reasons)}); put the file there, or use the "
        f"embedded data, `digits`."
    )


def keep(name: str, content: bytes) -> None:
    """Put a file into the cache, whole or not at all: where it can't be written, it is not kept."""
    with contextlib.suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        part = cache_folder() / f"{name}.{os.getpid()}.part"
        part.write_bytes(content)
        part.replace(cache_folder() / name)


def _is(content: bytes, md5: str) -> bool:
    return hashlib.md5(content, usedforsecurity=False).hexdigest() == md5
