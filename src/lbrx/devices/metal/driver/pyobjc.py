"""PyObjC and Metal: whether they are there, and the methods that the native driver calls."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from lbrx.devices.metal.driver.errors import MetalUnavailable

# Every method of Metal that is called here. PyObjC has metadata for those of protocols; a test compares them.
SELECTORS = (
    *("name", "supportsFamily:", "hasUnifiedMemory", "maxBufferLength", "maxThreadsPerThreadgroup"),
    *("maxThreadgroupMemoryLength", "recommendedMaxWorkingSetSize", "newCommandQueue"),
    *("newBufferWithLength:options:", "newBufferWithBytesNoCopy:length:options:deallocator:", "contents"),
    *("newLibraryWithSource:options:error:", "functionNames", "newFunctionWithName:"),
    *("newFunctionWithName:constantValues:error:", "functionConstantsDictionary"),
    *("newComputePipelineStateWithDescriptor:options:reflection:error:", "newBinaryArchiveWithDescriptor:error:"),
    *("addComputePipelineFunctionsWithDescriptor:error:", "serializeToURL:error:"),
    *("maxTotalThreadsPerThreadgroup", "threadExecutionWidth"),
    *("commandBuffer", "computeCommandEncoder", "setLabel:", "setComputePipelineState:", "setBuffer:offset:atIndex:"),
    *("setBytes:length:atIndex:", "setThreadgroupMemoryLength:atIndex:"),
    *("dispatchThreadgroups:threadsPerThreadgroup:", "dispatchThreads:threadsPerThreadgroup:", "endEncoding"),
    *("commit", "waitUntilCompleted", "status", "error", "GPUStartTime", "GPUEndTime", "setFastMathEnabled:", "type"),
)
# Methods of classes whose arguments are plain objects or numbers: the Objective-C runtime describes them.
CLASS_SELECTORS = (
    *("alloc", "init", "setPreprocessorMacros:", "setComputeFunction:", "setBinaryArchives:", "setUrl:"),
    *("localizedDescription", "fileURLWithPath:", "setConstantValue:type:withName:"),
)


def is_available() -> bool:
    """Whether this machine has an Apple GPU that Python can reach."""
    if sys.platform != "darwin" or importlib.util.find_spec("Metal") is None:
        return False
    return importlib.import_module("Metal").MTLCreateSystemDefaultDevice() is not None


def load_metal() -> Any:
    if sys.platform != "darwin":
        raise MetalUnavailable(
            "there is no Metal on this machine: it needs macOS on Apple Silicon; the 'emulated' driver runs anywhere"
        )
    if importlib.util.find_spec("Metal") is None:
        raise MetalUnavailable("Python cannot reach Metal: install it with `pip install pyobjc-framework-Metal`")
    metal: Any = importlib.import_module("Metal")
    # The runtime says only `const void *` of this method's first argument; this makes it take bytes.
    importlib.import_module("objc").registerMetaDataForSelector(
        b"MTLFunctionConstantValues",
        b"setConstantValue:type:withName:",
        {"arguments": {2: {"type": b"^v", "type_modifier": b"n", "c_array_of_variable_length": True}}},
    )
    return metal
