//! A volume that is changed at random, with a model of what is in it.

use super::history::{Found, History, Names, Seen, Tree};
use super::world::Sync;
use super::{Moment, Stopped, dedup};
use cenote_engine::Engine;
use cenote_zpl::Volume;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A volume that is worked with.
pub struct Block {
    /// What it does comes from here.
    pub rng: SmallRng,
    /// The pool.
    pub engine: Arc<Engine>,
    /// The volume.
    pub volume: Volume,
    /// Its object set.
    pub objset: u64,
    /// How many operations the pool's disks have done.
    pub at: Moment,
    /// When changes are made stable.
    pub sync: Sync,
    /// What is written comes again often: there is something to deduplicate.
    pub repeats: bool,
    /// What it may hold after a crash.
    pub history: History,
    content: Vec<u8>,
}

/// What is seen of a volume: one node with one name.
fn seen(content: Vec<u8>) -> Seen {
    let (link, mode, owner, flags, xattrs) = (false, 0, 0, 0, BTreeMap::new());
    Seen { content: Some(content), link, mode, owner, flags, xattrs }
}

impl Block {
    /// The volume `name`, which holds `content`, all of which is stable.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(
        rng: SmallRng,
        engine: Arc<Engine>,
        name: &str,
        at: Moment,
        content: Vec<u8>,
    ) -> Result<Block, Stopped> {
        let found = engine.pool().dsl().find(name)?;
        let objset = found.ok_or_else(|| Stopped(format!("{name} is not there")))?.ds_obj;
        let volume = Volume::open_live(engine.live(objset)?)?;
        let (history, sync, repeats) = (History::default(), Sync::Standard, false);
        let mut block = Block { rng, engine, volume, objset, at, sync, repeats, history, content };
        let (names, nodes) = block.state();
        block.history.set(&names, &nodes);
        Ok(block)
    }

    /// What is in it.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Whether the volume is as the model says.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn compare(&self) -> Result<(), Stopped> {
        same_bytes(&bytes(&self.volume)?, &self.content).map_err(Stopped)
    }

    /// Puts a byte into the model that is not in the volume: for tests of what finds that.
    pub fn forget(&mut self, byte: u8) {
        let at = usize::from(byte) % self.content.len();
        self.content[at] ^= byte | 1;
    }

    /// All that was changed so far is stable.
    pub fn is_stable(&mut self) {
        self.history.committed((self.at)(), None);
    }

    fn state(&self) -> (Names, BTreeMap<u64, Seen>) {
        let names = Names::from([(b"volume".to_vec(), 0)]);
        (names, BTreeMap::from([(0, seen(self.content.clone()))]))
    }

    /// Writes or discards, and has it stable or not.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn step(&mut self) -> Result<(), Stopped> {
        for _ in 0..self.rng.random_range(1..3) {
            let begun = (self.at)();
            let large = self.rng.random_ratio(1, if self.repeats { 2 } else { 6 });
            let most = if large { 100_000 } else { 6000 };
            let len = self.rng.random_range(1..most);
            let at = self.rng.random_range(0..self.content.len() - len);
            let done = if self.rng.random_ratio(1, 4) {
                self.content[at..at + len].fill(0);
                self.volume.discard(at as u64, len as u64)
            } else {
                let data: Vec<u8> = match self.repeats && self.rng.random() {
                    true => dedup::again(&mut self.rng, at, len),
                    false => (0..len).map(|_| self.rng.random()).collect(),
                };
                self.content[at..at + len].copy_from_slice(&data);
                self.volume.write(at as u64, &data)
            };
            let (names, nodes) = self.state();
            self.history.note(begun, &names, &nodes, &[]);
            done?;
            if self.sync == Sync::Always {
                self.commit()?;
            }
        }
        let asks = self.rng.random_bool(0.7) && self.sync == Sync::Standard;
        if asks { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), Stopped> {
        self.engine.commit(self.objset)?;
        self.is_stable();
        Ok(())
    }
}

/// The bytes of a volume.
///
/// # Errors
/// It cannot be read.
pub fn bytes(volume: &Volume) -> Result<Vec<u8>, Stopped> {
    let mut content = vec![0; volume.size() as usize];
    let n = volume.read(0, &mut content)?;
    content.truncate(n);
    Ok(content)
}

/// Whether a volume has these bytes.
///
/// # Errors
/// Where it has not.
pub fn same_bytes(is: &[u8], want: &[u8]) -> super::Verdict {
    let at = is.iter().zip(want).position(|(is, want)| is != want);
    super::demand!(is.len() == want.len(), "{} bytes, not {}", is.len(), want.len());
    super::demand!(at.is_none(), "byte {at:?} is another one");
    Ok(())
}

/// What a volume with these bytes looks like.
pub fn tree(content: Vec<u8>) -> Tree {
    Tree::from([(b"volume".to_vec(), Found { seen: seen(content), ino: 1, links: 1 })])
}

/// What is in a volume.
pub fn look(volume: &Volume) -> Tree {
    tree(bytes(volume).unwrap())
}
