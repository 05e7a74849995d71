//! Rule: a hint has at most 40 words. A hint is a text of the program in a table of hints, in a call of `with_hint`,
//! or in a variable `hint`.

use super::Finding;

/// Most words of a hint.
const MOST_WORDS: usize = 40;

/// Where hints begin: up to the end of the statement each text is one.
const BEGINNINGS: [&str; 4] = ["with_hint(", "let hint =", "hint: ", "kinds! {"];

/// The hints of a source file that are too long.
pub fn check(name: &str, text: &str) -> Vec<Finding> {
    let is_product = name.starts_with("crates/") && name.contains("/src/") && name.ends_with(".rs");
    if !is_product {
        return Vec::new();
    }
    let mut found: Vec<Finding> = Vec::new();
    for beginning in BEGINNINGS {
        for (at, _) in text.match_indices(beginning) {
            let statement = text.get(at..).unwrap_or_default();
            for (offset, hint) in texts(statement) {
                let words = hint.split_whitespace().count();
                let line = text
                    .get(..at + offset)
                    .map_or(0, |it| it.matches('\n').count())
                    + 1;
                let place = format!("{name}:{line}");
                if words > MOST_WORDS && !found.iter().any(|it| it.place == place) {
                    let rule =
                        format!("a hint has at most {MOST_WORDS} words, this one has {words}");
                    found.push(Finding::new(place, rule));
                }
            }
        }
    }
    found
}

/// The texts of a statement and where they begin, up to its end: a `;` or a closing bracket outside of it.
fn texts(statement: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut depth = 0_i32;
    let mut text: Option<(usize, String)> = None;
    let mut chars = statement.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match (&mut text, c) {
            (Some((_, inside)), '\\') => match chars.next() {
                // A line that goes on.
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, escaped)) => inside.push(escaped),
                None => {}
            },
            (Some(_), '"') => found.extend(text.take()),
            (Some((_, inside)), c) => inside.push(c),
            (None, '"') => text = Some((at, String::new())),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => {
                depth -= 1;
                if depth <= 0 && !matches!(chars.peek(), Some((_, '.' | ')' | '?'))) {
                    break;
                }
                if depth < 0 {
                    break;
                }
            }
            (None, ';') if depth == 0 => break,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_hints_are_found_wherever_they_stand() {
        let long = "word ".repeat(41);
        let short = "word ".repeat(40);
        for (text, lines) in [
            (
                format!("kinds! {{\n A => B, \"{long}\";\n C => D, \"{short}\";\n}}"),
                &[2][..],
            ),
            (format!("x.with_hint(\n\"{long}\")"), &[2]),
            (format!("x.with_hint(format!(\"{short}\"))"), &[]),
            (
                format!("let hint = match a {{\n 1 => \"{short}\",\n 2 => \"{long}\",\n}};"),
                &[3],
            ),
            (format!("let hint = \"x\";\nlet other = \"{long}\";"), &[]),
            (format!("f.with_hint(\"x\");\ng(\"{long}\")"), &[]),
            (format!("let hint = \"word \\\n    {long}\";"), &[1]),
        ] {
            let found = check("crates/cli/src/x.rs", &text);
            let places: Vec<String> = lines
                .iter()
                .map(|line| format!("crates/cli/src/x.rs:{line}"))
                .collect();
            let found: Vec<String> = found.into_iter().map(|it| it.place).collect();
            assert_eq!(found, places, "{text}");
            assert!(check("crates/cli/tests/cli/x.rs", &text).is_empty());
        }
    }
}
