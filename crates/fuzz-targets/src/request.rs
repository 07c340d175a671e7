//! Requests as the kernel writes them: what a mount is asked for.

use fuse_abi::linux::{fuse_in_header, fuse_opcode};
use zerocopy::IntoBytes;

/// Sizes of the structures that follow a request's header, in bytes.
const STRUCTURES: [usize; 8] = [0, 4, 8, 16, 24, 32, 40, 88];

fn header(opcode: u32, len: usize) -> fuse_in_header {
    fuse_in_header { len: len as u32, opcode, ..fuse_in_header::default() }
}

/// A request, as it is and with the length that it has.
pub(crate) fn request(data: &[u8]) {
    let check = |bytes: &[u8]| {
        let understood = cenote_fuse::is_request(bytes);
        // Wherever it is in memory.
        let moved = [&[0], bytes].concat();
        assert_eq!(moved.get(1..).map(cenote_fuse::is_request), Some(understood));
        understood
    };
    let understood = check(data);
    let len = (data.len() as u32).to_ne_bytes();
    if let Some((_, rest)) = data.split_at_checked(len.len()) {
        assert!(!understood || check(&[&len, rest].concat()), "only its own length is right");
        check(&[&len, rest].concat());
    }
}

/// A request of each kind, with a structure of each size, a number in it, and names.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for opcode in fuse_opcode::FUSE_LOOKUP as u32..=fuse_opcode::FUSE_STATX as u32 {
        for size in STRUCTURES {
            let mut body = vec![0; size];
            body.iter_mut().take(1).for_each(|first| *first = 2);
            body.extend_from_slice(b"name\0another name\0");
            let header = header(opcode, size_of::<fuse_in_header>() + body.len());
            seeds.push([header.as_bytes(), &body].concat());
        }
    }
    seeds
}
