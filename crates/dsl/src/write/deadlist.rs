//! Writing deadlists.
