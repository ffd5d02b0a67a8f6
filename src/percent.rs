//! Percent-encoding in URLs, read strictly (RFC 3986, 2.1).

/// Why a part of a URL cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A % is not followed by two hexadecimal digits, or stands for a zero byte, which no name may hold.
    Escape,
    /// The bytes that come out are not UTF-8.
    Utf8,
}

/// Decodes every %XX.
///
/// # Errors
/// [`Fault`]: tell what to write; the text itself may be a password.
pub(crate) fn decode(text: &str) -> Result<String, Fault> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) if high + low > 0 => bytes.push((high * 16 + low) as u8),
            _ => return Err(Fault::Escape),
        }
    }
    String::from_utf8(bytes).map_err(|_| Fault::Utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_what_is_none_is_refused() {
        for (text, want) in [("", ""), ("a+b c", "a+b c"), ("%41%7a%C3%bc%25", "Azü%")] {
            assert_eq!(decode(text), Ok(want.to_owned()));
        }
        for text in ["%", "a%4", "%4g", "%g4", "%00", "50%secret", "%%41", "%\u{fc}"] {
            assert_eq!(decode(text), Err(Fault::Escape), "{text}");
        }
        assert_eq!(decode("%ff"), Err(Fault::Utf8));
    }
}
