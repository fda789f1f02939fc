//! Variables, parameters and function heads.

use super::expression::Constant;
use super::{Parser, Result};
use crate::ptx::ast::{
    Function, FunctionAttributes, FunctionKind, InitValue, Linkage, Pointer, Space, Type, Variable,
};
use crate::ptx::lexer::Token;

/// Most array extents, and deepest nesting of braces in an initial value.
const MOST_DIMS: usize = 16;

pub(super) fn space(name: &str) -> Option<Space> {
    Some(match name {
        "reg" => Space::Reg,
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" | "param::entry" | "param::func" => Space::Param,
        "tex" => Space::Tex,
        _ => return None,
    })
}

impl Parser<'_> {
    /// `.space …type name, name…;` with initial values.
    pub(super) fn variables(&mut self, linkage: Linkage, into: &mut Vec<Variable>) -> Result<()> {
        let head = self.variable_head(linkage)?;
        loop {
            let mut variable = head.clone();
            self.declarator(&mut variable)?;
            if self.accept('=')? {
                self.initial_value(&mut variable)?;
            }
            if variable.bytes().is_none() {
                return Err(self.lexer.error(format!("a size below 2^63 for `{}` before", variable.name)));
            }
            into.push(variable);
            if !self.accept(',')? {
                return self.punct(';');
            }
        }
    }

    /// Everything before the name.
    fn variable_head(&mut self, linkage: Linkage) -> Result<Variable> {
        let mut head = Variable {
            name: String::new(),
            space: Space::Global,
            ty: Type::B8,
            vector: 1,
            align: None,
            dims: Vec::new(),
            count: None,
            pointer: None,
            linkage,
            managed: false,
            init: Vec::new(),
            line: self.lexer.line(),
        };
        let Token::Dot(name) = self.lexer.token() else { return Err(self.lexer.error("a state space")) };
        head.space = space(name).ok_or_else(|| self.lexer.error("a directive or a state space"))?;
        self.lexer.take()?;
        // `.const[3]`: banks of old versions.
        if self.accept('[')? {
            self.integer("a bank")?;
            self.punct(']')?;
        }
        let mut typed = false;
        while let Token::Dot(name) = self.lexer.token() {
            match name {
                "align" => {
                    self.lexer.take()?;
                    head.align = Some(self.alignment()?);
                    continue;
                }
                "v2" => head.vector = 2,
                "v4" => head.vector = 4,
                "v8" => head.vector = 8,
                "attribute" => {
                    self.lexer.take()?;
                    self.attribute(&mut head)?;
                    continue;
                }
                "ptr" => {
                    self.lexer.take()?;
                    head.pointer = Some(self.pointer()?);
                    continue;
                }
                "hidden" => {}
                _ => {
                    head.ty = Type::from_name(name).ok_or_else(|| self.lexer.error("a type"))?;
                    typed = true;
                }
            }
            self.lexer.take()?;
        }
        if typed { Ok(head) } else { Err(self.lexer.error("a type")) }
    }

    fn alignment(&mut self) -> Result<u32> {
        let error = self.lexer.error("an alignment: a power of two up to 2^16");
        match self.integer("an alignment")? {
            n if n.is_power_of_two() && n <= 1 << 16 => Ok(n as u32),
            _ => Err(error),
        }
    }

    fn pointer(&mut self) -> Result<Pointer> {
        let mut pointer = Pointer { space: None, align: 4 };
        loop {
            match self.lexer.token() {
                Token::Dot("align") => {
                    self.lexer.take()?;
                    pointer.align = self.alignment()?;
                }
                Token::Dot(name) if space(name).is_some() => {
                    pointer.space = space(name);
                    self.lexer.take()?;
                }
                _ => return Ok(pointer),
            }
        }
    }

    /// `(.managed, .unified(1, 2))`
    fn attribute(&mut self, head: &mut Variable) -> Result<()> {
        self.punct('(')?;
        let mut depth = 1u32;
        while depth > 0 {
            match self.lexer.take()? {
                Token::Punct('(') => depth = depth.saturating_add(1),
                Token::Punct(')') => depth -= 1,
                Token::Dot("managed") => head.managed = true,
                Token::End => return Err(self.lexer.error("`)`")),
                _ => {}
            }
        }
        Ok(())
    }

    /// `name`, `name<18>`, `name[4][]`.
    fn declarator(&mut self, variable: &mut Variable) -> Result<()> {
        variable.line = self.lexer.line();
        variable.name = self.name("a name")?;
        if self.accept('<')? {
            variable.count = Some(self.u32("a count")?);
            self.punct('>')?;
        }
        while self.accept('[')? {
            let dim = match self.lexer.token() {
                Token::Punct(']') => 0,
                _ => self.integer("an array extent")?,
            };
            self.punct(']')?;
            if variable.dims.len() == MOST_DIMS {
                return Err(self.lexer.error("fewer array extents before"));
            }
            variable.dims.push(dim);
        }
        Ok(())
    }

    /// `5`, `{1, 2}`, `{{1}, {2, 3}}`, `"text"`.
    fn initial_value(&mut self, variable: &mut Variable) -> Result<()> {
        if self.lexer.token() != Token::Punct('{') {
            let value = self.init_element()?;
            variable.init.push((0, value));
            return Ok(());
        }
        // Elements that one step at nesting level n (from 1) covers.
        let lanes = u64::from(variable.vector);
        let mut steps: Vec<u64> = vec![1; variable.dims.len().max(1)];
        if variable.vector > 1 {
            steps.push(1);
            let before = steps.len() - 2;
            steps[before] = lanes;
        }
        for level in (0..steps.len().saturating_sub(1)).rev() {
            if let Some(&dim) = variable.dims.get(level + 1) {
                steps[level] = steps[level + 1].saturating_mul(dim.max(1));
            }
        }
        self.lexer.take()?;
        // (first element, elements taken so far) of each open brace.
        let mut open: Vec<(u64, u64)> = vec![(0, 0)];
        let mut highest = 0u64;
        while let Some(&(first, count)) = open.last() {
            let level = open.len() - 1;
            match self.lexer.token() {
                Token::Punct('{') => {
                    if level + 1 >= steps.len() {
                        return Err(self.lexer.error("an initial value (too many braces)"));
                    }
                    self.lexer.take()?;
                    open.push((first.saturating_add(count), 0));
                    continue;
                }
                Token::Punct('}') => {
                    self.lexer.take()?;
                    open.pop();
                    if let Some((_, count)) = open.last_mut() {
                        *count = count.saturating_add(steps[level - 1]);
                    }
                }
                _ => {
                    let value = self.init_element()?;
                    let index = first.saturating_add(count);
                    highest = highest.max(index.saturating_add(1));
                    variable.init.push((index, value));
                    if let Some((_, count)) = open.last_mut() {
                        *count = count.saturating_add(1);
                    }
                }
            }
            if !open.is_empty() && self.lexer.token() != Token::Punct('}') {
                self.punct(',')?;
            }
        }
        // `x[] = {1, 2}` takes its extent from the values.
        if variable.dims.first() == Some(&0) {
            variable.dims[0] = highest.div_ceil(steps[0]);
        }
        let total = variable.dims.iter().fold(lanes, |n, &d| n.saturating_mul(d));
        if highest > total {
            return Err(self.lexer.error(format!("at most {total} initial values for `{}`", variable.name)));
        }
        Ok(())
    }

    fn init_element(&mut self) -> Result<InitValue> {
        match self.lexer.token() {
            Token::Ident("generic") => {
                self.lexer.take()?;
                self.punct('(')?;
                let name = self.name("a symbol")?;
                self.punct(')')?;
                self.symbol(name, true, None)
            }
            Token::Ident(name) if name != "WARP_SZ" => {
                self.lexer.take()?;
                self.symbol(name.to_owned(), false, None)
            }
            // mask(symbol)
            Token::Number(_) if self.lexer.peek_second()? == Token::Punct('(') => {
                let mask = self.u64_literal()?;
                self.punct('(')?;
                let mut name = self.name("a symbol")?;
                let generic = name == "generic" && self.accept('(')?;
                if generic {
                    name = self.name("a symbol")?;
                    self.punct(')')?;
                }
                self.punct(')')?;
                self.symbol(name, generic, Some(mask))
            }
            _ => Ok(match self.constant()? {
                Constant::Integer(v) | Constant::Unsigned(v) => InitValue::Integer(v),
                Constant::Float32(v) => InitValue::Float32(v),
                Constant::Float64(v) => InitValue::Float64(v),
            }),
        }
    }

    fn u64_literal(&mut self) -> Result<u64> {
        let error = self.lexer.error("a mask");
        let Token::Number(text) = self.lexer.take()? else { return Err(error) };
        match super::expression::literal(text) {
            Some(Constant::Integer(v) | Constant::Unsigned(v)) => Ok(v),
            _ => Err(error),
        }
    }

    fn symbol(&mut self, name: String, generic: bool, mask: Option<u64>) -> Result<InitValue> {
        let mut offset = 0i64;
        while matches!(self.lexer.token(), Token::Punct('+' | '-')) {
            let negative = self.lexer.take()? == Token::Punct('-');
            let value = self.integer("an offset")? as i64;
            offset = if negative { offset.wrapping_sub(value) } else { offset.wrapping_add(value) };
        }
        Ok(InitValue::Symbol { name, offset, generic, mask })
    }

    /// `( .param …, .param … )`, possibly empty.
    pub(super) fn parameters(&mut self) -> Result<Vec<Variable>> {
        self.punct('(')?;
        let mut params = Vec::new();
        let mut total = 0u64;
        if self.accept(')')? {
            return Ok(params);
        }
        loop {
            while let Token::Dot("hidden") = self.lexer.token() {
                self.lexer.take()?;
            }
            let mut param = self.variable_head(Linkage::Internal)?;
            if !matches!(param.space, Space::Param | Space::Reg) {
                return Err(self.lexer.error("a parameter in `.param` or `.reg` before"));
            }
            self.declarator(&mut param)?;
            // Sizes stay far from overflow; CUDA allows 32 764 bytes in all.
            total = param.bytes().and_then(|n| total.checked_add(n)).unwrap_or(u64::MAX);
            if total > 1 << 24 || param.count.is_some() {
                return Err(self.lexer.error("a parameter of reasonable size before"));
            }
            params.push(param);
            if self.accept(')')? {
                return Ok(params);
            }
            self.punct(',')?;
        }
    }

    /// `.entry` or `.func`, up to the end of its body or declaration.
    pub(super) fn function(&mut self, linkage: Linkage) -> Result<Function> {
        let kind = match self.lexer.take()? {
            Token::Dot("entry") => FunctionKind::Entry,
            _ => FunctionKind::Func,
        };
        while let Token::Dot("attribute") = self.lexer.token() {
            self.lexer.take()?;
            let mut ignored = self.blank();
            self.attribute(&mut ignored)?;
        }
        let returns = match self.lexer.token() {
            Token::Punct('(') if kind == FunctionKind::Func => self.parameters()?,
            _ => Vec::new(),
        };
        let line = self.lexer.line();
        let name = self.name("a function name")?;
        let params = match self.lexer.token() {
            Token::Punct('(') => self.parameters()?,
            _ => Vec::new(),
        };
        let attributes = self.function_attributes()?;
        let body = if self.accept(';')? { None } else { Some(self.body()?) };
        Ok(Function { name, kind, linkage, returns, params, attributes, body, line })
    }

    fn blank(&self) -> Variable {
        Variable {
            name: String::new(),
            space: Space::Global,
            ty: Type::B8,
            vector: 1,
            align: None,
            dims: Vec::new(),
            count: None,
            pointer: None,
            linkage: Linkage::Internal,
            managed: false,
            init: Vec::new(),
            line: self.lexer.line(),
        }
    }

    fn function_attributes(&mut self) -> Result<FunctionAttributes> {
        let mut all = FunctionAttributes::default();
        while let Token::Dot(name) = self.lexer.token() {
            match name {
                "pragma" => {
                    self.pragma()?;
                    continue;
                }
                "maxntid"
                | "reqntid"
                | "reqnctapercluster"
                | "minnctapersm"
                | "maxnctapersm"
                | "maxnreg"
                | "maxclusterrank"
                | "noreturn"
                | "explicitcluster"
                | "blocksareclusters"
                | "abi_preserve"
                | "abi_preserve_control" => {}
                _ => return Err(self.lexer.error("a function directive, `{` or `;`")),
            }
            self.lexer.take()?;
            match name {
                "maxntid" => all.max_threads = Some(self.extents()?),
                "reqntid" => all.required_block = Some(self.extents()?),
                "reqnctapercluster" => all.cluster.required = Some(self.extents()?),
                "minnctapersm" => all.min_blocks = Some(self.u32("a count")?),
                "maxnctapersm" => all.max_blocks = Some(self.u32("a count")?),
                "maxnreg" => all.max_registers = Some(self.u32("a count")?),
                "maxclusterrank" => all.cluster.max_rank = Some(self.u32("a count")?),
                "noreturn" => all.no_return = true,
                "explicitcluster" => all.cluster.explicit = true,
                "blocksareclusters" => all.cluster.blocks_are_clusters = true,
                _ => drop(self.u32("a count")?),
            }
        }
        Ok(all)
    }

    fn extents(&mut self) -> Result<[u32; 3]> {
        let mut extents = [1; 3];
        for (i, extent) in extents.iter_mut().enumerate() {
            if i > 0 && !self.accept(',')? {
                break;
            }
            *extent = self.u32("an extent")?;
        }
        Ok(extents)
    }
}
