"""Run the numerical tests under each way in which a processor may round.

    python tests/settings.py [PATH ...]

The last digits of a matrix product depend on the instructions that the BLAS chose, on those that
torch's own kernels use, and on the number of threads. Each of these is varied by itself with the
others left alone, then a few are combined. Prints the processor, then for each setting what passed
and failed; exits with 1 if anything failed. Settings that this processor cannot run are named and
left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

NUMERICAL = ("tests/solve", "tests/nn", "tests/theory", "tests/stability")
VARIABLES = ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS")
CAPABILITIES = ("default", "avx2", "avx512")

SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"MKL_CBWR": "AVX2"},
    {"MKL_CBWR": "AVX2,STRICT"},
    {"MKL_CBWR": "COMPATIBLE"},
    {"ATEN_CPU_CAPABILITY": "default"},
    {"ATEN_CPU_CAPABILITY": "avx2"},
    {"ATEN_CPU_CAPABILITY": "avx512"},
    {"OMP_NUM_THREADS": "2"},
    {"MKL_CBWR": "AVX2,STRICT", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"},
    {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"},
)


def processor() -> str:
    """The processor's name, as the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def of_torch(expression: str) -> str:
    """What torch says of itself where nothing is set."""
    program = f"import torch; print({expression})"
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def named(setting: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.items()) or "nothing set"


def missing(setting: dict[str, str], capability: str, mkl: bool) -> str | None:
    """Why this processor cannot run a setting; None if it can."""
    wanted = setting.get("ATEN_CPU_CAPABILITY", "default")
    known = capability.lower()
    if wanted != "default" and (
        known not in CAPABILITIES or CAPABILITIES.index(wanted) > CAPABILITIES.index(known)
    ):
        return f"torch finds {capability} here"
    if "MKL_CBWR" in setting and not mkl:
        return "torch was built without MKL"
    return None


def run(setting: dict[str, str], paths: list[str]) -> tuple[bool, str, list[str]]:
    """Runs the tests; returns whether all passed, the counts, and the names of what failed."""
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **setting}
    workers = max(1, (os.cpu_count() or 1) // int(environment["OMP_NUM_THREADS"]))
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-m", "not slow"]
    done = subprocess.run(
        [*command, "--numprocesses", str(workers), *paths],
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    failed = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    return done.returncode == 0, lines[-1].strip("= "), failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("paths", nargs="*", default=list(NUMERICAL), help="test files or folders")
    paths = parser.parse_args().paths
    capability = of_torch("torch.backends.cpu.get_cpu_capability()")
    mkl = of_torch("torch.backends.mkl.is_available()") == "True"
    print(f"processor: {processor()}, {os.cpu_count()} cores")
    print(f"torch: {of_torch('torch.__version__')}, {capability}, {'MKL' if mkl else 'no MKL'}")
    print(f"tests: {' '.join(paths)}\n", flush=True)
    good = True
    for setting in SETTINGS:
        reason = missing(setting, capability, mkl)
        if reason:
            print(f"left out  {named(setting)}: {reason}", flush=True)
            continue
        start = time.perf_counter()
        passed, counts, failed = run(setting, paths)
        good = good and passed
        counts = re.sub(r" in .*", "", counts)
        seconds = time.perf_counter() - start
        print(f"{'passed' if passed else 'FAILED':9} {named(setting)}: {counts}, {seconds:.0f} s")
        for line in failed:
            print(f"          {line}")
        sys.stdout.flush()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
