//! One directory with more names than anybody should have in it.

use crate::common::can_mount;
use crate::rig::{Rig, times};
use std::fs::{self, File};
use std::path::Path;

/// The name with a number.
fn name(number: usize) -> String {
    format!("the name of number {number}")
}

/// The numbers in the directory's names are those that `wanted` chooses below `count`, each once.
fn check(dir: &Path, count: usize, wanted: impl Fn(usize) -> bool) {
    let mut seen = vec![false; count];
    for entry in fs::read_dir(dir).unwrap() {
        let listed = entry.unwrap().file_name().into_string().unwrap();
        let number: usize = listed.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(listed == name(number) && wanted(number), "{listed}");
        assert!(!std::mem::replace(&mut seen[number], true), "{listed} is there twice");
    }
    for (number, seen) in seen.into_iter().enumerate() {
        assert_eq!(seen, wanted(number), "{}", name(number));
    }
    // Names that nothing has listed are looked for.
    for number in (0..count).step_by(97) {
        assert_eq!(dir.join(name(number)).exists(), wanted(number), "{}", name(number));
    }
}

#[test]
fn a_directory_holds_very_many_names() {
    if !can_mount() {
        return;
    }
    let count = times(30_000, 1_000_000);
    let rig = Rig::new("");
    let (dir, odd) = (rig.dir("all"), rig.dir("odd"));
    for number in 0..count {
        File::create_new(dir.join(name(number))).unwrap();
    }
    rig.cenote("zpool export tank");
    rig.judge();
    rig.import();
    check(&dir, count, |_| true);
    // Some go, some go elsewhere.
    for number in 0..count {
        match number % 4 {
            0 => {}
            2 => fs::remove_file(dir.join(name(number))).unwrap(),
            _ => fs::rename(dir.join(name(number)), odd.join(name(number))).unwrap(),
        }
    }
    rig.reimport();
    check(&dir, count, |number| number.is_multiple_of(4));
    check(&odd, count, |number| number % 2 == 1);
    rig.finish();
}
