//! Random changes to what is in volumes, and to their sizes.

use super::super::model::Contents;
use super::{Driver, overwrite};
use cenote_engine::change::Kind;
use cenote_zpl::Volume;
use rand::Rng;
use std::sync::Arc;

/// Blocks that a volume has at most.
const MOST_BLOCKS: u64 = 40;

impl Driver {
    /// A volume that may be created, with its properties.
    pub(super) fn new_volume(&mut self) -> (Kind, (String, String)) {
        let block = 512u64 << self.rng.random_range(0..9);
        let size = block * self.rng.random_range(1..=MOST_BLOCKS);
        let kind = Kind::Volume { size, sparse: self.chance(70) };
        (kind, ("volblocksize".to_string(), block.to_string()))
    }

    fn volume(&self, name: &str) -> Volume {
        let dataset = self.engine.pool().dsl().find(name).unwrap().unwrap();
        Volume::open_live(self.engine.live(dataset.ds_obj).unwrap()).unwrap()
    }

    fn volume_bytes(&mut self, name: &str) -> &mut Vec<u8> {
        match &mut self.model.entry(name).contents {
            Contents::Volume(bytes) => Arc::make_mut(bytes),
            Contents::Files(_) => panic!("{name} is no volume"),
        }
    }

    /// Changes a volume's bytes.
    pub(super) fn change_volume(&mut self, name: &str) {
        let size = self.volume_bytes(name).len();
        let at = self.rng.random_range(0..size);
        let len = self.rng.random_range(1..=size - at);
        let (volume, discards) = (self.volume(name), self.chance(25));
        let data = if discards { vec![0; len] } else { self.bytes(at as u64, len) };
        // Past its end it takes nothing. Where space is short that may have a group written: before the change, of which it would know
        // nothing.
        assert!(volume.write(size as u64, &[1]).is_err());
        let done = match discards {
            true => volume.discard(at as u64, len as u64),
            false => volume.write(at as u64, &data),
        };
        if self.no_space(&done) {
            return;
        }
        assert!(done.is_ok(), "{len} bytes at {at} of {name}: {done:?}");
        overwrite(self.volume_bytes(name), at, &data);
    }

    /// Changes a volume's size.
    pub(super) fn resize_volume(&mut self, name: &str) {
        let block = self.volume(name).block_size();
        let size = block * self.rng.random_range(1..=MOST_BLOCKS);
        let list = [("volsize".to_string(), size.to_string())];
        match self.changes.set(name, &list) {
            // That there is no space for a larger reservation is said of that alone.
            Ok(failed) if failed.iter().all(|f| super::datasets::full(&f.error)) => {
                if failed.iter().all(|f| f.name != "volsize") {
                    self.volume_bytes(name).resize(size as usize, 0);
                }
            }
            Ok(failed) => panic!("set volsize={size} on {name}: {failed:?}"),
            Err(e) if super::datasets::full(&e) => {}
            Err(e) => panic!("set volsize={size} on {name}: {e}"),
        }
        // What was refused has changed nothing.
        let (here, said) = (self.volume(name).size(), self.volume_bytes(name).len() as u64);
        assert_eq!(here, said, "set volsize={size} on {name}");
    }
}
