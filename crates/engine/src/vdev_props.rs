//! Properties of vdevs (`vdev_prop_set`): entries of the ZAP that a vdev has in the MOS.

use super::{Engine, EngineError, SyncContext};
use cenote_dmu::write::ZapMut;
use cenote_dsl::write::Tx;
use cenote_dsl::write::props::NewValue;
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::{events, history};

impl Engine {
    /// Sets a property of the vdev with this guid, which keeps its properties in the ZAP `zap`; an empty text takes it
    /// away. It is not checked: [`cenote_pool::vdev_props::parse`] does that.
    ///
    /// # Errors
    /// The pool is suspended; the ZAP cannot be read.
    pub fn set_vdev_property(
        &self,
        (guid, zap): (u64, u64),
        name: &str,
        value: NewValue,
    ) -> Result<(), EngineError> {
        let name = name.to_string();
        let apply = move |context: &mut SyncContext<'_>| {
            let (tx, key) = (&mut context.tx, Key::Name(name.as_bytes()));
            let text = match &value {
                NewValue::Number(number) => {
                    ZapMut::open(tx.mos, zap).update(&key, &Value::U64(&[*number]))?;
                    number.to_string()
                }
                NewValue::Text(text) if text.is_empty() => {
                    let mut zap = ZapMut::open(tx.mos, zap);
                    if zap.lookup(&key)?.is_some() {
                        zap.remove(&key)?;
                    }
                    String::new()
                }
                NewValue::Text(text) => {
                    let bytes: Vec<u8> = text.bytes().chain([0]).collect();
                    ZapMut::open(tx.mos, zap).update(&key, &Value::U8(&bytes))?;
                    text.clone()
                }
            };
            let message = format!("vdev_guid={guid}: {name}={text}");
            let record = history::internal("vdev set", &message, None, tx.txg, tx.now);
            let appended = |tx: &mut Tx<'_>| Ok(history::append(tx.mos, &record)?);
            tx.unless_unreadable("the pool's history is not written", appended).map(drop)
        };
        self.sync_task_beside_logs(apply, |()| true)?;
        events::learn(&self.pool());
        Ok(())
    }
}
