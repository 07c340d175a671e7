//! A block of pointers that is linked twice: walks that look for redactions, and those of streams, end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote_dsl::redaction::RedactError;
use cenote_dsl::send::SendOptions;
use cenote_dsl::{Dataset, Dsl};
use cenote_manifest_check::import;
use cenote_store::tamper;

const POINTER: usize = 128;

/// The first and the last snapshot of a file system that has several.
fn ends(dsl: &Dsl) -> (Dataset, Dataset) {
    let root = dsl.root().unwrap();
    let mut heads = dsl.children(&root).unwrap();
    heads.push(root);
    let mut all: Vec<_> = heads.iter().map(|head| dsl.snapshots(head).unwrap()).collect();
    all.sort_by_key(Vec::len);
    let mut most = all.pop().unwrap();
    most.sort_by_key(|snapshot| snapshot.ds.creation_txg);
    assert!(most.len() > 1);
    (most.remove(0), most.pop().unwrap())
}

#[test]
fn blocks_that_are_linked_twice_end_walks() {
    let later = ends(import("streams").dsl()).1.ds_obj;
    // Blocks of dnodes: the third level from below leads to the same one twice.
    tamper::install(Some(Box::new(move |at, bytes| {
        let is_it = at.objset == later && at.object == 0 && at.level == 2;
        if is_it {
            bytes.copy_within(..POINTER, POINTER);
        }
        is_it
    })));
    let pool = import("streams");
    let dsl = pool.dsl();
    let (first, last) = ends(dsl);
    let by = std::slice::from_ref(&last);
    let found = dsl.find_redaction((&first, by), None, &|| false, |_| Ok::<(), RedactError>(()));
    assert!(found.unwrap_err().to_string().contains("linked twice"));
    let sent = dsl.send(&last, None, SendOptions::default(), &mut std::io::sink());
    assert!(sent.unwrap_err().to_string().contains("linked twice"));
    tamper::install(None);
}
