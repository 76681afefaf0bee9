use super::*;
use proptest::prelude::*;

const ID: &str = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";

fn address(text: &str) -> Multiaddr {
    text.parse().unwrap()
}

#[test]
fn the_forms_that_starling_speaks_are_accepted() {
    for (text, expected) in [
        ("/ip4/192.0.2.7/tcp/7400".to_string(), Route::Tcp),
        (format!("/ip6/2001:db8::1/tcp/7400/p2p/{ID}"), Route::Tcp),
        ("/dns4/host.example/udp/7400/quic-v1".to_string(), Route::Quic),
        (format!("/dnsaddr/flock.example/p2p/{ID}"), Route::Tcp),
        (format!("/ip4/192.0.2.7/tcp/7400/p2p/{ID}/p2p-circuit/p2p/{ID}"), Route::Relayed),
        (format!("/ip4/192.0.2.7/udp/7400/quic-v1/p2p/{ID}/p2p-circuit"), Route::Relayed),
    ] {
        let parsed = parse(&text).unwrap();
        assert_eq!(route(&parsed), Some(expected), "{text}");
        assert_eq!(parsed.to_string(), text);
        assert_eq!(decode(parsed.as_ref()).unwrap(), parsed);
    }
}

#[test]
fn wrong_addresses_get_the_nearest_right_form() {
    for (text, help) in [
        ("", "it is empty"),
        ("127.0.0.1:7400", "/ip4/127.0.0.1/tcp/7400"),
        ("[::1]:7400", "/ip6/::1/tcp/7400"),
        ("http://192.0.2.7:80/", "/ip4/192.0.2.7/tcp/80"),
        ("host.example:7400", "/dns4/host.example/tcp/7400"),
        ("192.0.2.7", "with a port"),
        ("ip4/192.0.2.7/tcp/1", "start with a slash"),
        ("/ipv4/192.0.2.7/tcp/1", "did you mean `ip4`"),
        ("/ip4/192.0.2.777/tcp/1", "no IPv4 address"),
        ("/ip4/host.example/tcp/1", "/dns4/"),
        ("/ip6/192.0.2.7/tcp/1", "/ip4/"),
        ("/ip4/192.0.2.7/tcp/70000", "1 to 65535"),
        ("/ip4/192.0.2.7/tcp", "needs a value"),
        ("/ip4/192.0.2.7//tcp/1", "empty part"),
        ("/ip4/192.0.2.7/tcp/1/p2p/12D3KooWshort", "no peer id"),
        ("/ip4/192.0.2.7", "no port"),
        ("/ip4/192.0.2.7/udp/7400", "add /quic-v1"),
        ("/ip4/192.0.2.7/udp/7400/quic", "instead of /quic"),
        ("/ip4/192.0.2.7/tcp/7400/ws", "only TCP and QUIC"),
        ("/ip4/192.0.2.7/tcp/7400/p2p-circuit", "relayed address"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(help), "{text}: {error}");
    }
    assert!(parse(&format!("/dns4/{}/tcp/1", "x".repeat(600))).is_err());
    let with_id = format!("/ip4/127.0.0.1/tcp/80/p2p/{ID}");
    for (text, help) in [
        ("localhost:80", "write it as /ip4/0.0.0.0/tcp/80"),
        ("127.0.0.1:80", "write it as /ip4/127.0.0.1/tcp/80"),
        ("/dns4/localhost/tcp/80", "at a number"),
        (with_id.as_str(), "leave /p2p/"),
    ] {
        let error = parse_listen(text).unwrap_err().to_string();
        assert!(error.contains(help), "{text}: {error}");
    }
    assert!(parse_listen("/ip4/0.0.0.0/tcp/0").is_ok() && parse_listen("/ip6/::/udp/0/quic-v1").is_ok());
    // The address that is advised for a peer is not refused by the next message.
    let advised = parse_with_peer("192.0.2.7:7400").unwrap_err().to_string();
    assert!(advised.contains("/ip4/192.0.2.7/tcp/7400/p2p/ID"), "{advised}");
    assert!(matches!(parse(&format!("/dns4/{}/tcp/1", "x".repeat(300))), Err(AddressError::TooLong { .. })));
    assert!(matches!(parse_with_peer("/ip4/192.0.2.7/tcp/1"), Err(AddressError::NoPeer { .. })));
    let one = parse_with_peer(&format!("/ip4/192.0.2.7/tcp/1/p2p/{ID}")).unwrap();
    assert_eq!((one.peer.to_string().as_str(), one.address.to_string().as_str()), (ID, "/ip4/192.0.2.7/tcp/1"));
}

#[test]
fn scopes_of_hosts() {
    for (host, expected) in [
        ("/ip4/8.8.8.8", Scope::Public),
        ("/ip4/10.1.2.3", Scope::Private),
        ("/ip4/172.31.0.1", Scope::Private),
        ("/ip4/172.32.0.1", Scope::Public),
        ("/ip4/100.64.0.1", Scope::Private),
        ("/ip4/127.8.0.1", Scope::Loopback),
        ("/ip4/0.0.0.0", Scope::Unusable),
        ("/ip4/0.0.0.1", Scope::Unusable),
        ("/ip4/224.0.0.251", Scope::Unusable),
        ("/ip4/255.255.255.255", Scope::Unusable),
        ("/ip4/169.254.169.254", Scope::LinkLocal),
        ("/ip4/100.100.100.200", Scope::LinkLocal),
        ("/ip6/::1", Scope::Loopback),
        ("/ip6/::", Scope::Unusable),
        ("/ip6/::ffff:127.0.0.1", Scope::Loopback),
        ("/ip6/::127.0.0.1", Scope::Loopback),
        ("/ip6/64:ff9b::7f00:1", Scope::Loopback),
        ("/ip6/2002:7f00:1::", Scope::Loopback),
        ("/ip6/fe80::1", Scope::LinkLocal),
        ("/ip6/fd00:ec2::254", Scope::LinkLocal),
        ("/ip6/fd12::1", Scope::Private),
        ("/ip6/ff02::1", Scope::Unusable),
        ("/ip6/2001:db8::1", Scope::Public),
        ("/dns4/localhost", Scope::Name),
    ] {
        assert_eq!(scope(&address(&format!("{host}/tcp/1"))), expected, "{host}");
    }
}

#[test]
fn peers_elsewhere_cannot_send_us_to_our_own_services() {
    let ssh = address("/ip4/127.0.0.1/tcp/22");
    assert!(!may_be_learned(&ssh, false));
    assert!(may_be_learned(&ssh, true), "a flock on one machine needs it");
    for never in
        ["/ip4/169.254.169.254/tcp/80", "/ip4/0.0.0.0/tcp/22", "/ip4/192.0.2.7/tcp/0", "/ip4/192.0.2.7/tcp/1/ws"]
    {
        assert!(!may_be_learned(&address(never), true), "{never}");
    }
    assert!(may_be_learned(&address("/ip4/192.168.1.4/tcp/7400"), false));
}

#[test]
fn sharing_prefers_wide_scopes_and_tcp() {
    let mut list = [
        "/ip4/127.0.0.1/tcp/1",
        "/ip4/10.0.0.1/udp/1/quic-v1",
        "/ip4/10.0.0.1/tcp/1",
        "/ip4/192.0.2.7/udp/1/quic-v1",
        "/ip4/192.0.2.7/tcp/1",
    ]
    .map(address);
    sort_for_sharing(&mut list);
    let shown: Vec<String> = list.iter().map(|a| a.to_string()).collect();
    assert_eq!(
        shown,
        [
            "/ip4/192.0.2.7/tcp/1",
            "/ip4/192.0.2.7/udp/1/quic-v1",
            "/ip4/10.0.0.1/tcp/1",
            "/ip4/10.0.0.1/udp/1/quic-v1",
            "/ip4/127.0.0.1/tcp/1"
        ]
    );
}

proptest! {
    #[test]
    fn any_text_and_any_bytes_are_answered(text in ".{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Err(error) = parse(&text) {
            prop_assert!(!error.to_string().is_empty());
        }
        if let Ok(address) = decode(&bytes) {
            prop_assert_eq!(address.to_vec(), bytes);
            prop_assert!(route(&address).is_some());
        }
    }

    #[test]
    fn slashed_nonsense_is_answered(parts in proptest::collection::vec("(ip4|ip6|tcp|udp|quic-v1|p2p|p2p-circuit|dns4|[a-z0-9.]{0,6})", 0..8)) {
        let _ = parse(&format!("/{}", parts.join("/")));
    }
}
