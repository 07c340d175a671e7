//! The target that changes ZAP blocks in place, and turns blocks of any type. `16 operations, a block…`

use std::hint::black_box;

use cenote_format::dmu::DmuType;
use cenote_format::encode::EncodeError;
use cenote_format::encode::zap::leaf::LeafMut;
use cenote_format::encode::zap::micro::MicroIndex;
use cenote_format::encode::zap::{Key, Value, fat, to_little_endian};
use cenote_format::zap::fat::FatHeader;
use cenote_format::{ByteOrder, Bytes, turn};

/// A micro ZAP or a leaf that was whole is whole after every operation; one that was not gives
/// errors.
pub(crate) fn zap_change(data: &[u8]) {
    let Some((ops, block)) = data.split_first_chunk::<16>() else { return };
    micro(ops, block.to_vec());
    leaf(ops, block.to_vec());
    header(ops, block.to_vec());
    black_box(to_little_endian(&mut block.to_vec(), ByteOrder::Big)).ok();
    turn::from_big_endian(DmuType(ops[0]), black_box(&mut block.to_vec()));
}

fn micro(ops: &[u8; 16], mut block: Vec<u8>) {
    let Ok(mut index) = MicroIndex::load(&block) else { return };
    for op in ops {
        let name = [b'a' + op / 4 % 26, b'0' + op % 3];
        let Ok(found) = index.find(&block, &name) else { return };
        let done = match (op % 4, found) {
            (0, Some(found)) => index.remove(&mut block, &found),
            (_, Some(found)) => index.set(&mut block, &found, u64::from(*op)),
            (_, None) => index.insert(&mut block, &name, u64::from(*op)).map(|_| ()),
        };
        match done {
            Ok(()) => {
                let again = MicroIndex::load(&block).map(|i| i.len());
                assert_eq!(again, Ok(index.len()), "a micro ZAP is no longer whole");
            }
            Err(EncodeError::Full { .. }) => {}
            Err(_) => return,
        }
        black_box(index.find_normalized(&block, b"\xc3\xa9")).ok();
    }
}

fn leaf(ops: &[u8; 16], mut block: Vec<u8>) {
    let size = block.len();
    let Ok(mut leaf) = LeafMut::open(&mut block) else { return };
    let whole = leaf.check(false).is_ok();
    for op in ops {
        let name = [op / 2; 30];
        let key = Key::Name(&name[..usize::from(op % 31)]);
        // Any hash that the leaf's prefix allows is some key's.
        let hash = leaf.first_hash().wrapping_add(u64::from(op / 8) << 36);
        let value = vec![u16::from(*op); usize::from(*op)];
        let done = match leaf.find(hash, &key) {
            Ok(Some(entry)) if op % 4 == 0 => leaf.remove(&entry),
            Ok(Some(entry)) => leaf.replace(&entry, &Value::U16(&value)),
            Ok(None) => leaf.insert(hash, &key, &Value::U16(&value), None).map(|_| ()),
            Err(e) => Err(e),
        };
        let damaged = matches!(done, Err(EncodeError::Damaged(_)));
        assert!(!whole || !damaged, "a whole leaf is called damaged: {done:?}");
        if damaged {
            return;
        }
        assert!(!whole || leaf.check(false).is_ok(), "a leaf is no longer whole");
    }
    let mut other = vec![0; size];
    let Ok(mut new) = LeafMut::format(&mut other, false) else { return };
    if leaf.split(&mut new, false).is_ok() && whole {
        assert!(leaf.check(false).is_ok() && new.check(false).is_ok(), "a split breaks a leaf");
    }
}

fn header(ops: &[u8; 16], mut block: Vec<u8>) {
    let Ok(mut header) = FatHeader::decode(&Bytes::new(&block, ByteOrder::Little, "fuzz")) else {
        return;
    };
    for op in ops {
        let hash = u64::from(*op) << 56 | u64::from(*op);
        black_box(header.leaf_pointers(hash, u32::from(op % 64))).ok();
        if let Ok(range) = header.split_pointers(hash, u32::from(op % 64)) {
            assert!(range.end <= header.pointers());
            let writes = header.pointer_writes(range.start);
            assert!(writes.into_iter().all(|at| at.offset + 8 <= block.len()));
        }
        black_box((header.allocate_leaf(), header.wants_growth(u32::from(*op), 3))).0.ok();
        let grown = match header.table.blocks {
            0 => header.leave_embedded().is_ok(),
            _ => header.grow_step().is_ok(),
        };
        if grown && header.encode(&mut block).is_ok() {
            let bytes = Bytes::new(&block, ByteOrder::Little, "fuzz");
            assert!(FatHeader::decode(&bytes).is_ok(), "a grown table is refused");
        }
    }
    black_box(fat::set_pointer(&mut block, usize::from(ops[0]), 1)).ok();
}
