//! Attributes: of `stat`, extended ones, flags (`zpl_getattr`, `zpl_setattr`, `zpl_xattr_list`, `zpl_ioctl`).
//!
//! The kernel has checked permissions before it asks. Four things are left to this side:
//!
//! - The set-user-id and set-group-id bits are cleared with a change of owner, or of length by a caller without
//!   privilege.
//! - A time that is set must stay, although the kernel may still hold writes of mappings that were made before. It
//!   is asked to write them first, and the times are set again after that (`times_stay`).
//! - The kernel does not know NFSv4 lists: whether a user may set one is checked here, and the kernel is told that the mode has changed.
//! - Names of attributes of the superuser (`trusted.`) are listed for no other user.
//!
//! Attributes of control directories are the tree's own, and cannot be changed. ACLs that a file system does not
//! keep look to the kernel as if the file had no ACL: any other error would fail its permission check.

use super::change::Target;
use super::direct::CAPABILITY;
use super::reply::changed;
use super::{Server, errno, missing};
use crate::caller::Caller;
use crate::flags;
use crate::node::Node;
use crate::session::{Asked, FileAttr, INodeNo, ReplyAttr, ReplyEmpty, ReplyIoctl, ReplyXattr};
use cenote_zpl::{Error, SetAttr, SetTime, SetXattr};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// How names of attributes that hold ACLs start.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// The list that says which users may do what, and so changes the permission bits.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The NFSv4 list. The kernel does not know it, and checks no permission before a change. The mode follows the list.
const NFS4_ACL: &[u8] = b"system.nfs4_acl_xdr";

/// Answers a request for an extended attribute or a list of them.
fn reply_xattr(value: &[u8], size: u32, reply: ReplyXattr) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        _ => reply.error(Errno::RANGE),
    }
}

/// Whether a request comes from a user that may change the owner to the same one. Of one to set nothing the
/// kernel checks that not, and sends one also before what is a change of the contents
/// by a user without privilege, which need not own the file: that takes away the bits itself.
fn may_chown(who: Caller, target: &Target<'_>) -> bool {
    target.fs.attr(target.object).is_ok_and(|attr| who.owns(attr.uid))
}

/// Only the owner of a file and a caller with `CAP_FOWNER` change its NFSv4 list. What the list allows does not count.
fn check_owner(who: Caller, target: &Target<'_>) -> Result<(), Errno> {
    if may_chown(who, target) { Ok(()) } else { Err(Errno::PERM) }
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
                reply.attr(self.attr_kept(&node, &attr), &attr);
            }
            Err(e) if self.tree.changes => reply.error(missing(&e)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    pub(super) fn reply_setattr(&self, who: Caller, ino: INodeNo, asked: Asked, reply: ReplyAttr) {
        let set = self.tree.node(ino).map_err(|e| errno(&e)).and_then(|node| {
            let attr = self.set_attr(who, &node, &asked)?;
            Ok((node, attr))
        });
        match set {
            Ok((node, attr)) => {
                let kept = self.attr_kept(&node, &attr);
                let answer = move |reply: ReplyAttr| reply.attr(kept, &attr);
                match asked.mtime {
                    // A new length comes while the kernel keeps all pages from being written.
                    Some(SetTime::To(_)) if asked.size.is_none() => {
                        self.times_stay(node, &attr, reply, answer);
                    }
                    _ => self.changed(node.branch(), reply, answer),
                }
            }
            Err(e) => reply.error(e),
        }
    }

    /// Answers that times were set. What was stored in mappings before is no later change, but changes
    /// the times when the kernel writes it: it does so first, and they are set again.
    fn times_stay(
        &self,
        node: Node,
        attr: &FileAttr,
        reply: ReplyAttr,
        answer: impl FnOnce(ReplyAttr) + Send + 'static,
    ) {
        let Node::File { branch, fs, object, .. } = node.clone() else {
            return self.changed(node.branch(), reply, answer);
        };
        if !self.tree.inodes.may_be_mapped(node.ino()) {
            return self.changed(&branch, reply, answer);
        }
        let (mtime, ctime) = (Some(SetTime::To(attr.mtime)), Some(attr.ctime));
        let set = SetAttr { mtime, ctime, ..SetAttr::default() };
        let syncer = self.syncer.clone();
        self.tree.after_contents(
            (node.ino(), 0, 0),
            Box::new(move || match fs.setattr(object, &set) {
                Ok(_) => changed(&syncer, &branch, reply, answer),
                Err(e) => reply.error(missing(&e)),
            }),
        );
    }

    fn set_attr(&self, who: Caller, node: &Node, asked: &Asked) -> Result<FileAttr, Errno> {
        let target = self.changeable(node)?;
        // The kernel leaves this to the file system, which it takes at its word.
        let setid = self.tree.inodes.is_setid(node.ino());
        let owner = || {
            let named = asked.uid.is_some() || asked.gid.is_some();
            named || *asked == Asked::default() && may_chown(who, &target)
        };
        let clear_ids = setid && (owner() || asked.size.is_some() && !who.keeps_ids());
        let set = SetAttr {
            mode: asked.mode.map(|mode| mode & 0o7777),
            uid: asked.uid,
            gid: asked.gid,
            size: asked.size,
            atime: asked.atime,
            mtime: asked.mtime,
            ctime: asked.ctime,
            clear_ids,
            ..SetAttr::default()
        };
        let attr = target.fs.setattr(target.object, &set).map_err(|e| missing(&e))?;
        let (attr, _) = self.tree.attr_of(node, attr).map_err(|e| errno(&e))?;
        self.told(&attr);
        Ok(attr)
    }

    /// Names of extended attributes, each ended by a NUL. Those for the superuser are shown to no
    /// one else.
    fn xattr_names(&self, who: Caller, ino: INodeNo) -> Result<Vec<u8>, Error> {
        let Node::File { fs, object, .. } = self.tree.node(ino)? else { return Ok(Vec::new()) };
        let mut list = Vec::new();
        for name in fs.listxattr(object)? {
            if who.uid == 0 || !name.starts_with(b"trusted.") {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }

    pub(super) fn reply_listxattr(&self, who: Caller, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.xattr_names(who, ino) {
            Ok(names) => reply_xattr(&names, size, reply),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// The value of an extended attribute (`zpl_xattr_get`).
    pub(super) fn reply_getxattr(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = match self.tree.node(ino) {
            Ok(Node::File { fs, object, .. }) => fs.getxattr(object, name.as_bytes()),
            Ok(_) => Ok(None),
            Err(e) => Err(e),
        };
        match value {
            Ok(Some(value)) => reply_xattr(&value, size, reply),
            Ok(None) => reply.error(Errno::NODATA),
            // For the kernel any other error would be one of the permission check.
            Err(Error::Unsupported(_))
                if name.as_bytes().starts_with(ACL_PREFIX) && self.kernel_asks_for_acls =>
            {
                reply.error(Errno::NODATA);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Sets an extended attribute (`zpl_xattr_set`).
    pub(super) fn reply_setxattr(
        &self,
        who: Caller,
        ino: INodeNo,
        (name, value): (&OsStr, &[u8]),
        flags: u32,
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
            if name == NFS4_ACL {
                check_owner(who, &target)?;
            }
            let flags = XattrFlags::from_bits_retain(flags);
            let how = SetXattr {
                create: flags.contains(XattrFlags::CREATE),
                replace: flags.contains(XattrFlags::REPLACE),
                clear_setgid,
            };
            target.fs.set_xattr(target.object, name, value, how).map_err(|e| errno(&e))?;
            if name == CAPABILITY {
                self.tree.inodes.give_capability(node.ino());
            }
            if name == NFS4_ACL {
                self.tree.attr_changed(node.ino());
            }
            Ok(node)
        });
        match set {
            Ok(node) => self.changed(node.branch(), reply, ReplyEmpty::ok),
            Err(e) => reply.error(e),
        }
    }

    pub(super) fn reply_removexattr(
        &self,
        who: Caller,
        ino: INodeNo,
        name: &OsStr,
        reply: ReplyEmpty,
    ) {
        let removed = self.tree.node(ino).map_err(|e| errno(&e)).and_then(|node| {
            let target = self.changeable(&node)?;
            let name = name.as_bytes();
            if name == NFS4_ACL {
                check_owner(who, &target)?;
            }
            target.fs.remove_xattr(target.object, name).map_err(|e| errno(&e))?;
            if name == NFS4_ACL {
                self.tree.attr_changed(node.ino());
            }
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
            Ok(_) => return reply.error(Errno::NOTTY),
            Err(e) => return reply.error(errno(&e)),
        };
        let Node::File { fs, object, .. } = &node else { return reply.error(Errno::NOTTY) };
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
            None => return reply.error(Errno::NOTTY),
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
