//! Reads that fail for a moment: tried again, a few times, then given up.
//!
//! In: a read and where it is. Out: its result, or the error that stayed, with file and offset. Called by whatever reads
//! block files, on threads that may wait. A disk or a network mount that fails once and answers a second later must not
//! end a replay of hours; one that goes on failing must not hang it.

use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::blk::SourceError;

/// Pauses before the second, third, ... attempt.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_millis(1_500),
];

/// Runs a read, again where it fails for a reason that may pass.
///
/// # Errors
/// [`SourceError::Read`]: a reason that does not pass by waiting, or that has not passed.
pub(super) fn read<T>(
    path: &Path,
    offset: u64,
    attempt: impl FnMut() -> io::Result<T>,
) -> Result<T, SourceError> {
    read_with(path, offset, &PAUSES, attempt)
}

fn read_with<T>(
    path: &Path,
    offset: u64,
    pauses: &[Duration],
    mut attempt: impl FnMut() -> io::Result<T>,
) -> Result<T, SourceError> {
    let mut pauses = pauses.iter();
    loop {
        let error = match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        match pauses.next() {
            Some(pause) if may_pass(&error) => {
                tracing::warn!(file = %path.display(), offset, %error, "reading failed, trying again");
                thread::sleep(*pause);
            }
            _ => return Err(SourceError::Read { path: path.to_owned(), offset, source: error }),
        }
    }
}

/// Returns whether waiting may help: a failing disk or network mount, a system short of memory or descriptors.
fn may_pass(error: &io::Error) -> bool {
    let is_passing_code = matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EAGAIN | libc::ESTALE | libc::ENOMEM | libc::ENFILE | libc::EMFILE)
    );
    let is_passing_kind = matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    );
    is_passing_code || is_passing_kind
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails with these codes, one after the other, then succeeds; returns the result and the number of attempts.
    fn attempts(codes: &[i32]) -> (Result<u8, SourceError>, usize) {
        let (pauses, mut count) = ([Duration::from_millis(1); 4], 0);
        let result = read_with(Path::new("/blocks/blk00007.dat"), 4_711, &pauses, || {
            count += 1;
            match codes.get(count - 1) {
                Some(code) => Err(io::Error::from_raw_os_error(*code)),
                None => Ok(42),
            }
        });
        (result, count)
    }

    #[test]
    fn a_read_that_fails_for_a_moment_is_tried_again() {
        for codes in [vec![], vec![libc::EIO], vec![libc::EAGAIN, libc::EINTR, libc::ESTALE, libc::ETIMEDOUT]]
        {
            let (result, count) = attempts(&codes);
            assert_eq!((result.unwrap(), count), (42, codes.len() + 1), "{codes:?}");
        }
    }

    #[test]
    fn a_read_that_goes_on_failing_is_given_up_and_names_file_and_offset() {
        let (result, count) = attempts(&[libc::EIO; 9]);
        let text = result.unwrap_err().to_string();
        assert_eq!(count, 5);
        assert!(text.contains("/blocks/blk00007.dat at offset 4711: Input/output error"), "{text}");
    }

    #[test]
    fn a_reason_that_stays_is_not_waited_for() {
        for code in [libc::ENOENT, libc::EACCES, libc::EISDIR] {
            let (result, count) = attempts(&[code]);
            assert_eq!(count, 1);
            assert!(matches!(result, Err(SourceError::Read { offset: 4_711, .. })));
        }
    }
}
