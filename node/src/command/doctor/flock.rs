//! The way to others: well-known peers, the nodes of a ticket, and their way to this machine.

use super::finding::Finding;
use super::finding::Verdict::{Bad, Doubtful};
use libp2p::Multiaddr;
use starling_bootstrap::addresses::{self, PeerAddress, Scope};
use starling_bootstrap::checkup::{self, Answer, Outside, Visit};
use starling_bootstrap::config_file;
use starling_bootstrap::discovery::reason::Reason;
use starling_bootstrap::ticket::Ticket;
use std::path::Path;
use std::time::Duration;

/// The time in which a peer has to answer a dial.
const DIAL_BOUND: Duration = Duration::from_secs(5);
/// The time for a test from outside: peers give up an address after ten seconds.
const VISIT_BOUND: Duration = Duration::from_secs(20);

/// The one that named an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Bootstrap,
    Ticket,
}

/// The ticket, or why it cannot be used.
pub fn ticket(text: &str) -> (Finding, Vec<PeerAddress>) {
    match read_ticket(text) {
        Ok(ticket) => {
            let (run, count) = (ticket.run.short(), ticket.addresses.len());
            let what = format!("whole, for run {run}, addresses in it: {count}");
            (Finding::good("ticket", what), ticket.addresses)
        }
        Err(why) => (Finding::told("ticket", Bad, &why), Vec::new()),
    }
}

/// A ticket, or a file that holds one.
fn read_ticket(text: &str) -> Result<Ticket, String> {
    match text.parse::<Ticket>() {
        Err(_) if Path::new(text).is_file() => {
            let text = config_file::read(Path::new(text)).map_err(|e| e.to_string())?;
            text.trim().parse::<Ticket>().map_err(|e| e.to_string())
        }
        parsed => parsed.map_err(|e| e.to_string()),
    }
}

/// Dials all addresses at once. Returns the findings, and the peers that answer.
pub async fn peers(named: &[(Source, PeerAddress)]) -> (Vec<Finding>, Vec<PeerAddress>) {
    let list: Vec<PeerAddress> = named.iter().map(|(_, address)| address.clone()).collect();
    let answers = match checkup::answers(&list, DIAL_BOUND).await {
        Ok(answers) => answers,
        Err(error) => {
            let mend = "check that this process may open sockets and read the system's name servers";
            return (vec![Finding::new("peer", Bad, error.to_string(), mend)], Vec::new());
        }
    };
    let tried: Vec<(Source, &PeerAddress, Answer)> =
        named.iter().zip(answers).map(|((source, address), answer)| (*source, address, answer)).collect();
    let is_here = |answer: &Answer| matches!(answer, Answer::Here(_));
    let of = |(source, address, answer): &(Source, &PeerAddress, Answer)| {
        let others = tried.iter().any(|(other, _, answer)| other == source && is_here(answer));
        peer(*source, address, answer, others)
    };
    let findings = tried.iter().map(of).collect();
    let here = tried.iter().filter(|(_, _, answer)| is_here(answer)).map(|(_, address, _)| (*address).clone());
    (findings, here.collect())
}

/// The finding for one address; `others`: another one of the same source answers, so a node finds its way.
fn peer(source: Source, address: &PeerAddress, answer: &Answer, others: bool) -> Finding {
    let reason = match answer {
        Answer::Here(time) => {
            return Finding::good("peer", format!("{address} answers in {} ms", time.as_millis()));
        }
        Answer::NotTried => {
            let mend = "a node meets it through that relay; nothing is to be done if another address answers";
            return Finding::new("peer", Doubtful, format!("{address} leads through a relay and was not tried"), mend);
        }
        Answer::Failed(reason) => reason,
    };
    let renew = match source {
        Source::Bootstrap => "take it out of the list",
        Source::Ticket => "ask for a new ticket",
    };
    let mend = match reason {
        Reason::Refused => format!("start that peer, or {renew} if it has moved"),
        Reason::TimedOut => format!("ask its owner whether it is on and its port open, or {renew}"),
        Reason::Unreachable => "check this machine's network, and IPv6 if the address is of that kind".to_owned(),
        Reason::NoSuchName => "check the spelling, and this machine's name server".to_owned(),
        Reason::Broken | Reason::OtherVersion(_) => "run the same release of Starling on both".to_owned(),
        _ => format!("ask its owner, or {renew}"),
    };
    Finding::new("peer", if others { Doubtful } else { Bad }, format!("{address}: {reason}"), mend)
}

/// The way to this machine, as far as the peers that answer can tell.
pub async fn outside(listen: Vec<Multiaddr>, here: &[PeerAddress]) -> Vec<Finding> {
    match checkup::visit(listen, here, VISIT_BOUND).await {
        Ok(visit) => of_visit(&visit),
        Err(error) => vec![untried(&error.to_string(), "mend that first")],
    }
}

/// The finding where nobody was asked.
pub fn untried(why: &str, mend: &str) -> Finding {
    Finding::new("outside", Doubtful, format!("not tried: {why}"), mend)
}

fn of_visit(visit: &Visit) -> Vec<Finding> {
    let strangers = visit.strangers.iter().map(|(peer, reason)| {
        let mend = "run the same release of Starling on both";
        Finding::new("peer", Bad, format!("{peer}: {reason}"), mend)
    });
    strangers.chain([way_in(visit.outside())]).collect()
}

fn way_in(outside: Outside) -> Finding {
    let forward = "forward a port of the router to this machine and name it with --advertise; without one, peers that \
                   can be reached are met all the same, others through a relay";
    let doubtful = |what: String, mend: &str| Finding::new("outside", Doubtful, what, mend);
    match outside {
        Outside::Reached(address) if addresses::scope(&address) == Scope::Public => {
            Finding::good("outside", format!("a peer has reached {}", addresses::without_peer(&address)))
        }
        Outside::Reached(address) => {
            let what = format!("a peer on the same network has reached {}", addresses::without_peer(&address));
            doubtful(what, "nothing, if all nodes are on it; else give a --bootstrap peer that is elsewhere")
        }
        Outside::Closed(address) => doubtful(format!("a peer has tried {address} and did not get through"), forward),
        Outside::NoResult => doubtful("the peers have not said within the time".to_owned(), "try again"),
        Outside::NobodyTests | Outside::NobodyMet => {
            let mend = "give --bootstrap with a peer that tests others: `starling-bootstrap` does";
            doubtful("not tried: no peer that was met tests the way to others".to_owned(), mend)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::Good;
    use super::*;
    use libp2p::PeerId;

    fn named() -> PeerAddress {
        let address = "/ip4/192.0.2.7/tcp/7400".parse().expect("an address");
        PeerAddress { peer: PeerId::random(), address }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_bad_if_no_other_does() {
        let failed = |source, reason, others| peer(source, &named(), &Answer::Failed(reason), others);
        let alone = failed(Source::Bootstrap, Reason::Refused, false);
        assert_eq!(alone.verdict, Bad);
        assert!(alone.finding.contains("192.0.2.7") && alone.finding.contains("nothing listens"), "{alone:?}");
        assert_eq!(failed(Source::Bootstrap, Reason::TimedOut, true).verdict, Doubtful);
        let mend = failed(Source::Ticket, Reason::WrongPeer { found: PeerId::random() }, false).mend;
        assert!(mend.is_some_and(|mend| mend.contains("new ticket")));
        let here = peer(Source::Ticket, &named(), &Answer::Here(Duration::from_millis(12)), true);
        assert!(here.verdict == Good && here.mend.is_none() && here.finding.ends_with("answers in 12 ms"), "{here:?}");
        assert_eq!(peer(Source::Ticket, &named(), &Answer::NotTried, false).verdict, Doubtful);
    }

    #[test]
    fn only_a_public_way_in_is_good() {
        let address = |text: &str| -> Multiaddr { text.parse().expect("an address") };
        let public = way_in(Outside::Reached(address("/ip4/8.8.4.4/tcp/7400")));
        assert_eq!((public.verdict, public.finding.as_str()), (Good, "a peer has reached /ip4/8.8.4.4/tcp/7400"));
        let doubtful = [
            (Outside::Reached(address("/ip4/192.168.1.9/tcp/7400")), "the same network"),
            (Outside::Closed(address("/ip4/8.8.4.4/tcp/7400")), "did not get through"),
            (Outside::NoResult, "within the time"),
            (Outside::NobodyTests, "not tried"),
            (Outside::NobodyMet, "not tried"),
        ];
        for (outside, words) in doubtful {
            let found = way_in(outside);
            assert!(found.verdict == Doubtful && found.mend.is_some() && found.finding.contains(words), "{found:?}");
        }
    }

    #[test]
    fn a_text_that_is_no_ticket_is_bad_with_its_mend() {
        let (found, addresses) = ticket("starling1nonsense");
        assert!(found.verdict == Bad && found.mend.is_some() && addresses.is_empty(), "{found:?}");
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("ticket.txt");
        std::fs::write(&file, "hello\n").expect("written");
        let (found, _) = ticket(&file.to_string_lossy());
        assert!(found.verdict == Bad && found.finding.contains("no ticket"), "{found:?}");
    }

    #[tokio::test]
    async fn nobody_at_a_closed_port_is_found_at_once() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
        let address = format!("/ip4/127.0.0.1/tcp/{}", closed.port()).parse().expect("an address");
        let (found, here) = peers(&[(Source::Bootstrap, PeerAddress { peer: PeerId::random(), address })]).await;
        assert!(matches!(&found[..], [one] if one.check == "peer" && one.verdict == Bad), "{found:?}");
        assert!(here.is_empty());
    }
}
