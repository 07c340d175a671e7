//! What a space must hold, as a plain map.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use cenote_objects::{Class, Live, SECTOR, Space};

use super::Random;

/// Blocks that are live: their address, length and what their bytes come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    pub blocks: BTreeMap<u64, (u64, u64)>,
    pub group: u64,
}

impl Model {
    pub fn bytes(length: u64, seed: u64) -> Bytes {
        let mut random = Random(seed);
        (0..length / 8).flat_map(|_| random.next().to_le_bytes()).collect::<Vec<_>>().into()
    }

    pub fn payload(&self) -> Vec<u8> {
        format!("group {} with {} blocks", self.group, self.blocks.len()).into_bytes()
    }

    /// Writes a block; what fails is tried again until `alive` says no.
    pub async fn write(
        &mut self,
        space: &Space,
        random: &mut Random,
    ) -> cenote_objects::Result<()> {
        let length = (1 + random.below(40)) * SECTOR;
        let seed = random.next();
        let address = space.allocate(length)?;
        if random.chance(5) {
            return space.abandon(address, length).await;
        }
        let mut written = space.write(address, Self::bytes(length, seed)).await;
        if written.as_ref().is_err_and(|error| error.transient()) {
            // The block was refused for an upload that failed before.
            space.resume().await?;
            written = space.write(address, Self::bytes(length, seed)).await;
        }
        written?;
        self.blocks.insert(address, (length, seed));
        Ok(())
    }

    /// Frees a random block, or the end of it.
    pub fn free(&mut self, space: &Space, random: &mut Random) -> cenote_objects::Result<()> {
        let n = random.below(self.blocks.len() as u64) as usize;
        let Some((address, (length, _))) = self.blocks.iter().nth(n).map(|(a, b)| (*a, *b)) else {
            return Ok(());
        };
        let sectors = length / SECTOR;
        let kept = if random.chance(30) { random.below(sectors) * SECTOR } else { 0 };
        space.free(address + kept, length - kept)?;
        match (kept, self.blocks.get_mut(&address)) {
            (1.., Some(block)) => block.0 = kept,
            _ => drop(self.blocks.remove(&address)),
        }
        Ok(())
    }

    /// Reads some blocks, or all, and compares them. Errors that pass are let pass; returns how many there were.
    pub async fn check(&self, space: &Space, some: Option<&mut Random>) -> usize {
        let mut wanted: Vec<_> = self.blocks.iter().map(|(a, (l, s))| (*a, *l, *s)).collect();
        if let Some(random) = some {
            wanted.retain(|_| random.chance(10));
        }
        let ranges: Vec<_> = wanted.iter().map(|(a, l, _)| (*a, *l)).collect();
        let mut failed = 0;
        for ((address, length, seed), answer) in
            wanted.iter().zip(space.read(&ranges, Class::Sync).await)
        {
            match answer {
                Ok(bytes) => {
                    assert_eq!(bytes, Self::bytes(*length, *seed), "block at {address:#x}")
                }
                Err(error) if error.transient() => failed += 1,
                Err(error) => panic!("block at {address:#x}: {error}"),
            }
        }
        failed
    }
}

impl Live for Model {
    fn live(&self, range: Range<u64>) -> Result<Vec<Range<u64>>, String> {
        let within = self.blocks.range(range);
        let mut live: Vec<Range<u64>> = Vec::new();
        for (address, (length, _)) in within {
            // As space maps do it: neighbours are one range.
            match live.last_mut().filter(|last| last.end == *address) {
                Some(last) => last.end += length,
                None => live.push(*address..address + length),
            }
        }
        Ok(live)
    }
}
