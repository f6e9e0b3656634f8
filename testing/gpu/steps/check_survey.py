# SPDX-License-Identifier: Apache-2.0
"""What the host and the driver say, and what the driver answers to calls that Waybill relies on.

Each section runs in a process of its own. All results are facts: nothing here is right or wrong.
"""

import ctypes
import json
import mmap
import os
import shutil
import sys
import threading
from pathlib import Path

import checks
from driver import ALLOCATED_PART, OK, Driver, ref, size, u64

DEVICE_ATTRIBUTES = {
    16: "MULTIPROCESSOR_COUNT",
    20: "COMPUTE_MODE",
    40: "ASYNC_ENGINE_COUNT",
    41: "UNIFIED_ADDRESSING",
    75: "COMPUTE_CAPABILITY_MAJOR",
    76: "COMPUTE_CAPABILITY_MINOR",
    90: "COMPUTE_PREEMPTION_SUPPORTED",
    100: "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
    102: "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    103: "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    110: "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
    115: "MEMORY_POOLS_SUPPORTED",
    116: "GPU_DIRECT_RDMA_SUPPORTED",
    117: "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS",
    118: "GPU_DIRECT_RDMA_WRITES_ORDERING",
    119: "MEMPOOL_SUPPORTED_HANDLE_TYPES",
    124: "DMA_BUF_SUPPORTED",
    125: "IPC_EVENT_SUPPORTED",
    128: "HANDLE_TYPE_FABRIC_SUPPORTED",
    133: "MPS_ENABLED",
    134: "HOST_NUMA_ID",
}
POINTER_ATTRIBUTES = {
    2: "MEMORY_TYPE",
    7: "BUFFER_ID",
    8: "IS_MANAGED",
    9: "DEVICE_ORDINAL",
    10: "IS_LEGACY_CUDA_IPC_CAPABLE",
    13: "MAPPED",
    14: "ALLOWED_HANDLE_TYPES",
    15: "IS_GPU_DIRECT_RDMA_CAPABLE",
    18: "MAPPING_SIZE",
    19: "MAPPING_BASE_ADDR",
    20: "MEMORY_BLOCK_ID",
}


def say(name, value):
    print(json.dumps([name, str(value)]), flush=True)


kept = []  # Mappings that stay until the process ends.


def address_of(mapping):
    kept.append(mapping)
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


# --- the sections ---


def host():
    for path in (
        "/proc/driver/nvidia/version",
        "/sys/module/nvidia/version",
        "/proc/driver/nvidia/params",
    ):
        text = Path(path).read_text().strip() if Path(path).exists() else "is not there"
        say(path, text[:1500])
    say(
        "devices",
        " ".join(sorted(str(path) for path in Path("/dev").glob("nvidia*"))) or "no /dev/nvidia*",
    )
    say(
        "infiniband",
        " ".join(sorted(os.listdir("/sys/class/infiniband")))
        if Path("/sys/class/infiniband").exists()
        else "none",
    )
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "CUDA_MODULE_LOADING",
        "CUDA_MPS_PIPE_DIRECTORY",
    ):
        say(name, os.environ.get(name, "not set"))
    say(
        "/dev/shm",
        f"{shutil.disk_usage('/dev/shm').free / 1e9:.1f} GB free"
        if Path("/dev/shm").exists()
        else "none",
    )
    for command in (
        ["nvidia-smi"],
        ["nvidia-smi", "topo", "-m"],
        ["nvidia-smi", "-q", "-d", "CLOCK,PERFORMANCE"],
    ):
        if shutil.which(command[0]):
            say(" ".join(command), checks.run(command, 10)[1][:4000])


def doctor():
    status, output = checks.run([sys.executable, "-m", "waybill", "doctor", "--json"], 20)
    try:
        for finding in json.loads(output[output.index("[") : output.rindex("]") + 1]):
            remedy = f" -> {finding['remedy']}" if finding.get("remedy") else ""
            say(f"doctor: {finding['subject']}", f"{finding['level']}: {finding['found']}{remedy}")
    except ValueError:
        say("doctor", f"{checks.ended(status, 20)}: {output}")


def attributes():
    driver, version, count = Driver(), ctypes.c_int(), ctypes.c_int()
    say("cuInit", driver("cuInit", 0))
    say("cuDriverGetVersion", f"{driver('cuDriverGetVersion', ref(version))}, {version.value}")
    say("cuDeviceGetCount", f"{driver('cuDeviceGetCount', ref(count))}, {count.value}")
    for ordinal in range(count.value):
        name, device = ctypes.create_string_buffer(128), ctypes.c_int()
        driver.must("cuDeviceGet", ref(device), ordinal)
        driver("cuDeviceGetName", name, 128, device)
        say(f"GPU {ordinal}", name.value.decode())
        for number, attribute in DEVICE_ATTRIBUTES.items():
            value = ctypes.c_int(-1)
            result = driver("cuDeviceGetAttribute", ref(value), number, device)
            say(f"GPU {ordinal}, {attribute} ({number})", value.value if result == OK else result)
    context = driver.context()
    del context
    free, total = size(), size()
    say(
        "cuMemGetInfo",
        f"{driver('cuMemGetInfo_v2', ref(free), ref(total))}, {free.value} of {total.value} bytes are free",
    )
    mode = ctypes.c_int(-1)
    say(
        "cuModuleGetLoadingMode",
        f"{driver('cuModuleGetLoadingMode', ref(mode))}, {mode.value} (1: eager, 2: lazy)",
    )


def widths():
    """How many bytes each attribute of a pointer writes."""
    driver = Driver()
    driver.context()
    memory = driver.allocate(3 << 20)
    for number, name in POINTER_ATTRIBUTES.items():
        canary = (ctypes.c_uint8 * 16)(*[0xAA] * 16)
        result = driver("cuPointerGetAttribute", canary, number, memory)
        written = max((i + 1 for i in range(16) if canary[i] != 0xAA), default=0)
        say(f"attribute {name} ({number})", f"{result}, {written} bytes: {bytes(canary).hex()}")


def _calls(driver, memory, other, stream, event, kernel, made):
    """Returns calls by their names; each gives its result in the context that is current, if any."""
    any_u64, any_size, file = u64(), size(), ctypes.c_int(-1)
    handle, ipc = u64(), (ctypes.c_uint8 * 64)()
    at = ctypes.c_void_p(address_of(mmap.mmap(-1, 1 << 16)))
    driver("cuMemRetainAllocationHandle", ref(handle), ctypes.c_void_p(made))
    driver("cuMemExportToShareableHandle", ref(file), handle, 1, u64())

    def created():
        wrong = [
            f"{call}: {result}"
            for call, result in driver.create()
            if call != "address" and result != OK
        ]
        return "; ".join(wrong) or OK

    calls = {
        "cuMemGetAddressRange": lambda: driver(
            "cuMemGetAddressRange_v2", ref(any_u64), ref(any_size), memory
        ),
        "cuPointerGetAttribute": lambda: driver("cuPointerGetAttribute", ref(any_u64), 7, memory),
        "cuEventQuery": lambda: driver("cuEventQuery", event),
        "cuStreamWaitEvent": lambda: driver("cuStreamWaitEvent", stream, event, 0),
        "cuMemcpyAsync": lambda: driver("cuMemcpyAsync", other, memory, size(4096), stream),
        "cuMemsetD8Async": lambda: driver(
            "cuMemsetD8Async", memory, ctypes.c_uint8(0), size(4096), stream
        ),
        "cuLaunchKernel of a CUkernel": lambda: driver.launch(kernel, stream),
        "cuStreamSynchronize": lambda: driver("cuStreamSynchronize", stream),
        "cuEventCreate": lambda: driver("cuEventCreate", ref(ctypes.c_void_p()), 2),
        "cuStreamCreate": lambda: driver("cuStreamCreate", ref(ctypes.c_void_p()), 1),
        "cuMemCreate to cuMemSetAccess": created,
        "cuMemRetainAllocationHandle": lambda: driver(
            "cuMemRetainAllocationHandle", ref(any_u64), ctypes.c_void_p(made)
        ),
        "cuMemExportToShareableHandle": lambda: driver(
            "cuMemExportToShareableHandle", ref(ctypes.c_int()), handle, 1, u64()
        ),
        "cuMemImportFromShareableHandle": lambda: driver(
            "cuMemImportFromShareableHandle", ref(any_u64), ctypes.c_void_p(file.value), 1
        ),
        "cuIpcGetMemHandle": lambda: driver("cuIpcGetMemHandle", ipc, memory),
        "cuMemGetHandleForAddressRange": lambda: driver(
            "cuMemGetHandleForAddressRange", ref(ctypes.c_int()), memory, size(2 << 20), 1, u64()
        ),
        "cuMemHostRegister": lambda: driver("cuMemHostRegister_v2", at, size(1 << 16), 0),
        "cuMemHostUnregister": lambda: driver("cuMemHostUnregister", at),
        "cuMemAlloc": lambda: driver("cuMemAlloc_v2", ref(any_u64), size(1 << 20)),
        "cuMemFree": lambda: driver("cuMemFree_v2", any_u64),
        "cuMemcpyDtoH": lambda: driver("cuMemcpyDtoH_v2", at, memory, size(4096)),
        "cuFlushGPUDirectRDMAWrites": lambda: driver("cuFlushGPUDirectRDMAWrites", 0, 200),
    }
    if kernel is None:
        del calls["cuLaunchKernel of a CUkernel"]
    return calls


def _objects(driver):
    stream = driver.stream()
    try:
        kernel = driver.kernel()
    except RuntimeError as error:
        say("a kernel", error)
        kernel = None
    made = dict(driver.create()).get("address")
    return (
        driver.allocate(2 << 20),
        driver.allocate(2 << 20),
        stream,
        driver.event(stream),
        kernel,
        made,
    )


def own_context():
    _in_context(lambda _, own: own)


def no_context():
    _in_context(lambda _, own: None)


def other_context():
    """The context of another GPU; without one, another context of the same GPU."""

    def another(driver, _):
        count, context = ctypes.c_int(), ctypes.c_void_p()
        driver("cuDeviceGetCount", ref(count))
        if count.value > 1:
            driver.must("cuDevicePrimaryCtxRetain", ref(context), 1)
        else:
            driver.must("cuCtxCreate_v4", ref(context), None, 0, 0)
        return context

    _in_context(another)


def _in_context(choose):
    """What calls give on a fresh thread with a context that is not that of the objects, or with none."""
    driver = Driver()
    own = driver.context()
    objects = _objects(driver)
    context = choose(driver, own)
    driver("cuCtxSetCurrent", own)

    def call_all():
        if context is not None:
            driver("cuCtxSetCurrent", context)
        for name, result_of in _calls(driver, *objects).items():
            say(f"{sys.argv[1]}: {name}", result_of())

    thread = threading.Thread(target=call_all)
    thread.start()
    thread.join()


def kinds():
    """Attributes and ranges of each kind of memory."""
    driver = Driver()
    driver.context()
    stream, pool = driver.stream(), u64()
    memories = {
        f"cuMemAlloc of {n} bytes": driver.allocate(n).value for n in (100, 4097, 1 << 20, 3 << 20)
    }
    memories["cuMemCreate, 2 parts"] = dict(driver.create(2)).get("address")
    if driver("cuMemAllocAsync", ref(pool), size(3 << 20), stream) == OK:
        driver("cuStreamSynchronize", stream)
        memories["cuMemAllocAsync of 3 MiB"] = pool.value
    managed, pinned = u64(), ctypes.c_void_p()
    if driver("cuMemAllocManaged", ref(managed), size(1 << 20), 1) == OK:
        memories["cuMemAllocManaged"] = managed.value
    if driver("cuMemHostAlloc", ref(pinned), size(1 << 20), 0) == OK:
        memories["cuMemHostAlloc"] = pinned.value
    for name, address in memories.items():
        describe(driver, name, address)


def describe(driver, name, address):
    base, length = u64(), size()
    result = driver("cuMemGetAddressRange_v2", ref(base), ref(length), u64(address))
    say(
        f"{name}: range",
        f"{result}, {length.value} bytes, the memory begins {address - base.value} bytes in",
    )
    for number, attribute in POINTER_ATTRIBUTES.items():
        value = u64()
        result = driver("cuPointerGetAttribute", ref(value), number, u64(address))
        say(f"{name}: {attribute} ({number})", value.value if result == OK else result)


def loading():
    """Whether cuKernelGetFunction() or cuFuncLoad() loads a kernel."""
    driver = Driver()
    driver.context()
    kernel = driver.kernel()
    stream, function, state = driver.stream(), ctypes.c_void_p(), ctypes.c_int(-1)
    say("cuKernelGetFunction", driver("cuKernelGetFunction", ref(function), kernel))
    result = driver("cuFuncIsLoaded", ref(state), function)
    say("cuFuncIsLoaded after cuKernelGetFunction", f"{result}, {state.value} (0: no, 1: yes)")
    say("cuFuncLoad", driver("cuFuncLoad", function))
    result = driver("cuFuncIsLoaded", ref(state), function)
    say("cuFuncIsLoaded after cuFuncLoad", f"{result}, {state.value}")
    say("cuLaunchKernel", driver.launch(kernel, stream))
    say("cuStreamSynchronize", driver("cuStreamSynchronize", stream))


def dmabufs():
    """Exports of ranges that are no whole pages or reach beyond an allocation."""
    driver = Driver()
    driver.context()
    ranges = [("cuMemAlloc", driver.allocate(n).value, n) for n in (100, 4097, 3 << 20)]
    for name, for_nics in (("cuMemCreate", False), ("cuMemCreate for NICs", True)):
        created = dict(driver.create(2, for_nics)).get("address") or 0
        ranges.append((f"{name} of two parts", created, 2 * ALLOCATED_PART))
    for kind, begin, length in ranges:
        for what, at, much in (
            ("as it is", begin, length),
            ("rounded out to 4 KiB", begin & ~4095, (length + 4095 + (begin & 4095)) & ~4095),
            ("rounded out to 64 KiB", begin & ~65535, (length + 65535 + (begin & 65535)) & ~65535),
            ("4 KiB within", begin, 4096),
            ("4 KiB, 512 bytes in", begin + 512, 4096),
            ("2 MiB beyond", begin, length + (2 << 20)),
        ):
            for flags in (0, 1):
                file = ctypes.c_int(-1)
                result = driver(
                    "cuMemGetHandleForAddressRange", ref(file), u64(at), size(much), 1, u64(flags)
                )
                if result == OK:
                    os.close(file.value)
                say(f"dma-buf of {kind}, {length} bytes, {what}, flags {flags}", result)


def events():
    """What a destroyed event does; the process may end here."""
    driver = Driver()
    driver.context()
    stream = driver.stream()
    event = driver.event(stream)
    say("cuEventDestroy", driver("cuEventDestroy_v2", event))
    say("cuEventQuery of a destroyed event", driver("cuEventQuery", event))
    say("cuStreamWaitEvent of a destroyed event", driver("cuStreamWaitEvent", stream, event, 0))
    handles = [driver.event(stream).value for _ in range(8)]
    say("a new event has the destroyed one's handle", event.value in handles)
    say("cuEventQuery of it then", driver("cuEventQuery", event))


def pins():
    """Pinning a file of memory: once, again at other addresses, and overlapping."""
    driver = Driver()
    driver.context()
    length = 4 << 20
    file = os.memfd_create("ring")
    os.ftruncate(file, length)
    maps = [mmap.mmap(file, length) for _ in range(2)]
    first, second = map(address_of, maps)
    for name, at, much in (
        ("once", first, length),
        ("the same addresses again", first, length),
        ("overlapping", first + 4096, length // 2),
        ("the same file at other addresses", second, length),
    ):
        say(
            f"cuMemHostRegister, {name}",
            driver("cuMemHostRegister_v2", ctypes.c_void_p(at), size(much), 0),
        )
    memory = driver.allocate(length)
    for name, at in (("first", first), ("second", second)):
        say(
            f"copy to the {name} mapping",
            driver("cuMemcpyDtoH_v2", ctypes.c_void_p(at), memory, size(length)),
        )
    for name, at in (("first", first), ("second", second)):
        say(
            f"cuMemHostUnregister of the {name}", driver("cuMemHostUnregister", ctypes.c_void_p(at))
        )


def captures():
    """Which calls of another thread a capture in global mode refuses, and which of them end the capture."""
    driver = Driver()
    context = driver.context()
    calls = _calls(driver, *_objects(driver))
    for mode in ("as it is", "relaxed"):
        for name, result_of in calls.items():
            stream, graph, found = driver.stream(), ctypes.c_void_p(), []
            driver.must("cuStreamBeginCapture_v2", stream, 0)

            def call(mode=mode, result_of=result_of, found=found):
                driver("cuCtxSetCurrent", context)
                if mode == "relaxed":
                    driver("cuThreadExchangeStreamCaptureMode", ref(ctypes.c_int(2)))
                found.append(result_of())

            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            ended = driver("cuStreamEndCapture", stream, ref(graph))
            say(
                f"beside a capture, the thread's mode {mode}: {name}",
                f"{found}; the capture: {ended}",
            )


def sharing():
    """What another process sees of memory that is smaller than a block."""
    driver = Driver()
    driver.context()
    for length, offset in ((100, 0), (4097, 0), (3 << 20, 512)):
        memory, handle = driver.allocate(length), (ctypes.c_uint8 * 64)()
        result = driver("cuIpcGetMemHandle", handle, u64(memory.value + offset))
        say(f"cuIpcGetMemHandle of {length} bytes, {offset} in", result)
        if result == OK:
            _, output = checks.run(
                [sys.executable, __file__, "opener", bytes(handle).hex(), str(length)], 20
            )
            print(output, end="", flush=True)


def opener(handle, length):
    driver = Driver()
    driver.context()

    class Handle(ctypes.Structure):  # It is passed by value.
        _fields_ = [("bytes", ctypes.c_uint8 * 64)]

    address, base, much = u64(), u64(), size()
    result = driver(
        "cuIpcOpenMemHandle_v2", ref(address), Handle.from_buffer_copy(bytes.fromhex(handle)), 1
    )
    driver("cuMemGetAddressRange_v2", ref(base), ref(much), address)
    say(
        f"cuIpcOpenMemHandle of {length} bytes",
        f"{result}; the range has {much.value} bytes, the memory begins {address.value - base.value} bytes in",
    )


SECTIONS = (
    host,
    doctor,
    attributes,
    widths,
    own_context,
    no_context,
    other_context,
    kinds,
    loading,
    dmabufs,
    events,
    pins,
    captures,
    sharing,
)


def main():
    for section in SECTIONS:
        seconds = checks.seconds_left(20)
        if seconds < 1:
            checks.skipped(section.__name__, "no time was left")
            continue
        status, output = checks.run([sys.executable, __file__, section.__name__], seconds)
        other = []
        for line in output.splitlines():
            try:
                name, value = json.loads(line)
                checks.fact(name, value)
            except ValueError:
                other.append(line)
        last = other[-1] if other else ""
        if "libcuda.so.1" in last:
            checks.skipped(section.__name__, f"NVIDIA's driver is not here: {last}")
            continue
        if status != 0:
            checks.fact(
                f"the section {section.__name__}", f"{checks.ended(status, seconds)}: {last}"
            )
        checks.passed(section.__name__, "asked")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        globals()[sys.argv[1]](*sys.argv[2:])
    else:
        main()
