//! Writing a pool.
mod gate;
mod policy;
mod space;
