//! The ranks that exports have chosen and not yet written.
//!
//! Each export keeps them in its hidden folder. After a killed export they stay there: its process
//! gets the same number again, and other processes pass over it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::HIDDEN;
use super::owner::Owner;

const FILE: &str = "claims.json";

/// The ranks of one run.
#[derive(Serialize, Deserialize)]
struct Claims {
    run: String,
    owners: BTreeMap<u64, Owner>,
}

/// Keeps the ranks of an export. The caller holds the lock of the archive.
pub(super) fn write_claims(hidden: &Path, run: &str, owners: BTreeMap<u64, Owner>) -> anyhow::Result<()> {
    let claims = Claims { run: run.to_owned(), owners };
    Ok(std::fs::write(hidden.join(FILE), serde_json::to_vec(&claims)?)?)
}

/// The ranks of a run that exports to this archive have chosen. The caller holds the lock of the
/// archive.
pub(super) fn read_claims(archive: &Path, run: &str) -> BTreeMap<u64, Owner> {
    let mut owners = BTreeMap::new();
    for entry in std::fs::read_dir(archive).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(HIDDEN) {
            continue;
        }
        let text = std::fs::read(entry.path().join(FILE)).unwrap_or_default();
        if let Ok(claims) = serde_json::from_slice::<Claims>(&text)
            && claims.run == run
        {
            owners.extend(claims.owners);
        }
    }
    owners
}
