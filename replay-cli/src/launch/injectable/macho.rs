//! Reads the architectures and the code signature of a Mach-O file.
//!
//! The file is the user's program: it may be truncated, hostile or large. Only headers and the
//! signature are read, every length is checked against the file's, and malformed input is refused.

use object::macho::{
    CPU_SUBTYPE_ARM64E, CPU_SUBTYPE_MASK, CPU_TYPE_ARM64, CPU_TYPE_X86_64, LC_CODE_SIGNATURE,
    LinkeditDataCommand, MachHeader64,
};
use object::read::macho::{FatArch, MachHeader as _, MachOFatFile32, MachOFatFile64, Segment as _};
use object::{Endianness, ReadRef};

use super::signature::CodeSignature;

/// More slices than any linker writes. Bounds the work on a forged table of slices.
const MOST_SLICES: usize = 16;
/// The signature of a 2 GiB program: 32 bytes per 4 KiB.
const MOST_SIGNATURE_BYTES: u64 = 16 << 20;
/// The segment that makes dyld ignore environment variables.
const RESTRICT: &[u8] = b"__RESTRICT";

/// The processor architecture of a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuArchitecture {
    /// Apple silicon without pointer authentication.
    Arm64,
    /// Apple silicon with pointer authentication. Such a process loads no `Arm64` library.
    Arm64e,
    /// Intel processors of 64 bits.
    X86_64,
    /// Any processor without a variant of its own.
    Other,
}

impl CpuArchitecture {
    fn of(cpu_type: u32, cpu_subtype: u32) -> Self {
        match (cpu_type, cpu_subtype & !CPU_SUBTYPE_MASK) {
            (CPU_TYPE_ARM64, CPU_SUBTYPE_ARM64E) => Self::Arm64e,
            (CPU_TYPE_ARM64, _) => Self::Arm64,
            (CPU_TYPE_X86_64, _) => Self::X86_64,
            _ => Self::Other,
        }
    }

    /// The name that Apple's tools print.
    pub fn name(self) -> &'static str {
        match self {
            Self::Arm64 => "arm64",
            Self::Arm64e => "arm64e",
            Self::X86_64 => "x86_64",
            Self::Other => "another processor",
        }
    }
}

/// The program for one architecture; a universal file holds several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachOSlice {
    /// The architecture in the Mach-O header.
    pub processor: CpuArchitecture,
    /// True with a segment `__RESTRICT`.
    pub has_restrict_segment: bool,
    /// `None` if the slice is unsigned or its signature cannot be read.
    pub signature: Option<CodeSignature>,
}

/// The slices of a file; `None` if it is no valid 64-bit Mach-O file.
pub fn read_slices<'data, R: ReadRef<'data>>(file: R) -> Option<Vec<MachOSlice>> {
    let starts = if let Ok(several) = MachOFatFile32::parse(file) {
        starts(several.arches())
    } else if let Ok(several) = MachOFatFile64::parse(file) {
        starts(several.arches())
    } else {
        vec![0]
    };
    let slices: Vec<MachOSlice> = starts.iter().filter_map(|start| read_slice(file, *start)).collect();
    (!slices.is_empty()).then_some(slices)
}

fn starts<Arch: FatArch>(table: &[Arch]) -> Vec<u64> {
    table.iter().take(MOST_SLICES).map(|arch| arch.file_range().0).collect()
}

fn read_slice<'data, R: ReadRef<'data>>(file: R, start: u64) -> Option<MachOSlice> {
    let header = MachHeader64::<Endianness>::parse(file, start).ok()?;
    let endian = header.endian().ok()?;
    let processor = CpuArchitecture::of(header.cputype(endian), header.cpusubtype(endian));
    let mut slice = MachOSlice { processor, has_restrict_segment: false, signature: None };
    let mut commands = header.load_commands(endian, file, start).ok()?;
    while let Ok(Some(command)) = commands.next() {
        if let Ok(Some((segment, _))) = command.segment_64() {
            slice.has_restrict_segment |= segment.name() == RESTRICT;
        } else if command.cmd() == LC_CODE_SIGNATURE {
            let Ok(place) = command.data::<LinkeditDataCommand<Endianness>>() else { continue };
            let (offset, len) = (u64::from(place.dataoff.get(endian)), u64::from(place.datasize.get(endian)));
            let bytes = file.read_bytes_at(start.saturating_add(offset), len.min(MOST_SIGNATURE_BYTES)).ok();
            slice.signature = bytes.and_then(CodeSignature::read);
        }
    }
    Some(slice)
}
