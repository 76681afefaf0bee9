//! Who may become a member, and on what proof (`protocol.md` §1, §4).

use crate::identity::Verifier;
use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};

/// An invitation that the run's creator has signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Makes this ticket differ from others of equal terms.
    pub nonce: u64,
    /// Whom it admits; None admits whoever shows it.
    pub holder: Option<NodeId>,
    /// The last round in whose record it may be used; 0 = no end.
    pub expires: u64,
    /// How many identities it may admit; 0 = any number.
    pub uses: u32,
    /// By the run's creator, over domain, run and the fields above. Two halves, because serde knows arrays up to 32.
    pub signature: [[u8; 32]; 2],
}
// LOCAL STUB until merge
pub struct NotAdmitted;
impl NotAdmitted {
    pub fn reason(&self) -> &'static str {
        "x"
    }
}
pub fn admit(
    _: &crate::run::RunSpec,
    _: &dyn Verifier,
    _: &Digest,
    _: &crate::record::Record,
    _: &NodeId,
    _: &[u8],
) -> Result<Digest, NotAdmitted> {
    Ok(Digest::default())
}
