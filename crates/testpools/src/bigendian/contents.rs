//! Turns what is in blocks, by its type (`dmu_ot`, `dmu_ot_byteswap`).

use super::read::little;
use super::{Turner, swap};
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::{DNODE_CORE, DNODE_FLAG_SPILL, DNODE_SLOT, DmuType, ObjsetPhys};
use cenote_format::sa::{AttrDef, Layout, SaHeader};
use cenote_format::zap::{BLOCK_LEAF, BLOCK_MICRO, leaf::CHUNK_SIZE};
use std::collections::HashMap;

/// Where a dataset has the pointer to its object set (`dsl_dataset_phys_t`).
pub(super) const DATASET_POINTER: usize = 128;
/// Where the first pointer of an object set's intent log is, and what follows its header.
const LOG_POINTER: usize = 528;
const OBJSET_KIND: usize = 704;
/// Bytes of MACs, which have no byte order.
const MACS: std::ops::Range<usize> = 720..784;

/// What the system attributes of an object set's files are.
#[derive(Default)]
pub(super) struct Context {
    layouts: HashMap<u16, Layout>,
}

/// How a type of object is turned (`DMU_BSWAP_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turns {
    Not,
    Words(usize),
    Zap,
    Dnodes,
    Objset,
    Znode,
    OldAcl,
    Acl,
}

fn turns(kind: DmuType) -> Turns {
    use Turns::*;
    const EACH: [Turns; 10] =
        [Not, Words(2), Words(4), Words(8), Zap, Dnodes, Objset, Znode, OldAcl, Acl];
    if kind.is_new() {
        return EACH[usize::from(kind.0 & 0x1f)];
    }
    match kind.0 {
        0 | 3 | 19 | 23 | 25 | 29 | 34 | 35 | 44 | 49 => Not,
        2 | 4..=9 | 12 | 16 | 26 | 30 | 36 | 51 | 53 => Words(8),
        10 => Dnodes,
        11 => Objset,
        17 => Znode,
        18 => OldAcl,
        33 => Acl,
        _ => Zap,
    }
}

fn word(data: &[u8], at: usize) -> u64 {
    little(data).u64(at).unwrap()
}

impl Turner {
    /// Turns the blocks that the contents of a block point at, and leaves the pointers as they are then.
    pub(super) fn convert_pointers(
        &mut self,
        bp: &BlockPointer,
        data: &mut [u8],
        cx: &mut Context,
    ) {
        let kind = DmuType(bp.object_type());
        if bp.level() > 0 {
            let pointers = data.chunks_exact_mut(BLKPTR_SIZE);
            return pointers.for_each(|at| self.convert(at, cx));
        }
        match turns(kind) {
            Turns::Dnodes => {
                let mut at = 0;
                while at < data.len() {
                    let len = DNODE_SLOT * (1 + usize::from(data[at + 12]));
                    self.convert_dnode(&mut data[at..at + len], cx);
                    at += len;
                }
            }
            Turns::Objset => {
                *cx = self.context(data);
                self.convert_dnode(&mut data[..DNODE_SLOT], cx);
                for at in [1024, 1536, 2048] {
                    if let Some(dnode) = data.get_mut(at..at + DNODE_SLOT) {
                        self.convert_dnode(dnode, cx);
                    }
                }
                let log = &mut data[LOG_POINTER..LOG_POINTER + BLKPTR_SIZE];
                let pointer = BlockPointer::decode(&little(log), 0).unwrap();
                log.copy_from_slice(&self.log(&pointer).encode());
            }
            Turns::Words(8) if kind == DmuType::BPOBJ => {
                for at in data.chunks_exact_mut(BLKPTR_SIZE) {
                    let pointer = BlockPointer::decode(&little(at), 0).unwrap();
                    if let Some(now) = self.known(&pointer) {
                        at.copy_from_slice(&now.encode());
                    }
                }
            }
            _ => {}
        }
    }

    fn convert(&mut self, at: &mut [u8], cx: &mut Context) {
        let pointer = BlockPointer::decode(&little(at), 0).unwrap();
        at.copy_from_slice(&self.pointer(&pointer, cx).encode());
    }

    fn convert_dnode(&mut self, dnode: &mut [u8], cx: &mut Context) {
        if dnode[0] == 0 {
            return;
        }
        let pointers = DNODE_CORE + usize::from(dnode[3]) * BLKPTR_SIZE;
        dnode[DNODE_CORE..pointers]
            .chunks_exact_mut(BLKPTR_SIZE)
            .for_each(|at| self.convert(at, cx));
        if dnode[7] & DNODE_FLAG_SPILL != 0 {
            let spill = dnode.len() - BLKPTR_SIZE;
            self.convert(&mut dnode[spill..], cx);
        }
        if DmuType(dnode[4]) == DmuType::DSL_DATASET {
            let at = pointers + DATASET_POINTER;
            self.convert(&mut dnode[at..at + BLKPTR_SIZE], &mut Context::default());
        }
    }

    /// The layouts of system attributes that an object set defines.
    fn context(&self, data: &[u8]) -> Context {
        let mut cx = Context::default();
        let objset = ObjsetPhys::decode(&little(data)).unwrap();
        if word(data, OBJSET_KIND) != 2 {
            return cx;
        }
        let find = |number: u64, name: &[u8]| {
            let dnode = self.dnode(&objset, number)?;
            let (_, value) = self.zap(&dnode).into_iter().find(|(n, _)| n == name)?;
            Some(value[0])
        };
        let Some(attrs) = find(1, b"SA_ATTRS") else { return cx };
        let entries = |name: &[u8]| {
            let dnode = find(attrs, name).and_then(|number| self.dnode(&objset, number));
            dnode.map(|d| self.zap(&d)).unwrap_or_default()
        };
        let defs: Vec<AttrDef> =
            entries(b"REGISTRY").iter().map(|(_, word)| AttrDef::decode(word[0])).collect();
        for (name, attrs) in entries(b"LAYOUTS") {
            let number = String::from_utf8(name).unwrap().parse().unwrap();
            let def = |id: &u64| *defs.iter().find(|d| u64::from(d.id) == *id).unwrap();
            cx.layouts.insert(number, Layout::new(attrs.iter().map(def).collect()));
        }
        cx
    }

    /// Turns what is in a block.
    pub(super) fn turn(&self, bp: &BlockPointer, data: &mut [u8], cx: &Context) {
        let kind = DmuType(bp.object_type());
        match turns(kind) {
            _ if bp.level() > 0 => swap(data, 8),
            Turns::Dnodes => {
                let mut at = 0;
                while at < data.len() {
                    let len = DNODE_SLOT * (1 + usize::from(data[at + 12]));
                    turn_dnode(&mut data[at..at + len], cx);
                    at += len;
                }
            }
            Turns::Objset => {
                turn_dnode(&mut data[..DNODE_SLOT], cx);
                swap(&mut data[DNODE_SLOT..MACS.start], 8);
                for at in [1024, 1536, 2048] {
                    if let Some(dnode) = data.get_mut(at..at + DNODE_SLOT) {
                        turn_dnode(dnode, cx);
                    }
                }
            }
            how => turn_values(kind, how, data, cx),
        }
    }
}

/// Turns what is in a block or a bonus buffer, and no pointers.
fn turn_values(kind: DmuType, how: Turns, data: &mut [u8], cx: &Context) {
    match how {
        Turns::Not if kind == DmuType::SA => turn_attributes(data, cx),
        Turns::Not => {}
        Turns::Words(size) => swap(data, size),
        Turns::Zap => turn_zap(data),
        Turns::Znode => turn_znode(data),
        Turns::OldAcl => turn_old_aces(data),
        Turns::Acl => turn_aces(data, true),
        Turns::Dnodes | Turns::Objset => panic!("a bonus of type {kind:?}"),
    }
}

/// As [`turn_values`], of what has no system attributes in it that would be turned.
pub(super) fn turn_plain(kind: DmuType, data: &mut [u8]) {
    turn_values(kind, turns(kind), data, &Context::default());
}

/// Turns a dnode, with all its slots (`dnode_byteswap`).
fn turn_dnode(dnode: &mut [u8], cx: &Context) {
    if dnode[0] == 0 {
        return;
    }
    let bonus = DNODE_CORE + usize::from(dnode[3]) * BLKPTR_SIZE;
    let kind = DmuType(dnode[4]);
    let end = match dnode[7] & DNODE_FLAG_SPILL != 0 {
        true => dnode.len() - BLKPTR_SIZE,
        false => dnode.len(),
    };
    if let Some(values) = dnode.get_mut(bonus..end) {
        turn_values(kind, turns(kind), values, cx);
    }
    swap(&mut dnode[8..12], 2);
    swap(&mut dnode[16..bonus.min(end)], 8);
    swap(&mut dnode[end..], 8);
}

/// Turns system attributes (`sa_byteswap`).
fn turn_attributes(data: &mut [u8], cx: &Context) {
    let Ok(header) = SaHeader::decode(data) else { return };
    let Some(layout) = cx.layouts.get(&header.layout) else { return };
    for value in layout.locate(data, &header).unwrap() {
        let bytes = &mut data[value.at..value.at + value.len];
        match value.def.swap {
            0 => swap(bytes, 8),
            1 => swap(bytes, 4),
            2 => swap(bytes, 2),
            3 => {}
            4 => turn_aces(bytes, true),
            how => panic!("an attribute that is turned by function {how}"),
        }
    }
    swap(&mut data[..4], 4);
    swap(&mut data[4..header.size], 2);
}

fn turn_zap(data: &mut [u8]) {
    match word(data, 0) {
        BLOCK_MICRO => {
            swap(&mut data[..64], 8);
            for entry in data[64..].chunks_exact_mut(64) {
                swap(&mut entry[..8], 8);
                swap(&mut entry[8..12], 4);
            }
        }
        BLOCK_LEAF => {
            let chunks = 48 + data.len() / 16;
            swap(&mut data[..24], 8);
            swap(&mut data[24..28], 4);
            swap(&mut data[28..36], 2);
            swap(&mut data[48..chunks], 2);
            for chunk in data[chunks..].chunks_exact_mut(CHUNK_SIZE) {
                match chunk[0] {
                    252 => {
                        swap(&mut chunk[2..12], 2);
                        swap(&mut chunk[12..16], 4);
                        swap(&mut chunk[16..24], 8);
                    }
                    251 | 253 => swap(&mut chunk[22..24], 2),
                    kind => panic!("a chunk of type {kind}"),
                }
            }
        }
        _ => swap(data, 8),
    }
}

/// Turns a node from before system attributes (`zfs_znode_byteswap`).
fn turn_znode(data: &mut [u8]) {
    const LIST: usize = 192;
    let version = little(data).u16(188).unwrap();
    swap(&mut data[..184], 8);
    swap(&mut data[184..188], 4);
    swap(&mut data[188..LIST], 2);
    match version {
        1 => turn_aces(&mut data[LIST..264], true),
        _ => turn_old_aces(&mut data[LIST..264]),
    }
}

fn turn_old_aces(data: &mut [u8]) {
    for ace in data.chunks_exact_mut(12) {
        swap(&mut ace[..8], 4);
        swap(&mut ace[8..], 2);
    }
}

/// Turns a list, in the form of files or in that of records (`zfs_ace_byteswap`).
pub(super) fn turn_aces(mut data: &mut [u8], stored: bool) {
    let (shortest, named) = if stored { (8, 16) } else { (12, 12) };
    while data.len() >= shortest {
        let number = |at| little(data).u16(at).unwrap();
        let (kind, flags) = if stored { (number(0), number(2)) } else { (number(10), number(8)) };
        match stored {
            true => {
                swap(&mut data[..4], 2);
                swap(&mut data[4..8], 4);
            }
            false => {
                swap(&mut data[..8], 4);
                swap(&mut data[8..12], 2);
            }
        }
        let len = match flags & 0x7040 {
            0x1000 | 0x4000 | 0x2040 => shortest,
            _ => {
                if stored && data.len() >= named {
                    swap(&mut data[8..16], 8);
                }
                named + if (5..=8).contains(&kind) { 32 } else { 0 }
            }
        };
        data = data.get_mut(len..).unwrap_or_default();
    }
}
