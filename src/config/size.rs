//! Sizes as people write them: `512MiB`, `2GiB`, `64KiB`, or plain bytes.

/// A text that is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a whole number.
    #[error("use a whole number of bytes, or one with KiB, MiB, GiB or TiB, such as 512MiB")]
    NotANumber,
    /// An unknown unit.
    #[error("unknown unit {0:?}: use KiB, MiB, GiB or TiB (binary), or plain bytes")]
    Unit(String),
    /// More than fits.
    #[error("too large")]
    TooLarge,
}

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// Reads a size in bytes. Units are binary and exact; letters of either case are taken, a space before the unit too.
///
/// # Errors
/// [`SizeError`].
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    if number.is_empty() || unit.starts_with(['.', ',', '_']) {
        return Err(SizeError::NotANumber);
    }
    let shift = if unit.is_empty() {
        0
    } else {
        let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        known.ok_or_else(|| SizeError::Unit(unit.to_owned()))?.1
    };
    let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
    number.checked_mul(1 << shift).ok_or(SizeError::TooLarge)
}

/// Writes a size in the largest unit that keeps it exact.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let exact = UNITS.iter().find(|(_, shift)| *shift > 0 && bytes > 0 && bytes.trailing_zeros() >= *shift);
    exact.map_or_else(|| bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_exact() {
        for (text, bytes) in [
            ("0", 0),
            ("1000", 1000),
            ("64KiB", 65_536),
            ("512MiB", 536_870_912),
            ("2GiB", 2_147_483_648),
            ("50 gib", 53_687_091_200),
            ("1TiB", 1_099_511_627_776),
            ("7B", 7),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("2GB"), Err(SizeError::Unit("GB".to_owned())));
        assert_eq!(parse_size("1.5GiB"), Err(SizeError::NotANumber));
        assert_eq!(parse_size("-1"), Err(SizeError::NotANumber));
        assert_eq!(parse_size(""), Err(SizeError::NotANumber));
        assert_eq!(parse_size("18446744073709551616"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("17179869184GiB"), Err(SizeError::TooLarge));
    }

    #[test]
    fn sizes_are_written_back_as_they_were() {
        for text in ["0", "1000", "64KiB", "512MiB", "2GiB", "3TiB"] {
            assert_eq!(format_size(parse_size(text).unwrap()), text);
        }
    }
}
