//! Source text as tokens, without comments and literals: enough to find paths and braces.

/// A token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// A name or keyword.
    Word(&'a str),
    /// `::`
    Colons,
    /// Any other character except white space.
    Sign(char),
    /// A text, character or number.
    Literal,
}

/// Splits a text.
pub fn split(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, len) = next(rest, first);
        tokens.extend(token);
        rest = rest.get(len..).unwrap_or_default().trim_start();
    }
    tokens
}

/// The token at the beginning of `rest`, if it is one, and its length.
fn next(rest: &str, first: char) -> (Option<Token<'_>>, usize) {
    match first {
        '/' if rest.starts_with("//") => {
            return (None, rest.find('\n').unwrap_or(rest.len()));
        }
        '/' if rest.starts_with("/*") => return (None, block_comment(rest)),
        'b' | 'c' | 'r' | '"' | '\'' => {
            if let Some(len) = raw_text(rest).or_else(|| quoted(rest)) {
                return (Some(Token::Literal), len);
            }
        }
        ':' if rest.starts_with("::") => return (Some(Token::Colons), 2),
        _ => {}
    }
    let len = word_len(rest);
    match rest.get(..len) {
        Some(word) if len > 0 => {
            let is_number = first.is_ascii_digit();
            let token = if is_number {
                Token::Literal
            } else {
                Token::Word(word)
            };
            (Some(token), len)
        }
        _ => (Some(Token::Sign(first)), first.len_utf8()),
    }
}

/// The length of the word at the beginning. Nearly all are ASCII, and bytes are quicker than characters.
fn word_len(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut len = 0;
    while let Some(byte) = bytes.get(len) {
        if !byte.is_ascii() {
            return rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        }
        if !byte.is_ascii_alphanumeric() && *byte != b'_' {
            break;
        }
        len += 1;
    }
    len
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a block comment, which may contain others.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(tail) = rest.get(at..) {
        if tail.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            match tail.chars().next() {
                Some(c) => at += c.len_utf8(),
                None => break,
            }
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of `r"..."`, `br#"..."#` and the like.
fn raw_text(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r"]
        .into_iter()
        .find(|it| rest.starts_with(it))?;
    let after = rest.get(prefix.len()..)?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after.get(hashes..)?.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let len = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(prefix.len() + hashes + 1 + len)
}

/// The length of a string or character literal. A lifetime is neither.
fn quoted(rest: &str) -> Option<usize> {
    let prefix = ["b", "c", ""].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix);
        after.is_some_and(|after| after.starts_with(['"', '\'']))
    })?;
    let body = rest.get(prefix.len()..)?;
    let quote = body.chars().next()?;
    if quote == '\'' {
        let mut chars = body.chars().skip(1);
        let (first, second) = (chars.next()?, chars.next());
        if first != '\\' && second != Some('\'') {
            return None; // a lifetime
        }
    }
    let mut escaped = false;
    for (at, c) in body.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return Some(prefix.len() + at + c.len_utf8());
        }
    }
    Some(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        let words = split(text).into_iter().filter_map(|token| match token {
            Token::Word(word) => Some(word),
            _ => None,
        });
        words.collect()
    }

    #[test]
    fn comments_and_literals_are_no_words() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(
            words(r#"a "b \" c" d b"e" 'f' '\'' '"' g"#),
            ["a", "d", "g"]
        );
        assert_eq!(
            words("a r\"b\\\" c r#\"d \" e\"# f br##\"g\"# h\"## i"),
            ["a", "c", "f", "i"]
        );
        assert_eq!(
            words("fn f<'a>(x: &'a str, c: char) { 'l: loop { b'\\n' } }").len(),
            10
        );
        assert_eq!(words("0x1f 12_u8 é_1 r r#type"), ["é_1", "r", "r", "type"]);
    }

    #[test]
    fn a_text_without_an_end_ends() {
        for text in ["\"a", "/* a", "r#\"a", "'", "b'", "'\\", "/", "é"] {
            split(text);
        }
    }

    #[test]
    fn paths_and_signs_are_tokens() {
        use Token::{Colons, Sign, Word};
        let wanted = [
            Word("a"),
            Colons,
            Sign('{'),
            Word("b"),
            Sign('}'),
            Sign(':'),
        ];
        assert_eq!(split("a::{b}:"), wanted);
    }
}
