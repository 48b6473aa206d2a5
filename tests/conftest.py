"""What all tests share.

None downloads, and those that read real data sets are marked `data`. Each runs in an empty folder
of its own, with a home of its own; one that would write to the checkout or to the user's home, or
read what the checkout ignores, fails (`guard/sitecustomize.py`), in the processes that it starts
too.
"""

import functools
import gc
import importlib.util
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock

import applications

ROOT = Path(__file__).parents[1]
NUMBERS = itertools.count()
GUARD = Path(__file__).parent / "guard" / "sitecustomize.py"
_spec = importlib.util.spec_from_file_location("equilibria_guard", GUARD)
guard = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(guard)

pytest_plugins = ["shared_data", "shared_runs", "shared_studies"]
"""Fixtures of several folders, in `helpers`."""

# Files that test several applications together, or studies of the papers with them.
TOGETHER = {
    "papers/test_bench_peers.py": ["graph"],
    "papers/test_ernn_studies.py": ["recurrent"],
    "papers/test_flow_studies.py": ["flow"],
    "papers/test_gpu_studies.py": ["language"],
    "papers/test_inexact_studies.py": ["language"],
    "papers/test_initialisation_trainings.py": ["language", "synthetic"],
    "papers/test_language_studies.py": ["language", "synthetic"],
    "papers/test_neural_studies.py": ["language", "synthetic"],
    "papers/test_representation_studies.py": ["signal"],
    "zoo/language/test_recurrent.py": ["recurrent"],
    "zoo/synthetic/test_copying.py": ["language"],
    "zoo/synthetic/test_drawn_tasks.py": ["recurrent"],
    "zoo/synthetic/test_synthetic_recipes.py": ["language", "recurrent"],
}
collect_ignore = [file for file, names in TOGETHER.items() if not applications.present(*names)]

# What a test asserts is true of the CPU, unless it is marked `device`.
if "EQUILIBRIA_TEST_DEVICE" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Hypothesis keeps notes in the checkout otherwise; the other processes of a run share the folder.
if "HYPOTHESIS_STORAGE_DIRECTORY" not in os.environ:
    NOTES = tempfile.TemporaryDirectory(prefix="hypothesis-")
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = NOTES.name


def ask_git(*words: str, given: str = "") -> list[str]:
    """The paths that a command of git prints; git ends with 1 where it finds none."""
    command = ["git", *words]
    run = subprocess.run(command, cwd=ROOT, input=os.fsencode(given), capture_output=True)
    if run.returncode > 1:
        raise OSError(f"{' '.join(command)}: {os.fsdecode(run.stderr)}")
    return [os.fsdecode(name) for name in run.stdout.split(b"\0") if name]


def tracked_and_ignored() -> tuple[list[str] | None, list[str] | None]:
    """The files of the checkout that git does not ignore, and the folders that it does.

    None for each where the checkout is not the top of a repository: an unpacked archive.
    """
    try:
        if not (ROOT / ".git").exists():
            return None, None
        files = [*map(Path, ask_git("ls-files", "-z", "-co", "--exclude-standard"))]
        others = ask_git("ls-files", "-z", "-oi", "--exclude-standard", "--directory")
        ignored = ask_git("check-ignore", "-z", "--stdin", given="\0".join(others))
    except OSError:
        return None, None
    folders = {str(folder) for file in files for folder in file.parents}
    return sorted({*map(str, files), *folders}), [name for name in ignored if name.endswith("/")]


@pytest.fixture(autouse=True, scope="session")
def _guarded_folder(tmp_path_factory):
    """A folder and a home for these tests, and a guard around the checkout and the user's home."""
    folder = tmp_path_factory.mktemp("guarded")
    real_home = os.path.realpath(Path.home())
    base = tmp_path_factory.getbasetemp()
    own = [base.parent if "PYTEST_XDIST_WORKER" in os.environ else base, tempfile.gettempdir()]
    own = [*map(str, own), sys.prefix, sys.base_prefix]
    readable, ignored = tracked_and_ignored()
    settings = {
        "checkout": str(ROOT),
        "home": real_home if real_home != "/" and Path(real_home).is_dir() else None,
        "allowed": sorted({*own, *map(os.path.realpath, own)}),
        "readable": readable,
        "unlisted": ignored,
        "offences": str(folder / "offences.txt"),
    }
    (folder / "guard.json").write_text(json.dumps(settings))
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in {
            "HOME": "home",
            "XDG_CACHE_HOME": "home/.cache",
            "XDG_CONFIG_HOME": "home/.config",
            "MPLCONFIGDIR": "home/.config/matplotlib",
        }.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            patch.setenv(variable, str(folder / name))
        patch.setenv("EQUILIBRIA_GUARD", str(folder / "guard.json"))
        patch.setenv("PYTHONPATH", str(GUARD.parent), prepend=os.pathsep)
        patch.chdir(folder)
        hook = guard.install(settings)
        yield folder
        hook.active = False


def take_offences(folder: Path) -> str:
    """What this process and its children were refused since it was last asked."""
    try:
        text = (folder / "offences.txt").read_text("utf-8")
    except FileNotFoundError:
        return ""
    (folder / "offences.txt").unlink()
    return text


@pytest.fixture(autouse=True)
def _own_folder(_guarded_folder):
    """An empty working directory for each test; it fails if it tried what the guard refuses."""
    before, folder = Path.cwd(), _guarded_folder / str(next(NUMBERS))
    folder.mkdir()
    os.chdir(folder)
    yield
    os.chdir(before)
    if not any(folder.iterdir()):
        folder.rmdir()
    assert not take_offences(_guarded_folder)


@functools.cache
def inductor_problem() -> str | None:
    """Why torch.compile's own backend makes no code here; None if it does.

    It needs a C++ compiler; and it writes code for the processor that it finds, which does not fit
    torch's headers where ATEN_CPU_CAPABILITY asks for less.
    """
    if asked := os.environ.get("ATEN_CPU_CAPABILITY"):
        return f"ATEN_CPU_CAPABILITY is {asked}"
    import torch

    try:
        torch.compile(lambda x: torch.tanh(x) + x.sin())(torch.ones(64))
    except Exception as error:
        return str(error).strip().splitlines()[0]
    finally:
        torch.compiler.reset()
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    gc.disable()  # collecting makes a million objects that stay
    try:
        return (yield)
    finally:
        gc.freeze()  # and that no later search for garbage need visit
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("device"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device, which `make test-device` shows to the tests")
    if "inductor" in item.name and (problem := inductor_problem()):
        pytest.skip(f"torch.compile makes no code here: {problem}")
    if item.get_closest_marker("data") and not os.environ.get("EQUILIBRIA_DATA"):
        pytest.skip("EQUILIBRIA_DATA names no folder with data, and tests download nothing")


@pytest.fixture(scope="session")
def built_once(tmp_path_factory):
    """Returns `build(name, fill)`: a folder that `fill(folder)` filled, once for all processes.

    For what is expensive to make and only read, such as a trained run. A test that changes it
    copies it first: `shutil.copytree(folder, tmp_path / "run")`.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # each process has a folder of its own in it

    def build(name, fill):
        folder = root / "built-once" / name
        folder.parent.mkdir(exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (done := Path(f"{folder}.done")).exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return build


@pytest.fixture(scope="module")
def drawn_once():
    """Panels of the same figures are drawn once: matplotlib takes most of a page's time.

    It returns the drawings; empty it to have panels drawn again.
    """
    from equilibria.run.report import plots, sections, svg

    drawn = {}

    def inline(panel, *, wide=False):
        key = repr(panel), wide
        if key not in drawn:
            drawn[key] = svg.inline(panel, wide=wide)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "inline", inline)
        patch.setattr(sections, "inline", inline)
        yield drawn


@pytest.fixture
def unsaved(monkeypatch):
    """Charts are drawn on axes, and not written out, which takes the most time of drawing."""
    from equilibria.run.report import svg

    monkeypatch.setattr(svg, "_save", lambda figure: '<svg viewBox="0 0 1 1"></svg>')


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    """A test that would reach another machine fails, on a machine with a network too."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def check(host):
        if host not in (None, "", "localhost", "127.0.0.1", "::1", socket.gethostname()):
            raise OSError(f"a test asked for {host}: tests use no network")

    def local_connect(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            check(address[0])
        return connect(self, address)

    def local_resolve(host, *args, **options):
        check(host.decode() if isinstance(host, bytes) else host)
        return resolve(host, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", local_connect)
        patch.setattr(socket, "getaddrinfo", local_resolve)
        yield
