use super::*;
use proptest::prelude::*;
use starling_protocol::run::{AdmissionSpec, RunSpec};
use starling_protocol::{admission, sample};
use zeroize::Zeroizing;

fn identity(fill: u8) -> Identity {
    Identity::from_secret(Zeroizing::new([fill; 32])).unwrap()
}

fn spec(creator: Option<NodeId>) -> Vec<u8> {
    spec_with(creator, AdmissionMode::Open)
}

fn spec_with(creator: Option<NodeId>, mode: AdmissionMode) -> Vec<u8> {
    let spec = sample::spec();
    wire::encode_spec(&RunSpec { creator, admission: AdmissionSpec { mode, ..spec.admission }, ..spec })
}

fn addresses(n: u16) -> Vec<Multiaddr> {
    (0..n).map(|i| format!("/ip4/192.0.2.7/tcp/{}/p2p/{}", 7400 + i, identity(9).peer_id()).parse().unwrap()).collect()
}

fn ticket() -> Ticket {
    let creator = identity(1);
    Ticket::new(&creator, spec(Some(creator.node_id())), addresses(3)).unwrap()
}

#[test]
fn a_ticket_survives_text_wrapping_and_capitals() {
    let ticket = ticket();
    let text = ticket.to_string();
    assert!(text.starts_with(PREFIX) && text.len() < 1024, "{}", text.len());
    assert_eq!(text.parse::<Ticket>().unwrap(), ticket);
    assert_eq!(text.to_uppercase().parse::<Ticket>().unwrap(), ticket);
    let wrapped: String = text.as_bytes().chunks(72).flat_map(|l| [l, b"\r\n  "].concat()).map(char::from).collect();
    assert_eq!(wrapped.parse::<Ticket>().unwrap(), ticket);
}

#[test]
fn a_mangled_paste_is_told_from_a_forgery() {
    let text = ticket().to_string();
    assert!(matches!("hello".parse::<Ticket>(), Err(TicketError::NotATicket)));
    assert!(matches!("".parse::<Ticket>(), Err(TicketError::NotATicket)));
    assert!(matches!(PREFIX.parse::<Ticket>(), Err(TicketError::Checksum)));
    for cut in [1, 2, 5, 100] {
        assert!(matches!(text[..text.len() - cut].parse::<Ticket>(), Err(TicketError::Checksum)), "cut {cut}");
    }
    let mut swapped = text.clone().into_bytes();
    let at =
        swapped.windows(2).position(|w| w[0] != w[1] && w[0].is_ascii_lowercase() && w[1].is_ascii_digit()).unwrap();
    swapped.swap(at, at + 1);
    assert!(String::from_utf8(swapped).unwrap().parse::<Ticket>().is_err());
    let odd = format!("{}!{}", &text[..40], &text[41..]);
    assert!(
        matches!(odd.parse::<Ticket>(), Err(TicketError::Character { position: 41 })),
        "{:?}",
        odd.parse::<Ticket>()
    );
    assert!(matches!(format!("{PREFIX}{}", "a".repeat(20_000)).parse::<Ticket>(), Err(TicketError::TooLong)));

    let mut forged = ticket();
    forged.expires = 9;
    assert!(matches!(forged.to_string().parse::<Ticket>(), Err(TicketError::Signature)));
    let mut forged = ticket();
    forged.creator = identity(2).node_id();
    assert!(matches!(forged.to_string().parse::<Ticket>(), Err(TicketError::NotTheCreator { .. })));
}

#[test]
fn only_the_creator_invites_unless_the_run_names_none() {
    let creator = identity(1).node_id();
    let error = Ticket::new(&identity(2), spec(Some(creator)), addresses(1)).unwrap_err();
    assert!(matches!(error, TicketError::NotTheCreator { .. }), "{error}");
    Ticket::new(&identity(2), spec(None), addresses(1)).unwrap();
    assert!(matches!(Ticket::new(&identity(2), spec(None), vec![]), Err(TicketError::NoAddress)));
    assert!(matches!(Ticket::new(&identity(2), vec![1, 2, 3], addresses(1)), Err(TicketError::Run(_))));
    let bare = vec!["/ip4/192.0.2.7/tcp/1".parse().unwrap()];
    assert!(matches!(Ticket::new(&identity(2), spec(None), bare), Err(TicketError::Address(_))));
}

#[test]
fn a_run_that_admits_by_ticket_needs_its_creators_word() {
    let (creator, stranger) = (identity(1), identity(2));
    let spec = spec_with(Some(creator.node_id()), AdmissionMode::Ticket);
    let run = wire::spec_digest(&spec);
    let admitting = |admission| Ticket::admitting(&creator, spec.clone(), addresses(1), 9, admission);
    let signed = |by: &Identity, run: &Digest| {
        wire::encode_ticket(&admission::Ticket::sign(&by.signer(), run, 5, Some(stranger.node_id()), 9, 1))
    };
    let ticket = admitting(signed(&creator, &run)).unwrap();
    let again: Ticket = ticket.to_string().parse().unwrap();
    assert_eq!(again, ticket);
    assert_eq!(wire::decode_ticket(&again.admission).unwrap().holder, Some(stranger.node_id()));
    for bad in [Vec::new(), vec![1, 2, 3], signed(&stranger, &run), signed(&creator, &Digest([9; 32]))] {
        assert!(matches!(admitting(bad), Err(TicketError::NoAdmission)));
    }
    // A run that asks for no admission ticket must refuse one: it could smuggle bytes.
    let open = spec_with(None, AdmissionMode::Open);
    let idle = Ticket::admitting(&creator, open, addresses(1), 9, signed(&creator, &run));
    assert!(matches!(idle, Err(TicketError::Malformed(_))));
}

#[test]
fn addresses_are_capped_and_expiry_is_kept() {
    let ticket = Ticket::until(&identity(1), spec(None), addresses(40), 12).unwrap();
    assert_eq!(ticket.addresses.len(), ADDRESSES_MAX);
    let again: Ticket = ticket.to_string().parse().unwrap();
    assert_eq!(again, ticket);
    assert_eq!(again.expires, 12);
    assert!(ticket.encode().len() <= TICKET_BYTES_MAX && TICKET_BYTES_MAX * 8 / 5 + 16 < TICKET_CHARS_MAX);
}

/// Adds a valid checksum to the bytes, so that they reach the decoder behind it.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_text_is_refused(text in "(starling1)?[a-z2-7 !]{0,200}") {
        prop_assert!(text.parse::<Ticket>().is_err());
    }

    #[test]
    fn hostile_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Ticket::decode(&sealed(bytes)).is_err());
    }

    #[test]
    fn one_changed_byte_is_refused_even_with_a_fitting_checksum(at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut bytes = ticket().encode();
        bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        // Addresses are not signed: a ticket with a changed one may decode. Any other change must not decode.
        if let Ok(changed) = Ticket::decode(&sealed(bytes)) {
            let original = ticket();
            prop_assert_eq!((changed.spec, changed.creator, changed.expires), (original.spec, original.creator, original.expires));
            prop_assert_ne!(changed.addresses, original.addresses);
        }
    }

    #[test]
    fn a_decoded_ticket_encodes_to_the_same_bytes(n in 1u16..20, expires in any::<u64>()) {
        let ticket = Ticket::until(&identity(3), spec(None), addresses(n), expires).unwrap();
        let bytes = ticket.encode();
        prop_assert_eq!(Ticket::decode(&bytes).unwrap().encode(), bytes);
    }
}
