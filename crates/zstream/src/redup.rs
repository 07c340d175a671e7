//! `zstream redup`: a deduplicated stream (`zfs send -D`, before OpenZFS 2.0) becomes an ordinary one.
//!
//! A WRITE_BYREF record says where in the stream its data was before: in a WRITE record of the same package, by the
//! guid of its snapshot, object and offset. It is replaced by that record. So the stream must be in a file.

use crate::record::{Broken, Raw, Reader, kind};
use crate::{Surroundings, failed, rewrite};
use cenote_command::outcome::{Outcome, fail};
use cenote_dsl::human::nicenum;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};

/// `DMU_BACKUP_FEATURE_DEDUP` and `DMU_BACKUP_FEATURE_DEDUPPROPS`, where features are in a BEGIN.
const DEDUP: u64 = 3 << 2;
/// Bytes of memory that OpenZFS takes for a block (`redup_entry_t`).
const ENTRY: u64 = 40;

/// Runs `zstream redup` on an open file (`zfs_redup_stream`).
///
/// # Errors
/// Errors of [`rewrite::run`]; a record refers to data that is not there.
pub fn run(file: &File, verbose: bool, ctx: &mut Surroundings<'_>) -> Outcome {
    let mut places: HashMap<(u64, u64, u64), u64> = HashMap::new();
    let mut replaced = 0u64;
    let mut change = |raw: &mut Raw,
                      payload: &mut Vec<u8>,
                      at: u64,
                      _ctx: &mut Surroundings<'_>| {
        match raw.kind() {
            kind::BEGIN => raw.set_u64(8, raw.u64(8) & !DEDUP),
            kind::WRITE => {
                places.insert((raw.u64(32), raw.u64(0), raw.u64(16)), at);
            }
            kind::WRITE_BYREF => {
                let (object, offset, guid) = (raw.u64(0), raw.u64(8), raw.u64(24));
                let wanted = (raw.u64(32), raw.u64(40), raw.u64(48));
                let Some(place) = places.get(&wanted) else {
                    let (_, object, offset) = wanted;
                    return fail(format!(
                        "zstream: the data of object {object}, offset {offset}, is not in the stream"
                    ));
                };
                (*raw, *payload) = again(file, *place, raw).map_err(failed)?;
                raw.set_u64(32, guid);
                raw.set_u64(0, object);
                raw.set_u64(16, offset);
                replaced += 1;
            }
            _ => {}
        }
        Ok(())
    };
    let records = rewrite::run(&mut BufReader::new(file), &mut change, ctx)?;
    if verbose {
        let memory = nicenum(places.len() as u64 * ENTRY);
        ctx.complain(format_args!(
            "converted stream with {records} total records, including {replaced} dedup records, using {memory}B memory."
        ));
    }
    Ok(0)
}

/// Reads the WRITE record at a place of the file once more.
fn again(file: &File, place: u64, like: &Raw) -> Result<(Raw, Vec<u8>), Broken> {
    // The position of the file belongs to the reader of the stream.
    struct At<'f>(&'f File, u64);
    impl Read for At<'_> {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            let n = std::os::unix::fs::FileExt::read_at(self.0, buf, self.1)?;
            self.1 += n as u64;
            Ok(n)
        }
    }
    let mut from = At(file, place);
    Reader::again(&mut from, like)
}
