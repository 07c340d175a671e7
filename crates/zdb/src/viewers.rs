//! What is in an object, by its type (`object_viewer`): ZAPs (`dump_zap`), directories, files' attributes
//! (`dump_znode`), the DSL's structures (`dump_dsl_dir`, `dump_dsl_dataset`).
//!
//! `view_bonus` goes by the type of the bonus buffer, and `view_contents` by that of the object. Types without a
//! viewer show nothing. Structures are decoded by `cenote_format` and printed with OpenZFS's names of their fields.
//!
//! Files are looked at through a file system that is opened once for each object set, so that attributes of all
//! versions and layouts are decoded as everywhere else.
//!
//! Arrays and packed lists are read up to a bound, so that a length on disk cannot take all memory.

use super::print::{self, blkptr, text};
use super::{Zdb, failed};
use cenote_command::outcome::Stop;
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dmu::{Error, Object, Result as DmuResult};
use cenote_format::dmu::DmuType;
use cenote_format::dsl::{BpobjPhys, DslDatasetPhys, DslDirPhys};
use cenote_format::nvlist::NvList;
use cenote_zpl::FileSystem;

/// Bytes of a packed list that are believed.
const MAX_NVLIST: u64 = 64 << 20;
/// Bytes shown of an array of integers.
const MAX_ARRAY: u64 = 1 << 20;
/// Types of a directory's entries, by number.
const ENTRY_TYPES: [&str; 16] = [
    "not specified",
    "FIFO",
    "Character Device",
    "3 (invalid)",
    "Directory",
    "5 (invalid)",
    "Block Device",
    "7 (invalid)",
    "Regular File",
    "9 (invalid)",
    "Symbolic Link",
    "11 (invalid)",
    "Socket",
    "Door",
    "Event Port",
    "15 (invalid)",
];
/// Values that are bytes, not text.
const BINARY: [&[u8]; 5] = [
    b"DSL_CRYPTO_MASTER_KEY_1",
    b"DSL_CRYPTO_HMAC_KEY_1",
    b"DSL_CRYPTO_IV",
    b"DSL_CRYPTO_MAC",
    b"org.illumos:checksum_salt",
];

/// The list that is packed into an object, whose bonus says how long it is.
pub fn packed_nvlist(object: &Object) -> DmuResult<NvList> {
    let corrupt =
        |why: String| Error::Corrupt { objset: object.objset().id(), object: object.number(), why };
    let len = object.bonus().u64(0).map_err(|e| corrupt(e.to_string()))?;
    if len > MAX_NVLIST {
        return Err(corrupt(format!("packed list of {len} bytes")));
    }
    let mut data = vec![0; len as usize];
    object.read(0, &mut data)?;
    NvList::decode(&data).map_err(|e| corrupt(e.to_string()))
}

/// The first `count` 64-bit integers of an object.
pub fn words(object: &Object, count: u64) -> DmuResult<Vec<u64>> {
    let mut data = vec![0; count as usize * 8];
    object.read(0, &mut data)?;
    let little = match object.block(0)? {
        Some(block) => block.order == cenote_format::ByteOrder::Little,
        None => true,
    };
    let word = |c: &[u8; 8]| if little { u64::from_le_bytes(*c) } else { u64::from_be_bytes(*c) };
    Ok(data.as_chunks::<8>().0.iter().map(word).collect())
}

impl Zdb<'_> {
    /// What the bonus buffer holds.
    pub fn view_bonus(&mut self, object: &Object) -> Result<(), Stop> {
        match object.dnode().bonus_kind {
            DmuType::DSL_DIR => self.dsl_dir(object),
            DmuType::DSL_DATASET => self.dsl_dataset(object),
            DmuType::BPOBJ_HDR => self.bpobj_header(object),
            DmuType::PACKED_NVLIST_SIZE => self.packed(object),
            DmuType::SPA_HISTORY_OFFSETS => self.history_offsets(object),
            DmuType::ZNODE | DmuType::SA => self.znode(object),
            DmuType::FUID_SIZE => self.packed(object),
            kind if kind.is_new() && kind.name() == "uint64" => self.integers_in_bonus(object),
            _ => Ok(()),
        }
    }

    /// What the data hold.
    pub fn view_contents(&mut self, object: &Object) -> Result<(), Stop> {
        match object.dnode().kind {
            DmuType::DIRECTORY_CONTENTS => self.directory_contents(object),
            DmuType(46) => self.sa_registry(object),
            DmuType(47) => self.sa_layouts(object),
            DmuType::DDT_ZAP => self.zap_stats(&Zap::open(object).map_err(failed)?),
            DmuType::OBJECT_ARRAY | DmuType::UINT64_OTHER => self.integers(object),
            DmuType::BPOBJ_SUBOBJ => self.sub_object_list(object),
            kind if kind.is_new() && kind.name() == "uint64" => self.integers(object),
            kind if kind.is_zap() => self.zap(object),
            _ => Ok(()),
        }
    }

    fn zap_stats(&mut self, zap: &Zap) -> Result<(), Stop> {
        let d = zap.describe();
        let Some(fat) = &d.fat else {
            writeln!(self.out(), "\tmicrozap: {} bytes, {} entries", d.block_size, d.entries)?;
            return Ok(());
        };
        let out = self.out();
        writeln!(out, "\tFat ZAP stats:\n\t\tPointer table:")?;
        writeln!(out, "\t\t\t{} elements", fat.pointers)?;
        writeln!(out, "\t\t\tzt_blk: {}", fat.table.block)?;
        writeln!(out, "\t\t\tzt_numblks: {}", fat.table.blocks)?;
        writeln!(out, "\t\t\tzt_shift: {}", fat.table.shift)?;
        writeln!(out, "\t\t\tzt_blks_copied: {}", fat.table.blocks_copied)?;
        writeln!(out, "\t\t\tzt_nextblk: {}", fat.table.next_block)?;
        writeln!(out, "\t\tZAP entries: {}", d.entries)?;
        writeln!(out, "\t\tLeaf blocks: {}", fat.leafs)?;
        writeln!(out, "\t\tTotal blocks: {}", fat.blocks)?;
        writeln!(out, "\t\tzap_block_type: 0x{:x}", fat.block_type)?;
        writeln!(out, "\t\tzap_magic: 0x{:x}", fat.magic)?;
        writeln!(out, "\t\tzap_salt: 0x{:x}", d.salt)?;
        for (title, counts) in [
            ("Leafs with 2^n pointers:", &fat.leafs_with_2n_pointers),
            ("Blocks with n*5 entries:", &fat.blocks_with_n5_entries),
            ("Blocks n/10 full:", &fat.blocks_n_tenths_full),
            ("Entries with n chunks:", &fat.entries_using_n_chunks),
            ("Buckets with n entries:", &fat.buckets_with_n_entries),
        ] {
            writeln!(out, "\t\t{title}")?;
            print::histogram(out, counts, 0)?;
        }
        Ok(())
    }

    /// Statistics, an empty line, then `line` of every entry.
    fn each_entry(
        &mut self,
        object: &Object,
        line: impl Fn(&Zap, &ZapEntry) -> String,
    ) -> Result<(), Stop> {
        let zap = Zap::open(object).map_err(failed)?;
        self.zap_stats(&zap)?;
        writeln!(self.out())?;
        for entry in zap.iter() {
            let entry = entry.map_err(failed)?;
            writeln!(self.out(), "{}", line(&zap, &entry))?;
            if self.ctx.cancel.is_cancelled() {
                break;
            }
        }
        Ok(())
    }

    fn zap(&mut self, object: &Object) -> Result<(), Stop> {
        self.each_entry(object, |zap, entry| {
            let words = zap.has_word_keys();
            let name = match words {
                true => format!("0x{:010}x", entry.words().first().unwrap_or(&0)),
                false => text(&entry.name),
            };
            let value = match entry.int_size {
                1 if !words && BINARY.contains(&&entry.name[..]) => {
                    entry.value.iter().map(|b| format!("{b:02x}")).collect()
                }
                1 if !words => {
                    let bytes = entry.bytes();
                    text(bytes.split(|b| *b == 0).next().unwrap_or_default())
                }
                8 => entry.value.iter().map(|v| format!("{} ", *v as i64)).collect(),
                _ => entry.value.iter().map(|v| format!("{v} ")).collect::<String>(),
            };
            format!("\t\t{name} = {value}")
        })
    }

    fn directory_contents(&mut self, object: &Object) -> Result<(), Stop> {
        self.each_entry(object, |_, entry| {
            let value = entry.value.first().copied().unwrap_or(0);
            let kind = ENTRY_TYPES[(value >> 60) as usize & 15];
            format!("\t\t{} = {} (type: {kind})", text(&entry.name), value & ((1 << 48) - 1))
        })
    }

    fn sa_registry(&mut self, object: &Object) -> Result<(), Stop> {
        self.each_entry(object, |_, entry| {
            let w = entry.value.first().copied().unwrap_or(0);
            let (len, swap, num) = (w >> 24 & 0xffff, w >> 16 & 0xff, w & 0xffff);
            format!("\t\t{} =  {w:x} : [{len}:{swap}:{num}]", text(&entry.name))
        })
    }

    fn sa_layouts(&mut self, object: &Object) -> Result<(), Stop> {
        self.each_entry(object, |_, entry| {
            let list: String = entry.value.iter().map(|v| format!(" {v} ")).collect();
            format!("\t\t{} = [{list}]", text(&entry.name))
        })
    }

    fn integers_in_bonus(&mut self, object: &Object) -> Result<(), Stop> {
        let bonus = object.bonus();
        let count = bonus.len() / 8;
        let words = (0..count).filter_map(|i| bonus.u64(i * 8).ok()).collect::<Vec<_>>();
        self.integer_lines(&words, false)
    }

    fn integers(&mut self, object: &Object) -> Result<(), Stop> {
        if self.level('d') < 6 {
            return Ok(());
        }
        let dnode = object.dnode();
        let size = dnode.max_block.saturating_add(1).saturating_mul(dnode.block_size);
        let list = words(object, size.min(MAX_ARRAY) / 8).map_err(failed)?;
        self.integer_lines(&list, size > MAX_ARRAY)
    }

    fn integer_lines(&mut self, words: &[u64], more: bool) -> Result<(), Stop> {
        if self.level('d') < 6 {
            return Ok(());
        }
        let lines: Vec<String> = words
            .chunks(4)
            .map(|c| c.iter().map(|w| format!("{w:x}")).collect::<Vec<_>>().join(", "))
            .collect();
        let more = if more { ", ... " } else { "" };
        writeln!(self.out(), "\t\t[{}{more}]", lines.join(",\n\t\t"))?;
        Ok(())
    }

    fn sub_object_list(&mut self, object: &Object) -> Result<(), Stop> {
        let dnode = object.dnode();
        let size = dnode.max_block.saturating_add(1).saturating_mul(dnode.block_size);
        let list = words(object, size.min(MAX_ARRAY) / 8).map_err(failed)?;
        let last = list.iter().rposition(|w| *w != 0).map_or(0, |i| i + 1);
        for number in list.iter().take(last) {
            writeln!(self.out(), "\t{number}")?;
        }
        Ok(())
    }

    fn packed(&mut self, object: &Object) -> Result<(), Stop> {
        let list = packed_nvlist(object).map_err(failed)?;
        print::nvlist(self.out(), &list, 8)?;
        Ok(())
    }

    /// The header of a list of block pointers (`dump_bpobj`).
    fn bpobj_header(&mut self, object: &Object) -> Result<(), Stop> {
        // OpenZFS takes the whole room for a bonus buffer: what a shorter one lacks is 0.
        let phys = BpobjPhys::decode(&object.bonus()).map_err(failed)?;
        let n = |n: u64| self.args.number(n);
        let (bytes, comp, uncomp) = (n(phys.bytes), n(phys.compressed), n(phys.uncompressed));
        writeln!(self.out(), "\t\tnum_blkptrs = {}", phys.entries)?;
        writeln!(self.out(), "\t\tbytes = {bytes}")?;
        writeln!(self.out(), "\t\tcomp = {comp}\n\t\tuncomp = {uncomp}")?;
        let (subobjs, count) = (phys.subobjs, phys.num_subobjs);
        writeln!(self.out(), "\t\tsubobjs = {subobjs}\n\t\tnum_subobjs = {count}")?;
        writeln!(self.out(), "\t\tnum_freed = {}", phys.freed)?;
        Ok(())
    }

    fn history_offsets(&mut self, object: &Object) -> Result<(), Stop> {
        let [create, max, bof, eof, lost] = object.bonus().u64s(0).map_err(failed)?;
        let out = self.out();
        writeln!(out, "\t\tpool_create_len = {create}")?;
        writeln!(out, "\t\tphys_max_off = {max}")?;
        writeln!(out, "\t\tbof = {bof}")?;
        writeln!(out, "\t\teof = {eof}")?;
        writeln!(out, "\t\trecords_lost = {lost}")?;
        Ok(())
    }

    fn dsl_dir(&mut self, object: &Object) -> Result<(), Stop> {
        let d = DslDirPhys::decode(&object.bonus()).map_err(failed)?;
        let time = self.ctime(d.creation_time);
        let args = self.args;
        let n = |n: u64| args.number(n);
        let out = self.out();
        writeln!(out, "\t\tcreation_time = {time}")?;
        writeln!(out, "\t\thead_dataset_obj = {}", d.head_dataset)?;
        writeln!(out, "\t\tparent_dir_obj = {}", d.parent)?;
        writeln!(out, "\t\torigin_obj = {}", d.origin)?;
        writeln!(out, "\t\tchild_dir_zapobj = {}", d.children)?;
        writeln!(out, "\t\tused_bytes = {}", n(d.used))?;
        writeln!(out, "\t\tcompressed_bytes = {}", n(d.compressed))?;
        writeln!(out, "\t\tuncompressed_bytes = {}", n(d.uncompressed))?;
        writeln!(out, "\t\tquota = {}", n(d.quota))?;
        writeln!(out, "\t\treserved = {}", n(d.reserved))?;
        writeln!(out, "\t\tprops_zapobj = {}", d.props)?;
        writeln!(out, "\t\tdeleg_zapobj = {}", d.deleg)?;
        writeln!(out, "\t\tflags = {:x}", d.flags)?;
        for (name, bytes) in
            ["HEAD", "SNAP", "CHILD", "CHILD_RSRV", "REFRSRV"].into_iter().zip(d.used_breakdown)
        {
            writeln!(out, "\t\tused_breakdown[{name}] = {}", n(bytes))?;
        }
        writeln!(out, "\t\tclones = {}", d.clones)?;
        Ok(())
    }

    fn dsl_dataset(&mut self, object: &Object) -> Result<(), Stop> {
        let d = DslDatasetPhys::decode(&object.bonus()).map_err(failed)?;
        let time = self.ctime(d.creation_time);
        let args = self.args;
        let n = |n: u64| args.number(n);
        let out = self.out();
        writeln!(out, "\t\tdir_obj = {}", d.dir)?;
        writeln!(out, "\t\tprev_snap_obj = {}", d.prev_snap)?;
        writeln!(out, "\t\tprev_snap_txg = {}", d.prev_snap_txg)?;
        writeln!(out, "\t\tnext_snap_obj = {}", d.next_snap)?;
        writeln!(out, "\t\tsnapnames_zapobj = {}", d.snap_names)?;
        writeln!(out, "\t\tnum_children = {}", d.num_children)?;
        writeln!(out, "\t\tuserrefs_obj = {}", d.userrefs)?;
        writeln!(out, "\t\tcreation_time = {time}")?;
        writeln!(out, "\t\tcreation_txg = {}", d.creation_txg)?;
        writeln!(out, "\t\tdeadlist_obj = {}", d.deadlist)?;
        writeln!(out, "\t\tused_bytes = {}", n(d.referenced))?;
        writeln!(out, "\t\tcompressed_bytes = {}", n(d.compressed))?;
        writeln!(out, "\t\tuncompressed_bytes = {}", n(d.uncompressed))?;
        writeln!(out, "\t\tunique = {}", n(d.unique))?;
        writeln!(out, "\t\tfsid_guid = {}", d.fsid_guid)?;
        writeln!(out, "\t\tguid = {}", d.guid)?;
        writeln!(out, "\t\tflags = {:x}", d.flags)?;
        writeln!(out, "\t\tnext_clones_obj = {}", d.next_clones)?;
        writeln!(out, "\t\tprops_obj = {}", d.props)?;
        writeln!(out, "\t\tbp = {}", blkptr(&d.bp))?;
        Ok(())
    }

    /// A file's attributes (`dump_znode`).
    fn znode(&mut self, object: &Object) -> Result<(), Stop> {
        let number = object.number();
        let id = object.objset().id();
        let fs = match &self.file_system {
            Some((of, fs)) if *of == id => fs.clone(),
            _ => FileSystem::open(object.objset().clone()).map_err(failed)?,
        };
        self.file_system = Some((id, fs.clone()));
        let attr = fs.attr(number).map_err(failed)?;
        if self.level('d') > 4 {
            let path = match fs.path_of(number) {
                Ok(path) => text(&path),
                Err(cenote_zpl::Error::NotFound(why)) if why.contains("unlinked") => {
                    "on delete queue".into()
                }
                Err(_) => "path not found, possibly leaked".into(),
            };
            writeln!(self.out(), "\tpath\t{path}")?;
        }
        if attr.is_symlink()
            && let Ok(target) = fs.readlink(number)
        {
            writeln!(self.out(), "\ttarget\t{}", text(&target))?;
        }
        let raw = fs.stored_attrs(number).map_err(failed)?;
        self.owner(&fs, "uid", raw.uid)?;
        self.owner(&fs, "gid", raw.gid)?;
        for (name, time) in [
            ("atime", attr.atime),
            ("mtime", attr.mtime),
            ("ctime", attr.ctime),
            ("crtime", attr.crtime),
        ] {
            let time =
                cenote_command::clock::format(self.ctx.caller, time.0, "%a %b %e %H:%M:%S %Y");
            writeln!(self.out(), "\t{name}\t{time}")?;
        }
        let out = self.out();
        writeln!(out, "\tgen\t{}", attr.gen_)?;
        writeln!(out, "\tmode\t{:o}", attr.mode)?;
        writeln!(out, "\tsize\t{}", attr.size)?;
        writeln!(out, "\tparent\t{}", attr.parent)?;
        writeln!(out, "\tlinks\t{}", attr.nlink)?;
        writeln!(out, "\tpflags\t{:x}", attr.flags)?;
        if let Some(id) = raw.projid {
            writeln!(out, "\tprojid\t{id}")?;
        }
        if let Some(dir) = raw.xattr {
            writeln!(out, "\txattr\t{dir}")?;
        }
        if let Some(rdev) = raw.rdev {
            writeln!(out, "\trdev\t0x{rdev:016x}")?;
        }
        if let Some(packed) = raw.packed_xattrs {
            self.sa_xattrs(&packed)?;
        }
        Ok(())
    }

    /// An owner or group; in a domain, with the domain and the id in it (`print_idstr`).
    fn owner(&mut self, fs: &FileSystem, what: &str, fuid: u64) -> Result<(), Stop> {
        match fuid >> 32 {
            0 => writeln!(self.out(), "\t{what}     {fuid}")?,
            _ => {
                let domain = fs.domain_of(fuid).map_err(failed)?.unwrap_or_default();
                writeln!(self.out(), "\t{what}     {fuid:x} [{domain}-{}]", fuid as i32)?;
            }
        }
        Ok(())
    }

    /// Extended attributes that are kept among a file's system attributes.
    fn sa_xattrs(&mut self, packed: &[u8]) -> Result<(), Stop> {
        let list = cenote_format::sa::decode_xattrs(packed).map_err(failed)?;
        writeln!(self.out(), "\tSA xattrs: {} bytes, {} entries\n", packed.len(), list.len())?;
        for (name, value) in list {
            let printable = value.iter().all(|b| (0x20..0x7f).contains(b)) && !self.args.has('P');
            let value: String = match printable {
                true => text(value),
                false => value.iter().map(|b| format!("\\{b:03o}")).collect(),
            };
            writeln!(self.out(), "\t\t{} = {value}", text(name))?;
        }
        Ok(())
    }
}
