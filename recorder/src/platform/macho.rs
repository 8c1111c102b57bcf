//! The header of a Mach-O module, where it lies in memory.
//!
//! Constraint: the module may be unloaded while it is looked at. Consequence: every word comes through [`Memory`], which refuses what is
//! not there, and no number that was read is believed: a header that makes no sense is no module.
//!
//! Layout: `mach-o/loader.h`.

use std::ops::Range;

use crate::platform::process_memory::Memory;

const MAGIC_64: u32 = 0xfeed_facf;
const HEADER_BYTES: usize = 32;
const COMMANDS_AT: usize = 16;
const SEGMENT_64: u32 = 0x19;
const UUID: u32 = 0x1b;
/// `VM_PROT_EXECUTE`.
const EXECUTES: u32 = 4;
/// Real ones have a few dozen.
const MOST_COMMANDS: u32 = 4096;
/// `MAXPATHLEN`.
const MOST_PATH_BYTES: usize = 1024;

/// What is told of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MachImage {
    /// Where its code is, in the addresses that it was linked at. Those of the system's own libraries have their data far away.
    pub(crate) code: Range<u64>,
    /// What tells it from every other build.
    pub(crate) uuid: Option<[u8; 16]>,
}

/// The module whose header is there; `None` if it has no code.
pub(crate) fn image(memory: &impl Memory, header_at: usize) -> Option<MachImage> {
    if memory.half(header_at)? != MAGIC_64 {
        return None;
    }
    let commands = memory.half(header_at.checked_add(COMMANDS_AT)?)?.min(MOST_COMMANDS);
    let (mut code, mut uuid): (Option<Range<u64>>, _) = (None, None);
    let mut at = header_at.checked_add(HEADER_BYTES)?;
    for _ in 0..commands {
        let (command, bytes) = (memory.half(at)?, memory.half(at.checked_add(4)?)? as usize);
        match command {
            SEGMENT_64 => {
                let start = memory.word(at.checked_add(24)?)? as u64;
                let end = start.checked_add(memory.word(at.checked_add(32)?)? as u64)?;
                if memory.half(at.checked_add(60)?)? & EXECUTES != 0 {
                    code = Some(code.map_or(start..end, |code| code.start.min(start)..code.end.max(end)));
                }
            }
            UUID => {
                let mut bytes = [0; 16];
                memory.read(at.checked_add(8)?, &mut bytes)?;
                uuid = Some(bytes);
            }
            _ => {}
        }
        // Shorter than its own head: nothing that follows is known.
        at = at.checked_add(bytes).filter(|_| bytes >= 8)?;
    }
    Some(MachImage { code: code?, uuid })
}

/// A name that ends with a NUL; `None` if it cannot be read to its end.
pub(crate) fn text(memory: &impl Memory, at: usize) -> Option<String> {
    let mut bytes = Vec::new();
    while bytes.len() < MOST_PATH_BYTES && at != 0 {
        match memory.byte(at.checked_add(bytes.len())?)? {
            0 => return Some(String::from_utf8_lossy(&bytes).into_owned()),
            byte => bytes.push(byte),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::LittleEndian;
    use object::macho::MachHeader64;
    use object::read::macho::MachHeader as _;
    use proptest::prelude::*;

    /// The beginning of a library that zig has linked for macOS from `int f(void) { return 1; }`.
    const LIBRARY: &[u8] = include_bytes!("../../tests/data/header.dylib");
    const AT: usize = 0x1_0000_0000;

    /// Bytes at [`AT`], and nothing else.
    struct ImageBytes<'a>(&'a [u8]);

    impl Memory for ImageBytes<'_> {
        fn read(&self, at: usize, out: &mut [u8]) -> Option<()> {
            let from = at.checked_sub(AT)?;
            out.copy_from_slice(self.0.get(from..from.checked_add(out.len())?)?);
            Some(())
        }
    }

    #[test]
    fn a_library_is_what_another_reader_says() {
        let ours = image(&ImageBytes(LIBRARY), AT).unwrap();
        let header = MachHeader64::<LittleEndian>::parse(LIBRARY, 0).unwrap();
        assert_eq!(header.filetype(LittleEndian), object::macho::MH_DYLIB);
        let (mut code, mut uuid) = (Vec::new(), None);
        let mut commands = header.load_commands(LittleEndian, LIBRARY, 0).unwrap();
        while let Some(command) = commands.next().unwrap() {
            uuid = uuid.or(command.uuid().unwrap().map(|command| command.uuid));
            let Some((segment, _)) = command.segment_64().unwrap() else { continue };
            if segment.initprot.get(LittleEndian) & object::macho::VM_PROT_EXECUTE != 0 {
                let start = segment.vmaddr.get(LittleEndian);
                code.push(start..start + segment.vmsize.get(LittleEndian));
            }
        }
        assert_eq!(vec![ours.code.clone()], code);
        assert_eq!(ours.uuid, uuid);
        assert!(ours.uuid.is_some() && !ours.code.is_empty());
    }

    #[test]
    fn wherever_memory_ends_nothing_is_made_up() {
        let whole = image(&ImageBytes(LIBRARY), AT).unwrap();
        let commands = u32::from_le_bytes(LIBRARY[20..24].try_into().unwrap()) as usize;
        for len in 0..LIBRARY.len() {
            let cut = image(&ImageBytes(&LIBRARY[..len]), AT);
            assert!(cut.is_none() || cut.as_ref() == Some(&whole), "{len}");
            assert!(len + 64 > HEADER_BYTES + commands || cut.is_none(), "{len}");
        }
    }

    #[test]
    fn a_name_is_read_to_its_end_or_not_at_all() {
        assert_eq!(text(&ImageBytes(b"/usr/lib/a.dylib\0rest"), AT).as_deref(), Some("/usr/lib/a.dylib"));
        assert_eq!(text(&ImageBytes(b"/usr/lib/a.dylib"), AT), None);
        assert_eq!(text(&ImageBytes(b"\0"), AT).as_deref(), Some(""));
        assert_eq!(text(&ImageBytes(b"\0"), 0), None);
        assert_eq!(text(&ImageBytes(&[b'a'; 2 * MOST_PATH_BYTES]), AT), None);
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_read_without_panic(at in 0usize..1024, byte: u8, header: bool, noise: [u8; 32]) {
            let mut bytes = LIBRARY.to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            if header {
                bytes[32..64].copy_from_slice(&noise);
            }
            let _ = image(&ImageBytes(&bytes), AT);
            let _ = image(&ImageBytes(&noise), AT);
        }
    }
}
