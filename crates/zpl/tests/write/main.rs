//! File systems changed at random, over several transaction groups, and compared in full with a
//! simple model: as they are live, and as they are read from disk afterwards.
#![allow(clippy::unwrap_used)]

mod acl;
mod beside;
mod damage;
mod names;
mod nfs4;
mod openzfs;
mod random;
mod special;
mod volumes;
mod world;
