//! Numbers as C++ reads them: the longest prefix that is a number, the rest ignored.
//!
//! PyTorch reads its settings with `std::stoi`, `std::stoull` and `std::stod`. So `20.5` is 20 in
//! place of an integer, and `-1` is the largest one.

/// `std::stoull`: wraps negative numbers. `None` without digits or above 64 bits.
pub(super) fn parse_u64(text: &str) -> Option<u64> {
    let (is_negative, digits) = split_integer(text)?;
    let value = digits.parse::<u64>().ok()?;
    Some(if is_negative { value.wrapping_neg() } else { value })
}

/// `std::stoi`, converted to `size_t`: sign-extended. `None` without digits or outside of 32 bits.
pub(super) fn parse_i32_as_u64(text: &str) -> Option<u64> {
    let (is_negative, digits) = split_integer(text)?;
    let value = digits.parse::<i64>().ok()?;
    let value = i32::try_from(if is_negative { -value } else { value }).ok()?;
    Some(i64::from(value) as u64)
}

/// `std::stod` for decimal numbers. `None` without digits.
pub(super) fn parse_f64(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let digits_from = |at: usize| text[at..].bytes().take_while(u8::is_ascii_digit).count();
    let mut end = usize::from(text.starts_with(['+', '-']));
    let whole = digits_from(end);
    end += whole;
    let mut fraction = 0;
    if text[end..].starts_with('.') {
        fraction = digits_from(end + 1);
        if whole + fraction > 0 {
            end += 1 + fraction;
        }
    }
    if whole + fraction == 0 {
        return None;
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        let exponent = digits_from(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    text[..end].parse().ok()
}

/// The sign and the leading digits; `None` without digits.
fn split_integer(text: &str) -> Option<(bool, &str)> {
    let text = text.trim_start();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    (end > 0).then(|| (text.starts_with('-'), &digits[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_cpp_reads_them() {
        assert_eq!(
            ["20", "20x", "-1", "+7", "20.5", "x", "", "-"].map(parse_u64),
            [Some(20), Some(20), Some(u64::MAX), Some(7), Some(20), None, None, None]
        );
        assert_eq!(parse_u64("99999999999999999999"), None);
        assert_eq!(
            ["9999999999", "-1", "2147483647"].map(parse_i32_as_u64),
            [None, Some(u64::MAX), Some(2_147_483_647)]
        );
        assert_eq!(
            ["0.5", ".5e0z", "5.", "1e-1", "1e", ".", "nan", "-2x"].map(parse_f64),
            [Some(0.5), Some(0.5), Some(5.0), Some(0.1), Some(1.0), None, None, Some(-2.0)]
        );
    }
}
