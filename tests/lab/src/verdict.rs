//! The verdict of one rule on a history.

use serde::{Deserialize, Serialize};

/// The verdict of one rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub ok: bool,
    pub detail: String,
}

pub(crate) fn verdict(name: &str, wrong: Option<String>, fine: String) -> Check {
    Check { name: name.into(), ok: wrong.is_none(), detail: wrong.unwrap_or(fine) }
}
