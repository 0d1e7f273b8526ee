"""MNIST item by item, as the scripts of PyTorch's examples read it.

These classes are in a module because macOS starts DataLoader workers by spawn, and a worker cannot
import a class from a notebook.
"""

import random

import numpy as np
import torch
from torchvision import datasets, transforms

from pomology.data.images import ImageSet
from pomology.errors import PomologyError


class ArticleMNIST(datasets.MNIST):
    """torchvision's MNIST for images in memory, with items (float32 (1, 28, 28), label)."""

    def __init__(self, images: ImageSet):
        datasets.VisionDataset.__init__(self, transform=transforms.ToTensor())
        self.data = torch.from_numpy(images.images)
        self.targets = torch.from_numpy(images.labels)


class MNISTPairs(torch.utils.data.Dataset):
    """Random pairs for the Siamese network: (image, image, target), images float32 0 to 255.

    Even indices have two images of one class (target 1), odd ones of two classes (target 0). Each
    access draws a new pair with Python's generator, which DataLoader seeds in each worker.
    """

    def __init__(self, images: ImageSet):
        self.images = torch.from_numpy(images.images).unsqueeze(1)
        self.members = [np.flatnonzero(images.labels == label) for label in range(10)]
        if min(map(len, self.members)) < 2:
            raise PomologyError(f"{images.name}: pairs need at least two images of every class")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # In the order of the article's script, so that as many values are drawn.
        label = other_label = self._draw(self.members)
        number = other_number = self._draw(self.members[label])  # among the images of the class
        same = index % 2 == 0
        if same:
            while other_number == number:
                other_number = self._draw(self.members[label])
        else:
            while other_label == label:
                other_label = self._draw(self.members)
            other_number = self._draw(self.members[other_label])
        first = self.images[self.members[label][number]].clone().float()
        second = self.images[self.members[other_label][other_number]].clone().float()
        return first, second, torch.tensor(same, dtype=torch.float)

    @staticmethod
    def _draw(choices: list) -> int:
        """Return a random index of a list."""
        return random.randint(0, len(choices) - 1)
