"""A mistake in what is typed is one line that names it, and nothing is written."""

import re
import shlex
import shutil

import pytest

from applications import needs

MISTAKES = {
    "": [
        ("trian", "did you mean 'train'?"),
        ("recipes mnits", "did you mean 'mnist'?"),
        ("completion csh", "shell must be one of bash, zsh, fish; got 'csh'"),
        ("--import", "--import expects a Python file"),
        ("--import --help", "--import expects a Python file"),
        ("--import=nowhere.py recipes", "there is no file nowhere.py"),
        ("--import=no_such_module recipes", "no_such_module: ModuleNotFoundError"),
        ("reproduce --scale gpuu", "--scale must be one of cpu, gpu; got 'gpuu'"),
        ("reproduce deq/growth --budget abc", "--budget expects a number, got 'abc' (see"),
    ],
    "train": [
        ("", "recipe"),
        ("digts", "no recipe 'digts'; did you mean 'digits'?"),
        ("nowhere.yaml", "no recipe file nowhere.yaml"),
        ("digits --solver.histroy 3", "did you mean 'solver.history'?"),
        ("digits --solver.history x", "solver.history: expected a whole number"),
        ("digits --solver.rtol -1", "solver: "),
        ("digits --batch_size 0", "batch_size must be at least 1"),
        ("digits --data_dir=. --batch_size 100000", "batch_size is 100000 but the run has only"),
        ("digits --task.data digitz", "digits"),
        ("digits --task.data nothere", "no data set is called 'nothere', nor any folder"),
        ("digits --adjoint.name Shine", "give --solver.name Broyden"),
        ("digits --adjoint.name Unrolled --solver.name NewtonKrylov", "adjoint is Unrolled"),
        ("digits --optimizer.lr 1e30", "the gradient is not finite"),
        ("digits --seeds 1 1", "--seeds names a seed twice: 1 1"),
        ("digits --seeds 1 --seed 2", "--seed and --seeds were both given"),
        ("digits --seeds 1 --extend 2", "--seeds needs a recipe"),
        ("digits --out ''", "--out is empty"),
        ("digits --data=", "--data is empty"),
        ("digits --data-dir somewhere", "--data-dir: there is no folder somewhere"),
        ("digits --batch-size 8 --batch_size=16", "--batch-size is given 2 times: give it once"),
        ("digits --model.width 8 --model.width 8", "--model.width is given 2 times: give it once"),
        (f"digits --model.width 1{'0' * 5000}", "model.width: expected a whole number"),
        (f"digits --model.width {10**23}", "expected a whole number up to 4,294,967,295"),
        (f"digits --epochs {10**30}", "epochs: expected a whole number up to 4,294,967,295"),
        ("digits --optimizer.lr 1e400", "lr must be positive and finite; got inf"),
        (f"digits --model.width {4 * 10**9}", "out of memory"),
        ("./k_a --resume", "there is no run folder ./k_a to resume"),
        ("nowhere/k_a --resume", "there is no run folder nowhere/k_a to resume"),
        ("k_a --resume", "there is no run folder k_a to resume"),
        ("digits --resume --out none", "there is no run folder"),
        (". --resume", "is not a run folder: it has no recipe.yaml"),
        ("RUN --resume --optimizer.lr 0.5", "--optimizer.lr 0.005 there, 0.5 here"),
        ("RUN --resume --solver.name Broyden", "--solver.name Auto there"),
        ("RUN --resume --epochs 5", "To train on, use --extend 3"),
        ("RUN --resume --out elsewhere", "leave --out out"),
        ("RUN --extend 0", "--extend must be 1 or more epochs; got 0"),
        ("RUN --extend some", "--extend"),
        ("RUN", "is a folder, not a recipe: to go on with the run in it, add --resume"),
    ],
    "evaluate": [
        ("", "run"),
        ("''", "an argument is empty"),
        ("nowhere", "no run folder nowhere"),
        ("nowhere --data_dri x", "did you mean '--data-dir'?"),
        ("nowhere --data_dir x", "--data-dir: there is no folder x"),
        ("nowhere --data_dir .", "no run folder nowhere"),
        ("nowhere --data-dir .", "no run folder nowhere"),
        ("r --split test --split=train", "--split is given 2 times: give it once"),
        ("RUN --device abacus", "'abacus' is not a device"),
        ("RUN --solver newton", "--solver must be one of neural, Auto"),
        ("RUN --solver neural", "train one with `equilibria distill"),
        ("RUN --budgets 4", "--budgets is for equilibrium language models: the task of"),
        ("RUN --budgets", "the task of this run is ImageClassification"),
        ("RUN --no-baselines", "--no-baselines is for language models and others that are"),
    ],
    "report": [
        ("", "run"),
        ("a ''", "an argument is empty"),
        ("r --no-doctor --no-doctor", "--no-doctor is given 2 times: give it once"),
        ("RUN RUN", "a run is named twice"),
        ("RUN --no-doctor --no-gallery --out nowhere/page.html", "nowhere"),
    ],
    "doctor": [
        ("", "run"),
        ("nowhere", "nowhere"),
        ("RUN --samples 0", "--samples must be 1 or more; got 0"),
        ("RUN --starts -1", "--starts must be 1 or more; got -1"),
        ("RUN --samples many", "samples"),
        ("RUN --sampels 3", "samples"),
    ],
    "gradients": [
        ("nothing", "there is no run folder"),
        ("RUN --floor 2", "--floor must be a cosine"),
        ("RUN --samples 0", "--samples must be 1 or more"),
        ("RUN --repeats 0", "--repeats must be 1 or more"),
        ("RUN --split nowhere", "there is no split 'nowhere'"),
    ],
    "distill": [
        ("RUN --batches 1", "--batches must be 2 or more; got 1"),
        ("RUN --batch-size 0", "--batch-size must be 1 or more"),
        ("RUN --horizon 0", "--horizon must be at least 1; got 0"),
        ("RUN --start-steps -1", "--start-steps must not be negative"),
        ("RUN --budget 0", "--budget must be 1 or more"),
        ("RUN --mixer mean", "mean"),
        ("RUN --batch-size 2000", "has only 1,347 training samples: take at most --batch-size"),
        ("RUN --batch-size 1000", "the data give 1 batches, but at least 2 are needed"),
        ("RUN --tune --mixer gram", "--mixer and --tune exclude each other"),
        ("RUN --tune --budget 9", "--budget and --tune exclude each other"),
        ("RUN --tune --overwrite", "--overwrite and --tune exclude each other"),
    ],
    "initialize": [
        ("", "recipe"),
        ("nowhere", "no recipe 'nowhere'"),
        ("digits --ensembles gausian", "did you mean 'gaussian'?"),
        ("digits --scales 0", "positive and finite; got 0"),
        ("digits --scales 1 -2", "positive and finite; got -2"),
        ("digits --scales inf", "inf"),
        ("digits --scales large", "scales"),
        ("digits --draws 0", "draws must be 1 or more; got 0"),
        ("digits --samples 0", "samples must be 1 or more; got 0"),
        ("digits --samples 100000", "samples is 100000"),
        ("digits --solver.histroy 3", "did you mean 'solver.history'?"),
        ("""digits --initialization.layers '["*nothing*"]'""", "no recurrent weight matches"),
        ("digits --model.name monotone-dense", "no recurrent weight"),
        ("digits --model.name resnet --solver.name null --adjoint.name null", "explicit network"),
    ],
    "export": [
        ("nothing", "there is no run folder"),
        ("RUN --evals 0", "--evals must be 1 or more; got 0"),
        ("RUN --evals x", "--evals"),
        ("RUN --samples -1", "--samples must be 1 or more; got -1"),
        ("RUN --tolerance -1", "--tolerance must lie in [0, 1); got -1"),
        ("RUN --split dev", "--split must be one of "),
        ("RUN --format tflite", "--format must be one of onnx, pt2; got 'tflite'"),
        ("RUN --weights int4", "--weights must be one of float32, int8"),
        ("RUN --weights int8", "int8 weights are for ONNX"),
        ("RUN --form stream", "Dense is no recurrent model"),
        ("RUN --out nowhere/net.pt2", "there is no folder nowhere"),
        ("RUN --out .", "is a folder"),
        ("RUN --out net.onnx", "--format is pt2, and --out net.onnx ends in .onnx"),
    ],
}
SEEDS = ("train digits --seeds", "generate r --seed", "doctor r --seed", "distil r --seed")
# Some before they have looked for a run.
DEVICES = (
    *("train digits", "initialise digits", "evaluate RUN"),
    *("doctor nowhere", "memory nowhere", "gradients nowhere"),
)
MISTAKES[""] += [
    (f"{words} {seed}", f"{words.split()[-1]} must be between 0 and 4,294,967,295; got {seed}")
    for words in SEEDS
    for seed in ("-1", "4294967296", "9223372036854775808")
]
MISTAKES[""] += [(f"{words} --device cuda:9", "cuda:9") for words in (*DEVICES, "generate RUN")]
CASES = [
    (f"{name} {words}".strip(), said) for name, rows in MISTAKES.items() for words, said in rows
]


def marks(words):
    return needs("language") if words.startswith("generate") else ()


@pytest.fixture(scope="module")
def run(digits_run, tmp_path_factory):
    """A copy of a run on digits, which no mistake changes."""
    return shutil.copytree(digits_run, tmp_path_factory.mktemp("mistakes") / "digits")


@pytest.mark.parametrize(
    ("words", "said"),
    [pytest.param(*case, marks=marks(case[0]), id=case[0][:60]) for case in CASES],
)
def test_a_mistake_is_one_line_and_leaves_nothing(words, said, run, fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = [str(run) if word == "RUN" else word for word in shlex.split(words)]
    if argv[0] == "export" and "--format" not in argv:
        argv += ["--format", "pt2"]

    def files():
        return {
            p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file() and p.name != ".lock"
        }

    before = files()
    line = fails(*argv)
    assert said in line and not re.search(r"\beq\.", line)
    assert "--device" not in argv or "choose from cpu" in line
    assert files() == before and not list(tmp_path.iterdir())
