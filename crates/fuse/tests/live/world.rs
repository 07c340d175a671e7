//! A file system in memory that is mounted to be written to, and synced all the time.

use cenote_dmu::ObjectSet;
use cenote_dmu::live::{Assigned, Cost, LiveObjectSet, TxAssign};
use cenote_dmu::write::{OpenObjectSet, Result, ZapMut};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ObjsetType;
use cenote_format::encode::zap::{Key, Value};
use cenote_fuse::{
    Force, Local, MountFlags, MountHandle, MountSpec, SnapDir, SnapshotEntry, Snapshots, Space,
    SyncPolicy, mount,
};
use cenote_store::alloc::ReadEpochs;
use cenote_testsink::MemSink;
use cenote_vdev::inject::FaultyDevice;
use cenote_zpl::{CreateProps, FileSystem, Settings, format};
use parking_lot::{Condvar, Mutex};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const OBJSET: u64 = 54;

/// Assigns changes to txgs, but not while one is being quiesced.
#[derive(Default)]
struct Txgs {
    /// The open txg, how many changes hold it, and whether it is being quiesced.
    state: Mutex<(u64, usize, bool)>,
    changed: Condvar,
    readers: Arc<ReadEpochs>,
}

struct TxHold(Arc<Txgs>);

impl Drop for TxHold {
    fn drop(&mut self) {
        self.0.state.lock().1 -= 1;
        self.0.changed.notify_all();
    }
}

struct Assign(Arc<Txgs>);

impl TxAssign for Assign {
    fn readers(&self) -> Arc<ReadEpochs> {
        self.0.readers.clone()
    }

    fn assign(&self, objset: u64, _: &Cost, _: &AtomicU64) -> Result<Assigned> {
        assert_eq!(objset, OBJSET);
        let mut state = self.0.state.lock();
        self.0.changed.wait_while(&mut state, |s| s.2);
        state.1 += 1;
        Ok(Assigned::new(state.0, TxHold(self.0.clone())))
    }
}

/// What holds the file system.
pub struct Store {
    sink: MemSink,
    txgs: Arc<Txgs>,
    live: Arc<LiveObjectSet>,
    syncing: Mutex<()>,
    pub syncs: AtomicUsize,
}

impl Store {
    /// Writes what has changed; returns it as it is on disk.
    pub fn sync(&self) -> Arc<ObjectSet> {
        ObjectSet::open(self.sink.store.clone(), OBJSET, self.write()).unwrap()
    }

    /// Writes what has changed; returns it as it is on disk, twice: the second one is read anew, through a device that can hang.
    pub fn sync_twice(&self) -> ([Arc<FileSystem>; 2], Arc<FaultyDevice>) {
        let root = self.write();
        let (another, device) = self.sink.another_store();
        let open = |store| FileSystem::open(ObjectSet::open(store, OBJSET, root).unwrap()).unwrap();
        ([open(self.sink.store.clone()), open(another)], device)
    }

    fn write(&self) -> BlockPointer {
        let _one = self.syncing.lock();
        self.txgs.state.lock().2 = true;
        let mut state = self.txgs.state.lock();
        self.txgs.changed.wait_while(&mut state, |s| s.1 > 0);
        let mut quiesced = self.live.quiesce();
        let txg = state.0;
        *state = (txg + 1, 0, false);
        drop(state);
        self.txgs.changed.notify_all();
        self.sink.follow(&quiesced.sync(txg, &self.sink).unwrap());
        let root = *quiesced.synced().root_bp();
        self.live.sync_done(quiesced.finish());
        self.txgs.readers.group_done(txg);
        self.syncs.fetch_add(1, Ordering::SeqCst);
        root
    }
}

/// One snapshot, `then`.
struct Then(Arc<FileSystem>);

impl Snapshots for Then {
    fn list(&self) -> Vec<SnapshotEntry> {
        vec![SnapshotEntry { name: "then".into(), created: 1_700_000_000 }]
    }

    fn newest(&self) -> u64 {
        0
    }

    fn open(&self, _: &str) -> std::result::Result<Arc<FileSystem>, cenote_zpl::Error> {
        Ok(self.0.clone())
    }
}

pub fn settings() -> Settings {
    Settings { record_size: 16 << 10, ..Settings::default() }
}

pub fn file_system(settings: Settings, props: &CreateProps) -> (Arc<Store>, Arc<FileSystem>) {
    let sink = MemSink::new(4 << 30);
    let mut os = OpenObjectSet::create(sink.store.clone(), OBJSET, ObjsetType::Zfs).unwrap();
    format(&mut os, props, 10).unwrap();
    let (synced, os) = sink.write_new(os, 10);
    sink.follow(&synced);
    let txgs = Arc::new(Txgs { state: Mutex::new((11, 0, false)), ..Txgs::default() });
    let live = LiveObjectSet::new(os, Arc::new(Assign(txgs.clone())));
    let fs = FileSystem::open_live(live.clone(), settings).unwrap();
    let (syncing, syncs) = (Mutex::default(), AtomicUsize::new(0));
    (Arc::new(Store { sink, txgs, live, syncing, syncs }), fs)
}

/// A mounted file system.
pub struct World {
    pub handle: MountHandle,
    pub dir: tempfile::TempDir,
    pub store: Arc<Store>,
    pub fs: Arc<FileSystem>,
    /// Bytes that `statfs` shows as available.
    pub available: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    syncer: Option<JoinHandle<()>>,
}

impl World {
    pub fn new() -> World {
        World::with(settings(), &CreateProps::default(), |_| {})
    }

    pub fn with(
        settings: Settings,
        props: &CreateProps,
        change: impl FnOnce(&mut MountSpec),
    ) -> World {
        let (store, fs) = file_system(settings, props);
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let available = Arc::new(AtomicU64::new(1 << 30));
        let mut spec = spec(&store, &fs, dir.path().to_owned());
        let now = available.clone();
        spec.space = Arc::new(move || Space {
            referenced: 10 << 20,
            available: now.load(Ordering::SeqCst),
            record_size: 16 << 10,
        });
        change(&mut spec);
        let handle = mount(spec).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let (syncs, stop) = (store.clone(), done.clone());
        let syncer = std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                syncs.sync();
                std::thread::sleep(Duration::from_millis(30));
            }
        });
        World { handle, dir, store, fs, available, done, syncer: Some(syncer) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts an entry into the root directory that no system call would make.
    pub fn add_raw_entry(&self, name: &[u8], ino: u64) {
        let (root, file) = (self.fs.root(), 8 << 60);
        let cost = Cost { write: 1 << 20, ..Cost::default() };
        let add = |set: &mut OpenObjectSet, _| {
            ZapMut::open(set, root).add(&Key::Name(name), &Value::U64(&[file | ino]))
        };
        self.store.live.transact(cost, add).unwrap();
    }

    /// Runs a shell command in the mount as another user.
    pub fn try_as_user(&self, id: u32, command: &str) -> Output {
        use std::os::unix::process::CommandExt;
        let mut sh = Command::new("sh");
        sh.args(["-c", command]).current_dir(self.dir.path()).env("LC_ALL", "C");
        sh.uid(id).gid(id).output().unwrap()
    }

    pub fn as_user(&self, id: u32, command: &str) -> String {
        let output = self.try_as_user(id, command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The file system as it is on disk.
    pub fn on_disk(&self) -> Arc<FileSystem> {
        FileSystem::open(self.store.sync()).unwrap()
    }

    /// Unmounts, and opens again what is on disk.
    pub fn unmount(mut self) -> Arc<FileSystem> {
        self.handle.unmount(Force::No).unwrap();
        self.on_disk()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        let ended = self.syncer.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

pub fn spec(store: &Arc<Store>, fs: &Arc<FileSystem>, mountpoint: PathBuf) -> MountSpec {
    let then = FileSystem::open(store.sync()).unwrap();
    let synced = store.clone();
    MountSpec {
        dataset: "tank/live".into(),
        mountpoint,
        fs: fs.clone(),
        snapshots: Some(Arc::new(Then(then))),
        snapdir: SnapDir::Hidden,
        space: Arc::new(Space::default),
        sync: Arc::new(move |_| {
            synced.sync();
            Ok(())
        }),
        sync_policy: SyncPolicy::Standard,
        setuid: true,
        devices: true,
        exec: true,
        watcher: None,
        root: "/".into(),
        make: false,
        overlay: true,
        flags: MountFlags::empty(),
        agent: Arc::new(Local),
    }
}
