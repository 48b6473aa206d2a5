"""From pixels to what an MDEQ's cell is given."""

from torch import nn

from equilibria.zoo.vision.model.batch_norm import BatchNorm2d

__all__ = ["Stem"]


class Stem(nn.Sequential):
    """Two 3x3 convolutions and, where asked for, a 1x1 one, each with BatchNorm and ReLU.

    Height and width are halved `halvings` times, rounded up. The stem stands before the solve: its
    BatchNorm does not trouble the fixed point.

    Args:
        inputs: channels of an image.
        channels: of the features.
        halvings: of height and width, by a stride of 2 in the first convolutions; beyond two, a
            convolution is added for each.
        projection: whether the 1x1 convolution follows.
        initial: standard deviation of the kernels at the start; None for torch's own.

    papers: Bai et al. 2020, appendix A.
    """

    def __init__(
        self,
        inputs: int,
        channels: int,
        *,
        halvings: int,
        projection: bool,
        initial: float | None,
    ) -> None:
        layers: list[nn.Module] = []
        for i in range(max(2, halvings)):
            stride = 2 if i < halvings else 1
            kernel = nn.Conv2d(
                inputs if i == 0 else channels, channels, 3, stride, padding=1, bias=False
            )
            layers += [kernel, BatchNorm2d(channels), nn.ReLU()]
        if projection:
            layers += [
                nn.Conv2d(channels, channels, 1, bias=False),
                BatchNorm2d(channels),
                nn.ReLU(),
            ]
        super().__init__(*layers)
        if initial is not None:
            for layer in layers:
                if isinstance(layer, nn.Conv2d):
                    nn.init.normal_(layer.weight, std=initial)
