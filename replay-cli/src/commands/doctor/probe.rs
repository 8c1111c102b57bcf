//! The probe process: `doctor` starts this command again as `doctor-probe`, recorded or not.
//!
//! Driver calls may crash, so they run in a process of their own, which prints what it found.
#![allow(unsafe_code, reason = "foreign functions and a mapping")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io;

use libloading::os::unix::{Library, RTLD_NOW, Symbol};

use crate::exit::CliExit;
use crate::terminal::stdout::print_text;

#[derive(clap::Args)]
pub(crate) struct ProbeArgs {
    what: ProbeKind,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ProbeKind {
    Libraries,
    Driver,
    Nvml,
    Routes,
}

/// One way to reach a driver function.
pub(super) struct DriverRoute {
    pub(super) key: &'static str,
    pub(super) name: &'static str,
    /// A different size per route, which identifies the allocation in the trace.
    pub(super) size_bytes: u64,
}

const fn driver_route(key: &'static str, name: &'static str, number: u64) -> DriverRoute {
    DriverRoute { key, name, size_bytes: (3 << 20) + number * 4096 }
}

/// All routes that `doctor` checks.
pub(super) static DRIVER_ROUTES: &[DriverRoute] = &[
    driver_route("dlsym", "dlsym", 1),
    driver_route("linked", "linked symbol", 2),
    driver_route("v1", "cuGetProcAddress", 3),
    driver_route("v2", "cuGetProcAddress_v2", 4),
    driver_route("itself", "cuGetProcAddress asked for itself", 5),
];

/// Runs one probe and prints its result. Exits with 3 if the probe fails.
pub(crate) fn run(args: &ProbeArgs) -> anyhow::Result<CliExit> {
    let result = match args.what {
        ProbeKind::Libraries => list_libraries(),
        ProbeKind::Driver => describe_driver(),
        ProbeKind::Nvml => describe_nvml(),
        ProbeKind::Routes => try_routes(),
    };
    let (text, exit) = match result {
        Ok(text) => (text, CliExit::Done),
        Err(text) => (text, CliExit::Findings),
    };
    print_text(&format!("{text}\n"))?;
    Ok(exit)
}

/// The libraries of this process; each path is somewhere in the text.
#[cfg(not(target_os = "macos"))]
fn list_libraries() -> Result<String, String> {
    std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())
}

/// The libraries of this process, one path per line.
#[cfg(target_os = "macos")]
fn list_libraries() -> Result<String, String> {
    // In libSystem, which every process links (<mach-o/dyld.h>).
    unsafe extern "C" {
        safe fn _dyld_image_count() -> u32;
        safe fn _dyld_get_image_name(index: u32) -> *const c_char;
    }
    let names =
        (0.._dyld_image_count()).map(|index| _dyld_get_image_name(index)).filter(|name| !name.is_null());
    // SAFETY: the string belongs to dyld and stays valid, because this process unloads nothing.
    let names = names.map(|name| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    let text = names.collect::<Vec<_>>().join("\n");
    if text.is_empty() { Err("dyld lists no library".to_owned()) } else { Ok(text) }
}

type CuInit = unsafe extern "C" fn(c_uint) -> c_int;
type GetInt = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type TotalMem = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type MemAlloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type MemFree = unsafe extern "C" fn(u64) -> c_int;
type NvmlInit = unsafe extern "C" fn() -> c_int;
type NvmlVersion = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
type ProbeProcAddressV1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;
type ProbeProcAddressV2 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

fn open_library(name: &str) -> Result<Library, String> {
    // SAFETY: loading NVIDIA's libraries runs their constructors, as any CUDA program does.
    unsafe { Library::open(Some(name), RTLD_NOW) }.map_err(|_| format!("cannot load {name}"))
}

/// # Safety
/// The function must have the type `T`.
unsafe fn find_symbol<T>(library: &Library, name: &str) -> Result<Symbol<T>, String> {
    // SAFETY: the caller guarantees the type.
    unsafe { library.get(name) }.map_err(|_| format!("the library has no {name}"))
}

fn check_result(result: c_int, what: &str) -> Result<(), String> {
    if result == 0 { Ok(()) } else { Err(format!("{what} returned {result}")) }
}

fn describe_driver() -> Result<String, String> {
    let cuda = open_library("libcuda.so.1")?;
    // SAFETY: the signatures are the driver's; all out-parameters are local variables.
    unsafe {
        check_result(find_symbol::<CuInit>(&cuda, "cuInit")?(0), "cuInit")?;
        let (mut version, mut devices) = (0, 0);
        check_result(
            find_symbol::<GetInt>(&cuda, "cuDriverGetVersion")?(&raw mut version),
            "cuDriverGetVersion",
        )?;
        check_result(
            find_symbol::<GetInt>(&cuda, "cuDeviceGetCount")?(&raw mut devices),
            "cuDeviceGetCount",
        )?;
        let mut names = Vec::new();
        for device in 0..devices {
            let (mut name, mut total) = ([0 as c_char; 128], 0usize);
            check_result(
                find_symbol::<DeviceName>(&cuda, "cuDeviceGetName")?(name.as_mut_ptr(), 127, device),
                "cuDeviceGetName",
            )?;
            check_result(
                find_symbol::<TotalMem>(&cuda, "cuDeviceTotalMem_v2")?(&raw mut total, device),
                "cuDeviceTotalMem",
            )?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            names.push(format!("{name} ({:.1} GiB)", total as f64 / (1u64 << 30) as f64));
        }
        if names.is_empty() {
            return Err("the driver reports no GPU".to_owned());
        }
        Ok(format!("CUDA {}.{}: {}", version / 1000, version % 1000 / 10, names.join(", ")))
    }
}

fn describe_nvml() -> Result<String, String> {
    let nvml = open_library("libnvidia-ml.so.1")?;
    // SAFETY: the signatures are NVML's; the buffer has the length that is passed.
    unsafe {
        check_result(find_symbol::<NvmlInit>(&nvml, "nvmlInit_v2")?(), "nvmlInit")?;
        let mut text = [0 as c_char; 81];
        let version = find_symbol::<NvmlVersion>(&nvml, "nvmlSystemGetDriverVersion")?;
        check_result(version(text.as_mut_ptr(), 80), "nvmlSystemGetDriverVersion")?;
        Ok(format!("driver {}", CStr::from_ptr(text.as_ptr()).to_string_lossy()))
    }
}

/// Allocates and frees on each route. Returns one line per route: its key and 0, or an error.
fn try_routes() -> Result<String, String> {
    let cuda = open_library("libcuda.so.1")?;
    // SAFETY: the signatures are the driver's, as in `describe_driver`.
    unsafe {
        check_result(find_symbol::<CuInit>(&cuda, "cuInit")?(0), "cuInit")?;
        let mut context = std::ptr::null_mut();
        let retain = find_symbol::<Retain>(&cuda, "cuDevicePrimaryCtxRetain")?;
        check_result(retain(&raw mut context, 0), "cuDevicePrimaryCtxRetain")?;
        check_result(find_symbol::<SetCurrent>(&cuda, "cuCtxSetCurrent")?(context), "cuCtxSetCurrent")?;
    }
    let lines: Vec<String> = DRIVER_ROUTES
        .iter()
        .map(|route| {
            let outcome = allocate_through(route, &cuda).map_or_else(|why| why, |()| "0".to_owned());
            format!("{} {outcome}", route.key)
        })
        .collect();
    Ok(lines.join("\n"))
}

fn allocate_through(route: &DriverRoute, cuda: &Library) -> Result<(), String> {
    // SAFETY: each function gets the signature of the name it was looked up by, and the address
    // that is freed comes from a successful allocation.
    unsafe {
        let (alloc, free) = match route.key {
            "dlsym" => (
                *find_symbol::<MemAlloc>(cuda, "cuMemAlloc_v2")?,
                *find_symbol::<MemFree>(cuda, "cuMemFree_v2")?,
            ),
            "linked" => {
                // The symbols that a program linked with libcuda would bind to.
                let everywhere = Library::this();
                (
                    *find_symbol::<MemAlloc>(&everywhere, "cuMemAlloc_v2")?,
                    *find_symbol::<MemFree>(&everywhere, "cuMemFree_v2")?,
                )
            }
            "v1" => resolve_through_v1(*find_symbol::<ProbeProcAddressV1>(cuda, "cuGetProcAddress")?)?,
            "v2" => resolve_through_v2(*find_symbol::<ProbeProcAddressV2>(cuda, "cuGetProcAddress_v2")?)?,
            _ => {
                let first = *find_symbol::<ProbeProcAddressV2>(cuda, "cuGetProcAddress_v2")?;
                let again = look_up_v2(first, "cuGetProcAddress", 12_000)?;
                resolve_through_v2(std::mem::transmute::<*mut c_void, ProbeProcAddressV2>(again))?
            }
        };
        let mut address = 0;
        check_result(alloc(&raw mut address, route.size_bytes as usize), "cuMemAlloc")?;
        check_result(free(address), "cuMemFree")
    }
}

/// # Safety
/// `ask` must be `cuGetProcAddress`.
unsafe fn resolve_through_v1(ask: ProbeProcAddressV1) -> Result<(MemAlloc, MemFree), String> {
    let look_up = |name: &str| {
        let c_name = CString::new(name).map_err(|error| error.to_string())?;
        let mut address = std::ptr::null_mut();
        // SAFETY: the caller guarantees the function; name and out-parameter outlive the call.
        check_result(unsafe { ask(c_name.as_ptr(), &raw mut address, 3_020, 0) }, name)?;
        if address.is_null() { Err(format!("no {name}")) } else { Ok(address) }
    };
    let (alloc, free) = (look_up("cuMemAlloc")?, look_up("cuMemFree")?);
    // SAFETY: version 3020 of both functions has these signatures.
    Ok(unsafe {
        (
            std::mem::transmute::<*mut c_void, MemAlloc>(alloc),
            std::mem::transmute::<*mut c_void, MemFree>(free),
        )
    })
}

/// # Safety
/// `ask` must be `cuGetProcAddress_v2`.
unsafe fn look_up_v2(ask: ProbeProcAddressV2, name: &str, version: c_int) -> Result<*mut c_void, String> {
    let c_name = CString::new(name).map_err(|error| error.to_string())?;
    let (mut address, mut status) = (std::ptr::null_mut(), 0);
    // SAFETY: the caller guarantees the function; name and out-parameters outlive the call.
    check_result(unsafe { ask(c_name.as_ptr(), &raw mut address, version, 0, &raw mut status) }, name)?;
    if address.is_null() { Err(format!("no {name}")) } else { Ok(address) }
}

/// # Safety
/// `ask` must be `cuGetProcAddress_v2`.
unsafe fn resolve_through_v2(ask: ProbeProcAddressV2) -> Result<(MemAlloc, MemFree), String> {
    // SAFETY: the caller guarantees `ask`; version 3020 of both functions has these signatures.
    unsafe {
        let (alloc, free) = (look_up_v2(ask, "cuMemAlloc", 3_020)?, look_up_v2(ask, "cuMemFree", 3_020)?);
        Ok((
            std::mem::transmute::<*mut c_void, MemAlloc>(alloc),
            std::mem::transmute::<*mut c_void, MemFree>(free),
        ))
    }
}

/// Allocates blocks for a file and maps it shared, as the recorder does with its ring file.
pub(super) fn map_shared(file: &File, length: usize) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    fallocate(file, FallocateFlags::empty(), 0, length as u64)?;
    // SAFETY: a new mapping of our own file, written once within its length, then unmapped.
    unsafe {
        let address = mmap(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )?;
        address.cast::<u8>().write_volatile(1);
        munmap(address, length)?;
    }
    Ok(())
}
