//! NVRTC: every program compiles to an empty image.

use core::ffi::c_char;
use simgpu_common::Out;

use crate::entry::toolkit;
use crate::versions::wheel_versions;

/// The image is never read; only its size and address are used.
const IMAGE: [u8; 64] = [0; 64];

toolkit! { 11;
    nvrtcVersion(major: Out<u32>, minor: Out<u32>) {
        major.put(wheel_versions().runtime / 1000)?;
        minor.put(wheel_versions().runtime % 1000 / 10)
    }
    nvrtcGetPTXSize(_program: u64, out: Out<u64>) { out.put(IMAGE.len() as u64) }
    nvrtcGetCUBINSize(_program: u64, out: Out<u64>) { out.put(IMAGE.len() as u64) }
    nvrtcGetProgramLogSize(_program: u64, out: Out<u64>) { out.put(1) }
    nvrtcGetPTX(_program: u64, out: Out<u8>) {
        out.put_all(IMAGE);
        Ok(())
    }
    nvrtcGetCUBIN(_program: u64, out: Out<u8>) {
        out.put_all(IMAGE);
        Ok(())
    }
    nvrtcGetProgramLog(_program: u64, out: Out<u8>) { out.put(0) }
    nvrtcGetLoweredName(_program: u64, _name: u64, out: Out<*const c_char>) { out.put(c"simgpu_kernel".as_ptr()) }
    nvrtcGetNumSupportedArchs(out: Out<i32>) { out.put(0) }
}

#[unsafe(export_name = "simgpu_fn_nvrtcGetErrorString")]
extern "C" fn error_text(code: u32) -> *const c_char {
    if code == 0 { c"NVRTC_SUCCESS" } else { c"NVRTC_ERROR_INTERNAL_ERROR" }.as_ptr()
}
