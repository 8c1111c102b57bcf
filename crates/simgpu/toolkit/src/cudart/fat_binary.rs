//! Which code of a compiled kernel a GPU would run. CUB asks for it, and refuses to sort if it is
//! none of those that its library was compiled for.
//!
//! An image holds code for several compute capabilities: `fatBinaryHeader`, then entries with a
//! header and their code. The offsets are those of CUDA's `fatbinary_section.h`, and of the images
//! in PyTorch's libtorch_cuda.so.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

const WRAPPER_MAGIC: u32 = 0x4662_43B1;
const IMAGE_MAGIC: u32 = 0xBA55_ED50;
const IMAGE_HEADER: usize = 16;
const PTX: u16 = 1;
const MACHINE_CODE: u16 = 2;

/// `__fatBinC_Wrapper_t`, which the compiler passes at registration.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    image: *const u8,
    file: *const u8,
}

/// The attributes `ptxVersion` and `binaryVersion`: 10 x major + minor of a compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelCode {
    pub(super) ptx: u32,
    pub(super) binary: u32,
}

/// The wrapper in which each kernel was registered, by the address of its host function.
static KERNELS: LazyLock<Mutex<HashMap<u64, u64>>> = LazyLock::new(Mutex::default);

pub(super) fn register_kernel(wrapper: u64, function: u64) {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).insert(function, wrapper);
}

/// The code that a GPU of a compute capability runs. `None` if the kernel is not registered, or has
/// none for it.
pub(super) fn code_of(function: u64, capability: u32) -> Option<KernelCode> {
    let wrapper = *KERNELS.lock().unwrap_or_else(PoisonError::into_inner).get(&function)?;
    // SAFETY: compiler-generated code registers a kernel with the address that it got for a static
    // wrapper, which is loaded as long as the kernel is.
    let wrapper = unsafe { (wrapper as *const Wrapper).as_ref() }?;
    if wrapper.magic != WRAPPER_MAGIC || wrapper.image.is_null() {
        return None;
    }
    // SAFETY: a wrapper points to an image, which begins with its header.
    let header = unsafe { std::slice::from_raw_parts(wrapper.image, IMAGE_HEADER) };
    let length = length_of_image(header)?;
    // SAFETY: the header has the length of the entries behind it.
    choose(unsafe { std::slice::from_raw_parts(wrapper.image, length) }, capability)
}

fn length_of_image(header: &[u8]) -> Option<usize> {
    let is_image = u32_at(header, 0)? == IMAGE_MAGIC && usize::from(u16_at(header, 6)?) == IMAGE_HEADER;
    is_image.then(|| usize::try_from(u64_at(header, 8)?).ok()?.checked_add(IMAGE_HEADER)).flatten()
}

/// Machine code of the highest capability with the same major number; else PTX, which the driver
/// compiles.
fn choose(image: &[u8], capability: u32) -> Option<KernelCode> {
    let (mut machine_code, mut ptx) = (None, None);
    let mut at = IMAGE_HEADER;
    while at < image.len() {
        let compiled = Some(u32_at(image, at + 28)?).filter(|&compiled| compiled <= capability);
        match u16_at(image, at)? {
            MACHINE_CODE => {
                machine_code = machine_code.max(compiled.filter(|compiled| compiled / 10 == capability / 10));
            }
            PTX => ptx = ptx.max(compiled),
            _ => {}
        }
        let header = usize::try_from(u32_at(image, at + 4)?).ok()?;
        let code = usize::try_from(u64_at(image, at + 8)?).ok()?;
        at = at.checked_add(header.checked_add(code)?.max(1)).filter(|&end| end <= image.len())?;
    }
    let from_machine_code = machine_code.map(|compiled| KernelCode { ptx: compiled, binary: compiled });
    from_machine_code.or_else(|| ptx.map(|ptx| KernelCode { ptx, binary: capability }))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(entries: &[(u16, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(kind, compiled) in entries {
            let mut entry = [0_u8; 64 + 24];
            entry[..2].copy_from_slice(&kind.to_le_bytes());
            entry[4..8].copy_from_slice(&64_u32.to_le_bytes());
            entry[8..16].copy_from_slice(&24_u64.to_le_bytes());
            entry[28..32].copy_from_slice(&compiled.to_le_bytes());
            bytes.extend(entry);
        }
        let mut image = IMAGE_MAGIC.to_le_bytes().to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend((bytes.len() as u64).to_le_bytes());
        image.extend(bytes);
        image
    }

    #[test]
    fn a_gpu_runs_the_newest_code_of_its_generation() {
        let image = image(&[
            (MACHINE_CODE, 75),
            (MACHINE_CODE, 86),
            (MACHINE_CODE, 80),
            (MACHINE_CODE, 90),
            (PTX, 90),
        ]);
        let code = |capability| choose(&image, capability).map(|code| (code.ptx, code.binary));
        assert_eq!(code(80), Some((80, 80)));
        assert_eq!(code(89), Some((86, 86)));
        assert_eq!(code(90), Some((90, 90)));
        assert_eq!(code(100), Some((90, 100)), "compiled from PTX");
        assert_eq!(code(70), None);
        assert_eq!(length_of_image(&image), Some(image.len()));
    }

    #[test]
    fn images_that_end_early_have_no_code() {
        let image = image(&[(MACHINE_CODE, 80), (MACHINE_CODE, 90)]);
        for length in IMAGE_HEADER + 1..image.len() {
            assert!(length == IMAGE_HEADER + 88 || choose(&image[..length], 90).is_none(), "{length}");
        }
        assert_eq!(length_of_image(&[0; IMAGE_HEADER]), None);
    }

    #[test]
    fn kernels_find_the_image_that_they_were_registered_with() {
        let image = image(&[(MACHINE_CODE, 86)]);
        let wrapper =
            Wrapper { magic: WRAPPER_MAGIC, version: 1, image: image.as_ptr(), file: std::ptr::null() };
        register_kernel((&raw const wrapper).addr() as u64, 7);
        assert_eq!(code_of(7, 89), Some(KernelCode { ptx: 86, binary: 86 }));
        assert_eq!(code_of(8, 89), None);
    }
}
