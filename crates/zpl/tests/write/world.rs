//! A live file system over a pool in memory, with transaction groups on demand.

use cenote_dmu::ObjectSet;
use cenote_dmu::live::{Assigned, Cost, LiveObjectSet, TxAssign};
use cenote_dmu::write::{Accounts, OpenObjectSet, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ObjsetType;
use cenote_store::alloc::ReadEpochs;
use cenote_testsink::MemSink;
use cenote_zpl::{Clock, CreateProps, FileSystem, Settings, Time, format};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub const OBJSET: u64 = 54;

#[derive(Default)]
pub struct Txgs(pub AtomicU64, Arc<ReadEpochs>);

impl TxAssign for Txgs {
    fn readers(&self) -> Arc<ReadEpochs> {
        self.1.clone()
    }

    fn assign(&self, objset: u64, _: &Cost, _: &AtomicU64) -> Result<Assigned> {
        assert_eq!(objset, OBJSET);
        Ok(Assigned::new(self.0.load(Ordering::SeqCst), ()))
    }
}

pub struct World {
    pub sink: MemSink,
    pub txgs: Arc<Txgs>,
    pub live: Arc<LiveObjectSet>,
    pub fs: Arc<FileSystem>,
    pub ticks: Arc<AtomicU64>,
    pub settings: Settings,
}

/// The time after so many ticks.
pub fn time(ticks: u64) -> Time {
    (1_700_000_000 + ticks as i64, (ticks % 1000) as u32)
}

impl World {
    pub fn new(props: &CreateProps, settings: Settings) -> World {
        let sink = MemSink::new(4 << 30);
        let txgs = Arc::new(Txgs(AtomicU64::new(10), Arc::default()));
        let mut os = OpenObjectSet::create(sink.store.clone(), OBJSET, ObjsetType::Zfs).unwrap();
        format(&mut os, props, 10).unwrap();
        let (synced, os) = sink.write_new(os, 10);
        sink.follow(&synced);
        txgs.0.store(11, Ordering::SeqCst);
        let ticks = Arc::new(AtomicU64::new(0));
        let clock = ticks.clone();
        let clock = Clock::new(move || time(clock.load(Ordering::SeqCst)));
        let settings = Settings { clock, ..settings };
        let live = LiveObjectSet::new(os, txgs.clone());
        let fs = FileSystem::open_live(live.clone(), settings.clone()).unwrap();
        World { sink, txgs, live, fs, ticks, settings }
    }

    pub fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Syncs a txg; `during` happens while it is being written, in the next one.
    pub fn sync(&self, during: impl FnOnce()) -> Arc<ObjectSet> {
        let root = self.write_group(during);
        // From its root block, without anything cached.
        ObjectSet::open(self.sink.store.clone(), OBJSET, root).unwrap()
    }

    /// As [`World::sync`], without looking at what was written; returns the root.
    pub fn write_group(&self, during: impl FnOnce()) -> BlockPointer {
        self.write_counted(during, |_| Ok(()))
    }

    /// Syncs a txg, and counts what users use.
    pub fn count(&self, count: impl FnOnce(&mut Accounts<'_>) -> Result<()>) {
        self.write_counted(|| {}, count);
    }

    fn write_counted(
        &self,
        during: impl FnOnce(),
        count: impl FnOnce(&mut Accounts<'_>) -> Result<()>,
    ) -> BlockPointer {
        let mut quiesced = self.live.quiesce();
        let txg = self.txgs.0.fetch_add(1, Ordering::SeqCst);
        during();
        self.sink.follow(&quiesced.sync(txg, &self.sink).unwrap());
        quiesced.account(count).unwrap();
        self.sink.follow(&quiesced.sync(txg, &self.sink).unwrap());
        let root = *quiesced.synced().root_bp();
        self.live.sync_done(quiesced.finish());
        self.txgs.1.group_done(txg);
        root
    }

    /// As after an export: everything anew from disk.
    pub fn reopen(&mut self) {
        let os = self.sync(|| {});
        let set = OpenObjectSet::open(os).unwrap();
        self.live = LiveObjectSet::new(set, self.txgs.clone());
        self.fs = FileSystem::open_live(self.live.clone(), self.settings.clone()).unwrap();
    }
}
