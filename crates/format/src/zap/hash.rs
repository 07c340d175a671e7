//! The hash of a ZAP's keys: CRC-64 with the reflected polynomial of ECMA-182, starting from the
//! ZAP's salt, without a final inversion; only the top bits are kept.

use super::{FLAG_HASH64, FLAG_PRE_HASHED_KEY};

/// `ZFS_CRC64_POLY`: ECMA-182, bits reversed.
pub const CRC64_POLY: u64 = 0xC96C_5795_D787_0F42;

const TABLE: [u64; 256] = {
    let mut table = [0u64; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ CRC64_POLY } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

fn update(crc: u64, byte: u8) -> u64 {
    (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)]
}

/// Bits of the hash that a ZAP with these flags keeps: 28 or 48.
pub fn hash_bits(flags: u64) -> u32 {
    if flags & FLAG_HASH64 != 0 { 48 } else { 28 }
}

/// Collision differentiators of a ZAP with these flags are below this.
pub fn max_cd(flags: u64) -> u32 {
    if flags & FLAG_HASH64 != 0 { 0xffff } else { u32::MAX }
}

/// Clears the bits of a hash that are not kept.
pub fn truncate(hash: u64, flags: u64) -> u64 {
    hash & (u64::MAX << (64 - hash_bits(flags)))
}

/// Hash of a string key (without its closing NUL, which is stored but not hashed). In a ZAP with
/// normalization flags `name` is the normalized key.
pub fn hash_name(salt: u64, flags: u64, name: &[u8]) -> u64 {
    truncate(name.iter().fold(salt, |crc, b| update(crc, *b)), flags)
}

/// Hash of a key of 64-bit words.
pub fn hash_words(salt: u64, flags: u64, key: &[u64]) -> u64 {
    if flags & FLAG_PRE_HASHED_KEY != 0 {
        return truncate(key.first().copied().unwrap_or(0), flags);
    }
    let bytes = key.iter().flat_map(|w| w.to_le_bytes());
    truncate(bytes.fold(salt, update), flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_check_string() {
        // CRC-64/XZ of "123456789" is 995dc9bbdf1939fa; it starts from and ends in all ones.
        let crc = b"123456789".iter().fold(u64::MAX, |crc, b| update(crc, *b));
        assert_eq!(!crc, 0x995d_c9bb_df19_39fa);
        assert_eq!(TABLE[128], CRC64_POLY);
    }

    #[test]
    fn only_the_top_bits_are_kept() {
        assert_eq!(hash_name(1, 0, b"name") & ((1 << 36) - 1), 0);
        let long = hash_name(1, FLAG_HASH64, b"name");
        assert_eq!(long & 0xffff, 0);
        assert_eq!(truncate(long, 0), hash_name(1, 0, b"name"));
        assert_eq!(hash_words(9, FLAG_HASH64 | FLAG_PRE_HASHED_KEY, &[u64::MAX, 4]), !0xffff);
        assert_eq!(hash_words(9, FLAG_PRE_HASHED_KEY, &[]), 0);
        // A word is hashed from its low byte up.
        assert_eq!(hash_words(5, 0, &[0x6463_6261]), hash_name(5, 0, b"abcd\0\0\0\0"));
    }
}
