//! Reads the header of a Mach-O module in memory.
//!
//! The module may be unloaded meanwhile. So every word comes through [`Memory`], which refuses
//! addresses that are not mapped, and no number in the header is trusted.
//!
//! Layout: `mach-o/loader.h`.

use std::ops::Range;

use crate::platform::process_memory::Memory;

const MAGIC_64: u32 = 0xfeed_facf;
const HEADER_BYTES: usize = 32;
const COMMANDS_AT: usize = 16;
const SEGMENT_64: u32 = 0x19;
const UUID: u32 = 0x1b;
/// The value of `VM_PROT_EXECUTE` in `mach/vm_prot.h`.
const EXECUTES: u32 = 4;
/// Limit for damaged headers; real ones have a few dozen commands.
const MAX_COMMANDS: u32 = 4096;
/// The value of `MAXPATHLEN` on macOS.
const MAX_PATH_BYTES: usize = 1024;

/// The facts about a module that its header contains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MachImage {
    /// The linked address range of its executable segments only: system libraries keep their data
    /// far away.
    pub(crate) code: Range<u64>,
    /// The `LC_UUID` of the build.
    pub(crate) uuid: Option<[u8; 16]>,
}

/// Parses the Mach-O header at `header_at`. Returns `None` if it is not valid or the module has no
/// code.
pub(crate) fn read_image(memory: &impl Memory, header_at: usize) -> Option<MachImage> {
    if memory.half(header_at)? != MAGIC_64 {
        return None;
    }
    let commands = memory.half(header_at.checked_add(COMMANDS_AT)?)?.min(MAX_COMMANDS);
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
        // A command shorter than its own header: the position of the next one is unknown.
        at = at.checked_add(bytes).filter(|_| bytes >= 8)?;
    }
    Some(MachImage { code: code?, uuid })
}

/// Reads a NUL-terminated string. Returns `None` if it cannot be read to its end.
pub(crate) fn read_c_string(memory: &impl Memory, at: usize) -> Option<String> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_PATH_BYTES && at != 0 {
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

    /// The first bytes of a library that zig linked for macOS from `int f(void) { return 1; }`.
    const LIBRARY: &[u8] = include_bytes!("../../tests/data/header.dylib");
    const AT: usize = 0x1_0000_0000;

    /// An address space with these bytes at [`AT`] and no other memory.
    struct ImageBytes<'a>(&'a [u8]);

    impl Memory for ImageBytes<'_> {
        fn read(&self, at: usize, out: &mut [u8]) -> Option<()> {
            let from = at.checked_sub(AT)?;
            out.copy_from_slice(self.0.get(from..from.checked_add(out.len())?)?);
            Some(())
        }
    }

    #[test]
    fn header_agrees_with_the_object_crate() {
        let ours = read_image(&ImageBytes(LIBRARY), AT).unwrap();
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
    fn header_cut_at_any_byte_gives_nothing_or_the_same() {
        let whole = read_image(&ImageBytes(LIBRARY), AT).unwrap();
        let commands = u32::from_le_bytes(LIBRARY[20..24].try_into().unwrap()) as usize;
        for len in 0..LIBRARY.len() {
            let cut = read_image(&ImageBytes(&LIBRARY[..len]), AT);
            assert!(cut.is_none() || cut.as_ref() == Some(&whole), "{len}");
            assert!(len + 64 > HEADER_BYTES + commands || cut.is_none(), "{len}");
        }
    }

    #[test]
    fn c_string_is_read_to_its_end_or_not_at_all() {
        assert_eq!(
            read_c_string(&ImageBytes(b"/usr/lib/a.dylib\0rest"), AT).as_deref(),
            Some("/usr/lib/a.dylib")
        );
        assert_eq!(read_c_string(&ImageBytes(b"/usr/lib/a.dylib"), AT), None);
        assert_eq!(read_c_string(&ImageBytes(b"\0"), AT).as_deref(), Some(""));
        assert_eq!(read_c_string(&ImageBytes(b"\0"), 0), None);
        assert_eq!(read_c_string(&ImageBytes(&[b'a'; 2 * MAX_PATH_BYTES]), AT), None);
    }

    proptest! {
        #[test]
        fn damaged_header_is_read_without_panic(at in 0usize..1024, byte: u8, header: bool, noise: [u8; 32]) {
            let mut bytes = LIBRARY.to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            if header {
                bytes[32..64].copy_from_slice(&noise);
            }
            let _ = read_image(&ImageBytes(&bytes), AT);
            let _ = read_image(&ImageBytes(&noise), AT);
        }
    }
}
