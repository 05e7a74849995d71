//! The modules that a source file contains, and the paths of its own crate that each of them uses.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::tidy::tokens::{Token, split};

/// The names from the root of the crate to a module; empty for the root.
pub type ModulePath = Vec<String>;

/// The uses of a module within its crate.
#[derive(Debug, Default)]
pub struct Module {
    /// The file that contains it.
    pub file: String,
    /// Paths from the root of the crate, to modules or things inside them.
    pub uses: Vec<ModulePath>,
    /// Imported names, and their paths.
    pub names: BTreeMap<String, ModulePath>,
    /// Its submodules that exist for tests only.
    pub tests: Vec<ModulePath>,
}

/// Reads a file (its path below `src`): its module, and those that it contains in braces.
pub fn read(file: &str, text: &str) -> Result<Vec<(ModulePath, Module)>> {
    let mut reader = Reader {
        file,
        tokens: split(text),
        at: 0,
        modules: Vec::new(),
    };
    reader.module(of_file(file)?)?;
    Ok(reader.modules)
}

/// `a/b.rs` and `a/b/mod.rs` are the module `a::b`, `lib.rs` and `main.rs` the root.
fn of_file(file: &str) -> Result<ModulePath> {
    let path = file.strip_suffix(".rs").context("is no source file")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    Ok(match path {
        "lib" | "main" => ModulePath::new(),
        _ => path.split('/').map(str::to_owned).collect(),
    })
}

struct Reader<'a> {
    file: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    modules: Vec<(ModulePath, Module)>,
}

impl<'a> Reader<'a> {
    fn peek(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).copied()
    }

    fn take(&mut self) -> Option<Token<'a>> {
        let token = self.peek(0);
        self.at += 1;
        token
    }

    /// Reads a module up to its closing brace, or the end of the file.
    fn module(&mut self, path: ModulePath) -> Result<()> {
        let mut module = Module {
            file: self.file.to_owned(),
            ..Module::default()
        };
        let mut depth = 0_usize;
        while let Some(token) = self.take() {
            match token {
                Token::Sign('{') => depth += 1,
                Token::Sign('}') if depth == 0 => break,
                Token::Sign('}') => depth -= 1,
                Token::Sign('#') if self.is_for_tests() => self.skip_item(&path, &mut module),
                Token::Word("mod") => self.submodule(&path)?,
                Token::Word("use") => self.imports(&path, &mut module, ModulePath::new())?,
                Token::Word(first @ ("crate" | "super" | "self")) => {
                    let names = self.names(first);
                    module.uses.extend(absolute(&path, &names));
                }
                _ => {}
            }
        }
        self.modules.push((path, module));
        Ok(())
    }

    /// After `#`: whether `[cfg(test)]` follows.
    fn is_for_tests(&self) -> bool {
        let wanted = [
            Token::Sign('['),
            Token::Word("cfg"),
            Token::Sign('('),
            Token::Word("test"),
            Token::Sign(')'),
            Token::Sign(']'),
        ];
        self.tokens.get(self.at..self.at + wanted.len()) == Some(&wanted)
    }

    /// Skips an item with its attributes, to the semicolon or the end of its block.
    fn skip_item(&mut self, path: &ModulePath, module: &mut Module) {
        self.skip_brackets();
        while self.peek(0) == Some(Token::Sign('#')) {
            self.at += 1;
            self.skip_brackets();
        }
        if self.peek(0) == Some(Token::Word("pub")) {
            self.at += 1;
            if self.peek(0) == Some(Token::Sign('(')) {
                self.skip_brackets();
            }
        }
        if let (Some(Token::Word("mod")), Some(Token::Word(name))) = (self.peek(0), self.peek(1)) {
            module.tests.push([&path[..], &[name.to_owned()]].concat());
        }
        // The braces of an import do not end it.
        let is_import = self.peek(0) == Some(Token::Word("use"));
        while let Some(token) = self.peek(0) {
            match token {
                Token::Sign(';') => {
                    self.at += 1;
                    return;
                }
                Token::Sign('{') if !is_import => return self.skip_brackets(),
                Token::Sign('{' | '(' | '[') => self.skip_brackets(),
                _ => self.at += 1,
            }
        }
    }

    /// Skips everything from an opening bracket to its closing one.
    fn skip_brackets(&mut self) {
        let mut depth = 0_usize;
        while let Some(token) = self.take() {
            match token {
                Token::Sign('{' | '(' | '[') => depth += 1,
                Token::Sign('}' | ')' | ']') => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// After `mod`: a module in braces is read; one in a file of its own is read with that.
    fn submodule(&mut self, path: &ModulePath) -> Result<()> {
        if let (Some(Token::Word(name)), Some(Token::Sign('{'))) = (self.peek(0), self.peek(1)) {
            self.at += 2;
            self.module([&path[..], &[name.to_owned()]].concat())?;
        }
        Ok(())
    }

    /// The names of a path after its first.
    fn names(&mut self, first: &'a str) -> Vec<&'a str> {
        let mut names = vec![first];
        while let (Some(Token::Colons), Some(Token::Word(name))) = (self.peek(0), self.peek(1)) {
            names.push(name);
            self.at += 2;
        }
        names
    }

    /// After `use` or inside its braces: one tree of imports below `prefix`.
    fn imports(
        &mut self,
        path: &ModulePath,
        module: &mut Module,
        prefix: ModulePath,
    ) -> Result<()> {
        let mut names = prefix;
        loop {
            match self.take().context("an import has no end")? {
                Token::Word("as") => {
                    if let Some(Token::Word(name)) = self.take() {
                        module.import(path, &names, name);
                    }
                    return Ok(());
                }
                Token::Word(name) => names.push(name.to_owned()),
                Token::Colons => continue,
                Token::Sign('*') => {
                    module.import(path, &names, "*");
                    return Ok(());
                }
                Token::Sign('{') => {
                    while self.peek(0) != Some(Token::Sign('}')) {
                        self.imports(path, module, names.clone())?;
                        if self.peek(0) == Some(Token::Sign(',')) {
                            self.at += 1;
                        }
                        ensure!(self.at < self.tokens.len(), "an import has no end");
                    }
                    self.at += 1;
                    return Ok(());
                }
                _ => {}
            }
            let goes_on = matches!(self.peek(0), Some(Token::Colons | Token::Word("as")));
            if !goes_on {
                let last = names.last().cloned().unwrap_or_default();
                let is_self = last == "self" && names.len() > 1;
                if is_self {
                    names.pop();
                }
                let name = names.last().cloned().unwrap_or_default();
                module.import(path, &names, &name);
                return Ok(());
            }
        }
    }
}

impl Module {
    /// Notes an import of `names` as `name`.
    fn import(&mut self, path: &ModulePath, names: &[String], name: &str) {
        let words: Vec<&str> = names.iter().map(String::as_str).collect();
        match absolute(path, &words) {
            Some(full) => {
                self.uses.push(full.clone());
                self.names.insert(name.to_owned(), full);
            }
            // A name of another crate or of a submodule.
            None => {
                let full = [&path[..], names].concat();
                self.names.insert(name.to_owned(), full);
            }
        }
    }
}

/// A path from the root, if it is one of this crate; `None` if it begins with another name.
fn absolute(path: &ModulePath, names: &[&str]) -> Option<ModulePath> {
    let mut at = match *names.first()? {
        "crate" => ModulePath::new(),
        "self" => path.clone(),
        "super" => path[..path.len().saturating_sub(1)].to_vec(),
        _ => return None,
    };
    for name in &names[1..] {
        match *name {
            "super" => drop(at.pop()),
            name => at.push(name.to_owned()),
        }
    }
    Some(at)
}
