use super::*;
use futures::{AsyncReadExt, AsyncWriteExt};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

type End = Compat<tokio::io::DuplexStream>;

fn ends() -> (End, End) {
    let (a, b) = tokio::io::duplex(4096);
    (a.compat(), b.compat())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// More bytes than all buffers on the way hold, there and back.
async fn echo(
    mut here: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    mut there: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let said: Vec<u8> = (0..1_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let length = said.len();
    let answer = tokio::spawn(async move {
        let mut heard = vec![0; length];
        there.read_exact(&mut heard).await.unwrap();
        there.write_all(&heard).await.unwrap();
        there.flush().await.unwrap();
        there.close().await.unwrap();
    });
    here.write_all(&said).await.unwrap();
    here.flush().await.unwrap();
    let mut back = Vec::new();
    here.read_to_end(&mut back).await.unwrap();
    answer.await.unwrap();
    assert!(back == said, "{} bytes came back of {length}", back.len());
}

#[test]
fn both_ends_learn_who_the_other_is_and_hear_what_it_says() {
    runtime().block_on(async {
        let (one, two) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
        let (a, b) = ends();
        let dialed = Upgrade::new(&one).unwrap().upgrade_outbound(a, "/tls/1.0.0");
        let accepted = Upgrade::new(&two).unwrap().upgrade_inbound(b, "/tls/1.0.0");
        let ((far, dialed), (near, accepted)) = futures::future::try_join(dialed, accepted).await.unwrap();
        assert_eq!((far, near), (two.public().to_peer_id(), one.public().to_peer_id()));
        let best = suites(has_aes())[0].suite();
        assert_eq!(accepted.get_ref().get_ref().1.negotiated_cipher_suite().map(|suite| suite.suite()), Some(best));
        echo(dialed, accepted).await;
    });
}

#[test]
fn the_upgrade_of_libp2p_is_understood_either_way() {
    runtime().block_on(async {
        let (one, two) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
        let (ours, theirs) = (Upgrade::new(&one).unwrap(), tls::Config::new(&two).unwrap());
        let peers = (two.public().to_peer_id(), one.public().to_peer_id());
        let (a, b) = ends();
        let accepted = async {
            let accepted = theirs.clone().upgrade_inbound(b, "/tls/1.0.0").await;
            accepted.map_err(io::Error::other)
        };
        let dialed = ours.clone().upgrade_outbound(a, "/tls/1.0.0");
        let ((far, dialed), (near, accepted)) = futures::future::try_join(dialed, accepted).await.unwrap();
        assert_eq!((far, near), peers);
        echo(dialed, accepted).await;

        let (a, b) = ends();
        let dialed = async {
            let dialed = theirs.upgrade_outbound(b, "/tls/1.0.0").await;
            dialed.map_err(io::Error::other)
        };
        let accepted = ours.upgrade_inbound(a, "/tls/1.0.0");
        let ((far, accepted), (near, dialed)) = futures::future::try_join(accepted, dialed).await.unwrap();
        assert_eq!((far, near), peers);
        echo(dialed, accepted).await;
    });
}

#[test]
fn chacha_comes_first_where_the_processor_has_no_aes() {
    assert_eq!(suites(false)[0].suite(), TLS13_CHACHA20_POLY1305_SHA256.suite());
    assert_eq!(suites(true)[0].suite(), TLS13_AES_128_GCM_SHA256.suite());
    assert_eq!((suites(false).len(), suites(true).len()), (3, 3));
}

#[test]
fn a_certificate_that_was_touched_proves_nothing() {
    let verify = |certificate: &[u8], more: &[CertificateDer<'_>]| {
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0; 4])));
        let (certificate, now) = (CertificateDer::from(certificate), UnixTime::now());
        PeerCertificate.verify_server_cert(&certificate, more, &name, &[], now).map(drop)
    };
    let (good, _) = tls::certificate::generate(&Keypair::generate_ed25519()).unwrap();
    verify(&good, &[]).unwrap();
    verify(&good, std::slice::from_ref(&good)).unwrap_err();
    // A sequence of the signed part, the name of the algorithm and the signature; lengths have two bytes.
    assert_eq!((good[0], good[1], good[4], good[5]), (0x30, 0x82, 0x30, 0x82));
    let signed = 4..8 + usize::from(u16::from_be_bytes([good[6], good[7]]));
    for at in signed.chain([good.len() - 1]) {
        let mut touched = good.to_vec();
        touched[at] ^= 1;
        verify(&touched, &[]).expect_err("one bit differs");
    }
    for length in 0..good.len() {
        verify(&good[..length], &[]).expect_err("it is cut off");
    }
}
