//! Function bodies.

use super::declare::space;
use super::{Parser, Result};
use crate::ptx::ast::{Instruction, Linkage, Operand, Prototype, Statement};
use crate::ptx::lexer::Token;

impl Parser<'_> {
    /// `{ … }`, flat: inner braces become [`Statement::Open`] and [`Statement::Close`].
    pub(super) fn body(&mut self) -> Result<Vec<Statement>> {
        self.punct('{')?;
        let mut out = Vec::new();
        let mut depth = 0u32;
        loop {
            let line = self.lexer.line();
            match self.lexer.token() {
                Token::Punct('{') => {
                    self.lexer.take()?;
                    depth = depth.saturating_add(1);
                    out.push(Statement::Open);
                }
                Token::Punct('}') => {
                    self.lexer.take()?;
                    if depth == 0 {
                        return Ok(out);
                    }
                    depth -= 1;
                    out.push(Statement::Close);
                }
                Token::Punct(';') => drop(self.lexer.take()?),
                Token::Dot("loc") => {
                    let (file, line, column) = self.loc()?;
                    out.push(Statement::Loc { file, line, column });
                }
                Token::Dot("pragma") => self.pragma()?,
                Token::Dot("file") => drop(self.file()?),
                Token::Dot("section") => self.section()?,
                Token::Dot("maxnreg" | "maxntid" | "minnctapersm") => {
                    return Err(self.lexer.error("a statement (performance directives stand before `{`)"));
                }
                Token::Dot(_) => {
                    let linkage = self.linkage()?;
                    self.local_variables(linkage, &mut out)?;
                }
                Token::Ident(name) if self.lexer.peek_second()? == Token::Punct(':') => {
                    self.lexer.take()?;
                    self.lexer.take()?;
                    let name = name.to_owned();
                    out.push(self.labelled(name, line)?);
                }
                Token::Ident(_) | Token::Punct('@') => out.push(Statement::Instruction(self.instruction()?)),
                _ => return Err(self.lexer.error("a statement or `}`")),
            }
        }
    }

    fn local_variables(&mut self, linkage: Linkage, out: &mut Vec<Statement>) -> Result<()> {
        match self.lexer.token() {
            Token::Dot(name) if space(name).is_some() => {
                let mut variables = Vec::new();
                self.variables(linkage, &mut variables)?;
                out.extend(variables.into_iter().map(Statement::Variable));
                Ok(())
            }
            _ => Err(self.lexer.error("a declaration or a directive of a body")),
        }
    }

    /// What follows `name:`.
    fn labelled(&mut self, name: String, line: u32) -> Result<Statement> {
        let Token::Dot(directive @ ("branchtargets" | "calltargets" | "callprototype")) = self.lexer.token()
        else {
            return Ok(Statement::Label { name, line });
        };
        self.lexer.take()?;
        if directive == "callprototype" {
            let returns = match self.lexer.token() {
                Token::Punct('(') => self.parameters()?,
                _ => Vec::new(),
            };
            self.name("`_`")?;
            let params = match self.lexer.token() {
                Token::Punct('(') => self.parameters()?,
                _ => Vec::new(),
            };
            while let Token::Dot("noreturn" | "abi_preserve" | "abi_preserve_control") = self.lexer.token() {
                self.lexer.take()?;
                if let Token::Number(_) = self.lexer.token() {
                    self.lexer.take()?;
                }
            }
            self.punct(';')?;
            return Ok(Statement::CallPrototype { name, prototype: Prototype { returns, params }, line });
        }
        let targets = self.names()?;
        self.punct(';')?;
        Ok(match directive {
            "branchtargets" => Statement::BranchTargets { name, targets, line },
            _ => Statement::CallTargets { name, targets, line },
        })
    }

    fn instruction(&mut self) -> Result<Instruction> {
        let guard = if self.accept('@')? {
            let negated = self.accept('!')?;
            Some((negated, self.name("a predicate")?))
        } else {
            None
        };
        let line = self.lexer.line();
        let opcode = self.name("an instruction")?;
        let mut modifiers = Vec::new();
        while let Token::Dot(modifier) = self.lexer.token() {
            modifiers.push(modifier.to_owned());
            self.lexer.take()?;
        }
        let mut operands = Vec::new();
        while !self.accept(';')? {
            if !operands.is_empty() {
                if self.lexer.token() != Token::Punct(',') {
                    return Err(self.lexer.error("`,` or `;`"));
                }
                self.lexer.take()?;
            }
            operands.push(if self.lexer.token() == Token::Punct('(') && opcode == "call" {
                self.lexer.take()?;
                Operand::Group(self.list(')')?)
            } else {
                self.operand()?
            });
        }
        Ok(Instruction { guard, opcode, modifiers, operands, line })
    }
}
