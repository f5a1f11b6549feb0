//! Chance: small generators that are a function of the seed and of a name, and of nothing else.
//!
//! Every part of the world draws from a stream of its own, so that taking one part away leaves
//! what happens to the others as it was.

/// A stream of numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Makes the stream of one part of the world.
    pub fn of(seed: u64, part: &str, index: u64) -> Self {
        let mut state = mix(seed ^ 0x5eed_0f5e_ed0f_5eed);
        for byte in part.bytes() {
            state = mix(state ^ u64::from(byte));
        }
        Self(mix(state ^ index))
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `bound`; zero if that is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns an index below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("an index fits")
    }

    /// Returns whether something happens that happens `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }
}

/// Mixes a number so that every bit of it reaches every bit of the result.
pub fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Folds bytes into a digest (FNV-1a over words, mixed at the end).
pub fn digest(mut state: u64, bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        state = (state ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }
    for byte in chunks.remainder() {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    mix(state ^ bytes.len() as u64)
}
