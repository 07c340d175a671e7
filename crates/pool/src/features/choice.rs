//! Which features a pool gets.
//!
//! By default all that this program can write, except those that may keep OpenZFS 2.1, which does not know them, out of a pool
//! though the user did not ask for what they bring (`NOT_BY_DEFAULT`): OpenZFS imports a pool although
//! features are enabled that it does not know, as long as they are not active. So a new pool can be
//! moved to any system that is in use, until something that needs a newer one is switched on.
//! `-o compatibility=` names another set, `-d` enables no feature, and `-o feature@NAME=` adds or leaves out
//! single ones.
//!
//! The same set ([`expected_features`]) is what `zpool upgrade` enables, and a pool that lacks some of it
//! is called outdated: so a pool that was just made is not, and an upgrade does not take a pool to
//! where only the newest systems can read it unless `compatibility` says so.

use cenote_format::features::{FEATURES, Feature, by_guid, by_name};
use std::collections::HashSet;

/// Features that new pools get only if they are asked for: two are active once enabled, and OpenZFS 2.1
/// cannot read pools where they are; of pools with the third it cannot read those with a checkpoint; the
/// fourth becomes active for good when free space is in small pieces.
const NOT_BY_DEFAULT: [&str; 4] =
    ["head_errlog", "vdev_zaps_v2", "raidz_expansion", "dynamic_gang_header"];

/// Features that pools can have, but this program cannot write, and why. `docs/features.md` is this list
/// for people.
const NOT_WRITABLE: [(&str, &str); 1] =
    [("draid_failure_domains", "dRAID has no failure domains here")];

/// Whether this program can write pools in which the feature is active.
pub fn writable(feature: &Feature) -> bool {
    NOT_WRITABLE.iter().all(|(name, _)| *name != feature.name)
}

/// What to say where a feature is asked for that is not known or cannot be written.
pub(crate) fn unsupported(name: &str) -> String {
    let why = NOT_WRITABLE.iter().find(|(n, _)| *n == name).map(|(_, why)| format!(" ({why})"));
    format!("feature '{name}' unsupported by kernel{}", why.unwrap_or_default())
}

/// The names of the features that pools with this value of the property `compatibility` are to have.
///
/// # Errors
/// What OpenZFS says of a value that is not good.
pub fn expected_features(compatibility: Option<&str>) -> Result<HashSet<&'static str>, String> {
    let requested = match compatibility {
        None | Some("" | "off") => {
            let wanted = FEATURES.iter().filter(|f| !NOT_BY_DEFAULT.contains(&f.name));
            wanted.map(|f| f.name).collect()
        }
        Some(names) => check_compatibility(names)?,
    };
    let writable = FEATURES.iter().filter(|f| writable(f) && requested.contains(f.name));
    Ok(writable.map(|f| f.name).collect())
}

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct FeatureChoice<'a> {
    /// `-d`: only features asked for by name.
    pub none: bool,
    /// `-o compatibility=`.
    pub compatibility: Option<&'a str>,
    /// `-o feature@NAME=enabled` (true) or `=disabled`.
    pub named: &'a [(String, bool)],
}

/// The features to be enabled, in the order in which to do so, and warnings (complete lines).
///
/// # Errors
/// A feature that is not known or cannot be written, a compatibility file that cannot be read: the
/// reason, in OpenZFS's words.
pub fn choose_features(
    choice: &FeatureChoice<'_>,
) -> Result<(Vec<&'static Feature>, Vec<String>), String> {
    let expected = expected_features(choice.compatibility)?;
    let any = matches!(choice.compatibility, None | Some("" | "off"));
    let mut warnings = Vec::new();
    let mut chosen: HashSet<&str> = HashSet::new();
    if !choice.none {
        let by_default = FEATURES.iter().filter(|f| expected.contains(f.name));
        chosen.extend(by_default.map(|f| f.guid));
    }
    for (name, enabled) in choice.named {
        let feature = by_name(name).filter(|f| writable(f));
        let feature = feature.ok_or_else(|| unsupported(name))?;
        if !enabled {
            chosen.remove(feature.guid);
            continue;
        }
        if chosen.insert(feature.guid) && !any && !expected.contains(feature.name) {
            warnings.push(format!(
                "Warning: feature \"{name}\" enabled but is not in specified 'compatibility' \
                 feature set."
            ));
        }
    }
    // Every feature comes after those it depends on.
    let mut out: Vec<&'static Feature> = Vec::new();
    for feature in FEATURES.iter().filter(|f| chosen.contains(f.guid)) {
        add(feature, &mut out);
    }
    Ok((out, warnings))
}

fn add(feature: &'static Feature, out: &mut Vec<&'static Feature>) {
    if out.iter().any(|f| f.guid == feature.guid) {
        return;
    }
    // The table has no circles: its own test goes through it.
    feature.depends_on.iter().filter_map(|g| by_guid(g)).for_each(|f| add(f, out));
    out.push(feature);
}

/// The features of a value of the property `compatibility`.
///
/// # Errors
/// What OpenZFS says of one that is not good.
pub fn check_compatibility(value: &str) -> Result<HashSet<&'static str>, String> {
    crate::compat::features(value).ok_or_else(|| {
        let bad = value.split(',').filter(|n| crate::compat::features(n).is_none());
        let names: String = bad.map(|n| format!("{n} ")).collect();
        format!("could not read/parse feature file(s): {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(choice: &FeatureChoice<'_>) -> Vec<&'static str> {
        choose_features(choice).unwrap().0.iter().map(|f| f.name).collect()
    }

    #[test]
    fn by_default_what_can_be_written_and_does_not_keep_others_out() {
        let all = names(&FeatureChoice::default());
        let new: Vec<_> =
            FEATURES.iter().filter(|f| f.since > (2, 1) && all.contains(&f.name)).collect();
        let new: Vec<_> = new.into_iter().map(|f| f.name).collect();
        let expected = [
            "zilsaxattr",
            "blake3",
            "block_cloning",
            "redaction_list_spill",
            "fast_dedup",
            "longname",
            "large_microzap",
            "block_cloning_endian",
            "physical_rewrite",
        ];
        assert_eq!(new, expected);
        assert!(all.contains(&"zstd_compress") && all.contains(&"log_spacemap"));
        assert!(all.contains(&"draid") && all.contains(&"encryption"));
        for f in choose_features(&FeatureChoice::default()).unwrap().0 {
            for needed in f.depends_on {
                let at = |guid: &str| all.iter().position(|n| by_name(n).unwrap().guid == guid);
                assert!(at(needed) < at(f.guid), "{}", f.name);
            }
        }
    }

    #[test]
    fn choices() {
        let none = FeatureChoice { none: true, ..Default::default() };
        assert!(names(&none).is_empty());
        let legacy = FeatureChoice { compatibility: Some("legacy"), ..Default::default() };
        assert!(names(&legacy).is_empty());
        let named = [("bookmarks".to_string(), true)];
        let one = FeatureChoice { named: &named, ..none.clone() };
        assert_eq!(names(&one), ["extensible_dataset", "bookmarks"]);
        let named = [("zstd_compress".to_string(), false)];
        let without = FeatureChoice { named: &named, ..Default::default() };
        assert!(!names(&without).contains(&"zstd_compress"));
        let later =
            FeatureChoice { compatibility: Some("openzfs-2.4-linux"), ..Default::default() };
        let later = names(&later);
        assert!(later.contains(&"blake3") && NOT_BY_DEFAULT.iter().all(|n| later.contains(n)));
    }

    #[test]
    fn refusals_and_warnings() {
        let named = [("no_such".to_string(), true)];
        let choice = FeatureChoice { named: &named, ..Default::default() };
        assert_eq!(
            choose_features(&choice).unwrap_err(),
            "feature 'no_such' unsupported by kernel"
        );
        let named = [("object_vdev".to_string(), true)];
        let choice = FeatureChoice { named: &named, ..Default::default() };
        let error = choose_features(&choice).unwrap_err();
        assert_eq!(error, "feature 'object_vdev' unsupported by kernel");
        let named = [("draid_failure_domains".to_string(), true)];
        let choice = FeatureChoice { named: &named, ..Default::default() };
        assert_eq!(
            choose_features(&choice).unwrap_err(),
            "feature 'draid_failure_domains' unsupported by kernel (dRAID has no failure domains here)"
        );
        let named = [("blake3".to_string(), true)];
        let choice =
            FeatureChoice { named: &named, compatibility: Some("grub2"), ..Default::default() };
        let (features, warnings) = choose_features(&choice).unwrap();
        assert!(features.iter().any(|f| f.name == "blake3"));
        assert!(warnings[0].starts_with("Warning: feature \"blake3\" enabled"));
        let choice = FeatureChoice { compatibility: Some("nope,grub2"), ..Default::default() };
        let error = choose_features(&choice).unwrap_err();
        assert_eq!(error, "could not read/parse feature file(s): nope ");
    }

    /// The table of `docs/features.md` has every feature that new pools lack, and each reason.
    #[test]
    fn features_that_new_pools_lack_are_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/features.md");
        let text = std::fs::read_to_string(path).unwrap();
        let rows: Vec<_> = text
            .lines()
            .filter_map(|l| l.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
            .collect();
        let enabled = names(&FeatureChoice::default());
        let lacking: Vec<_> =
            FEATURES.iter().map(|f| f.name).filter(|n| !enabled.contains(n)).collect();
        let mut documented: Vec<_> = rows.iter().map(|(name, _)| *name).collect();
        documented.sort_by_key(|n| FEATURES.iter().position(|f| f.name == *n));
        assert_eq!(documented, lacking);
        for (name, why) in NOT_WRITABLE {
            let row = rows.iter().find(|(n, _)| *n == name).unwrap();
            assert!(row.1.starts_with(why), "{name}: {}", row.1);
        }
    }
}
