"""Released weights: their layout is read, and gives what a plain statement of the papers gives."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import equilibria as eq
from equilibria.solve import Picard, Status, Unrolled
from equilibria.zoo.flow.model.configs import DEQGMAConfig, DEQRAFTConfig, RAFTConfig
from equilibria.zoo.flow.model.weights import WeightsError, config_of, load_checkpoint, read_state
from small_models import pair

# --- checkpoints as the released code writes them ------------------------------------------------


class Layout:
    """A state dict in the layout of the released checkpoints, with random values.

    Weights are small enough for a flow of some pixels, which rounding does not change much.
    """

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.state = {}

    def drawn(self, *shape, scale):
        return scale * torch.randn(*shape, generator=self.generator)

    def conv(self, name, inputs, outputs, height, width=None, *, bias=True, normed=False, gain=1.0):
        width = width or height
        fan = inputs * height * width
        weight = self.drawn(outputs, inputs, height, width, scale=gain / fan**0.5)
        if normed:
            self.state[f"{name}.weight_g"] = 1 + self.drawn(outputs, 1, 1, 1, scale=0.1)
            self.state[f"{name}.weight_v"] = weight
        else:
            self.state[f"{name}.weight"] = weight
        if bias:
            self.state[f"{name}.bias"] = self.drawn(outputs, scale=0.1)

    def batch_norm(self, name, width):
        self.state[f"{name}.weight"] = 1 + self.drawn(width, scale=0.1)
        self.state[f"{name}.bias"] = self.drawn(width, scale=0.1)
        self.state[f"{name}.running_mean"] = self.drawn(width, scale=0.1)
        self.state[f"{name}.running_var"] = 1 + self.drawn(width, scale=0.1).abs()
        self.state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    def encoder(self, net, widths, outputs, *, small, batch):
        def norm(name, width):
            if batch:
                self.batch_norm(name, width)

        self.conv(f"{net}.conv1", 3, widths[0], 7)
        norm(f"{net}.norm1", widths[0])
        before = widths[0]
        for stage, width in enumerate(widths, 1):
            for block in (0, 1):
                name, inputs = f"{net}.layer{stage}.{block}", width if block else before
                inner = width // 4
                sizes = [(inputs, inner, 1), (inner, inner, 3), (inner, width, 1)]
                sizes = sizes if small else [(inputs, width, 3), (width, width, 3)]
                for number, (a, b, size) in enumerate(sizes, 1):
                    self.conv(f"{name}.conv{number}", a, b, size)
                    norm(f"{name}.norm{number}", b)
                if stage > 1 and block == 0:
                    self.conv(f"{name}.downsample.0", inputs, width, 1)
                    norm(f"{name}.downsample.1", width)
                    if batch:  # saved twice: the shortcut's norm is an attribute of the block too
                        twice = f"{name}.norm{len(sizes) + 1}"
                        for kind in ("weight", "bias", "running_mean", "running_var"):
                            self.state[f"{twice}.{kind}"] = self.state[
                                f"{name}.downsample.1.{kind}"
                            ]
                        self.state[f"{twice}.num_batches_tracked"] = torch.tensor(7)
            before = width
        self.conv(f"{net}.conv2", widths[-1], outputs, 1)


def basic(hidden=128, *, start=True, gma=False, normed=False, widths=(64, 96, 128), features=256):
    layout = Layout()
    layout.encoder("fnet", widths, features, small=False, batch=False)
    layout.encoder("cnet", widths, hidden * (2 if start else 1), small=False, batch=True)
    block, options = "update_block", {"normed": normed}
    c, f = (2 * hidden, 3 * hidden // 2), (hidden, hidden // 2)
    layout.conv(f"{block}.encoder.convc1", 324, c[0], 1, **options)
    layout.conv(f"{block}.encoder.convc2", c[0], c[1], 3, **options)
    layout.conv(f"{block}.encoder.convf1", 2, f[0], 7, **options)
    layout.conv(f"{block}.encoder.convf2", f[0], f[1], 3, **options)
    layout.conv(f"{block}.encoder.conv", c[1] + f[1], hidden - 2, 3, **options)
    inputs = hidden * (4 if gma else 3)
    for number, kernel in (1, (1, 5)), (2, (5, 1)):
        for gate in "zrq":
            layout.conv(f"{block}.gru.conv{gate}{number}", inputs, hidden, *kernel, **options)
    layout.conv(f"{block}.flow_head.conv1", hidden, min(256, 2 * hidden), 3, **options)
    layout.conv(f"{block}.flow_head.conv2", min(256, 2 * hidden), 2, 3, **options)
    layout.conv(f"{block}.mask.0", hidden, 256, 3)
    layout.conv(f"{block}.mask.2", 256, 576, 1, gain=3.0)
    if gma:
        layout.conv("att.to_qk", hidden, 2 * hidden, 1, bias=False, gain=3.0)
        layout.state["att.pos_emb.rel_height.weight"] = layout.drawn(319, hidden, scale=1.0)
        layout.state["att.pos_emb.rel_ind"] = torch.arange(4)
        layout.conv(f"{block}.aggregator.to_v", hidden, hidden, 1, bias=False, normed=normed)
        layout.state[f"{block}.aggregator.gamma"] = torch.tensor([0.7])
    return layout.state


def small():
    layout = Layout()
    layout.encoder("fnet", (32, 64, 96), 128, small=True, batch=False)
    layout.encoder("cnet", (32, 64, 96), 160, small=True, batch=False)
    layout.conv("update_block.encoder.convc1", 196, 96, 1)
    layout.conv("update_block.encoder.convf1", 2, 64, 7)
    layout.conv("update_block.encoder.convf2", 64, 32, 3)
    layout.conv("update_block.encoder.conv", 128, 80, 3)
    for gate in "zrq":
        layout.conv(f"update_block.gru.conv{gate}", 96 + 64 + 82, 96, 3)
    layout.conv("update_block.flow_head.conv1", 96, 128, 3)
    layout.conv("update_block.flow_head.conv2", 128, 2, 3)
    return layout.state


NARROW = {"hidden": 16, "widths": (8, 8, 12), "features": 16}
THESIS = {**NARROW, "start": False}
STATES = {
    "raft": basic(),
    "raft-small": small(),
    "gma": basic(gma=True, **NARROW),
    "deq-raft": basic(normed=True, **THESIS),
    "deq-gma": basic(gma=True, **THESIS),
}


def saved(path, state, rename=lambda name: f"module.{name}"):
    torch.save({rename(name): value for name, value in state.items()}, path)
    return path


# --- the forward pass, stated plainly -------------------------------------------------------------


def plain(state):
    """Weights instead of lengths and directions."""
    found = dict(state)
    for name in [name for name in state if name.endswith(".weight_v")]:
        v, g = found.pop(name), found.pop(name[:-1] + "g")
        found[name[:-2]] = v / v.flatten(1).norm(dim=1)[:, None, None, None] * g
    return found


def conv(s, name, x, stride=1):
    weight = s[f"{name}.weight"]
    padding = weight.shape[2] // 2, weight.shape[3] // 2
    return F.conv2d(x, weight, s.get(f"{name}.bias"), stride, padding)


def encode(s, net, x):
    def norm(name, x):
        if f"{net}.norm1.weight" in s:
            mean, var = s[f"{name}.running_mean"], s[f"{name}.running_var"]
            return F.batch_norm(x, mean, var, s[f"{name}.weight"], s[f"{name}.bias"])
        return F.instance_norm(x) if net == "fnet" else x

    x = F.relu(norm(f"{net}.norm1", conv(s, f"{net}.conv1", x, 2)))
    for stage in (1, 2, 3):
        for block in (0, 1):
            name, y = f"{net}.layer{stage}.{block}", x
            stride = 2 if stage > 1 and block == 0 else 1
            count = 3 if f"{name}.conv3.weight" in s else 2
            for number in range(1, count + 1):
                at = stride if number == count - 1 else 1
                y = F.relu(norm(f"{name}.norm{number}", conv(s, f"{name}.conv{number}", y, at)))
            if stride == 2:
                x = norm(f"{name}.downsample.1", conv(s, f"{name}.downsample.0", x, 2))
            x = F.relu(x + y)
    return conv(s, f"{net}.conv2", x)


def look_up(volume, places, radius):
    """Correlation around places (batch, 2, h, w), sampled by torch."""
    batch, _, h, w = places.shape
    steps = torch.arange(-radius, radius + 1.0)
    window = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1)
    found = []
    for level in range(4):
        image = volume.reshape(batch * h * w, 1, h, w)
        for _ in range(level):
            image = F.avg_pool2d(image, 2)
        at = places.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) / 2**level + window
        extent = torch.tensor([image.shape[3] - 1, image.shape[2] - 1])
        values = F.grid_sample(image, 2 * at / extent - 1, align_corners=True)
        found.append(values.reshape(batch, h, w, -1))
    return torch.cat(found, -1).permute(0, 3, 1, 2)


def gru(s, h, x, number):
    def gate(letter, h):
        return conv(s, f"update_block.gru.conv{letter}{number}", torch.cat([h, x], 1))

    z, r = torch.sigmoid(gate("z", h)), torch.sigmoid(gate("r", h))
    return (1 - z) * h + z * torch.tanh(gate("q", r * h))


def restated(state, first, second, steps):
    """The flow after so many refinements, of images whose sides are multiples of 8."""
    s = plain(state)
    first, second = 2 * first / 255 - 1, 2 * second / 255 - 1
    u, v = encode(s, "fnet", first), encode(s, "fnet", second)
    batch, channels, h, w = u.shape
    volume = torch.einsum("bcij,bcmn->bijmn", u, v) / channels**0.5
    single = "update_block.gru.convz.weight" in s
    hidden = s[f"update_block.gru.convz{'' if single else 1}.bias"].shape[0]
    context = encode(s, "cnet", first)
    net = torch.zeros(batch, hidden, h, w)
    if context.shape[1] > hidden:
        net, context = torch.tanh(context[:, :hidden]), context[:, hidden:]
    context = F.relu(context)
    attention = None
    if "att.to_qk.weight" in s:
        q, k = conv(s, "att.to_qk", context).flatten(2).split(context.shape[1], 1)
        attention = torch.softmax(torch.einsum("bci,bcj->bij", q, k) / q.shape[1] ** 0.5, -1)
    rows, columns = torch.meshgrid(torch.arange(1.0 * h), torch.arange(1.0 * w), indexing="ij")
    here = torch.stack([columns, rows])
    radius = 3 if single else 4
    block, places = "update_block", here.repeat(batch, 1, 1, 1)
    for _ in range(steps):
        flow = places - here
        c = F.relu(conv(s, f"{block}.encoder.convc1", look_up(volume, places, radius)))
        if not single:
            c = F.relu(conv(s, f"{block}.encoder.convc2", c))
        f = F.relu(conv(s, f"{block}.encoder.convf1", flow))
        f = F.relu(conv(s, f"{block}.encoder.convf2", f))
        motion = F.relu(conv(s, f"{block}.encoder.conv", torch.cat([c, f], 1)))
        motion = torch.cat([motion, flow], 1)
        x = torch.cat([context, motion], 1)
        if attention is not None:
            value = conv(s, f"{block}.aggregator.to_v", motion).flatten(2)
            value = torch.einsum("bij,bcj->bci", attention, value).reshape(motion.shape)
            x = torch.cat([x, motion + s[f"{block}.aggregator.gamma"] * value], 1)
        for number in [""] if single else [1, 2]:
            net = gru(s, net, x, number)
        change = F.relu(conv(s, f"{block}.flow_head.conv1", net))
        places = places + conv(s, f"{block}.flow_head.conv2", change)
    flow = places - here
    if single:
        size = 8 * h, 8 * w
        return 8 * F.interpolate(flow, size, mode="bilinear", align_corners=True)
    mask = conv(s, f"{block}.mask.2", F.relu(conv(s, f"{block}.mask.0", net))) / 4
    mask = mask.reshape(batch, 1, 9, 8, 8, h, w).softmax(2)
    around = F.unfold(8 * flow, 3, padding=1).reshape(batch, 2, 9, 1, 1, h, w)
    return (mask * around).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(batch, 2, 8 * h, 8 * w)


# --- tests ---------------------------------------------------------------------------------------

TWELVE = {"solver": Picard(), "adjoint": Unrolled(max_evals=12)}


@pytest.mark.parametrize("name", STATES)
def test_twelve_refinements_are_those_of_a_plain_statement(name, tmp_path):
    path = saved(tmp_path / "weights.pth", STATES[name])
    model = load_checkpoint(path, **(TWELVE if name.startswith("deq") else {}))
    assert type(model.config) is eq.models.config_of(name)
    assert not model.training
    first, second = pair(1, 128, 136)
    found = model((first, second)).output
    with torch.no_grad():
        expected = restated(STATES[name], first, second, 12)
    assert 0.5 < expected.abs().max() < 100
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["raft-small", "gma"])
def test_unrolled_weights_are_solved_as_an_equilibrium(name, tmp_path):
    path = saved(tmp_path / "weights.pth", STATES[name])
    images = pair(1, 128, 128)
    twelve = load_checkpoint(path, correlation="on-demand")(images).output
    model = load_checkpoint(path, equilibrium=True, **TWELVE)
    assert model.config.start == "context" and not model.config.weight_norm
    torch.testing.assert_close(model(images).output, twelve, rtol=0, atol=1e-3)
    for solver in (eq.Anderson(max_evals=8), eq.Broyden(max_evals=8)):
        with torch.no_grad(), eq.nn.using(model, solver=solver):
            solution = model(images).solution
        assert (solution.stats.evals > 1).all()
        assert (solution.status != Status.NONFINITE).all()


def test_second_release_names_are_read(tmp_path):
    """The thesis' second release has its mask beside the update block, and names for attention."""

    def renamed(name):
        name = name.replace("update_block.mask.", "mask.").replace("att.", "attn.", 1)
        return "module." + name.replace("update_block.aggregator.", "update_block.gma.")

    one = load_checkpoint(saved(tmp_path / "one.pth", STATES["deq-gma"]))
    two = load_checkpoint(saved(tmp_path / "two.pth", STATES["deq-gma"], renamed))
    torch.testing.assert_close(two.state_dict(), one.state_dict(), rtol=0, atol=0)


def test_the_config_is_found_from_shapes():
    assert config_of(STATES["raft"]) == RAFTConfig(
        hidden=128, head=256, stages=(64, 96, 128), context_norm="batch"
    )
    config = config_of(STATES["deq-raft"])
    assert isinstance(config, DEQRAFTConfig) and not isinstance(config, DEQGMAConfig)
    assert config.weight_norm and config.hidden == 16 and config.start == "zeros"
    config = config_of(STATES["deq-gma"])
    assert isinstance(config, DEQGMAConfig) and not config.weight_norm


def without(state, *names):
    return {key: value for key, value in state.items() if key not in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: without(s, "fnet.layer2.0.conv1.weight", "update_block.gru.convq2.bias"),
            "those of a GMA with these fields; 2 missing: fnet.layer2.0.conv1.weight, "
            "update_block.gru.convq2.bias",
        ),
        (
            lambda s: {**s, "fnet.layer4.0.conv1.weight": torch.zeros(1)},
            "1 unexpected: fnet.layer4.0.conv1.weight",
        ),
        (
            lambda s: {**s, "cnet.layer2.0.norm3.bias": torch.full((8,), 3.0)},
            "1 unexpected: cnet.layer2.0.norm3.bias",
        ),
        (
            lambda s: {**s, "cnet.conv1.weight": torch.zeros(8, 1, 7, 7)},
            r"cnet.conv1.weight have the shape \(8, 1, 7, 7\) in the file, and \(8, 3, 7, 7\) in",
        ),
        (
            lambda s: without(s, "update_block.gru.convz1.bias"),
            "no weights of RAFT, GMA .* no update_block.gru.convz1.bias; there are",
        ),
        (
            lambda s: {**s, "update_block.encoder.convc1.weight": torch.zeros(8, 300, 1, 1)},
            "300 channels of correlation",
        ),
    ],
)
def test_weights_of_another_network_are_named(change, message, tmp_path):
    path = saved(tmp_path / "weights.pth", change(STATES["gma"]))
    with pytest.raises(WeightsError, match=f"weights.pth: .*{message}"):
        load_checkpoint(path)


def test_weights_of_another_width_change_nothing(tmp_path):
    model = eq.models.create("gma", hidden=8, stages=(8, 8, 12), features=16)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = read_state(saved(tmp_path / "weights.pth", STATES["gma"]))
    with pytest.raises(WeightsError, match=r"shape .* in the file"):
        eq.models.flow.weights.load_state(model, state)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


class Harmful:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": Harmful()}, r"torch.load\(weights_only=True\) reads"),
        ([torch.zeros(2)], "expected tensors by name, got list"),
        ({"epoch": 3}, "expected tensors by name, got int for 'epoch'"),
        ({}, "expected tensors by name, got dict"),
        (nn.Linear(2, 2), r"torch.load\(weights_only=True\) reads"),
    ],
)
def test_what_is_no_state_dict_is_refused_and_never_run(content, message, tmp_path, capsys):
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(WeightsError, match=message):
        read_state(tmp_path / "weights.pth")
    assert capsys.readouterr().out == ""


def test_damaged_and_missing_files(tmp_path):
    path = saved(tmp_path / "weights.pth", {"a": torch.zeros(1000)})
    whole = path.read_bytes()
    for content in (b"", whole[:-900], b"PF\n" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match=re.escape(str(path))):
            read_state(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.pth")


def test_options_are_those_of_the_config_and_of_the_layer(tmp_path):
    path = saved(tmp_path / "weights.pth", STATES["gma"])
    assert load_checkpoint(path, steps=3).config.steps == 3
    with pytest.raises(TypeError, match="no equilibrium layer to take solver"):
        load_checkpoint(path, solver=Picard())
    with pytest.raises(ValueError, match="correlation must be"):
        load_checkpoint(path, correlation="sparse")
