//! Fuzzing the decoders of the on-disk format, of structures in object stores, of send streams, of maps of ddrescue and of the kernel's
//! requests, and what changes blocks in place.
//!
//! A target ([`TARGETS`]) is a plain function of bytes that must return, whatever the bytes are:
//! no panic, no endless loop, no memory beyond a small multiple of the input. Where there is an
//! invariant to check cheaply (decode after encode, one checksum for every division into chunks),
//! the target asserts it.
//!
//! The same functions run in two ways:
//!
//! - `fuzz/` wraps each for `cargo fuzz`, which looks for new inputs by coverage for as long as one
//!   lets it. Seeds for it are written by the program `fuzz-seeds` of this crate.
//! - `cargo test -p cenote-fuzz-targets` drives all of them for some seconds with seeds from the
//!   sample pools ([`seeds`]) and a deterministic mutator ([`mutate`]).

mod change;
mod crypt;
mod l2arc;
mod mapfile;
pub mod mutate;
mod object;
mod request;
pub mod seeds;
mod stream;
mod targets;
pub mod walk;

/// A function under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the target, of its file in `fuzz/fuzz_targets` and of its folder of seeds.
    pub name: &'static str,
    /// Returns for any input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "blkptr", run: targets::blkptr },
    Target { name: "checksum", run: targets::checksum },
    Target { name: "crypt", run: crypt::crypt },
    Target { name: "decompress", run: targets::decompress },
    Target { name: "dnode", run: targets::dnode },
    Target { name: "dsl", run: targets::dsl },
    Target { name: "l2arc", run: l2arc::l2arc },
    Target { name: "label", run: targets::label },
    Target { name: "mapfile", run: mapfile::mapfile },
    Target { name: "nvlist", run: targets::nvlist },
    Target { name: "object", run: object::object },
    Target { name: "request", run: request::request },
    Target { name: "sa", run: targets::sa },
    Target { name: "spacemap", run: targets::spacemap },
    Target { name: "stream", run: stream::stream },
    Target { name: "zap", run: targets::zap },
    Target { name: "zap_change", run: change::zap_change },
    Target { name: "zil", run: targets::zil },
];

/// Runs the target `name` on `data`; what the wrappers in `fuzz/` call.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|t| t.name == name);
    assert!(target.is_some(), "no target {name}");
    if let Some(target) = target {
        (target.run)(data);
    }
}
