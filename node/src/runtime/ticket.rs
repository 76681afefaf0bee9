//! Makes tickets for `starling invite`, and revokes them.

use crate::watch::status::{Subject, Terms};
use libp2p::Multiaddr;
use starling_bootstrap::addresses::PeerAddress;
use starling_bootstrap::identity::Identity;
use starling_bootstrap::ticket::{Admission, Ticket};
use starling_protocol::admission::{self, Revocation, SubjectKind};
use starling_protocol::amendment::{Amendment, Changes, Settings};
use starling_protocol::run::{AdmissionMode, RunSpec};
use starling_protocol::{Digest, NodeId};

/// The next amendment of a run after these settings, signed by this node in a run with a creator. It counts only if
/// this node is that creator.
pub fn next_amendment(
    identity: &Identity,
    spec: &RunSpec,
    settings: &Settings,
    from: u64,
    changes: Changes,
) -> Amendment {
    let amendment = Amendment::next(settings, from, changes);
    if spec.creator.is_some() { amendment.sign(&identity.signer(), &spec.digest()) } else { amendment }
}

/// Signs tickets with this node's key.
#[derive(Clone)]
pub struct TicketMaker {
    identity: Identity,
    known: Vec<PeerAddress>,
}

impl TicketMaker {
    /// `known` are the peers that this node was given, which go into its tickets.
    pub fn new(identity: &Identity, known: Vec<PeerAddress>) -> Self {
        Self { identity: identity.clone(), known }
    }

    /// A ticket with these addresses of this node's, those of the peers that it was given, and those of `members`, as
    /// far as there is room. In a run that admits by ticket it carries the creator's signed terms, which members check
    /// and count; in any other run it only leads to the flock.
    ///
    /// # Errors
    /// A text for people, if the node may not invite or has no address that another machine could use.
    pub fn make(
        &self,
        spec: &RunSpec,
        (own, members): (&[Multiaddr], Vec<PeerAddress>),
        terms: &Terms,
    ) -> Result<String, String> {
        if spec.creator.is_some_and(|creator| creator != self.identity.node_id()) {
            return Err("only the run's creator may invite: run `starling invite` on its node".into());
        }
        if own.is_empty() {
            return Err(
                "this node has no address yet that others could reach: wait a moment, or give --advertise".into()
            );
        }
        let admission = self.admission(spec, terms)?;
        let known: Vec<PeerAddress> = self.known.iter().cloned().chain(members).collect();
        Ticket::new(spec.digest(), own, &known, admission).map(|t| t.to_string()).map_err(|e| e.to_string())
    }

    /// Shuts a node or a ticket out of the run.
    ///
    /// # Errors
    /// A text for people, if this node is not the run's creator.
    pub fn revoke(&self, spec: &RunSpec, subject: &Subject) -> Result<Revocation, String> {
        if spec.creator != Some(self.identity.node_id()) {
            return Err("only the run's creator (`creator` in the run file) may revoke: do it on its node".into());
        }
        let malformed = || "the subject is not 64 hex digits".to_string();
        let (kind, digest) = match subject {
            Subject::Node { id } => (SubjectKind::Identity, Digest(NodeId::from_hex(id).ok_or_else(malformed)?.0)),
            Subject::Ticket { grant } => (SubjectKind::Ticket, Digest::from_hex(grant).ok_or_else(malformed)?),
        };
        Ok(Revocation::sign(&self.identity.signer(), &spec.digest(), kind, digest))
    }

    /// The next amendment of the run.
    pub fn amend(&self, spec: &RunSpec, settings: &Settings, from: u64, changes: Changes) -> Amendment {
        next_amendment(&self.identity, spec, settings, from, changes)
    }

    /// The admission of a run that asks for one. Members of other runs are shown no ticket, so that nobody could hold a
    /// ticket's holder to its terms.
    fn admission(&self, spec: &RunSpec, terms: &Terms) -> Result<Option<Admission>, String> {
        let lets_in = match spec.admission.mode {
            AdmissionMode::Ticket => None,
            AdmissionMode::Open => Some("everybody who knows it (admission.mode is \"open\")"),
            AdmissionMode::List => Some("the nodes on its list (admission.mode is \"list\")"),
        };
        if let Some(lets_in) = lets_in {
            return match terms.expires > 0 || terms.uses > 0 || terms.holder.is_some() {
                false => Ok(None),
                true => Err(format!(
                    "this run lets in {lets_in}, and a ticket only shows the way, so that none of it could end or be \
                     counted: leave out --expires, --uses and --holder, or found a run with admission.mode = \"ticket\""
                )),
            };
        }
        let holder = match &terms.holder {
            Some(text) => Some(NodeId::from_hex(text).ok_or("the holder is not a node id of 64 hex digits")?),
            None => None,
        };
        let (signer, nonce) = (self.identity.signer(), rand::random());
        let ticket = admission::Ticket::sign(&signer, &spec.digest(), nonce, holder, terms.expires, terms.uses);
        Ok(Some(Admission::of(&ticket)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::run::AdmissionSpec;
    use starling_protocol::{sample, wire};

    const MEMBER: &str = "12D3KooWH3uVF6wv47WnArKHk5p6cvgCJEb74UTmxztmQDc298L3";

    fn spec(mode: AdmissionMode, creator: Option<NodeId>) -> RunSpec {
        let spec = sample::spec();
        RunSpec { creator, admission: AdmissionSpec { mode, ..spec.admission }, ..spec }
    }

    #[test]
    fn terms_hold_where_members_check_them_and_are_refused_elsewhere() {
        let identity = Identity::generate().expect("a key");
        let me = identity.node_id();
        let at = |peer: &str| format!("/ip4/192.0.2.7/tcp/7400/p2p/{peer}");
        let known = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";
        let maker = TicketMaker::new(
            &identity,
            vec![starling_bootstrap::addresses::parse_with_peer(&at(known)).expect("an address")],
        );
        let own: [Multiaddr; 1] = [at(&identity.peer_id().to_string()).parse().expect("an address")];
        let make = |spec: &RunSpec, terms: &Terms| maker.make(spec, (&own, Vec::new()), terms);
        let terms = [
            Terms { expires: 9, ..Terms::default() },
            Terms { uses: 1, ..Terms::default() },
            Terms { holder: Some(me.to_string()), ..Terms::default() },
        ];
        for mode in [AdmissionMode::Open, AdmissionMode::List] {
            let spec = spec(mode, None);
            let plain = make(&spec, &Terms::default()).expect("a ticket");
            let ticket: Ticket = plain.parse().expect("it parses");
            assert_eq!((ticket.run, ticket.addresses.len(), ticket.admission), (spec.digest(), 2, None));
            for terms in &terms {
                let why = make(&spec, terms).expect_err("nobody could hold its holder to them");
                assert!(why.contains("--expires") && why.contains("admission.mode = \"ticket\""), "{why}");
            }
        }
        let spec_of = spec;
        let spec = spec(AdmissionMode::Ticket, Some(me));
        for terms in &terms {
            let ticket: Ticket = make(&spec, terms).expect("a ticket").parse().expect("it parses");
            let shown = ticket.admission_for(&spec, &me).expect("it admits");
            let shown = wire::decode_ticket(&shown).expect("it decodes");
            assert_eq!((shown.expires, shown.uses), (terms.expires, terms.uses));
            assert_eq!(shown.holder.map(|holder| holder.to_string()), terms.holder);
        }
        let member = starling_bootstrap::addresses::parse_with_peer(&at(MEMBER)).expect("an address");
        let with_members = maker.make(&spec, (&own, vec![member.clone()]), &Terms::default()).expect("a ticket");
        assert!(with_members.parse::<Ticket>().expect("it parses").addresses.contains(&member));
        let foreign = spec_of(AdmissionMode::Ticket, Some(NodeId([7; 32])));
        let refused = make(&foreign, &Terms::default());
        assert!(refused.is_err_and(|why| why.contains("only the run's creator")));
        assert!(maker.make(&spec, (&[], Vec::new()), &Terms::default()).is_err_and(|why| why.contains("--advertise")));
    }
}
