"""LSUN classroom photographs, read by torchvision from a local folder, or synthetic JPEG files."""

import contextlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb
import torch
from PIL import Image
from torchvision import datasets, transforms

from pomology.data import synthetic
from pomology.data.hub import Missing, Obtained, Unavailable, damaged, obtain, redacted

LSUN_CLASSROOM_IMAGES = 168_103
STAND_IN_PHOTOGRAPHS = 256  # different synthetic ones, which repeat
NAME = "LSUN classroom"
Item = tuple[torch.Tensor, int]

# Preprocessing of the DCGAN's script.
TRANSFORM = transforms.Compose(
    [
        transforms.Resize(64),
        transforms.CenterCrop(64),
        transforms.ToTensor(),
        transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ]
)


@dataclass(frozen=True, eq=False)
class Photographs(Obtained):
    """Photographs decoded at each access: (float32 (3, 64, 64) from -1 to 1, 0). files repeat."""

    files: Sequence[Item]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Item:
        return self.files[index % len(self.files)]


class JPEGs:
    """Photographs decoded from JPEG files in memory."""

    def __init__(self, files: list[bytes]):
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Item:
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        return TRANSFORM(image), 0


class Classrooms:
    """torchvision's LSUN, which each worker opens anew, since an open database is not picklable."""

    def __init__(self, root: Path):
        self.root = root.absolute()
        # torchvision writes a file with the database's keys into the current folder.
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            self.database = datasets.LSUN(str(self.root), ["classroom_train"], TRANSFORM)

    def __reduce__(self) -> tuple:
        """Let a spawned worker open the database itself."""
        return Classrooms, (self.root,)

    def __len__(self) -> int:
        return len(self.database)

    def __getitem__(self, index: int) -> Item:
        return self.database[index]


def lsun_classroom(source: str, folder: str = "", size: int = 0) -> Photographs:
    """Return LSUN classroom: 168,103 photographs with a shorter side of 256 pixels.

    folder: contains `classroom_train_lmdb` (3.1 GB), downloaded with github.com/fyu/lsun.
    """

    def stand_in():
        return JPEGs(synthetic.photographs(STAND_IN_PHOTOGRAPHS))

    files, provenance = obtain(NAME, source, folder, size, _read, stand_in)
    # A person's download may be another edition; synthetic files repeat up to the article's number.
    length = len(files) if provenance["kind"] == "real" else LSUN_CLASSROOM_IMAGES
    if length != LSUN_CLASSROOM_IMAGES:
        difference = f"; {length:,} images where the article has {LSUN_CLASSROOM_IMAGES:,}"
        provenance["origin"] += difference
    return Photographs(files, min(size or length, length), **provenance)


def _read(root: Path | None) -> tuple[Classrooms, str]:
    """Return the photographs in a folder, and their location; see `read` of `hub.obtain`."""
    if root is None:
        raise Unavailable("no folder was named, and Hugging Face's hub does not have it")
    if not (root / "classroom_train_lmdb").is_dir():
        raise Missing(f"{NAME}: no classroom_train_lmdb in {redacted(root)}")
    try:
        return Classrooms(root), "local folder"
    except lmdb.Error as error:
        raise damaged(root / "classroom_train_lmdb", error) from error
