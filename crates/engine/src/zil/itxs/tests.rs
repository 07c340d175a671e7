use super::*;

fn write_to(object: u64, length: u64) -> Intent {
    Some(vec![Itx::Write { object, offset: 0, length }])
}

fn write(length: u64) -> Intent {
    write_to(7, length)
}

fn record(about: About, bytes: usize) -> Intent {
    Some(vec![Itx::Record { bytes: vec![0; bytes], about }])
}

fn create(object: u64, bytes: usize) -> Intent {
    record(About::New(object), bytes)
}

/// Numbers of the changes that are written at once.
fn changes(batch: &Batch) -> Vec<u64> {
    batch.changes.iter().map(|queued| queued.change).collect()
}

impl Itxs {
    fn take_all(&mut self, synced: u64) -> Batch {
        self.want(Scope::All);
        self.take(synced, u64::MAX)
    }
}

impl Itxs {
    /// Has the count of bytes be off.
    pub fn plant(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
}

#[test]
fn what_is_on_disk_is_not_logged() {
    let mut itxs = Itxs::default();
    itxs.note(4, write(10), false);
    itxs.note(5, write(20), false);
    itxs.note(5, Some(Vec::new()), false);
    itxs.forget(4);
    let batch = itxs.take_all(4);
    assert_eq!((batch.changes.len(), batch.end, batch.unlogged), (1, 1, false));
    assert!(itxs.take_all(4).changes.is_empty());
    assert_eq!(itxs.bytes, 0);
}

#[test]
fn an_unlogged_change_counts_until_its_group_is_on_disk() {
    let mut itxs = Itxs::default();
    itxs.note(4, None, false);
    itxs.note(5, write(1), false);
    assert!(itxs.take_all(3).unlogged);
    // Also for those that follow it.
    itxs.note(5, write(1), false);
    assert!(itxs.take_all(3).unlogged && !itxs.take_all(4).unlogged);
}

#[test]
fn what_was_taken_and_not_written_is_unlogged() {
    let mut itxs = Itxs::default();
    itxs.note(4, write(1), false);
    itxs.note(5, write(1), false);
    let lost = itxs.take_all(3);
    itxs.lose(lost.youngest());
    assert!(itxs.take_all(4).unlogged && !itxs.take_all(5).unlogged);
}

#[test]
fn more_than_is_kept_is_unlogged() {
    let mut itxs = Itxs::default();
    itxs.note(4, create(1, usize::try_from(MAX_BYTES).unwrap()), false);
    let batch = itxs.take_all(3);
    assert!(batch.changes.is_empty() && batch.unlogged);
    assert_eq!(batch.end, itxs.want(Scope::Objects(&[])));
}

#[test]
fn a_number_is_reused_from_its_creation_on() {
    let mut itxs = Itxs::default();
    itxs.note(4, write(1), false);
    itxs.note(5, create(7, 100), false);
    itxs.note(5, write(1), false);
    itxs.note(5, Some(vec![Itx::Created(9)]), false);
    assert!(itxs.is_reused(7, 0) && !itxs.is_reused(7, 1) && !itxs.is_reused(7, 2));
    assert!(!itxs.is_reused(8, 0) && itxs.is_reused(9, 2));
    itxs.forget(5);
    assert!(!itxs.is_reused(7, 0));
}

#[test]
fn what_waits_of_a_file_is_not_written_as_that_of_another_with_its_number() {
    let mut itxs = Itxs::default();
    itxs.note(4, record(About::Object(7), 8), false);
    itxs.note(4, write_to(7, 1), false);
    itxs.note(4, record(About::Object(8), 8), false);
    itxs.note(4, record(About::Names, 8), false);
    let made = [record(About::New(7), 8), write_to(7, 1)].into_iter().flatten().flatten();
    itxs.note(4, Some(made.collect()), false);
    itxs.note(4, record(About::Object(7), 8), false);
    itxs.want(Scope::Objects(&[7]));
    assert_eq!(changes(&itxs.take(3, u64::MAX)), [3, 4, 5]);
    itxs.note(4, Some(vec![Itx::Created(8)]), false);
    assert!(itxs.take_all(3).changes.is_empty());
    assert_eq!(itxs.bytes, 0);
}

#[test]
fn a_commit_writes_names_and_its_own_object() {
    let mut itxs = Itxs::default();
    itxs.note(4, create(7, 8), false);
    itxs.note(4, write_to(7, 1), false);
    itxs.note(4, write_to(8, 1), false);
    itxs.note(4, record(About::Names, 8), false);
    itxs.note(4, record(About::Object(8), 8), false);
    assert_eq!(itxs.want(Scope::Objects(&[7])), 3);
    assert_eq!(changes(&itxs.take(3, u64::MAX)), [0, 3, 1]);
    // What waits of others is written with them, in order.
    assert_eq!(itxs.want(Scope::Objects(&[7])), 3);
    assert_eq!(itxs.want(Scope::Objects(&[8, 9])), 5);
    assert_eq!(changes(&itxs.take(3, u64::MAX)), [2, 4]);
}

#[test]
fn what_belongs_to_another_object_is_written_with_the_names() {
    let mut itxs = Itxs::default();
    itxs.note(4, write_to(7, 1), false);
    let mut put = record(About::Object(8), 8).unwrap();
    put.extend([Itx::Write { object: 8, offset: 0, length: 1 }, Itx::WithNames(8)]);
    itxs.note(4, Some(put), false);
    itxs.want(Scope::Objects(&[6]));
    let batch = itxs.take(3, u64::MAX);
    assert_eq!((changes(&batch), batch.itxs().count()), (vec![1], 2));
}

/// A change of these parts.
fn several(parts: &[Intent]) -> Intent {
    Some(parts.iter().flatten().flatten().cloned().collect())
}

#[test]
fn a_change_of_several_records_is_whole() {
    let mut itxs = Itxs::default();
    // Of one object: it waits with that.
    itxs.note(4, several(&[record(About::Object(7), 8), write_to(7, 1)]), false);
    // Of two objects, and of an object and a name: it is written with the names, and what came before in each object too.
    itxs.note(4, write_to(8, 1), false);
    itxs.note(4, several(&[record(About::Object(8), 8), record(About::Object(9), 8)]), false);
    itxs.note(4, write_to(10, 1), false);
    itxs.note(4, several(&[record(About::Object(10), 8), record(About::Names, 8)]), false);
    itxs.note(4, several(&[create(11, 8), record(About::Object(11), 8)]), false);
    itxs.want(Scope::Objects(&[6]));
    let batch = itxs.take(3, u64::MAX);
    assert_eq!(changes(&batch), [1, 2, 3, 4, 5]);
    assert!(
        [2, 4, 5].iter().all(|n| batch.changes.iter().any(|q| q.change == *n && q.itxs.len() == 2))
    );
    itxs.want(Scope::Objects(&[7]));
    let batch = itxs.take(3, u64::MAX);
    assert_eq!((changes(&batch), batch.itxs().count()), (vec![0], 2));
    assert_eq!(itxs.bytes, 0);
}

#[test]
fn names_that_change_after_a_batch_was_taken_are_seen() {
    let mut itxs = Itxs::default();
    itxs.note(4, record(About::Names, 8), false);
    assert!(itxs.has_names());
    itxs.take_all(3);
    itxs.note(4, write_to(7, 1), false);
    itxs.want(Scope::All);
    assert!(!itxs.has_names());
    itxs.note(4, several(&[record(About::Object(8), 8), record(About::Names, 8)]), false);
    assert!(itxs.has_names());
}

#[test]
fn what_is_renamed_is_written_before_its_name() {
    let mut itxs = Itxs::default();
    itxs.note(4, write_to(7, 1), false);
    itxs.note(4, write_to(8, 1), false);
    itxs.note(4, record(About::Renamed(7), 8), false);
    itxs.want(Scope::Objects(&[]));
    assert_eq!(changes(&itxs.take(3, u64::MAX)), [0, 2]);
    itxs.note(5, write_to(6, 1), false);
    assert_eq!(changes(&itxs.take_all(3)), [1, 3]);
}

#[test]
fn attributes_among_system_attributes_need_the_feature() {
    let mut bytes = vec![0; 64];
    bytes[..8].copy_from_slice(&kind::TX_SETSAXATTR.to_le_bytes());
    let set = || Some(vec![Itx::Record { bytes: bytes.clone(), about: About::Object(7) }]);
    let mut itxs = Itxs::default();
    itxs.note(4, set(), true);
    assert!(!itxs.take_all(3).unlogged);
    itxs.note(4, set(), false);
    let batch = itxs.take_all(3);
    assert!(batch.unlogged && batch.changes.is_empty());
}
