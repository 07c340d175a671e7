//! What a receive that can be resumed leaves in its dataset (`DS_FIELD_RESUME_*`).
//!
//! The fields are in the zapified dataset that is being received: a new one, or the clone `%recv` below one that was
//! there. A token ([`Token`]) says the same as text, for the sender.

use crate::{Dataset, Dsl};
use cenote_dmu::Result;
use cenote_format::redaction::REDACTED;
use cenote_format::stream::token::Token;

/// Guid of the snapshot that the stream starts from; absent for a full stream.
pub const FROM_GUID: &str = "com.delphix:resume_fromguid";
/// Name of the snapshot at the sender, with a NUL.
pub const TO_NAME: &str = "com.delphix:resume_toname";
/// Guid of the snapshot.
pub const TO_GUID: &str = "com.delphix:resume_toguid";
/// Object of the last record that is on disk.
pub const OBJECT: &str = "com.delphix:resume_object";
/// Byte in the object.
pub const OFFSET: &str = "com.delphix:resume_offset";
/// Bytes of the stream so far.
pub const BYTES: &str = "com.delphix:resume_bytes";
/// What the stream may have (`-L`, `-e`, `-c`, `-w`).
pub const LARGE_BLOCKS: &str = "com.delphix:resume_largeblockok";
#[allow(missing_docs)]
pub const EMBEDDED: &str = "com.delphix:resume_embedok";
#[allow(missing_docs)]
pub const COMPRESSED: &str = "com.delphix:resume_compressok";
#[allow(missing_docs)]
pub const RAW: &str = "com.datto:resume_rawok";
/// Guids of the snapshots of a redaction bookmark.
pub const BOOK_REDACT_SNAPS: &str = "com.delphix:resume_redact_book_snaps";
/// All fields that go when a receive is done.
pub const ALL: [&str; 11] = [
    FROM_GUID,
    TO_NAME,
    TO_GUID,
    OBJECT,
    OFFSET,
    BYTES,
    LARGE_BLOCKS,
    EMBEDDED,
    COMPRESSED,
    RAW,
    BOOK_REDACT_SNAPS,
];
/// Datasets of one kind that are sought at once.
const MAX_UNFINISHED: usize = 1 << 16;
/// Name of the clone that a stream is received into where there is a dataset (`recv_clone_name`).
pub const CLONE: &str = "%recv";

impl Dsl {
    /// The token that resumes the receive into a file system or volume; `None` if there is nothing to resume
    /// (`get_receive_resume_token`).
    ///
    /// # Errors
    /// The fields cannot be read.
    pub fn resume_token(&self, d: &Dataset) -> Result<Option<Token>> {
        Ok(self.saved(d)?.map(|(_, token)| token))
    }

    /// What an interrupted receive into a file system or volume left: the dataset that it went into, which may be hidden,
    /// and how far it came.
    ///
    /// # Errors
    /// The fields cannot be read.
    pub fn saved(&self, d: &Dataset) -> Result<Option<(Dataset, Token)>> {
        if !d.is_head() {
            return Ok(None);
        }
        if let Some(token) = self.token_of(d)? {
            return Ok(Some((d.clone(), token)));
        }
        let Some(clone) = self.find_hidden(d, CLONE)? else { return Ok(None) };
        Ok(self.token_of(&clone)?.map(|token| (clone, token)))
    }

    /// The fields of the dataset itself (`dsl_dataset_has_resume_receive_state`).
    ///
    /// # Errors
    /// The fields cannot be read.
    pub fn token_of(&self, d: &Dataset) -> Result<Option<Token>> {
        let number = |name: &str| self.field_u64(d.ds_obj, name);
        let Some(to_guid) = number(TO_GUID)? else { return Ok(None) };
        let name = self.field(d.ds_obj, TO_NAME)?.map(|e| e.bytes()).unwrap_or_default();
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let guids = |name: &str| -> Result<_> { Ok(self.field(d.ds_obj, name)?.map(|e| e.value)) };
        let is_set = |name: &str| -> Result<_> { Ok(self.field(d.ds_obj, name)?.is_some()) };
        Ok(Some(Token {
            from_guid: number(FROM_GUID)?,
            object: number(OBJECT)?.unwrap_or(0),
            offset: number(OFFSET)?.unwrap_or(0),
            bytes: number(BYTES)?.unwrap_or(0),
            to_guid,
            to_name: String::from_utf8_lossy(name).into_owned(),
            large_blocks: is_set(LARGE_BLOCKS)?,
            embedded: is_set(EMBEDDED)?,
            compressed: is_set(COMPRESSED)?,
            raw: is_set(RAW)?,
            redact_snaps: guids(REDACTED)?,
            book_redact_snaps: guids(BOOK_REDACT_SNAPS)?,
        }))
    }

    /// Datasets that were being received when the pool was left, and that cannot be resumed
    /// (`dsl_destroy_inconsistent`).
    ///
    /// # Errors
    /// The datasets cannot be listed.
    pub fn unfinished(&self) -> Result<Vec<Dataset>> {
        let (mut found, mut waiting) = (Vec::new(), vec![self.root()?]);
        while let Some(dataset) = waiting.pop() {
            if found.len() > MAX_UNFINISHED {
                break;
            }
            waiting.extend(self.children(&dataset)?);
            let clone = self.find_hidden(&dataset, CLONE)?;
            for dataset in clone.into_iter().chain([dataset]) {
                if dataset.is_inconsistent() && self.token_of(&dataset)?.is_none() {
                    found.push(dataset);
                }
            }
        }
        Ok(found)
    }

    /// The dataset `name`, which users do not see, in the directory of `d`.
    fn find_hidden(&self, d: &Dataset, name: &str) -> Result<Option<Dataset>> {
        let parent = self.dir(d.dir_obj)?;
        let Some(object) = self.child_object(&parent.phys, name)? else { return Ok(None) };
        self.head(&*self.child_dir(&parent, name, object)?)
    }
}
