//! A panic while the ARC is locked.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use cenote_format::invariant;
use cenote_format::invariant::caught;
use cenote_format::nvlist::{NvList, NvValue};

#[test]
fn a_thread_that_panics_with_the_arc_sounds_the_alarm() {
    let mut root = NvList::default();
    root.set("type", NvValue::String("root".into()));
    root.set("id", NvValue::Uint64(0));
    root.set("guid", NvValue::Uint64(1));
    root.set("children", NvValue::NvListArray(Vec::new()));
    let tree = VdevTree::build(&root, &mut |_, _| None).unwrap();
    let store = Store::new(tree, 1 << 20);
    drop(store.arc());
    assert_eq!(store.alarm().why(), None);
    let reader = || {
        let _arc = store.arc();
        let lists = 5;
        invariant!(lists == 4, "{lists} lists");
    };
    assert!(caught(reader).is_err());
    let alarm = store.alarm();
    assert!(alarm.why().unwrap().ends_with("5 lists"), "{alarm:?}");
    // The next caller gets the cache.
    drop(store.arc());
}
