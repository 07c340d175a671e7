//! What a node lets happen to its names: by its flags, its project, and what is in it.

use super::context::Cx;
use super::flags::{APPEND_ONLY, IMMUTABLE, NO_UNLINK, PROJECT_INHERIT};
use super::node::NodeMut;
use crate::sa::ZplAttr;
use crate::{Error, Result};

/// A directory that hands its project on takes nothing of another project.
pub(super) fn check_project(cx: &Cx<'_>, dir: &NodeMut, node: &NodeMut) -> Result<()> {
    let project = |n: &NodeMut| n.word(cx, ZplAttr::ProjId).unwrap_or(0);
    if dir.flags(cx)? & PROJECT_INHERIT != 0 && project(dir) != project(node) {
        return Err(Error::CrossesProject(format!("object {}", node.ino)));
    }
    Ok(())
}

/// Whether the node's flags let it lose a name.
pub(super) fn check_removable(cx: &Cx<'_>, node: &NodeMut) -> Result<()> {
    if node.flags(cx)? & (IMMUTABLE | APPEND_ONLY | NO_UNLINK) != 0 {
        return Err(Error::NotPermitted(format!("flags of object {}", node.ino)));
    }
    Ok(())
}

/// Whether a directory can go.
pub(super) fn check_empty(cx: &Cx<'_>, dir: &NodeMut) -> Result<()> {
    if dir.required(cx, ZplAttr::Size)? == 2 {
        return Ok(());
    }
    Err(Error::NotEmpty(format!("object {}", dir.ino)))
}
