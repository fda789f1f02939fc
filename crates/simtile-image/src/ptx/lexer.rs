//! Text into tokens.

use super::PtxError;

/// One token. Text is borrowed from the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// Letters, digits, `_`, `$`, `%`; does not begin with a digit.
    Ident(&'a str),
    /// `.name`, without the dot, `::` included.
    Dot(&'a str),
    /// An integer or float literal as written.
    Number(&'a str),
    /// Between double quotes, as written.
    Text(&'a str),
    /// Anything else, one character.
    Punct(char),
    /// `<<` and `>>`, `==`, `!=`, `<=`, `>=`, `&&`, `||` of constant expressions.
    Operator(&'a str),
    /// End of the text.
    End,
}

/// A cursor over the text, one token ahead.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    /// The next token and its line.
    next: (Token<'a>, u32),
    /// The token after it, if it was asked for.
    second: Option<(Token<'a>, u32)>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Result<Self, PtxError> {
        let mut lexer = Self { text, at: 0, line: 1, next: (Token::End, 1), second: None };
        lexer.next = lexer.scan()?;
        Ok(lexer)
    }

    /// The next token.
    pub(super) fn token(&self) -> Token<'a> {
        self.next.0
    }

    /// Takes the next token.
    pub(super) fn take(&mut self) -> Result<Token<'a>, PtxError> {
        let token = self.next.0;
        self.next = match self.second.take() {
            Some(second) => second,
            None => self.scan()?,
        };
        Ok(token)
    }

    /// The token after the next.
    pub(super) fn peek_second(&mut self) -> Result<Token<'a>, PtxError> {
        if self.second.is_none() {
            self.second = Some(self.scan()?);
        }
        Ok(self.second.map_or(Token::End, |(token, _)| token))
    }

    /// Line of the next token.
    pub(super) fn line(&self) -> u32 {
        self.next.1
    }

    /// An error at the next token.
    pub(super) fn error(&self, expected: impl Into<String>) -> PtxError {
        let found = match self.next.0 {
            Token::Ident(text) | Token::Number(text) | Token::Operator(text) => format!("`{}`", short(text)),
            Token::Dot(text) => format!("`.{}`", short(text)),
            Token::Text(text) => format!("\"{}\"", short(text)),
            Token::Punct(c) => format!("`{}`", c.escape_default()),
            Token::End => "the end of the text".to_owned(),
        };
        PtxError { line: self.next.1, found, expected: expected.into() }
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn skip_blank(&mut self) -> Result<(), PtxError> {
        loop {
            let rest = self.rest();
            match rest {
                [b'\n', ..] => {
                    self.line = self.line.saturating_add(1);
                    self.at += 1;
                }
                [b' ' | b'\t' | b'\r' | 0x0b | 0x0c, ..] => self.at += 1,
                [b'/', b'/', ..] => {
                    self.at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
                }
                [b'/', b'*', ..] => {
                    let Some(end) = rest[2..].windows(2).position(|w| w == b"*/") else {
                        return Err(PtxError {
                            line: self.line,
                            found: "a comment without an end".to_owned(),
                            expected: "`*/`".to_owned(),
                        });
                    };
                    let lines = rest[..end + 4].iter().filter(|&&b| b == b'\n').count();
                    self.line = self.line.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
                    self.at += end + 4;
                }
                _ => return Ok(()),
            }
        }
    }

    fn scan(&mut self) -> Result<(Token<'a>, u32), PtxError> {
        self.skip_blank()?;
        let (line, start) = (self.line, self.at);
        let rest = self.rest();
        let Some(&first) = rest.first() else { return Ok((Token::End, line)) };
        let token = match first {
            b'0'..=b'9' => {
                self.at += number_length(rest);
                Token::Number(&self.text[start..self.at])
            }
            b'.' if rest.get(1).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_') => {
                self.at += 1 + dotted_length(&rest[1..]);
                Token::Dot(&self.text[start + 1..self.at])
            }
            b'"' => {
                let Some(length) = rest[1..].iter().position(|&b| b == b'"' || b == b'\n') else {
                    return Err(unclosed(line));
                };
                if rest[1 + length] == b'\n' {
                    return Err(unclosed(line));
                }
                self.at += length + 2;
                Token::Text(&self.text[start + 1..start + 1 + length])
            }
            _ if is_name(first) => {
                self.at += rest.iter().position(|&b| !is_name(b)).unwrap_or(rest.len());
                Token::Ident(&self.text[start..self.at])
            }
            _ => match rest {
                [b'<', b'<', ..]
                | [b'>', b'>', ..]
                | [b'=', b'=', ..]
                | [b'!', b'=', ..]
                | [b'<', b'=', ..]
                | [b'>', b'=', ..]
                | [b'&', b'&', ..]
                | [b'|', b'|', ..] => {
                    self.at += 2;
                    Token::Operator(&self.text[start..self.at])
                }
                _ => {
                    let c = self.text[start..].chars().next().unwrap_or('\0');
                    self.at += c.len_utf8();
                    Token::Punct(c)
                }
            },
        };
        Ok((token, line))
    }
}

fn unclosed(line: u32) -> PtxError {
    PtxError { line, found: "a string without an end".to_owned(), expected: "`\"`".to_owned() }
}

fn short(text: &str) -> String {
    let mut chars = text.chars();
    let head: String = chars.by_ref().take(40).collect();
    if chars.next().is_some() { head + "…" } else { head }
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'%')
}

fn dotted_length(rest: &[u8]) -> usize {
    let mut n = 0;
    loop {
        match rest.get(n) {
            Some(b) if b.is_ascii_alphanumeric() || *b == b'_' || *b == b'$' => n += 1,
            Some(b':') if rest.get(n + 1) == Some(&b':') => n += 2,
            _ => return n,
        }
    }
}

fn number_length(rest: &[u8]) -> usize {
    // 0x…, 0b…, 0f…, 0d… hold no sign; a decimal float may have one after its exponent.
    let prefixed = rest.len() > 1 && rest[0] == b'0' && rest[1].is_ascii_alphabetic();
    let mut n = 0;
    while let Some(&b) = rest.get(n) {
        let sign = matches!(b, b'+' | b'-') && !prefixed && n > 0 && matches!(rest[n - 1], b'e' | b'E');
        let point =
            b == b'.' && !prefixed && rest.get(n + 1).is_none_or(|b| !is_name(*b) || b.is_ascii_digit());
        if !(b.is_ascii_alphanumeric() || sign || point) {
            break;
        }
        n += 1;
    }
    n
}
