//! Looks up functions and lines in DWARF, through `addr2line`.

use std::borrow::Cow;
use std::sync::Arc;

use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};
use gpumemtrace_format::NamedFrame;

use super::demangle;
use super::elf::ElfImage;

type DwarfReader = EndianArcSlice<LittleEndian>;

/// The debug information of a file. A unit is parsed at the first lookup of an address in it.
pub(super) struct DebugInfo {
    context: addr2line::Context<DwarfReader>,
}

impl DebugInfo {
    /// Reads the sections for functions and lines; `None` if they are malformed.
    pub(super) fn read(image: &ElfImage) -> Option<Self> {
        let section = |id: SectionId| -> Result<DwarfReader, gimli::Error> {
            let bytes = match id {
                SectionId::DebugAbbrev
                | SectionId::DebugAddr
                | SectionId::DebugAranges
                | SectionId::DebugInfo
                | SectionId::DebugLine
                | SectionId::DebugLineStr
                | SectionId::DebugRanges
                | SectionId::DebugRngLists
                | SectionId::DebugStr
                | SectionId::DebugStrOffsets => image.section(id.name()).unwrap_or_default(),
                // Sections for variables, types and macros are not needed.
                _ => Vec::new(),
            };
            Ok(EndianArcSlice::new(Arc::from(bytes), LittleEndian))
        };
        let context = addr2line::Context::from_dwarf(Dwarf::load(section).ok()?).ok()?;
        Some(Self { context })
    }

    /// The frames at an address, innermost first. Empty if unknown or malformed.
    pub(super) fn frames(&self, address: u64) -> Vec<NamedFrame> {
        let mut frames = Vec::new();
        // addr2line adds 1 to the address, which would overflow.
        if address == u64::MAX {
            return frames;
        }
        let Ok(mut found) = self.context.find_frames(address).skip_all_loads() else { return frames };
        while let Ok(Some(frame)) = found.next() {
            let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let name = name.unwrap_or(Cow::Borrowed(""));
            let location = frame.location.as_ref();
            frames.push(NamedFrame {
                function: demangle(&name).into(),
                file: location.and_then(|location| location.file).unwrap_or_default().into(),
                line: location.and_then(|location| location.line).unwrap_or(0),
            });
        }
        frames
    }
}
