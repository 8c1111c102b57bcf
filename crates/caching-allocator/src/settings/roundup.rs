//! The setting `roundup_power2_divisions`: rounds requests up to parts of a power of two.
//!
//! With 4 divisions, a request between 1024 and 2048 MiB becomes 1280, 1536, 1792 or 2048 MiB. The
//! number of divisions depends on the power of two below the request, from 1 MiB to 32 GiB.

use super::SettingsError;
use super::parser::SettingsReader;

const INTERVALS: usize = 16;
const FIRST_INTERVAL_LOG2: u32 = 20;
/// First minor version that accepts 0 divisions in a list; 2.3 does not, 2.5 does.
const ZERO_SINCE: u32 = 4;

/// Divisions for each power of two from 1 MiB on. 0 and 1 leave requests as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RoundupDivisions([u64; INTERVALS]);

impl RoundupDivisions {
    /// Divisions for a request of `bytes`, 0 if there are none. Requests below the first interval
    /// have its divisions, and requests above the last one those of the last.
    pub fn divisions_for(&self, bytes: u64) -> u64 {
        let interval = bytes.max(1).ilog2().saturating_sub(FIRST_INTERVAL_LOG2) as usize;
        self.0[interval.min(INTERVALS - 1)]
    }

    /// Reads one number, or a list such as `[256:1,512:2,>:8]`.
    pub(super) fn parse(reader: &mut SettingsReader) -> Result<Self, SettingsError> {
        if reader.peek() != Some("[") {
            let divisions = reader.read_integer()?;
            return if divisions.is_power_of_two() {
                Ok(Self([divisions; INTERVALS]))
            } else {
                Err(reader.refuse(&divisions.to_string(), "divisions must be a power of 2"))
            };
        }
        reader.skip("[")?;
        Self::parse_list(reader)
    }

    fn parse_list(reader: &mut SettingsReader) -> Result<Self, SettingsError> {
        let mut table = [0; INTERVALS];
        let mut last_interval = None;
        while reader.peek() != Some("]") {
            let is_rest = reader.peek() == Some(">");
            let bound = if is_rest { reader.skip(">").map(|()| 0)? } else { reader.read_integer()? };
            reader.skip(":")?;
            let divisions = reader.read_integer()?;
            let is_allowed_zero = divisions == 0 && reader.version().minor() >= ZERO_SINCE;
            if !divisions.is_power_of_two() && !is_allowed_zero {
                return Err(reader.refuse(&divisions.to_string(), "divisions must be a power of 2"));
            }
            if is_rest {
                // Releases up to 2.9 also overwrite the interval before `>`.
                let from = last_interval.unwrap_or(0) + usize::from(!reader.is_before_unified_parser());
                table[from.min(INTERVALS)..].fill(divisions);
            } else if bound.is_power_of_two() {
                let interval = (bound.ilog2() as usize).min(INTERVALS - 1);
                if last_interval.is_none() {
                    table[..interval].fill(divisions);
                }
                table[interval] = divisions;
                last_interval = Some(interval);
            } else {
                return Err(reader.refuse(&bound.to_string(), "sizes in MiB must be a power of 2"));
            }
            if reader.peek() != Some("]") {
                reader.skip(",")?;
            }
        }
        reader.skip("]")?;
        Ok(Self(table))
    }
}
