//! Which slot of Redis Cluster a key is in.
//!
//! CRC16 (XMODEM: polynomial 0x1021, from 0, not reflected) of the key, or of what stands in its first `{…}` where that is
//! not empty, modulo 16,384 (the cluster specification, "Key distribution model").

use std::ops::Range;

/// How many there are.
pub const SLOTS: usize = 16_384;

/// The slot of a key.
pub fn slot(key: &[u8]) -> u16 {
    let hashed = tag(key).map_or(key, |tag| &key[tag]);
    slot_of(crc16(0, hashed))
}

/// Where the hash tag stands; `None` where the whole key is hashed.
pub(super) fn tag(key: &[u8]) -> Option<Range<usize>> {
    let start = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[start..].iter().position(|byte| *byte == b'}').filter(|length| *length > 0)?;
    Some(start..start + length)
}

pub(super) fn slot_of(crc: u16) -> u16 {
    crc % SLOTS as u16
}

/// Of bytes that follow others, whose own is `crc`.
pub(super) fn crc16(crc: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(crc, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // CRC16 of 123456789 is 0x31C3; the rest is what CLUSTER KEYSLOT answers.
        assert_eq!(crc16(0, b"123456789"), 0x31C3);
        for (key, want) in [
            ("", 0),
            ("foo", 12182),
            ("bar", 5061),
            ("{foo}bar", 12182),
            ("x{foo}{bar}", 12182),
            ("{}foo", 9500),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar", 15278),
        ] {
            assert_eq!(slot(key.as_bytes()), want, "{key}");
        }
    }
}
