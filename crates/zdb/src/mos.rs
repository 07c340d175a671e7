//! `zdb -d` on a whole pool: objects of the MOS that are leaked (`dump_mos_leaks`), and features' counts.
//!
//! Every object of the MOS must be reachable: from the object directory, from datasets and their
//! directories, from vdevs, from the deduplication and reference tables. What is allocated and not
//! reached is *leaked*. A feature's count must equal the number of things that use it.

use super::objects::Numbers;
use super::{Zdb, failed, lists};
use cenote_command::outcome::{Outcome, Stop};
use cenote_dmu::zap::Zap;
use cenote_dsl::Dataset;
use cenote_dsl::bpobj;
use cenote_dsl::deadlist::Deadlist;
use cenote_format::dsl::{DslDatasetPhys, DslDirPhys};
use cenote_format::features::FEATURES;
use cenote_format::nvlist::NvList;
use cenote_pool::directory::Directory;
use cenote_pool::indirect::{self, Condensing, Mapping};
use cenote_pool::{brt, ddt};
use std::collections::BTreeSet;

/// Features that are counted outside of datasets, in the order of OpenZFS's table.
const GLOBAL: [&str; 4] =
    ["redaction_bookmarks", "bookmark_written", "livelist", "redaction_list_spill"];
/// Flag of a bookmark: the bytes up to the next snapshot are known (`ZBM_FLAG_HAS_FBN`).
const HAS_FBN: u64 = 1;

/// What refers to what.
struct References {
    objects: BTreeSet<u64>,
    empty_bpobj: u64,
    remap_deadlists: u64,
    counts: std::collections::BTreeMap<&'static str, u64>,
}

impl References {
    fn add(&mut self, object: u64) {
        if object != 0 {
            self.objects.insert(object);
        }
    }

    fn count(&mut self, feature: &'static str) {
        *self.counts.entry(feature).or_default() += 1;
    }
}

impl Zdb<'_> {
    /// Checks the references to the MOS's objects and the features' counts.
    pub fn consistency(&mut self, datasets: &[Dataset]) -> Outcome {
        let mut refs = References {
            objects: BTreeSet::new(),
            empty_bpobj: 0,
            remap_deadlists: 0,
            counts: Default::default(),
        };
        let empty = self.directory()?.u64(b"empty_bpobj").map_err(failed)?;
        refs.empty_bpobj = empty.unwrap_or(0);
        for dataset in datasets {
            self.dataset_references(&mut refs, dataset)?;
        }
        let mut code = 0;
        if !self.args.has('L') {
            self.pool_references(&mut refs)?;
            self.vdev_references(&mut refs)?;
            self.table_references(&mut refs)?;
            if self.leaked_objects(&refs)? {
                code = 2;
            }
        }
        if !self.feature_counts(&refs)? {
            code = 2;
        }
        if code == 0 && !self.removal_counts(&refs)? {
            code = 1;
        }
        Ok(code)
    }

    fn bpobj_references(&mut self, refs: &mut References, number: u64) -> Result<(), Stop> {
        let mut todo = vec![number];
        while let Some(number) = todo.pop() {
            if number == 0 || !refs.objects.insert(number) {
                continue;
            }
            let phys = bpobj::header(self.pool.mos(), number).map_err(failed)?;
            if phys.subobjs != 0 {
                refs.add(phys.subobjs);
                todo.extend(self.sub_objects(phys.subobjs, phys.num_subobjs)?);
            }
        }
        Ok(())
    }

    fn deadlist_references(&mut self, refs: &mut References, list: &Deadlist) -> Result<(), Stop> {
        if list.is_plain {
            if list.object != refs.empty_bpobj {
                self.bpobj_references(refs, list.object)?;
            }
            return Ok(());
        }
        refs.add(list.object);
        for (_, number) in &list.lists {
            if *number != refs.empty_bpobj {
                self.bpobj_references(refs, *number)?;
            }
        }
        Ok(())
    }

    /// A number kept in an object that is extended by a ZAP.
    fn field(&self, object: u64, name: &str) -> Result<u64, Stop> {
        let object = self.pool.mos().object(object).map_err(failed)?;
        if !object.dnode().kind.is_zap() {
            return Ok(0);
        }
        let zap = Zap::open(&object).map_err(failed)?;
        Ok(zap.u64(name.as_bytes()).map_err(failed)?.unwrap_or(0))
    }

    fn dir_references(
        &mut self,
        refs: &mut References,
        number: u64,
        d: &DslDirPhys,
    ) -> Result<(), Stop> {
        for object in [number, d.children, d.deleg, d.props, d.clones] {
            refs.add(object);
        }
        refs.add(self.field(number, "com.datto:crypto_key_obj")?);
        Ok(())
    }

    fn ds_references(
        &mut self,
        refs: &mut References,
        number: u64,
        d: &DslDatasetPhys,
    ) -> Result<u64, Stop> {
        for object in [number, d.next_clones, d.props, d.userrefs, d.snap_names] {
            refs.add(object);
        }
        let bookmarks = self.field(number, "com.delphix:bookmarks")?;
        refs.add(bookmarks);
        Ok(bookmarks)
    }

    fn dataset_references(&mut self, refs: &mut References, d: &Dataset) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let dsl = pool.dsl();
        self.ds_references(refs, d.ds_obj, &d.ds)?;
        if d.is_head() {
            self.dir_references(refs, d.dir_obj, &d.dir)?;
        }
        let deadlist = dsl.deadlist(d).map_err(failed)?;
        self.deadlist_references(refs, &deadlist)?;
        if let Some(list) = dsl.livelist(d).map_err(failed)? {
            refs.count("livelist");
            self.deadlist_references(refs, &list)?;
        }
        if let Some(list) = dsl.remap_deadlist(d).map_err(failed)? {
            refs.remap_deadlists += 1;
            self.deadlist_references(refs, &list)?;
        }
        for (guid, _) in dsl.features(d).map_err(failed)? {
            if let Some(feature) = cenote_format::features::by_guid(&guid) {
                refs.count(feature.name);
            }
        }
        if !d.is_head() {
            return Ok(());
        }
        for b in dsl.bookmarks(d).map_err(failed)?.iter().filter_map(|b| b.bookmark) {
            if b.redaction != 0 {
                refs.add(b.redaction);
                refs.count("redaction_bookmarks");
                let object = pool.mos().object(b.redaction).map_err(failed)?;
                if object.dnode().spill.is_some() {
                    refs.count("redaction_list_spill");
                }
            }
            if b.flags & HAS_FBN != 0 {
                refs.count("bookmark_written");
            }
        }
        Ok(())
    }

    /// Objects that the object directory and the hidden datasets refer to.
    fn pool_references(&mut self, refs: &mut References) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let mos = pool.mos();
        let directory = self.directory()?;
        let get = |name: &str| directory.u64(name.as_bytes()).map_err(failed);
        refs.add(1);
        for name in [
            "pool_props",
            "config",
            "DDT-statistics",
            "feature_descriptions",
            "feature_enabled_txg",
            "features_for_read",
            "features_for_write",
            "history",
            "errlog_last",
            "errlog_scrub",
            "com.delphix:vdev_zap_map",
            "bptree_obj",
            "tmp_userrefs",
            "empty_bpobj",
            "l2cache",
            "spares",
        ] {
            refs.add(get(name)?.unwrap_or(0));
        }
        if pool.features().is_enabled("head_errlog") {
            for name in ["errlog_last", "errlog_scrub"] {
                let Some(log) = get(name)?.filter(|l| *l != 0) else { continue };
                let zap = Zap::open(&mos.object(log).map_err(failed)?).map_err(failed)?;
                for entry in zap.entries().map_err(failed)? {
                    refs.add(entry.u64().unwrap_or(0));
                }
            }
        }
        // The scan's words: its work queue is the third.
        if let Some(scan) = directory.lookup(b"scan").map_err(failed)? {
            refs.add(scan.value.get(2).copied().unwrap_or(0));
        }
        for name in ["sync_bplist", "com.delphix:obsolete_bpobj", "free_bpobj"] {
            self.bpobj_references(refs, get(name)?.unwrap_or(0))?;
        }
        if let Some(zap) = get("com.delphix:log_spacemap_zap")? {
            refs.add(zap);
            for log in &self.space()?.logs {
                refs.add(log.object);
            }
        }
        if let Some(condensing) = self.condensing()? {
            refs.add(condensing.obsolete_map);
            refs.add(condensing.next);
            if condensing.next != 0 {
                let header = indirect::Header::load(mos, condensing.next).map_err(failed)?;
                refs.add(header.counts_object);
            }
        }
        if let Some(clones) = get("com.delphix:deleted_clones")? {
            self.deleted_livelists(refs, clones)?;
        }
        self.hidden_references(refs)
    }

    /// The mapping of a removed vdev that is being made shorter.
    fn condensing(&self) -> Result<Option<Condensing>, Stop> {
        let directory = Directory::open(self.pool.mos()).map_err(failed)?;
        Condensing::find(&directory).map_err(failed)
    }

    /// Livelists of destroyed clones that are still being freed.
    fn deleted_livelists(&mut self, refs: &mut References, clones: u64) -> Result<(), Stop> {
        refs.add(clones);
        for list in self.deleted_lists()? {
            refs.count("livelist");
            self.deadlist_references(refs, &list)?;
            self.deadlist(&list, "Deleted Livelist")?;
            self.verify_livelist(&list, &mut |_| {})?;
        }
        Ok(())
    }

    /// `$MOS`, `$FREE`, `$LEAK` and `$ORIGIN` with its snapshot.
    fn hidden_references(&mut self, refs: &mut References) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let (mos, dsl) = (pool.mos(), pool.dsl());
        let Some(root) = dsl.find(pool.name()).map_err(failed)? else { return Ok(()) };
        let children =
            Zap::open(&mos.object(root.dir.children).map_err(failed)?).map_err(failed)?;
        for name in ["$MOS", "$FREE", "$LEAK", "$ORIGIN"] {
            let Some(number) = children.u64(name.as_bytes()).map_err(failed)? else { continue };
            let object = mos.object(number).map_err(failed)?;
            let dir = DslDirPhys::decode(&object.bonus()).map_err(failed)?;
            self.dir_references(refs, number, &dir)?;
            let mut next = dir.head_dataset;
            // The head, then the one snapshot that all datasets without another origin come from.
            for _ in 0..2 {
                if next == 0 {
                    break;
                }
                let object = mos.object(next).map_err(failed)?;
                let phys = DslDatasetPhys::decode(&object.bonus()).map_err(failed)?;
                self.ds_references(refs, next, &phys)?;
                let list = dsl.deadlist_at(phys.deadlist).map_err(failed)?;
                self.deadlist_references(refs, &list)?;
                if name == "$ORIGIN" {
                    self.deadlist(&list, "Deadlist")?;
                }
                next = phys.prev_snap;
            }
        }
        Ok(())
    }

    fn vdev_references(&mut self, refs: &mut References) -> Result<(), Stop> {
        let pool = self.pool.clone();
        let mos = pool.mos();
        let Some(root) = pool.config().list("vdev_tree") else { return Ok(()) };
        let mut todo: Vec<&NvList> = vec![root];
        while let Some(vdev) = todo.pop() {
            for name in [
                "DTL",
                "metaslab_array",
                "com.delphix:indirect_births",
                "com.delphix:indirect_object",
                "com.delphix:vdev_zap_leaf",
                "com.delphix:vdev_zap_top",
                "com.klarasystems:vdev_zap_root",
            ] {
                refs.add(vdev.u64(name).unwrap_or(0));
            }
            if let Some(mapping) = vdev.u64("com.delphix:indirect_object").filter(|m| *m != 0) {
                refs.add(Mapping::load(mos, mapping).map_err(failed)?.counts_object);
            }
            if let Some(top) = vdev.u64("com.delphix:vdev_zap_top").filter(|z| *z != 0) {
                refs.add(self.field(top, "com.delphix:indirect_obsolete_sm")?);
                refs.add(self.field(top, "com.delphix:ms_unflushed_phys_txgs")?);
                refs.add(self.field(top, "com.delphix:pool_checkpoint_sm")?);
            }
            todo.extend(lists(vdev, "children"));
        }
        for v in &self.space()?.vdevs {
            v.metaslabs.iter().for_each(|m| refs.add(m.space_map));
        }
        Ok(())
    }

    fn table_references(&mut self, refs: &mut References) -> Result<(), Stop> {
        let pool = self.pool.clone();
        for table in ddt::load(pool.mos()).map_err(failed)? {
            table.stored.iter().for_each(|s| refs.add(s.object));
            table.logs.iter().for_each(|l| refs.add(l.object));
            refs.add(table.directory);
        }
        let vdevs = pool.store().vdevs().root().children().len() as u64;
        for table in brt::load(pool.mos(), vdevs).map_err(failed)? {
            refs.add(table.object);
            refs.add(table.entries);
        }
        Ok(())
    }

    /// Compares with what is allocated (`dump_mos_leaks`); whether they differ.
    fn leaked_objects(&mut self, refs: &References) -> Result<bool, Stop> {
        let mos = self.pool.mos().clone();
        let mut missing = refs.objects.clone();
        let mut differ = false;
        let mut numbers = Numbers::new(&mos, 1);
        while let Some(number) = numbers.advance()? {
            if !missing.remove(&number) {
                let kind = mos.object(number).map_err(failed)?.dnode().kind;
                let name = super::print::type_name(kind);
                writeln!(self.out(), "MOS object {number} ({name}) leaked")?;
                differ = true;
            }
        }
        for number in missing {
            writeln!(self.out(), "MOS object {number} referenced but not allocated")?;
            differ = true;
        }
        Ok(differ)
    }

    /// Compares features' counts; whether they all agree.
    fn feature_counts(&mut self, refs: &References) -> Result<bool, Stop> {
        let pool = self.pool.clone();
        let mut agree = true;
        for feature in FEATURES.iter().filter(|f| f.per_dataset || GLOBAL.contains(&f.name)) {
            let Some(enabled) = pool.features().get(feature.guid) else { continue };
            let (name, stored) = (feature.name, enabled.uses);
            let found = refs.counts.get(name).copied().unwrap_or(0);
            if found == stored {
                writeln!(self.out(), "Verified {name} feature refcount of {stored} is correct")?;
            } else {
                writeln!(
                    self.out(),
                    "{name} feature refcount mismatch: {found} consumers != {stored} refcount"
                )?;
                agree = false;
            }
        }
        Ok(agree)
    }

    /// Compares the counts of the features of device removal (`verify_device_removal_feature_counts`); whether they agree.
    fn removal_counts(&mut self, refs: &References) -> Result<bool, Stop> {
        let pool = self.pool.clone();
        let directory = self.directory()?;
        let tree = pool.config().list("vdev_tree");
        let (mut removed, mut counts) = (0u64, refs.remap_deadlists);
        for vdev in tree.map_or(&[][..], |t| lists(t, "children")) {
            if let Some(mapping) = vdev.u64("com.delphix:indirect_object").filter(|m| *m != 0) {
                removed += 1;
                let mapping = Mapping::load(pool.mos(), mapping).map_err(failed)?;
                counts += u64::from(mapping.counts_object != 0);
            }
            if let Some(top) = vdev.u64("com.delphix:vdev_zap_top").filter(|z| *z != 0) {
                counts +=
                    u64::from(self.field(top, "com.delphix:obsolete_counts_are_precise")? != 0);
                counts += u64::from(self.field(top, "com.delphix:indirect_obsolete_sm")? != 0);
            }
        }
        if self.condensing()?.is_some_and(|condensing| condensing.next != 0) {
            counts += 2;
        }
        counts +=
            u64::from(directory.u64(b"com.delphix:obsolete_bpobj").map_err(failed)?.is_some());
        let refcount = |name: &str| {
            let feature = cenote_format::features::by_name(name);
            feature.and_then(|f| pool.features().get(f.guid)).map_or(0, |f| f.uses)
        };
        let mut agree = true;
        let stored = refcount("device_removal");
        if removed == stored {
            writeln!(
                self.out(),
                "Verified device_removal feature refcount of {stored} is correct"
            )?;
        } else {
            agree = false;
            writeln!(
                self.out(),
                "Number of indirect vdevs ({removed}) does not match feature count ({stored})"
            )?;
        }
        let stored = refcount("obsolete_counts");
        if counts == stored {
            writeln!(
                self.out(),
                "Verified indirect_refcount feature refcount of {stored} is correct"
            )?;
        } else {
            agree = false;
            writeln!(
                self.out(),
                "Number of obsolete counts objects ({counts}) does not match feature count ({stored})"
            )?;
        }
        Ok(agree)
    }
}
