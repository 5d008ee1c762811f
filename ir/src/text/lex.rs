//! The tokens of the text form.

use super::names::is_name_byte;
use crate::diag::{Diagnostic, DiagnosticCode, Result};

/// A name behind a sigil: `%x`, `@"odd name"`, `?b`, with the number that tells equal names apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SigilName {
    pub(super) text: String,
    pub(super) number: u32,
    pub(super) quoted: bool,
}

impl SigilName {
    /// What makes two occurrences the same name.
    pub(super) fn key(&self) -> (String, u32) {
        (self.text.clone(), self.number)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tok {
    /// Letters, digits, `_` and inner `.`, not beginning with a digit.
    Word(String),
    /// A number without sign, as written.
    Number(String),
    Str(String),
    /// One of `%@$?` and a name; `%` may carry a port.
    Sigil(char, SigilName, Option<u16>),
    Punct(char),
    DotDot,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pos {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Pos {
    /// A syntax error here.
    pub(super) fn error(self, why: impl std::fmt::Display) -> Diagnostic {
        self.diagnostic(DiagnosticCode::Syntax, why)
    }

    pub(super) fn diagnostic(self, code: DiagnosticCode, why: impl std::fmt::Display) -> Diagnostic {
        Diagnostic::new(code, format!("{}:{}: {why}", self.line, self.column))
    }
}

impl std::fmt::Display for Tok {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tok::Word(w) | Tok::Number(w) => write!(f, "`{w}`"),
            Tok::Str(_) => f.write_str("a string"),
            Tok::Sigil(c, name, _) => write!(f, "`{c}{}`", name.text),
            Tok::Punct(c) => write!(f, "`{c}`"),
            Tok::DotDot => f.write_str("`..`"),
            Tok::End => f.write_str("the end of the text"),
        }
    }
}

struct Lexer<'t> {
    rest: &'t str,
    pos: Pos,
}

/// All tokens, the last being [`Tok::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<(Tok, Pos)>> {
    let mut lexer = Lexer { rest: text, pos: Pos { line: 1, column: 1 } };
    let mut out = vec![];
    loop {
        lexer.skip_blank();
        let pos = lexer.pos;
        let tok = lexer.token()?;
        let end = tok == Tok::End;
        out.push((tok, pos));
        if end {
            return Ok(out);
        }
    }
}

impl<'t> Lexer<'t> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// The byte `n` places ahead, 0 past the end.
    fn byte(&self, n: usize) -> u8 {
        self.rest.as_bytes().get(n).copied().unwrap_or(0)
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        match c {
            '\n' => self.pos = Pos { line: self.pos.line.saturating_add(1), column: 1 },
            _ => self.pos.column = self.pos.column.saturating_add(1),
        }
        Some(c)
    }

    /// Takes `n` bytes, all of them ASCII other than newlines.
    fn take(&mut self, n: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(n);
        self.rest = rest;
        self.pos.column = self.pos.column.saturating_add(n as u32);
        taken
    }

    fn skip_blank(&mut self) {
        while let Some(c) = self.peek() {
            if c.is_whitespace() {
                self.bump();
            } else if self.rest.starts_with("//") {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.bump();
                }
            } else {
                return;
            }
        }
    }

    fn token(&mut self) -> Result<Tok> {
        let Some(c) = self.peek() else { return Ok(Tok::End) };
        match c {
            '"' => self.string().map(Tok::Str),
            '%' | '@' | '$' | '?' => self.sigil(c),
            c if c.is_ascii_digit() => Ok(Tok::Number(self.number())),
            c if c.is_ascii_alphabetic() || c == '_' => Ok(Tok::Word(self.bare().to_string())),
            '.' if self.byte(1) == b'.' => {
                self.take(2);
                Ok(Tok::DotDot)
            }
            '(' | ')' | '[' | ']' | '{' | '}' | ',' | ':' | '=' | '+' | '-' | '*' | '|' => {
                self.bump();
                Ok(Tok::Punct(c))
            }
            c => Err(self.pos.error(format!("unexpected character {c:?}"))),
        }
    }

    /// Name characters, and `.` wherever one follows it.
    fn bare(&mut self) -> &'t str {
        let mut n = 0;
        while is_name_byte(self.byte(n)) || (n > 0 && self.byte(n) == b'.' && is_name_byte(self.byte(n + 1))) {
            n += 1;
        }
        self.take(n)
    }

    fn digits(&self, mut n: usize) -> usize {
        while self.byte(n).is_ascii_digit() {
            n += 1;
        }
        n
    }

    fn number(&mut self) -> String {
        if self.rest.starts_with("0x") {
            let mut n = 2;
            while self.byte(n).is_ascii_hexdigit() {
                n += 1;
            }
            return self.take(n).to_string();
        }
        let mut n = self.digits(0);
        if self.byte(n) == b'.' && self.byte(n + 1).is_ascii_digit() {
            n = self.digits(n + 1);
        }
        if matches!(self.byte(n), b'e' | b'E') {
            let sign = usize::from(matches!(self.byte(n + 1), b'+' | b'-'));
            if self.byte(n + 1 + sign).is_ascii_digit() {
                n = self.digits(n + 1 + sign);
            }
        }
        self.take(n).to_string()
    }

    fn sigil(&mut self, sigil: char) -> Result<Tok> {
        let start = self.pos;
        self.bump();
        let quoted = self.byte(0) == b'"';
        let text = match quoted {
            true => self.string()?,
            false => self.bare().to_string(),
        };
        if text.is_empty() && !quoted {
            return match sigil {
                '?' => Ok(Tok::Punct('?')),
                _ => Err(start.error(format!("expected a name after `{sigil}`"))),
            };
        }
        let mut number = 0;
        if self.byte(0) == b'#' && self.byte(1).is_ascii_digit() {
            self.bump();
            number = self.small(start)?;
        }
        let mut port = None;
        if sigil == '%' && self.byte(0) == b':' && self.byte(1).is_ascii_digit() {
            self.bump();
            port = Some(u16::try_from(self.small(start)?).map_err(|_| start.error("the port is out of range"))?);
        }
        Ok(Tok::Sigil(sigil, SigilName { text, number, quoted }, port))
    }

    fn small(&mut self, start: Pos) -> Result<u32> {
        let n = self.digits(0);
        self.take(n).parse().map_err(|_| start.error("the number in a name is out of range"))
    }

    fn string(&mut self) -> Result<String> {
        let start = self.pos;
        self.bump();
        let mut out = String::new();
        loop {
            let at = self.pos;
            match self.bump() {
                None | Some('\n') => return Err(start.error("the string does not end on its line")),
                Some('"') => return Ok(out),
                Some('\\') => match self.bump() {
                    Some(c @ ('"' | '\\')) => out.push(c),
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some('r') => out.push('\r'),
                    Some('u') => out.push(self.unicode(at)?),
                    _ => return Err(at.error("unknown escape in a string")),
                },
                Some(c) => out.push(c),
            }
        }
    }

    /// `{hex}` after `\u`.
    fn unicode(&mut self, at: Pos) -> Result<char> {
        let mut n = 1;
        while self.byte(n).is_ascii_hexdigit() && n < 8 {
            n += 1;
        }
        if self.byte(0) != b'{' || self.byte(n) != b'}' {
            return Err(at.error("expected `\\u{hex}` in a string"));
        }
        let text = self.take(n + 1);
        let code = u32::from_str_radix(&text[1..n], 16).ok();
        code.and_then(char::from_u32).ok_or_else(|| at.error("not a character"))
    }
}
