//! Holds on snapshots, and bookmarks (`dsl_dataset_user_hold`, `dsl_dataset_user_release`, `dsl_bookmark_create`,
//! `dsl_bookmark_destroy`).
//!
//! A hold is a tag in the ZAP of a snapshot (`ds_userrefs_obj`). A snapshot that has one is not destroyed. A
//! release that takes the last tag from a snapshot that is marked for a deferred destroy can destroy it. A bookmark
//! keeps the guid and birth of a snapshot, for incremental sends that begin there when the snapshot is gone.
//!
//! The structures are [`cenote_dsl::write::holds`]'s and [`cenote_dsl::write::bookmarks`]'s. Here names are
//! resolved, permissions are checked and history is recorded.
//!
//! Invariant: all snapshots of one list get or lose their tag in one sync task, or no snapshot does.

use super::names::{Expected, check_new};
use super::policy::Operation;
use super::{ChangeError, Changes, Request, Result, find_head, find_snapshot, record};
use crate::SpaceCheck;
use cenote_dsl::write::bookmarks::{self, Made, Source};
use cenote_dsl::write::holds::{self, Released};
use cenote_dsl::write::{DslWriteError, snapshot as snaps};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::version;

/// Why a hold was not set or released: of a snapshot, or of all.
pub type NotHeld = (Option<String>, ChangeError);

impl Changes {
    /// Holds snapshots under `tag`: all or none of them (`dsl_dataset_user_hold`, `zfs_ioc_hold`, `lzc_hold`).
    ///
    /// # Errors
    /// One of them has a hold of this tag or is not there; the tag is too long.
    pub fn hold(&self, names: &[String], tag: &str) -> std::result::Result<(), NotHeld> {
        if tag.len() > holds::MAX_TAG {
            return Err((names.first().cloned(), ChangeError::Name("tag too long".into())));
        }
        let tags = |tag: &str| NvValue::String(tag.to_string());
        let pairs = names.iter().map(|name| (name.clone(), tags(tag))).collect();
        let mut request = Request { name: "hold", input: NvList::default() };
        request.input.set("holds", NvValue::NvList(NvList { pairs }));
        let permit = self.permit(&Operation::Hold { names }).map_err(|e| (None, e))?;
        let (names, tag) = (names.to_vec(), tag.to_string());
        let done = self.request(permit, (SpaceCheck::Reserved, 1), request, move |context| {
            if context.config.version < version::HOLDS {
                return Ok(Ok(Err((String::new(), ChangeError::PoolTooOld))));
            }
            let tx = &mut context.tx;
            for name in names {
                let held = find_snapshot(tx, &name)
                    .and_then(|(_, object)| Ok((object, holds::hold(tx, object, &tag)?)));
                match held {
                    Ok((object, holds)) => {
                        let what = format!("tag={tag} temp=0 refs={holds}");
                        record(tx, "hold", &what, (&name, object))?;
                    }
                    Err(DslWriteError::Exists) => {
                        let why = "tag already exists on this dataset";
                        return Ok(Ok(Err((name, ChangeError::Crosses(why)))));
                    }
                    Err(DslWriteError::NotFound) => {
                        return Ok(Ok(Err((name, ChangeError::NotFound))));
                    }
                    Err(e) => return Err(e),
                }
            }
            Ok(Ok(Ok(())))
        });
        done.map_err(|e| (None, e))?.map_err(|(name, e)| (Some(name), e))
    }

    /// Releases the hold `tag` of snapshots: all or none of them (`dsl_dataset_user_release`, `zfs_ioc_release`,
    /// `lzc_release`). Returns those that were kept by nothing else any more and are gone.
    ///
    /// # Errors
    /// One of them has no such hold or is not there.
    pub fn release(
        &self,
        names: &[String],
        tag: &str,
    ) -> std::result::Result<Vec<String>, NotHeld> {
        let mut held = NvList::default();
        for name in names {
            let tags = NvList { pairs: vec![(tag.to_string(), NvValue::Boolean)] };
            held.set(name, NvValue::NvList(tags));
        }
        let request = Request { name: "release", input: held };
        let permit = self.permit(&Operation::Release { names }).map_err(|e| (None, e))?;
        let (names, tag) = (names.to_vec(), tag.to_string());
        let done = self.request(permit, (SpaceCheck::Nothing, 0), request, move |context| {
            let mut gone = Vec::new();
            for name in names {
                let tx = &mut context.tx;
                let object = match find_snapshot(tx, &name) {
                    Ok((_, object)) => object,
                    Err(DslWriteError::NotFound) => {
                        return Ok(Ok(Err((name, ChangeError::NotFound))));
                    }
                    Err(e) => return Err(e),
                };
                let left = match holds::release(tx, object, &tag) {
                    Ok(Released::Left(left)) => left,
                    Ok(Released::Destroyed) => {
                        context.retire(object)?;
                        gone.push(name.clone());
                        0
                    }
                    Err(DslWriteError::NotFound) => {
                        let why = "no such tag on this dataset";
                        return Ok(Ok(Err((name, ChangeError::Crosses(why)))));
                    }
                    Err(e) => return Err(e),
                };
                record(
                    &mut context.tx,
                    "release",
                    &format!("tag={tag} refs={left}"),
                    (&name, object),
                )?;
            }
            Ok(Ok(Ok(gone)))
        });
        done.map_err(|e| (None, e))?.map_err(|(name, e)| (Some(name), e))
    }

    /// Creates the bookmark `name` (`pool/fs#bookmark`) of a snapshot or bookmark of the same dataset, or of one
    /// that it is a clone of (`dsl_bookmark_create`, `zfs_ioc_bookmark`, `lzc_bookmark`).
    ///
    /// # Errors
    /// The name cannot be or is taken; there is no such source; it is no ancestor of the dataset.
    pub fn bookmark(&self, source: &str, name: &str) -> Result<()> {
        check_new(name, Expected::BOOKMARK)?;
        let split = |name: &str| {
            let (head, short) = name.split_once(['@', '#'])?;
            Some((head.to_string(), short.to_string()))
        };
        let (Some((head, short)), Some((from, of))) = (split(name), split(source)) else {
            return Err(ChangeError::NotFound);
        };
        if from.split('/').next() != head.split('/').next() {
            return Err(ChangeError::Crosses("bookmark is in a different pool"));
        }
        let of_snapshot = source.contains('@');
        let mut request = Request { name: "bookmark", input: NvList::default() };
        request.input.set(name, NvValue::String(source.to_string()));
        let permit = self.permit(&Operation::Bookmark { name })?;
        let done = self.request(permit, (SpaceCheck::Normal, 1), request, move |context| {
            let tx = &mut context.tx;
            let (_, object) = find_head(tx, &head)?;
            let (_, from) = find_head(tx, &from)?;
            let (source, target) = match of_snapshot {
                true => {
                    let snap = snaps::find_snapshot(tx, from, &of)?;
                    let snap = snap.ok_or(DslWriteError::NotFound)?;
                    (Source::Snapshot(snap), snap)
                }
                false => (Source::Bookmark(from, of), 0),
            };
            let Made { txg, list } = bookmarks::create(tx, object, &short, &source)?;
            let what =
                format!("name={short} creation_txg={txg} target_snap={target} redact_obj={list}");
            record(tx, "bookmark", &what, (&head, object))?;
            Ok(Ok(Ok::<(), ChangeError>(())))
        });
        done.flatten()
    }

    /// Destroys bookmarks by their full names; those that are not there are no obstacle
    /// (`dsl_bookmark_destroy`, `zfs_ioc_destroy_bookmarks`).
    ///
    /// # Errors
    /// The pool's metadata cannot be read or written.
    pub fn destroy_bookmarks(&self, names: &[String]) -> Result<()> {
        let mut request = Request { name: "destroy_bookmarks", input: NvList::default() };
        names.iter().for_each(|name| request.input.set(name, NvValue::Boolean));
        let permit = self.permit(&Operation::DestroyBookmarks { names })?;
        let names = names.to_vec();
        let done = self.request(
            permit,
            (SpaceCheck::Reserved, names.len() as u64),
            request,
            move |context| {
                for name in &names {
                    let tx = &mut context.tx;
                    let Some((head, short)) = name.split_once('#') else { continue };
                    let list = find_head(tx, head)
                        .and_then(|(_, object)| bookmarks::find(tx, object, short))
                        .map(|found| found.map_or(0, |(_, bookmark)| bookmark.redaction));
                    if let Ok(list) = list
                        && list != 0
                    {
                        // A stream may be made of it, or it is being made.
                        context.retire(list)?;
                    }
                    let tx = &mut context.tx;
                    let destroyed = find_head(tx, head).and_then(|(_, object)| {
                        bookmarks::destroy(tx, object, short)?;
                        Ok(object)
                    });
                    match destroyed {
                        Ok(object) => {
                            record(
                                tx,
                                "remove bookmark",
                                &format!("name={short}"),
                                (head, object),
                            )?;
                        }
                        Err(DslWriteError::NotFound) => {}
                        Err(e) => return Err(e),
                    }
                }
                Ok(Ok(Ok::<(), ChangeError>(())))
            },
        );
        done.flatten()
    }
}
