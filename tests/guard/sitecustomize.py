"""Keep the tests out of the checkout and out of the home: whoever writes there, or reads what the
checkout ignores, gets an error.

Python imports this file by itself, for its name, in every process that a test starts:
`tests/conftest.py` puts its folder on PYTHONPATH, and EQUILIBRIA_GUARD names a JSON file that says
what is guarded: the checkout, the home (null if there is none), folders below them that may be used
all the same, which files of the checkout may be read and which folders not listed (null: all may),
and where offences are noted, so that a test whose code catches the error fails all the same. The
guard sees what Python opens; what a C library or another program writes, `tests/commands.py` finds.
"""

import json
import os
import sys

WRITES = {
    "shutil.rmtree": (0,),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "os.chmod": (0,),
}
READS = {"os.listdir": (0,), "os.scandir": (0,)}
CREATING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CACHES = ("__pycache__", ".git", ".pytest_cache", ".mypy_cache")


class Guard:
    """An audit hook: raises PermissionError at a write or a read that the tests must not do."""

    def __init__(self, checkout, home, allowed, readable, unlisted, offences):
        self.checkout, self.home, self.offences = checkout, home, offences
        self.unlisted = tuple(unlisted or ())
        self.allowed = tuple(allowed)
        self.readable = None if readable is None else frozenset(readable)
        self.active = True  # an audit hook cannot be taken away

    def __call__(self, event, arguments):
        if not self.active:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike):
                (self.write if flags and flags & CREATING else self.read)(path)
        elif event in WRITES:
            for place in WRITES[event]:
                self.write(arguments[place])
        elif event in READS and isinstance(arguments[0], str | bytes | os.PathLike):
            self.list(arguments[0])

    def inside(self, path, root):
        """The path below `root`, unless it is elsewhere or may be used: "" for `root` itself."""
        if root is None or isinstance(path, int):
            return None
        full = os.path.abspath(os.fsdecode(path))
        if full != root and not full.startswith(root + os.sep):
            return None
        for folder in self.allowed:
            below = (folder + os.sep).startswith(root + os.sep)
            if below and (full + os.sep).startswith(folder + os.sep):
                return None
        below = full[len(root) + 1 :]
        return None if any(part in CACHES for part in below.split(os.sep)) else below

    def write(self, path):
        for root in (self.checkout, self.home):
            if self.inside(path, root) is not None:
                self.refuse(f"a test would write {os.fsdecode(path)}")

    def read(self, path):
        below = self.inside(path, self.checkout)
        if below and self.readable is not None and below not in self.readable:
            self.refuse(f"a test would read {os.fsdecode(path)}, which is not tracked")

    def list(self, path):
        below = self.inside(path, self.checkout)
        if below and (below + os.sep).startswith(self.unlisted):
            self.refuse(f"a test would read {os.fsdecode(path)}, which is not tracked")

    def refuse(self, offence):
        with open(self.offences, "a", encoding="utf-8") as file:
            file.write(f"{offence}\n")
        raise PermissionError(f"{offence}: use tmp_path")


def install(settings):
    """Guard from now on, in this process, what the settings name."""
    hook = Guard(**settings)
    sys.addaudithook(hook)
    return hook


if "EQUILIBRIA_GUARD" in os.environ:
    with open(os.environ["EQUILIBRIA_GUARD"]) as settings:
        install(json.load(settings))
