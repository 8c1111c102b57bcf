//! The layout of `cudaDeviceProp`.
//!
//! CUDA 13 dropped eight fields, which moved all later ones. One table in the header's order serves
//! both layouts: each row has the source of the value, and whether CUDA 13 has the field.

/// The source of a field's value.
#[derive(Clone, Copy)]
enum Source {
    /// A device attribute as an `int`.
    Int(u32),
    /// A device attribute as a `size_t`.
    Size(u32),
    /// Attributes as consecutive `int`s.
    Ints(&'static [u32]),
    /// An `int` that no device attribute has.
    Fixed(i32),
}

use Source::{Fixed, Int, Ints, Size};

/// All fields from `sharedMemPerBlock` on; `false` marks those that CUDA 13 dropped.
const FIELDS: &[(bool, Source)] = &[
    (true, Size(8)),                         // sharedMemPerBlock
    (true, Int(12)),                         // regsPerBlock
    (true, Int(10)),                         // warpSize
    (true, Size(11)),                        // memPitch
    (true, Int(1)),                          // maxThreadsPerBlock
    (true, Ints(&[2, 3, 4])),                // maxThreadsDim
    (true, Ints(&[5, 6, 7])),                // maxGridSize
    (false, Int(13)),                        // clockRate
    (true, Size(9)),                         // totalConstMem
    (true, Ints(&[75, 76])),                 // major, minor
    (true, Size(14)),                        // textureAlignment
    (true, Size(51)),                        // texturePitchAlignment
    (false, Int(15)),                        // deviceOverlap
    (true, Int(16)),                         // multiProcessorCount
    (false, Int(17)),                        // kernelExecTimeoutEnabled
    (true, Int(18)),                         // integrated
    (true, Int(19)),                         // canMapHostMemory
    (false, Int(20)),                        // computeMode
    (true, Int(21)),                         // maxTexture1D
    (true, Int(77)),                         // maxTexture1DMipmap
    (false, Int(69)),                        // maxTexture1DLinear
    (true, Ints(&[22, 23])),                 // maxTexture2D
    (true, Ints(&[73, 74])),                 // maxTexture2DMipmap
    (true, Ints(&[70, 71, 72])),             // maxTexture2DLinear
    (true, Ints(&[45, 46])),                 // maxTexture2DGather
    (true, Ints(&[24, 25, 26])),             // maxTexture3D
    (true, Ints(&[47, 48, 49])),             // maxTexture3DAlt
    (true, Int(52)),                         // maxTextureCubemap
    (true, Ints(&[42, 43])),                 // maxTexture1DLayered
    (true, Ints(&[27, 28, 29])),             // maxTexture2DLayered
    (true, Ints(&[53, 54])),                 // maxTextureCubemapLayered
    (true, Int(55)),                         // maxSurface1D
    (true, Ints(&[56, 57])),                 // maxSurface2D
    (true, Ints(&[58, 59, 60])),             // maxSurface3D
    (true, Ints(&[61, 62])),                 // maxSurface1DLayered
    (true, Ints(&[63, 64, 65])),             // maxSurface2DLayered
    (true, Int(66)),                         // maxSurfaceCubemap
    (true, Ints(&[67, 68])),                 // maxSurfaceCubemapLayered
    (true, Size(30)),                        // surfaceAlignment
    (true, Int(31)),                         // concurrentKernels
    (true, Int(32)),                         // ECCEnabled
    (true, Ints(&[33, 34, 50])),             // pciBusID, pciDeviceID, pciDomainID
    (true, Int(35)),                         // tccDriver
    (true, Int(40)),                         // asyncEngineCount
    (true, Int(41)),                         // unifiedAddressing
    (false, Int(36)),                        // memoryClockRate
    (true, Int(37)),                         // memoryBusWidth
    (true, Int(38)),                         // l2CacheSize
    (true, Int(108)),                        // persistingL2CacheMaxSize
    (true, Int(39)),                         // maxThreadsPerMultiProcessor
    (true, Ints(&[78, 79, 80])),             // streamPriorities ... localL1CacheSupported
    (true, Size(81)),                        // sharedMemPerMultiprocessor
    (true, Int(82)),                         // regsPerMultiprocessor
    (true, Ints(&[83, 84, 85, 86])),         // managedMemory ... hostNativeAtomicSupported
    (false, Int(87)),                        // singleToDoublePrecisionPerfRatio
    (true, Ints(&[88, 89, 90, 91, 95])),     // pageableMemoryAccess ... cooperativeLaunch
    (false, Int(96)),                        // cooperativeMultiDeviceLaunch
    (true, Size(97)),                        // sharedMemPerBlockOptin
    (true, Ints(&[100, 101, 106, 109])),     // pageable..., directManaged..., maxBlocks...
    (true, Size(111)),                       // reservedSharedMemPerBlock
    (true, Ints(&[99, 112, 113, 114, 115])), // hostRegisterSupported ... memoryPoolsSupported
    (true, Ints(&[116, 117, 118, 119])),     // gpuDirectRDMA*, memoryPoolSupportedHandleTypes
    (true, Int(121)),                        // deferredMappingCudaArraySupported
    (true, Fixed(0)),                        // ipcEventSupported
    (true, Int(120)),                        // clusterLaunch
    (true, Fixed(0)),                        // unifiedFunctionPointers
];

/// Sizes of the struct in CUDA 12 and 13.
const SIZE_12: usize = 1032;
const SIZE_13: usize = 1008;

struct Writer(Vec<u8>);

impl Writer {
    fn int(&mut self, value: i32) {
        self.0.extend(value.to_le_bytes());
    }

    fn size(&mut self, value: u64) {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(value.to_le_bytes());
    }
}

/// Builds the struct of one device.
pub(super) fn fill(
    name: &[u8; 256],
    uuid: &[u8; 16],
    total: u64,
    thirteen: bool,
    attribute: impl Fn(u32) -> i32,
) -> Vec<u8> {
    let mut out = Writer(name.to_vec());
    out.0.extend(uuid);
    out.0.extend([0; 8]); // luid
    out.int(0); // luidDeviceNodeMask
    out.size(total);
    for &(kept, from) in FIELDS {
        if thirteen && !kept {
            continue;
        }
        match from {
            Int(which) => out.int(attribute(which)),
            Size(which) => out.size(attribute(which) as u64),
            Ints(list) => list.iter().for_each(|&which| out.int(attribute(which))),
            Fixed(value) => out.int(value),
        }
    }
    out.0.resize(if thirteen { SIZE_13 } else { SIZE_12 }, 0);
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int_at(bytes: &[u8], at: usize) -> i32 {
        i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn field_offsets_match_both_layouts() {
        let twelve = fill(&[b'x'; 256], &[0; 16], 7, false, |which| which as i32);
        let thirteen = fill(&[b'x'; 256], &[0; 16], 7, true, |which| which as i32);
        assert_eq!((twelve.len(), thirteen.len()), (SIZE_12, SIZE_13));
        // Offsets of multiProcessorCount, l2CacheSize and major, measured on the public headers.
        assert_eq!((int_at(&twelve, 388), int_at(&thirteen, 384)), (16, 16));
        assert_eq!((int_at(&twelve, 616), int_at(&thirteen, 596)), (38, 38));
        assert_eq!((int_at(&twelve, 360), int_at(&thirteen, 360)), (75, 75));
        // Offsets of reservedSharedMemPerBlock and clusterLaunch, near the end.
        assert_eq!((int_at(&twelve, 720), int_at(&twelve, 772)), (111, 120));
        assert_eq!((int_at(&thirteen, 696), int_at(&thirteen, 748)), (111, 120));
    }
}
