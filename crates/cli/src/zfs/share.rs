//! `zfs share` and `zfs unshare` (`zfs_do_share`, `zfs_do_unshare`). Nothing is shared: what `sharenfs` and `sharesmb` ask for
//! is refused by name. Scripts that share or unshare all file systems (`-a`) go on where no file system asks for a share.

use super::select::{Kinds, Node, Selection, open_or_path, select};
use crate::context::Context;
use crate::options::{Spec, parse};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use std::ffi::OsString;

const SHARE: Spec = Spec { short: "al", refused: "", refused_long: &[] };
const UNSHARE: Spec = Spec { short: "a", refused: "", refused_long: &[] };
const PROTOCOLS: [(&str, &str); 2] = [("nfs", "sharenfs"), ("smb", "sharesmb")];

/// What the user wants shared, or not shared any more.
enum Asked {
    /// All of these protocols: `-a`.
    All(Vec<&'static str>),
    One(String),
}

fn asked(args: &[OsString], spec: Spec) -> Result<Asked, Stop> {
    let parsed = parse(args, spec)?;
    let all = parsed.options.iter().any(|o| o.letter == 'a');
    match (all, parsed.names().as_slice()) {
        (true, []) => Ok(Asked::All(PROTOCOLS.map(|(_, property)| property).to_vec())),
        (true, [name]) => match PROTOCOLS.iter().find(|(known, _)| known == name) {
            Some((_, property)) => Ok(Asked::All(vec![property])),
            None => usage("share type must be one of: nfs, smb"),
        },
        (false, []) => usage("missing filesystem argument"),
        (false, [name]) => Ok(Asked::One(name.clone())),
        _ => usage("too many arguments"),
    }
}

/// The protocols that a file system asks to be shared by.
fn wanted(node: &Node, properties: &[&'static str]) -> Option<&'static str> {
    let is_on = |property: &&&str| {
        node.value(property).ok().flatten().is_some_and(|value| value.exact != "off")
    };
    properties.iter().find(is_on).copied()
}

/// Runs `zfs share`.
pub fn share(args: &[OsString], ctx: &mut Context) -> Outcome {
    let is = |node: &Node, property: &str, value: &str| {
        node.value(property).ok().flatten().is_some_and(|v| v.exact == value)
    };
    let refuse = |node: &Node, property: &str| {
        let name = &node.dataset.name;
        format!("cannot share '{name}': sharing by '{property}' is not supported")
    };
    match asked(args, SHARE)? {
        Asked::All(properties) => {
            let (nodes, mut good) = select(ctx, &[], &Selection::of(Kinds::FILESYSTEM));
            for node in nodes {
                let hidden = ["legacy", "none"].iter().any(|at| is(&node, "mountpoint", at))
                    || !is(&node, "canmount", "on");
                if let Some(property) = wanted(&node, &properties).filter(|_| !hidden) {
                    ctx.complain(refuse(&node, property));
                    good = false;
                }
            }
            Ok(i32::from(!good))
        }
        Asked::One(name) => {
            let node = open_or_path(ctx, &name, Kinds::FILESYSTEM).map_err(Stop::Fail)?;
            match wanted(&node, &["sharenfs", "sharesmb"]) {
                Some(property) => fail(refuse(&node, property)),
                None => fail(format!(
                    "cannot share '{}': legacy share\nuse exports(5) or smb.conf(5) to share this \
                     filesystem, or set the sharenfs or sharesmb property",
                    node.dataset.name
                )),
            }
        }
    }
}

/// Runs `zfs unshare`.
pub fn unshare(args: &[OsString], ctx: &mut Context) -> Outcome {
    let Asked::One(name) = asked(args, UNSHARE)? else { return Ok(0) };
    let node = open_or_path(ctx, &name, Kinds::FILESYSTEM).map_err(Stop::Fail)?;
    let name = &node.dataset.name;
    match wanted(&node, &["sharenfs", "sharesmb"]) {
        Some(_) => fail(format!("cannot unshare '{name}': not currently shared")),
        None => fail(format!(
            "cannot unshare '{name}': legacy share\nuse exports(5) or smb.conf(5) to unshare this \
             filesystem"
        )),
    }
}
