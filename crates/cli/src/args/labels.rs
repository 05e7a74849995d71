//! Names of users and groups of a shared volume.

use trust::text::is_hidden;
use trust_shared::decision::Label;

/// A name that may be there already.
pub(super) fn parse_label(text: &str) -> Result<Label, String> {
    Label::new(text).map_err(|e| format!("`{text}`: {e}"))
}

/// A name that somebody gives now. One that is there already may have been given by another program.
pub fn parse_new_label(text: &str) -> Result<Label, String> {
    let label = parse_label(text)?;
    if text.chars().any(is_hidden) {
        let shown: String = text.escape_unicode().collect();
        return Err(format!("`{shown}` has a character that nobody sees"));
    }
    match text.trim() == text {
        true => Ok(label),
        false => Err(format!("`{text}` begins or ends with a space")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_name_looks_like_no_other() {
        assert!(parse_new_label("Ada Lovelace").is_ok());
        for wrong in ["", "ada\u{200b}", "\u{202e}ada", " ada", "ada ", "a\tb"] {
            assert!(parse_new_label(wrong).is_err(), "{wrong}");
        }
        // One that is there can be named, to remove it.
        assert!(parse_label("ada\u{200b}").is_ok());
    }
}
