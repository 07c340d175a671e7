//! The send streams that OpenZFS made of the sample pool `streams`.

use super::{decoder, packed_dir};
use std::collections::BTreeMap;
use std::io::Read;

/// All of them, by name: `full-s1`, `R-s3`, … The manifest of the pool says what each was asked for with.
pub fn streams() -> BTreeMap<String, Vec<u8>> {
    let mut archive =
        tar::Archive::new(decoder(&packed_dir().join("streams.streams.tar.zst")).unwrap());
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let short = name.strip_prefix("streams.").and_then(|n| n.strip_suffix(".zsend"));
        let short = short.unwrap_or_else(|| panic!("{name}")).to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        found.insert(short, bytes);
    }
    found
}
