// The declarations of CUDA's runtime that c10's headers use.
//
// The wheels contain c10's headers and no CUDA headers. Inline functions of c10 that call CUDA are
// compiled against templates that do nothing: the oracle calls none of them.
#pragma once
#include <cstddef>
#define CUDART_CB
enum cudaError_t { cudaSuccess, cudaErrorNotReady, cudaErrorMemoryAllocation };
enum cudaMemcpyKind { cudaMemcpyDefault };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated
};
enum { cudaGraphUserObjectMove, cudaUserObjectNoDestructorSync };
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphNode_t = struct CUgraphNode_st*;
using cudaUserObject_t = struct CUuserObject_st*;
using cudaHostFn_t = void (*)(void*);
struct cudaDeviceProp;
struct cudaPointerAttributes;

namespace {
template <class... Any>
cudaError_t unused_cuda(Any...) {
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t) {
  return "";
}
}  // namespace

#define cudaDeviceGetStreamPriorityRange unused_cuda
#define cudaGetLastError unused_cuda
#define cudaGraphRetainUserObject unused_cuda
#define cudaMemGetInfo unused_cuda
#define cudaMemcpyAsync unused_cuda
#define cudaStreamGetCaptureInfo unused_cuda
#define cudaStreamGetCaptureInfo_v2 unused_cuda
#define cudaStreamGetPriority unused_cuda
#define cudaStreamIsCapturing unused_cuda
#define cudaStreamQuery unused_cuda
#define cudaStreamSynchronize unused_cuda
#define cudaThreadExchangeStreamCaptureMode unused_cuda
#define cudaUserObjectCreate unused_cuda
