"""Handwritten characters with twenty drawings each: Omniglot, and a small stand-in from digits.

The background characters are to train on, the evaluation characters to test on; they come from
different alphabets and are never mixed. Settings are chosen on background alphabets that are held
out, see `split_alphabets`.
"""

import io
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from .. import errors
from .files import cache_folder, download, find, keep, local
from .images import Images, digits

SIZE = 28  # pixels on a side, of the 105 of the originals
DRAWINGS = 20  # of every character


class Alphabet(NamedTuple):
    """The published numbers of an alphabet's characters, from the first to the last."""

    name: str
    first: int
    last: int


class Characters(NamedTuple):
    """Drawings of characters, with ink 255 on paper 0."""

    image: UInt8[np.ndarray, "characters drawings height width"]
    alphabet: Int[np.ndarray, " characters"]  # the place of each one's alphabet in `ALPHABETS`
    number: Int[np.ndarray, " characters"]  # the published number, unique to a character

    def take(self, index: np.ndarray) -> "Characters":
        """Those of an index or of a mask."""
        return Characters(self.image[index], self.alphabet[index], self.number[index])


# fmt: off
ALPHABETS = tuple(Alphabet(*row) for row in (
    ("Arcadian", 1, 26), ("Armenian", 27, 67), ("Asomtavruli (Georgian)", 68, 107),
    ("Balinese", 108, 131), ("Bengali", 132, 177),
    ("Blackfoot (Canadian Aboriginal Syllabics)", 178, 191), ("Braille", 192, 217),
    ("Cyrillic", 218, 250), ("Early Aramaic", 251, 272), ("Syriac (Estrangelo)", 273, 295),
    ("Anglo-Saxon Futhorc", 296, 324), ("Futurama", 325, 350), ("Grantha", 351, 393),
    ("Greek", 394, 417), ("Gujarati", 418, 465), ("Hebrew", 466, 487),
    ("Japanese (hiragana)", 488, 539), ("Inuktitut (Canadian Aboriginal Syllabics)", 540, 555),
    ("Malay (Jawi - Arabic)", 556, 595), ("Japanese (katakana)", 596, 642), ("Korean", 643, 682),
    ("Latin", 683, 708), ("Alphabet of the Magi", 709, 728), ("Mkhedruli (Georgian)", 729, 769),
    ("Burmese (Myanmar)", 770, 803), ("N'Ko", 804, 836),
    ("Ojibwe (Canadian Aboriginal Syllabics)", 837, 850), ("Sanskrit", 851, 892),
    ("Tagalog", 893, 909), ("Tifinagh", 910, 964),  # the last one of the background
    ("Angelic", 965, 984), ("Atemayar Qelisayer", 985, 1010), ("Atlantean", 1011, 1036),
    ("Aurek-Besh", 1037, 1062), ("Avesta", 1063, 1088), ("Ge'ez", 1089, 1114),
    ("Glagolitic", 1115, 1159), ("Gurmukhi", 1160, 1204), ("Kannada", 1205, 1245),
    ("Keble", 1246, 1271), ("Malayalam", 1272, 1318), ("Manipuri", 1319, 1358),
    ("Mongolian", 1359, 1388), ("Old Church Slavonic (Cyrillic)", 1389, 1433),
    ("Oriya", 1434, 1479), ("Syriac (Serto)", 1480, 1502), ("Sylheti", 1503, 1530),
    ("Tengwar", 1531, 1555), ("Tibetan", 1556, 1597), ("ULOG", 1598, 1623),
))
# fmt: on


class _Part(NamedTuple):
    """A half of the data: its official archive, and the same images repackaged as an array."""

    name: str
    archive_md5: str
    array_md5: str
    first: int  # number of its first character
    characters: int


_MIRRORS = (
    "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    "https://github.com/brendenlake/omniglot/raw/master/python/",
)
_BACKGROUND = _Part(
    "images_background",
    "68d2efa1b9178cc56df9314c21c6e718",
    "042c0a3e1688c4f4dc9d7213db63ee80",
    1,
    964,
)
_EVALUATION = _Part(
    "images_evaluation",
    "6b91aef0f799c5bb55b94e3f2daec811",
    "a6277b6770b9241c6906fa797456e652",
    965,
    659,
)
_SMALL = {
    "images_background_small1": "e704a628b5459e08445c13499850abc4",
    "images_background_small2": "b75a71a51d3b13f821f212756fe481fd",
}
_VERSION = 1  # of what the cache holds; a change of the images makes it a new one


def omniglot() -> tuple[Characters, Characters]:
    """The 964 background and the 659 evaluation characters, 28 x 28.

    From the official archives or the repackaged arrays, whichever are found, below the folder that
    BIADAM_DATA names or in the cache, or else from the mirrors. The small images are cached.
    """
    background, evaluation = (_cached(part) for part in (_BACKGROUND, _EVALUATION))
    return background, evaluation


def at_hand() -> bool:
    """Whether the images are on this machine, so that nothing has to be downloaded."""
    return all(
        _cache_path(part).exists() or find(f"{part.name}.npz") or find(f"{part.name}.zip")
        for part in (_BACKGROUND, _EVALUATION)
    )


def small_background(number: int) -> Characters:
    """One of the two official small sets of background characters: five alphabets, 28 x 28."""
    name = f"images_background_small{number}"
    if name not in _SMALL:
        raise errors.Mistake(f"`number` must be 1 or 2, but it is {number!r}.")
    md5 = _SMALL[name]
    content = local({f"{name}.zip": bytes}, md5) or download(f"{name}.zip", md5, _MIRRORS)
    ink, numbers = read_archive(content)
    return Characters(shrink(ink, SIZE), _alphabet_of(numbers), numbers)


def split_alphabets(
    characters: Characters, validation: int, seed: int
) -> tuple[Characters, Characters]:
    """Hold some alphabets out: the characters to train on, and those to choose settings on.

    Args:
        characters: those to split.
        validation: how many alphabets are held out.
        seed: names which.
    """
    known = np.unique(characters.alphabet)
    errors.count("validation", validation)
    if validation >= len(known):
        raise errors.Mistake(
            f"`validation` must leave an alphabet to train on, but it is {validation} of "
            f"{len(known)}."
        )
    held = np.random.default_rng(seed).permutation(known)[:validation]
    out = np.isin(characters.alphabet, held)
    return characters.take(~out), characters.take(out)


def few_shot_digits() -> tuple[Characters, Characters]:
    """Two-digit numbers as characters, 14 x 14: a small stand-in that needs no download.

    A class is an ordered pair of digits of scikit-learn's set, drawn side by side: the 36 pairs of
    0, 1, 3, 6, 8, 9 are to train on and the 16 pairs of 2, 4, 5, 7 to test on, so that no digit of
    the one occurs in the other. The tens digit stands for the alphabet. No image of a single digit
    is used twice in the test characters; in the training characters each occurs a few times.
    Turned by half, 68 is 89 and 11 is 11, so quarter turns are no classes of their own here.
    """
    images = digits()
    draw = np.random.default_rng(0)
    train = _numbers(images, (0, 1, 3, 6, 8, 9), draw)
    return train, _numbers(images, (2, 4, 5, 7), draw)


def _numbers(images: Images, some: tuple[int, ...], draw: np.random.Generator) -> Characters:
    """All ordered pairs of some digits."""
    pairs = [(tens, units) for tens in some for units in some]
    supply = {}
    for digit in some:
        order = draw.permutation(np.flatnonzero(images.label == digit))
        supply[digit] = list(np.resize(order, (2 * len(some), DRAWINGS)))
    page = np.zeros((len(pairs), DRAWINGS, 14, 14), np.float32)
    for canvas, (tens, units) in zip(page, pairs, strict=True):
        # The outer columns of a digit are almost always empty, so two of them may lie over another.
        for digit, left in ((tens, 0), (units, 6)):
            place = canvas[:, 3:11, left : left + 8]
            np.maximum(place, images.image[supply[digit].pop()], out=place)
    number = np.array([10 * tens + units for tens, units in pairs])
    return Characters(_levels(page), number // 10, number)


def shrink(ink: Bool[np.ndarray, "... side side"], size: int) -> UInt8[np.ndarray, "... size size"]:
    """Smaller square images by exact area averages: each new pixel is the mean of what it covers.

    Returns:
        Levels of ink, 255 for a pixel that is all ink.
    """
    small = np.empty((*ink.shape[:-2], size, size), np.uint8)
    for index in np.ndindex(ink.shape[: max(0, ink.ndim - 3)]):  # one character at a time in memory
        small[index] = _levels(area_means(ink[index], (size, size)))
    return small


def area_means(
    image: np.ndarray, size: tuple[int, int]
) -> Float[np.ndarray, "... newheight newwidth"]:
    """Images of another height and width, each new pixel the mean of what it covers."""
    rows, columns = (_cover(*sides) for sides in zip(image.shape[-2:], size, strict=True))
    return rows @ image.astype(np.float32) @ columns.T


def read_archive(
    content: bytes,
) -> tuple[Bool[np.ndarray, "characters drawings 105 105"], Int[np.ndarray, " characters"]]:
    """The ink of an official archive at full size, and the numbers of its characters in order."""
    try:
        from PIL import Image
    except ImportError as error:
        raise errors.Mistake(
            "the archives of Omniglot hold PNG images, which need Pillow, and it is not installed; "
            "install biadam[cli]."
        ) from error
    drawings = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for path in archive.namelist():
            if path.endswith(".png"):
                number, drawing = path.rsplit("/", 1)[-1].removesuffix(".png").split("_")
                with Image.open(io.BytesIO(archive.read(path))) as image:
                    drawings[int(number), int(drawing)] = ~np.asarray(image, bool)
    order = sorted(drawings)
    ink = np.stack([drawings[at] for at in order])
    return ink.reshape(-1, DRAWINGS, *ink.shape[1:]), np.array([n for n, _ in order[::DRAWINGS]])


def _cached(part: _Part) -> Characters:
    path = _cache_path(part)
    number = np.arange(part.first, part.first + part.characters)
    try:
        with np.load(io.BytesIO(path.read_bytes())) as stored:
            image = stored["image"]
        if image.shape != (part.characters, DRAWINGS, SIZE, SIZE) or image.dtype != np.uint8:
            raise ValueError(image.shape)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        # It is not there, or not whole.
        image = shrink(_originals(part), SIZE)
        packed = io.BytesIO()
        np.savez_compressed(packed, image=image)
        keep(path.name, packed.getvalue())
    return Characters(image, _alphabet_of(number), number)


def _cache_path(part: _Part) -> Path:
    return cache_folder() / f"omniglot-{part.name}-{SIZE}-v{_VERSION}.npz"


def _originals(part: _Part) -> np.ndarray:
    """The ink of a half of the data, at full size."""
    array = local({f"{part.name}.npz": bytes}, part.array_md5)
    if array is not None:
        with np.load(io.BytesIO(array)) as stored:
            return ~stored["images"]
    archive = f"{part.name}.zip"
    md5 = part.archive_md5
    content = local({archive: bytes}, md5) or download(archive, md5, _MIRRORS)
    return read_archive(content)[0]


def _alphabet_of(number: np.ndarray) -> np.ndarray:
    return np.searchsorted([alphabet.last for alphabet in ALPHABETS], number)


def _cover(side: int, size: int) -> Float[np.ndarray, "size side"]:
    """Which share of each new pixel lies over each old one, along one axis."""
    edge = np.linspace(0, side, size + 1)
    low, high = edge[:-1, None], edge[1:, None]
    old = np.arange(side)[None]
    overlap = np.minimum(high, old + 1) - np.maximum(low, old)
    return (np.maximum(overlap, 0) * size / side).astype(np.float32)


def _levels(ink: np.ndarray) -> np.ndarray:
    return np.rint(255 * ink).astype(np.uint8)
