//! Devices of shared volumes as users write them.

use trust_shared::principal::Device;

pub use bulla::members::DeviceName;

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
