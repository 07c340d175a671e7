//! The project that a file is in, asked for and set by the `ioctl`s that every file system of Linux knows
//! (`FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`). The program opens the file, so the kernel checks permissions.
//!
//! # Why the unsafe code is sound
//!
//! The kernel reads and writes as many bytes as the number of the `ioctl` says: the bytes of [`FsXattr`], by which the
//! numbers are made. Any bytes are a valid one.

#![allow(unsafe_code)]

use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};
use std::fs::File;
use std::io;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FsXattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u32; 2],
}

const GET: Opcode = opcode::read::<FsXattr>(b'X', 31);
const SET: Opcode = opcode::write::<FsXattr>(b'X', 32);
/// `FS_XFLAG_PROJINHERIT`.
const INHERIT: u32 = 0x200;

/// The project of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its number.
    pub id: u32,
    /// What is made in the directory is in the project as well.
    pub inherits: bool,
}

fn get(file: &File) -> io::Result<FsXattr> {
    // SAFETY: see the head of this file.
    let got = unsafe { ioctl(file, Getter::<GET, FsXattr>::new()) };
    Ok(got?)
}

/// The project that a file is in.
///
/// # Errors
/// Its file system knows no projects.
pub fn project(file: &File) -> io::Result<Project> {
    let found = get(file)?;
    Ok(Project { id: found.project, inherits: found.flags & INHERIT != 0 })
}

/// Puts a file into a project. Its other flags stay.
///
/// # Errors
/// Its file system knows no projects; this user may not.
pub fn set_project(file: &File, project: Project) -> io::Result<()> {
    let found = get(file)?;
    let inherits = if project.inherits { INHERIT } else { 0 };
    let flags = found.flags & !INHERIT | inherits;
    let wanted = FsXattr { flags, project: project.id, ..found };
    // SAFETY: see the head of this file.
    let done = unsafe { ioctl(file, Setter::<SET, FsXattr>::new(wanted)) };
    Ok(done?)
}
