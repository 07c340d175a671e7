//! What an interrupted receive left is destroyed (`zfs receive -A`).

use crate::error::{Error, ErrorKind, Result};
use crate::kinds::Kinds;
use crate::session::Session;
use cenote_engine::change::ChangeError;

impl Session<'_> {
    /// Destroys what an interrupted receive into the dataset `name` left.
    ///
    /// # Errors
    /// Nothing was left; the pool cannot be changed.
    pub fn abort_receive(&mut self, name: &str) -> Result<()> {
        let dataset = self.dataset(name, Kinds::HEAD)?;
        let pool = self.pool();
        let what = || format!("cannot destroy '{name}'");
        let cannot = |e: ChangeError| Error::doing(what(), e);
        let unreadable = |e: cenote_dmu::Error| Error::doing(what(), e);
        let clone = format!("{name}/{}", cenote_dsl::resume::CLONE);
        let there = pool.dsl().find(&clone).map_err(unreadable)?.is_some();
        let token = pool.dsl().token_of(&dataset).map_err(unreadable)?;
        if !there && (token.is_none() || !dataset.is_inconsistent()) {
            let why = format!("'{name}' does not have any resumable receive state to abort");
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        let changes = self.changes().map_err(cannot)?;
        changes.destroy(if there { &clone } else { name }).map_err(cannot)
    }
}
