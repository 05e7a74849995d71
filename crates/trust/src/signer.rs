//! Keys that sign, wherever they lie. A key file's key is in this process ([`SecretKey`]). That of a hardware token or an
//! agent is elsewhere: it must be asked, and may not answer.
//!
//! Whoever asks gets a claim. [`signature`] verifies it before anybody uses it, so a broken program, a wrong token, or a
//! fault in a computation cannot put a bad signature into a file.

use std::error::Error;
use std::fmt;

use crate::error::Reject;
use crate::key::{PublicKey, SIGNATURE_BYTES, SecretKey};

/// Signs with one key.
pub trait Signer: fmt::Debug + Send + Sync {
    /// The key that verifies what this one signs.
    fn public(&self) -> PublicKey;

    /// Who is asked, for messages: "the program `piv-sign`".
    fn name(&self) -> String;

    /// Asks for a signature over exactly `message`. The answer is not verified: call [`signature`].
    ///
    /// # Errors
    /// Why there is none.
    fn ask(
        &self,
        message: &[u8],
    ) -> Result<[u8; SIGNATURE_BYTES], Box<dyn Error + Send + Sync + 'static>>;
}

impl Signer for SecretKey {
    fn public(&self) -> PublicKey {
        SecretKey::public(self)
    }

    fn name(&self) -> String {
        "the key in memory".to_owned()
    }

    fn ask(
        &self,
        message: &[u8],
    ) -> Result<[u8; SIGNATURE_BYTES], Box<dyn Error + Send + Sync + 'static>> {
        Ok(self.sign(message))
    }
}

/// The signature of `signer` over exactly `message`, verified.
///
/// # Errors
/// [`NoSignature`], also for a signature that is not by this key.
pub fn signature(
    signer: &dyn Signer,
    message: &[u8],
) -> Result<[u8; SIGNATURE_BYTES], NoSignature> {
    let key = signer.public();
    let none = |why| NoSignature {
        by: signer.name(),
        key,
        why,
    };
    let signature = signer.ask(message).map_err(none)?;
    match key.verify(message, &signature) {
        true => Ok(signature),
        false => Err(none(Box::new(WrongSignature))),
    }
}

/// A key did not sign.
#[derive(Debug, thiserror::Error)]
#[error("{by} did not sign with {key}")]
pub struct NoSignature {
    /// Who was asked; see [`Signer::name`].
    pub by: String,
    /// The key.
    pub key: PublicKey,
    /// Why there is no signature.
    #[source]
    pub why: Box<dyn Error + Send + Sync + 'static>,
}

/// The answer is no signature of this key over this message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it returned a wrong signature: by another key, or over another message")]
pub struct WrongSignature;

/// Why something was not signed. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The key may not sign it, or it cannot be signed.
    #[error(transparent)]
    Refused(#[from] Reject),
    /// The key did not sign it.
    #[error(transparent)]
    NoSignature(#[from] NoSignature),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims the key of another signer.
    #[derive(Debug)]
    struct Claims(PublicKey, SecretKey);

    impl Signer for Claims {
        fn public(&self) -> PublicKey {
            self.0
        }

        fn name(&self) -> String {
            "the impostor".to_owned()
        }

        fn ask(
            &self,
            message: &[u8],
        ) -> Result<[u8; SIGNATURE_BYTES], Box<dyn Error + Send + Sync + 'static>> {
            Ok(self.1.sign(message))
        }
    }

    fn key(number: u8) -> SecretKey {
        SecretKey::from_seed(&[number; 32])
    }

    #[test]
    fn signature_of_another_key_is_refused() {
        let (own, other) = (key(1), key(2));
        let honest = Claims(own.public(), key(1));
        assert_eq!(signature(&honest, b"m").unwrap(), own.sign(b"m"));
        let liar = Claims(own.public(), other);
        let refused = signature(&liar, b"m").unwrap_err();
        assert_eq!(refused.key, own.public());
        assert!(refused.why.is::<WrongSignature>(), "{refused:?}");
        assert!(refused.to_string().contains("the impostor"), "{refused}");
    }
}
