//! What a Mach-O file says of itself: for which processors it is, and what its signature lets into it.
//!
//! Constraint: it is the user's program, made by anybody, perhaps cut or hostile, and may be large. Consequence: headers and the signature
//! are read and nothing else, every length is held against the file's, and what makes no sense is no Mach-O file.

use object::macho::{
    CPU_SUBTYPE_ARM64E, CPU_SUBTYPE_MASK, CPU_TYPE_ARM64, CPU_TYPE_X86_64, LC_CODE_SIGNATURE,
    LinkeditDataCommand, MachHeader64,
};
use object::read::macho::{FatArch, MachHeader as _, MachOFatFile32, MachOFatFile64, Segment as _};
use object::{Endianness, ReadRef};

use super::signature::CodeSignature;

/// More than any linker writes: a forged table must not have us read one signature a thousand times.
const MOST_SLICES: usize = 16;
/// A signature has 32 bytes for each 4 KiB of the program: enough for one of 2 GiB.
const MOST_SIGNATURE_BYTES: u64 = 16 << 20;
/// The segment by which a program asks the loader to take no environment into account.
const RESTRICT: &[u8] = b"__RESTRICT";

/// The processor that a part of a file is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuArchitecture {
    /// Of Apple's machines.
    Arm64,
    /// The same with signed pointers: another kind of process, into which nothing made for `Arm64` is loaded.
    Arm64e,
    /// Intel's.
    X86_64,
    /// Any other.
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

    /// As Apple's tools write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Arm64 => "arm64",
            Self::Arm64e => "arm64e",
            Self::X86_64 => "x86_64",
            Self::Other => "another processor",
        }
    }
}

/// The program as it is for one processor; a file may hold several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachOSlice {
    /// Which.
    pub processor: CpuArchitecture,
    /// It has a segment `__RESTRICT`.
    pub has_restrict_segment: bool,
    /// What it was signed with; `None` if it was not, or if that cannot be read.
    pub signature: Option<CodeSignature>,
}

/// The programs of a file, one for each processor; `None` if it is no sound Mach-O file of 64 bits.
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
