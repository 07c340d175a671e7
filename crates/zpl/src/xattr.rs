//! Extended attributes, by their Linux names.
//!
//! They are stored in two ways, and a file may use both: packed in the system attribute
//! `ZPL_DXATTR` (`xattr=sa`), or as files in a hidden directory that the attribute `ZPL_XATTR` leads
//! to (`xattr=dir`). The packed ones come first.
//!
//! OpenZFS on Linux stores names with their namespace (`user.`, `trusted.`, `security.`, and the two
//! of POSIX ACLs). Other systems store `user` attributes without one, so a name with no namespace
//! that is known here is shown as `user.NAME`; attributes of FreeBSD's system namespace (`freebsd:`) are
//! hidden.

use crate::bits::{S_IFMT, S_IFREG};
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::znode::Znode;
use crate::{Error, Result, acl, nfs4};
use cenote_format::sa::decode_xattrs;
use std::collections::HashSet;

/// Largest value that is read, in bytes. Linux itself takes no more than 64 KiB.
const MAX_VALUE: u64 = 16 << 20;
/// Most names that are listed, in bytes. Linux itself lists no more than 64 KiB.
const MAX_LIST: usize = 16 << 20;
/// Entries read at a time from a hidden directory.
const BATCH: usize = 256;

pub(crate) const USER: &[u8] = b"user.";
const FOREIGN: &[u8] = b"freebsd:";
/// Prefixes that cannot follow `user.`: the bare name would belong to another namespace.
pub(crate) const RESERVED: [&[u8]; 5] = [FOREIGN, b"security.", b"system.", b"trusted.", USER];

/// Names in the order they are found, each once.
#[derive(Default)]
struct Names {
    list: Vec<Vec<u8>>,
    seen: HashSet<Vec<u8>>,
    bytes: usize,
}

impl Names {
    fn push(&mut self, name: Option<Vec<u8>>) {
        if let Some(name) = name.filter(|n| self.seen.insert(n.clone())) {
            self.bytes += name.len();
            self.list.push(name);
        }
    }
}

impl FileSystem {
    /// Names of a file's extended attributes, those for the superuser (`trusted.`) included (`zpl_xattr_list`).
    pub fn listxattr(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        let z = self.attributes(ino)?;
        let mut names = Names::default();
        if self.visibility().nfs4_acl && nfs4::says_more(&z)? {
            names.push(Some(nfs4::NAME.to_vec()));
        }
        self.packed_xattrs(&z, |name, _| names.push(self.shown_name(name)))?;
        if let Some(dir) = self.xattr_dir(&z)? {
            let mut cookie = 0;
            loop {
                let batch = self.readdir(dir, cookie, BATCH)?;
                let Some(last) = batch.last() else { break };
                cookie = last.cookie;
                batch.iter().for_each(|e| names.push(self.shown_name(&e.name)));
                if names.bytes > MAX_LIST {
                    return Err(Error::Unsupported(format!(
                        "{MAX_LIST} bytes of names of extended attributes"
                    )));
                }
            }
        }
        Ok(names.list)
    }

    /// Value of an extended attribute; `None` for an unknown name (`ENODATA`, `zpl_xattr_get_dir`, `zpl_xattr_get_sa`).
    pub fn getxattr(&self, ino: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let visible = self.visibility();
        if let Some(bare) = name.strip_prefix(USER) {
            if !visible.xattr {
                return Err(Error::Unsupported("extended attributes are off".into()));
            }
            if RESERVED.iter().any(|p| bare.starts_with(p)) {
                return Err(Error::Invalid(crate::error::show(name)));
            }
            let z = self.attributes(ino)?;
            return match self.stored_xattr(&z, name)? {
                Some(v) => Ok(Some(v)),
                None => self.stored_xattr(&z, bare),
            };
        }
        if acl::NAMES.contains(&name) {
            if !visible.posix_acl {
                return Err(Error::Unsupported("POSIX ACLs are off".into()));
            }
            let value = self.stored_xattr(&self.attributes(ino)?, name)?;
            return value.map_or(Ok(None), |v| acl::check(ino, v));
        }
        if name == nfs4::NAME {
            return match visible.nfs4_acl {
                true => self.nfs4_xattr(ino).map(Some),
                false => Err(Error::Unsupported("NFSv4 ACLs are off".into())),
            };
        }
        if !name.starts_with(b"trusted.") && !name.starts_with(b"security.") {
            return Err(Error::Unsupported(crate::error::show(name)));
        }
        self.stored_xattr(&self.attributes(ino)?, name)
    }

    /// The Linux name of a stored name; `None` if it is not shown.
    fn shown_name(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let visible = self.visibility();
        let as_stored = |allowed: bool| allowed.then(|| stored.to_vec());
        if stored.starts_with(USER) {
            as_stored(visible.xattr)
        } else if stored.starts_with(b"trusted.") || stored.starts_with(b"security.") {
            as_stored(true)
        } else if acl::NAMES.contains(&stored) {
            as_stored(visible.posix_acl)
        } else {
            (visible.xattr && !stored.starts_with(FOREIGN)).then(|| [USER, stored].concat())
        }
    }

    /// Calls `f` with each name and value that is packed into the system attribute.
    fn packed_xattrs(&self, z: &Znode, mut f: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let Some(packed) = z.bytes(ZplAttr::Dxattr)? else { return Ok(()) };
        let pairs = decode_xattrs(&packed).map_err(Error::decode(z.object().number()))?;
        pairs.into_iter().for_each(|(name, value)| f(name, value));
        Ok(())
    }

    /// The hidden directory of extended attributes.
    fn xattr_dir(&self, z: &Znode) -> Result<Option<u64>> {
        Ok(z.word(ZplAttr::Xattr)?.filter(|dir| *dir != 0))
    }

    fn stored_xattr(&self, z: &Znode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.packed_xattrs(z, |n, value| {
            if found.is_none() && n == name {
                found = Some(value.to_vec());
            }
        })?;
        let (None, Some(dir)) = (&found, self.xattr_dir(z)?) else { return Ok(found) };
        let ino = match self.lookup(dir, name) {
            Ok(ino) => ino,
            Err(Error::NotFound(_)) => return Ok(None),
            Err(e) => return Err(e),
        };
        self.xattr_file(ino).map(Some)
    }

    /// The contents of a file in a hidden directory.
    fn xattr_file(&self, ino: u64) -> Result<Vec<u8>> {
        let z = self.znode(ino)?;
        let size = z.required(ZplAttr::Size)?;
        if z.mode()? & S_IFMT != S_IFREG {
            return Err(Error::Corrupt(ino, "an extended attribute that is not a file".into()));
        }
        if size > MAX_VALUE {
            return Err(Error::Unsupported(format!("an extended attribute of {size} bytes")));
        }
        let mut value = vec![0; size as usize];
        z.object().read(0, &mut value)?;
        Ok(value)
    }
}
