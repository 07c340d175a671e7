//! Devices removed or overwritten with garbage: within the redundancy every byte reads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use cenote_pool::ImportError;
use cenote_testpools::copy;
use cenote_torture::{combinations, compare, import, lies, long};
use cenote_vdev::{Vdev, VdevState};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngCore, SeedableRng};

/// Pools with the sets of device files that each can lose.
fn losses(pool: &str) -> Vec<Vec<usize>> {
    match pool {
        "mir3" => combinations(3, 2),
        "rz1" => combinations(3, 1),
        "rz2" => combinations(5, 2),
        "rz3" => combinations(6, 3),
        // Device 0 is stale, and its partner is all that has the newest data.
        "degr" => vec![vec![0], vec![2], vec![0, 3]],
        // 1 and 3 are stale: they are what can be lost.
        "degrz" => vec![vec![1], vec![3], vec![1, 3]],
        "hole" => vec![vec![0, 4], vec![1, 5], vec![0, 5]],
        "special" => vec![vec![1], vec![2]],
        other => panic!("no losses known for {other}"),
    }
}

/// Three sets in a short run, chosen by the pool's name; all of them in a long one.
fn chosen(pool: &str) -> Vec<Vec<usize>> {
    let mut sets = losses(pool);
    if !long() {
        sets.shuffle(&mut SmallRng::seed_from_u64(pool.len() as u64));
        sets.truncate(3);
    }
    sets
}

/// Overwrites what is allocated of a device; the first `keep` bytes and the last as many stay.
fn overwrite(path: &Path, keep: u64) {
    let mut rng = SmallRng::seed_from_u64(1);
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    let (mut block, mut garbage) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    rng.fill_bytes(&mut garbage);
    let mut at = keep;
    while at + keep < len {
        let n = block.len().min((len - keep - at) as usize);
        file.read_exact_at(&mut block[..n], at).unwrap();
        if block[..n].iter().any(|b| *b != 0) {
            file.write_all_at(&garbage[..n], at).unwrap();
        }
        at += n as u64;
    }
}

fn checksum_errors(vdev: &Arc<Vdev>) -> u64 {
    vdev.errors().2 + vdev.children().iter().map(checksum_errors).sum::<u64>()
}

fn every_byte_reads(name: &str, damage: fn(&Path)) {
    for lost in chosen(name) {
        let temp = copy(name);
        lost.iter().for_each(|i| damage(&temp.pool.files[*i]));
        let pool = import(&temp.pool.dir)
            .unwrap()
            .unwrap_or_else(|e| panic!("{name} without {lost:?}: {e}"));
        let wrong = compare(&pool, &temp.pool.manifest());
        assert!(wrong.is_empty(), "{name} without {lost:?}: {wrong:#?}");
        assert!(pool.store().errors().is_empty(), "{name} without {lost:?}");
        let vdevs = pool.store().vdevs();
        let root = vdevs.root();
        assert!(
            matches!(root.state(), VdevState::Degraded | VdevState::Healthy),
            "{name} {lost:?}"
        );
    }
}

fn removed(path: &Path) {
    fs::remove_file(path).unwrap();
}

fn overwritten(path: &Path) {
    overwrite(path, 0);
}

/// Every byte reads although the devices answer with garbage, and they are charged for it.
fn silent_corruption(name: &str) {
    for lost in chosen(name) {
        let temp = copy(name);
        lost.iter().for_each(|i| overwrite(&temp.pool.files[*i], 4 << 20));
        let pool =
            import(&temp.pool.dir).unwrap().unwrap_or_else(|e| panic!("{name} {lost:?}: {e}"));
        // Without checksums nothing can tell which side of the mirror is right.
        let mut wrong = compare(&pool, &temp.pool.manifest());
        wrong.retain(|line| !line.contains("cs_off"));
        assert!(wrong.is_empty(), "{name} with {lost:?} corrupted: {wrong:#?}");
        let stale_only = name.starts_with("degr") && lost.iter().all(|i| [0, 1, 3].contains(i));
        assert!(stale_only || checksum_errors(pool.store().vdevs().root()) > 0, "{name} {lost:?}");
    }
}

macro_rules! pools {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn devices_removed() {
                super::every_byte_reads(stringify!($name), super::removed);
            }

            #[test]
            fn devices_overwritten() {
                super::every_byte_reads(stringify!($name), super::overwritten);
            }

            #[test]
            fn devices_silently_corrupted() {
                super::silent_corruption(stringify!($name));
            }
        }
    )*};
}

pools!(mir3 rz1 rz2 rz3 degr degrz hole special);

/// One device too many: the import says which top-level vdev is gone, and does not panic.
#[test]
fn too_few_devices_are_an_error_that_names_one() {
    for (name, lost) in
        [("rz1", vec![0, 1]), ("rz2", vec![0, 1, 2]), ("hole", vec![0, 1]), ("removal", vec![1])]
    {
        let temp = copy(name);
        lost.iter().for_each(|i| removed(&temp.pool.files[*i]));
        let Some(Err(ImportError::MissingDevices { vdevs, .. })) = import(&temp.pool.dir) else {
            panic!("{name} without {lost:?}: not refused for its missing devices");
        };
        let text = format!("{vdevs:?}");
        assert!(text.contains(&format!("{}.img", lost[0])), "{name}: {text}");
    }
}

/// Garbage on more devices than parity covers: files are right or give an error, never wrong.
#[test]
fn beyond_redundancy_reads_fail_but_never_lie() {
    for (name, lost) in [("rz1", vec![0, 1]), ("rz3", vec![0, 1, 2, 3]), ("mir3", vec![0, 1, 2])] {
        let temp = copy(name);
        let mut rng = SmallRng::seed_from_u64(7);
        for i in lost {
            let file = OpenOptions::new().read(true).write(true).open(&temp.pool.files[i]).unwrap();
            let len = file.metadata().unwrap().len();
            for at in (4 << 20..len - (1 << 20)).step_by(96 << 10) {
                let mut garbage = vec![0; 32 << 10];
                rng.fill_bytes(&mut garbage);
                file.write_all_at(&garbage, at).unwrap();
            }
        }
        let Some(Ok(pool)) = import(&temp.pool.dir) else { continue };
        let wrong = compare(&pool, &temp.pool.manifest());
        assert!(lies(&wrong).is_empty(), "{name}: {:#?}", lies(&wrong));
    }
}
