//! Resume tokens (`receive_resume_token`): what a receiver tells a sender, so that an interrupted stream goes on.
//!
//! A token is one line of text:
//!
//! ```text
//! 1-CHECKSUM-SIZE-HEX    version; first word of fletcher4 of the bytes behind HEX; bytes of the packed list
//! ```
//!
//! `HEX` is a zlib stream in hexadecimal, which unpacks to an nvlist in the native encoding. Its pairs are the
//! fields of [`Token`], in this order. Numbers in the head are hexadecimal, but for the version.

use crate::checksum::Fletcher4;
use crate::compress::{Compression, compress, decompress};
use crate::nvlist::{NvList, NvValue};
use crate::{ByteOrder, DecodeError, Result};

const WHAT: &str = "resume token";
/// `ZFS_SEND_RESUME_TOKEN_VERSION`.
const VERSION: &str = "1";
/// Longest packed list that is unpacked, in bytes: it holds a name and a few numbers.
const MAX_PACKED: usize = 1 << 20;
/// Level of the zlib stream.
const LEVEL: Compression = Compression::Gzip6;

/// Where a stream goes on, and what it has to be made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Token {
    /// Guid of the snapshot that an incremental stream starts from.
    pub from_guid: Option<u64>,
    /// Object of the last record that is on disk at the receiver.
    pub object: u64,
    /// Byte in the object.
    pub offset: u64,
    /// Bytes of the stream that were received.
    pub bytes: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Name of the snapshot at the sender.
    pub to_name: String,
    /// The stream has blocks of more than 128 KiB (`-L`).
    pub large_blocks: bool,
    /// The stream has embedded blocks (`-e`).
    pub embedded: bool,
    /// The stream has compressed blocks (`-c`).
    pub compressed: bool,
    /// The stream is raw (`-w`).
    pub raw: bool,
    /// Guids of the snapshots that the stream is redacted by (`redact_snaps`).
    pub redact_snaps: Option<Vec<u64>>,
    /// Guids of the snapshots of the redaction bookmark that the stream starts from (`book_redact_snaps`).
    pub book_redact_snaps: Option<Vec<u64>>,
}

fn invalid<T>(why: &str) -> Result<T> {
    Err(DecodeError::invalid(WHAT, why))
}

/// The first word of the checksum of the compressed bytes. Bytes behind the last whole word of 32 bits do not
/// count (`fletcher_4_native_varsize`).
fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = Fletcher4::new(ByteOrder::Little);
    sum.update(&bytes[..bytes.len() & !3]);
    let [first, ..] = sum.finish();
    first
}

impl Token {
    /// The pairs of the token.
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::default();
        if let Some(guid) = self.from_guid {
            list.set("fromguid", NvValue::Uint64(guid));
        }
        let numbers = [
            ("object", self.object),
            ("offset", self.offset),
            ("bytes", self.bytes),
            ("toguid", self.to_guid),
        ];
        for (name, number) in numbers {
            list.set(name, NvValue::Uint64(number));
        }
        list.set("toname", NvValue::String(self.to_name.clone()));
        let flags = [
            ("largeblockok", self.large_blocks),
            ("embedok", self.embedded),
            ("compressok", self.compressed),
            ("rawok", self.raw),
        ];
        for (name, _) in flags.iter().filter(|(_, set)| *set) {
            list.set(name, NvValue::Boolean);
        }
        let guids =
            [("redact_snaps", &self.redact_snaps), ("book_redact_snaps", &self.book_redact_snaps)];
        for (name, guids) in guids {
            if let Some(guids) = guids {
                list.set(name, NvValue::Uint64Array(guids.clone()));
            }
        }
        list
    }

    /// The text (`get_receive_resume_token_impl`).
    ///
    /// # Errors
    /// The list does not compress, which one with a name in it does.
    pub fn encode(&self) -> Result<String> {
        let packed = self.to_list().encode_native();
        // A short list may grow when it is compressed.
        let limit = packed.len() + 64;
        let Some(zipped) = compress(LEVEL, 0, &packed, limit) else {
            return invalid("does not compress");
        };
        let mut text = format!("{VERSION}-{:x}-{:x}-", checksum(&zipped), packed.len());
        zipped.iter().for_each(|byte| text += &format!("{byte:02x}"));
        Ok(text)
    }

    /// Reads a token (`zfs_send_resume_token_to_nvlist`).
    ///
    /// # Errors
    /// It is no token, or of another version; its checksum is wrong; a number or the name is missing.
    pub fn decode(text: &str) -> Result<Token> {
        Token::from_list(&unpack(text)?)
    }

    fn from_list(list: &NvList) -> Result<Token> {
        let number = |name: &str| match list.u64(name) {
            Some(number) => Ok(number),
            None => invalid(&format!("has no '{name}'")),
        };
        let Some(to_name) = list.str("toname") else { return invalid("has no 'toname'") };
        let guids = |name: &str| list.u64s(name).map(<[u64]>::to_vec);
        Ok(Token {
            from_guid: list.u64("fromguid"),
            object: number("object")?,
            offset: number("offset")?,
            bytes: number("bytes")?,
            to_guid: number("toguid")?,
            to_name: to_name.to_owned(),
            large_blocks: list.contains("largeblockok"),
            embedded: list.contains("embedok"),
            compressed: list.contains("compressok"),
            raw: list.contains("rawok"),
            redact_snaps: guids("redact_snaps"),
            book_redact_snaps: guids("book_redact_snaps"),
        })
    }
}

/// The list in a token.
fn unpack(text: &str) -> Result<NvList> {
    let mut parts = text.splitn(4, '-');
    let (Some(version), Some(sum), Some(size), Some(hex)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return invalid("is in the wrong format");
    };
    if version != VERSION {
        let name = format!("version {version}");
        return Err(DecodeError::Unsupported { what: WHAT, name });
    }
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let (Some(sum), Some(size)) = (hexadecimal(sum), hexadecimal(size)) else {
        return invalid("is in the wrong format");
    };
    let Some(zipped) = bytes_of(hex) else { return invalid("is in the wrong format") };
    if checksum(&zipped) != sum {
        return invalid("is corrupt (incorrect checksum)");
    }
    let size = match usize::try_from(size) {
        Ok(size) if size <= MAX_PACKED => size,
        _ => return invalid("is too long"),
    };
    let mut packed = vec![0; size];
    decompress(LEVEL, &zipped, &mut packed)?;
    NvList::decode(&packed)
}

/// The bytes that are written in hexadecimal.
fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |c: u8| char::from(c).to_digit(16);
    digits
        .chunks_exact(2)
        .map(|two| Some((digit(*two.first()?)? << 4 | digit(*two.get(1)?)?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token() -> impl Strategy<Value = Token> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
        let guids = || proptest::option::of(proptest::collection::vec(any::<u64>(), 0..5));
        let from = proptest::option::of(any::<u64>());
        (numbers, flags, "[a-z/]{1,80}@[a-z]{1,9}", from, guids(), guids()).prop_map(
            |((object, offset, bytes, to_guid), flags, to_name, from_guid, redact, book)| Token {
                from_guid,
                object,
                offset,
                bytes,
                to_guid,
                to_name,
                large_blocks: flags.0,
                embedded: flags.1,
                compressed: flags.2,
                raw: flags.3,
                redact_snaps: redact,
                book_redact_snaps: book,
            },
        )
    }

    proptest! {
        #[test]
        fn tokens_round_trip_and_damaged_ones_are_refused(token in token(), at: usize, digit in 0u8..16) {
            let text = token.encode().unwrap();
            prop_assert_eq!(Token::decode(&text).unwrap(), token);
            let mut damaged = text.clone().into_bytes();
            let at = at % damaged.len();
            damaged[at] = char::from_digit(digit.into(), 16).unwrap() as u8;
            // The last bytes are not in the checksum of the token but in that of the zlib stream.
            if damaged != text.as_bytes() {
                prop_assert!(Token::decode(std::str::from_utf8(&damaged).unwrap()).is_err());
            }
            prop_assert!(Token::decode(&text[..at]).is_err());
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for text in ["", "1", "1-2-3", "2-0-0-00", "1-x-0-00", "1-0-0-0", "1-0-ffffffffffffffff-"] {
            assert!(Token::decode(text).is_err(), "{text}");
        }
    }
}
