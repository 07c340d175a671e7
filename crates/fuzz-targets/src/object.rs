//! The target of what is kept in an object store. Bodies get their trailer here, so that a wrong checksum does not hide their decoders.

use std::hint::black_box;

use cenote_objects::address::Address;
use cenote_objects::frame::{self, Kind};
use cenote_objects::id::Id;
use cenote_objects::index::{Index, Limits};
use cenote_objects::page::{self, Entry};
use cenote_objects::record::{Move, Old, Record};
use cenote_objects::root::{Root, Tail, Totals};
use cenote_objects::table::{Block, Table};
use cenote_vdev::object::recode;

const LIMITS: Limits =
    Limits { percent: 50, small: 1 << 20, target: 4 << 20, page: page::PAGE_ENTRIES };

/// `kind, body`; what is decoded is encoded and decoded again.
pub(crate) fn object(data: &[u8]) {
    let Some((&kind, body)) = data.split_first() else { return };
    for kind in [Kind::Table, Kind::Page, Kind::Record, Kind::Directory, Kind::Root] {
        black_box(frame::open(kind, data).is_ok());
    }
    match kind % 6 {
        5 => beside(body),
        0 => {
            let Ok(table) = Table::decode(&frame::seal(Kind::Table, body.to_vec())) else { return };
            assert_eq!(Table::decode(&table.encode()).as_ref(), Ok(&table));
            black_box((table.data(), table.place(0, 512), table.place(u64::MAX, u64::MAX)));
        }
        1 => {
            let sealed = frame::seal(Kind::Page, body.to_vec());
            let Ok(entries) = page::decode(&sealed) else { return };
            assert_eq!(page::decode(&page::encode(&entries)).as_ref(), Ok(&entries));
            black_box(entries.iter().map(Entry::bytes).sum::<u64>());
        }
        2 => {
            let sealed = frame::seal(Kind::Record, body.to_vec());
            let Ok((_, record)) = Record::decode(&sealed) else { return };
            assert_eq!(
                Record::decode(&record.encode()).map(|decoded| decoded.1).as_ref(),
                Ok(&record)
            );
            let mut index = Index::new(LIMITS);
            black_box(index.apply(&record).is_ok());
            black_box(index.find(0).is_ok());
        }
        3 => {
            let sealed = frame::seal(Kind::Directory, body.to_vec());
            let Ok((mut index, garbage)) = Index::open(&sealed, LIMITS) else { return };
            for key in index.keys() {
                black_box((index.home(key), index.find(key).is_ok()));
            }
            black_box((index.directory(&garbage).len(), index.worn().len()));
        }
        _ => {
            let Ok(root) = Root::decode(&frame::seal(Kind::Root, body.to_vec())) else { return };
            assert_eq!(Root::decode(&root.encode()).as_ref(), Ok(&root));
            black_box(Record::decode_all(&root.inline).is_ok());
        }
    }
}

/// What a device has beside the blocks: the labels that go along with a root, and the names of places.
fn beside(body: &[u8]) {
    if let Ok(labels) = recode(body) {
        assert_eq!(recode(&labels).as_deref(), Ok(labels.as_slice()));
    }
    if let Some(address) = std::str::from_utf8(body).ok().and_then(|t| Address::parse(t).ok()) {
        assert_eq!(Address::parse(&address.name()), Ok(address));
    }
}

/// Labels with one sector of each of two places, and a name.
fn seeds_beside() -> [Vec<u8>; 2] {
    let mut labels = b"\x05cenobj\0\x01".to_vec();
    labels.extend((64_u64 << 40).to_le_bytes());
    for label in [0, 3] {
        labels.extend([label, 0x00, 0x01, 0x08, 0x00]);
        labels.extend(0x00ba_b10c_u64.to_le_bytes());
    }
    [labels, b"\x05s3://bucket/a/b?endpoint=http://127.0.0.1:9000&region=x&style=path".to_vec()]
}

/// A structure of each kind, small and large.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let entry = |n: u64| Entry {
        start: n << 22,
        end: (n + 1) << 22,
        id: Id::new(3, n),
        data: if n.is_multiple_of(5) { 1 << 20 } else { 1 << 22 },
        table: 500,
        live: 1 << 20,
    };
    let mut seeds: Vec<Vec<u8>> = seeds_beside().into();
    for many in [1, 40] {
        let entries: Vec<Entry> = (0..many).map(entry).collect();
        let blocks = (0..many).map(|n| Block { address: n << 13, length: 4096, sum: n });
        let fresh = |e: &Entry| Entry { data: 1 << 22, live: 1 << 22, ..*e };
        let move_of = |e: &Entry| Move { olds: vec![Old { start: e.start, id: e.id }], new: *e };
        let record = Record {
            group: 7,
            added: entries.iter().map(fresh).collect(),
            freed: entries.iter().map(|e| (e.start, 4096)).collect(),
            moved: entries.iter().step_by(2).map(move_of).collect(),
            deleted: vec![Id(5)],
        };
        let mut index = Index::new(LIMITS);
        let added = record.added.clone();
        let _ = index.apply(&Record { added, ..Record::default() });
        let mut name = 0;
        index.checkpoint(4096, || {
            name += 1;
            Id(name)
        });
        let root = Root {
            guid: 1,
            sequence: 2,
            host: "host".into(),
            mark: 3,
            group: 4,
            next: 1 << 30,
            tails: vec![Tail { epoch: 1, counter: many, loose: vec![0] }],
            totals: Totals { objects: many, stored: many << 22, live: many << 20 },
            directory: Some((Id(9), 100)),
            logs: vec![(Id(8), 50)],
            inline: record.encode(),
            payload: b"payload".to_vec(),
        };
        let structures = [
            Table { blocks: blocks.collect() }.encode(),
            page::encode(&entries),
            record.encode(),
            index.directory(&[Id(5)]),
            root.encode(),
        ];
        for (kind, bytes) in structures.iter().enumerate() {
            seeds.push([&[kind as u8], &bytes[..bytes.len() - frame::TRAILER]].concat());
        }
    }
    seeds
}
