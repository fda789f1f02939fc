//! Literals, constant expressions and operands.

use super::{Parser, Result};
use crate::ptx::ast::Operand;
use crate::ptx::lexer::Token;

/// Deepest nesting of parentheses and unary operators.
const DEPTH: u32 = 48;

/// A constant. Expressions follow the table of PTX ISA 4.5.6: integers have 64 bits and are signed unless a literal says otherwise or
/// is too large; where one of two operands is unsigned, both are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Constant {
    Integer(u64),
    Unsigned(u64),
    Float32(u32),
    Float64(u64),
}

impl Constant {
    fn integer(self) -> Option<u64> {
        match self {
            Self::Integer(v) | Self::Unsigned(v) => Some(v),
            _ => None,
        }
    }

    fn of(value: u64, unsigned: bool) -> Self {
        if unsigned { Self::Unsigned(value) } else { Self::Integer(value) }
    }
}

pub(super) fn literal(text: &str) -> Option<Constant> {
    let lower = text.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f") {
        return (hex.len() == 8).then(|| u32::from_str_radix(hex, 16).ok().map(Constant::Float32))?;
    }
    if let Some(hex) = lower.strip_prefix("0d") {
        return (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok().map(Constant::Float64))?;
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let (digits, radix) = if let Some(hex) = digits.strip_prefix("0x") {
        (hex, 16)
    } else if let Some(binary) = digits.strip_prefix("0b") {
        (binary, 2)
    } else if digits.contains(['.', 'e']) {
        return digits.parse::<f64>().ok().map(|v| Constant::Float64(v.to_bits()));
    } else if digits.len() > 1 && digits.starts_with('0') {
        (&digits[1..], 8)
    } else {
        (digits, 10)
    };
    let value = u64::from_str_radix(digits, radix).ok()?;
    Some(Constant::of(value, lower.ends_with('u') || i64::try_from(value).is_err()))
}

impl Parser<'_> {
    pub(super) fn integer(&mut self, what: &str) -> Result<u64> {
        let error = self.lexer.error(what);
        self.constant()?.integer().ok_or(error)
    }

    /// A plain literal that fits 32 bits.
    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        let Token::Number(text) = self.lexer.token() else { return Err(self.lexer.error(what)) };
        let value = literal(text).and_then(Constant::integer).and_then(|v| u32::try_from(v).ok());
        let value = value.ok_or_else(|| self.lexer.error(format!("{what} below 2^32")))?;
        self.lexer.take()?;
        Ok(value)
    }

    /// A constant expression.
    pub(super) fn constant(&mut self) -> Result<Constant> {
        self.binary(0, DEPTH)
    }

    /// A constant without a binary operator at its top: what may follow `+` in an address.
    pub(super) fn unary(&mut self, depth: u32) -> Result<Constant> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.lexer.error("less nesting in a constant expression"));
        };
        let error = self.lexer.error("a constant");
        match self.lexer.token() {
            Token::Number(text) => {
                let value = literal(text).ok_or(error)?;
                self.lexer.take()?;
                Ok(value)
            }
            Token::Ident("WARP_SZ") => {
                self.lexer.take()?;
                Ok(Constant::Integer(32))
            }
            Token::Punct('+') => {
                self.lexer.take()?;
                self.unary(depth)
            }
            Token::Punct('-') => {
                self.lexer.take()?;
                Ok(match self.unary(depth)? {
                    Constant::Integer(v) => Constant::Integer(v.wrapping_neg()),
                    Constant::Unsigned(v) => Constant::Unsigned(v.wrapping_neg()),
                    Constant::Float32(v) => Constant::Float32(v ^ 1 << 31),
                    Constant::Float64(v) => Constant::Float64(v ^ 1 << 63),
                })
            }
            Token::Punct('~') => {
                self.lexer.take()?;
                self.unary(depth)?.integer().map(|v| Constant::Unsigned(!v)).ok_or(error)
            }
            Token::Punct('!') => {
                self.lexer.take()?;
                self.unary(depth)?.integer().map(|v| Constant::Integer(u64::from(v == 0))).ok_or(error)
            }
            Token::Punct('(') => {
                self.lexer.take()?;
                // A cast: (.s64) or (.u64).
                if let Token::Dot(ty @ ("s64" | "u64")) = self.lexer.token() {
                    self.lexer.take()?;
                    self.punct(')')?;
                    let value = self.unary(depth)?.integer().ok_or(error)?;
                    return Ok(Constant::of(value, ty == "u64"));
                }
                let value = self.binary(0, depth)?;
                self.punct(')')?;
                Ok(value)
            }
            _ => Err(error),
        }
    }

    fn binary(&mut self, least: u32, depth: u32) -> Result<Constant> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.lexer.error("less nesting in a constant expression"));
        };
        let mut left = self.unary(depth)?;
        loop {
            let (operator, rank) = match self.lexer.token() {
                Token::Punct('?') if least == 0 => ("?", 0),
                Token::Operator("||") => ("||", 1),
                Token::Operator("&&") => ("&&", 2),
                Token::Punct('|') => ("|", 3),
                Token::Punct('^') => ("^", 4),
                Token::Punct('&') => ("&", 5),
                Token::Operator(op @ ("==" | "!=")) => (op, 6),
                Token::Operator(op @ ("<=" | ">=")) => (op, 7),
                Token::Punct('<') => ("<", 7),
                Token::Punct('>') => (">", 7),
                Token::Operator(op @ ("<<" | ">>")) => (op, 8),
                Token::Punct('+') => ("+", 9),
                Token::Punct('-') => ("-", 9),
                Token::Punct('*') => ("*", 10),
                Token::Punct('/') => ("/", 10),
                // Alone it is no name.
                Token::Ident("%") => ("%", 10),
                _ => return Ok(left),
            };
            if rank < least {
                return Ok(left);
            }
            let error = self.lexer.error("two integers or two numbers of f64 that the operator is for");
            self.lexer.take()?;
            if operator == "?" {
                let yes = self.binary(1, depth)?;
                self.punct(':')?;
                let no = self.binary(0, depth)?;
                let chosen = if left.integer().ok_or(error)? != 0 { yes } else { no };
                let unsigned = matches!(yes, Constant::Unsigned(_)) || matches!(no, Constant::Unsigned(_));
                left = chosen.integer().map_or(chosen, |value| Constant::of(value, unsigned));
                continue;
            }
            let right = self.binary(rank + 1, depth)?;
            left = fold(operator, left, right).ok_or(error)?;
        }
    }

    /// One operand of an instruction.
    pub(super) fn operand(&mut self) -> Result<Operand> {
        let first = self.simple_operand()?;
        if self.lexer.token() == Token::Punct('|') && !matches!(first, Operand::Integer(_)) {
            self.lexer.take()?;
            let second = self.simple_operand()?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple_operand(&mut self) -> Result<Operand> {
        match self.lexer.token() {
            Token::Punct('[') => self.address(),
            Token::Punct('{') => {
                self.lexer.take()?;
                Ok(Operand::Vector(self.list('}')?))
            }
            Token::Punct('!') if matches!(self.lexer.peek_second()?, Token::Ident(_)) => {
                self.lexer.take()?;
                Ok(Operand::Not(self.name("a predicate")?))
            }
            _ => self.scalar(),
        }
    }

    /// Names and constants.
    fn scalar(&mut self) -> Result<Operand> {
        match self.lexer.token() {
            Token::Ident("_") => {
                self.lexer.take()?;
                Ok(Operand::Sink)
            }
            Token::Ident(name) if name != "WARP_SZ" => {
                self.lexer.take()?;
                let mut name = name.to_owned();
                if let Token::Dot(member) = self.lexer.token() {
                    name.push('.');
                    name.push_str(member);
                    self.lexer.take()?;
                }
                Ok(match self.offset()? {
                    Some(offset) => Operand::Offset(name, offset),
                    None => Operand::Name(name),
                })
            }
            _ => Ok(match self.constant().map_err(|e| self.as_operand(e))? {
                Constant::Integer(v) | Constant::Unsigned(v) => Operand::Integer(v),
                Constant::Float32(v) => Operand::Float32(v),
                Constant::Float64(v) => Operand::Float64(v),
            }),
        }
    }

    fn as_operand(&self, mut error: crate::ptx::PtxError) -> crate::ptx::PtxError {
        if error.expected == "a constant" {
            error.expected = "an operand".to_owned();
        }
        error
    }

    /// `+8`, `+-8` or `-8` after a name.
    fn offset(&mut self) -> Result<Option<i64>> {
        let negative = match self.lexer.token() {
            Token::Punct('+') => false,
            Token::Punct('-') => true,
            _ => return Ok(None),
        };
        self.lexer.take()?;
        let error = self.lexer.error("an offset");
        let value = self.unary(DEPTH)?.integer().ok_or(error)? as i64;
        Ok(Some(if negative { value.wrapping_neg() } else { value }))
    }

    fn address(&mut self) -> Result<Operand> {
        self.lexer.take()?;
        let (base, offset) = match self.scalar()? {
            Operand::Offset(name, offset) => (Operand::Name(name), offset),
            base => (base, 0),
        };
        let mut more = Vec::new();
        while self.accept(',')? {
            match self.lexer.token() {
                Token::Punct('{') => {
                    self.lexer.take()?;
                    more.push(Operand::Vector(self.list('}')?));
                }
                _ => more.push(self.scalar()?),
            }
        }
        self.punct(']')?;
        Ok(Operand::Address { base: Box::new(base), offset, more })
    }

    /// Scalars up to a closing bracket, which is taken.
    pub(super) fn list(&mut self, close: char) -> Result<Vec<Operand>> {
        let mut items = Vec::new();
        if self.accept(close)? {
            return Ok(items);
        }
        loop {
            items.push(match self.lexer.token() {
                Token::Punct('!') => self.simple_operand()?,
                _ => self.scalar()?,
            });
            if self.accept(close)? {
                return Ok(items);
            }
            if !self.accept(',')? {
                return Err(self.lexer.error(format!("`,` or `{close}`")));
            }
        }
    }
}

/// One binary operator; `None` for operands that it is not for, and a division by zero.
fn fold(operator: &str, left: Constant, right: Constant) -> Option<Constant> {
    let truth = |is: bool| Constant::Integer(u64::from(is));
    if let (Constant::Float64(a), Constant::Float64(b)) = (left, right) {
        let (a, b) = (f64::from_bits(a), f64::from_bits(b));
        let number = |value: f64| Constant::Float64(value.to_bits());
        return Some(match operator {
            "+" => number(a + b),
            "-" => number(a - b),
            "*" => number(a * b),
            "/" => number(a / b),
            "==" => truth(a == b),
            "!=" => truth(a != b),
            "<=" => truth(a <= b),
            ">=" => truth(a >= b),
            "<" => truth(a < b),
            ">" => truth(a > b),
            _ => return None,
        });
    }
    let (a, b) = (left.integer()?, right.integer()?);
    let unsigned_left = matches!(left, Constant::Unsigned(_));
    let unsigned = unsigned_left || matches!(right, Constant::Unsigned(_));
    let (x, y) = (a as i64, b as i64);
    let less = if unsigned { a < b } else { x < y };
    let by = u32::try_from(b).unwrap_or(u32::MAX);
    Some(match operator {
        "||" => truth(a != 0 || b != 0),
        "&&" => truth(a != 0 && b != 0),
        "|" => Constant::Unsigned(a | b),
        "^" => Constant::Unsigned(a ^ b),
        "&" => Constant::Unsigned(a & b),
        "==" => truth(a == b),
        "!=" => truth(a != b),
        "<=" => truth(less || a == b),
        ">=" => truth(!less),
        "<" => truth(less),
        ">" => truth(!less && a != b),
        // The first operand keeps its type; a sign fills from the left.
        "<<" => Constant::of(a.checked_shl(by).unwrap_or(0), unsigned_left),
        ">>" if unsigned_left => Constant::Unsigned(a.checked_shr(by).unwrap_or(0)),
        ">>" => Constant::Integer((x >> by.min(63)) as u64),
        "+" => Constant::of(a.wrapping_add(b), unsigned),
        "-" => Constant::of(a.wrapping_sub(b), unsigned),
        "*" => Constant::of(a.wrapping_mul(b), unsigned),
        "/" if b == 0 => return None,
        "/" if unsigned => Constant::Unsigned(a / b),
        "/" => Constant::Integer(x.wrapping_div(y) as u64),
        // Of unsigned operands, with a signed result.
        "%" => Constant::Integer(a.checked_rem(b)?),
        _ => return None,
    })
}
