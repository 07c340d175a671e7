//! Changing keys of encrypted datasets (`spa_keystore_change_key`).

use super::policy::Operation;
use super::props::check_root_location;
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
    /// Changes the key of a dataset, and of all below it that have the same (`zfs_ioc_change_key`, `lzc_change_key`).
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
        let (full, keys) = (name.to_string(), Arc::clone(dsl.keystore()));
        let root = self.task_beside_logs(permit, (SpaceCheck::Reserved, 15), move |context| {
            let tx = &mut context.tx;
            let (dir, head) = find_head(tx, &full)?;
            let (root, objects) = crypt::change(tx, dir, &old, &change)?;
            record(tx, "change key", " ", (&full, head))?;
            context.when_kept(move || keys.changed(root, &wrapping, &objects));
            Ok(Ok(root))
        })?;
        let view = self.engine.pool();
        view.dsl().keystore().settled(root);
        // It has its parent's now.
        self.engine.forget_keys_of_gone();
        Ok(())
    }

    /// Gives a dataset that came in a raw package the place among encryption roots that it has at the sender
    /// (`recv_fix_encryption_hierarchy`). `location` is where the key of an encryption root is. What is open stays so, and its
    /// blocks are read and written with the key that it has.
    ///
    /// # Errors
    /// It is not encrypted, or its parent is not; the key cannot be at `location`; the pool is suspended.
    pub fn place_key(&self, name: &str, own: bool, location: Option<&str>) -> Result<()> {
        let view = self.engine.pool();
        let keys = Arc::clone(view.dsl().keystore());
        if let Some(location) = location {
            check_root_location(location)?;
        }
        let permit = self.permit(&Operation::Set { name, properties: vec!["keyformat"] })?;
        let (full, location) = (name.to_string(), location.map(str::to_string));
        self.task_beside_logs(permit, (SpaceCheck::Reserved, 15), move |context| {
            let (dir, _) = find_head(&mut context.tx, &full)?;
            let moved = crypt::force_root(&mut context.tx, dir, own, location.as_deref())?;
            if let Some((root, objects)) = moved {
                context.when_kept(move || {
                    if own {
                        // Its number may have been another encryption root's.
                        keys.forget(root);
                    }
                    keys.rooted(root, &objects);
                });
            }
            Ok(Ok(()))
        })?;
        self.engine.forget_keys_of_gone();
        Ok(())
    }
}
