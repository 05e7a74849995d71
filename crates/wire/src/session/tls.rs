//! TLS between a device and the server of a shared volume: version 1.3, with the orderer's Ed25519 key as a raw public
//! key (RFC 7250) and no certificate. The client accepts that key and no other. The client shows no key to TLS: a
//! device proves itself inside the session ([`super::Claim`]).

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, PeerMisbehaved, ServerConfig,
    SignatureAlgorithm, SignatureScheme,
};
use trust::key::{PublicKey, SIGNATURE_BYTES, SecretKey};

use super::{EXPORTER_LABEL, Exporter};

/// DER of an Ed25519 SubjectPublicKeyInfo before its 32 bytes (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

fn spki(key: &PublicKey) -> Vec<u8> {
    [&SPKI_PREFIX[..], key.as_bytes()].concat()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The server's configuration: it shows and uses the orderer's key.
///
/// # Errors
/// A message of the TLS library.
pub fn server(orderer: &SecretKey) -> Result<Arc<ServerConfig>, String> {
    let certificate = CertificateDer::from(spki(&orderer.public()));
    let key = CertifiedKey::new(vec![certificate], Arc::new(Orderer(orderer.clone())));
    let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::new(key));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    // Sessions are long, so nothing is resumed and no ticket is kept.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// A client's configuration: it accepts this orderer; without one, any server that has the key that it shows. Then the
/// caller compares [`shown_key`] with the volume's policies before it believes anything else.
///
/// # Errors
/// A message of the TLS library.
pub fn client(orderer: Option<&PublicKey>) -> Result<Arc<ClientConfig>, String> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(orderer.copied())))
        .with_no_client_auth();
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The exporter of a TLS session.
///
/// # Errors
/// A message of the TLS library: the handshake is not complete.
pub fn exporter<D>(session: &rustls::ConnectionCommon<D>) -> Result<Exporter, String> {
    session
        .export_keying_material([0; 32], EXPORTER_LABEL, None)
        .map(Exporter)
        .map_err(|e| e.to_string())
}

/// The key that the server of a session has shown, and has proved to have.
pub fn shown_key<D>(session: &rustls::ConnectionCommon<D>) -> Option<PublicKey> {
    key_of(session.peer_certificates()?.first()?)
}

/// The Ed25519 key of a SubjectPublicKeyInfo.
fn key_of(shown: &CertificateDer<'_>) -> Option<PublicKey> {
    let bytes = shown.as_ref().strip_prefix(&SPKI_PREFIX)?;
    PublicKey::from_bytes(bytes.try_into().ok()?).ok()
}

/// Whether an error of a handshake says that the server has another key.
pub(crate) fn is_other_key(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
    matches!(
        inner,
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer))
    )
}

/// The orderer's key as TLS uses it.
#[derive(Debug, Clone)]
struct Orderer(SecretKey);

impl SigningKey for Orderer {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let known = offered.contains(&SignatureScheme::ED25519);
        known.then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(spki(&self.0.public())))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for Orderer {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.0.sign(message).to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

/// Accepts one key, or any.
#[derive(Debug)]
struct Pinned(Option<PublicKey>);

impl Pinned {
    /// The key that a server shows, if it is accepted.
    fn accepted(&self, shown: &CertificateDer<'_>) -> Option<PublicKey> {
        key_of(shown).filter(|key| self.0.is_none_or(|pinned| pinned == *key))
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !intermediates.is_empty() || self.accepted(end_entity).is_none() {
            return Err(CertificateError::UnknownIssuer.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = self.accepted(shown);
        let key = key.ok_or(CertificateError::UnknownIssuer)?;
        let signature = <&[u8; SIGNATURE_BYTES]>::try_from(signed.signature()).ok();
        let good = signed.scheme == SignatureScheme::ED25519
            && signature.is_some_and(|signature| key.verify(message, signature));
        match good {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => Err(CertificateError::BadSignature.into()),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{IpAddr, Ipv4Addr};
    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_seed(&[seed; 32])
    }

    /// A server that shows one key and signs with another.
    fn thief(shown: &PublicKey, own: &SecretKey) -> Arc<ServerConfig> {
        let certificate = CertificateDer::from(spki(shown));
        let key = CertifiedKey::new(vec![certificate], Arc::new(Orderer(own.clone())));
        let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::new(key));
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        Arc::new(config)
    }

    /// A handshake in memory; gives the client's end when it is complete.
    fn handshake(
        server: Arc<ServerConfig>,
        orderer: Option<&PublicKey>,
    ) -> Result<ClientConnection, Error> {
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0; 4])));
        let mut client = ClientConnection::new(super::client(orderer).unwrap(), name)?;
        let mut server = ServerConnection::new(server)?;
        for _ in 0..10 {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            server.read_tls(&mut &*bytes).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            client.read_tls(&mut &*bytes).unwrap();
            client.process_new_packets()?;
        }
        assert!(!client.is_handshaking());
        Ok(client)
    }

    #[test]
    fn guest_learns_the_key_that_the_server_has() {
        let config = server(&key(1)).unwrap();
        let pinned = key(1).public();
        let session = handshake(config.clone(), Some(&pinned)).unwrap();
        assert_eq!(shown_key(&session), Some(pinned));
        let session = handshake(config.clone(), None).unwrap();
        assert_eq!(shown_key(&session), Some(pinned));
        assert!(handshake(config, Some(&key(2).public())).is_err());
    }

    #[test]
    fn server_without_the_key_that_it_shows_is_refused_by_guests_too() {
        let (shown, own) = (key(1).public(), key(2));
        for orderer in [None, Some(&shown)] {
            let refused = handshake(thief(&shown, &own), orderer).unwrap_err();
            let bad = CertificateError::BadSignature;
            assert_eq!(refused, Error::InvalidCertificate(bad));
        }
    }
}
