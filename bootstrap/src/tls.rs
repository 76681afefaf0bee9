//! TLS 1.3 as libp2p specifies it (`/tls/1.0.0`): a self-signed certificate whose extension proves the node's key.
//!
//! libp2p's own upgrade is the same handshake, but it offers ChaCha20 before AES, which takes several times as long
//! where the processor has instructions for AES. It also reads from the system in pieces of 4 KiB. Peers with libp2p's
//! upgrade and peers with this one understand each other.

use futures::future::BoxFuture;
use futures::io::{BufReader, BufWriter};
use futures::{AsyncRead, AsyncWrite, FutureExt};
use futures_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use libp2p::core::UpgradeInfo;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
use libp2p::identity::Keypair;
use libp2p::{PeerId, tls};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::pki_types::{CertificateDer, IpAddr, Ipv4Addr, ServerName, UnixTime};
use rustls::{
    ClientConfig, CommonState, DigitallySignedStruct, Error, NoKeyLog, PeerIncompatible, ServerConfig, SignatureScheme,
    SupportedCipherSuite,
};
use std::io;
use std::sync::Arc;

/// Bytes that one read takes from the system.
const READ_BYTES: usize = 128 << 10;
/// Bytes that are collected before they are sealed, unless there is a flush. A muxer writes its short headers by
/// themselves, and each write would become a record, and a call of the system, of its own. Votes wait behind the bytes
/// collected here.
const WRITE_BYTES: usize = 64 << 10;
/// Bytes that may wait, sealed, for the system to take them.
const SEALED_BYTES_MAX: usize = 64 << 10;

/// The reason why connections could not be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("no certificate could be made of the node's key: {0}")]
    Certificate(#[from] tls::certificate::GenError),
    #[error("the encryption library does not take its settings: {0}")]
    Settings(#[from] rustls::Error),
}

/// A connection after the handshake.
pub type Output<C> = BufWriter<TlsStream<BufReader<C>>>;

/// Upgrades connections in either direction.
#[derive(Clone)]
pub struct Upgrade {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Upgrade {
    /// # Errors
    /// See [`Failed`].
    pub fn new(keypair: &Keypair) -> Result<Self, Failed> {
        // The server takes the client's first choice, so that only the client needs settings of its own.
        let mut server = tls::make_server_config(keypair)?;
        // No environment variable makes this node write its keys to a file. Each connection proves its key anew: a
        // client files the sessions that it remembers under names, and here all peers have the same name.
        server.key_log = Arc::new(NoKeyLog);
        server.send_tls13_tickets = 0;
        let theirs = tls::make_client_config(keypair, None)?;
        let mut provider = aws_lc_rs::default_provider();
        provider.cipher_suites = suites(has_aes());
        let mut client = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PeerCertificate))
            .with_client_cert_resolver(Arc::clone(&theirs.client_auth_cert_resolver));
        client.alpn_protocols = theirs.alpn_protocols;
        client.resumption = Resumption::disabled();
        Ok(Self { server: Arc::new(server), client: Arc::new(client) })
    }
}

/// The cipher suites, best first.
fn suites(aes: bool) -> Vec<SupportedCipherSuite> {
    let mut suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    if !aes {
        suites.rotate_right(1);
    }
    suites
}

/// Whether the processor has instructions for AES and for the products of its authentication. Without them ChaCha20 is
/// faster.
pub fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

impl UpgradeInfo for Upgrade {
    type Info = &'static str;
    type InfoIter = std::iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once("/tls/1.0.0")
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> InboundConnectionUpgrade<C> for Upgrade {
    type Output = (PeerId, Output<C>);
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Output>>;

    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        let limited = |session: &mut rustls::ServerConnection| session.set_buffer_limit(Some(SEALED_BYTES_MAX));
        async move {
            let acceptor = TlsAcceptor::from(self.server);
            let stream = acceptor.accept_with(BufReader::with_capacity(READ_BYTES, socket), limited).await?;
            Ok((peer(stream.get_ref().1)?, BufWriter::with_capacity(WRITE_BYTES, stream.into())))
        }
        .boxed()
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> OutboundConnectionUpgrade<C> for Upgrade {
    type Output = (PeerId, Output<C>);
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Output>>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        let limited = |session: &mut rustls::ClientConnection| session.set_buffer_limit(Some(SEALED_BYTES_MAX));
        async move {
            // libp2p sends no server name; the same happens for an address.
            let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0; 4])));
            let connector = TlsConnector::from(self.client);
            let stream = connector.connect_with(name, BufReader::with_capacity(READ_BYTES, socket), limited).await?;
            Ok((peer(stream.get_ref().1)?, BufWriter::with_capacity(WRITE_BYTES, stream.into())))
        }
        .boxed()
    }
}

/// The peer id that the handshake has proven.
fn peer(session: &CommonState) -> io::Result<PeerId> {
    let [certificate] = session.peer_certificates().unwrap_or_default() else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a peer shows exactly one certificate"));
    };
    let certificate = tls::certificate::parse(certificate);
    Ok(certificate.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?.peer_id())
}

/// Accepts any node that proves a key. The transport, which knows the dialed key, compares the two.
#[derive(Debug)]
struct PeerCertificate;

impl ServerCertVerifier for PeerCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !more.is_empty() {
            return Err(Error::General("a peer shows exactly one certificate".into()));
        }
        // Parsing checks the certificate's own signature and the signature of the node's key over it.
        tls::certificate::parse(certificate)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls::certificate::parse(certificate)?.verify_signature(signed.scheme, message, signed.signature())?;
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        // libp2p's certificates use ECDSA; other programs may choose Ed25519.
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ECDSA_NISTP384_SHA384, SignatureScheme::ED25519]
    }
}

#[cfg(test)]
#[path = "tls_test.rs"]
mod tests;
