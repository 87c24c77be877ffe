"""The methods of Metal that the native driver calls, by their Objective-C names."""

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
