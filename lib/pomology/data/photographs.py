"""Photographs: LSUN classroom by torchvision, files of a local folder, or synthetic JPEG files."""

import contextlib
import functools
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


class Files:
    """Photographs decoded from files of any names and sizes that Pillow reads."""

    def __init__(self, paths: list[Path]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Item:
        path = self.paths[index]
        try:
            with Image.open(path) as image:
                return TRANSFORM(image.convert("RGB")), 0
        except OSError as error:  # also what Pillow raises for a file that is no image
            raise damaged(path, error) from error


def lsun_classroom(source: str, folder: str = "", size: int = 0) -> Photographs:
    """Return LSUN classroom: 168,103 photographs with a shorter side of 256 pixels.

    folder: contains `classroom_train_lmdb` (3.1 GB), downloaded with github.com/fyu/lsun, or
    photographs in files of any names and sizes, also in folders of their own.
    """

    def stand_in():
        return JPEGs(synthetic.photographs(STAND_IN_PHOTOGRAPHS))

    # A folder of all datasets may have the images of another one.
    read = functools.partial(_read, any_files=bool(folder))
    files, provenance = obtain(NAME, source, folder, size, read, stand_in)
    # A person's download may be another edition; other files repeat up to the article's number.
    length = len(files) if isinstance(files, Classrooms) else LSUN_CLASSROOM_IMAGES
    if isinstance(files, Files):
        provenance["origin"] += f"; {len(files):,} files, which repeat"
    if length != LSUN_CLASSROOM_IMAGES:
        difference = f"; {length:,} images where the article has {LSUN_CLASSROOM_IMAGES:,}"
        provenance["origin"] += difference
    return Photographs(files, min(size or length, length), **provenance)


def _read(root: Path | None, any_files: bool) -> tuple[Classrooms | Files, str]:
    """Return the photographs in a folder, and their location; see `read` of `hub.obtain`."""
    if root is None:
        raise Unavailable("no folder was named, and Hugging Face's hub does not have it")
    if not (root / "classroom_train_lmdb").is_dir():
        endings = Image.registered_extensions()
        paths = sorted(path for path in root.rglob("[!.]*") if path.suffix.lower() in endings)
        if any_files and paths:
            Files(paths)[0]  # raises now if it is no image
            return Files(paths), "other photographs, of a local folder"
        other = " and no file of an image" if any_files else ""
        raise Missing(f"{NAME}: no classroom_train_lmdb{other} in {redacted(root)}")
    try:
        return Classrooms(root), "local folder"
    except lmdb.Error as error:
        raise damaged(root / "classroom_train_lmdb", error) from error
