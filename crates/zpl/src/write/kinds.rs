//! Nodes of both kinds are loaded and stored: those with system attributes ([`node`](super::node)), and those from before version 5
//! ([`legacy`]), which stay so only in a file system of such a version.

use super::context::Cx;
use super::legacy;
use super::node::NodeMut;
use crate::{Error, Result};
use cenote_format::dmu::DmuType;
use cenote_format::invariant;

impl NodeMut {
    /// Reads the attributes of `ino` (`zfs_znode_sa_init`). Errors: [`Error::NotFound`] if it is not a node.
    pub(crate) fn load(cx: &mut Cx<'_>, ino: u64) -> Result<NodeMut> {
        let missing = || Error::NotFound(format!("object {ino}"));
        if ino == 0 || ino > u64::MAX / 2 {
            return Err(missing());
        }
        match NodeMut::load_attributes(cx, ino)? {
            Ok(node) => Ok(node),
            Err(DmuType::ZNODE) if cx.has_old_nodes() => legacy::load_as_it_is(cx, ino),
            Err(DmuType::ZNODE) => legacy::load(cx, ino),
            Err(_) => Err(missing()),
        }
    }

    /// Stores what was changed.
    pub(crate) fn store(mut self, cx: &mut Cx<'_>) -> Result<()> {
        invariant!(self.ino != 0, "attributes of a node that is not made are stored");
        match self.old.take() {
            Some(bonus) => legacy::store(cx, &self, bonus),
            None => self.store_attributes(cx),
        }
    }
}
