//! Attributes: of `stat`, extended ones, flags.

use super::{Server, errno, missing};
use crate::caller::Caller;
use crate::flags;
use crate::tree::Node;
use cenote_zpl::{Error, SetAttr, SetTime, SetXattr, Time};
use fuser::{Errno, INodeNo, ReplyAttr, ReplyEmpty, ReplyIoctl, ReplyXattr, Request, TimeOrNow};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// How names of attributes that hold ACLs start.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// The list that says who may do what, and so changes the permission bits.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

/// Answers a request for an extended attribute or a list of them.
fn reply_xattr(value: &[u8], size: u32, reply: ReplyXattr) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

/// A time as the kernel sent it. `fuser` counts the nanoseconds of times before 1970 backwards, too;
/// the kernel does not.
fn time(t: SystemTime) -> Time {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => (i64::try_from(d.as_secs()).unwrap_or(i64::MAX), d.subsec_nanos()),
        Err(e) => {
            let d = e.duration();
            let sec = i64::try_from(d.as_secs()).map_or(i64::MIN, |sec| -sec);
            (sec, d.subsec_nanos())
        }
    }
}

fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::To(time(t)),
    }
}

/// What `setattr` is asked to change.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) atime: Option<TimeOrNow>,
    pub(super) mtime: Option<TimeOrNow>,
    pub(super) ctime: Option<SystemTime>,
}

impl Server {
    pub(super) fn reply_getattr(&self, ino: INodeNo, reply: ReplyAttr) {
        let node = match self.tree.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(errno(&e)),
        };
        match self.tree.attr(&node) {
            Ok((attr, _)) => {
                self.told(&attr);
                reply.attr(&self.attr_kept(&node, &attr), &attr);
            }
            Err(e) if self.tree.changes => reply.error(missing(&e)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    pub(super) fn reply_setattr(&self, who: Caller, ino: INodeNo, asked: Asked, reply: ReplyAttr) {
        let set = self.tree.node(ino).map_err(|e| errno(&e)).and_then(|node| {
            let attr = self.set_attr(who, &node, asked)?;
            Ok((node, attr))
        });
        match set {
            Ok((node, attr)) => {
                let kept = self.attr_kept(&node, &attr);
                self.changed(node.branch(), reply, move |reply| reply.attr(&kept, &attr));
            }
            Err(e) => reply.error(e),
        }
    }

    fn set_attr(&self, who: Caller, node: &Node, asked: Asked) -> Result<fuser::FileAttr, Errno> {
        let target = self.changeable(node)?;
        // The kernel leaves this to the file system, which it takes at its word.
        let setid = self.tree.inodes.is_setid(node.ino());
        let owner = asked.uid.is_some() || asked.gid.is_some();
        let clear_ids = setid && (owner || asked.size.is_some() && !who.keeps_ids());
        let set = SetAttr {
            mode: asked.mode.map(|mode| mode & 0o7777),
            uid: asked.uid,
            gid: asked.gid,
            size: asked.size,
            atime: asked.atime.map(set_time),
            mtime: asked.mtime.map(set_time),
            ctime: asked.ctime.map(time),
            clear_ids,
            ..SetAttr::default()
        };
        let attr = target.fs.setattr(target.object, &set).map_err(|e| missing(&e))?;
        let (attr, _) = self.tree.attr_of(node, attr).map_err(|e| errno(&e))?;
        self.told(&attr);
        Ok(attr)
    }

    /// Whether the kernel checks permissions by ACLs. It does so in the whole mount or nowhere; where
    /// there may be grafts, some of them may have ACLs.
    pub(super) fn kernel_asks_for_acls(&self) -> bool {
        self.tree.root.fs.visibility().posix_acl || !crate::can_nest()
    }

    /// Names of extended attributes, each ended by a NUL. Those for the superuser are shown to no
    /// one else.
    fn xattr_names(&self, req: &Request, ino: INodeNo) -> Result<Vec<u8>, Error> {
        let Node::File { fs, object, .. } = self.tree.node(ino)? else { return Ok(Vec::new()) };
        let mut list = Vec::new();
        for name in fs.listxattr(object)? {
            if req.uid() == 0 || !name.starts_with(b"trusted.") {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }

    pub(super) fn reply_listxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        size: u32,
        reply: ReplyXattr,
    ) {
        match self.xattr_names(req, ino) {
            Ok(names) => reply_xattr(&names, size, reply),
            Err(e) => reply.error(errno(&e)),
        }
    }

    pub(super) fn reply_getxattr(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = match self.tree.node(ino) {
            Ok(Node::File { fs, object, .. }) => fs.getxattr(object, name.as_bytes()),
            Ok(_) => Ok(None),
            Err(e) => Err(e),
        };
        match value {
            Ok(Some(value)) => reply_xattr(&value, size, reply),
            Ok(None) => reply.error(Errno::NO_XATTR),
            // For the kernel any other error would be one of the permission check.
            Err(Error::Unsupported(_))
                if name.as_bytes().starts_with(ACL_PREFIX) && self.kernel_asks_for_acls() =>
            {
                reply.error(Errno::NO_XATTR);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    pub(super) fn reply_setxattr(
        &self,
        who: Caller,
        ino: INodeNo,
        (name, value): (&OsStr, &[u8]),
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let set = self.tree.node(ino).map_err(|e| errno(&e)).and_then(|node| {
            let target = self.changeable(&node)?;
            let name = name.as_bytes();
            let clear_setgid = name == ACCESS_ACL
                && target
                    .fs
                    .attr(target.object)
                    .is_ok_and(|a| a.mode & 0o2000 != 0 && !who.keeps_setgid(a.gid));
            let how = SetXattr {
                create: flags & XATTR_CREATE != 0,
                replace: flags & XATTR_REPLACE != 0,
                clear_setgid,
            };
            target.fs.set_xattr(target.object, name, value, how).map_err(|e| errno(&e))?;
            Ok(node)
        });
        match set {
            Ok(node) => self.changed(node.branch(), reply, ReplyEmpty::ok),
            Err(e) => reply.error(e),
        }
    }

    pub(super) fn reply_removexattr(&self, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.tree.node(ino).map_err(|e| errno(&e)).and_then(|node| {
            let target = self.changeable(&node)?;
            let name = name.as_bytes();
            target.fs.remove_xattr(target.object, name).map_err(|e| errno(&e))?;
            Ok(node)
        });
        match removed {
            Ok(node) => self.changed(node.branch(), reply, ReplyEmpty::ok),
            Err(e) => reply.error(e),
        }
    }

    pub(super) fn reply_ioctl(&self, ino: INodeNo, command: u32, data: &[u8], reply: ReplyIoctl) {
        let node = match self.tree.node(ino) {
            Ok(node @ Node::File { .. }) => node,
            Ok(_) => return reply.error(Errno::ENOTTY),
            Err(e) => return reply.error(errno(&e)),
        };
        let Node::File { fs, object, .. } = &node else { return reply.error(Errno::ENOTTY) };
        let attr = match fs.attr(*object) {
            Ok(attr) => attr,
            Err(e) => return reply.error(missing(&e)),
        };
        if let Some(answer) = flags::answer(command, &attr) {
            return reply.ioctl(0, &answer);
        }
        let set = match flags::change(command, data, &attr) {
            Some(Ok(set)) => set,
            Some(Err(e)) => return reply.error(e),
            None => return reply.error(Errno::ENOTTY),
        };
        let done = self
            .changeable(&node)
            .and_then(|t| t.fs.setattr(t.object, &set).map_err(|e| missing(&e)));
        match done {
            Ok(_) => {
                // The time of the change; the kernel does not know that there was one.
                self.tree.attr_changed(node.ino());
                self.changed(node.branch(), reply, |reply| reply.ioctl(0, &[]));
            }
            Err(e) => reply.error(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_before_1970_are_what_the_kernel_sent() {
        assert_eq!(time(UNIX_EPOCH + Duration::new(5, 7)), (5, 7));
        // Five and a half seconds before: the kernel sends -6 and half a second.
        assert_eq!(time(UNIX_EPOCH - Duration::new(6, 500_000_000)), (-6, 500_000_000));
        assert_eq!(time(UNIX_EPOCH - Duration::new(6, 0)), (-6, 0));
    }
}
