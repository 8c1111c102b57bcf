//! Functions that programs look up but that are not simulated: they return 801.
//!
//! PyTorch fails to import if one of its driver functions does not resolve, so every such name is
//! exported. 801 (not supported) is a result that programs handle, unlike a success without effect.

use crate::entry::{config, exports, ready, trace};
use crate::result_code::{ApiResult, NOT_SUPPORTED};

fn unsupported(api: &str) -> ApiResult {
    ready()?;
    if config().trace {
        trace(&format!("{api} is not simulated"));
    }
    Err(NOT_SUPPORTED)
}

/// Declares unsupported functions of one driver version.
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
    13030: cuLogicalEndpointIdReserve cuLogicalEndpointIdRelease cuLogicalEndpointCreate cuLogicalEndpointAddDevice
        cuLogicalEndpointBindAddr cuLogicalEndpointBindMem cuLogicalEndpointUnbind cuLogicalEndpointDestroy
        cuLogicalEndpointExport cuLogicalEndpointImport cuLogicalEndpointGetLimits cuLogicalEndpointQuery;
}
