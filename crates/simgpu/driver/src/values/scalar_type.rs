//! PyTorch's element types, by the numbers of `c10::ScalarType`, and conversions between them.
//!
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/torch/headeronly/core/ScalarType.h>

use std::cmp::Ordering;

/// The number of an element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScalarType(pub(crate) i8);

impl ScalarType {
    pub(crate) const BYTE: Self = Self(0);
    pub(crate) const CHAR: Self = Self(1);
    pub(crate) const SHORT: Self = Self(2);
    pub(crate) const INT: Self = Self(3);
    pub(crate) const LONG: Self = Self(4);
    pub(crate) const HALF: Self = Self(5);
    pub(crate) const FLOAT: Self = Self(6);
    pub(crate) const DOUBLE: Self = Self(7);
    pub(crate) const BOOL: Self = Self(11);
    pub(crate) const BFLOAT16: Self = Self(15);

    /// Bytes of an element; `None` for types that are not computed.
    pub(crate) fn size_bytes(self) -> Option<u64> {
        match self {
            Self::BYTE | Self::CHAR | Self::BOOL => Some(1),
            Self::SHORT | Self::HALF | Self::BFLOAT16 => Some(2),
            Self::INT | Self::FLOAT => Some(4),
            Self::LONG | Self::DOUBLE => Some(8),
            _ => None,
        }
    }

    /// Bytes of an element of any type, as in `c10::elementSize`. Unknown types count as 1 byte.
    pub(crate) fn storage_bytes(self) -> u64 {
        // ComplexHalf and QInt32, ComplexFloat, ComplexDouble, and the unsigned types.
        match self.0 {
            8 | 14 | 28 => 4,
            9 | 29 => 8,
            10 => 16,
            27 => 2,
            _ => self.size_bytes().unwrap_or(1),
        }
    }

    pub(crate) fn is_floating(self) -> bool {
        matches!(self, Self::HALF | Self::FLOAT | Self::DOUBLE | Self::BFLOAT16)
    }
}

/// A value of any element type. Integers are kept exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    Integer(i64),
    Real(f64),
}

impl Value {
    /// Reads an element.
    ///
    /// # Safety
    ///
    /// `place` holds an element of the type, which has a size.
    pub(crate) unsafe fn read(place: u64, kind: ScalarType) -> Self {
        // SAFETY: by the contract of this function; elements may be unaligned.
        unsafe {
            match kind {
                ScalarType::CHAR => Self::Integer(i64::from((place as *const i8).read_unaligned())),
                ScalarType::SHORT => Self::Integer(i64::from((place as *const i16).read_unaligned())),
                ScalarType::INT => Self::Integer(i64::from((place as *const i32).read_unaligned())),
                ScalarType::LONG => Self::Integer((place as *const i64).read_unaligned()),
                ScalarType::HALF => Self::Real(half_to_f64((place as *const u16).read_unaligned())),
                ScalarType::BFLOAT16 => {
                    let bits = u32::from((place as *const u16).read_unaligned()) << 16;
                    Self::Real(f64::from(f32::from_bits(bits)))
                }
                ScalarType::FLOAT => Self::Real(f64::from((place as *const f32).read_unaligned())),
                ScalarType::DOUBLE => Self::Real((place as *const f64).read_unaligned()),
                _ => Self::Integer(i64::from((place as *const u8).read_unaligned())),
            }
        }
    }

    /// Writes an element, converted as C converts it.
    ///
    /// # Safety
    ///
    /// `place` has room for an element of the type, which has a size.
    pub(crate) unsafe fn write(self, place: u64, kind: ScalarType) {
        // SAFETY: by the contract of this function; elements may be unaligned.
        unsafe {
            match kind {
                ScalarType::BOOL => (place as *mut u8).write(u8::from(self.is_true())),
                ScalarType::SHORT => (place as *mut i16).write_unaligned(self.integer() as i16),
                ScalarType::INT => (place as *mut i32).write_unaligned(self.integer() as i32),
                ScalarType::LONG => (place as *mut i64).write_unaligned(self.integer()),
                ScalarType::HALF => (place as *mut u16).write_unaligned(f64_to_half(self.real())),
                ScalarType::BFLOAT16 => {
                    (place as *mut u16).write_unaligned(f32_to_bfloat16(self.real() as f32));
                }
                ScalarType::FLOAT => (place as *mut f32).write_unaligned(self.real() as f32),
                ScalarType::DOUBLE => (place as *mut f64).write_unaligned(self.real()),
                _ => (place as *mut u8).write(self.integer() as u8),
            }
        }
    }

    pub(crate) fn integer(self) -> i64 {
        match self {
            Self::Integer(value) => value,
            Self::Real(value) => value as i64,
        }
    }

    pub(crate) fn real(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Real(value) => value,
        }
    }

    /// Compares values of one type. NaN comes last.
    pub(crate) fn order(self, other: Self) -> Ordering {
        if let (Self::Integer(one), Self::Integer(other)) = (self, other) {
            return one.cmp(&other);
        }
        let (one, other) = (self.real(), other.real());
        one.partial_cmp(&other).unwrap_or_else(|| one.is_nan().cmp(&other.is_nan()))
    }

    pub(crate) fn is_true(self) -> bool {
        match self {
            Self::Integer(value) => value != 0,
            Self::Real(value) => value != 0.0,
        }
    }
}

fn half_to_f64(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    }
}

/// The nearest half-precision number, ties to even.
fn f64_to_half(value: f64) -> u16 {
    let sign = u16::from(value.is_sign_negative()) << 15;
    let size = value.abs();
    if size.is_nan() {
        return sign | 0x7e00;
    }
    if size >= 65520.0 {
        return sign | 0x7c00;
    }
    if size < 2_f64.powi(-14) {
        return sign | (size * 2_f64.powi(24)).round_ties_even() as u16;
    }
    let exponent = size.log2().floor() as i32;
    let fraction = ((size / 2_f64.powi(exponent) - 1.0) * 1024.0).round_ties_even() as u16;
    sign | (((exponent + 15) as u16) << 10).wrapping_add(fraction)
}

/// The nearest bfloat16, ties to even.
fn f32_to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() { 0x7fc0 } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(value: Value, kind: ScalarType) -> Value {
        let mut room = [0_u8; 8];
        let place = room.as_mut_ptr() as u64;
        // SAFETY: the room has 8 bytes.
        unsafe {
            value.write(place, kind);
            Value::read(place, kind)
        }
    }

    #[test]
    fn every_half_survives_a_round_trip() {
        for bits in (0..=u16::MAX).filter(|bits| !half_to_f64(*bits).is_nan()) {
            assert_eq!(f64_to_half(half_to_f64(bits)), bits);
        }
        assert_eq!((f64_to_half(f64::NAN), f64_to_half(1e9), f64_to_half(65504.0)), (0x7e00, 0x7c00, 0x7bff));
    }

    #[test]
    fn values_are_converted_as_in_c() {
        assert_eq!(converted(Value::Real(-2.9), ScalarType::LONG), Value::Integer(-2));
        assert_eq!(converted(Value::Integer(-1), ScalarType::BYTE), Value::Integer(255));
        assert_eq!(converted(Value::Real(0.5), ScalarType::BOOL), Value::Integer(1));
        assert_eq!(converted(Value::Integer(i64::MAX), ScalarType::LONG), Value::Integer(i64::MAX));
        assert_eq!(converted(Value::Integer(3), ScalarType::BFLOAT16), Value::Real(3.0));
        assert_eq!(converted(Value::Real(1.0 / 3.0), ScalarType::HALF), Value::Real(0.333_251_953_125));
    }
}
