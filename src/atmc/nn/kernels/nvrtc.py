"""Compile CUDA C++ when it is first needed, by the `libnvrtc` that comes with PyTorch, and cache it on disk.

Compiling takes a core some seconds per source; `ahead` starts several in the background. Launches go to the current
stream and can be captured in a CUDA graph. `ATMC_CACHE` names another cache folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atmc.common.atomic_files import write_file

DIGEST = 32  # bytes of SHA-256 in front of what is kept
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernel:
    """A function on the device: `kernel(grid, block, *arguments)`; tensors go as addresses."""

    def __init__(self, function: ctypes.c_void_p, name: str) -> None:
        self._function, self.name = function, name
        self._shared = 0

    def allow_shared(self, size: int) -> Kernel:
        """Ask for more than 48 KiB of shared memory in launches to come."""
        _check(_driver().cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED, size), self.name)
        self._shared = size
        return self

    def __call__(self, grid: tuple[int, ...], block: int, *arguments: Tensor | int | None) -> None:
        values: list[Any] = [
            ctypes.c_int(a) if isinstance(a, int) else ctypes.c_void_p(0 if a is None else a.data_ptr())
            for a in arguments
        ]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        width, height = (*grid, 1)[:2]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        launch = _driver().cuLaunchKernel
        _check(launch(self._function, width, height, 1, block, 1, 1, self._shared, stream, addresses, None), self.name)


class Module:
    """Compiled source on one device."""

    def __init__(self, source: str, defines: dict[str, int], device: torch.device) -> None:
        options = _options(defines, device)
        begun = _begun.pop((source, *options), None)
        image = _cached(source, options) if begun is None else begun.result()
        self._handle = ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # makes sure that PyTorch's context is the current one
            _check(_driver().cuModuleLoadData(ctypes.byref(self._handle), image), "loading a module")

    def kernel(self, name: str) -> Kernel:
        function = ctypes.c_void_p()
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), self._handle, name.encode()), name)
        return Kernel(function, name)


_begun: dict[tuple[str, ...], Future[bytes]] = {}


def ahead(sources: Iterable[tuple[str, dict[str, int]]], device: torch.device) -> None:
    """Begin to compile sources with their defines, all at once and in the background. `Module` waits for its own."""
    work = [(source, _options(defines, device)) for source, defines in sources]
    pool = ThreadPoolExecutor(len(work), "compile")
    for source, options in work:
        _begun[source, *options] = pool.submit(_cached, source, options)
    pool.shutdown(wait=False)


def _options(defines: dict[str, int], device: torch.device) -> list[str]:
    major, minor = torch.cuda.get_device_capability(device)
    target = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    return [f"--gpu-architecture={target}", "--std=c++17", *(f"-D{k}={v}" for k, v in defines.items())]


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _compiler() -> Any:
    major = (torch.version.cuda or "0").split(".")[0]
    names = [f"libnvrtc.so.{major}", "libnvrtc.so"]
    # PyTorch's wheels bring it along in a package of its own beside torch.
    for folder in (Path(torch.__file__).parent.parent / "nvidia").glob("*/lib"):
        names += [str(path) for path in sorted(folder.glob("libnvrtc.so*")) if "builtins" not in path.name]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("no libnvrtc beside this PyTorch")


def _cached(source: str, options: list[str]) -> bytes:
    """The machine code, from the disk if it was made before by the same compiler."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _compiler().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    key = hashlib.sha256("\0".join([source, *options, f"{major.value}.{minor.value}"]).encode()).hexdigest()[:32]
    home = os.environ.get("ATMC_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "atmc")
    path = Path(os.path.expanduser(home)) / "kernels" / f"{key}.cubin"
    try:
        kept = path.read_bytes()
    except OSError:
        kept = b""
    # The driver is told no length: what a full disk or a power cut left of a file must not reach it.
    if kept[DIGEST:] and hashlib.sha256(kept[DIGEST:]).digest() == kept[:DIGEST]:
        return kept[DIGEST:]
    image = _compile(source, options)
    if path.parts[0] != "~":  # else there is no home
        _keep(path, hashlib.sha256(image).digest() + image)
    return image


def _keep(path: Path, content: bytes) -> None:
    """Write a file atomically; if that fails, the code is compiled again next time."""
    with contextlib.suppress(OSError):
        write_file(path, content)


def _compile(source: str, options: list[str]) -> bytes:
    lib = _compiler()
    program = ctypes.c_void_p()
    lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"atmc.cu", 0, None, None)
    flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = lib.nvrtcCompileProgram(program, len(options), flags)
    size = ctypes.c_size_t()
    if failed:
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"a CUDA kernel does not compile: {log.value.decode(errors='replace')[:2000]}")
    lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetCUBIN(program, image)
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return image.raw


def _check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA: {what}: {(text.value or b'unknown error').decode()}")
