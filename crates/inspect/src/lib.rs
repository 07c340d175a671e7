//! Looking at a pool: every block that it refers to, and its free space.
//!
//! Floor 7 of cenote: above the pool and the engine that writes it, below file systems and commands.
//! Nothing here changes a pool.
//!
//! | room | what |
//! |---|---|
//! | [`traverse`] | visiting every block, comparing with the space maps (`zdb -b`) |
//! | [`map`] | the map of free space: metaslabs, and whose blocks they hold |

pub mod map;
pub mod traverse;
