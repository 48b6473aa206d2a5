"""Images: classification and segmentation, their models, data sets and commands."""

from equilibria.run.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "augmented-neural-ode": ".model.ode:AugmentedNeuralODEConfig",
        "conv": ".model.single_scale:ConvConfig",
        "dense": ".model.single_scale:DenseConfig",
        "mdeq": ".model.mdeq:MDEQConfig",
        "mdeq-segmentation": ".model.segmentation:MDEQSegmentationConfig",
        "mdeq-segmentation-unrolled": ".model.segmentation:MDEQSegmentationUnrolledConfig",
        "mdeq-unrolled": ".model.mdeq:MDEQUnrolledConfig",
        "monotone": ".model.monotone:MonotoneConvConfig",
        "monotone-dense": ".model.monotone:MonotoneDenseConfig",
        "neural-ode": ".model.ode:NeuralODEConfig",
        "resnet": ".model.explicit:ResNetConfig",
        "unet": ".model.explicit:UNetConfig",
    },
    data={
        ".data.segmentation.masks:SegmentationSet": {
            "camvid": ".data.segmentation.camvid:CAMVID",
            "camvid32": ".data.segmentation.camvid:CAMVID32",
            "cityscapes": ".data.segmentation.published:CITYSCAPES",
            "shapes": ".data.segmentation.published:SHAPES_SET",
            "voc": ".data.segmentation.published:VOC",
        },
        "equilibria.run.data.dataset:Dataset": {
            "cifar10": ".data.cifar:CIFAR10",
            "cifar100": ".data.cifar:CIFAR100",
            "digits": ".data.digits:DIGITS",
            "mnist": ".data.mnist:MNIST",
        },
        ".data.images:ImageFolder": {"imagenet": ".data.images:IMAGENET"},
    },
    folders={
        ".data.images:ImageFolder": ".data.images:OWN",
        ".data.segmentation.masks:SegmentationSet": ".data.segmentation.folder:OWN",
    },
    tasks={
        "image_classification": ".task.classification:ImageClassification",
        "image_segmentation": ".task.segmentation:ImageSegmentation",
        "own_images": ".task.own_images:OwnImages",
    },
    classes={
        "equilibria.solve:Solver": {
            "ForwardBackward": ".model.monotone:ForwardBackward",
            "PeacemanRachford": ".model.monotone:PeacemanRachford",
        }
    },
    commands={
        "shards": ("index tar shards of images, for training to stream them", ".commands.shards"),
        "predict": ("classify or segment images with a trained network", ".commands.predict"),
    },
    options={"evaluate.views": ".commands.views:Views"},
    galleries={
        "classification": ".gallery:CLASSIFICATION",
        "segmentation": ".gallery:SEGMENTATION",
    },
)
