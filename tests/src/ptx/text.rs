//! The text of PTX as statements (PTX ISA, "Syntax", "Directives"): what LLVM's back end and our assembly write, and no more.

use super::Fault;

/// An operand of an instruction, its names not yet resolved.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    /// A register, a special register, a label, a variable, or `_`.
    Name(String),
    /// The bits of a number, of a negative one in two's complement.
    Number(u64),
    Vector(Vec<Operand>),
    /// `[base+offset, {coordinates}]`; without a base the offset is the address.
    Address {
        base: Option<String>,
        offset: i64,
        coordinates: Vec<Operand>,
    },
    /// `d|p`.
    Pair(Box<[Operand; 2]>),
}

#[derive(Clone, Debug)]
pub(super) enum Item {
    Open,
    Close,
    /// A class of registers, such as `b32`, and a name with how many are numbered from it (`%r<9>`), or none.
    Registers(String, String, Option<u32>),
    Label(String),
    /// Memory of a space, with its alignment and bytes.
    Variable(Variable),
    Instruction(Instruction),
}

#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub line: u32,
    /// A predicate, and whether the instruction is executed where it does not hold.
    pub guard: Option<(String, bool)>,
    pub opcode: String,
    pub operands: Vec<Operand>,
}

#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub space: String,
    pub name: String,
    pub align: u64,
    /// 0: as many as the launch gives.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct EntryText {
    pub name: String,
    pub params: Vec<Variable>,
    /// Most threads of a block.
    pub threads: Option<u64>,
    pub body: Vec<Item>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ModuleText {
    pub target: String,
    pub variables: Vec<Variable>,
    pub entries: Vec<EntryText>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Mark(char),
    End,
}

/// A token and its line, counted from 1.
type Placed = (Token, u32);

fn tokens(text: &str) -> Result<Vec<Placed>, Fault> {
    let mut found = vec![];
    let mut rest = text;
    let mut line = 1;
    let in_word = |c: char| c.is_ascii_alphanumeric() || "_$%.".contains(c);
    while let Some(c) = rest.chars().next() {
        let taken = if c.is_whitespace() {
            line += u32::from(c == '\n');
            c.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if in_word(c) {
            let mut end = 0;
            loop {
                end += rest[end..].find(|c| !in_word(c)).unwrap_or(rest.len() - end);
                // A qualifier such as `shared::cta`; one colon ends a label.
                match rest[end..].strip_prefix("::").and_then(|after| after.chars().next()) {
                    Some(next) if in_word(next) => end += 2,
                    _ => break,
                }
            }
            found.push((Token::Word(rest[..end].to_owned()), line));
            end
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').ok_or_else(|| Fault::at(line, "a text without an end"))? + 2;
            found.push((Token::Word(rest[..end].to_owned()), line));
            end
        } else if "{}[](),;:@!|+-<>".contains(c) {
            found.push((Token::Mark(c), line));
            1
        } else {
            return Err(Fault::at(line, format!("the character {c:?} is not known")));
        };
        rest = &rest[taken..];
    }
    found.push((Token::End, line));
    Ok(found)
}

/// The bits of a number: decimal, hexadecimal, or the bits of a float.
fn number(word: &str) -> Option<u64> {
    let digits = word.trim_end_matches('U');
    if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    for (prefix, length) in [("0f", 8), ("0F", 8), ("0d", 16), ("0D", 16)] {
        if let Some(hex) = word.strip_prefix(prefix).filter(|hex| hex.len() == length) {
            return u64::from_str_radix(hex, 16).ok();
        }
    }
    digits.parse().ok()
}

struct Parser {
    tokens: Vec<Placed>,
    at: usize,
}

pub(super) fn parse(text: &str) -> Result<ModuleText, Fault> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let mut module = ModuleText::default();
    loop {
        let line = parser.line();
        match parser.next() {
            Token::End => return Ok(module),
            Token::Word(word) => match &*word {
                ".version" | ".address_size" => drop(parser.word()?),
                ".target" => module.target = parser.word()?,
                ".visible" => {}
                ".entry" => module.entries.push(parser.entry()?),
                ".extern" => module.variables.push(parser.extern_variable()?),
                other => return Err(Fault::at(line, format!("the directive `{other}` is not known"))),
            },
            other => return Err(Fault::at(line, format!("{other:?} begins no directive"))),
        }
    }
}

impl Parser {
    fn line(&self) -> u32 {
        self.tokens[self.at].1
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].0.clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn fail<T>(&self, why: impl Into<String>) -> Result<T, Fault> {
        Err(Fault::at(self.line(), why))
    }

    fn takes(&mut self, mark: char) -> bool {
        let found = *self.peek() == Token::Mark(mark);
        self.at += usize::from(found);
        found
    }

    fn mark(&mut self, mark: char) -> Result<(), Fault> {
        if self.takes(mark) { Ok(()) } else { self.fail(format!("{:?} in place of `{mark}`", self.peek())) }
    }

    fn word(&mut self) -> Result<String, Fault> {
        match self.peek() {
            Token::Word(word) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            other => self.fail(format!("{other:?} in place of a word")),
        }
    }

    fn number(&mut self) -> Result<u64, Fault> {
        let negative = self.takes('-');
        let word = self.word()?;
        match number(&word) {
            Some(value) => Ok(if negative { value.wrapping_neg() } else { value }),
            None => self.fail(format!("`{word}` in place of a number")),
        }
    }

    fn entry(&mut self) -> Result<EntryText, Fault> {
        let mut entry = EntryText { name: self.word()?, ..EntryText::default() };
        if self.takes('(') {
            while !self.takes(')') {
                entry.params.push(self.parameter()?);
                self.takes(',');
            }
        }
        while !self.takes('{') {
            match &*self.word()? {
                ".maxntid" | ".reqntid" => entry.threads = Some(self.numbers()?.iter().product()),
                ".minnctapersm" | ".maxnreg" => drop(self.numbers()?),
                other => return self.fail(format!("the directive `{other}` of an entry is not known")),
            }
        }
        let mut depth = 1;
        while depth > 0 {
            self.statement(&mut entry.body)?;
            match entry.body.last() {
                Some(Item::Open) => depth += 1,
                Some(Item::Close) => depth -= 1,
                _ => {}
            }
        }
        entry.body.pop();
        Ok(entry)
    }

    fn numbers(&mut self) -> Result<Vec<u64>, Fault> {
        let mut all = vec![self.number()?];
        while self.takes(',') {
            all.push(self.number()?);
        }
        Ok(all)
    }

    /// `.param .u64 .ptr .global .align 16 name` or `.param .align 64 .b8 name[128]`.
    fn parameter(&mut self) -> Result<Variable, Fault> {
        match &*self.word()? {
            ".param" => self.variable("param"),
            other => self.fail(format!("`{other}` in place of a parameter")),
        }
    }

    fn extern_variable(&mut self) -> Result<Variable, Fault> {
        match &*self.word()? {
            ".shared" => {
                let variable = self.variable("shared")?;
                self.mark(';')?;
                Ok(variable)
            }
            other => self.fail(format!("external memory in `{other}` is not known")),
        }
    }

    /// What follows the space of a variable.
    fn variable(&mut self, space: &str) -> Result<Variable, Fault> {
        let (mut own, mut align, mut pointer) = (0, None, false);
        loop {
            let word = self.word()?;
            match &*word {
                ".align" => {
                    // The alignment of a pointer is that of what it points to.
                    let n = self.number()?;
                    align = if pointer { align } else { Some(n) };
                }
                ".ptr" => pointer = true,
                ".global" if pointer => {}
                _ if word.starts_with('.') => match super::types::Type::parse(&word[1..]) {
                    Some(ty) => own = u64::from(ty.bits() / 8),
                    None => return self.fail(format!("`{word}` of a variable is not known")),
                },
                _ => {
                    let mut bytes = own;
                    if self.takes('[') {
                        bytes = if *self.peek() == Token::Mark(']') { 0 } else { own * self.number()? };
                        self.mark(']')?;
                    }
                    return Ok(Variable { space: space.into(), name: word, align: align.unwrap_or(own).max(1), bytes });
                }
            }
        }
    }

    fn statement(&mut self, body: &mut Vec<Item>) -> Result<(), Fault> {
        if self.takes('{') {
            body.push(Item::Open);
            return Ok(());
        }
        if self.takes('}') {
            body.push(Item::Close);
            return Ok(());
        }
        let line = self.line();
        let mut guard = None;
        if self.takes('@') {
            let negated = self.takes('!');
            guard = Some((self.word()?, negated));
        }
        let opcode = self.word()?;
        if guard.is_none() && self.takes(':') {
            body.push(Item::Label(opcode));
            return Ok(());
        }
        match &*opcode {
            ".reg" => self.registers(body)?,
            ".local" | ".shared" => {
                let variable = self.variable(&opcode[1..])?;
                body.push(Item::Variable(variable));
            }
            // How the assembler writes a loop changes nothing.
            ".pragma" => match &*self.word()? {
                "\"nounroll\"" => {}
                other => return self.fail(format!("the pragma {other} is not known")),
            },
            _ if opcode.starts_with('.') => return self.fail(format!("the directive `{opcode}` is not known")),
            _ => {
                let mut operands = vec![];
                while *self.peek() != Token::Mark(';') {
                    if !operands.is_empty() {
                        self.mark(',')?;
                    }
                    operands.push(self.operand()?);
                }
                body.push(Item::Instruction(Instruction { line, guard, opcode, operands }));
            }
        }
        self.mark(';')
    }

    fn registers(&mut self, body: &mut Vec<Item>) -> Result<(), Fault> {
        let class = self.word()?;
        loop {
            let name = self.word()?;
            let mut count = None;
            if self.takes('<') {
                count = Some(self.number()? as u32);
                self.mark('>')?;
            }
            body.push(Item::Registers(class.trim_start_matches('.').to_owned(), name, count));
            if !self.takes(',') {
                return Ok(());
            }
        }
    }

    fn operand(&mut self) -> Result<Operand, Fault> {
        let first = self.simple()?;
        match self.takes('|') {
            true => Ok(Operand::Pair(Box::new([first, self.simple()?]))),
            false => Ok(first),
        }
    }

    fn simple(&mut self) -> Result<Operand, Fault> {
        if self.takes('{') {
            return Ok(Operand::Vector(self.list('}')?));
        }
        if self.takes('[') {
            return self.address();
        }
        let negative = *self.peek() == Token::Mark('-');
        if !negative
            && let Token::Word(word) = self.peek()
            && number(word).is_none()
        {
            return Ok(Operand::Name(self.word()?));
        }
        Ok(Operand::Number(self.number()?))
    }

    fn list(&mut self, end: char) -> Result<Vec<Operand>, Fault> {
        let mut all = vec![self.simple()?];
        while self.takes(',') {
            all.push(self.simple()?);
        }
        self.mark(end)?;
        Ok(all)
    }

    fn address(&mut self) -> Result<Operand, Fault> {
        let (base, mut offset) = match self.simple()? {
            Operand::Name(name) => (Some(name), 0),
            Operand::Number(at) => (None, at as i64),
            other => return self.fail(format!("{other:?} in place of an address")),
        };
        while self.takes('+') {
            offset += self.number()? as i64;
        }
        let coordinates = if self.takes(',') {
            match self.simple()? {
                Operand::Vector(all) => all,
                other => vec![other],
            }
        } else {
            vec![]
        };
        self.mark(']')?;
        Ok(Operand::Address { base, offset, coordinates })
    }
}
