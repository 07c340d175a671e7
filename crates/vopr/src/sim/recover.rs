//! What comes after a loss of power: the pool is imported from what is left, its logs are replayed, and all of it is
//! compared with what the model lets a crash leave. The power may go again meanwhile.

use super::{Done, Sim, lab, tell};
use crate::disk::{Power, SimDisk};
use crate::model::{Change, Data, listing, same_data};
use cenote_pool::ImportOptions;
use cenote_torture::live::Stopped;
use cenote_torture::live::block;
use cenote_torture::live::disk::Image;
use cenote_torture::live::history::{History, Tree};
use cenote_torture::live::model::datasets;
use cenote_torture::live::world::{State, Sync, look_at};
use cenote_zpl::Volume;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Sim {
    /// Has power again, and goes on with what is left.
    pub(super) fn recover(&mut self, rng: &mut SmallRng) -> Done {
        self.figures.crashes += 1;
        let at = self.power.operations();
        let live = std::mem::take(&mut self.live);
        let histories: BTreeMap<String, History> =
            live.into_iter().map(|(name, live)| (name, live.into_history())).collect();
        self.lose_engine();
        for again in 0..4 {
            self.restart(rng);
            if again < 2 && rng.random_ratio(1, 4) {
                self.power.goes_after(rng.random_range(0..300));
            } else if self.store.is_none() {
                self.check_tables()?;
            }
            match self.go_on(&histories, at) {
                Err(Stopped(why)) if self.power.is_off() => {
                    tell(format_args!("the power went again: {why}"));
                    self.live.clear();
                    self.lose_engine();
                }
                done => {
                    self.power.stays();
                    self.in_flight = None;
                    return done.and_then(|()| self.check_logs(false));
                }
            }
        }
        Err(Stopped("the power went although it was to stay".into()))
    }

    fn lose_engine(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.hold_no_more();
            self.figures.groups += engine.pool().uberblock().txg;
        }
    }

    /// Disks with what the loss of power left.
    fn restart(&mut self, rng: &mut SmallRng) {
        self.figures.operations += self.power.operations();
        self.figures.digest = self.figures.digest.rotate_left(7) ^ self.power.digest();
        let seed = rng.random();
        let images: Vec<Image> = self.disks.iter().map(|d| d.left(seed)).collect();
        self.power = Power::on();
        self.devices.bad = None;
        let all = images.into_iter().enumerate();
        let new = |(i, image)| SimDisk::new(i, image, self.power.clone(), (seed, self.plant));
        self.disks = all.map(new).collect();
        self.store = self.store.as_ref().map(|store| store.restarted(&self.power, seed));
        self.lab = lab(&self.disks, self.store.as_ref(), self.blocks, 64 << 20);
    }

    fn go_on(&mut self, histories: &BTreeMap<String, History>, at: usize) -> Done {
        self.import(ImportOptions::default())?;
        self.check_kept()?;
        self.check_devices()?;
        let pool = self.engine()?.pool();
        let (is, before) = (listing(&pool)?, self.model.listing());
        let after = self.in_flight.as_ref().map(|(_, after)| after.clone());
        let is_after = after.as_ref().is_some_and(|after| after.listing() == is);
        let mut model = match &after {
            Some(after) if is_after => after.clone(),
            _ => self.model.clone(),
        };
        if !is_after && is != before {
            let after = after.map(|after| after.listing());
            return Err(Stopped(format!("there is {is:?}, not {before:?}, nor {after:?}")));
        }
        for (dataset, snapshots) in datasets(&pool)? {
            let entry = &model.datasets[&dataset.name];
            for (found, snapshot) in snapshots.iter().zip(&entry.snapshots) {
                same_data(&pool, found, &snapshot.data)?;
            }
        }
        let names: Vec<String> = model.datasets.keys().cloned().collect();
        for name in &names {
            let data = self.recovered(name, &model.datasets[name].data, (histories, at))?;
            let sync = pool.dsl().get(&self.find(name)?, "sync")?.map(|v| v.exact);
            if let Some(entry) = model.datasets.get_mut(name) {
                entry.data = data;
                entry.sync = match sync.as_deref() {
                    Some("always") => Sync::Always,
                    Some("disabled") => Sync::Disabled,
                    _ => Sync::Standard,
                };
            }
        }
        // If the power goes once more all of this is as before.
        let before = std::mem::replace(&mut self.model, model);
        let opened = names.iter().try_for_each(|name| self.open(name));
        if opened.is_err() || self.power.is_off() {
            self.model = before;
        }
        opened
    }

    /// What a dataset holds after a loss of power, if it may hold that.
    fn recovered(
        &self,
        name: &str,
        data: &Data,
        (histories, at): (&BTreeMap<String, History>, usize),
    ) -> Done<Data> {
        let (tree, volume) = self.look(name, data)?;
        let in_flight = self.in_flight.as_ref();
        let former = match in_flight {
            Some((Change::Rename { from, to }, _)) if to == name => from.as_str(),
            _ => name,
        };
        let mut whys = Vec::new();
        let history = histories.get(former).map(|history| history.check(&tree, at));
        let mut may = matches!(history, Some(Ok(())));
        let after = in_flight.and_then(|(_, after)| after.datasets.get(name)).map(|e| &e.data);
        // What was closed for the change is stable, and has no history.
        let closed = self.model.datasets.get(former).filter(|_| history.is_none());
        whys.extend(history.and_then(Result::err));
        let exact = [Some(data), after, closed.map(|e| &e.data)].into_iter().flatten();
        for data in exact.take(if may { 0 } else { 3 }) {
            match same_tree(data, &tree) {
                Ok(()) => may = true,
                Err(Stopped(why)) => whys.push(why),
            }
        }
        if !may {
            return Err(Stopped(format!("{name}: {}", whys.join("; nor "))));
        }
        Ok(match volume {
            Some(content) => Data::Volume(Arc::new(content)),
            None => {
                let mut last = 1_000_000 * self.figures.crashes as u64;
                Data::Files(Arc::new(State::of(&tree, &mut last)))
            }
        })
    }

    /// What a dataset holds, as its users see it.
    fn look(&self, name: &str, data: &Data) -> Done<(Tree, Option<Vec<u8>>)> {
        match data {
            Data::Files(_) => {
                let fs = self.files(name)?;
                fs.drain_unlinked()?;
                Ok((look_at(&fs)?, None))
            }
            Data::Volume(_) => {
                let live = self.engine()?.live(self.find(name)?.ds_obj)?;
                let content = block::bytes(&Volume::open_live(live)?)?;
                Ok((block::tree(content.clone()), Some(content)))
            }
        }
    }
}

fn same_tree(data: &Data, tree: &Tree) -> Done {
    match data {
        Data::Files(state) => state.compare(tree),
        Data::Volume(content) => {
            let is = tree.values().next().and_then(|f| f.seen.content.as_deref());
            block::same_bytes(is.unwrap_or_default(), content)
        }
    }
    .map_err(Stopped)
}
