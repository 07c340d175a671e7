//! Vdevs in JSON: the head that `zpool status` and `zpool list -v` give each.

use crate::json::Json;
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_vdev::{Aux, VdevState};
use serde_json::{Map, Value};

/// The class that a top-level vdev, and what is below it, is shown with.
pub fn class_of(top: &NvList) -> &str {
    match top.str("alloc_bias") {
        _ if config::flag(top, "is_hole") => "hole",
        _ if config::flag(top, "is_log") => "log",
        Some(bias) => bias,
        None => "normal",
    }
}

/// The head of a vdev that is shown as `name` (`fill_vdev_info`).
pub fn head(
    json: Json,
    name: &str,
    config: &NvList,
    class: &str,
    state: Option<VdevState>,
) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("name".into(), name.into());
    if let Some(kind) = config.str("type") {
        head.insert("vdev_type".into(), kind.into());
    }
    if let Some(guid) = config.u64("guid").filter(|guid| *guid != 0) {
        head.insert("guid".into(), json.number(guid));
    }
    for key in ["path", "phys_path", "devid"] {
        if let Some(text) = config.str(key) {
            head.insert(key.into(), text.into());
        }
    }
    let class = if config::flag(config, "is_spare") { "spare" } else { class };
    head.insert("class".into(), class.into());
    if let Some(state) = state {
        head.insert("state".into(), state_text(state).into());
    }
    head
}

/// A state as JSON names it.
pub fn state_text(state: VdevState) -> &'static str {
    match state {
        VdevState::Closed => "CLOSED",
        VdevState::Offline => "OFFLINE",
        VdevState::Removed => "REMOVED",
        VdevState::CantOpen(_) => "CANT_OPEN",
        VdevState::Faulted => "FAULTED",
        VdevState::Degraded => "DEGRADED",
        VdevState::Healthy => "ONLINE",
    }
}

/// What is wrong with a vdev, as JSON names it (`vdev_aux_t`); `leaf`: it has no children.
pub fn aux_text(state: VdevState, config: &NvList, leaf: bool) -> Option<&'static str> {
    let aux = match state {
        VdevState::CantOpen(aux) => aux,
        VdevState::Faulted => fault(config),
        VdevState::Degraded if leaf => fault(config),
        _ => Aux::None,
    };
    Some(match aux {
        Aux::None if matches!(state, VdevState::Faulted | VdevState::Degraded) && leaf => {
            "ERR_EXCEEDED"
        }
        Aux::None => return None,
        Aux::OpenFailed | Aux::Missing => "OPEN_FAILED",
        Aux::CorruptData => "CORRUPT_DATA",
        Aux::NoReplicas => "NO_REPLICAS",
        Aux::BadGuidSum => "BAD_GUID_SUM",
        Aux::TooSmall => "TOO_SMALL",
        Aux::BadLabel => "BAD_LABEL",
        Aux::VersionNewer => "VERSION_NEWER",
        Aux::External => "EXTERNAL",
        Aux::SplitPool => "SPLIT_POOL",
    })
}

/// Why a vdev was faulted: by request, or for its errors.
fn fault(config: &NvList) -> Aux {
    match config.str("aux_state") {
        Some("external") => Aux::External,
        _ => Aux::None,
    }
}
