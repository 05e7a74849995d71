//! TLS between a device and the server of a shared volume: version 1.3, with the orderer's Ed25519 key as a raw public
//! key (RFC 7250) and no certificate. The client accepts that key and no other. The client shows no key to TLS: a
//! device proves itself inside the session ([`super::enter`]).

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

use super::enter::{EXPORTER_LABEL, Exporter};

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

/// A client's configuration: it accepts this orderer.
///
/// # Errors
/// A message of the TLS library.
pub fn client(orderer: &PublicKey) -> Result<Arc<ClientConfig>, String> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(*orderer)))
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

/// Whether an error of a handshake says that the server has another key.
pub(super) fn is_other_key(error: &std::io::Error) -> bool {
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

/// Accepts one key.
#[derive(Debug)]
struct Pinned(PublicKey);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !intermediates.is_empty() || end_entity.as_ref() != spki(&self.0) {
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
        _: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let signature = <&[u8; SIGNATURE_BYTES]>::try_from(signed.signature()).ok();
        let good = signed.scheme == SignatureScheme::ED25519
            && signature.is_some_and(|signature| self.0.verify(message, signature));
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
