//! What OpenZFS's `zstream dump -v` printed about its streams of the sample pool `streams`.

use super::{decoder, packed_dir};
use std::collections::BTreeMap;
use std::io::Read;

/// All of them, by the names of the streams.
pub fn dumps() -> BTreeMap<String, String> {
    let mut archive =
        tar::Archive::new(decoder(&packed_dir().join("streams.zstream.tar.zst")).unwrap());
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let short = name.strip_prefix("streams.").and_then(|n| n.strip_suffix(".zstream.txt"));
        let short = short.unwrap_or_else(|| panic!("{name}")).to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        found.insert(short, text);
    }
    found
}
