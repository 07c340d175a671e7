//! A volume that is changed at random, with a model of what is in it.

use crate::history::{Found, History, Names, Seen, Tree};
use cenote_engine::Engine;
use cenote_torture::live::disk::Journal;
use cenote_zpl::Volume;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of the volume.
pub const SIZE: u64 = 256 << 10;

/// A volume that is worked with.
pub struct Block {
    pub rng: SmallRng,
    pub engine: Arc<Engine>,
    pub volume: Volume,
    pub objset: u64,
    pub journal: Arc<Journal>,
    pub history: History,
    content: Vec<u8>,
}

/// What is seen of a volume: one node with one name.
fn seen(content: Vec<u8>) -> Seen {
    let (link, mode, owner, flags, xattrs) = (false, 0, 0, 0, BTreeMap::new());
    Seen { content: Some(content), link, mode, owner, flags, xattrs }
}

impl Block {
    pub fn new(rng: SmallRng, engine: Arc<Engine>, name: &str, journal: Arc<Journal>) -> Block {
        let objset = engine.pool().dsl().find(name).unwrap().unwrap().ds_obj;
        let volume = Volume::open_live(engine.live(objset).unwrap()).unwrap();
        let (history, content) = (History::default(), vec![0; SIZE as usize]);
        let mut block = Block { rng, engine, volume, objset, journal, history, content };
        let (names, nodes) = block.state();
        block.history.set(&names, &nodes);
        block
    }

    fn state(&self) -> (Names, BTreeMap<u64, Seen>) {
        let names = Names::from([(b"volume".to_vec(), 0)]);
        (names, BTreeMap::from([(0, seen(self.content.clone()))]))
    }

    /// Writes or discards, and has it stable or not.
    pub fn step(&mut self) {
        for _ in 0..self.rng.random_range(1..3) {
            let begun = self.journal.len();
            let most = if self.rng.random_ratio(1, 6) { 100_000 } else { 6000 };
            let len = self.rng.random_range(1..most);
            let at = self.rng.random_range(0..self.content.len() - len);
            if self.rng.random_ratio(1, 4) {
                self.volume.discard(at as u64, len as u64).unwrap();
                self.content[at..at + len].fill(0);
            } else {
                let data: Vec<u8> = (0..len).map(|_| self.rng.random()).collect();
                self.volume.write(at as u64, &data).unwrap();
                self.content[at..at + len].copy_from_slice(&data);
            }
            let (names, nodes) = self.state();
            self.history.note(begun, &names, &nodes, &[]);
        }
        if self.rng.random_bool(0.7) {
            self.engine.commit(self.objset).unwrap();
            self.history.committed(self.journal.len(), None);
        }
    }
}

/// What is in a volume.
pub fn look(volume: &Volume) -> Tree {
    let mut content = vec![0; SIZE as usize];
    volume.read(0, &mut content).unwrap();
    Tree::from([(b"volume".to_vec(), Found { seen: seen(content), ino: 1, links: 1 })])
}
