//! Public keys in the files of other programs: one line of OpenSSH (`id_ed25519.pub`), or a PEM file (RFC 8410) of openssl
//! and of hardware tokens.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use trust::history::signed_note::unbase64;
use trust::key::PublicKey;

use super::agent::{ED25519, public_of_blob};

/// Longest file that is read, bytes.
const MAX_FILE_BYTES: u64 = 16 << 10;
const PEM_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const PEM_END: &str = "-----END PUBLIC KEY-----";
/// What stands before the 32 bytes of an Ed25519 key in DER (RFC 8410, 4 and 10.1).
const DER: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// Why a file has no public key for bulla.
#[derive(Debug, thiserror::Error)]
pub enum PublicFileError {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A key of another type.
    #[error("it has a key of the type {0}, and bulla uses Ed25519 keys only (ssh-ed25519)")]
    OtherType(String),
    /// Several lines.
    #[error("it has several lines: write the line of one key into a file of its own")]
    Several,
    /// Something else.
    #[error("it has no public key: one line of OpenSSH (id_ed25519.pub), or PUBLIC KEY in PEM")]
    NoKey,
}

/// Reads the public key in a file.
///
/// # Errors
/// [`PublicFileError`].
pub fn read(path: &Path) -> Result<PublicKey, PublicFileError> {
    let mut text = String::new();
    let file = File::open(path)?;
    match file.take(MAX_FILE_BYTES).read_to_string(&mut text) {
        Ok(_) => parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(PublicFileError::NoKey)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the text of such a file.
///
/// # Errors
/// [`PublicFileError`].
pub fn parse(text: &str) -> Result<PublicKey, PublicFileError> {
    let text = text.trim_ascii();
    if let Some(pem) = text.strip_prefix(PEM_BEGIN) {
        return pem_key(pem);
    }
    if text.contains('\n') {
        return Err(PublicFileError::Several);
    }
    let mut words = text.split_ascii_whitespace();
    let (Some(kind), Some(blob)) = (words.next(), words.next()) else {
        return Err(PublicFileError::NoKey);
    };
    let is_kind = |kind: &str| {
        ["ssh-", "sk-", "ecdsa-"]
            .iter()
            .any(|begin| kind.starts_with(begin))
    };
    match kind.as_bytes() == ED25519 {
        true => unbase64(blob)
            .and_then(|blob| public_of_blob(&blob))
            .ok_or(PublicFileError::NoKey),
        false if is_kind(kind) && kind.len() < 64 => {
            Err(PublicFileError::OtherType(kind.to_owned()))
        }
        false => Err(PublicFileError::NoKey),
    }
}

/// The key in the base64 lines of a PEM file.
fn pem_key(rest: &str) -> Result<PublicKey, PublicFileError> {
    let lines = rest.strip_suffix(PEM_END).ok_or(PublicFileError::NoKey)?;
    let base64: String = lines.split_ascii_whitespace().collect();
    let der = unbase64(&base64).ok_or(PublicFileError::NoKey)?;
    let other = || PublicFileError::OtherType("PUBLIC KEY that is not Ed25519".to_owned());
    let bytes = der.strip_prefix(&DER).ok_or_else(other)?;
    let bytes = bytes.try_into().map_err(|_| PublicFileError::NoKey)?;
    PublicKey::from_bytes(bytes).map_err(|_| PublicFileError::NoKey)
}

#[cfg(test)]
mod tests {
    use trust::history::signed_note::base64;
    use trust::key::SecretKey;

    use super::*;

    fn key() -> PublicKey {
        SecretKey::from_seed(&[1; 32]).public()
    }

    #[test]
    fn keys_of_openssh_and_openssl_are_read() {
        // RFC 8410, 10.1.
        let pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";
        let expected = "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1";
        let read = parse(pem).unwrap();
        let hex: String = (read.as_bytes().iter().map(|b| format!("{b:02x}"))).collect();
        assert_eq!(hex, expected);
        let blob = [
            b"\0\0\0\x0bssh-ed25519\0\0\0\x20".as_slice(),
            key().as_bytes(),
        ]
        .concat();
        let line = format!("ssh-ed25519 {} ada@lab\n", base64(&blob));
        assert_eq!(parse(&line).unwrap(), key());
    }

    #[test]
    fn file_with_several_keys_is_refused() {
        let blob = |key: &PublicKey| {
            let begin = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".as_slice();
            base64(&[begin, key.as_bytes()].concat())
        };
        let other = SecretKey::from_seed(&[2; 32]).public();
        let one = format!("ssh-ed25519 {} ada@lab\n", blob(&key()));
        let two = format!("{one}ssh-ed25519 {} ada@lab\n", blob(&other));
        assert!(matches!(parse(&two), Err(PublicFileError::Several)));
        assert_eq!(parse(&format!("\n{one}\n \n")).unwrap(), key());
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let other = |text: &str| matches!(parse(text), Err(PublicFileError::OtherType(_)));
        assert!(other("ssh-rsa AAAAB3NzaC1yc2E= ada@lab"));
        assert!(other("sk-ssh-ed25519@openssh.com AAAA ada@lab"));
        let weak = [b"\0\0\0\x0bssh-ed25519\0\0\0\x20".as_slice(), &[0; 32]].concat();
        for text in [
            String::new(),
            "ssh-ed25519".to_owned(),
            "ssh-ed25519 AAAA".to_owned(),
            format!("ssh-ed25519 {}", base64(&weak)),
            format!("{PEM_BEGIN}\nMCow\n"),
            "key1 key2".to_owned(),
        ] {
            assert!(
                matches!(parse(&text), Err(PublicFileError::NoKey)),
                "{text}"
            );
        }
    }
}
