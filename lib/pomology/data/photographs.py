"""LSUN's classrooms, read from its database or a folder of JPEG files, or a stand-in."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from pomology.data import synthetic
from pomology.data.hub import Dataset, Folder, Obtained, damaged, obtain, reason, shown
from pomology.errors import PomologyError

LSUN_CLASSROOM_IMAGES = 168_103
STAND_IN_PHOTOGRAPHS = 1_024  # different ones behind the 168,103 of the stand-in

_LSUN = Dataset(name="LSUN classroom", config="classroom_train_lmdb", no_hub="no hub has it")


def lsun_classroom(source: str = "auto", folder: Folder = None, size: int | None = None) -> JPEGSet:
    """LSUN classroom: 168,103 photographs with a shorter side of 256, JPEG quality 75, as (3, 64, 64) from -1 to 1.
    Only a `folder` has the real one: `classroom_train_lmdb`, 3.1 GB, as fyu/lsun fetches it, or its JPEG files."""
    request = source, folder, size
    store, kind, origin = obtain(_LSUN, request, _read_folder, lambda: synthetic.photographs(STAND_IN_PHOTOGRAPHS))
    length = len(store) if kind == "real" else LSUN_CLASSROOM_IMAGES
    if length != LSUN_CLASSROOM_IMAGES:
        origin += f"; {length:,} images where the article has {LSUN_CLASSROOM_IMAGES:,}"
    return JPEGSet(store, min(size or length, length), name=_LSUN.name, kind=kind, origin=origin)


def _read_folder(root: Path) -> tuple[list[str] | _LMDB, str]:
    if (root / "data.mdb").is_file():
        return _LMDB(root), "local folder"
    suffixes = {".jpg", ".jpeg", ".webp"}  # the exporter of LSUN names its JPEG files .webp
    paths = sorted(str(path) for path in root.rglob("*") if path.suffix.lower() in suffixes)
    if not paths:
        raise PomologyError(f"LSUN classroom: neither classroom_train_lmdb/data.mdb nor JPEG files in {shown(root)}")
    return paths, "local folder"


def dcgan_transform(picture: Image.Image) -> Any:
    """Shorter side to 64, then the middle 64 × 64, as float32 (3, 64, 64) from -1 to 1: what the DCGAN is fed."""
    from pomology.data import transforms  # and with it PyTorch, which the data alone do not need

    picture = transforms.center_crop(transforms.resize_shorter(picture, 64), 64)
    return transforms.normalize(transforms.to_tensor(picture), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True, eq=False)
class JPEGSet(Obtained):
    """Photographs decoded one by one when asked for: items are (dcgan_transform(picture), 0). `store[i]` gives a file's
    bytes or its path; a store smaller than `length` is used again and again."""

    store: Sequence[bytes | str] | _LMDB
    length: int

    def __len__(self) -> int:
        return self.length

    def picture(self, index: int) -> Image.Image:
        """The decoded photograph, RGB. Raises PomologyError if its file is damaged."""
        if not 0 <= index < self.length:
            raise IndexError(index)
        item = self.store[index % len(self.store)]
        try:
            return Image.open(io.BytesIO(item) if isinstance(item, bytes) else item).convert("RGB")
        except OSError as error:
            where = f"image {index}" if isinstance(item, bytes) else shown(Path(item))
            raise PomologyError(f"{self.name}: {where} cannot be decoded: {reason(error)}") from error

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return dcgan_transform(self.picture(index)), 0


class _LMDB:
    """The values of an lmdb, by the order of their keys. Can be pickled: each process opens the file for itself."""

    def __init__(self, folder: Path):
        import lmdb

        self.path, self.keys = str(folder.resolve()), []
        try:
            with _environment(self.path).begin() as transaction, transaction.cursor() as cursor:
                self.keys += cursor.iternext(keys=True, values=False)
        except (lmdb.Error, OSError) as error:
            raise damaged(folder / "data.mdb", error) from error
        if not self.keys:
            raise damaged(folder / "data.mdb", "holds no images")

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> bytes:
        with _environment(self.path).begin() as transaction:
            return transaction.get(self.keys[index])


_environments: dict[str, tuple[int, Any]] = {}  # path -> process, handle: lmdb opens nothing twice in one process


def _environment(path: str) -> Any:
    """The handle of this process: a forked one may not use its parent's."""
    import lmdb

    process, environment = _environments.get(path, (None, None))
    if process != os.getpid():
        if environment is not None:
            environment.close()  # the parent's
        environment = lmdb.open(path, readonly=True, lock=False, create=False, readahead=False)
        # lmdb maps the file, so reading a missing page kills the process. The last few pages may be missing: those that
        # were freed in the transaction that took them.
        needed = (environment.info()["last_pgno"] - 16) * environment.stat()["psize"]
        if (present := os.path.getsize(f"{path}/data.mdb")) < needed:
            environment.close()
            raise OSError(f"{present:,} bytes, should be {needed:,} at the least")
        _environments[path] = os.getpid(), environment
    return environment
