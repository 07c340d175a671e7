//! Reads in flight, so that two readers of one block (or a reader and its own read-ahead) cost one
//! read.
//!
//! Whoever finds no flight for a key becomes its pilot and must land it, which the guard's drop
//! sees to; the others wait for the landing and then look at the cache, or read for themselves if
//! the pilot failed. Invariant: a pilot never waits for another flight while it has one in the air
//! ([`crate::pipeline`] lands its own before it waits), so there is no cycle of waiting.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::{Condvar, Mutex};

use crate::arc::Key;

#[derive(Default)]
pub(crate) struct Flight {
    landed: Mutex<bool>,
    wake: Condvar,
}

impl Flight {
    pub(crate) fn wait(&self) {
        let mut landed = self.landed.lock();
        while !*landed {
            self.wake.wait(&mut landed);
        }
    }
}

#[derive(Default)]
pub(crate) struct Flights {
    flying: Mutex<HashMap<Key, Arc<Flight>, RandomState>>,
}

pub(crate) enum Boarding<'a> {
    Pilot(Pilot<'a>),
    Passenger(Arc<Flight>),
}

pub(crate) struct Pilot<'a> {
    flights: &'a Flights,
    key: Key,
}

impl Flights {
    pub(crate) fn board(&self, key: Key) -> Boarding<'_> {
        let mut flying = self.flying.lock();
        if let Some(flight) = flying.get(&key) {
            return Boarding::Passenger(flight.clone());
        }
        flying.insert(key, Arc::default());
        Boarding::Pilot(Pilot { flights: self, key })
    }
}

impl Drop for Pilot<'_> {
    fn drop(&mut self) {
        if let Some(flight) = self.flights.flying.lock().remove(&self.key) {
            *flight.landed.lock() = true;
            flight.wake.notify_all();
        }
    }
}
