//! Decides which certificates of an https server are accepted.
//!
//! The volume id proves every byte, whichever server sends it. So a reader may accept any certificate
//! (`Unverified`) without losing integrity or freshness; it loses privacy, and an attacker on the
//! network may block it. The system's authorities are read at the first handshake only, because most
//! commands make none.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// Longest file of authorities, bytes.
const MAX_AUTHORITY_BYTES: u64 = 4 << 20;

/// Which certificates of an https server are accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tls {
    /// Those of the authorities that the system trusts.
    #[default]
    System,
    /// Those of the authorities in this PEM file, and no others.
    Authority(PathBuf),
    /// Any certificate: only the volume id is trusted.
    Unverified,
}

/// The TLS configuration of a client.
///
/// # Errors
/// A message that says what is wrong with the file of authorities.
pub(super) fn client(tls: &Tls) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = OnceLock::new();
    if let Tls::Authority(path) = tls {
        // Read now, so that a wrong file is reported as the user's mistake, not the server's.
        let verifier = from_file(path, &provider)?;
        let _ = roots.set(Ok(verifier));
    }
    let verifier = Verifier {
        tls: tls.clone(),
        provider: Arc::clone(&provider),
        roots,
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let mut config = config
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

type Verified = Result<Arc<WebPkiServerVerifier>, String>;

fn from_file(path: &Path, provider: &Arc<CryptoProvider>) -> Verified {
    let shown = path.display();
    let read = || {
        let len = std::fs::metadata(path)?.len();
        if len > MAX_AUTHORITY_BYTES {
            return Err(std::io::Error::other("too long for a file of certificates"));
        }
        std::fs::read(path)
    };
    let pem = read().map_err(|e| format!("cannot read {shown}: {e}"))?;
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|e| format!("{shown}: {e}"))?;
        store
            .add(certificate)
            .map_err(|e| format!("{shown}: {e}"))?;
    }
    if store.is_empty() {
        return Err(format!("{shown} holds no certificate in PEM"));
    }
    verifier(store, provider)
}

fn from_system(provider: &Arc<CryptoProvider>) -> Verified {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "an authority of the system cannot be used");
    }
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        return Err("this system has no certificate authorities".to_owned());
    }
    verifier(store, provider)
}

fn verifier(store: RootCertStore, provider: &Arc<CryptoProvider>) -> Verified {
    WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider))
        .build()
        .map_err(|e| e.to_string())
}

#[derive(Debug)]
struct Verifier {
    tls: Tls,
    provider: Arc<CryptoProvider>,
    roots: OnceLock<Verified>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.tls == Tls::Unverified {
            return Ok(ServerCertVerified::assertion());
        }
        let roots = self.roots.get_or_init(|| from_system(&self.provider));
        let roots = roots.as_ref().map_err(|why| Error::General(why.clone()))?;
        roots.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

/// Whether a handshake failed because no accepted authority signed the certificate.
pub(super) fn nobody_vouches(error: &Error) -> bool {
    matches!(error, Error::InvalidCertificate(why) if !matches!(why, CertificateError::Revoked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_names_no_authority_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let tls = Tls::Authority(path.clone());
        assert!(client(&tls).unwrap_err().contains("cannot read"));
        for (bytes, why) in [
            (&b""[..], "no certificate"),
            (b"not PEM at all\n", "no certificate"),
            (
                b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "ca.pem",
            ),
        ] {
            std::fs::write(&path, bytes).unwrap();
            assert!(client(&tls).unwrap_err().contains(why));
        }
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(MAX_AUTHORITY_BYTES + 1).unwrap();
        assert!(client(&tls).unwrap_err().contains("too long"));
    }
}
