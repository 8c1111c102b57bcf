//! What a code signature allows, in the layout of XNU's `cs_blobs.h`.
//!
//! Constraint: nobody but macOS can say whether a signature holds, and it does so when the program starts. Consequence: nothing is
//! verified here. Read is only what the program asks for: the flags of its code directories, and its entitlements.

use super::entitlements::{self, Entitlements};

const SUPER_BLOB: u32 = 0xfade_0cc0;
const CODE_DIRECTORY: u32 = 0xfade_0c02;
const ENTITLEMENTS: u32 = 0xfade_7171;
const ENTITLEMENTS_DER: u32 = 0xfade_7172;
/// More than there are kinds of blobs.
const MOST_BLOBS: usize = 64;

/// The loader is to take no environment into account.
const CS_RESTRICT: u32 = 0x800;
/// Only libraries of Apple's and of the program's own team may be loaded.
const CS_REQUIRE_LV: u32 = 0x2000;
/// The hardened runtime: both of these, unless entitlements say otherwise.
const CS_RUNTIME: u32 = 0x1_0000;

/// Of one program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CodeSignature {
    /// Of all code directories: they are the same with other hashes.
    flags: u32,
    /// It says that it is part of the system.
    pub is_of_system: bool,
    /// What it was given.
    pub entitlements: Entitlements,
}

impl CodeSignature {
    /// Reads it; `None` if these bytes are no signature that has a code directory.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if number(bytes, 0)? != SUPER_BLOB {
            return None;
        }
        let mut signature = Self::default();
        let (mut has_directory, mut xml, mut der) = (false, None, None);
        for entry in 0..(number(bytes, 8)? as usize).min(MOST_BLOBS) {
            // What kind it is, the blob says itself.
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
        // The two say the same; where there are both, macOS goes by the second form.
        signature.entitlements = der.or(xml).unwrap_or_default();
        has_directory.then_some(signature)
    }

    /// The loader ignores `DYLD_INSERT_LIBRARIES`, whatever the entitlements are.
    pub fn is_restricted(&self) -> bool {
        self.flags & CS_RESTRICT != 0
    }

    /// The loader ignores `DYLD_INSERT_LIBRARIES` for want of an entitlement.
    pub fn ignores_variables(&self) -> bool {
        self.flags & CS_RUNTIME != 0 && !self.entitlements.allows_variables
    }

    /// A library of somebody else's is refused.
    pub fn validates_libraries(&self) -> bool {
        let is_hardened = self.flags & CS_RUNTIME != 0;
        self.flags & CS_REQUIRE_LV != 0 || (is_hardened && !self.entitlements.allows_foreign_libraries)
    }
}

/// The blob that begins here, with its head of 8 bytes: a magic number and its length.
fn blob(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let len = number(rest, 4)? as usize;
    rest.get(..len).filter(|blob| blob.len() >= 8)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
