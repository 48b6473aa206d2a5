"""Build the operators against the torch that is installed: `pip install --no-build-isolation .`"""

from setuptools import setup

try:
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    raise SystemExit(
        "equilibria-kernels is built against the installed torch: install torch >= 2.10 "
        "and a C++ compiler, then `pip install --no-build-isolation ./kernels`"
    ) from error

FLAGS = [
    "-O3",
    "-std=c++17",
    "-fopenmp-simd",
    "-ffp-contract=off",  # ratios round as torch rounds them
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-DTORCH_TARGET_VERSION=0x020a000000000000",  # torch 2.10
]

setup(
    ext_modules=[
        CppExtension(
            "equilibria_kernels._operators",
            ["csrc/operators.cpp"],
            extra_compile_args={"cxx": FLAGS},
            extra_link_args=["-s"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
