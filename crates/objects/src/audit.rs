//! All objects below the prefix against those that the space knows: for tests, and for programs that look for leaks.

use std::collections::BTreeSet;

use object_store::path::Path;

use crate::Error;
use crate::error::Result;
use crate::id::Id;
use crate::index::Lack;
use crate::requests::Class;
use crate::space::Space;

/// What does not match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audit {
    /// Objects that the space names and the listing does not have.
    pub missing: Vec<String>,
    /// Objects that the listing has and the space neither names nor is going to delete.
    pub left: Vec<String>,
}

impl Space {
    /// Lists everything below the prefix and compares it with the index. Reads all pages and costs a request for each thousand
    /// objects.
    ///
    /// # Errors
    /// The store fails, or a page is damaged.
    pub async fn audit(&self) -> Result<Audit> {
        let requests = &self.shared.requests;
        let live = self.named().await?;
        let listed = requests.list(&requests.prefix, None).await?;
        let mut listed: BTreeSet<Path> = listed.into_iter().collect();
        let missing =
            live.iter().map(|id| id.path(&requests.prefix)).filter(|path| !listed.contains(path));
        let missing = missing.map(|path| path.to_string()).collect();
        let roots = ["commit", "commits"].map(|name| requests.prefix.clone().join(name));
        listed.retain(|path| !roots.iter().any(|root| path.prefix_matches(root)));
        let garbage: BTreeSet<Id> =
            self.shared.state.lock().garbage.iter().map(|(_, id)| *id).collect();
        let known = |id: Id| live.contains(&id) || garbage.contains(&id);
        listed.retain(|path| !Id::parse(&requests.prefix, path).is_some_and(known));
        Ok(Audit { missing, left: listed.iter().map(Path::to_string).collect() })
    }

    /// All objects that the last root names.
    pub(crate) async fn named(&self) -> Result<BTreeSet<Id>> {
        let mut live: BTreeSet<Id> = {
            let state = self.shared.state.lock();
            let root = &state.root;
            let objects = root.directory.iter().chain(&root.logs).map(|(id, _)| *id);
            objects.chain(state.index.holders()).collect()
        };
        let keys = self.shared.state.lock().index.keys();
        for key in keys {
            loop {
                let page = self.shared.state.lock().index.page(key);
                match page {
                    Ok(entries) => live.extend(entries.iter().map(|entry| entry.id)),
                    Err(Lack::Absent(keys)) => {
                        self.load(&keys, Class::Background).await?;
                        continue;
                    }
                    Err(Lack::Wrong(why)) => {
                        return Err(Error::Damaged { path: "index".into(), why });
                    }
                }
                break;
            }
            self.evict();
        }
        Ok(live)
    }
}
