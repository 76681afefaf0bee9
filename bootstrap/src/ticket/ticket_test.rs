use super::*;
use crate::identity::Identity;
use proptest::prelude::*;
use starling_protocol::run::AdmissionSpec;
use starling_protocol::sample;
use zeroize::Zeroizing;

fn identity(fill: u8) -> Identity {
    Identity::from_secret(Zeroizing::new([fill; 32])).unwrap()
}

fn spec(mode: AdmissionMode) -> RunSpec {
    let spec = sample::spec();
    RunSpec { creator: Some(identity(1).node_id()), admission: AdmissionSpec { mode, ..spec.admission }, ..spec }
}

fn at(peer: u8, address: &str) -> PeerAddress {
    PeerAddress { peer: identity(peer).peer_id(), address: address.parse().unwrap() }
}

fn own(addresses: &[&str]) -> Vec<Multiaddr> {
    addresses.iter().map(|address| at(1, address).full()).collect()
}

fn known() -> [PeerAddress; 2] {
    [at(2, "/ip4/198.51.100.200/tcp/65001"), at(3, "/ip4/203.0.113.250/tcp/65002")]
}

fn ticket() -> Ticket {
    Ticket::new(spec(AdmissionMode::Open).digest(), &own(&["/ip4/192.0.2.7/tcp/7400"]), &known(), None).unwrap()
}

/// The longest terms that a creator can sign for any node.
fn admission(by: &Identity, run: &Digest, holder: Option<NodeId>) -> Admission {
    Admission::of(&AdmissionTicket::sign(&by.signer(), run, u64::MAX, holder, u64::MAX, u32::MAX))
}

#[test]
fn tickets_are_short() {
    let run = Digest([0xfe; 32]);
    let chars = |addresses: &[&str], known: &[PeerAddress], admission| {
        let ticket = Ticket::new(run, &own(addresses), known, admission).unwrap();
        let text = ticket.to_string();
        assert_eq!(text.parse::<Ticket>().unwrap(), ticket);
        (text.len(), ticket.addresses.len())
    };
    let tcp = "/ip4/192.0.2.7/tcp/65000";
    assert_eq!(chars(&[tcp], &[], None), (115, 1));
    assert_eq!(chars(&["/ip6/2001:db8::7/udp/65000/quic-v1"], &[], None), (131, 1));
    let (named, _) = chars(&["/dns4/a-name-of-thirty-five.chars.example/tcp/65000"], &[], None);
    assert!(named <= 160, "{named}");
    assert_eq!(chars(&[tcp], &known(), None), (219, 3));
    let every_kind = ["/ip4/10.0.0.7/tcp/65000", "/ip4/192.0.2.7/udp/65000/quic-v1", tcp];
    assert_eq!(chars(&every_kind, &known(), None), (237, 5));
    let many: Vec<PeerAddress> = (2..40).map(|peer| at(peer, "/ip6/2001:db8::7/tcp/1")).collect();
    let (most, _) = chars(&every_kind, &many, None);
    assert!(most <= TICKET_CHARS && TICKET_CHARS == 260, "{most}");

    let admits = || Some(admission(&identity(1), &run, Some(identity(9).node_id())));
    let (one, three) = (chars(&[tcp], &[], admits()).0, chars(&[tcp], &known(), admits()).0);
    assert!(one <= 115 + ADMISSION_CHARS && three <= 219 + ADMISSION_CHARS && ADMISSION_CHARS == 120, "{one}, {three}");
    assert!(chars(&every_kind, &many, admits()).0 <= TICKET_CHARS + ADMISSION_CHARS);
}

#[test]
fn a_ticket_survives_wrapping() {
    let ticket = ticket();
    let text = ticket.to_string();
    let wrapped: String = text.as_bytes().chunks(72).flat_map(|l| [l, b"\r\n  "].concat()).map(char::from).collect();
    assert_eq!(wrapped.parse::<Ticket>().unwrap(), ticket);
}

#[test]
fn a_ticket_that_is_cut_anywhere_says_so() {
    let text = ticket().to_string();
    for here in 1..text.len() {
        let error = text[..here].parse::<Ticket>().unwrap_err();
        match error {
            TicketError::Beginning => assert!(here < PREFIX.len() + HEAD_CHARS, "{here}"),
            TicketError::Cut { here: told, of } => assert_eq!((told, of), (here, text.len())),
            other => panic!("cut at {here}: {other}"),
        }
    }
    assert!(matches!("".parse::<Ticket>(), Err(TicketError::NotATicket)));
    // Lost in the middle, as by a terminal that shows only a part of a line.
    let error = format!("{}{}", &text[..40], &text[60..]).parse::<Ticket>().unwrap_err();
    assert!(error.to_string().contains("the ticket is cut: 199 of its 219 characters are here"), "{error}");
}

#[test]
fn every_changed_letter_is_told_from_a_cut() {
    let text = ticket().to_string();
    for at in PREFIX.len()..text.len() {
        for letter in "AZaz09-_!.".chars().filter(|letter| !text[at..].starts_with(*letter)) {
            let damaged = format!("{}{letter}{}", &text[..at], &text[at + 1..]);
            let said = damaged.parse::<Ticket>().unwrap_err().to_string();
            assert!(said.contains("damaged"), "{letter} at {at}: {said}");
        }
    }
    let longer = format!("{text}AA").parse::<Ticket>().unwrap_err();
    assert!(matches!(longer, TicketError::Longer { more: 2 }), "{longer}");
    let odd = format!("{}!{}", &text[..40], &text[41..]).parse::<Ticket>().unwrap_err();
    assert!(matches!(odd, TicketError::Character { position: 41 }), "{odd}");
    let dots = format!("{}…{}", &text[..40], &text[41..]).parse::<Ticket>().unwrap_err();
    assert!(matches!(dots, TicketError::Character { position: 41 }), "{dots}");
}

#[test]
fn every_changed_byte_is_refused() {
    let ticket = ticket();
    let bytes = ticket.encode();
    for at in 0..bytes.len() {
        for flip in [1, 0x10, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let error = format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&damaged)).parse::<Ticket>().unwrap_err();
            assert!(matches!(error, TicketError::Checksum), "byte {at}: {error}");
        }
    }
}

#[test]
fn other_releases_and_other_texts_are_told_apart() {
    let said = |text: &str| text.parse::<Ticket>().unwrap_err().to_string();
    for old in ["starling1aiaqc", "STARLING1AIAQC", "starling1", "starling1!"] {
        assert_eq!(said(old), "this ticket is of an older release: ask for a new one");
    }
    assert!(said("starling3AAAA").contains("newer release"), "{}", said("starling3AAAA"));
    assert!(said("hello").contains("this is no ticket") && said("starlings fly").contains("this is no ticket"));
    assert!(matches!("starling".parse::<Ticket>(), Err(TicketError::Beginning)));
    assert!(matches!(format!("{PREFIX}{}", "A".repeat(20_000)).parse::<Ticket>(), Err(TicketError::TooLong)));
}

#[test]
fn a_ticket_needs_an_address_of_its_inviter() {
    let run = Digest([7; 32]);
    assert!(matches!(Ticket::new(run, &[], &[], None), Err(TicketError::NoAddress)));
    let bare: [Multiaddr; 1] = ["/ip4/192.0.2.7/tcp/1".parse().unwrap()];
    assert!(matches!(Ticket::new(run, &bare, &[], None), Err(TicketError::Address(_))));
}

#[test]
fn a_run_that_admits_by_ticket_needs_its_creators_word() {
    let (creator, holder, stranger) = (identity(1), identity(2).node_id(), identity(3));
    let spec_of = spec;
    let spec = spec_of(AdmissionMode::Ticket);
    let run = spec.digest();
    let with = |admission| Ticket::new(run, &own(&["/ip4/192.0.2.7/tcp/1"]), &[], admission).unwrap();
    let shown = |ticket: &Ticket, me: &NodeId| ticket.to_string().parse::<Ticket>().unwrap().admission_for(&spec, me);

    let made_out = with(Some(admission(&creator, &run, Some(holder))));
    let bytes = shown(&made_out, &holder).unwrap();
    assert_eq!(wire::decode_ticket(&bytes).unwrap().holder, Some(holder));
    let other = shown(&made_out, &stranger.node_id()).unwrap_err();
    assert!(matches!(other, TicketError::OtherHolder { .. }), "{other}");

    let for_any = with(Some(admission(&creator, &run, None)));
    assert_eq!(wire::decode_ticket(&shown(&for_any, &holder).unwrap()).unwrap().holder, None);
    for bad in [None, Some(admission(&stranger, &run, None)), Some(admission(&creator, &Digest([9; 32]), None))] {
        assert!(matches!(shown(&with(bad), &holder), Err(TicketError::NoAdmission)));
    }
    // A run that asks for no admission must refuse one: it could smuggle bytes.
    let idle = for_any.admission_for(&spec_of(AdmissionMode::Open), &holder);
    assert!(matches!(idle, Err(TicketError::Malformed(_))));
    assert!(ticket().admission_for(&spec_of(AdmissionMode::Open), &holder).unwrap().is_empty());
}

/// The text of a ticket with this body, whose length and checksum fit.
fn sealed(body: &[u8]) -> String {
    let [low, high] = (body.len() as u16).to_le_bytes();
    let bytes = [&[low, high, low ^ high ^ HEAD_MASK][..], body, &checksum(body)[..]].concat();
    format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&bytes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn hostile_text_is_refused(text in "(starling[0-9])?[A-Za-z0-9_ !-]{0,200}") {
        prop_assert!(text.parse::<Ticket>().is_err());
    }

    #[test]
    fn what_decodes_is_written_in_one_way(body in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(ticket) = sealed(&body).parse::<Ticket>() {
            prop_assert_eq!(ticket.body(), body);
        }
    }

    #[test]
    fn a_forged_body_never_panics_and_is_written_in_one_way(at in any::<prop::sample::Index>(), flip in 1u8..) {
        let run = Digest([5; 32]);
        let admits = Some(admission(&identity(1), &run, None));
        let made = Ticket::new(run, &own(&["/dns4/a.example/tcp/1"]), &known(), admits).unwrap();
        let mut body = made.body();
        prop_assert_eq!(sealed(&body).parse::<Ticket>().unwrap(), made);
        let at = at.index(body.len());
        body[at] ^= flip;
        if let Ok(changed) = sealed(&body).parse::<Ticket>() {
            prop_assert_eq!(changed.body(), body);
        }
    }

    #[test]
    fn too_many_addresses_are_refused(peers in 1usize..40) {
        let addresses = (0..peers).map(|peer| at(peer as u8 + 1, "/ip4/192.0.2.7/tcp/1")).collect();
        let ticket = Ticket { run: Digest([5; 32]), addresses, admission: None };
        prop_assert_eq!(ticket.to_string().parse::<Ticket>().is_ok(), peers <= ADDRESSES_MAX);
    }
}
