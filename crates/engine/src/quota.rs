//! Whether quotas let a change in (`dsl_dir_tempreserve_impl`, `dsl_dataset_check_quota`).
//!
//! A quota is full when what is used on disk has reached it. What is pending may free as much as it
//! takes, as a file that is overwritten does, so that it refuses no change: where it would fill the quota,
//! changes wait for it to be written, and then ask again. So one change may exceed a quota by what it
//! takes, and all that enter one transaction group may exceed the quota of a directory by a 768th of it:
//! near a quota groups would be very small otherwise.

use cenote_dsl::Quotas;

/// What quotas say to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It may enter.
    Fits,
    /// It may ask again when what is pending is on disk.
    Later,
    /// A quota is full.
    Full,
}

/// Part of the quota of a directory by which what is pending may exceed it: one in so many. OpenZFS has a
/// 32nd, but counts what is pending 24 times (`spa_asize_inflation`).
const BEYOND: u64 = 32 * 24;

/// Asks all quotas of a dataset. `own` bytes are pending of the dataset itself, and `below` says how
/// many are in and below a directory.
pub(super) fn ask(quotas: &Quotas, own: u64, below: impl Fn(u64) -> u64) -> Answer {
    let full = |used: u64, pending: u64, quota: u64, most: u64| match pending {
        0 if used >= quota => Answer::Full,
        _ if used >= quota || used.saturating_add(pending) >= most => Answer::Later,
        _ => Answer::Fits,
    };
    let own = quotas.own.map(|(quota, used)| full(used, own, quota, quota));
    let dirs = quotas.dirs.iter().filter_map(|(dir, quota, used)| {
        quota.map(|quota| full(*used, below(*dir), quota, quota.saturating_add(quota / BEYOND)))
    });
    let answers: Vec<Answer> = own.into_iter().chain(dirs).collect();
    let any = |answer| answers.contains(&answer);
    match (any(Answer::Full), any(Answer::Later)) {
        (true, _) => Answer::Full,
        (false, true) => Answer::Later,
        (false, false) => Answer::Fits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_full_when_what_is_on_disk_has_reached_it() {
        let of = |used, pending| {
            let quotas =
                Quotas { own: None, dirs: vec![(7, Some(76_800), used), (1, None, 1 << 40)] };
            ask(&quotas, 0, |dir| if dir == 7 { pending } else { 0 })
        };
        assert_eq!([of(0, 0), of(76_799, 0), of(76_799, 100)], [Answer::Fits; 3]);
        assert_eq!([of(76_799, 101), of(0, 76_900), of(76_800, 1)], [Answer::Later; 3]);
        assert_eq!([of(76_800, 0), of(90_000, 0)], [Answer::Full; 2]);
    }

    #[test]
    fn a_refquota_asks_about_the_dataset_alone() {
        let of = |used, own| {
            let quotas = Quotas { own: Some((3200, used)), dirs: vec![(1, Some(1000), 10)] };
            ask(&quotas, own, |_| 0)
        };
        assert_eq!([of(3199, 0), of(100, 3000)], [Answer::Fits; 2]);
        assert_eq!([of(3199, 1), of(3300, 1)], [Answer::Later; 2]);
        assert_eq!(of(3200, 0), Answer::Full);
    }
}
