//! Functions that programs look up but that a simulated GPU does not support: present, and answering 801.
//!
//! PyTorch refuses to start when one of the driver names it lists does not resolve, long before it would call it -> every such name
//! exists. Success without the effect would be a lie that surfaces elsewhere; 801 is an answer that programs handle.

use crate::entry::{config, exports, ready, trace};
use crate::rc::{Answer, NOT_SUPPORTED};

fn unsupported(api: &str) -> Answer {
    ready()?;
    if config().trace {
        trace(&format!("{api} is not simulated"));
    }
    Err(NOT_SUPPORTED)
}

/// Lists names of one version.
macro_rules! unsupported {
    ($($version:literal: $($name:ident)+;)+) => {
        exports! { $($(plain $version $name() { unsupported(API) })+)+ }
    };
}

unsupported! {
    4000: cuGraphicsUnregisterResource
        cuGraphicsSubResourceGetMappedArray cuTexRefCreate cuTexRefDestroy cuTexRefSetArray cuTexRefSetAddress_v2
        cuModuleGetTexRef cuModuleGetSurfRef cuParamSetSize cuMemcpy3D_v2 cuMemcpy3DAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync
        cuMemcpyHtoA_v2 cuMemcpyAtoH_v2 cuMemcpyDtoA_v2 cuMemcpyAtoD_v2 cuMemcpyAtoA_v2 cuMemcpyHtoAAsync_v2 cuMemcpyAtoHAsync_v2
        cuArrayGetDescriptor_v2 cuArray3DGetDescriptor_v2 cuMemsetD2D16_v2 cuMemsetD2D16Async;
    5000: cuTexObjectCreate cuTexObjectDestroy cuSurfObjectCreate cuSurfObjectDestroy cuMipmappedArrayGetLevel
        cuMemRangeGetAttribute cuMemRangeGetAttributes cuDeviceGetTexture1DLinearMaxWidth;
    8000: cuStreamWaitValue32 cuStreamWriteValue32 cuStreamBatchMemOp;
    9000: cuStreamWaitValue64 cuStreamWriteValue64 cuLaunchCooperativeKernelMultiDevice;
    10000:
        cuImportExternalSemaphore cuSignalExternalSemaphoresAsync cuWaitExternalSemaphoresAsync cuDestroyExternalSemaphore
        cuGraphExecKernelNodeSetParams_v2 cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams
        cuGraphExecHostNodeSetParams cuGraphExecUpdate_v2 cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetParams_v2
        cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams
        cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphChildGraphNodeGetGraph cuGraphNodeFindInClone cuGraphGetEdges
        cuGraphNodeGetDependentNodes cuGraphRemoveDependencies;
    11000: cuStreamCopyAttributes cuStreamGetAttribute cuStreamSetAttribute cuGraphKernelNodeCopyAttributes
        cuGraphKernelNodeGetAttribute cuGraphKernelNodeSetAttribute cuDeviceGetNvSciSyncAttributes;
    11010: cuArrayGetSparseProperties cuMipmappedArrayGetSparseProperties cuArrayGetPlane
        cuGraphAddExternalSemaphoresSignalNode cuGraphAddExternalSemaphoresWaitNode cuGraphAddEventWaitNode
        cuGraphEventRecordNodeGetEvent cuGraphEventWaitNodeGetEvent cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams;
    11030: cuFlushGPUDirectRDMAWrites cuDeviceGetExecAffinitySupport cuCtxGetExecAffinity cuMemGetHandleForAddressRange;
    11060: cuGraphNodeSetEnabled cuGraphNodeGetEnabled
        cuGraphAddBatchMemOpNode;
    12000: cuTensorMapEncodeIm2col cuTensorMapReplaceAddress cuKernelGetName cuKernelGetParamInfo cuKernelGetLibrary
        cuFuncGetName cuFuncGetParamInfo cuModuleEnumerateFunctions cuModuleGetFunctionCount cuLibraryEnumerateKernels
        cuCtxSetFlags cuCoredumpGetAttribute cuCoredumpSetAttribute;
    12040: cuGreenCtxRecordEvent cuGreenCtxWaitEvent cuGreenCtxGetDevResource
        cuDevSmResourceSplitByCount cuCtxGetDevResource cuStreamGetGreenCtx
        cuCtxRecordEvent cuCtxWaitEvent;
    12050: cuGreenCtxStreamCreate;
    12080: cuLogsRegisterCallback cuLogsUnregisterCallback cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory
        cuMemBatchDecompressAsync cuMemcpyBatchAsync cuMemcpy3DBatchAsync cuCheckpointProcessGetState
        cuCheckpointProcessLock cuCheckpointProcessCheckpoint cuCheckpointProcessRestore cuCheckpointProcessUnlock;
    13000: cuMemGetDefaultMemPool cuMemGetMemPool cuMemPrefetchBatchAsync cuMemDiscardBatchAsync;
}
