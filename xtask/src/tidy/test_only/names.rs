//! The names in one source file: public items that it defines, and what its product code uses. Code behind
//! `#[cfg(test)]` or a feature does not count: no feature of these crates is part of the product.

use std::collections::{HashMap, HashSet};

use crate::tidy::tokens::{Token, split};

/// What a file defines and uses.
#[derive(Debug, Default)]
pub struct Names<'a> {
    /// Its public items.
    pub public: Vec<Item<'a>>,
    /// Names in any place but a definition, an import, and the item itself. Some occur twice.
    pub used: Vec<Use<'a>>,
    /// Names that may be functions where they stand alone: imported ones, and functions of this file.
    pub values: HashSet<&'a str>,
    /// Types, traits and constants that it defines, public or not: here their names mean these.
    pub defined: HashSet<&'a str>,
    /// Submodules in files of their own that exist for tests only.
    pub test_modules: Vec<&'a str>,
}

/// A public item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    pub name: &'a str,
    /// Fields and variables may have the name of a function, and do not use it.
    pub is_function: bool,
}

/// A name where it is used.
#[derive(Debug, Clone, Copy)]
pub struct Use<'a> {
    pub name: &'a str,
    pub kind: UseKind,
}

/// What may be used by a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseKind {
    /// Anything: it is called, or in a path.
    Any,
    /// A variable, or one of [`Names::values`].
    Alone,
    /// No function: a field.
    Field,
}

/// Reads a file.
pub fn read(text: &str) -> Names<'_> {
    let mut names = Names::default();
    let tokens = product(split(text), &mut names.test_modules);
    let (counts, values) = words(&tokens);
    names.values = values;
    let mut reader = Reader {
        counts,
        tokens,
        at: 0,
        depth: 0,
        scopes: Vec::new(),
        names,
    };
    reader.items();
    reader.names
}

/// How often each word with a capital occurs, and the names for [`Names::values`].
fn words<'a>(tokens: &[Token<'a>]) -> (HashMap<&'a str, usize>, HashSet<&'a str>) {
    let (mut counts, mut values) = (HashMap::new(), HashSet::new());
    let (mut in_import, mut after_fn) = (false, false);
    for token in tokens {
        match token {
            Token::Word(word) => {
                if in_import || after_fn {
                    values.insert(*word);
                }
                if has_capital(word) {
                    *counts.entry(*word).or_default() += 1;
                }
                in_import |= *word == "use";
                after_fn = *word == "fn";
            }
            Token::Sign(';') => in_import = false,
            _ => {}
        }
    }
    (counts, values)
}

fn has_capital(word: &str) -> bool {
    word.as_bytes().first().is_some_and(u8::is_ascii_uppercase)
}

/// Removes what is behind `#[cfg(test)]` or a feature, with its attributes. Submodules there go into `modules`.
fn product<'a>(tokens: Vec<Token<'a>>, modules: &mut Vec<&'a str>) -> Vec<Token<'a>> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut rest = tokens.as_slice();
    while let Some(at) = rest.iter().position(|it| *it == Token::Sign('#')) {
        let end = after_brackets(rest, at + 1);
        if is_for_tests(&rest[at..end]) {
            kept.extend_from_slice(&rest[..at]);
            rest = &rest[after_item(rest, end, modules)..];
        } else {
            kept.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
    }
    kept.extend_from_slice(rest);
    kept
}

/// Whether an attribute is `#[cfg(...)]` with `test` or a feature.
fn is_for_tests(attribute: &[Token<'_>]) -> bool {
    let has = |word| attribute.contains(&Token::Word(word));
    attribute.get(2) == Some(&Token::Word("cfg")) && (has("test") || has("feature")) && !has("not")
}

/// The end of the brackets that open at `at`; the token after `at` if none do.
fn after_brackets(tokens: &[Token<'_>], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            Token::Sign('{' | '(' | '[') => depth += 1,
            Token::Sign('}' | ')' | ']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The end of an item, field, variant or arm of a match.
fn after_item<'a>(tokens: &[Token<'a>], mut at: usize, modules: &mut Vec<&'a str>) -> usize {
    const ITEMS: [&str; 12] = [
        "pub", "mod", "use", "fn", "impl", "const", "struct", "enum", "trait", "type", "static",
        "async",
    ];
    while tokens.get(at) == Some(&Token::Sign('#')) {
        at = after_brackets(tokens, at + 1);
    }
    let rest = tokens.get(at..).unwrap_or_default();
    let is_item = matches!(rest.first(), Some(Token::Word(word)) if ITEMS.contains(word));
    let end = |token: &Token<'_>| matches!(token, Token::Sign(';' | '{'));
    let head = rest.split(end).next().unwrap_or_default();
    if let Some([Token::Word("mod"), Token::Word(name)]) = head.windows(2).last() {
        modules.push(name);
    }
    let is_import = head.contains(&Token::Word("use"));
    while let Some(token) = tokens.get(at) {
        match token {
            Token::Sign(';') => return at + 1,
            Token::Sign(',') if !is_item => return at + 1,
            Token::Sign('}') => return at, // of what contains it
            Token::Sign('{') if !is_import => return after_brackets(tokens, at),
            Token::Sign('{' | '(' | '[') => at = after_brackets(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// The body of an item that is being read. Its own names there are not uses.
struct Scope<'a> {
    names: Vec<&'a str>,
    depth: usize,
    is_type: bool,
    is_public_trait: bool,
}

struct Reader<'a> {
    tokens: Vec<Token<'a>>,
    counts: HashMap<&'a str, usize>,
    at: usize,
    depth: usize,
    scopes: Vec<Scope<'a>>,
    names: Names<'a>,
}

impl<'a> Reader<'a> {
    fn token(&self, at: usize) -> Option<Token<'a>> {
        self.tokens.get(at).copied()
    }

    fn items(&mut self) {
        let mut is_public = false;
        // The item whose body begins at the next brace, unless a semicolon comes first.
        let mut next: Option<Scope<'a>> = None;
        while let Some(token) = self.token(self.at) {
            let after = self.token(self.at + 1);
            match (token, after) {
                (Token::Word("pub"), after) => {
                    is_public = after != Some(Token::Sign('('));
                    self.at = match is_public {
                        true => self.at + 1,
                        false => after_brackets(&self.tokens, self.at + 1),
                    };
                    continue;
                }
                (Token::Word("mod"), Some(Token::Word(_))) => {
                    is_public = false;
                    self.at += 2;
                    continue;
                }
                (Token::Word("use"), _) => {
                    self.import();
                    is_public = false;
                    continue;
                }
                (Token::Word("const" | "async" | "static" | "mut"), Some(Token::Word(word)))
                    if is_modified(word) => {}
                (Token::Word("extern"), _) | (Token::Literal, _) => {}
                (
                    Token::Word(
                        kind @ ("fn" | "struct" | "enum" | "trait" | "const" | "static" | "type"),
                    ),
                    Some(Token::Word(name)),
                ) => {
                    let of_trait = self
                        .scopes
                        .last()
                        .is_some_and(|it| it.is_public_trait && it.depth == self.depth);
                    if kind != "fn" && !self.is_associated() {
                        self.names.defined.insert(name);
                    }
                    if (is_public || of_trait) && name != "_" {
                        let is_function = kind == "fn";
                        self.names.public.push(Item { name, is_function });
                    }
                    if !matches!(kind, "const" | "static" | "type") {
                        next = Some(Scope {
                            names: vec![name],
                            depth: 0,
                            is_type: kind != "fn",
                            is_public_trait: kind == "trait" && is_public,
                        });
                    }
                    is_public = false;
                    self.at += 2;
                    continue;
                }
                (Token::Word("impl"), _) if self.is_item_here() => {
                    let end = self.header_end();
                    let names = implemented(&self.tokens[self.at + 1..end]);
                    next = Some(Scope {
                        names,
                        depth: 0,
                        is_type: true,
                        is_public_trait: false,
                    });
                    // The names of the header are uses, but its own.
                    let own = next.as_ref().map(|it| it.names.clone()).unwrap_or_default();
                    for at in self.at + 1..end {
                        self.name(at, &own);
                    }
                    self.at = end;
                    continue;
                }
                (Token::Sign('{'), _) => {
                    self.depth += 1;
                    if let Some(mut scope) = next.take() {
                        scope.depth = self.depth;
                        self.scopes.push(scope);
                    }
                }
                (Token::Sign('}'), _) => {
                    self.scopes.retain(|scope| scope.depth < self.depth);
                    self.depth = self.depth.saturating_sub(1);
                }
                (Token::Sign(';'), _) => {
                    next = None;
                    is_public = false;
                }
                (Token::Sign('['), _) if next.is_some() => {
                    // The semicolon of an array's type ends no item.
                    let end = after_brackets(&self.tokens, self.at);
                    for at in self.at..end {
                        self.name(at, &[]);
                    }
                    self.at = end;
                    continue;
                }
                (Token::Word(_), _) => {
                    is_public = false;
                    let own = next.as_ref().map_or(&[][..], |it| &it.names[..]);
                    self.name(self.at, own);
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Notes the name at `at` as a use, unless it is one of those whose body is being read, or in `own`.
    fn name(&mut self, at: usize, own: &[&str]) {
        let Some(Token::Word(word)) = self.token(at) else {
            return;
        };
        let before = at.checked_sub(1).and_then(|at| self.token(at));
        let is_own = |scope: &Scope<'_>| {
            scope.names.contains(&word) && (scope.is_type || !self.is_of_another(at))
        };
        if own.contains(&word) || self.scopes.iter().any(is_own) {
            return;
        }
        let is_call = matches!(self.token(at + 1), Some(Token::Sign('(') | Token::Colons));
        let kind = match before {
            _ if is_call => UseKind::Any,
            Some(Token::Colons) => UseKind::Any,
            Some(Token::Sign('.')) => UseKind::Field,
            _ => UseKind::Alone,
        };
        self.names.used.push(Use { name: word, kind });
    }

    /// Whether the function that is named at `at`, inside of one with this name, is that of another value or module.
    fn is_of_another(&self, at: usize) -> bool {
        let before = |count| at.checked_sub(count).and_then(|at| self.token(at));
        match (before(2), before(1)) {
            (Some(Token::Word("self")), Some(Token::Sign('.'))) => {
                before(3) == Some(Token::Sign('.'))
            }
            (Some(Token::Word("Self")), Some(Token::Colons)) => false,
            (_, before) => matches!(before, Some(Token::Sign('.') | Token::Colons)),
        }
    }

    /// Skips an import. It is a use of no item but a trait, of which the methods are called, and of what gets
    /// another name; a `pub use` is none.
    fn import(&mut self) {
        let is_public = self
            .at
            .checked_sub(1)
            .and_then(|at| self.token(at))
            .is_some_and(|it| matches!(it, Token::Word("pub") | Token::Sign(')')));
        while let Some(token) = self.token(self.at) {
            let renamed = self.token(self.at + 1) == Some(Token::Word("as"));
            match token {
                Token::Sign(';') => return,
                Token::Word(word) if renamed || !is_public && self.may_be_trait(word) => {
                    let kind = UseKind::Any;
                    self.names.used.push(Use { name: word, kind });
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Whether the item here belongs to a trait or a type, so that its name alone does not mean it.
    fn is_associated(&self) -> bool {
        self.scopes
            .last()
            .is_some_and(|it| it.is_type && it.depth == self.depth)
    }

    /// Whether nothing else in this file names an imported type, so that it is imported for its methods.
    fn may_be_trait(&self, word: &str) -> bool {
        has_capital(word) && self.counts.get(word) == Some(&1)
    }

    /// Whether an item may begin here: `impl` in a type does not.
    fn is_item_here(&self) -> bool {
        match self.at.checked_sub(1).and_then(|at| self.token(at)) {
            None => true,
            Some(before) => matches!(before, Token::Sign('}' | ';' | '{' | ']')),
        }
    }

    /// The opening brace of the `impl` that begins here.
    fn header_end(&self) -> usize {
        let is_end = |token: &Token<'_>| matches!(token, Token::Sign('{' | ';'));
        let rest = self.tokens.get(self.at..).unwrap_or_default();
        self.at + rest.iter().position(is_end).unwrap_or(rest.len())
    }
}

/// Whether the word after `const`, `async` and the like is still no name.
fn is_modified(word: &str) -> bool {
    matches!(word, "fn" | "unsafe" | "async" | "extern" | "move")
}

/// The trait and the type in the header of an `impl`.
fn implemented<'a>(header: &[Token<'a>]) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut last = None;
    let mut depth = 0_usize;
    let mut before = None;
    for token in header {
        match token {
            Token::Sign('<' | '(' | '[') => depth += 1,
            Token::Sign('>') if before == Some(Token::Sign('-')) => {}
            Token::Sign('>' | ')' | ']') => depth = depth.saturating_sub(1),
            Token::Word("where") if depth == 0 => break,
            Token::Word("for") if depth == 0 => names.extend(last.take()),
            Token::Word(word) if depth == 0 => last = Some(*word),
            _ => {}
        }
        before = Some(*token);
    }
    names.extend(last);
    names
}
