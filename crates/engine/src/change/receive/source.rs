//! Streams as they come in (`receive_read_record`): heads, records and what follows them.
//!
//! The input is one stream, or a package: a head with a list of what is in it, an END, the streams one after another,
//! and an END that belongs to no stream. Each stream has a [`Decoder`] of its own. Nothing is read beyond the record
//! that was asked for, with one exception: the head of the first stream is read with the list. It has the checksum of
//! BEGIN, and BEGIN must not be acted on before that is verified.

use super::error::{ReceiveError, Result};
use cenote_format::abd::Abd;
use cenote_format::checksum::Checksum;
use cenote_format::compress::{Compression, decompress};
use cenote_format::dmu::DmuType;
use cenote_format::nvlist::NvList;
use cenote_format::stream::package::Package;
use cenote_format::stream::{Begin, Decoder, RECORD_SIZE, Record, WriteRecord, feature};
use cenote_format::{ByteOrder, MAX_BLOCK, turn};
use std::io::{self, Read};

/// Number of the type of an END record.
const END: u32 = 5;

/// A stream that is being read.
pub struct Source<'a> {
    input: &'a mut (dyn Read + Send),
    decoder: Option<Decoder>,
    /// The first record, whose head was read with the list.
    first: Option<Record>,
    /// Bytes of this stream that were read.
    bytes: u64,
    /// Longest list that is read, in bytes; `None`: as long as the format lets it be.
    longest_list: Option<u64>,
    /// The object that a stream of a big-endian machine named last, and its type.
    kind: (u64, DmuType),
}

impl<'a> Source<'a> {
    /// For what comes from `input`.
    pub fn new(input: &'a mut (dyn Read + Send)) -> Source<'a> {
        Source {
            input,
            decoder: None,
            first: None,
            bytes: 0,
            longest_list: None,
            kind: (0, DmuType::NONE),
        }
    }

    /// From now on lists are read if they have no more bytes than this; `None`: as many as the format lets them have.
    pub fn limit_lists(&mut self, most: Option<u64>) {
        self.longest_list = most;
    }

    /// Bytes that were read of the stream that began last.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The head of the next stream; `None` for the END of a package.
    ///
    /// # Errors
    /// The input ends; what comes is no stream.
    pub fn begin(&mut self) -> Result<Option<Begin>> {
        (self.bytes, self.first, self.kind) = (0, None, (0, DmuType::NONE));
        let head = self.head()?;
        let kind = [0, 1, 2, 3].map(|i| head.get(i).copied().unwrap_or(0));
        if u32::from_le_bytes(kind) == END || u32::from_be_bytes(kind) == END {
            return Ok(None);
        }
        let Ok(mut decoder) = Decoder::new(&head) else {
            return Err(ReceiveError::NoStream("bad magic number"));
        };
        let Record::Begin(begin) = decoder.record(&head)? else {
            return Err(ReceiveError::NoStream("bad magic number"));
        };
        if decoder.order() == ByteOrder::Big && begin.features & feature::RAW != 0 {
            let what = "a raw stream of a big-endian system";
            return Err(ReceiveError::Unsupported(what.into()));
        }
        self.decoder = Some(decoder);
        Ok(Some(begin))
    }

    /// The list behind a head that was just read; empty if the head has no list. Both are verified.
    ///
    /// # Errors
    /// The input ends; it or the head is damaged; it is no list, or too long.
    pub fn list(&mut self, begin: &Begin) -> Result<NvList> {
        let bytes = self.list_bytes(begin)?;
        self.first = Some(self.record_head()?);
        if bytes.is_empty() {
            return Ok(NvList::default());
        }
        NvList::decode(&bytes).map_err(|_| ReceiveError::NoStream("malformed nvlist"))
    }

    /// What a package says of its streams, behind a head that was just read; `None` if it says nothing.
    ///
    /// # Errors
    /// The input ends; it is no list, or not that of a package, or too long.
    pub fn package(&mut self, begin: &Begin) -> Result<Option<Package>> {
        let bytes = self.list_bytes(begin)?;
        match bytes.is_empty() {
            true => Ok(None),
            false => Ok(Some(Package::decode(&bytes)?)),
        }
    }

    /// The next record, without what follows it, which [`Source::payload_of`] reads. Its head has the checksum of all
    /// before it: that is right. END is the last one.
    ///
    /// # Errors
    /// The input ends; the record is damaged or makes no sense.
    pub fn record(&mut self) -> Result<Record> {
        match self.first.take() {
            Some(first) => Ok(first),
            None => self.record_head(),
        }
    }

    /// Most bytes that [`Source::payload_of`] gives for a record that was just read.
    pub fn most_payload(&self, record: &Record) -> u64 {
        let unpacked = match record {
            _ if !self.is_big_endian() => 0,
            Record::Write(write) => write.logical_size,
            Record::WriteEmbedded(embedded) => embedded.length,
            _ => 0,
        };
        record.payload_len().max(unpacked.min(MAX_BLOCK))
    }

    fn is_big_endian(&self) -> bool {
        self.decoder.as_ref().is_some_and(|decoder| decoder.order() == ByteOrder::Big)
    }

    /// What follows a record that was just read, little-endian. Where that takes unpacking, the record becomes another one
    /// of the same block.
    ///
    /// # Errors
    /// The input ends; it would have to be turned, and cannot be unpacked.
    pub fn payload_of(&mut self, record: &mut Record) -> Result<Abd> {
        let mut bytes = self.payload(record.payload_len())?;
        if self.is_big_endian() {
            if let Record::Object(object) = &record {
                self.kind = (object.object, object.kind);
            }
            turn(record, self.kind, &mut bytes)?;
        }
        Ok(Abd::from_vec(bytes))
    }

    /// Reads to the end of the stream (`recv_skip`).
    ///
    /// # Errors
    /// Errors of [`Source::record`].
    pub fn skip(&mut self) -> Result<()> {
        loop {
            let record = self.record()?;
            self.payload(record.payload_len())?;
            if matches!(record, Record::End { .. }) {
                return Ok(());
            }
        }
    }

    fn record_head(&mut self) -> Result<Record> {
        let head = self.head()?;
        let before = || ReceiveError::Stream("a record before BEGIN".into());
        Ok(self.decoder.as_mut().ok_or_else(before)?.record(&head)?)
    }

    /// The bytes of the list behind a head.
    fn list_bytes(&mut self, begin: &Begin) -> Result<Vec<u8>> {
        let len = u64::from(begin.payload);
        if let Some(most) = self.longest_list.filter(|most| len > *most) {
            let why = format!("a list of {len} bytes, where {most} are permitted");
            return Err(ReceiveError::Stream(why));
        }
        self.payload(len)
    }

    fn head(&mut self) -> Result<[u8; RECORD_SIZE]> {
        let mut head = [0; RECORD_SIZE];
        self.input.read_exact(&mut head).map_err(failed)?;
        self.bytes += RECORD_SIZE as u64;
        Ok(head)
    }

    /// So many bytes. Memory is taken as they come, not as the record says.
    fn payload(&mut self, len: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len.min(1 << 20) as usize);
        let mut limited = Read::take(&mut *self.input, len);
        limited.read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 != len {
            return Err(ReceiveError::Truncated);
        }
        self.bytes += len;
        if let Some(decoder) = &mut self.decoder {
            decoder.payload(&bytes);
        }
        Ok(bytes)
    }
}

/// Turns what a big-endian machine sent behind a record (`receive_object`, `flush_write_batch_impl`); `last` is the object that
/// the stream named last, and its type. Spill blocks are system attributes, which say their order.
fn turn(record: &mut Record, last: (u64, DmuType), bytes: &mut Vec<u8>) -> Result<()> {
    match record {
        Record::Object(object) => turn::from_big_endian(object.bonus_kind, bytes),
        Record::Write(write) if turn::has_no_order(write.kind) => {}
        Record::Write(write) => {
            if write.compression != 0 {
                *bytes = unpacked(write.compression, bytes, write.logical_size)?;
                (write.compression, write.compressed_size) = (0, 0);
            }
            turn::from_big_endian(write.kind, bytes);
        }
        Record::WriteEmbedded(embedded) if !embedded.is_spill() => {
            let (object, offset, logical_size) =
                (embedded.object, embedded.offset, embedded.length);
            let kind = match last {
                (number, kind) if number == object => kind,
                _ => {
                    let what =
                        format!("an embedded block of object {object}, of a big-endian system");
                    return Err(ReceiveError::Unsupported(what));
                }
            };
            if turn::has_no_order(kind) {
                return Ok(());
            }
            bytes.truncate(embedded.psize as usize);
            *bytes = unpacked(embedded.compression, bytes, logical_size)?;
            turn::from_big_endian(kind, bytes);
            let (checksum, flags, compression, compressed_size) = (Checksum::Off as u8, 0, 0, 0);
            let (key, seal) = ([0; 5], None);
            *record = Record::Write(WriteRecord {
                object,
                kind,
                offset,
                logical_size,
                checksum,
                flags,
                compression,
                compressed_size,
                key,
                seal,
            });
        }
        _ => {}
    }
    Ok(())
}

/// The `size` bytes that `packed` stands for; the record that says so was checked.
fn unpacked(function: u8, packed: &[u8], size: u64) -> Result<Vec<u8>> {
    let mut data = vec![0; usize::try_from(size.min(MAX_BLOCK)).unwrap_or(0)];
    decompress(Compression::from_u8(function)?, packed, &mut data)?;
    Ok(data)
}

fn failed(e: io::Error) -> ReceiveError {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => ReceiveError::Truncated,
        _ => ReceiveError::Input(e),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use cenote_testpools::{big_endian_stream, streams};

    /// Streams of a big-endian machine that are not packages.
    fn big_endian() -> impl Iterator<Item = Vec<u8>> {
        let single = |(name, _): &(String, _)| name.starts_with("full-");
        streams().into_iter().filter(single).map(|(_, stream)| big_endian_stream(&stream))
    }

    fn begun(source: &mut Source<'_>) {
        let begin = source.begin().unwrap().unwrap();
        source.list(&begin).unwrap();
    }

    #[test]
    fn what_is_unpacked_is_known_before() {
        let mut longer = 0;
        for stream in big_endian() {
            let mut input = stream.as_slice();
            let mut source = Source::new(&mut input);
            begun(&mut source);
            loop {
                let mut record = source.record().unwrap();
                let (packed, most) = (record.payload_len(), source.most_payload(&record));
                let len = source.payload_of(&mut record).unwrap().len() as u64;
                assert!(len <= most, "{record:?}");
                longer += u64::from(len > packed);
                if matches!(record, Record::End { .. }) {
                    break;
                }
            }
        }
        assert!(longer > 0);
    }

    #[test]
    fn what_is_passed_over_leaves_nothing_behind() {
        for mut stream in big_endian() {
            // Two in a row: of the second one no object was named.
            stream.extend(stream.clone());
            let mut input = stream.as_slice();
            let mut source = Source::new(&mut input);
            for _ in 0..2 {
                begun(&mut source);
                assert_eq!(source.kind, (0, DmuType::NONE));
                source.kind = (7, DmuType(1));
                source.skip().unwrap();
            }
            assert!(input.is_empty());
        }
    }
}
