//! SHA-256 of many messages, two at a time where the processor has the SHA extensions.
//!
//! In: messages by their number. Out: their hashes, in any order. The rounds of one message wait for each other, so a
//! core that works on one alone is idle half the time; two at once take little longer than one. Without the extensions
//! the bitcoin crate hashes one after the other. Called by the block parser and the merkle tree only.

use super::hash::{Hash32, sha256, sha256d};

/// Hashes `count` messages; `done` gets the number and the hash of each. `message` may be called more than once.
#[inline]
pub fn sha256_many<'a>(
    count: usize,
    message: impl Fn(usize) -> &'a [u8],
    mut done: impl FnMut(usize, Hash32),
) {
    #[cfg(target_arch = "x86_64")]
    if lanes::are_supported() {
        return lanes::hash_many::<false>(count, message, done);
    }
    (0..count).for_each(|number| done(number, sha256(message(number))));
}

/// Hashes `count` messages twice, as block hashes and txids are made; `done` gets the number and the hash of each.
#[inline]
pub fn sha256d_many<'a>(
    count: usize,
    message: impl Fn(usize) -> &'a [u8],
    mut done: impl FnMut(usize, Hash32),
) {
    #[cfg(target_arch = "x86_64")]
    if lanes::are_supported() {
        return lanes::hash_many::<true>(count, message, done);
    }
    (0..count).for_each(|number| done(number, sha256d(message(number))));
}

/// Two messages side by side (FIPS 180-4, section 6.2; Intel's SHA extensions).
#[cfg(target_arch = "x86_64")]
mod lanes {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_blend_epi16, _mm_loadu_si128, _mm_set_epi64x,
        _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8,
        _mm_shuffle_epi32, _mm_storeu_si128,
    };

    use super::Hash32;

    const BLOCK_BYTES: usize = 64;
    /// A message's last bytes, its end mark and its length take one block or two.
    const TAIL_BYTES_MAX: usize = 2 * BLOCK_BYTES;

    const INITIAL: [u32; 8] =
        [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

    #[rustfmt::skip]
    const ROUND_CONSTANTS: [u32; 64] = [
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    ];

    /// Whether this processor has what [`hash_many`] needs.
    #[inline]
    pub(super) fn are_supported() -> bool {
        is_x86_feature_detected!("sha")
            && is_x86_feature_detected!("sse2")
            && is_x86_feature_detected!("ssse3")
            && is_x86_feature_detected!("sse4.1")
    }

    /// A message on its way.
    struct Lane<'a> {
        number: usize,
        state: [u32; 8],
        /// Whole blocks that are left, then the tail.
        whole: &'a [u8],
        tail: [u8; TAIL_BYTES_MAX],
        /// What is left of the tail.
        tail_from: usize,
        tail_to: usize,
        /// Whether the hash itself is hashed.
        is_again: bool,
    }

    impl<'a> Lane<'a> {
        fn idle() -> Self {
            let tail = [0; TAIL_BYTES_MAX];
            Lane { number: 0, state: INITIAL, whole: &[], tail, tail_from: 0, tail_to: 0, is_again: false }
        }

        #[inline]
        fn begin(&mut self, number: usize, message: &'a [u8]) {
            self.number = number;
            self.state = INITIAL;
            self.is_again = false;
            let (whole, rest) = message.split_at(message.len() / BLOCK_BYTES * BLOCK_BYTES);
            self.whole = whole;
            self.tail_from = 0;
            self.tail_to = if rest.len() + 9 <= BLOCK_BYTES { BLOCK_BYTES } else { TAIL_BYTES_MAX };
            self.tail[..rest.len()].copy_from_slice(rest);
            self.tail[rest.len()] = 0x80;
            self.tail[rest.len() + 1..self.tail_to - 8].fill(0);
            let bits = (message.len() as u64) << 3;
            self.tail[self.tail_to - 8..self.tail_to].copy_from_slice(&bits.to_be_bytes());
        }

        /// Goes on with the hash as the message.
        #[inline]
        fn begin_again(&mut self) {
            let hash = self.hash();
            self.state = INITIAL;
            self.is_again = true;
            (self.tail_from, self.tail_to) = (0, BLOCK_BYTES);
            self.tail[..32].copy_from_slice(&hash);
            self.tail[32] = 0x80;
            self.tail[33..62].fill(0);
            // 256 bits.
            self.tail[62..64].copy_from_slice(&[1, 0]);
        }

        #[inline]
        fn hash(&self) -> Hash32 {
            let mut hash = [0; 32];
            for (bytes, word) in hash.chunks_exact_mut(4).zip(self.state) {
                bytes.copy_from_slice(&word.to_be_bytes());
            }
            hash
        }

        /// Returns the blocks that stand one after the other.
        #[inline]
        fn ready(&self) -> &[u8] {
            if self.whole.is_empty() { &self.tail[self.tail_from..self.tail_to] } else { self.whole }
        }

        #[inline]
        fn take(&mut self, blocks: usize) {
            if self.whole.is_empty() {
                self.tail_from += blocks * BLOCK_BYTES;
            } else {
                self.whole = &self.whole[blocks * BLOCK_BYTES..];
            }
        }
    }

    /// Hashes messages two at a time, each lane taking the next when it is done with one. The processor must have the
    /// extensions.
    #[inline]
    pub(super) fn hash_many<'a, const DOUBLE: bool>(
        count: usize,
        message: impl Fn(usize) -> &'a [u8],
        mut done: impl FnMut(usize, Hash32),
    ) {
        debug_assert!(are_supported());
        let mut next = 0;
        let mut begin = |lane: &mut Lane<'a>| {
            let is_there = next < count;
            if is_there {
                lane.begin(next, message(next));
                next += 1;
            }
            is_there
        };
        let (mut a, mut b) = (Lane::idle(), Lane::idle());
        let (mut is_a, mut is_b) = (begin(&mut a), begin(&mut b));
        // Whatever is ready of both goes side by side; a lane that has nothing left takes the next message.
        while is_a && is_b {
            let blocks = a.ready().len().min(b.ready().len()) / BLOCK_BYTES;
            let from = [a.ready().as_ptr(), b.ready().as_ptr()];
            // SAFETY: the caller has looked for the extensions; both places hold that many blocks.
            let states = unsafe { compress([a.state, b.state], from, blocks) };
            (a.state, b.state) = (states[0], states[1]);
            a.take(blocks);
            b.take(blocks);
            is_a = go_on::<DOUBLE>(&mut a, &mut begin, &mut done);
            is_b = go_on::<DOUBLE>(&mut b, &mut begin, &mut done);
        }
        let mut last = if is_a { a } else { b };
        let mut is_left = is_a || is_b;
        while is_left {
            let blocks = last.ready().len() / BLOCK_BYTES;
            // SAFETY: as above.
            [last.state] = unsafe { compress([last.state], [last.ready().as_ptr()], blocks) };
            last.take(blocks);
            is_left = go_on::<DOUBLE>(&mut last, &mut begin, &mut done);
        }
    }

    /// Gives a finished hash away and takes the next message; false where none is left.
    #[inline]
    fn go_on<'a, const DOUBLE: bool>(
        lane: &mut Lane<'a>,
        begin: &mut impl FnMut(&mut Lane<'a>) -> bool,
        done: &mut impl FnMut(usize, Hash32),
    ) -> bool {
        if !lane.ready().is_empty() {
            return true;
        }
        if DOUBLE && !lane.is_again {
            lane.begin_again();
            return true;
        }
        done(lane.number, lane.hash());
        begin(lane)
    }

    /// Puts `blocks` blocks of each lane through the compression function.
    ///
    /// # Safety
    /// The processor has the SHA extensions, and each pointer is good for 64 bytes a block.
    #[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
    unsafe fn compress<const LANES: usize>(
        mut states: [[u32; 8]; LANES],
        mut from: [*const u8; LANES],
        blocks: usize,
    ) -> [[u32; 8]; LANES] {
        // Words are big-endian in the message.
        let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        // The instructions want the state as ABEF and CDGH.
        let mut abef = [swap; LANES];
        let mut cdgh = [swap; LANES];
        for lane in 0..LANES {
            // SAFETY: a state has 32 bytes.
            let (dcba, hgfe) = unsafe {
                let state: *const __m128i = states[lane].as_ptr().cast();
                (_mm_loadu_si128(state), _mm_loadu_si128(state.add(1)))
            };
            let cdab = _mm_shuffle_epi32::<0xb1>(dcba);
            let efgh = _mm_shuffle_epi32::<0x1b>(hgfe);
            abef[lane] = _mm_alignr_epi8::<8>(cdab, efgh);
            cdgh[lane] = _mm_blend_epi16::<0xf0>(efgh, cdab);
        }
        for _ in 0..blocks {
            let before = (abef, cdgh);
            let mut words = [[swap; 4]; LANES];
            for lane in 0..LANES {
                for (quarter, word) in words[lane].iter_mut().enumerate() {
                    // SAFETY: the block has 64 bytes.
                    let bytes = unsafe { _mm_loadu_si128(from[lane].cast::<__m128i>().add(quarter)) };
                    *word = _mm_shuffle_epi8(bytes, swap);
                }
                // SAFETY: at most one past the last block.
                from[lane] = unsafe { from[lane].add(BLOCK_BYTES) };
            }
            // Four rounds of each lane; the words of the rounds sixteen later take the place of these.
            macro_rules! rounds {
                ($($four:literal)*) => {$(
                    for lane in 0..LANES {
                        let words = &mut words[lane];
                        let these = words[$four % 4];
                        // SAFETY: 64 constants, four for each number up to 15.
                        let constants = unsafe {
                            _mm_loadu_si128(ROUND_CONSTANTS.as_ptr().add($four * 4).cast())
                        };
                        let sum = _mm_add_epi32(these, constants);
                        cdgh[lane] = _mm_sha256rnds2_epu32(cdgh[lane], abef[lane], sum);
                        let sum = _mm_shuffle_epi32::<0x0e>(sum);
                        abef[lane] = _mm_sha256rnds2_epu32(abef[lane], cdgh[lane], sum);
                        if $four < 12 {
                            let (next, after, last) =
                                (words[($four + 1) % 4], words[($four + 2) % 4], words[($four + 3) % 4]);
                            let sum = _mm_sha256msg1_epu32(these, next);
                            let sum = _mm_add_epi32(sum, _mm_alignr_epi8::<4>(last, after));
                            words[$four % 4] = _mm_sha256msg2_epu32(sum, last);
                        }
                    }
                )*};
            }
            rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            for lane in 0..LANES {
                abef[lane] = _mm_add_epi32(abef[lane], before.0[lane]);
                cdgh[lane] = _mm_add_epi32(cdgh[lane], before.1[lane]);
            }
        }
        for lane in 0..LANES {
            let feba = _mm_shuffle_epi32::<0x1b>(abef[lane]);
            let dchg = _mm_shuffle_epi32::<0xb1>(cdgh[lane]);
            let dcba = _mm_blend_epi16::<0xf0>(feba, dchg);
            let hgfe = _mm_alignr_epi8::<8>(dchg, feba);
            // SAFETY: a state has 32 bytes.
            unsafe {
                let state: *mut __m128i = states[lane].as_mut_ptr().cast();
                _mm_storeu_si128(state, dcba);
                _mm_storeu_si128(state.add(1), hgfe);
            }
        }
        states
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of these lengths, no two alike.
    fn messages(lens: &[usize]) -> Vec<Vec<u8>> {
        let byte = |at: usize, number: usize| (at * 7 + number * 131 + at / 251) as u8;
        lens.iter().enumerate().map(|(number, &len)| (0..len).map(|at| byte(at, number)).collect()).collect()
    }

    fn check(lens: &[usize]) {
        let messages = messages(lens);
        let mut once = vec![None; messages.len()];
        let mut twice = once.clone();
        let give = |into: &mut Vec<Option<Hash32>>, number: usize, hash| {
            assert_eq!(into[number].replace(hash), None, "{number} comes once");
        };
        sha256_many(messages.len(), |number| &messages[number], |number, hash| give(&mut once, number, hash));
        sha256d_many(
            messages.len(),
            |number| &messages[number],
            |number, hash| give(&mut twice, number, hash),
        );
        for (number, message) in messages.iter().enumerate() {
            assert_eq!(once[number], Some(sha256(message)), "{lens:?}, message {number}");
            assert_eq!(twice[number], Some(sha256d(message)), "{lens:?}, message {number}");
        }
    }

    #[test]
    fn messages_of_every_length_have_the_hash_of_the_bitcoin_crate() {
        check(&[]);
        (0..=260).for_each(|len| check(&[len]));
        check(&(0..=700).collect::<Vec<_>>());
        check(&(0..=300).rev().collect::<Vec<_>>());
        check(&[100_000, 0, 1, 64, 4_000_000, 55, 56, 119, 120]);
    }

    #[test]
    fn abc_has_the_hash_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        sha256_many(
            2,
            |_| b"abc",
            |_, hash| {
                assert_eq!(hash[..8], [0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea]);
                assert_eq!(hash[28..], [0xf2, 0x00, 0x15, 0xad]);
            },
        );
    }

    proptest::proptest! {
        #[test]
        fn any_lengths_in_any_order(lens in proptest::collection::vec(0_usize..400, 0..40)) {
            check(&lens);
        }
    }
}
