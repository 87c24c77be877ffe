"""Every Objective-C method that the native driver calls: types of arguments and result, and who owns the result.

Types are in the encoding of the Objective-C runtime: ``@`` an object, ``Q`` and ``q`` numbers, ``Z`` a boolean, ``d`` a
double, ``v`` nothing, ``^v`` memory, ``@?`` a block. ``n`` marks memory that is read, ``o`` an argument that returns an
object: PyObjC takes None for it and returns it as a second value.

``parity/pyobjc_selectors.py`` compares the table with the metadata of PyObjC's releases.
"""

from __future__ import annotations

from typing import NamedTuple


class Selector(NamedTuple):
    """A method. ``owned``: its name begins with ``new``, so the caller owns the result and releases it."""

    returns: str
    arguments: tuple[str, ...] = ()
    owned: bool = False

    @property
    def returns_pair(self) -> bool:
        """Whether PyObjC returns the result and an object."""
        return any(argument.startswith("o") for argument in self.arguments)


_SIZE = "{MTLSize=QQQ}"

PROTOCOL_SELECTORS: dict[str, Selector] = {
    # MTLDevice
    "name": Selector("@"),
    "supportsFamily:": Selector("Z", ("q",)),
    "hasUnifiedMemory": Selector("Z"),
    "maxBufferLength": Selector("Q"),
    "maxThreadsPerThreadgroup": Selector(_SIZE),
    "maxThreadgroupMemoryLength": Selector("Q"),
    "recommendedMaxWorkingSetSize": Selector("Q"),
    "currentAllocatedSize": Selector("Q"),
    "newCommandQueue": Selector("@", owned=True),
    "newBufferWithLength:options:": Selector("@", ("Q", "Q"), owned=True),
    "newBufferWithBytesNoCopy:length:options:deallocator:": Selector("@", ("n^v", "Q", "Q", "@?"), owned=True),
    "newLibraryWithSource:options:error:": Selector("@", ("@", "@", "o^@"), owned=True),
    "newLibraryWithURL:error:": Selector("@", ("@", "o^@"), owned=True),
    "newBinaryArchiveWithDescriptor:error:": Selector("@", ("@", "o^@"), owned=True),
    "newComputePipelineStateWithDescriptor:options:reflection:error:": Selector(
        "@", ("@", "Q", "^@", "o^@"), owned=True
    ),
    "newResidencySetWithDescriptor:error:": Selector("@", ("@", "o^@"), owned=True),
    # MTLBuffer
    "contents": Selector("^v"),
    "length": Selector("Q"),
    # MTLLibrary, MTLFunction, MTLBinaryArchive, MTLComputePipelineState
    "functionNames": Selector("@"),
    "newFunctionWithName:": Selector("@", ("@",), owned=True),
    "newFunctionWithName:constantValues:error:": Selector("@", ("@", "@", "o^@"), owned=True),
    "functionConstantsDictionary": Selector("@"),
    "addComputePipelineFunctionsWithDescriptor:error:": Selector("Z", ("@", "o^@")),
    "serializeToURL:error:": Selector("Z", ("@", "o^@")),
    "maxTotalThreadsPerThreadgroup": Selector("Q"),
    "threadExecutionWidth": Selector("Q"),
    # MTLCommandQueue, MTLCommandBuffer
    "commandBuffer": Selector("@"),
    "addResidencySet:": Selector("v", ("@",)),
    "computeCommandEncoder": Selector("@"),
    "commit": Selector("v"),  # MTLResidencySet, too
    "waitUntilCompleted": Selector("v"),
    "status": Selector("Q"),
    "error": Selector("@"),
    "GPUStartTime": Selector("d"),
    "GPUEndTime": Selector("d"),
    # MTLComputeCommandEncoder
    "setLabel:": Selector("v", ("@",)),
    "setComputePipelineState:": Selector("v", ("@",)),
    "setBuffer:offset:atIndex:": Selector("v", ("@", "Q", "Q")),
    "setBytes:length:atIndex:": Selector("v", ("n^v", "Q", "Q")),
    "setThreadgroupMemoryLength:atIndex:": Selector("v", ("Q", "Q")),
    "dispatchThreadgroups:threadsPerThreadgroup:": Selector("v", (_SIZE, _SIZE)),
    "dispatchThreads:threadsPerThreadgroup:": Selector("v", (_SIZE, _SIZE)),
    "pushDebugGroup:": Selector("v", ("@",)),
    "popDebugGroup": Selector("v"),
    "endEncoding": Selector("v"),
    # MTLResidencySet
    "addAllocation:": Selector("v", ("@",)),
    "removeAllocation:": Selector("v", ("@",)),
    "requestResidency": Selector("v"),
}
"""Methods of protocols, whose types PyObjC knows from its metadata."""

CLASS_SELECTORS: dict[str, Selector] = {
    "alloc": Selector("@"),
    "init": Selector("@"),
    # MTLCompileOptions
    "setPreprocessorMacros:": Selector("v", ("@",)),
    "setLanguageVersion:": Selector("v", ("Q",)),
    "setFastMathEnabled:": Selector("v", ("Z",)),
    "setMathMode:": Selector("v", ("q",)),
    "setMathFloatingPointFunctions:": Selector("v", ("q",)),
    # MTLComputePipelineDescriptor, MTLBinaryArchiveDescriptor, MTLFunctionConstantValues, MTLFunctionConstant
    "setComputeFunction:": Selector("v", ("@",)),
    "setBinaryArchives:": Selector("v", ("@",)),
    "setUrl:": Selector("v", ("@",)),
    "setConstantValue:type:withName:": Selector("v", ("n^v", "Q", "@")),
    "type": Selector("Q"),
    # MTLCaptureManager, MTLCaptureDescriptor
    "sharedCaptureManager": Selector("@"),
    "startCaptureWithDescriptor:error:": Selector("Z", ("@", "o^@")),
    "stopCapture": Selector("v"),
    "setCaptureObject:": Selector("v", ("@",)),
    "setDestination:": Selector("v", ("q",)),
    "setOutputURL:": Selector("v", ("@",)),
    # NSError, NSURL
    "localizedDescription": Selector("@"),
    "code": Selector("q"),
    "domain": Selector("@"),
    "fileURLWithPath:": Selector("@", ("@",)),
}
"""Methods of classes, whose types PyObjC asks the Objective-C runtime for."""

OWNED_SELECTORS = {name: selector for name, selector in PROTOCOL_SELECTORS.items() if selector.owned}
