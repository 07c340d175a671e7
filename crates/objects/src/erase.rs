//! The end of a space: all that it has on the store is deleted, and nothing else.
//!
//! A root that names nothing comes first. It fences other hosts, and if what follows is interrupted, the space is found again and its index, which
//! is empty, can be read: the next call goes on. Then listings say which objects exist, as long as they have something new; what the index
//! names helps where a listing is late, and may be damaged. Roots are last.
//!
//! A [`Wreck`] is a space whose root or index cannot be read: it is good for nothing but this.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::error::{Error, Result};
use crate::frame::{self, Kind};
use crate::head::{self, Head};
use crate::id::{EPOCHS, Id};
use crate::requests::{Requests, unique};
use crate::root::{Root, Totals};
use crate::space::Space;
use crate::tunables::Tunables;

/// How a space that is deleted answers.
pub(crate) const DELETED: &str = "the space was deleted";

/// The same root, naming nothing, of this host.
fn emptied(root: &Root, host: &str) -> Result<Root> {
    Ok(Root {
        sequence: root.sequence + 1,
        host: host.into(),
        mark: unique()?,
        totals: Totals::default(),
        directory: None,
        logs: Vec::new(),
        inline: Vec::new(),
        ..root.clone()
    })
}

/// Deletes all objects below the prefix that have names of a space, those that are `known` among them, then its roots. Returns how many
/// objects there were.
async fn delete_all(requests: &Requests, head: &Head, known: BTreeSet<Path>) -> Result<u64> {
    let ours = |path: &Path| Id::parse(&requests.prefix, path).is_some();
    let (mut paths, mut new) = (known.clone(), known);
    // A listing may be late: what it has is asked for until there is no more.
    for round in 0.. {
        let listed = requests.list(&requests.prefix, None).await?;
        new.extend(listed.into_iter().filter(|path| ours(path) && !paths.contains(path)));
        if new.is_empty() && round > 0 {
            break;
        }
        for some in new.iter().collect::<Vec<_>>().chunks(requests.tunables.uploads.max(1)) {
            try_join_all(some.iter().map(|path| requests.delete(path))).await?;
        }
        if new.is_empty() {
            break;
        }
        paths.append(&mut new);
    }
    // A host that looks for the space finds it, or nothing: never the middle of its roots.
    let [single, first] = Head::lasting(&requests.prefix);
    let mut roots = requests.list(&requests.prefix.clone().join("commits"), None).await?;
    roots.push(head.name(requests));
    roots.retain(|path| *path != single && head::number(&requests.prefix, path).is_some());
    roots.retain(|path| *path != first);
    for root in roots.iter().chain([&first, &single]) {
        requests.delete(root).await?;
    }
    Ok(paths.len() as u64)
}

impl Space {
    /// Deletes all that the space has on the store, its roots last, and nothing else. Nothing is written any more from then on. What is left when it
    /// fails is deleted by the next call, also after the space was found and opened again. Returns how many objects there were.
    ///
    /// # Errors
    /// The store fails; another host has the space.
    pub async fn erase(&self) -> Result<u64> {
        let requests = &self.shared.requests;
        // A commit that is under way ends first.
        let mut turn = self.shared.commit.lock().await;
        let fenced = self.shared.state.lock().fenced.clone();
        let again = match fenced {
            Some(Error::Refused(why)) if why == DELETED => true,
            Some(error) => return Err(error),
            None => false,
        };
        let mut known = BTreeSet::new();
        if !again {
            // A help where listings are late; what is damaged or gone is deleted all the same.
            let named = self.named().await.unwrap_or_else(|_| BTreeSet::new());
            known.extend(named.into_iter().map(|id| id.path(&requests.prefix)));
            let root = self.shared.state.lock().root.clone();
            // A root of this import that was stored without an answer is the one to be replaced. Where there is none, nothing is.
            let found = Head::find(requests).await?;
            let is_there = found.is_some();
            if let Some((head, bytes)) = found
                && Root::decode(&bytes).is_ok_and(|now| now.mark == root.mark)
            {
                turn.head = head;
            }
            if is_there {
                let root: Bytes = emptied(&root, &root.host)?.encode().into();
                turn.head.replace(requests, &root).await?;
            }
            self.shared.state.lock().fenced = Some(Error::Refused(DELETED.into()));
        }
        delete_all(requests, &turn.head, known).await
    }
}

/// A space of which only the end is left: see the head of the module.
pub struct Wreck {
    requests: Requests,
    head: Head,
    root: Option<Root>,
}

impl Wreck {
    /// Looks for what is left of a space, whatever state its root and index are in. None: there is no root.
    ///
    /// # Errors
    /// The store fails; what has the name of a root is no root of a pool, and no objects of one are there.
    pub async fn look(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        tunables: Tunables,
    ) -> Result<Option<Self>> {
        let requests = Requests::new(store, prefix, tunables);
        let Some((head, bytes)) = Head::find(&requests).await? else { return Ok(None) };
        let root = Root::decode(&bytes).ok();
        if root.is_none() && !frame::ends(Kind::Root, &bytes) {
            let listed = requests.list(&requests.prefix, None).await?;
            if !listed.iter().any(|path| Id::parse(&requests.prefix, path).is_some()) {
                let path = head.name(&requests);
                return Err(Error::Refused(format!("object {path} is no root of a pool")));
            }
        }
        Ok(Some(Self { requests, head, root }))
    }

    /// What the user of the space handed over with the last group; empty if the root cannot be read.
    pub fn payload(&self) -> &[u8] {
        self.root.as_ref().map_or(&[], |root| &root.payload)
    }

    /// As [`Space::erase`]. Nothing but the root was read.
    ///
    /// # Errors
    /// The store fails; another host has stored a root since.
    pub async fn erase(&mut self, host: &str) -> Result<u64> {
        let root = match &self.root {
            Some(root) => emptied(root, host)?,
            None => Root::first((unique()?, unique()?), host, EPOCHS - 2, &[]),
        };
        self.head.replace(&self.requests, &root.encode().into()).await?;
        self.root = Some(root);
        delete_all(&self.requests, &self.head, BTreeSet::new()).await
    }
}

/// Whether a pool has its root right below the prefix: then nothing else may be kept there.
///
/// # Errors
/// The store fails.
pub async fn has_root(
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    tunables: Tunables,
) -> Result<bool> {
    let requests = Requests::new(store, prefix, tunables);
    for root in Head::lasting(&requests.prefix) {
        if requests.get(&root).await?.is_some_and(|(bytes, _)| frame::ends(Kind::Root, &bytes)) {
            return Ok(true);
        }
    }
    Ok(false)
}
