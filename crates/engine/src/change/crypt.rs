//! Changing keys of encrypted datasets (`spa_keystore_change_key`).

use super::policy::Operation;
use super::{ChangeError, Changes, Result, find_head, record};
use crate::SpaceCheck;
use cenote_dsl::write::crypt::{self, Change, RootKey};
use std::sync::Arc;

/// What a dataset gets in place of its key.
#[derive(Clone, Debug)]
pub enum NewKey {
    /// A key of its own. Where that is, if the property `keylocation` is to change.
    Root(RootKey, Option<String>),
    /// The key of its parent.
    Inherit,
}

impl Changes {
    /// Changes the key of a dataset, and of all below it that have the same.
    ///
    /// # Errors
    /// `Property` says in OpenZFS's words what is missing: a key that is loaded, an encryption root, a parent that is
    /// encrypted.
    pub fn change_key(&self, name: &str, new: &NewKey) -> Result<()> {
        let refused = |why: &str| ChangeError::Property(why.into());
        let view = self.engine.pool();
        let dsl = view.dsl();
        let dataset = dsl.find(name)?.ok_or(ChangeError::NotFound)?;
        let key = dsl.crypto_key(&dataset)?.ok_or_else(|| refused("Dataset not encrypted."))?;
        let old = dsl.keystore().wrapping(key.root);
        let old = old.ok_or_else(|| refused("Key must be loaded."))?;
        let (change, wrapping) = match new {
            NewKey::Root(with, location) => {
                (Change::New(with.clone(), location.clone()), Arc::clone(&with.wrapping))
            }
            NewKey::Inherit => {
                if key.root != dataset.dir_obj {
                    let why = "Key inheritting can only be performed on encryption roots.";
                    return Err(refused(why));
                }
                let Some((parent, _)) = name.rsplit_once('/') else {
                    return Err(refused("Root dataset cannot inherit key."));
                };
                let parent = dsl.find(parent)?.ok_or(ChangeError::NoParent)?;
                let above = dsl.crypto_key(&parent)?;
                let above = above.ok_or_else(|| refused("Parent must be encrypted."))?;
                let with = dsl.keystore().wrapping(above.root);
                let with = with.ok_or_else(|| refused("Parent key must be loaded."))?;
                (Change::Inherit(with.clone()), with)
            }
        };
        let permit = self.permit(&Operation::Set { name, properties: vec!["keyformat"] })?;
        let (full, dir_obj) = (name.to_string(), dataset.dir_obj);
        let (root, objects) =
            self.task_beside_logs(permit, (SpaceCheck::Reserved, 15), move |context| {
                let tx = &mut context.tx;
                let (dir, head) = find_head(tx, &full)?;
                let changed = crypt::change(tx, dir, &old, &change)?;
                record(tx, "change key", " ", (&full, head))?;
                Ok(Ok(changed))
            })?;
        let view = self.engine.pool();
        view.dsl().keystore().changed(root, &wrapping, &objects);
        if root != dir_obj && key.root == dir_obj {
            view.dsl().keystore().forget(dir_obj);
        }
        Ok(())
    }

    /// The encryption root of a dataset; `None`: it is not encrypted.
    pub(super) fn root_of(&self, name: &str) -> Result<Option<u64>> {
        let view = self.engine.pool();
        let Some(dataset) = view.dsl().find(name)? else { return Ok(None) };
        Ok(view.dsl().crypto_key(&dataset)?.map(|key| key.root))
    }

    /// A promotion made the directory `to` the encryption root of what had `from`: its key is loaded as that was.
    pub(super) fn follow_root(&self, from: u64, to: u64) -> Result<()> {
        let view = self.engine.pool();
        let dsl = view.dsl();
        let Some(wrapping) = dsl.keystore().wrapping(from) else { return Ok(()) };
        let (mut todo, mut objects) = (vec![dsl.root()?], Vec::new());
        while let Some(dataset) = todo.pop() {
            let key = dsl.crypto_key(&dataset)?.filter(|key| key.root == to);
            objects.extend(key.map(|key| key.object));
            todo.extend(dsl.children(&dataset)?);
        }
        dsl.keystore().changed(to, &wrapping, &objects);
        dsl.keystore().forget(from);
        Ok(())
    }
}
