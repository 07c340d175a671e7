//! Compares a tree of files with the manifest of a sample pool.
//!
//! A manifest lists, for every dataset that was mounted, every file with everything that OpenZFS
//! showed of it. The same comparison serves file systems read through the library ([`ZplTree`]),
//! mounted directories and copies ([`FsTree`]); what a copy cannot have (inode numbers, change times)
//! is left out by [`Checks`]. [`import`] opens the pool that a manifest belongs to.
//!
//! For tests only.

mod fs_tree;
mod sample;
mod zpl_tree;

pub use fs_tree::FsTree;
pub use sample::{import, import_with_keys, load_key, try_import};
pub use zpl_tree::ZplTree;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Differences listed before the comparison is given up.
const MAX_DIFFERENCES: usize = 40;
/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Result with a message.
pub type Result<T> = std::result::Result<T, String>;

/// What `lstat` says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // The names are stat's.
pub struct Stat {
    /// Mode with file type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime_ns: i128,
    pub ctime_ns: i128,
    pub nlink: u64,
    pub ino: u64,
    /// Major and minor number.
    pub rdev: (u32, u32),
    /// Project id, where the tree can tell.
    pub projid: Option<u64>,
}

impl Stat {
    /// The file type as manifests write it.
    pub fn kind(&self) -> char {
        match self.mode >> 12 {
            0o01 => 'p',
            0o02 => 'c',
            0o04 => 'd',
            0o06 => 'b',
            0o10 => 'f',
            0o12 => 'l',
            0o14 => 's',
            _ => '?',
        }
    }
}

/// A tree of files. Paths are relative to its root, which is `.`.
pub trait TreeReader {
    /// Attributes, without following a symbolic link.
    fn stat(&self, path: &[u8]) -> Result<Stat>;
    /// Names in a directory, without `.` and `..`.
    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Target of a symbolic link.
    fn target(&self, path: &[u8]) -> Result<Vec<u8>>;
    /// Extended attributes with their values, without following a symbolic link.
    fn xattrs(&self, path: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>>;
    /// Opens a regular file.
    fn open(&self, path: &[u8]) -> Result<Box<dyn FileReader + '_>>;
}

/// An open file.
pub trait FileReader {
    /// Reads at `offset`; 0 at the end.
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Where data begins at or after `offset`; `None`: there is no data until the end.
    fn next_data(&mut self, offset: u64) -> Result<Option<u64>>;
}

/// What is compared besides path, type, permissions, target, modification time and contents.
#[derive(Debug, Clone, Copy)]
pub struct Checks {
    /// Inode numbers.
    pub ino: bool,
    /// Link counts.
    pub nlink: bool,
    /// Change times.
    pub ctime: bool,
    /// Owners and groups.
    pub owner: bool,
    /// Sizes of directories.
    pub dir_size: bool,
    /// Devices and their numbers.
    pub devices: bool,
    /// Extended attributes and ACLs.
    pub xattrs: bool,
}

impl Checks {
    /// Everything: for file systems.
    pub const EXACT: Checks = Checks {
        ino: true,
        nlink: true,
        ctime: true,
        owner: true,
        dir_size: true,
        devices: true,
        xattrs: true,
    };
    /// What a copy made by the superuser keeps.
    pub const COPY: Checks =
        Checks { ino: false, nlink: false, ctime: false, dir_size: false, ..Checks::EXACT };
}

/// What was compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compared {
    /// Files of all types.
    pub files: usize,
    /// Bytes of contents that were hashed.
    pub bytes: u64,
}

/// The datasets of a manifest that list their files.
pub fn datasets_with_files(manifest: &Value) -> Vec<&Value> {
    let all = manifest["datasets"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter(|d| d["files"].is_array()).collect()
}

/// The datasets of a manifest that are volumes or snapshots of volumes.
pub fn datasets_with_volume(manifest: &Value) -> Vec<&Value> {
    let all = manifest["datasets"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter(|d| d["volume"].is_object()).collect()
}

/// Compares `tree` with a dataset of a manifest; the error lists the differences.
pub fn check_tree(dataset: &Value, tree: &dyn TreeReader, checks: &Checks) -> Result<Compared> {
    let name = dataset["name"].as_str().unwrap_or("?");
    let snapshot = dataset["type"] == "snapshot";
    let mut check = Check { tree, checks, differences: Vec::new(), done: Compared::default() };
    let mut listed = BTreeSet::new();
    let mut dirs = Vec::new();
    for file in dataset["files"].as_array().ok_or("the dataset has no list of files")? {
        let path = file_path(file)?;
        if file["type"] == "d" {
            dirs.push(path.clone());
        }
        check.file(file, &path, snapshot);
        listed.insert(path);
        if check.differences.len() > MAX_DIFFERENCES {
            break;
        }
    }
    for dir in dirs {
        check.listing(&dir, &listed);
    }
    if check.differences.is_empty() {
        return Ok(check.done);
    }
    check.differences.truncate(MAX_DIFFERENCES);
    Err(format!(
        "{name}: {} differences:\n  {}",
        check.differences.len(),
        check.differences.join("\n  ")
    ))
}

/// Compares a volume with a dataset of a manifest. `read_at` reads at an offset.
pub fn check_volume(
    dataset: &Value,
    size: u64,
    mut read_at: impl FnMut(u64, &mut [u8]) -> Result<usize>,
) -> Result<()> {
    let want = &dataset["volume"];
    if want["size"].as_u64() != Some(size) {
        return Err(format!("{}: size {size}, not {}", dataset["name"], want["size"]));
    }
    let mut hash = Sha256::new();
    let mut buf = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let n = read_at(at, &mut buf)?;
        if n == 0 {
            return Err(format!("{}: ends at {at}", dataset["name"]));
        }
        hash.update(buf.get(..n).unwrap_or_default());
        at = at.saturating_add(n as u64);
    }
    let got = hex(&hash.finalize());
    if want["sha256"].as_str() == Some(&got) {
        Ok(())
    } else {
        Err(format!("{}: sha256 {got}", dataset["name"]))
    }
}

/// The path of a file of a manifest.
pub fn file_path(file: &Value) -> Result<Vec<u8>> {
    if let Some(path) = file["path"].as_str() {
        return Ok(path.as_bytes().to_vec());
    }
    let digits = file["path_hex"].as_str().ok_or("a file without a path")?;
    let byte =
        |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok());
    digits
        .as_bytes()
        .chunks(2)
        .map(|p| byte(p).ok_or_else(|| format!("path_hex {digits}")))
        .collect()
}

struct Check<'a> {
    tree: &'a dyn TreeReader,
    checks: &'a Checks,
    differences: Vec<String>,
    done: Compared,
}

impl Check<'_> {
    fn file(&mut self, want: &Value, path: &[u8], snapshot: bool) {
        let shown = String::from_utf8_lossy(path).into_owned();
        if !self.checks.devices && matches!(want["type"].as_str(), Some("b" | "c")) {
            return;
        }
        let stat = match self.tree.stat(path) {
            Ok(s) => s,
            Err(e) => return self.differences.push(format!("{shown}: {e}")),
        };
        self.done.files += 1;
        for (field, got) in self.fields(want, &stat, snapshot && path == b".") {
            if !accepted(want, field, &got) {
                self.differences.push(format!("{shown}: {field} is {got}, not {}", want[field]));
            }
        }
        let result = match stat.kind() {
            'f' => self.contents(want, path, stat.size),
            'l' => self.target(want, path),
            _ => Ok(()),
        };
        let result =
            result.and_then(|()| if self.checks.xattrs { self.xattrs(want, path) } else { Ok(()) });
        if let Err(e) = result {
            self.differences.push(format!("{shown}: {e}"));
        }
    }

    /// The fields to compare, as the manifest would have them.
    fn fields(&self, want: &Value, stat: &Stat, no_ino: bool) -> Vec<(&'static str, Value)> {
        let c = self.checks;
        let mut fields: Vec<(&'static str, Value)> = vec![
            ("type", stat.kind().to_string().into()),
            ("mode", format!("{:04o}", stat.mode & 0o7777).into()),
            ("mtime_ns", (stat.mtime_ns as i64).into()),
        ];
        if c.owner {
            fields.extend([("uid", stat.uid.into()), ("gid", stat.gid.into())]);
        }
        if stat.kind() != 'd' || c.dir_size {
            fields.push(("size", stat.size.into()));
        }
        if c.ctime {
            fields.push(("ctime_ns", (stat.ctime_ns as i64).into()));
        }
        if c.nlink {
            fields.push(("nlink", stat.nlink.into()));
        }
        if c.ino && !no_ino {
            fields.push(("ino", stat.ino.into()));
        }
        if matches!(stat.kind(), 'b' | 'c') {
            fields.push(("rdev", vec![stat.rdev.0, stat.rdev.1].into()));
        }
        if let (Some(projid), true) = (stat.projid, want["projid"].is_u64()) {
            fields.push(("projid", projid.into()));
        }
        fields
    }

    fn target(&self, want: &Value, path: &[u8]) -> Result<()> {
        let got = self.tree.target(path);
        match (want["target"].as_str(), got) {
            (Some(t), Ok(got)) if t.as_bytes() == got => Ok(()),
            (None, Err(_)) if want["target_error"].is_string() => Ok(()),
            (_, Ok(got)) => Err(format!("target is {}", String::from_utf8_lossy(&got))),
            (_, Err(e)) => Err(e),
        }
    }

    fn xattrs(&self, want: &Value, path: &[u8]) -> Result<()> {
        let mut expected = BTreeMap::new();
        for (name, value) in want["xattrs_b64"].as_object().into_iter().flatten() {
            let value =
                STANDARD.decode(value.as_str().unwrap_or_default()).map_err(|e| e.to_string())?;
            expected.insert(name.as_bytes().to_vec(), value);
        }
        let got = self.tree.xattrs(path)?;
        if got == expected {
            return Ok(());
        }
        let names = |m: &BTreeMap<Vec<u8>, Vec<u8>>| {
            m.iter()
                .map(|(n, v)| format!("{}({})", String::from_utf8_lossy(n), v.len()))
                .collect::<Vec<_>>()
                .join(" ")
        };
        Err(format!("xattrs are {}; not {}", names(&got), names(&expected)))
    }

    fn contents(&mut self, want: &Value, path: &[u8], size: u64) -> Result<()> {
        let mut file = self.tree.open(path)?;
        if let Some(extents) = want["extents"].as_array() {
            return self.extents(extents, file.as_mut(), size);
        }
        let got = self.hash(file.as_mut(), 0, size)?;
        match accepted(want, "sha256", &Value::from(got.as_str())) {
            true => Ok(()),
            false => Err(format!("sha256 is {got}")),
        }
    }

    fn hash(&mut self, file: &mut dyn FileReader, from: u64, len: u64) -> Result<String> {
        let mut hash = Sha256::new();
        let mut buf = vec![0; CHUNK.min(usize::try_from(len).unwrap_or(CHUNK)).max(1)];
        let (mut at, end) = (from, from.saturating_add(len));
        while at < end {
            let n = file.read_at(at, &mut buf)?;
            if n == 0 {
                return Err(format!("ends at {at}, not {end}"));
            }
            let n = n.min(usize::try_from(end - at).unwrap_or(n));
            hash.update(buf.get(..n).unwrap_or_default());
            at += n as u64;
        }
        self.done.bytes += len;
        Ok(hex(&hash.finalize()))
    }

    /// Compares the data of a sparse file; what lies between has to read as zeros where the file
    /// says that it is data.
    fn extents(&mut self, extents: &[Value], file: &mut dyn FileReader, size: u64) -> Result<()> {
        let mut at = 0;
        let mut buf = vec![0; CHUNK];
        for extent in extents {
            let (start, len) = (extent[0].as_u64().unwrap_or(0), extent[1].as_u64().unwrap_or(0));
            zeros(file, at, start, &mut buf)?;
            let got = self.hash(file, start, len)?;
            if extent[2].as_str() != Some(&got) {
                return Err(format!("sha256 at {start} is {got}"));
            }
            at = start.saturating_add(len);
        }
        zeros(file, at, size, &mut buf)
    }

    fn listing(&mut self, dir: &[u8], listed: &BTreeSet<Vec<u8>>) {
        let shown = String::from_utf8_lossy(dir).into_owned();
        let prefix = if dir == b"." { Vec::new() } else { [dir, b"/"].concat() };
        match self.tree.list(dir) {
            Err(e) => self.differences.push(format!("{shown}: {e}")),
            Ok(names) => {
                let mut seen = BTreeSet::new();
                for name in names {
                    let path = [&prefix[..], &name].concat();
                    if !listed.contains(&path) {
                        self.differences.push(format!(
                            "{} should not be there",
                            String::from_utf8_lossy(&path)
                        ));
                    }
                    if !seen.insert(path) {
                        self.differences
                            .push(format!("{shown}: {} twice", String::from_utf8_lossy(&name)));
                    }
                }
                let below = listed.range(prefix.clone()..).take_while(|p| p.starts_with(&prefix));
                for path in
                    below.filter(|p| !p.get(prefix.len()..).unwrap_or_default().contains(&b'/'))
                {
                    if path != b"." && !seen.contains(path) {
                        self.differences
                            .push(format!("{} is not listed", String::from_utf8_lossy(path)));
                    }
                }
            }
        }
    }
}

/// Whether a value agrees; values that a replay sets anew, or that it does not bring back, count.
fn accepted(want: &Value, field: &str, got: &Value) -> bool {
    let varies = want["time_varies"].as_array().is_some_and(|v| v.iter().any(|f| f == field));
    varies || want[field] == *got || want["before_crash"].get(field) == Some(got)
}

fn zeros(file: &mut dyn FileReader, from: u64, to: u64, buf: &mut [u8]) -> Result<()> {
    let mut at = from;
    while let Some(data) = file.next_data(at)?.filter(|d| *d < to) {
        let want = buf.len().min(usize::try_from(to - data).unwrap_or(usize::MAX));
        let n = file.read_at(data, buf.get_mut(..want).unwrap_or_default())?;
        if n == 0 {
            return Err(format!("ends at {data}"));
        }
        if let Some(i) = buf.iter().take(n).position(|b| *b != 0) {
            return Err(format!("not zero at {}", data + i as u64));
        }
        at = data + n as u64;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
