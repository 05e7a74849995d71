//! Devices of shared volumes as users write them.

use std::fmt;

use trust::key::PublicKey;
use trust_shared::principal::Device;

/// A device as a user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceName {
    /// Its number.
    Number(Device),
    /// Its key.
    Key(PublicKey),
    /// USER/NAME. Several devices of a user may have one name.
    Named(String),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Number(number) => write!(f, "{}", number.0),
            DeviceName::Key(key) => write!(f, "{key}"),
            DeviceName::Named(name) => write!(f, "`{name}`"),
        }
    }
}

/// A device by its number, its key, or USER/NAME.
pub fn parse_device(text: &str) -> Result<DeviceName, String> {
    if let Ok(number) = text.parse() {
        return Ok(DeviceName::Number(Device(number)));
    }
    match text.parse() {
        Ok(key) => Ok(DeviceName::Key(key)),
        Err(_) if text.contains('/') => Ok(DeviceName::Named(text.to_owned())),
        Err(why) => Err(format!(
            "`{text}` is neither the number of a device, nor USER/NAME, nor its key: {why}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_a_number_or_a_name_or_a_key() {
        assert_eq!(parse_device("7"), Ok(DeviceName::Number(Device(7))));
        let key = trust::key::SecretKey::from_seed(&[1; 32]).public();
        assert_eq!(parse_device(&key.to_string()), Ok(DeviceName::Key(key)));
        let named = DeviceName::Named("ben/laptop".to_owned());
        assert_eq!(parse_device("ben/laptop"), Ok(named));
        for wrong in ["", "-1", "4294967296", "key1", "ada"] {
            assert!(parse_device(wrong).is_err(), "{wrong}");
        }
    }
}
