"""torchvision's CIFAR-10, enlarged image by image: VGG-16 takes images of 224 pixels."""

from torchvision import datasets, transforms

from pomology.data.images import ImageSet


class CIFAR10(datasets.CIFAR10):
    """torchvision's CIFAR-10 with images in memory: items are (float32 (3, side, side), label).

    An image is enlarged to 8/7 of `side`, then cropped to a square in the middle or at random.
    """

    def __init__(self, images: ImageSet, side: int, at_random: bool):
        whole = side * 8 // 7
        crop = transforms.RandomCrop if at_random else transforms.CenterCrop
        steps = [transforms.Resize((whole, whole)), crop((side, side)), transforms.ToTensor()]
        steps.append(transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
        datasets.VisionDataset.__init__(self, transform=transforms.Compose(steps))
        self.data = images.images
        self.targets = images.labels.tolist()
