"""Images: classification and segmentation, their models, data sets and commands."""

from equilibria.registry import Application

APPLICATION = Application(
    package=__name__,
    models={
        "augmented-neural-ode": "equilibria.models.vision.ode:AugmentedNeuralODEConfig",
        "conv": "equilibria.models.conv:ConvConfig",
        "dense": "equilibria.models.dense:DenseConfig",
        "mdeq": "equilibria.models.vision.mdeq:MDEQConfig",
        "mdeq-segmentation": "equilibria.models.vision.segmentation:MDEQSegmentationConfig",
        "mdeq-segmentation-unrolled": "equilibria.models.vision.segmentation:MDEQSegmentationUnrolledConfig",
        "mdeq-unrolled": "equilibria.models.vision.mdeq:MDEQUnrolledConfig",
        "monotone": "equilibria.models.vision.monotone:MonotoneConvConfig",
        "monotone-dense": "equilibria.models.vision.monotone:MonotoneDenseConfig",
        "neural-ode": "equilibria.models.vision.ode:NeuralODEConfig",
        "resnet": "equilibria.models.vision.resnet:ResNetConfig",
        "unet": "equilibria.models.vision.unet:UNetConfig",
    },
    data={
        "equilibria.data.segmentation.sets:SegmentationSet": {
            "camvid": "equilibria.data.segmentation.camvid:CAMVID",
            "camvid32": "equilibria.data.segmentation.camvid32:CAMVID32",
            "cityscapes": "equilibria.data.segmentation.cityscapes:CITYSCAPES",
            "shapes": "equilibria.data.segmentation.shapes:SHAPES_SET",
            "voc": "equilibria.data.segmentation.voc:VOC",
        },
        "equilibria.data.dataset:Dataset": {
            "cifar10": "equilibria.data.images.cifar:CIFAR10",
            "cifar100": "equilibria.data.images.cifar:CIFAR100",
            "digits": "equilibria.data.digits:DIGITS",
            "mnist": "equilibria.data.mnist:MNIST",
        },
        "equilibria.data.images.folder:ImageFolder": {
            "imagenet": "equilibria.data.images.imagenet:IMAGENET",
        },
    },
    folders={
        "equilibria.data.images.folder:ImageFolder": "equilibria.data.images.folder:OWN",
        "equilibria.data.segmentation.sets:SegmentationSet": "equilibria.data.segmentation.folder:OWN",
    },
    tasks={
        "image_classification": "equilibria.tasks.classification:ImageClassification",
        "image_segmentation": "equilibria.tasks.segmentation:ImageSegmentation",
        "own_images": "equilibria.tasks.own_images:OwnImages",
    },
    classes={
        "equilibria.solve.solvers:Solver": {
            "ForwardBackward": "equilibria.models.vision.monotone_solvers:ForwardBackward",
            "PeacemanRachford": "equilibria.models.vision.monotone_solvers:PeacemanRachford",
        },
    },
    commands={
        "shards": (
            "index tar shards of images, for training to stream them",
            "equilibria.cli.shards",
        ),
        "predict": ("classify or segment images with a trained network", "equilibria.cli.predict"),
    },
    options={
        "evaluate.views": "equilibria.cli.views:Views",
    },
    galleries={
        "classification": "equilibria.train.gallery.classified:GALLERY",
        "segmentation": "equilibria.train.gallery.segmented:GALLERY",
    },
)
