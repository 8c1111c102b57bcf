//! Numbers as the format has them.

/// Nanoseconds as milliseconds, the unit of all times in the format.
pub(super) fn milliseconds(time_ns: u64) -> f64 {
    time_ns as f64 / 1e6
}

/// An address that a reader in JavaScript keeps: numbers have 53 bits. Addresses of user space have
/// fewer.
pub(super) fn safe_address(address: u64) -> u64 {
    address & ((1 << 53) - 1)
}
