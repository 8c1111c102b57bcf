//! Reads the flags and entitlements of a code signature, in the layout of XNU's `cs_blobs.h`.
//!
//! Nothing is verified here: only macOS can tell whether a signature is valid, and does so at the
//! start of the program.

use super::entitlements::{self, Entitlements};

const SUPER_BLOB: u32 = 0xfade_0cc0;
const CODE_DIRECTORY: u32 = 0xfade_0c02;
const ENTITLEMENTS: u32 = 0xfade_7171;
const ENTITLEMENTS_DER: u32 = 0xfade_7172;
/// More blobs than there are kinds of them.
const MOST_BLOBS: usize = 64;

/// dyld ignores environment variables.
const CS_RESTRICT: u32 = 0x800;
/// Library validation: only libraries of Apple and of the program's team may be loaded.
const CS_REQUIRE_LV: u32 = 0x2000;
/// The hardened runtime, which implies both of the above unless entitlements lift them.
const CS_RUNTIME: u32 = 0x1_0000;

/// The code signature of one program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CodeSignature {
    /// The flags of all code directories, combined. The directories differ only in their hashes.
    flags: u32,
    /// The signature marks the program as part of macOS.
    pub is_of_system: bool,
    /// The entitlements that matter for injection.
    pub entitlements: Entitlements,
}

impl CodeSignature {
    /// Reads a signature; `None` without a code directory.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if number(bytes, 0)? != SUPER_BLOB {
            return None;
        }
        let mut signature = Self::default();
        let (mut has_directory, mut xml, mut der) = (false, None, None);
        for entry in 0..(number(bytes, 8)? as usize).min(MOST_BLOBS) {
            // The blob's own magic number says what kind it is.
            let Some(blob) = number(bytes, 12 + 8 * entry + 4).and_then(|at| blob(bytes, at as usize)) else {
                continue;
            };
            match number(blob, 0)? {
                CODE_DIRECTORY => {
                    has_directory = true;
                    signature.flags |= number(blob, 12).unwrap_or(0);
                    signature.is_of_system |= blob.get(38).is_some_and(|platform| *platform != 0);
                }
                ENTITLEMENTS => xml = Some(entitlements::parse_plist(&blob[8..])),
                ENTITLEMENTS_DER => der = Some(entitlements::parse_der(&blob[8..])),
                _ => {}
            }
        }
        // If both forms are present, macOS uses DER.
        signature.entitlements = der.or(xml).unwrap_or_default();
        has_directory.then_some(signature)
    }

    /// True if dyld ignores `DYLD_INSERT_LIBRARIES`, whatever the entitlements.
    pub fn is_restricted(&self) -> bool {
        self.flags & CS_RESTRICT != 0
    }

    /// True if dyld ignores `DYLD_INSERT_LIBRARIES` because an entitlement is missing.
    pub fn ignores_variables(&self) -> bool {
        self.flags & CS_RUNTIME != 0 && !self.entitlements.allows_variables
    }

    /// True if libraries of other teams are refused.
    pub fn validates_libraries(&self) -> bool {
        let is_hardened = self.flags & CS_RUNTIME != 0;
        self.flags & CS_REQUIRE_LV != 0 || (is_hardened && !self.entitlements.allows_foreign_libraries)
    }
}

/// The blob at this offset, with its head of 8 bytes: a magic number and the length.
fn blob(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let len = number(rest, 4)? as usize;
    rest.get(..len).filter(|blob| blob.len() >= 8)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
