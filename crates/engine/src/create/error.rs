//! Why devices cannot be made into a pool, in the words of `zpool create` and `zpool add`.

/// Why a pool cannot be created or devices cannot be added. `Display` is all that the command prints
/// to standard error, without the last newline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The specification makes no sense, or a device could not be opened.
    #[error("{0}")]
    Spec(String),
    /// Errors that `-f` overrides, or would have if it could; one a line.
    #[error("invalid vdev specification\n{}{}", heading(*.forced), errors.join("\n"))]
    Override {
        /// Whether `-f` was given: then these are errors that it does not override.
        forced: bool,
        /// What is wrong.
        errors: Vec<String>,
    },
    /// It was tried, and refused.
    #[error("cannot {what}: {why}")]
    Refused {
        /// `create 'tank'`, `add to 'tank'`.
        what: String,
        /// The reason.
        why: String,
    },
    /// It was begun, and failed.
    #[error("cannot create pool: {0}")]
    Failed(String),
}

fn heading(forced: bool) -> &'static str {
    match forced {
        false => "use '-f' to override the following errors:\n",
        true => "the following errors must be manually repaired:\n",
    }
}

impl CreateError {
    pub(super) fn spec(why: impl std::fmt::Display) -> CreateError {
        CreateError::Spec(format!("invalid vdev specification: {why}"))
    }
}
