//! Tokens into the tree: module level.

mod declare;
mod expression;
mod statement;

use super::PtxError;
use super::ast::{Linkage, Module, SourceFile};
use super::lexer::{Lexer, Token};

pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
}

type Result<T> = std::result::Result<T, PtxError>;

impl Module {
    /// Parses a file.
    ///
    /// # Errors
    /// Where the text stops being PTX: line, what stands there, what was expected.
    pub fn parse(text: &str) -> Result<Module> {
        // C strings handed to a driver end with NUL; what follows is not text.
        let text = text.split('\0').next().unwrap_or("");
        Parser { lexer: Lexer::new(text)? }.module()
    }
}

impl<'a> Parser<'a> {
    fn module(&mut self) -> Result<Module> {
        let mut module = Module { address_size: 32, ..Module::default() };
        self.directive("version")?;
        let Token::Number(version) = self.lexer.token() else { return Err(self.lexer.error("a version")) };
        module.version = version
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
            .ok_or_else(|| self.lexer.error("a version such as 8.0"))?;
        self.lexer.take()?;
        self.directive("target")?;
        module.targets = self.names()?;
        while self.lexer.token() != Token::End {
            self.module_item(&mut module)?;
        }
        Ok(module)
    }

    fn module_item(&mut self, module: &mut Module) -> Result<()> {
        match self.lexer.token() {
            Token::Dot("address_size") => {
                self.lexer.take()?;
                module.address_size = match self.u32("32 or 64")? {
                    size @ (32 | 64) => size,
                    _ => return Err(self.lexer.error("an address size of 32 or 64 before")),
                };
            }
            Token::Dot("file") => module.files.push(self.file()?),
            Token::Dot("loc") => drop(self.loc()?),
            Token::Dot("section") => self.section()?,
            Token::Dot("pragma") => self.pragma()?,
            Token::Dot("language") => {
                self.lexer.take()?;
                self.integer("a number")?;
            }
            Token::Dot("alias") => {
                self.lexer.take()?;
                let name = self.name("a name")?;
                self.punct(',')?;
                let target = self.name("a function")?;
                self.punct(';')?;
                module.aliases.push((name, target));
            }
            Token::Punct(';') => drop(self.lexer.take()?),
            // Old debug sections: @@DWARF lines.
            Token::Punct('@') => {
                let line = self.lexer.line();
                while self.lexer.line() == line && self.lexer.token() != Token::End {
                    self.lexer.take()?;
                }
            }
            Token::Dot(_) => {
                let linkage = self.linkage()?;
                match self.lexer.token() {
                    Token::Dot("entry" | "func") => module.functions.push(self.function(linkage)?),
                    _ => self.variables(linkage, &mut module.variables)?,
                }
            }
            _ => return Err(self.lexer.error("a directive")),
        }
        Ok(())
    }

    fn linkage(&mut self) -> Result<Linkage> {
        let mut linkage = Linkage::Internal;
        loop {
            linkage = match self.lexer.token() {
                Token::Dot("visible") => Linkage::Visible,
                Token::Dot("extern") => Linkage::Extern,
                Token::Dot("weak") => Linkage::Weak,
                Token::Dot("common") => Linkage::Common,
                Token::Dot("hidden" | "internal") => linkage,
                _ => return Ok(linkage),
            };
            self.lexer.take()?;
        }
    }

    /// `.file 1 "name" [, timestamp, size]`
    fn file(&mut self) -> Result<SourceFile> {
        self.lexer.take()?;
        let index = self.u32("a file number")?;
        let Token::Text(name) = self.lexer.token() else { return Err(self.lexer.error("a file name")) };
        let name = name.to_owned();
        self.lexer.take()?;
        while self.accept(',')? {
            self.integer("a number")?;
        }
        Ok(SourceFile { index, name })
    }

    /// `.loc file line column [, function_name label[+n]] [, inlined_at file line column]`
    fn loc(&mut self) -> Result<(u32, u32, u32)> {
        self.lexer.take()?;
        let loc = (self.u32("a file number")?, self.u32("a line")?, self.u32("a column")?);
        while self.lexer.token() == Token::Punct(',') {
            self.lexer.take()?;
            match self.lexer.take()? {
                Token::Ident("function_name") => {
                    self.name("a label")?;
                    if self.accept('+')? {
                        self.integer("an offset")?;
                    }
                }
                Token::Ident("inlined_at") => {
                    for what in ["a file number", "a line", "a column"] {
                        self.u32(what)?;
                    }
                }
                _ => return Err(self.lexer.error("`function_name` or `inlined_at` before")),
            }
        }
        Ok(loc)
    }

    /// `.section name { … }`: debug data, not kept.
    fn section(&mut self) -> Result<()> {
        self.lexer.take()?;
        match self.lexer.take()? {
            Token::Dot(_) | Token::Ident(_) => {}
            _ => return Err(self.lexer.error("a section name before")),
        }
        self.punct('{')?;
        let mut depth = 1u64;
        while depth > 0 {
            match self.lexer.token() {
                Token::Punct('{') => depth += 1,
                Token::Punct('}') => depth -= 1,
                Token::End => return Err(self.lexer.error("`}`")),
                _ => {}
            }
            self.lexer.take()?;
        }
        Ok(())
    }

    /// `.pragma "text", …;`
    fn pragma(&mut self) -> Result<()> {
        self.lexer.take()?;
        loop {
            let Token::Text(_) = self.lexer.token() else { return Err(self.lexer.error("a string")) };
            self.lexer.take()?;
            if !self.accept(',')? {
                return self.punct(';');
            }
        }
    }

    fn directive(&mut self, name: &str) -> Result<()> {
        if self.lexer.token() != Token::Dot(name) {
            return Err(self.lexer.error(format!("`.{name}`")));
        }
        self.lexer.take()?;
        Ok(())
    }

    fn punct(&mut self, c: char) -> Result<()> {
        if self.accept(c)? { Ok(()) } else { Err(self.lexer.error(format!("`{c}`"))) }
    }

    fn accept(&mut self, c: char) -> Result<bool> {
        let found = self.lexer.token() == Token::Punct(c);
        if found {
            self.lexer.take()?;
        }
        Ok(found)
    }

    fn name(&mut self, what: &str) -> Result<String> {
        let Token::Ident(name) = self.lexer.token() else { return Err(self.lexer.error(what)) };
        self.lexer.take()?;
        Ok(name.to_owned())
    }

    fn names(&mut self) -> Result<Vec<String>> {
        let mut names = vec![self.name("a name")?];
        while self.accept(',')? {
            names.push(self.name("a name")?);
        }
        Ok(names)
    }
}
