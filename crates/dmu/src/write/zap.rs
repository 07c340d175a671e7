//! Writing ZAPs (`zap_add`, `zap_update`, `zap_remove`, `zap_expand_leaf`, `mzap_upgrade`).
//!
//! A ZAP begins as a micro ZAP and stays one as long as each value is one 64-bit integer, names are
//! shorter than 50 bytes and there are no more entries than fit into a block of 128 KiB; the block
//! grows by sectors. Then it becomes a fat ZAP: its entries, with their collision differentiators,
//! move to leaves of 16 KiB. A leaf that is full is split; when a leaf has a single pointer only,
//! the pointer table doubles, from within the header block to blocks of its own and on from there.
//!
//! What happens inside the blocks is in [`cenote_format::encode::zap`]; here blocks are fetched,
//! and decided what to do when one is full. All changes are dirty blocks of the object.
//!
//! Invariant: block 0 and the index of a micro ZAP are changed together.

use super::object::{OpenObject, Place};
use super::{NewObject, OpenObjectSet, Result, WriteError};
use crate::overlay::Pending;
use crate::tunables::ZAP_MICRO_MAX_SIZE;
use crate::zap::{Match, Zap, ZapEntry};
use cenote_format::abd::Abd;
use cenote_format::dmu::DmuType;
use cenote_format::encode::EncodeError;
use cenote_format::encode::zap::fat::{
    HEADER_SIZE, double_pointers, format as format_fat, set_pointer,
};
use cenote_format::encode::zap::leaf::LeafMut;
use cenote_format::encode::zap::micro::{self, MicroIndex};
use cenote_format::encode::zap::{FAT_BLOCK_SHIFT, Key, MAX_LONG_NAME, MAX_NAME, Value};
use cenote_format::invariant::broken;
use cenote_format::zap::fat::FatHeader;
use cenote_format::zap::hash::{hash_name, hash_words};
use cenote_format::zap::leaf::Leaf;
use cenote_format::zap::micro::Micro;
use cenote_format::zap::norm::{self, normalize};
use cenote_format::zap::{BlockKind, block_kind};
use cenote_format::{ByteOrder, Bytes, DecodeError, SECTOR};
use cenote_store::write::Payload;
use std::borrow::Cow;
use std::sync::Arc;

/// Steps that one insertion may take: leaves split, steps of the pointer table's growth. More than
/// any hash can ask for.
const MAX_STEPS: usize = 1 << 12;

/// Salt and normalization of a new ZAP.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZapFormat {
    /// Start value of the hash: any odd number.
    pub salt: u64,
    /// Normalization flags, see [`cenote_format::zap::norm`].
    pub norm_flags: u64,
    /// `ZAP_FLAG_*`. With any of them the ZAP is a fat one from the start.
    pub flags: u64,
    /// log2 of the bytes of a block, if it is a fat one from the start: 9 to 19; 0 stands for 14.
    pub block_shift: u32,
}

/// What can be told of an entry without opening its ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtHand {
    /// Its value.
    Value(u64),
    /// The name does not exist.
    Absent,
    /// Nothing.
    Nothing,
}

/// What may be there when an entry is put into a ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Put {
    /// The name does not exist, or it is an error.
    New,
    /// The name does not exist: the caller has looked.
    Absent,
    /// Anything.
    Any,
}

/// Bytes of the longest name, with its NUL, and of the largest micro ZAP.
#[derive(Clone, Copy)]
struct Most {
    name: usize,
    micro: usize,
}

/// A ZAP of an object set that is being written.
pub struct ZapMut<'a> {
    set: &'a mut OpenObjectSet,
    object: u64,
    /// Bytes of the longest name, with its NUL.
    longest: usize,
    /// Bytes of the largest micro ZAP.
    largest: usize,
}

impl<'a> ZapMut<'a> {
    /// Allocates an object as `new` says (its block size is that of the micro ZAP, 512 bytes to
    /// 128 KiB) and makes it an empty ZAP; returns its number (`zap_create`).
    pub fn create(set: &mut OpenObjectSet, new: &NewObject, format: ZapFormat) -> Result<u64> {
        let object = set.allocate(new)?;
        Self::format(set, object, format)?;
        Ok(object)
    }

    /// Makes an object without data an empty ZAP.
    pub fn format(set: &mut OpenObjectSet, object: u64, format: ZapFormat) -> Result<()> {
        let kind = set.dnode(object)?.kind;
        if !kind.is_zap() {
            let why = format!("a {} is no ZAP", kind.name());
            return Err(WriteError::Invalid { object, why });
        }
        set.with(object, |o, place| self::format(o, place, format))
    }

    /// Makes an object of another type, with nothing but a bonus buffer, an empty ZAP of type `kind`
    /// (`dmu_object_zapify`).
    pub fn zapify(set: &mut OpenObjectSet, object: u64, kind: DmuType, salt: u64) -> Result<()> {
        if !kind.is_zap() || set.dnode(object)?.max_block != 0 {
            let why = format!("cannot become a {}", kind.name());
            return Err(WriteError::Invalid { object, why });
        }
        set.with(object, |o, place| {
            micro::format(o.block_mut(place, 0)?, salt, 0)?;
            o.phys_mut().kind = kind;
            Ok(())
        })
    }

    /// The ZAP in `object`.
    pub fn open(set: &'a mut OpenObjectSet, object: u64) -> ZapMut<'a> {
        ZapMut { set, object, longest: MAX_NAME, largest: micro::MAX_SIZE }
    }

    /// Names may have up to 1023 bytes (directories, with the feature `longname`).
    pub fn with_long_names(self) -> ZapMut<'a> {
        ZapMut { longest: MAX_LONG_NAME, ..self }
    }

    /// A micro ZAP may have up to 1 MiB, as far as `zap_micro_max_size` allows (the feature `large_microzap` is enabled).
    pub fn with_large_blocks(self) -> ZapMut<'a> {
        ZapMut { largest: micro::MAX_LARGE_SIZE, ..self }
    }

    fn run<T>(&mut self, f: impl FnOnce(&mut OpenObject, &Place<'_>) -> Result<T>) -> Result<T> {
        self.set.with(self.object, f)
    }

    /// The value of `key` (`zap_lookup`): bytes of each integer, and the integers.
    pub fn lookup(&mut self, key: &Key<'_>) -> Result<Option<(u8, Vec<u64>)>> {
        self.run(|object, place| lookup(object, place, key))
    }

    /// The first integer of the value of `key`.
    pub fn word(&mut self, key: &Key<'_>) -> Result<Option<u64>> {
        self.run(|object, place| match is_micro(object, place)? {
            true => Ok(find_micro(object, place, key)?.map(|found| found.value)),
            false => Ok(lookup_fat(object, place, key)?.and_then(|(_, v)| v.first().copied())),
        })
    }

    /// Adds an entry (`zap_add`, `zap_add_uint64`). Errors: [`WriteError::Exists`]; a key or value that no ZAP can hold.
    pub fn add(&mut self, key: &Key<'_>, value: &Value<'_>) -> Result<()> {
        self.put(key, value, Put::New)
    }

    /// As [`ZapMut::add`], of a key that was just looked up and is not there.
    pub fn add_absent(&mut self, key: &Key<'_>, value: &Value<'_>) -> Result<()> {
        self.put(key, value, Put::Absent)
    }

    /// Adds an entry or gives it a new value (`zap_update`, `zap_update_uint64`).
    pub fn update(&mut self, key: &Key<'_>, value: &Value<'_>) -> Result<()> {
        self.put(key, value, Put::Any)
    }

    fn put(&mut self, key: &Key<'_>, value: &Value<'_>, how: Put) -> Result<()> {
        let most = Most { name: self.longest, micro: self.largest };
        let large = self.run(|object, place| put(object, place, (key, value, how), most))?;
        let uses = &mut self.set.unwritten.uses;
        uses.long_names |= key.check(MAX_NAME).is_err();
        uses.large_microzap |= large;
        Ok(())
    }

    /// Removes an entry (`zap_remove`). Errors: [`WriteError::NoEntry`].
    pub fn remove(&mut self, key: &Key<'_>) -> Result<()> {
        self.run(|object, place| remove(object, place, key))
    }

    /// The first entry whose name matches under the ZAP's own normalization; in one without
    /// normalization, under no other name than `name` (`zap_match`).
    pub fn matching(&mut self, name: &[u8], how: Match) -> Result<Option<ZapEntry>> {
        Ok(Zap::open(&self.set.view(self.object)?)?.lookup_norm(name, how)?)
    }

    /// Removes the first entry whose name matches (see [`ZapMut::matching`]), and returns it.
    /// Errors: [`WriteError::NoEntry`].
    pub fn remove_matching(&mut self, name: &[u8], how: Match) -> Result<ZapEntry> {
        let Some(entry) = self.matching(name, how)? else {
            return Err(WriteError::NoEntry(self.object));
        };
        self.remove(&Key::Name(&entry.name))?;
        Ok(entry)
    }

    /// Adds `delta` to a value that is one 64-bit integer (wrapping); no entry is 0, and an entry
    /// that becomes 0 is removed (`zap_increment`). Returns the new value.
    pub fn increment(&mut self, key: &Key<'_>, delta: i64) -> Result<u64> {
        self.run(|object, place| increment(object, place, key, delta))
    }
}

fn bytes(data: &[u8]) -> Bytes<'_> {
    Bytes::new(data, ByteOrder::Little, "ZAP")
}

/// A block of a ZAP, which cannot be a hole.
fn block<'o>(object: &'o OpenObject, place: &Place<'_>, blkid: u64) -> Result<Cow<'o, Abd>> {
    if let Some(Pending::Data(Payload::Plain(data))) = object.pending.block(blkid) {
        return Ok(Cow::Borrowed(data));
    }
    let block = object.block(place, blkid)?.map(Cow::Owned);
    block.ok_or_else(|| DecodeError::invalid("ZAP", format!("no block {blkid}")).into())
}

fn is_micro(object: &OpenObject, place: &Place<'_>) -> Result<bool> {
    if object.pending.micro.is_some() {
        return Ok(true);
    }
    Ok(block_kind(&bytes(&block(object, place, 0)?.bytes()))? == BlockKind::Micro)
}

/// Sees to it that the index of a micro ZAP is there.
fn load_index(object: &mut OpenObject, place: &Place<'_>) -> Result<()> {
    if object.pending.micro.is_none() {
        let loaded = MicroIndex::load(&block(object, place, 0)?.bytes())?;
        object.pending.micro = Some(Arc::new(loaded));
    }
    Ok(())
}

/// The index that [`load_index`] has just seen to is missing.
fn no_index(place: &Place<'_>) -> ! {
    broken(format_args!("object {}: a micro ZAP has no index", place.object))
}

/// The entry called exactly `name`, if the object is a micro ZAP that was changed: its block and its index
/// are in memory then.
pub(super) fn at_hand(object: &OpenObject, name: &[u8]) -> AtHand {
    let find = || {
        let (index, block) = (object.pending.micro.as_ref()?, object.pending.block(0)?);
        let Pending::Data(Payload::Plain(block)) = block else { return None };
        let found = index.find(&block.bytes(), name).ok()?;
        Some(found.map_or(AtHand::Absent, |found| AtHand::Value(found.value)))
    };
    // A later open of the ZAP says what is wrong with it.
    find().unwrap_or(AtHand::Nothing)
}

/// An entry of a micro ZAP.
fn find_micro(
    object: &mut OpenObject,
    place: &Place<'_>,
    key: &Key<'_>,
) -> Result<Option<micro::Found>> {
    let Key::Name(name) = key else { return Ok(None) };
    load_index(object, place)?;
    let Some(index) = &object.pending.micro else { no_index(place) };
    Ok(index.find(&block(object, place, 0)?.bytes(), name)?)
}

/// Changes an entry in block 0, and the index. If that fails, the index is not known any more.
fn change_micro<T>(
    object: &mut OpenObject,
    place: &Place<'_>,
    found: &micro::Found,
    f: impl FnOnce(&mut MicroIndex, &mut [u8]) -> std::result::Result<T, EncodeError>,
) -> Result<T> {
    load_index(object, place)?;
    let Some(mut index) = object.pending.micro.take() else { no_index(place) };
    let done = f(Arc::make_mut(&mut index), object.block_mut_in(place, 0, found.place())?)?;
    object.pending.micro = Some(index);
    Ok(done)
}

/// Adds an entry to block 0, and to the index (`mze_insert`, `mzap_addent`). If that fails, the index is not known any
/// more.
fn add_micro(object: &mut OpenObject, place: &Place<'_>, name: &[u8], value: u64) -> Result<()> {
    load_index(object, place)?;
    let Some(mut index) = object.pending.micro.take() else { no_index(place) };
    let block = object.block_to_note(place, 0)?;
    let slot = Arc::make_mut(&mut index).insert(block, name, value)?;
    // A slot that is free holds zeros.
    let entry = micro::entry_place(slot);
    object.note_old(0, entry.start, vec![0; entry.len()]);
    object.pending.micro = Some(index);
    Ok(())
}

/// Makes an object without data an empty ZAP.
pub(super) fn format(object: &mut OpenObject, place: &Place<'_>, format: ZapFormat) -> Result<()> {
    let ZapFormat { salt, norm_flags, flags, block_shift } = format;
    if flags == 0 {
        return Ok(micro::format(object.block_mut(place, 0)?, salt, norm_flags)?);
    }
    let shift = if block_shift == 0 { FAT_BLOCK_SHIFT } else { block_shift };
    let size = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
    let indirect = object.phys().indirect_shift;
    object.set_block_size(place, size, indirect)?;
    Fat::create(object, place, format).map(drop)
}

/// Adds or sets an entry; returns whether the ZAP is a micro ZAP that has become larger than 128 KiB.
fn put(
    object: &mut OpenObject,
    place: &Place<'_>,
    (key, value, how): (&Key<'_>, &Value<'_>, Put),
    most: Most,
) -> Result<bool> {
    key.check(most.name)?;
    value.check()?;
    if is_micro(object, place)? {
        if put_micro(object, place, (key, value, how), most.micro)? {
            return Ok(object.phys().block_size as usize > micro::MAX_SIZE);
        }
        upgrade(object, place)?;
    }
    let mut fat = Fat::open(object, place)?;
    // The header has to fit the blocks even if there was no room in the end.
    let done = fat.put(key, value, None, how != Put::Any);
    fat.finish()?;
    done.map(|()| false)
}

/// See [`ZapMut::remove`].
fn remove(object: &mut OpenObject, place: &Place<'_>, key: &Key<'_>) -> Result<()> {
    let absent = WriteError::NoEntry(place.object);
    if !is_micro(object, place)? {
        let mut fat = Fat::open(object, place)?;
        let removed = fat.remove(key)?;
        return if removed { fat.finish() } else { Err(absent) };
    }
    let Some(found) = find_micro(object, place, key)? else { return Err(absent) };
    change_micro(object, place, &found, |index, block| index.remove(block, &found))
}

/// See [`ZapMut::increment`].
pub(super) fn increment(
    object: &mut OpenObject,
    place: &Place<'_>,
    key: &Key<'_>,
    delta: i64,
) -> Result<u64> {
    let old = match lookup(object, place, key)? {
        None => None,
        Some((8, value)) if value.len() == 1 => value.first().copied(),
        Some(_) => return place.invalid("ZAP entry is not one 64-bit integer"),
    };
    let new = old.unwrap_or(0).wrapping_add_signed(delta);
    match (old, new) {
        (None, 0) => {}
        (Some(_), 0) => remove(object, place, key)?,
        _ => {
            let most = Most { name: MAX_NAME, micro: micro::MAX_SIZE };
            put(object, place, (key, &Value::U64(&[new]), Put::Any), most)?;
        }
    }
    Ok(new)
}

/// Adds or sets an entry; false if the ZAP has to become a fat one for it.
fn put_micro(
    object: &mut OpenObject,
    place: &Place<'_>,
    (key, value, how): (&Key<'_>, &Value<'_>, Put),
    largest: usize,
) -> Result<bool> {
    load_index(object, place)?;
    let found = if how == Put::Absent { None } else { find_micro(object, place, key)? };
    if how == Put::New && found.is_some() {
        return Err(WriteError::Exists(place.object));
    }
    let (Key::Name(name), Value::U64([value]), true) = (key, value, micro::fits(key, value)) else {
        return Ok(false);
    };
    if let Some(found) = found {
        change_micro(object, place, &found, |index, block| index.set(block, &found, *value))?;
        return Ok(true);
    }
    if object.pending.micro.as_ref().is_some_and(|index| index.is_full()) {
        let (size, indirect) = (object.phys().block_size, object.phys().indirect_shift);
        let most = ZAP_MICRO_MAX_SIZE.count().next_multiple_of(SECTOR as usize);
        let Some(len) = micro::grown(size as usize, most.min(largest)) else {
            return Ok(false);
        };
        object.set_block_size(place, len as u64, indirect)?;
        if let Some(index) = &mut object.pending.micro {
            Arc::make_mut(index).resize(len);
        }
    }
    // A full index here means too many entries of one hash. It is not changed then, but lost.
    match add_micro(object, place, name, *value) {
        Ok(()) => Ok(true),
        Err(WriteError::Encode(EncodeError::Full { .. })) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Makes a micro ZAP a fat one (`mzap_upgrade`).
fn upgrade(object: &mut OpenObject, place: &Place<'_>) -> Result<()> {
    let old = block(object, place, 0)?.into_owned();
    let old = old.bytes();
    let micro = Micro::decode(bytes(&old))?;
    let (salt, norm_flags) = (micro.salt, micro.norm_flags);
    object.pending.micro = None;
    let indirect = object.phys().indirect_shift;
    object.set_block_size(place, 1 << FAT_BLOCK_SHIFT, indirect)?;
    let mut fat =
        Fat::create(object, place, ZapFormat { salt, norm_flags, ..ZapFormat::default() })?;
    for entry in micro.entries() {
        let (_, entry) = entry?;
        fat.put(&Key::Name(entry.name), &Value::U64(&[entry.value]), Some(entry.cd), true)?;
    }
    fat.finish()
}

fn lookup(
    object: &mut OpenObject,
    place: &Place<'_>,
    key: &Key<'_>,
) -> Result<Option<(u8, Vec<u64>)>> {
    if is_micro(object, place)? {
        return Ok(find_micro(object, place, key)?.map(|found| (8, vec![found.value])));
    }
    lookup_fat(object, place, key)
}

fn lookup_fat(
    object: &mut OpenObject,
    place: &Place<'_>,
    key: &Key<'_>,
) -> Result<Option<(u8, Vec<u64>)>> {
    let fat = Fat::open(object, place)?;
    let hash = fat.hash(key)?;
    let data = block(fat.object, place, fat.leaf_number(hash)?)?;
    let data = data.bytes();
    let leaf = Leaf::decode(bytes(&data))?;
    let wanted: Vec<u8> = match key {
        Key::Name(name) => name.to_vec(),
        Key::Words(words) => words.iter().flat_map(|w| w.to_be_bytes()).collect(),
    };
    for entry in leaf.find(hash) {
        let entry = entry?;
        let stored = match key {
            Key::Name(_) => leaf.name(&entry)?,
            Key::Words(_) => leaf.word_key(&entry)?,
        };
        if stored == wanted {
            return Ok(Some((entry.int_size, leaf.value(&entry)?)));
        }
    }
    Ok(None)
}

/// A fat ZAP that is being changed. The header is written by [`Fat::finish`].
struct Fat<'o> {
    object: &'o mut OpenObject,
    place: &'o Place<'o>,
    header: FatHeader,
}

impl<'o> Fat<'o> {
    fn open(object: &'o mut OpenObject, place: &'o Place<'o>) -> Result<Fat<'o>> {
        let header = FatHeader::decode(&bytes(&block(object, place, 0)?.bytes()))?;
        if 1 << header.block_shift != object.phys().block_size {
            return Err(DecodeError::invalid("ZAP", "blocks of another size").into());
        }
        Ok(Fat { object, place, header })
    }

    fn create(object: &'o mut OpenObject, place: &'o Place<'o>, f: ZapFormat) -> Result<Fat<'o>> {
        let header = format_fat(object.block_mut(place, 0)?, f.salt, f.norm_flags, f.flags)?;
        LeafMut::format(object.block_mut(place, 1)?, f.norm_flags != 0)?;
        Ok(Fat { object, place, header })
    }

    fn finish(self) -> Result<()> {
        let block = self.object.block_mut_in(self.place, 0, 0..HEADER_SIZE)?;
        Ok(self.header.encode(block)?)
    }

    fn block_mut(&mut self, blkid: u64) -> Result<&mut [u8]> {
        self.object.block_mut(self.place, blkid)
    }

    fn sorted(&self) -> bool {
        self.header.norm_flags != 0
    }

    /// The hash of a key (`zap_hash`).
    fn hash(&self, key: &Key<'_>) -> Result<u64> {
        let (salt, flags) = (self.header.salt, self.header.flags);
        let words = flags & cenote_format::zap::FLAG_UINT64_KEY != 0;
        match key {
            Key::Name(name) if !words => {
                Ok(hash_name(salt, flags, &normalize(name, self.header.norm_flags)))
            }
            Key::Words(key) if words => Ok(hash_words(salt, flags, key)),
            _ => Err(EncodeError::unrepresentable("ZAP key", "of the other kind").into()),
        }
    }

    /// The number of the leaf of `hash` (`zap_idx_to_blk`).
    fn leaf_number(&self, hash: u64) -> Result<u64> {
        let at = self.header.pointer_at(self.header.index(hash));
        let blkid = bytes(&block(self.object, self.place, at.block)?.bytes()).u64(at.offset)?;
        if blkid == 0 || blkid >= self.header.free_block {
            return Err(DecodeError::invalid("ZAP", format!("leaf block {blkid}")).into());
        }
        Ok(blkid)
    }

    fn leaf(&mut self, hash: u64) -> Result<LeafMut<'_>> {
        let blkid = self.leaf_number(hash)?;
        Ok(LeafMut::open(self.block_mut(blkid)?)?)
    }

    /// Puts an entry into its leaf, which is split as often as need be (`fzap_add`, `fzap_update`, `fzap_add_cd`).
    fn put(
        &mut self,
        key: &Key<'_>,
        value: &Value<'_>,
        cd: Option<u32>,
        only_new: bool,
    ) -> Result<()> {
        if let Key::Name(name) = key
            && self.header.norm_flags != 0
            && !norm::fits(name, self.header.norm_flags)
        {
            return Err(EncodeError::unrepresentable("ZAP key", "too long when normalized").into());
        }
        let hash = self.hash(key)?;
        for _ in 0..MAX_STEPS {
            let object = self.place.object;
            let mut leaf = self.leaf(hash)?;
            let (done, added) = match leaf.find(hash, key)? {
                Some(_) if only_new => return Err(WriteError::Exists(object)),
                Some(entry) => (leaf.replace(&entry, value), 0),
                None => (leaf.insert(hash, key, value, cd).map(drop), 1),
            };
            let (prefix_len, free) = (leaf.prefix_len(), leaf.free_chunks());
            match done {
                Err(EncodeError::Full { .. }) => self.split(hash, prefix_len)?,
                Err(e) => return Err(e.into()),
                Ok(()) => {
                    self.count(self.header.entries.checked_add(added), u64::MAX);
                    if self.header.wants_growth(prefix_len, free) && self.header.may_grow() {
                        self.grow_table()?;
                    }
                    return Ok(());
                }
            }
        }
        Err(EncodeError::Full { what: "ZAP" }.into())
    }

    /// Takes an entry out of its leaf (`fzap_remove`).
    fn remove(&mut self, key: &Key<'_>) -> Result<bool> {
        let hash = self.hash(key)?;
        let mut leaf = self.leaf(hash)?;
        let Some(entry) = leaf.find(hash, key)? else { return Ok(false) };
        leaf.remove(&entry)?;
        self.count(self.header.entries.checked_sub(1), 0);
        Ok(true)
    }

    /// Notes the number of entries (`zap_num_entries`). On disk it may be anything, and entries can be found without
    /// it: where it does not add up it is `end`.
    fn count(&mut self, entries: Option<u64>, end: u64) {
        if entries.is_none() {
            let object = self.place.object;
            tracing::warn!(object, "the number of entries in the header of a ZAP is wrong");
        }
        self.header.entries = entries.unwrap_or(end);
    }

    /// Takes a step towards a pointer table of twice the size (`zap_grow_ptrtbl`, `zap_table_grow`).
    fn grow_table(&mut self) -> Result<()> {
        let half = 1usize << (self.header.block_shift - 1);
        if self.header.table.blocks == 0 {
            let target = self.header.leave_embedded()?;
            let header = block(self.object, self.place, 0)?;
            let short = || DecodeError::invalid("ZAP", "its header is smaller than it says");
            let pointers = header.bytes().get(half..).ok_or_else(short)?.to_vec();
            // What is in the header's second half means nothing from now on.
            return Ok(double_pointers(&pointers, self.block_mut(target)?)?);
        }
        let step = self.header.grow_step()?;
        let source = block(self.object, self.place, step.source)?.to_vec();
        for (target, part) in step.targets.into_iter().zip(source.chunks(half)) {
            double_pointers(part, self.block_mut(target)?)?;
        }
        self.object.free_blocks(self.place, step.freed.start, step.freed.end);
        Ok(())
    }

    /// Splits the leaf of `hash`, which has a prefix of `prefix_len` bits (`zap_expand_leaf`, `zap_leaf_split`).
    fn split(&mut self, hash: u64, prefix_len: u32) -> Result<()> {
        if prefix_len >= self.header.table.shift {
            return self.grow_table();
        }
        let pointers = self.header.split_pointers(hash, prefix_len)?;
        let sorted = self.sorted();
        let mut data = vec![0; 1 << self.header.block_shift];
        let mut leaf = self.leaf(hash)?;
        leaf.split(&mut LeafMut::format(&mut data, sorted)?, sorted)?;
        let new = self.header.allocate_leaf()?;
        self.object.put_block(self.place, new, data)?;
        for index in pointers {
            for at in self.header.pointer_writes(index) {
                let bytes = at.offset..at.offset + size_of::<u64>();
                let block = self.object.block_mut_in(self.place, at.block, bytes)?;
                set_pointer(block, at.offset, new)?;
            }
        }
        Ok(())
    }
}
